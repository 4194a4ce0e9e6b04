//! Accounts, keys and the audit trail.

use super::{Answer, Committed};
use crate::domain::account::{Account, ApiKey, NewApiKey, NewAudit};
use crate::domain::*;

#[derive(Clone, Debug)]
pub struct NewAccount {
    pub id: AccountId,
    pub email: Option<String>,
    /// Verified from the start (RUL-61).
    pub email_verified_at: Option<Moment>,
    pub is_admin: bool,
    pub now: Moment,
}

pub trait AccountStore {
    /// Creates an account, its data key (wrapped by the master key) and an audit row.
    ///
    /// # Errors
    /// `Refused(Validation)` on `email` when the address is taken.
    fn create_account(&self, account: NewAccount) -> Answer<'_, Account>;
    fn account(&self, id: AccountId) -> Answer<'_, Option<Account>>;
    /// Case-insensitive.
    fn account_by_email(&self, email: String) -> Answer<'_, Option<Account>>;
    fn count_accounts(&self) -> Answer<'_, i64>;

    /// The key of this SHA-256 and its account; revoked and expired keys too, the caller judges. No write.
    fn key_by_hash(&self, sha256: [u8; 32]) -> Answer<'_, Option<(ApiKey, Account)>>;
    fn create_key(&self, key: NewApiKey, audit: Option<NewAudit>, now: Moment) -> Answer<'_, ApiKey>;
    /// Unrevoked, unexpired keys of full and runner scope, newest first.
    fn keys(&self, account: AccountId, now: Moment) -> Answer<'_, Vec<ApiKey>>;
    /// Idempotent; answers the revoked key.
    fn revoke_key(&self, account: AccountId, key: KeyId, audit: Option<NewAudit>, now: Moment) -> Answer<'_, ApiKey>;
    /// Writes when keys were last used, in one statement group, off every request path.
    fn stamp_keys(&self, used: Vec<(KeyId, Moment)>) -> Answer<'_, ()>;

    /// Mints the callback key of a server: the key row and the conversation's `callback_key_id` in one transaction,
    /// guarded by the server's generation. The previous key stays valid until it expires (walk 8.3).
    fn mint_callback_key(
        &self,
        conversation: ConversationId,
        server_epoch: ServerEpoch,
        key: NewApiKey,
        now: Moment,
    ) -> Answer<'_, ApiKey>;

    /// An audit row of its own, for actions that change nothing else.
    fn audit(&self, entry: NewAudit, now: Moment) -> Answer<'_, Committed<()>>;
}
