//! Checkpoints: create, restore, delete (providers 1.8, RUL-L-34, RUL-L-111).
//!
//! The id comes from the listing, never from a stream's prose. A restore whose stream reports an error has failed,
//! whatever the status said. With the operator's flag off nothing is sent.

use std::time::Duration;

use bytes::Bytes;
use fountain_actors::domain::Epoch;
use fountain_actors::ports::sandbox::SandboxError;
use serde_json::{Value, json};

use crate::address::Target;
use crate::call::{Call, Lost};
use crate::errors::{clean, refused, unavailable, unclassified};
use crate::ndjson::Lines;
use crate::pools::Pool;
use crate::{Core, is_exactly, named};

/// Most bytes of one line of progress, and of all of them.
const LONGEST_LINE: usize = 64 * 1024;
const LONGEST_STREAM: usize = 16 * 1024 * 1024;
/// Most bytes of a refusal.
const LONGEST_REFUSAL: usize = 64 * 1024;
/// The entry that stands for the disk as it is now.
pub(crate) const CURRENT: &str = "Current";

/// How a stream of progress ended.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Complete,
    /// It ended in order and said neither.
    Silent,
    Failed(String),
}

pub(crate) fn target(name: &str) -> Target {
    Target::sprite(name).segment("checkpoints")
}

impl Core {
    pub(crate) async fn create_checkpoint(
        &self,
        name: &str,
        comment: &str,
        epoch: Option<Epoch>,
    ) -> Result<String, SandboxError> {
        self.offered(name)?;
        let call = Call::post(Target::sprite(name).segment("checkpoint"))
            .json(&json!({"comment": comment}))
            .epoch(epoch);
        match self.progress(call).await? {
            Progress::Complete => {}
            Progress::Silent => return Err(unavailable("checkpoint_unconfirmed")),
            Progress::Failed(why) => return Err(unclassified(&format!("checkpoint failed: {why}"))),
        }
        let reply = self.expect(Call::get(target(name))).await?;
        let listed = reply.json().unwrap_or_default();
        let listed = listed.as_array().ok_or_else(|| unclassified("malformed_checkpoints"))?;
        newest(listed, comment, self.facts().has_global_checkpoints).ok_or_else(|| unclassified("no_checkpoint_id"))
    }

    pub(crate) async fn restore_checkpoint(
        &self,
        name: &str,
        id: &str,
        epoch: Option<Epoch>,
    ) -> Result<(), SandboxError> {
        self.offered(name)?;
        named(id)?;
        let call = Call::post(target(name).segment(id).segment("restore")).epoch(epoch);
        match self.progress(call).await? {
            Progress::Complete => Ok(()),
            Progress::Silent => Err(SandboxError::RestoreFailed("incomplete".to_owned())),
            Progress::Failed(why) => Err(SandboxError::RestoreFailed(why)),
        }
    }

    pub(crate) async fn delete_checkpoint(
        &self,
        name: &str,
        id: &str,
        epoch: Option<Epoch>,
    ) -> Result<(), SandboxError> {
        self.offered(name)?;
        named(id)?;
        let call = Call::delete(target(name).segment(id)).epoch(epoch);
        let reply = self.send(call, Pool::General, self.checkpoint_limit()).await?;
        match reply.status.as_u16() {
            200..=299 | 404 => Ok(()),
            // A service whose checkpoints cannot be deleted one by one (RUL-L-35).
            405 | 501 => Err(SandboxError::NotSupported),
            _ => Err(refused(&reply)),
        }
    }

    /// The operator's flag, and a name that can be sent.
    pub(crate) fn offered(&self, name: &str) -> Result<(), SandboxError> {
        if self.checkpoints {
            named(name)
        } else {
            Err(SandboxError::NotSupported)
        }
    }

    /// An operator's longer bound holds here too.
    fn checkpoint_limit(&self) -> Duration {
        self.timeout.max(self.limits.checkpoint)
    }

    async fn progress(&self, call: Call) -> Result<Progress, SandboxError> {
        tokio::time::timeout(self.checkpoint_limit(), self.stream(call))
            .await
            .map_err(|_| Lost::Late)?
    }

