//! One line read as JSON-RPC 2.0, and the lines that we write (runtimes 10, 10.1, 10.8).
//!
//! Everything stays a [`Value`]: an agent may be newer than any schema, and what is stored must be what it said.
//! Reading never fails; a line that is no message is [`Incoming::Noise`].

use serde_json::{Map, Value, json};

/// JSON-RPC: the method does not exist. What every request gets that we do not serve.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// ACP: a call needs `authenticate` first.
pub const AUTH_REQUIRED: i64 = -32000;
/// ACP: the named resource (a session) does not exist.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// JSON-RPC extension of ACP: the request was cancelled.
pub const REQUEST_CANCELLED: i64 = -32800;

/// An error object of a response.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    /// The whole error as it came.
    pub raw: Value,
}

impl RpcError {
    /// The numeric code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<i64> {
        self.raw.get("code").and_then(Value::as_i64)
    }

    /// `data.details` if a string, else `message`, else the whole error (runtimes 10.5).
    #[must_use]
    pub fn detail(&self) -> String {
        let details = self.raw.pointer("/data/details").and_then(Value::as_str);
        let message = self.raw.get("message").and_then(Value::as_str);
        details.or(message).map_or_else(|| self.raw.to_string(), str::to_owned)
    }
}

/// What a line of the agent is.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// A call that must be answered. `id` is kept raw: `1` and `"1"` are different ids.
    Request {
        id: Value,
        method: String,
        params: Value,
        whole: Value,
    },
    /// A message that nobody answers.
    Notification {
        method: String,
        params: Value,
        whole: Value,
    },
    /// The answer to a call of ours.
    Response { id: Value, answer: Result<Value, RpcError> },
    /// White space.
    Blank,
    /// Not JSON-RPC: ordinary output.
    Noise,
}

/// Reads one line.
#[must_use]
pub fn read(line: &str) -> Incoming {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Incoming::Blank;
    }
    if !trimmed.starts_with('{') {
        return Incoming::Noise;
    }
    let Ok(Value::Object(message)) = serde_json::from_str(trimmed) else {
        return Incoming::Noise;
    };
    classify(message)
}

fn classify(message: Map<String, Value>) -> Incoming {
    let id = message.get("id").filter(|id| id.is_number() || id.is_string()).cloned();
    if let Some(method) = message.get("method").and_then(Value::as_str) {
        let method = method.to_owned();
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        let whole = Value::Object(message);
        return match id {
            Some(id) => Incoming::Request {
                id,
                method,
                params,
                whole,
            },
            None => Incoming::Notification { method, params, whole },
        };
    }
    let answer = match (message.get("error"), message.get("result")) {
        (Some(error), _) if !error.is_null() => Err(RpcError { raw: error.clone() }),
        (_, Some(result)) => Ok(result.clone()),
        _ => return Incoming::Noise,
    };
    match id {
        Some(id) => Incoming::Response { id, answer },
        // An answer to nothing (a parse error of the agent, say) concerns no call of ours.
        None if message.contains_key("jsonrpc") => Incoming::Blank,
        None => Incoming::Noise,
    }
}

/// A call, as the line to write.
#[must_use]
pub fn request(id: i64, method: &str, params: &Value) -> String {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// A notification, as the line to write.
#[must_use]
pub fn notification(method: &str, params: &Value) -> String {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// An answer, as the line to write. `id` is the agent's, raw.
#[must_use]
pub fn result(id: &Value, result: &Value) -> String {
    line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// The refusal of a call that we do not serve: an unanswered request blocks the agent, and a blocked agent bills.
#[must_use]
pub fn method_not_found(id: &Value, method: &str) -> String {
    let message = format!("method not found: {method}");
    line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": METHOD_NOT_FOUND, "message": message}}))
}

fn line(message: &Value) -> String {
    let mut line = message.to_string();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_by_its_keys() {
        assert!(matches!(read(r#"{"id":1,"method":"m"}"#), Incoming::Request { id, .. } if id == json!(1)));
        assert!(matches!(read(r#" {"id":"1","method":"m"}"#), Incoming::Request { id, .. } if id == json!("1")));
        assert!(matches!(
            read(r#"{"method":"m","params":{}}"#),
            Incoming::Notification { .. }
        ));
        assert!(matches!(
            read(r#"{"id":1,"result":null}"#),
            Incoming::Response {
                answer: Ok(Value::Null),
                ..
            }
        ));
        assert!(matches!(
            read(r#"{"id":1,"error":{"code":-32000}}"#),
            Incoming::Response { answer: Err(_), .. }
        ));
        assert!(matches!(
            read(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}"#),
            Incoming::Blank
        ));
        assert!(matches!(read(" \r"), Incoming::Blank));
        for noise in [
            "npm notice",
            "[1,2]",
            "12",
            r#"{"level":"info"}"#,
            r#"{"id":1"#,
            "{\"a\":\u{fffd}",
        ] {
            assert_eq!(read(noise), Incoming::Noise, "{noise}");
        }
    }

    #[test]
    fn the_detail_of_an_error_prefers_what_a_person_can_read() {
        let detail = |raw| RpcError { raw }.detail();
        assert_eq!(detail(json!({"message": "m", "data": {"details": "d"}})), "d");
        assert_eq!(detail(json!({"message": "m", "data": {"details": 3}})), "m");
        assert_eq!(detail(json!({"code": 1})), r#"{"code":1}"#);
    }
}
