//! Identifiers as types, so that two cannot be swapped. On the wire and in rows: a lower-case hyphenated UUID (http-api 1.2).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.hyphenated().fmt(f) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{}({})", stringify!($name), self.0.hyphenated()) }
        }
        impl FromStr for $name {
            type Err = NotAnId;
            fn from_str(text: &str) -> Result<Self, NotAnId> {
                // Only the hyphenated form is an id here; `Uuid::parse_str` alone would also take braces and URNs.
                if text.len() != 36 { return Err(NotAnId); }
                Uuid::try_parse(text).map(Self).map_err(|_| NotAnId)
            }
        }
        impl From<Uuid> for $name { fn from(id: Uuid) -> Self { Self(id) } }
    )+};
}

ids! {
    /// An account: the tenant.
    AccountId,
    KeyId, AgentId, AgentVersionId, EnvironmentId, VaultId, SecretId,
    /// A machine; `sandbox_id` on the wire.
    MachineId,
    ConversationId, TurnId,
    /// One spawned process of a conversation: the holder of positions (RUL-40).
    ProcessId,
    /// Minted before a spawn, so that the session can be found again whatever the answer was (RUL-L-41).
    SpawnId,
    RunnerId,
    /// One row of the operation journal.
    OperationId,
    /// A request of the launch queue (lifecycle 2.7).
    QueueRequestId,
    /// A prompt that is sent by the clock (lifecycle 7).
    ScheduleId,
}

/// The text is not a hyphenated UUID. At a door that is the same as "no such row" (http-api 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id")]
pub struct NotAnId;

/// Generation of a machine's lease. 0 is never a lease (lifecycle 3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

/// Generation of a conversation's server (RUL-L-8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerEpoch(pub i64);

/// Id of a log event: the cursor of every stream. Strictly increasing, never reused (RUL-22, INV-84).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hyphenated_form_is_an_id() {
        assert!("5b0f1c1e-6d0a-4f5e-9a51-0d7a4b1f2c33".parse::<AgentId>().is_ok());
        for wrong in [
            "",
            "5b0f1c1e6d0a4f5e9a510d7a4b1f2c33",
            "{5b0f1c1e-6d0a-4f5e-9a51-0d7a4b1f2c33}",
            "../etc/passwd",
        ] {
            assert_eq!(wrong.parse::<AgentId>(), Err(NotAnId), "{wrong}");
        }
    }
}
