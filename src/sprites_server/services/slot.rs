//! What is known of one service, and what is wished of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use fountain_process::Session;
use serde::Serialize;
use tokio::sync::watch;

/// Where a service is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[default]
    Stopped,
    Starting,
    Running,
    Stopping,
    Failed,
}

/// What is known of a service.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub status: Status,
    pub pid: Option<i32>,
    pub started_at: Option<DateTime<Utc>>,
    pub error: Option<String>,
    /// How often it was started again after it had failed.
    pub restart_count: u64,
    pub next_restart_at: Option<DateTime<Utc>>,
    /// Of its last run.
    pub exit_code: Option<i32>,
    /// Its last run.
    pub session: Option<Arc<Session>>,
    /// Nobody watches over it any more.
    pub is_over: bool,
}

/// What is wished of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Run,
    /// End it, politely for this long.
    Stop(Duration),
    /// End it at once and start nothing any more.
    Leave,
}

/// One service from a start to its stop.
pub struct Slot {
    state: watch::Sender<State>,
    wish: watch::Sender<Wish>,
}

impl Slot {
    /// A service that is about to be started; it shows the log of the run before until there is one.
    pub(super) fn new(before: Option<&Self>) -> Self {
        let state = State {
            status: Status::Starting,
            session: before.and_then(|before| before.state().session),
            ..State::default()
        };
        Self {
            state: watch::channel(state).0,
            wish: watch::channel(Wish::Run).0,
        }
    }

    /// What is known now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// To wait for what becomes of it.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    pub(super) fn wishes(&self) -> watch::Receiver<Wish> {
        self.wish.subscribe()
    }

    /// A wish replaces the one before; nothing wakes what was left.
    pub(super) fn wish(&self, wish: Wish) {
        self.wish.send_if_modified(|old| {
            let changes = *old != Wish::Leave && *old != wish;
            if changes {
                *old = wish;
            }
            changes
        });
    }

    /// Whether nobody watches over it any more.
    pub fn is_over(&self) -> bool {
        self.state.borrow().is_over
    }

    /// Whether it runs and shall go on.
    pub(super) fn is_wanted(&self) -> bool {
        *self.wish.borrow() == Wish::Run && !self.is_over()
    }

    /// Waits until nobody watches over it.
    pub async fn over(&self) {
        let _ = self.watch().wait_for(|state| state.is_over).await;
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
