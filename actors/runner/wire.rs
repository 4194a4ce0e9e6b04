//! Frames of the runner protocol, from and to text (runner-protocol 2).
//!
//! Nothing here decides; what cannot be read is a value too, and the connection chooses what it means.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::domain::machine::Provider;
use crate::ports::sandbox::{CLOSED_BEFORE_EXIT, SandboxError};

/// Something a daemon sent.
#[derive(Debug, PartialEq)]
pub enum Inbound {
    Reply {
        id: u64,
        answer: Result<Value, SandboxError>,
    },
    Stream(StreamFrame),
    /// Readable JSON that means nothing to us: logged, dropped, the connection lives.
    Other,
    /// Not JSON: the connection is closed with 1003.
    Garbage,
}

#[derive(Debug, PartialEq)]
pub struct StreamFrame {
    pub session_id: String,
    pub replay_for: Option<u64>,
    pub body: StreamBody,
}

#[derive(Debug, PartialEq)]
pub enum StreamBody {
    Stdout(Bytes),
    Stderr(Bytes),
    /// None: the frame carried no code, so the process gave none (RUL-L-96).
    Exit(Option<i64>),
    ReplayEnd {
        stdout_bytes: i64,
        stderr_bytes: i64,
    },
}

impl StreamBody {
    /// The verdict of an exit frame.
    pub fn verdict(code: Option<i64>) -> Result<i64, SandboxError> {
        code.ok_or_else(|| SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into()))
    }
}

/// Every field of either kind; a borrowed `data` avoids a copy of the bulk.
#[derive(Deserialize)]
struct Raw<'a> {
    id: Option<u64>,
    ok: Option<bool>,
    result: Option<Value>,
    error: Option<String>,
    detail: Option<Value>,
    stream: Option<String>,
    session_id: Option<String>,
    #[serde(borrow)]
    data: Option<std::borrow::Cow<'a, str>>,
    code: Option<i64>,
    replay_for: Option<u64>,
    stdout_bytes: Option<i64>,
    stderr_bytes: Option<i64>,
}

/// Reads one text message.
pub fn read(text: &str) -> Inbound {
    let raw: Raw<'_> = match serde_json::from_str(text) {
        Ok(raw) => raw,
        Err(_) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => return Inbound::Other,
        Err(_) => return Inbound::Garbage,
    };
    if let Some(id) = raw.id {
        return Inbound::Reply {
            id,
            answer: answer(raw),
        };
    }
    let (Some(kind), Some(session_id)) = (raw.stream.as_deref(), raw.session_id) else {
        return Inbound::Other;
    };
    let body = match kind {
        "stdout" => StreamBody::Stdout(decode(raw.data.as_deref().unwrap_or_default())),
        "stderr" => StreamBody::Stderr(decode(raw.data.as_deref().unwrap_or_default())),
        "exit" => StreamBody::Exit(raw.code),
        "replay_end" => StreamBody::ReplayEnd {
            stdout_bytes: raw.stdout_bytes.unwrap_or(0),
            stderr_bytes: raw.stderr_bytes.unwrap_or(0),
        },
        _ => return Inbound::Other,
    };
    Inbound::Stream(StreamFrame {
        session_id,
        replay_for: raw.replay_for,
        body,
    })
}

/// Data that is not base64 is passed on as the text it is (runner-protocol 2).
fn decode(data: &str) -> Bytes {
    STANDARD
        .decode(data)
        .map_or_else(|_| Bytes::copy_from_slice(data.as_bytes()), Bytes::from)
}

fn answer(raw: Raw<'_>) -> Result<Value, SandboxError> {
    match raw.ok {
        Some(true) => Ok(raw.result.unwrap_or_else(|| Value::Object(Map::new()))),
        Some(false) => Err(error(raw.error.as_deref().unwrap_or("provider"), raw.detail)),
        None => Err(SandboxError::Provider {
            provider: Provider::Runner,
            detail: "malformed_reply".into(),
        }),
    }
}

/// Maps an error code of the wire to the taxonomy (runner-protocol 2).
fn error(code: &str, detail: Option<Value>) -> SandboxError {
    let detail = match detail {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    match code {
        "not_found" => SandboxError::NotFound,
        "command_exited" => SandboxError::CommandExited,
        "not_supported" => SandboxError::NotSupported,
        "invalid" => SandboxError::Invalid(detail),
        "unavailable" => SandboxError::Unavailable(detail),
        "write_failed" => SandboxError::WriteFailed(detail),
        other => SandboxError::Provider {
            provider: Provider::Runner,
            detail: format!("{other}: {detail}"),
        },
    }
}

/// One request as text. `arguments` are merged beside `id` and `op`.
pub fn request(id: u64, op: &str, arguments: Map<String, Value>) -> String {
    let mut object = Map::with_capacity(arguments.len() + 2);
    object.insert("id".into(), id.into());
    object.insert("op".into(), op.into());
    object.extend(arguments);
    Value::Object(object).to_string()
}

/// Bytes for the wire.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rp_v31_what_is_not_json_is_garbage_and_other_json_is_kept() {
        assert_eq!(read("hello"), Inbound::Garbage);
        assert_eq!(read("[1]"), Inbound::Other);
        assert_eq!(read("{}"), Inbound::Other);
        assert_eq!(read(r#"{"stream":"smell","session_id":"s"}"#), Inbound::Other);
        assert_eq!(read(r#"{"id":"seven","ok":true}"#), Inbound::Other);
    }

    #[test]
    fn rp_v33_an_unknown_error_code_is_the_providers() {
        let Inbound::Reply {
            id: 1,
            answer: Err(error),
        } = read(r#"{"id":1,"ok":false,"error":"disk_full","detail":"x"}"#)
        else {
            panic!("a reply");
        };
        assert_eq!(
            error,
            SandboxError::Provider {
                provider: Provider::Runner,
                detail: "disk_full: x".into()
            }
        );
    }

    #[test]
    fn rul_l_96_an_exit_without_a_code_is_no_exit() {
        let frame = read(r#"{"stream":"exit","session_id":"s-1"}"#);
        let Inbound::Stream(StreamFrame {
            body: StreamBody::Exit(code),
            ..
        }) = frame
        else {
            panic!("{frame:?}")
        };
        assert!(StreamBody::verdict(code).is_err());
        assert_eq!(StreamBody::verdict(Some(0)), Ok(0));
    }

    #[test]
    fn data_that_is_not_base64_is_the_text_itself() {
        let frame = read(r#"{"stream":"stdout","session_id":"s","data":"%%"}"#);
        let Inbound::Stream(StreamFrame {
            body: StreamBody::Stdout(bytes),
            ..
        }) = frame
        else {
            panic!("{frame:?}")
        };
        assert_eq!(&bytes[..], b"%%");
    }

    #[test]
    fn a_reply_without_ok_is_malformed() {
        let Inbound::Reply { answer: Err(error), .. } = read(r#"{"id":4}"#) else {
            panic!("a reply")
        };
        assert_eq!(error.class(), "provider");
    }
}
