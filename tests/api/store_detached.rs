//! Detached permission requests are answered by the domain, which the fake store has none of.

use fountain_actors::domain::*;
use fountain_actors::ports::store::detached::{Detached, DetachedStore};
use fountain_actors::ports::store::{Answer, Committed};

use crate::store::{Rows, not_here};

impl DetachedStore for Rows {
    fn detached_request(&self, _: AccountId, _: ConversationId, _: String) -> Answer<'_, Option<Detached>> {
        not_here("detached_request")
    }

    fn expired_detached(&self, _: Moment, _: i64) -> Answer<'_, Vec<Detached>> {
        not_here("expired_detached")
    }

    fn deny_detached(&self, _: ConversationId, _: String, _: Moment) -> Answer<'_, Committed<bool>> {
        not_here("deny_detached")
    }
}
