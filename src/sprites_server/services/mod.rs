//! Services of a sprite: commands that run for as long as it is open (providers 1.10).
//!
//! What a service is stands in the sprite's record; what becomes of it is in a [`Slot`] of the [`Book`]. One task watches
//! over each run and starts it again, later each time, when it failed. The book never opens an enclosure: it is told when
//! one was opened, and everything of it is left before it is closed. A service is an ordinary session that no list shows;
//! its log is the journal of its last run and goes with this server.

pub mod log;
mod record;
mod slot;
mod supervisor;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fountain_process::Ledger;
use futures_util::future::join_all;

pub use record::{Fault, Service, check};
pub use slot::{Slot, State, Status};

use crate::exec::SpriteExec;
use slot::Wish;

/// How long a service may take to end on a polite signal.
pub const GRACE: Duration = Duration::from_secs(10);
/// How long the end of a sprite waits for them; what is left then is ended with everything else inside.
const LEAVING: Duration = Duration::from_secs(10);

/// The services of every sprite.
#[derive(Default)]
pub struct Book(Mutex<HashMap<String, BTreeMap<String, Arc<Slot>>>>);

/// Where services run.
#[derive(Clone)]
pub struct Inside {
    pub exec: SpriteExec,
    /// Where their journals spill; not a durable one.
    pub ledger: Arc<Ledger>,
}

impl Book {
    fn sprites(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, Arc<Slot>>>> {
        // Every change is one insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of a service, if it was started since the sprite was opened.
    pub fn slot(&self, sprite: &str, service: &str) -> Option<Arc<Slot>> {
        self.sprites().get(sprite)?.get(service).cloned()
    }

    /// Whether anything of a sprite's services runs or will run again by itself.
    pub fn is_busy(&self, sprite: &str) -> bool {
        let sprites = self.sprites();
        let slots = sprites.get(sprite).into_iter().flat_map(BTreeMap::values);
        slots.into_iter().any(|slot| !slot.is_over())
    }

    /// Starts every service that nobody stopped. Called when an enclosure was opened.
    pub fn begin(&self, inside: &Inside, services: &BTreeMap<String, Service>) {
        for (name, _) in services.iter().filter(|(_, service)| !service.stopped) {
            self.start(inside, services, name);
        }
    }

    /// Starts a service unless it runs, after what it needs; answers its slot. `None` when there is no such service.
    pub fn start(&self, inside: &Inside, services: &BTreeMap<String, Service>, name: &str) -> Option<Arc<Slot>> {
        self.start_in(
            self.sprites().entry(inside.exec.owner.clone()).or_default(),
            inside,
            services,
            name,
        )
    }

    /// Needs have no circles: [`check`] saw to it.
    fn start_in(
        &self,
        slots: &mut BTreeMap<String, Arc<Slot>>,
        inside: &Inside,
        services: &BTreeMap<String, Service>,
        name: &str,
    ) -> Option<Arc<Slot>> {
        let service = services.get(name)?;
        let old = slots.get(name).cloned();
        if let Some(runs) = old.as_ref().filter(|slot| slot.is_wanted()) {
            return Some(Arc::clone(runs));
        }
        let needs: Option<Vec<_>> = service
            .needs
            .iter()
            .map(|need| {
                self.start_in(slots, inside, services, need)
                    .map(|slot| (need.clone(), slot))
            })
            .collect();
        let slot = Arc::new(Slot::new(old.as_deref()));
        slots.insert(name.to_owned(), Arc::clone(&slot));
        let work = supervisor::Supervisor {
            slot: Arc::clone(&slot),
            inside: inside.clone(),
            name: name.to_owned(),
            service: service.clone(),
            needs: needs.unwrap_or_default(),
            before: old,
        };
        tokio::spawn(work.run());
        Some(slot)
    }

    /// Asks a service to end; what follows is in its slot.
    pub fn stop(&self, sprite: &str, service: &str, grace: Duration) -> Option<Arc<Slot>> {
        let slot = self.slot(sprite, service)?;
        slot.wish(Wish::Stop(grace));
        Some(slot)
    }

    /// Forgets a service that was stopped and is no longer in the record.
    pub fn forget(&self, sprite: &str, service: &str) {
        if let Some(slots) = self.sprites().get_mut(sprite) {
            slots.remove(service);
        }
    }

    /// Ends a sprite's services at once: when this answers, nothing is started any more.
    pub async fn leave(&self, sprite: &str) {
        let slots = self.sprites().remove(sprite).unwrap_or_default();
        part(slots.into_values()).await;
    }

    /// As [`Self::leave`], for every sprite.
    pub async fn leave_all(&self) {
        let sprites = std::mem::take(&mut *self.sprites());
        part(sprites.into_values().flat_map(BTreeMap::into_values)).await;
    }
}

async fn part(slots: impl Iterator<Item = Arc<Slot>>) {
    let slots: Vec<_> = slots.collect();
    slots.iter().for_each(|slot| slot.wish(Wish::Leave));
    let over = join_all(slots.iter().map(|slot| slot.over()));
    if tokio::time::timeout(LEAVING, over).await.is_err() {
        tracing::warn!("a service is still being started while its sprite is closed");
    }
}
