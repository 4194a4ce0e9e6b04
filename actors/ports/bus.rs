//! "Conversation C reached event N": cursors, never data (DESIGN 6). A missed cursor costs latency, not data, because
//! every reader also looks at the rows once a second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::domain::{AccountId, ConversationId, EventId};

/// A committed position. Published after the commit, never before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub account: AccountId,
    pub conversation: ConversationId,
    pub id: EventId,
}

/// What a reader follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    Conversation(ConversationId),
    Account(AccountId),
}

pub trait Bus: Send + Sync {
    /// Announces a committed event to whoever follows its conversation or account. Never waits.
    fn publish(&self, cursor: Cursor);

    /// Follows a topic. The value is the newest id announced since somebody followed it, 0 before the first.
    /// Subscribe first, then read the backlog, or an event falls in between (P60).
    fn subscribe(&self, topic: Topic) -> watch::Receiver<EventId>;

    /// A machine stopped counting, or a limit was raised: somebody in the launch queue may have room now (INV-102). A
    /// bus that does not pass it on costs a waiting launch up to one interval of the queue pass.
    fn slot_freed(&self) {}

    /// Follows [`Bus::slot_freed`]: the count of announcements so far. A bus that passes nothing on answers one that is
    /// closed.
    fn slots(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }
}

/// The bus of one process: a watch per followed topic, gone when nobody follows it.
#[derive(Default)]
pub struct InProcessBus {
    topics: Mutex<Topics>,
    slots: watch::Sender<u64>,
}

#[derive(Default)]
struct Topics {
    followed: HashMap<Topic, watch::Sender<EventId>>,
    /// Topics that nobody follows any more are looked for when there are this many.
    sweep_at: usize,
}

/// Fewer topics than this are not worth looking through.
const FEW_TOPICS: usize = 64;

impl InProcessBus {
    fn lock(&self) -> MutexGuard<'_, Topics> {
        // A panic under this lock leaves the map whole.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many topics are kept.
    pub fn topics(&self) -> usize {
        self.lock().followed.len()
    }
}

impl Topics {
    fn announce(&mut self, topic: Topic, id: EventId) {
        let Some(sender) = self.followed.get(&topic) else {
            return;
        };
        if sender.receiver_count() == 0 {
            self.followed.remove(&topic);
            return;
        }
        // Announcements may overtake each other on their way here; a position never goes back.
        sender.send_if_modified(|newest| {
            let news = id > *newest;
            *newest = id.max(*newest);
            news
        });
    }
}

impl Bus for InProcessBus {
    fn publish(&self, cursor: Cursor) {
        let mut topics = self.lock();
        topics.announce(Topic::Conversation(cursor.conversation), cursor.id);
        topics.announce(Topic::Account(cursor.account), cursor.id);
    }

    fn subscribe(&self, topic: Topic) -> watch::Receiver<EventId> {
        let mut topics = self.lock();
        if topics.followed.len() >= topics.sweep_at.max(FEW_TOPICS) {
            topics.followed.retain(|_, sender| sender.receiver_count() > 0);
            topics.sweep_at = topics.followed.len() * 2;
        }
        topics.followed.entry(topic).or_default().subscribe()
    }

    fn slot_freed(&self) {
        self.slots.send_modify(|freed| *freed += 1);
    }

    fn slots(&self) -> watch::Receiver<u64> {
        self.slots.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(account: u128, conversation: u128, id: i64) -> Cursor {
        Cursor {
            account: AccountId(uuid::Uuid::from_u128(account)),
            conversation: ConversationId(uuid::Uuid::from_u128(conversation)),
            id: EventId(id),
        }
    }

    #[tokio::test]
    async fn p60_a_follower_hears_of_everything_after_its_subscription() {
        let bus = InProcessBus::default();
        bus.publish(cursor(1, 1, 5));
        let mut one = bus.subscribe(Topic::Conversation(cursor(1, 1, 0).conversation));
        let mut all = bus.subscribe(Topic::Account(cursor(1, 1, 0).account));
        assert_eq!(*one.borrow(), EventId(0));
        bus.publish(cursor(1, 1, 7));
        bus.publish(cursor(1, 2, 9));
        bus.publish(cursor(2, 3, 11));
        assert!(one.has_changed().unwrap());
        assert_eq!(*one.borrow_and_update(), EventId(7));
        assert_eq!(*all.borrow_and_update(), EventId(9));
    }

    #[tokio::test]
    async fn an_announcement_that_was_overtaken_does_not_move_a_position_back() {
        let bus = InProcessBus::default();
        let mut one = bus.subscribe(Topic::Conversation(cursor(1, 1, 0).conversation));
        bus.publish(cursor(1, 1, 9));
        assert_eq!(*one.borrow_and_update(), EventId(9));
        bus.publish(cursor(1, 1, 8));
        assert!(!one.has_changed().unwrap());
        assert_eq!(*one.borrow(), EventId(9));
    }

    #[tokio::test]
    async fn topics_without_followers_are_forgotten() {
        let bus = InProcessBus::default();
        for n in 0..10_000 {
            drop(bus.subscribe(Topic::Conversation(cursor(1, n, 0).conversation)));
        }
        assert!(bus.topics() <= FEW_TOPICS, "{}", bus.topics());
        let kept = bus.subscribe(Topic::Conversation(cursor(1, 1, 0).conversation));
        drop(kept);
        bus.publish(cursor(1, 1, 1));
        assert!(bus.topics() < FEW_TOPICS);
    }
}
