//! `POST /v1/sprites/{n}/exec/{session}/kill` (providers 1.4): a signal, a grace period, SIGKILL, and what became of it.
//!
//! The answer is a stream of lines; `complete` is always the last. The kill goes on when its client has left. The signal
//! goes to the whole group, and the group must be gone: a leader that exits leaves nothing behind.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};
use bytes::Bytes;
use fountain_process::{Group, Session};
use futures_util::stream;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use url::form_urlencoded;

use super::{SpriteExec, duration, no_session, refuse, socket};

/// Grace period when none is asked for.
const GRACE: Duration = Duration::from_secs(10);
/// A killed group that is still there by then cannot be killed.
const AFTER_KILL: Duration = Duration::from_secs(5);
/// The verdict may wait for output that a stranger holds, but not longer than this (RUL-46a).
const VERDICT: Duration = Duration::from_secs(15);
/// The longest body: two short fields.
const BODY: usize = 16 * 1024;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    pub signal: Signal,
    /// How long the group may take before SIGKILL; zero is at once.
    pub timeout: Duration,
}

/// Why it cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not valid")]
pub struct KillError(&'static str);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Asked {
    signal: Option<String>,
    timeout: Option<Value>,
}

impl Kill {
    /// Reads query and body; the query wins, field by field. A body that is not JSON says nothing.
    ///
    /// # Errors
    /// [`KillError`]: no such signal, or not a duration.
    pub fn parse(query: &str, body: &[u8]) -> Result<Self, KillError> {
        let mut asked: Asked = serde_json::from_slice(body).unwrap_or_default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "signal" => asked.signal = Some(value.into_owned()),
                "timeout" => asked.timeout = Some(Value::String(value.into_owned())),
                _ => {}
            }
        }
        let signal = match asked.signal.as_deref() {
            None | Some("") => Signal::SIGTERM,
            Some(name) => socket::signal_named(name).ok_or(KillError("signal"))?,
        };
        let timeout = match asked.timeout {
            None | Some(Value::Null) => GRACE,
            Some(Value::String(text)) if text.is_empty() => GRACE,
            Some(Value::String(text)) => duration::parse(&text).map_err(|_| KillError("timeout"))?,
            Some(Value::Number(number)) => duration::parse(&format!("{number}s")).map_err(|_| KillError("timeout"))?,
            Some(_) => return Err(KillError("timeout")),
        };
        Ok(Self { signal, timeout })
    }
}

/// Ends a running session.
pub async fn kill(sprite: SpriteExec, session: &str, request: HttpRequest, body: web::Payload) -> HttpResponse {
    let running = sprite.session(session).filter(|session| session.exit().is_none());
    let Some((found, group)) = running.and_then(|found| found.group().cloned().map(|group| (found, group))) else {
        return no_session(session);
    };
    let body = match body.to_bytes_limited(BODY).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return refuse(StatusCode::BAD_REQUEST, "the body cannot be read"),
        Err(_) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
    };
    let kill = match Kill::parse(request.query_string(), &body) {
        Ok(kill) => kill,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let (lines, answer) = mpsc::channel(8);
    actix_web::rt::spawn(carry_out(kill, found, group, lines));
    let body = stream::unfold(answer, |mut answer| async move {
        let line = answer.recv().await?;
        Some((Ok::<_, actix_web::Error>(line), answer))
    });
    HttpResponse::Ok().content_type("application/x-ndjson").streaming(body)
}

async fn carry_out(kill: Kill, session: Arc<Session>, group: Group, lines: mpsc::Sender<Bytes>) {
    // There is room for all lines, and nobody to tell when the client has left.
    let tell = |line: Value| drop(lines.try_send(Bytes::from(format!("{line}\n"))));
    let send = |signal: Signal| {
        group.signal(signal);
        let message = format!("sent {signal} to process group {}", group.id());
        tell(json!({"type": "signal", "message": message, "signal": signal.as_str(), "pid": group.id()}));
    };
    send(kill.signal);
    // A stopped process hears nothing but SIGKILL until it goes on.
    group.signal(Signal::SIGCONT);
    let mut is_gone = kill.signal != Signal::SIGKILL && group.ends_within(kill.timeout).await;
    let mut is_killed = false;
    if !is_gone {
        if kill.signal != Signal::SIGKILL {
            tell(json!({"type": "timeout", "message": "the grace period is over"}));
            send(Signal::SIGKILL);
        }
        is_killed = true;
        is_gone = group.ends_within(AFTER_KILL).await;
    }
    let verdict = match tokio::time::timeout(VERDICT, session.ending()).await {
        Ok(exit) => exit.verdict(),
        Err(_) => None,
    };
    match (is_gone, is_killed) {
        (false, _) => tell(json!({"type": "error", "message": "some processes are still there"})),
        (true, true) => tell(json!({"type": "killed", "message": "the process group was killed"})),
        (true, false) => tell(json!({"type": "exited", "message": "the process group has ended"})),
    }
    let code = verdict.unwrap_or(128 + Signal::SIGKILL as i32);
    tell(json!({"type": "complete", "exit_code": socket::exit_byte(code)}));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn p_v10_and_p_v11_what_the_clients_send() {
        let python = Kill::parse("", br#"{"signal":"SIGTERM","timeout":10}"#).unwrap();
        assert_eq!((python.signal, python.timeout), (Signal::SIGTERM, seconds(10)));
        let go = Kill::parse("signal=SIGTERM&timeout=0s", b"").unwrap();
        assert_eq!((go.signal, go.timeout), (Signal::SIGTERM, seconds(0)));
    }

    #[test]
    fn the_query_wins_field_by_field() {
        let kill = Kill::parse("signal=int", br#"{"signal":"SIGKILL","timeout":"1500ms"}"#).unwrap();
        assert_eq!(
            (kill.signal, kill.timeout),
            (Signal::SIGINT, Duration::from_millis(1500))
        );
        assert_eq!(
            Kill::parse("", b"").unwrap(),
            Kill {
                signal: Signal::SIGTERM,
                timeout: GRACE
            }
        );
        assert_eq!(Kill::parse("signal=SIGNONE", b""), Err(KillError("signal")));
        assert_eq!(Kill::parse("timeout=soon", b""), Err(KillError("timeout")));
        assert_eq!(Kill::parse("", br#"{"timeout":-1}"#), Err(KillError("timeout")));
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(query in ".*", body in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Kill::parse(&query, &body);
        }
    }
}
