//! What the shell implements, and the only things the domain may call.
//!
//! Futures of ports are local: an actor lives on one arbiter, and the HTTP client of an adapter is not `Send`. The
//! objects themselves are `Send + Sync` and are shared by every arbiter.

pub mod bus;
pub mod clock;
pub mod meter;
pub mod presence;
pub mod sandbox;
pub mod store;

use std::sync::Arc;

pub use bus::{Bus, Cursor, Topic};
pub use clock::{Clock, Rng};
pub use meter::Meter;
pub use presence::RunnerPresence;
pub use sandbox::{AdapterSet, SandboxAdapter};
pub use store::Store;

use crate::domain::settings::Settings;

/// Everything outside, in one cloneable value.
#[derive(Clone)]
pub struct World {
    pub store: Arc<dyn Store>,
    pub adapters: Arc<AdapterSet>,
    pub bus: Arc<dyn Bus>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub meter: Arc<dyn Meter>,
    pub runners: Arc<dyn RunnerPresence>,
    pub settings: Arc<Settings>,
    /// Node name and random boot id: the holder of this process's leases (RUL-L-6).
    pub holder: Arc<str>,
}

impl World {
    /// A fresh identifier from the random source.
    pub fn id<T: From<uuid::Uuid>>(&self) -> T {
        T::from(self.rng.uuid())
    }

    /// Now, on the wall clock.
    pub fn now(&self) -> crate::domain::Moment {
        self.clock.now()
    }
}
