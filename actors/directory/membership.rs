//! This process as a member of its deployment: heartbeats, what it may not do without them, draining (RUL-L-7, INV-112).
//!
//! A heartbeat is written every five seconds. Others take this process for gone once its last one is twenty seconds old,
//! so it stops admitting prompts and starting servers by itself five seconds before that, judged by its own monotonic
//! clock: a process that was frozen has to prove that it is back first. Draining it hands over, and takes nothing new
//! while anybody else can. What it must never do: take silence of its own for somebody else's death.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Engine, Inner};
use crate::domain::{ErrorCode, Moment, Refusal};
use crate::ports::clock::after;
use crate::ports::store::replicas::{Beat, Member};

/// Between two heartbeats (RUL-L-7).
const BEAT: Duration = Duration::from_secs(5);
/// Without one for this long, nothing is begun (RUL-L-7).
const MUTE_FOR: Duration = Duration::from_secs(15);
/// While somebody drains, what he hands over is looked for this often (RUL-L-50: at once).
const WHILE_DRAINING: Duration = Duration::from_secs(1);
/// Rows of servers that died without saying so are looked for at every sixth heartbeat.
const TIDY_AT: u32 = 6;

#[derive(Default)]
struct Standing {
    /// The moment before the last heartbeat that was written was sent. None: this process has not joined, and nobody
    /// expects heartbeats of it.
    proved: Option<Instant>,
    /// What that heartbeat was on the lease clock, and when its answer came. Not when it was sent: it may have been
    /// written any time later, and a clock that is reckoned from it must not run ahead.
    heartbeat: Option<(Moment, Instant)>,
    draining: bool,
    /// It has left, or is dead; nothing is written any more.
    ended: bool,
    others: Vec<Member>,
}

impl Standing {
    fn is_mute(&self) -> bool {
        self.proved.is_some_and(|proved| proved.elapsed() > MUTE_FOR)
    }

    /// INV-112.
    fn gives_way(&self) -> bool {
        self.draining && self.others.iter().any(|other| !other.draining)
    }
}

/// What this process knows of its own membership, and of the others.
pub(super) struct Membership {
    standing: Mutex<Standing>,
    /// Ticks when somebody went, or hands over.
    handovers: watch::Sender<u64>,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            standing: Mutex::default(),
            handovers: watch::Sender::new(0),
        }
    }
}

impl Membership {
    fn lock(&self) -> MutexGuard<'_, Standing> {
        // Every step under this lock leaves it whole.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is written from here on.
    pub fn end(&self) {
        self.lock().ended = true;
    }

    /// Whether servers may be started here.
    pub fn may_begin(&self) -> bool {
        let standing = self.lock();
        !standing.ended && !standing.is_mute() && !standing.gives_way()
    }

    fn proved(&self, sent: Instant, heartbeat: Option<(Moment, Instant)>, others: Vec<Member>) {
        let mut standing = self.lock();
        standing.proved = Some(sent);
        standing.heartbeat = heartbeat;
        let is_handover = standing.others.iter().any(|known| {
            let now = others.iter().find(|other| other.holder == known.holder);
            now.is_none_or(|now| now.draining && !known.draining)
        });
        standing.others = others;
        drop(standing);
        if is_handover {
            self.tell();
        }
    }

