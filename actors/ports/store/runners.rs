//! Runner rows. Online is not among them: it is whether a connection is registered.

use super::Answer;
use crate::domain::runner::{Runner, RunnerDetails};
use crate::domain::*;

pub trait RunnerStore {
    /// Upsert at a dial: details, `connected_at`, `last_seen_at`; a forgotten row comes back with its id (RUL-L-95).
    /// Audit `runner.registered` the first time only; the flag says whether it was.
    fn dial_runner(
        &self,
        account: AccountId,
        id: RunnerId,
        name: String,
        details: RunnerDetails,
        now: Moment,
    ) -> Answer<'_, (Runner, bool)>;
    /// Newest connection first, then name; forgotten ones left out.
    fn runners(&self, account: AccountId) -> Answer<'_, Vec<Runner>>;
    fn runner(&self, id: RunnerId) -> Answer<'_, Option<Runner>>;
    /// Hides the row; DOOMED machines on it end as `handed_over` (RUL-L-95). Audit `runner.deleted`.
    fn forget_runner(&self, account: AccountId, id: RunnerId, now: Moment) -> Answer<'_, Runner>;
    /// `last_seen_at` of all connected runners in one statement, once a minute (RUL-45).
    fn touch_runners(&self, ids: Vec<RunnerId>, now: Moment) -> Answer<'_, ()>;
}
