//! Operations with proof: one provider write, no retry, no redirect, a bounded body, one deadline (sandbox-contract 10).
//!
//! Each request has a connection of its own that closes with the future, at the deadline at the latest. A lost answer is
//! uncertain, not failed, and says so; no detail holds a word of the provider. The only conflict that is told apart is our
//! own server's refusal of an older epoch (RUL-L-2).

use std::time::Duration;

use bytes::Bytes;
use fountain_actors::domain::Epoch;
use fountain_actors::ports::sandbox::{
    CheckpointOnce, CreateNew, DestroyOnce, STALE_EPOCH, SandboxError, Terminate, TerminateMode,
};
use serde_json::{Map, Value, json};

use crate::address::Target;
use crate::call::{Call, Lost};
use crate::checkpoints::{self, CURRENT};
use crate::errors::{refused_bare, stale_body, unavailable};
use crate::wire::Incoming;
use crate::{Core, is_exactly, named, ndjson};

/// Most bytes of an answer (10.1 to 10.3).
const LONGEST_ANSWER: usize = 65_536;
/// Most bytes of the events of a termination (10.4).
const LONGEST_EVENTS: usize = 16_384;
/// Most bytes of an id.
const LONGEST_ID: usize = 256;

/// The words of one receipt.
struct Words {
    unconfirmed: &'static str,
    timeout: &'static str,
    transport: &'static str,
}

const CREATE: Words = Words {
    unconfirmed: "create_unconfirmed",
    timeout: "create_timeout",
    transport: "create_transport_failed",
};
const DELETE: Words = Words {
    unconfirmed: "delete_unconfirmed",
    timeout: "delete_timeout",
    transport: "delete_transport_failed",
};
const CHECKPOINT: Words = Words {
    unconfirmed: "checkpoint_unconfirmed",
    timeout: "checkpoint_timeout",
    transport: "checkpoint_transport_failed",
};
const TERMINATION: Words = Words {
    unconfirmed: "termination_unconfirmed",
    timeout: "termination_timeout",
    transport: "termination_transport_failed",
};

impl Words {
    fn unconfirmed(&self) -> SandboxError {
        unavailable(self.unconfirmed)
    }

    fn lost(&self, lost: Lost) -> SandboxError {
        match lost {
            Lost::NotConnected | Lost::Broken => unavailable(self.transport),
            Lost::Late => unavailable(self.timeout),
            Lost::TooLong => self.unconfirmed(),
            Lost::Unsendable => lost.into(),
        }
    }

    /// A body that does not come whole proves nothing, and an answer had begun: unconfirmed.
    fn half(&self, lost: Lost) -> SandboxError {
        match lost {
            Lost::Broken => self.unconfirmed(),
            lost => self.lost(lost),
        }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, SandboxError> {
        tokio::time::timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(unavailable(self.timeout)))
    }
}

fn millis(checked: i64) -> Duration {
    Duration::from_millis(checked.unsigned_abs())
}

fn stale() -> SandboxError {
    SandboxError::Invalid(STALE_EPOCH.to_owned())
}

impl Core {
    async fn once(&self, call: &Call, words: &Words) -> Result<Incoming, SandboxError> {
        let wire = self.wire().map_err(|lost| words.lost(lost))?;
        let incoming = wire.send(call).await.map_err(|lost| words.lost(lost))?;
        self.learn(&incoming.head.headers);
        Ok(incoming)
    }

    /// The new machine's incarnation.
    pub(crate) async fn create_new(&self, name: &str, how: CreateNew) -> Result<String, SandboxError> {
        how.check()?;
        named(name)?;
        CREATE.within(millis(how.timeout_ms), self.create_once(name, how)).await
    }

