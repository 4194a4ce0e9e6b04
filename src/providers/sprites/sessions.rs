//! Sessions of a machine, newest first (providers 1.4).
//!
//! A detached session says that it is inactive while it runs, so activity filters nothing. Ending one with proof is a
//! receipt: `receipts.rs`.

use fountain_actors::domain::Moment;
use fountain_actors::ports::sandbox::{SandboxError, Session};
use serde_json::Value;

use crate::address::Target;
use crate::call::Call;
use crate::errors::unclassified;
use crate::frames::identifier;
use crate::{Core, named};

impl Core {
    pub(crate) async fn list_sessions(&self, name: &str) -> Result<Vec<Session>, SandboxError> {
        named(name)?;
        let reply = self.expect(Call::get(Target::sprite(name).segment("exec"))).await?;
        reply
            .json()
            .and_then(|body| sessions(&body))
            .ok_or_else(|| unclassified("malformed_sessions"))
    }
}

fn sessions(body: &Value) -> Option<Vec<Session>> {
    let listed = body.get("sessions").unwrap_or(body).as_array()?;
    let mut sessions = listed.iter().map(session).collect::<Option<Vec<_>>>()?;
    // Stable, and a session without a time stays where the service put it among its like.
    sessions.sort_by_key(|session| std::cmp::Reverse(session.created_at));
    Some(sessions)
}

fn session(value: &Value) -> Option<Session> {
    Some(Session {
        id: identifier(value.get("id")?)?,
        command: value.get("command").and_then(Value::as_str).map(str::to_owned),
        created_at: moment(value.get("created")),
        last_activity_at: moment(value.get("last_activity")),
        exit_code: None,
    })
}

/// RFC 3339, or seconds since 1970 where a server writes numbers.
fn moment(value: Option<&Value>) -> Option<Moment> {
    match value? {
        Value::String(text) => chrono::DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|time| time.to_utc()),
        Value::Number(seconds) => chrono::DateTime::from_timestamp(seconds.as_i64()?, 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_session_is_first_whatever_the_service_said_about_activity() {
        let body = json!({"count": 2, "sessions": [
            {"id": "1", "command": "sh -c a", "created": "2026-01-01T00:00:00Z", "is_active": false,
             "last_activity": "2026-01-01T00:00:05Z", "tty": false},
            {"id": "2", "command": "sh -c b", "created": "2026-01-02T00:00:00Z", "is_active": true}]});
        let listed = sessions(&body).unwrap();
        assert_eq!(
            listed.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(),
            ["2", "1"]
        );
        assert_eq!(listed[1].command.as_deref(), Some("sh -c a"));
        assert!(listed[1].last_activity_at > listed[1].created_at);
    }

    #[test]
    fn a_bare_list_with_numbers_is_read_too() {
        let listed = sessions(&json!([{"id": 17, "created": 1767225600}, {"id": 18, "created": 1767225601}])).unwrap();
        assert_eq!(listed[0].id, "18");
        assert!(sessions(&json!({"sessions": [{}]})).is_none() && sessions(&json!({})).is_none());
    }
}
