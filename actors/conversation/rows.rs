//! The rows that a server writes: output, gaps and the stages of a turn's course (http-api 3.3, 3.4).
//!
//! Pure: everything that needs a secret removed goes through the redactor before it comes here.

use serde_json::{Value, json};

use super::replay::Gap;
use crate::acp::{Failure, PermissionAsk};
use crate::domain::event::{ByteRange, NewEvent, NewOutput, NewStage, RawStream, Stage, StageState, Stream};
use crate::domain::turn::PendingPermission;
use crate::domain::{ProcessId, TurnId};

/// One output row.
pub fn output(
    turn_id: Option<TurnId>,
    stream: Stream,
    data: String,
    source: Option<(ProcessId, RawStream, ByteRange)>,
) -> NewEvent {
    NewOutput {
        turn_id,
        stream,
        data,
        source,
        gap: None,
    }
    .into()
}

/// A sentence of ours among the output, on `stderr`.
pub fn remark(turn_id: Option<TurnId>, sentence: String) -> NewEvent {
    output(turn_id, Stream::Stderr, sentence, None)
}

/// RUL-42a: what a reader misses.
pub fn gap(turn_id: Option<TurnId>, gap: Gap) -> NewEvent {
    NewOutput {
        turn_id,
        stream: Stream::Stderr,
        data: gap.sentence,
        source: None,
        gap: Some((gap.stream, gap.range)),
    }
    .into()
}

/// `request/started`: somebody has to answer.
pub fn request_started(turn_id: TurnId, ask: &PermissionAsk) -> NewEvent {
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut stage = NewStage::new(Stage::Request, StageState::Started)
        .with("request_id", ask.request_id.as_str())
        .with("tool", ask.tool.clone())
        .with("options", ask.options.clone())
        .with("timeout_ms", millis(ask.timeout))
        .with("detached_timeout_ms", millis(ask.detached_timeout));
    stage.turn_id = Some(turn_id);
    stage.into()
}

/// `request/done`: how it was resolved.
pub fn request_done(turn_id: TurnId, permission: &PendingPermission) -> NewEvent {
    let answer = permission.answer.as_ref();
    let mut stage = NewStage::new(Stage::Request, StageState::Done)
        .with("request_id", permission.request_id.as_str())
        .with("outcome", answer.map_or("answered", |answer| answer.outcome.as_str()))
        .with("option_id", answer.and_then(|answer| answer.option_id.clone()));
    stage.turn_id = Some(turn_id);
    stage.into()
}

/// `session/done` with what happened to the agent's session.
pub fn session(turn_id: Option<TurnId>, event: &str, reason: Option<&str>, detail: Option<&str>) -> NewEvent {
    let mut stage = NewStage::new(Stage::Session, StageState::Done).with("event", event);
    if let Some(reason) = reason {
        stage = stage.with("reason", reason);
    }
    if let Some(detail) = detail {
        stage = stage.with("detail", detail);
    }
    stage.turn_id = turn_id;
    stage.into()
}

/// `sandbox/done`, event `connection_lost`: the agent's process ended between two turns.
pub fn connection_lost(exit_code: i64) -> NewEvent {
    NewStage::new(Stage::Sandbox, StageState::Done)
        .with("event", "connection_lost")
        .with("exit_code", exit_code)
        .into()
}

/// `model/done`.
pub fn model_selected(turn_id: TurnId, selection: &Value) -> NewEvent {
    let mut stage = NewStage::new(Stage::Model, StageState::Done).with("turn_id", turn_id.to_string());
    for (key, value) in selection.as_object().into_iter().flatten() {
        stage = stage.with(key, value.clone());
    }
    stage.turn_id = Some(turn_id);
    stage.into()
}

/// `model/failed`, for failures that are about the model. `detail` is redacted already.
pub fn model_failed(turn_id: TurnId, failure: &Failure, detail: &str) -> NewEvent {
    let (requested, effective) = match failure {
        Failure::ModelSelection {
            requested, effective, ..
        } => (Some(requested.clone()), effective.clone()),
        _ => (None, None),
    };
    let mut stage = NewStage::new(Stage::Model, StageState::Failed)
        .with("requested", requested)
        .with("using", effective)
        .with("error", failure.code())
        .with("detail", detail)
        .with("turn_id", turn_id.to_string());
    stage.turn_id = Some(turn_id);
    stage.into()
}

/// A stage of the reattach (RUL-16).
pub fn reattach(turn_id: TurnId, number: i64, state: StageState) -> NewStage {
    NewStage::new(Stage::Reattach, state).of_turn(turn_id, number)
}

/// `turn/started` for a turn that a fresh process runs after the reused one refused it.
pub fn turn_started(turn_id: TurnId, number: i64, client_request_id: Option<&str>) -> NewEvent {
    let mode = if number == 1 { "run" } else { "continue" };
    let mut stage = NewStage::new(Stage::Turn, StageState::Started)
        .of_turn(turn_id, number)
        .with("mode", mode);
    if let Some(id) = client_request_id {
        stage = stage.with("client_request_id", id);
    }
    stage.into()
}

/// The name of the signal that an exit code tells of, where the code is a crash (runtimes 9).
pub fn crash_signal(code: i64) -> Option<&'static str> {
    Some(match code {
        132 => "SIGILL",
        133 => "SIGTRAP",
        134 => "SIGABRT",
        135 => "SIGBUS",
        136 => "SIGFPE",
        139 => "SIGSEGV",
        _ => return None,
    })
}

/// The model selection as it stands on the turn.
pub fn selection(requested: &Option<String>, effective: &Option<String>, source: &str) -> Value {
    json!({"requested_model": requested, "effective_model": effective, "source": source, "status": "selected"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_96_exactly_the_crash_codes_name_a_signal() {
        let codes: Vec<i64> = (0..256).filter(|code| crash_signal(*code).is_some()).collect();
        assert_eq!(codes, [132, 133, 134, 135, 136, 139]);
    }
}