    async fn create_once(&self, name: &str, how: CreateNew) -> Result<String, SandboxError> {
        let mut body = Map::from_iter([("name".to_owned(), name.into())]);
        if let Some(wait) = how.wait_for_capacity {
            body.insert("wait_for_capacity".to_owned(), wait.into());
        }
        let auth = if self.public_urls { "public" } else { "sprite" };
        body.insert("url_settings".to_owned(), json!({"auth": auth}));
        let call = Call::post(Target::sprites())
            .json(&Value::Object(body))
            .epoch(how.epoch);
        let mut incoming = self.once(&call, &CREATE).await?;
        match incoming.head.status.as_u16() {
            200..=299 => {
                let body = incoming.body(LONGEST_ANSWER).await.map_err(|lost| CREATE.half(lost))?;
                incarnation(&body, name).ok_or_else(|| CREATE.unconfirmed())
            }
            409 if refuses_epoch(&mut incoming, how.epoch).await => Err(stale()),
            409 => Err(SandboxError::AlreadyExists),
            _ => Err(refused_bare(incoming.head.status)),
        }
    }

    pub(crate) async fn destroy_once(&self, name: &str, how: DestroyOnce) -> Result<(), SandboxError> {
        how.check()?;
        named(name)?;
        DELETE
            .within(millis(how.timeout_ms), self.delete_and_look(name, how.epoch))
            .await
    }

    async fn delete_and_look(&self, name: &str, epoch: Option<Epoch>) -> Result<(), SandboxError> {
        let call = Call::delete(Target::sprite(name)).epoch(epoch);
        let mut incoming = self.once(&call, &DELETE).await?;
        match incoming.head.status.as_u16() {
            404 => return Ok(()),
            200 | 202 | 204 => {
                incoming.body(LONGEST_ANSWER).await.map_err(|lost| DELETE.half(lost))?;
            }
            409 if refuses_epoch(&mut incoming, epoch).await => return Err(stale()),
            _ => return Err(DELETE.unconfirmed()),
        }
        drop(incoming);
        let look = self.once(&Call::get(Target::sprite(name)), &DELETE).await?;
        if is_exactly(look.head.status, 404) {
            Ok(())
        } else {
            Err(DELETE.unconfirmed())
        }
    }

    pub(crate) async fn create_checkpoint_once(
        &self,
        name: &str,
        how: &CheckpointOnce,
    ) -> Result<String, SandboxError> {
        how.check()?;
        self.offered(name)?;
        let work = self.checkpoint_and_look(name, how);
        CHECKPOINT.within(millis(how.timeout_ms), work).await
    }

    async fn checkpoint_and_look(&self, name: &str, how: &CheckpointOnce) -> Result<String, SandboxError> {
        let comment = format!("sandbox-operation:{}", how.operation_id);
        let call = Call::post(Target::sprite(name).segment("checkpoint"))
            .json(&json!({"comment": comment}))
            .epoch(how.epoch);
        let mut incoming = self.once(&call, &CHECKPOINT).await?;
        if !is_exactly(incoming.head.status, 200) {
            let is_stale = incoming.head.status.as_u16() == 409 && refuses_epoch(&mut incoming, how.epoch).await;
            return Err(if is_stale { stale() } else { CHECKPOINT.unconfirmed() });
        }
        // One budget for both answers.
        let stream = incoming
            .body(LONGEST_ANSWER)
            .await
            .map_err(|lost| CHECKPOINT.half(lost))?;
        if !is_complete(&stream) {
            return Err(CHECKPOINT.unconfirmed());
        }
        drop(incoming);
        let mut listing = self.once(&Call::get(checkpoints::target(name)), &CHECKPOINT).await?;
        if !is_exactly(listing.head.status, 200) {
            return Err(CHECKPOINT.unconfirmed());
        }
        let rest = LONGEST_ANSWER - stream.len();
        let listed = listing.body(rest).await.map_err(|lost| CHECKPOINT.half(lost))?;
        listed_id(&listed, &comment).ok_or_else(|| CHECKPOINT.unconfirmed())
    }

    pub(crate) async fn terminate_session(
        &self,
        name: &str,
        session_id: &str,
        how: Terminate,
    ) -> Result<(), SandboxError> {
        how.check(session_id)?;
        named(name)?;
        let limit = millis(how.timeout_ms) + self.limits.termination_margin;
        TERMINATION.within(limit, self.kill(name, session_id, how)).await
    }