    async fn stream(&self, call: Call) -> Result<Progress, SandboxError> {
        let mut incoming = self.wire()?.send(&call).await?;
        self.learn(&incoming.head.headers);
        if !is_exactly(incoming.head.status, 200) {
            return Err(refused(&incoming.whole(LONGEST_REFUSAL).await?));
        }
        let mut lines = Lines::new(LONGEST_LINE);
        let mut seen = Progress::Silent;
        let mut size = 0;
        // To the proven end: "complete" in half a body proves nothing.
        while let Some(piece) = incoming.piece().await? {
            size += piece.len();
            if size > LONGEST_STREAM {
                return Err(Lost::TooLong.into());
            }
            for line in lines.push(&piece).map_err(|_| Lost::TooLong)? {
                seen = seen.with(&line);
            }
        }
        Ok(lines.finish().into_iter().fold(seen, |seen, line| seen.with(&line)))
    }
}

impl Progress {
    /// After another line. An error stays one.
    fn with(self, line: &Bytes) -> Self {
        if matches!(self, Self::Failed(_)) {
            return self;
        }
        let Ok(item) = serde_json::from_slice::<Value>(line) else {
            return Self::Failed("malformed_progress".to_owned());
        };
        let kind = item.get("type").and_then(Value::as_str);
        let error = item
            .get("error")
            .filter(|error| !error.is_null() && **error != json!(""));
        if kind == Some("error") || error.is_some() {
            let text = error
                .or_else(|| item.get("message"))
                .or_else(|| item.get("data"))
                .and_then(Value::as_str)
                .unwrap_or("error");
            return Self::Failed(clean(text));
        }
        if kind == Some("complete") { Self::Complete } else { self }
    }
}

/// The entry that a create made: with our comment before without, the newest of them; in its widest form.
fn newest(listed: &[Value], comment: &str, global: bool) -> Option<String> {
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let id = |entry: &Value| text(entry, "id").filter(|id| !id.is_empty() && id != CURRENT);
    let time = |entry: &Value| {
        let text = text(entry, "create_time")?;
        chrono::DateTime::parse_from_rfc3339(&text).ok()
    };
    let chosen = listed
        .iter()
        .enumerate()
        .filter(|(_, entry)| id(entry).is_some())
        // Listed newest first: of two with one time, or none, the earlier in the list.
        .max_by_key(|(place, entry)| {
            let is_ours = !comment.is_empty() && text(entry, "comment").as_deref() == Some(comment);
            (is_ours, time(entry), std::cmp::Reverse(*place))
        })
        .map(|(_, entry)| entry)?;
    text(chosen, "global_id")
        .filter(|id| global && !id.is_empty())
        .or_else(|| id(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s07_the_id_is_ours_by_comment_then_by_time_and_never_the_current_disk() {
        let listed = json!([
            {"id": "Current", "create_time": "2026-03-01T00:00:00Z", "comment": "mine"},
            {"id": "v2", "create_time": "2026-02-02T00:00:00Z"},
            {"id": "v1", "create_time": "2026-02-01T00:00:00Z", "comment": "mine", "global_id": "sprite-1.v1"},
            {"id": "v0", "create_time": "2026-01-01T00:00:00Z", "comment": "mine"}]);
        let listed = listed.as_array().unwrap();
        assert_eq!(newest(listed, "mine", false).as_deref(), Some("v1"));
        assert_eq!(newest(listed, "mine", true).as_deref(), Some("sprite-1.v1"));
        assert_eq!(newest(listed, "other", true).as_deref(), Some("v2"));
        assert_eq!(newest(&listed[..1], "mine", true), None);
        assert_eq!(
            newest(&[json!({"id": "a"}), json!({"id": "b"})], "", false).as_deref(),
            Some("a")
        );
    }

    #[test]
    fn s08_an_error_in_the_stream_stays_an_error() {
        let after = |lines: &[&'static str]| {
            lines.iter().fold(Progress::Silent, |seen, line| {
                seen.with(&Bytes::from_static(line.as_bytes()))
            })
        };
        let complete = r#"{"type":"complete","data":"x"}"#;
        assert_eq!(after(&[r#"{"type":"info","data":"x"}"#]), Progress::Silent);
        assert_eq!(after(&[r#"{"type":"info","error":""}"#, complete]), Progress::Complete);
        assert_eq!(
            after(&[r#"{"type":"error","error":"no such\ncheckpoint"}"#, complete]),
            Progress::Failed("no suchcheckpoint".into())
        );
        assert_eq!(
            after(&[r#"{"type":"info","error":"bad"}"#]),
            Progress::Failed("bad".into())
        );
        assert_eq!(after(&[r#"{"type":"error"}"#]), Progress::Failed("error".into()));
        assert_eq!(
            after(&["nonsense", complete]),
            Progress::Failed("malformed_progress".into())
        );
    }
}
