//! Accounts, API keys and who is calling (lifecycle 1.1, 1.2; http-api 1.3; RUL-19).

use std::collections::BTreeMap;

use crate::domain::{AccountId, ConversationId, KeyId, Moment};

/// The tenant. Every other row belongs to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub id: AccountId,
    pub email: Option<String>,
    pub email_verified_at: Option<Moment>,
    pub is_admin: bool,
    pub comped: bool,
    /// Wins over every other cap; 0 blocks (lifecycle 8).
    pub sandbox_limit_override: Option<i64>,
    pub suspended_at: Option<Moment>,
    /// Set first by an account deletion (RUL-L-36).
    pub deleting_at: Option<Moment>,
    pub inserted_at: Moment,
}

impl Account {
    /// Starts and wakes are allowed.
    pub fn is_active(&self) -> bool {
        self.suspended_at.is_none() && self.deleting_at.is_none()
    }
}

/// What a key may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    Full,
    /// The key inside a machine, minted for one conversation.
    Sprite(ConversationId),
    /// Dials as the runner of this name, and nothing else.
    Runner(String),
}

impl Scope {
    /// The wire form, one string (RUL-19): `full`, `sprite:<conversation id>`, `runner`.
    pub fn wire(&self) -> String {
        match self {
            Self::Full => "full".into(),
            Self::Sprite(conversation) => format!("sprite:{conversation}"),
            Self::Runner(_) => "runner".into(),
        }
    }
}

/// A key as it is kept: never the key itself, only its SHA-256.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKey {
    pub id: KeyId,
    pub account_id: AccountId,
    pub name: String,
    /// First 12 characters of the key, for people.
    pub prefix: String,
    pub scope: Scope,
    pub expires_at: Option<Moment>,
    pub revoked_at: Option<Moment>,
    pub last_used_at: Option<Moment>,
    pub inserted_at: Moment,
}

/// A key to be stored.
#[derive(Clone, Debug)]
pub struct NewApiKey {
    pub id: KeyId,
    pub account_id: AccountId,
    pub name: String,
    pub prefix: String,
    pub sha256: [u8; 32],
    pub scope: Scope,
    pub expires_at: Option<Moment>,
}

/// Who did something, in the closed vocabulary of audit rows (lifecycle 1.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    Api,
    /// The key inside a machine.
    Sprite,
    Admin(AccountId),
    /// A pass or an actor of ours, by its name: `system:<name>`.
    System(&'static str),
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Api => f.write_str("api"),
            Self::Sprite => f.write_str("sprite"),
            Self::Admin(id) => write!(f, "admin:{id}"),
            Self::System(name) => write!(f, "system:{name}"),
        }
    }
}

/// The authenticated caller of one request.
#[derive(Clone, Debug)]
pub struct Caller {
    pub account: Account,
    pub key_id: KeyId,
    pub scope: Scope,
    /// Of the request, for audit rows.
    pub remote_ip: Option<String>,
}

impl Caller {
    pub fn account_id(&self) -> AccountId {
        self.account.id
    }

    pub fn actor(&self) -> Actor {
        match self.scope {
            Scope::Sprite(_) => Actor::Sprite,
            _ => Actor::Api,
        }
    }

    pub fn is_full(&self) -> bool {
        self.scope == Scope::Full
    }
}

/// One audit row to be written in the transaction of what it tells (RUL-24). Metadata never holds prompts or secrets.
#[derive(Clone, Debug)]
pub struct NewAudit {
    pub account_id: Option<AccountId>,
    /// `<resource>.<what happened>`, for example `sandbox.provisioned` (lifecycle 10.3).
    pub action: &'static str,
    pub resource_type: &'static str,
    pub resource_id: Option<String>,
    pub actor: Actor,
    pub request_ip: Option<String>,
    pub metadata: BTreeMap<&'static str, serde_json::Value>,
}