    async fn kill(&self, name: &str, session_id: &str, how: Terminate) -> Result<(), SandboxError> {
        let signal = match how.mode {
            TerminateMode::Graceful => "SIGTERM",
            TerminateMode::Force => "SIGKILL",
        };
        let target = Target::sprite(name)
            .segment("exec")
            .segment(session_id)
            .segment("kill")
            .pair("signal", signal)
            .pair("timeout", &format!("{}ms", how.timeout_ms));
        let mut incoming = self.once(&Call::post(target), &TERMINATION).await?;
        match (incoming.head.status.as_u16(), how.mode) {
            // Absence is the end of the session, but says nothing about what a forced end had to reach.
            (404, TerminateMode::Graceful) => Ok(()),
            (404, TerminateMode::Force) => Err(TERMINATION.unconfirmed()),
            (200, mode) => {
                let body = incoming
                    .body(LONGEST_EVENTS)
                    .await
                    .map_err(|lost| TERMINATION.half(lost))?;
                if proves_end(&body, mode) {
                    Ok(())
                } else {
                    Err(TERMINATION.unconfirmed())
                }
            }
            (200..=299, _) => Err(TERMINATION.unconfirmed()),
            _ => Err(refused_bare(incoming.head.status)),
        }
    }
}

/// Whether a conflict is the refusal of our epoch. Asked only where one was sent.
async fn refuses_epoch(incoming: &mut Incoming, epoch: Option<Epoch>) -> bool {
    epoch.is_some() && incoming.body(LONGEST_ANSWER).await.is_ok_and(|body| stale_body(&body))
}

fn is_id(text: &str) -> bool {
    (1..=LONGEST_ID).contains(&text.len())
}

/// The incarnation that a create's answer names, if it is about our name.
fn incarnation(body: &[u8], name: &str) -> Option<String> {
    let sprite: Value = serde_json::from_slice(body).ok()?;
    let text = |key| sprite.get(key).and_then(Value::as_str);
    let id = text("id").filter(|id| is_id(id))?;
    (text("name") == Some(name)).then(|| id.to_owned())
}

fn objects(body: &Bytes) -> Option<Vec<Map<String, Value>>> {
    let lines = ndjson::lines(body, LONGEST_ANSWER).ok()?;
    lines.iter().map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Information, then one `complete` at the end, and no error anywhere (10.3).
fn is_complete(body: &Bytes) -> bool {
    let Some(items) = objects(body) else { return false };
    let Some((last, earlier)) = items.split_last() else {
        return false;
    };
    let is = |item: &Map<String, Value>, kind: &str| {
        item.get("type").and_then(Value::as_str) == Some(kind)
            && item.get("data").is_some_and(Value::is_string)
            && !item.contains_key("error")
    };
    is(last, "complete") && earlier.iter().all(|item| is(item, "info"))
}

/// The one entry with our comment, in a listing without a flaw.
fn listed_id(body: &[u8], comment: &str) -> Option<String> {
    let entries: Vec<Map<String, Value>> = serde_json::from_slice(body).ok()?;
    let mut found = None;
    for entry in &entries {
        let id = entry.get("id")?.as_str().filter(|id| is_id(id))?;
        let said = match entry.get("comment") {
            None | Some(Value::Null) => None,
            Some(said) => Some(said.as_str()?),
        };
        if said == Some(comment) && id != CURRENT && found.replace(id).is_some() {
            return None;
        }
    }
    found.map(str::to_owned)
}

/// The evidence of 10.4; a forced end also needs the SIGKILL and the process that it went to.
fn proves_end(body: &Bytes, mode: TerminateMode) -> bool {
    let Some(events) = objects(body) else { return false };
    let Some((last, earlier)) = events.split_last() else {
        return false;
    };
    let kind = |event: &Map<String, Value>| event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = last.get("exit_code").and_then(Value::as_u64);
    let is_ended = kind(last) == "complete" && code.is_some_and(|code| code <= 255);
    let is_known = earlier
        .iter()
        .all(|event| matches!(kind(event).as_str(), "signal" | "timeout" | "exited" | "killed"));
    let is_seen = earlier
        .iter()
        .any(|event| matches!(kind(event).as_str(), "exited" | "killed"));
    let is_killed = earlier.iter().any(|event| {
        kind(event) == "signal"
            && event.get("signal").and_then(Value::as_str) == Some("SIGKILL")
            && event.get("pid").and_then(Value::as_i64).is_some_and(|pid| pid > 0)
    });
    is_ended && is_known && is_seen && (mode == TerminateMode::Graceful || is_killed)
}