    fn tell(&self) {
        self.handovers.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl Engine {
    /// Becomes a member, and stays one as long as the engine lives.
    pub(super) async fn join(&self) {
        self.inner.membership.lock().proved = Some(Instant::now());
        // Before the first heartbeat, which a database may keep waiting for.
        actix::spawn(keep(Arc::downgrade(&self.inner)));
        self.beat().await;
    }

    async fn beat(&self) {
        let world = self.world();
        let sent = Instant::now();
        let beat = {
            let standing = self.inner.membership.lock();
            if standing.ended {
                return;
            }
            Beat {
                holder: world.holder.to_string(),
                url: world.settings.public_url.clone(),
                draining: standing.draining,
                at_least: standing
                    .heartbeat
                    .map(|(heartbeat, heard)| after(heartbeat, sent.saturating_duration_since(heard))),
                now: world.now(),
            }
        };
        match world.store.beat(beat).await {
            Ok(members) => {
                let (others, own): (Vec<_>, Vec<_>) =
                    members.into_iter().partition(|member| self.is_other(&member.holder));
                let heartbeat = own.first().map(|member| (member.heartbeat, Instant::now()));
                self.inner.membership.proved(sent, heartbeat, others);
            }
            Err(error) => tracing::warn!(%error, "a heartbeat could not be written"),
        }
    }

    /// Home rows of this process whose servers do not live: a panic between a commit and its answer leaves one.
    async fn tidy_homes(&self) {
        let world = self.world();
        let homes = match world.store.homes_in(world.holder.to_string()).await {
            Ok(homes) => homes,
            Err(error) => return tracing::debug!(%error, "this process's homes could not be read"),
        };
        for (conversation, generation) in homes {
            if self.is_live(conversation) {
                continue;
            }
            let holder = world.holder.to_string();
            if let Err(error) = world.store.leave_home(conversation, holder, generation).await {
                tracing::debug!(conversation.id = %conversation, %error, "an empty home could not be cleared");
            }
        }
    }

    /// Ticks when another member went or drains: what it served may need a server now (RUL-L-50).
    pub(crate) fn handovers(&self) -> watch::Receiver<u64> {
        self.inner.membership.handovers.subscribe()
    }

    /// Begins to hand over: others see it at their next heartbeat, and nothing new begins here while one of them can
    /// take it (INV-112). [`Engine::shutdown`] does the rest.
    pub async fn drain(&self) {
        self.inner.membership.lock().draining = true;
        self.beat().await;
    }

    /// Whether this process can show that it is a member (RUL-L-7). False for one that has not written a heartbeat for
    /// a quarter of a minute; it begins nothing then.
    pub fn is_member(&self) -> bool {
        !self.inner.membership.lock().is_mute()
    }

    /// Whether servers may be started here.
    pub(crate) fn may_begin(&self) -> bool {
        !self.is_stopping() && self.inner.membership.may_begin()
    }

    /// A process that is ending, that gives way to others, or that others take for gone takes no new work.
    pub(super) fn check_open(&self) -> Result<(), Refusal> {
        if self.is_stopping() || self.inner.membership.lock().gives_way() {
            return Err(ErrorCode::SandboxUnavailable.into());
        }
        if !self.is_member() {
            return Err(ErrorCode::StoreUnavailable.into());
        }
        Ok(())
    }

    /// Says goodbye: this process's row and all homes in it go.
    pub(super) async fn leave(&self) {
        self.inner.membership.end();
        let holder = self.world().holder.to_string();
        if let Err(error) = self.world().store.leave(holder).await {
            tracing::warn!(%error, "this process is still on record as a member; its heartbeat grows old");
        }
    }
}

/// Writes the heartbeats. Weak: the task is no reason for an engine to live.
async fn keep(engine: Weak<Inner>) {
    let mut beats = tokio::time::interval_at(Instant::now() + BEAT, BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut count = 0_u32;
    loop {
        let somebody_drains = match engine.upgrade() {
            Some(inner) => inner.membership.lock().others.iter().any(|other| other.draining),
            None => return,
        };
        let is_due = tokio::select! {
                biased;
            _ = beats.tick() => true,
            () = tokio::time::sleep(WHILE_DRAINING), if somebody_drains => false,
        };
        let Some(inner) = engine.upgrade() else { return };
        if inner.membership.lock().ended {
            return;
        }
        if !is_due {
            inner.membership.tell();
            continue;
        }
        let engine = Engine { inner };
        engine.beat().await;
        count = count.wrapping_add(1);
        if count.is_multiple_of(TIDY_AT) {
            engine.tidy_homes().await;
        }
    }
}
