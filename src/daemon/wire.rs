//! The JSON of the runner protocol: requests in, replies and stream frames out (runner-protocol 2).

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::process::Stream;

/// A request as it comes; absent and null mean the default. Not `Debug`: it holds secrets (field lesson P80).
#[derive(Default, Deserialize)]
pub struct Request {
    /// Names the reply. Zero marks a request whose reply nobody reads.
    pub id: i64,
    /// What to do.
    pub op: String,
    /// The sandbox.
    pub name: Option<String>,
    /// `write_file`: where.
    pub path: Option<String>,
    /// `write_file`, `stdin`: what, in base64.
    pub data: Option<Payload>,
    /// `write_file`: permission bits.
    pub mode: Option<i64>,
    /// `exec`, `spawn`: the program.
    pub cmd: Option<String>,
    /// `exec`, `spawn`: its arguments.
    pub args: Option<Vec<String>>,
    /// `exec`, `spawn`: pairs of name and value; other entries are ignored.
    pub env: Option<Vec<Vec<String>>>,
    /// `exec`, `spawn`: the working directory.
    pub dir: Option<String>,
    /// `exec`: limit in milliseconds; none when absent, zero or negative.
    pub timeout_ms: Option<i64>,
    /// `exec`: whether standard error is part of the output.
    pub stderr_to_stdout: Option<bool>,
    /// `spawn`: whether there is an input pipe.
    pub stdin: Option<bool>,
    /// The session, for everything about one.
    pub session_id: Option<String>,
    /// `terminate`: how long SIGTERM may take, in milliseconds (RUL-47).
    pub grace_ms: Option<u64>,
    /// The epoch of the caller's lease (RUL-L-2).
    pub epoch: Option<u64>,
}

/// Bytes that came as base64. They are decoded where the message is parsed, which for a large one is the blocking pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// What they are.
    Bytes(Bytes),
    /// The text was something else; only the op decides what that means.
    NotBase64,
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(STANDARD
            .decode(text.as_bytes())
            .map_or(Self::NotBase64, |bytes| Self::Bytes(bytes.into())))
    }
}

/// The codes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// No such sandbox or session.
    NotFound,
    /// The command is over.
    CommandExited,
    /// The op is unknown.
    NotSupported,
    /// The request cannot be right.
    Invalid,
    /// The machine cannot do it now.
    Unavailable,
    /// A file or a pipe did not take the bytes.
    WriteFailed,
    /// The output is larger than a message may be.
    Truncated,
}

impl Code {
    fn word(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::CommandExited => "command_exited",
            Self::NotSupported => "not_supported",
            Self::Invalid => "invalid",
            Self::Unavailable => "unavailable",
            Self::WriteFailed => "write_failed",
            Self::Truncated => "truncated",
        }
    }
}

/// A request that was not done, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people.
    pub detail: String,
}

impl Refusal {
    /// A refusal with its reason.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }
}

/// What an op answers.
pub type Answer = Result<Value, Refusal>;

/// The text of a reply.
pub fn reply(id: i64, answer: &Answer) -> String {
    match answer {
        Ok(result) => json!({"id": id, "ok": true, "result": result}),
        Err(refusal) => json!({"id": id, "ok": false, "error": refusal.code.word(), "detail": refusal.detail}),
    }
    .to_string()
}

/// Something that a session says.
#[derive(Debug, Serialize)]
pub struct Frame<'s> {
    stream: &'static str,
    session_id: &'s str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_for: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_bytes: Option<u64>,
}

impl<'s> Frame<'s> {
    /// A chunk of output; `replay_for` names the request whose subscriber alone gets it.
    pub fn output(session_id: &'s str, stream: Stream, data: &[u8], replay_for: Option<i64>) -> Self {
        let stream = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        Self {
            data: Some(encode(data)),
            replay_for,
            ..Self::bare(stream, session_id)
        }
    }

    /// The end of a session.
    pub fn exit(session_id: &'s str, code: i32, replay_for: Option<i64>) -> Self {
        Self {
            code: Some(code),
            replay_for,
            ..Self::bare("exit", session_id)
        }
    }

    /// The end of a replay, with the bytes of each stream that it held (RUL-44).
    pub fn replay_end(session_id: &'s str, replay_for: i64, stdout: u64, stderr: u64) -> Self {
        Self {
            replay_for: Some(replay_for),
            stdout_bytes: Some(stdout),
            stderr_bytes: Some(stderr),
            ..Self::bare("replay_end", session_id)
        }
    }

    /// The text of the frame.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialize")
    }

    fn bare(stream: &'static str, session_id: &'s str) -> Self {
        Self {
            stream,
            session_id,
            data: None,
            code: None,
            replay_for: None,
            stdout_bytes: None,
            stderr_bytes: None,
        }
    }
}

/// Standard base64 with padding.
pub fn encode(data: &[u8]) -> String {
    STANDARD.encode(data)
}

/// The bytes in `data` of a request; absent is empty.
///
/// # Errors
/// `invalid` when it was not base64.
pub fn decode(data: Option<Payload>) -> Result<Bytes, Refusal> {
    match data {
        None => Ok(Bytes::new()),
        Some(Payload::Bytes(bytes)) => Ok(bytes),
        Some(Payload::NotBase64) => Err(Refusal::new(Code::Invalid, "data is not base64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_null_arguments_are_the_default() {
        let request: Request =
            serde_json::from_str(r#"{"id":3,"op":"exec","name":"x","args":null,"timeout_ms":null,"more":1}"#).unwrap();
        assert_eq!((request.id, request.op.as_str()), (3, "exec"));
        assert!(request.args.is_none() && request.timeout_ms.is_none() && request.env.is_none());
    }

    #[test]
    fn frames_have_exactly_the_keys_that_their_kind_needs() {
        let output = Frame::output("s-1", Stream::Stdout, b"ready\n", Some(7)).text();
        assert_eq!(
            output,
            r#"{"stream":"stdout","session_id":"s-1","data":"cmVhZHkK","replay_for":7}"#
        );
        assert_eq!(
            Frame::exit("s-1", 0, None).text(),
            r#"{"stream":"exit","session_id":"s-1","code":0}"#
        );
        assert_eq!(
            Frame::replay_end("s-1", 7, 6, 0).text(),
            r#"{"stream":"replay_end","session_id":"s-1","replay_for":7,"stdout_bytes":6,"stderr_bytes":0}"#
        );
    }

    #[test]
    fn replies_carry_a_result_or_a_code_and_a_detail() {
        assert_eq!(reply(1, &Ok(json!({}))), r#"{"id":1,"ok":true,"result":{}}"#);
        let refused = Err(Refusal::new(Code::NotSupported, "fly"));
        assert_eq!(
            reply(5, &refused),
            r#"{"id":5,"ok":false,"error":"not_supported","detail":"fly"}"#
        );
    }
}
