//! `fountain why ID`: why a machine, or the machine of a conversation, is in its state; who holds it until when; what it
//! waits for; what happens next and when; and what was done to it (issue 4, Deliver 3).
//!
//! Over the HTTP API, so it says what the server would say. An id is looked for among the sandboxes first; ids are
//! random, so it is never both.

use clap::Args;
use serde_json::Value;

use super::client::{Client, ClientError};
use super::resources::escape;
use super::{Context, Exit, render};

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Id of a sandbox or of a conversation.
    id: String,
}

pub async fn why(context: Context, args: WhyArgs) -> anyhow::Result<Exit> {
    let client = Client::new(&context)?;
    let id = escape(&args.id);
    let told = match client.get(&format!("/api/sandboxes/{id}/why")).await {
        Err(ClientError::Api { status: 404, .. }) => client.get(&format!("/api/conversations/{id}/why")).await?,
        told => told?,
    };
    if context.json {
        render::json(&told);
    } else {
        for line in lines(&told) {
            render::line(&line);
        }
        operations(&told);
    }
    Ok(Exit::Ok)
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Everything but the timeline, a fact a line.
fn lines(told: &Value) -> Vec<String> {
    let field = |key: &str| text(told, key).unwrap_or("-").to_owned();
    let mut lines = vec![
        format!(
            "sandbox  {} ({}, {})",
            field("sandbox_id"),
            field("sprite_name"),
            field("provider")
        ),
        format!("state    {}: {}", field("state"), field("because")),
    ];
    if let Some(conversation) = told.get("conversation") {
        let turn = conversation.get("turn").and_then(|turn| text(turn, "status"));
        lines.push(format!(
            "for      conversation {} ({}, {})",
            text(conversation, "id").unwrap_or("-"),
            text(conversation, "status").unwrap_or("-"),
            turn.map_or_else(|| "no open turn".to_owned(), |status| format!("turn {status}")),
        ));
    }
    let lease = told.get("lease").filter(|lease| !lease.is_null());
    lines.push(match lease {
        Some(lease) => format!(
            "held by  {} until {} ({})",
            text(lease, "holder").unwrap_or("-"),
            text(lease, "until").unwrap_or("-"),
            text(lease, "verb").unwrap_or("an operation"),
        ),
        None => "held by  nobody".to_owned(),
    });
    lines.extend(rows(told, "waits_for").iter().map(|wait| {
        let until = text(wait, "until").map(|until| format!(", until {until} at most"));
        format!(
            "waits    for {}{}",
            text(wait, "what").unwrap_or("-"),
            until.unwrap_or_default()
        )
    }));
    lines.extend(rows(told, "next").iter().map(|step| {
        let at = text(step, "at").map_or_else(|| "at any time".to_owned(), |at| format!("not before {at}"));
        format!(
            "next     {} ({}, {at})",
            text(step, "what").unwrap_or("-"),
            text(step, "by").unwrap_or("-"),
        )
    }));
    lines.extend(rows(told, "debts").iter().map(|debt| {
        format!(
            "debt     {} of epoch {}: {}, settles {}, closes {}",
            text(debt, "verb").unwrap_or("-"),
            debt.get("epoch").and_then(Value::as_i64).unwrap_or_default(),
            text(debt, "stage").unwrap_or("-"),
            text(debt, "settles_at").unwrap_or("-"),
            text(debt, "closes_at").unwrap_or("-"),
        )
    }));
    if told.get("counted").and_then(Value::as_bool) == Some(true) {
        lines.push("counted  it takes a slot of the account and the fleet".to_owned());
    }
    lines
}

fn operations(told: &Value) {
    let timeline = rows(told, "operations");
    if timeline.is_empty() {
        return;
    }
    render::line("");
    let columns = [
        ("STARTED", "started_at"),
        ("VERB", "verb"),
        ("EPOCH", "epoch"),
        ("BY", "actor"),
        ("OUTCOME", "outcome"),
        ("CALLS", "provider_call"),
        ("ANSWER", "provider_answer"),
        ("RECEIPT", "receipt.verdict"),
    ];
    render::table(timeline, &columns);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_holds_a_machine_and_what_comes_next_is_said_in_words() {
        let told = json!({
            "sandbox_id": "m", "sprite_name": "n", "provider": "sprites", "state": "waking", "because": "it is being woken",
            "lease": {"holder": "node/1", "until": "2026-01-02T03:05:05Z", "verb": "wake"},
            "waits_for": [{"what": "the end of the wake", "until": "2026-01-02T03:05:05Z"}],
            "next": [{"what": "a prompt wakes it", "by": "client", "at": null}],
            "debts": [{"verb": "park", "epoch": 3, "stage": "open", "settles_at": null, "closes_at": null}],
            "counted": true,
            "conversation": {"id": "c", "status": "idle", "turn": null},
        });
        let said = lines(&told);
        for wanted in [
            "state    waking: it is being woken",
            "for      conversation c (idle, no open turn)",
            "held by  node/1 until 2026-01-02T03:05:05Z (wake)",
            "waits    for the end of the wake, until 2026-01-02T03:05:05Z at most",
            "next     a prompt wakes it (client, at any time)",
            "debt     park of epoch 3: open, settles -, closes -",
        ] {
            assert!(said.iter().any(|line| line == wanted), "{wanted:?} in {said:#?}");
        }
    }

    #[test]
    fn an_answer_with_holes_is_printed_all_the_same() {
        assert!(lines(&json!({})).contains(&"held by  nobody".to_owned()));
    }
}
