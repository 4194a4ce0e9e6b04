//! One process group: signals for all of it, and whether any of it is left.
//!
//! A group's number is its leader's process id. While the leader is not reaped the number cannot be used again; after
//! that it can, but only once the group is empty. So after the reaping a process that bears the number is a stranger, and
//! the group is gone. Nobody else may be signalled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::identity;

/// How long a killed group may take to disappear (runner-protocol 5.2).
const AFTER_KILL: Duration = Duration::from_secs(2);
/// Looks at a group that is ending: often at first, then no more than this.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// A process group that this daemon started.
#[derive(Clone, Debug)]
pub struct Group {
    id: Pid,
    leader_reaped: Arc<AtomicBool>,
}

impl Group {
    pub(super) fn led_by(leader: Pid) -> Self {
        Self {
            id: leader,
            leader_reaped: Arc::default(),
        }
    }

    /// The group's number.
    pub fn id(&self) -> i32 {
        self.id.as_raw()
    }

    pub(super) fn leader_was_reaped(&self) {
        self.leader_reaped.store(true, Ordering::Release);
    }

    /// Sends a signal to every member, if the group is still there.
    pub fn signal(&self, which: Signal) {
        if self.is_ours()
            && let Err(error) = signal::killpg(self.id, which)
        {
            tracing::debug!(group = self.id(), signal = %which, %error, "a signal found nobody");
        }
    }

    /// Whether any member can still do something.
    pub async fn lives(&self) -> bool {
        if !self.is_ours() {
            return false;
        }
        let id = self.id;
        // A scan that failed says nothing; the next look will.
        tokio::task::spawn_blocking(move || identity::group_lives(id))
            .await
            .unwrap_or(true)
    }

    /// SIGTERM, up to `grace` for an orderly end, SIGKILL. Answers whether the group is gone (field lesson P46).
    pub async fn stop(&self, grace: Duration) -> bool {
        if !grace.is_zero() {
            self.signal(Signal::SIGTERM);
            // A stopped process hears SIGTERM only when it goes on.
            self.signal(Signal::SIGCONT);
            if self.ends_within(grace).await {
                return true;
            }
        }
        self.signal(Signal::SIGKILL);
        self.ends_within(AFTER_KILL).await
    }

    /// Waits until nothing of it lives, up to `limit`. Answers whether it is gone.
    pub async fn ends_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let (mut pause, longest) = LOOK;
        while self.lives().await {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(longest),
                () = sleep_until(deadline) => {}
            }
        }
        true
    }

    /// A cheap look that a zombie can deceive: false is certain.
    pub fn may_live(&self) -> bool {
        self.is_ours() && signal::killpg(self.id, None).is_ok()
    }

    fn is_ours(&self) -> bool {
        !(self.leader_reaped.load(Ordering::Acquire) && identity::exists(self.id))
    }
}
