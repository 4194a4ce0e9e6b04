//! What every handler can reach: the ports it may call and the facts it may tell.
//!
//! Built once by the composition root and shared by all workers. Nothing here is decided; it is handed in.

use std::sync::Arc;
use std::time::Duration;

use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::machine::Provider;
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::{Moment, account::NewAudit};
use fountain_actors::doors::Doors;
use fountain_actors::ports::{Bus, Clock, Rng, RunnerPresence, Store};
use serde_json::Value;
use tokio::sync::watch;

use super::auth::Signed;
use super::stamps::KeyStamps;

/// One finished request, for metrics: labels from closed sets only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestMeasure {
    /// Pattern of the route table, or `unmatched`.
    pub route: &'static str,
    /// A method of the route table, or `OTHER`.
    pub method: &'static str,
    pub status: u16,
    /// Until the head of the response was ready; a stream goes on after it.
    pub took: Duration,
}

/// Reads the blocks out of one `acp` row (http-api 3.5).
pub type BlockReader = fn(&str) -> Vec<Value>;

/// Numbers of the doors. The defaults are the product's.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// Body limit of create and prompts, in bytes (RUL-8).
    pub large_body: usize,
    /// Body limit of everything else, in bytes (RUL-8).
    pub small_body: usize,
    /// Silence on a stream before `: heartbeat` (RUL-19c). Clients give up after 5 s.
    pub heartbeat: Duration,
    /// Silence of a running turn after which its stream ends cleanly and the client comes back (http-api 3.3).
    pub silence: Duration,
    /// How often a stream looks at the rows although nobody announced anything (DESIGN 6).
    pub poll: Duration,
    /// How long readiness waits for the database.
    pub ready_timeout: Duration,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            large_body: 64 * 1024 * 1024,
            small_body: 1024 * 1024,
            heartbeat: Duration::from_secs(3),
            silence: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            ready_timeout: Duration::from_secs(2),
        }
    }
}

/// What `GET /api/catalog` tells about this deployment (http-api 5.10, RUL-51).
#[derive(Clone, Debug)]
pub struct CatalogFacts {
    pub runtimes: Vec<Runtime>,
    pub providers: Vec<Provider>,
}

/// Everything the doors need.
pub struct AppState {
    pub store: Arc<dyn Store>,
    pub doors: Arc<dyn Doors>,
    pub bus: Arc<dyn Bus>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub runners: Arc<dyn RunnerPresence>,
    pub settings: Arc<Settings>,
    pub api: ApiSettings,
    pub catalog: CatalogFacts,
    pub blocks: BlockReader,
    /// The HTML of `GET /`.
    pub landing: Arc<str>,
    /// Called once for every request, on the worker that served it. Must not wait.
    pub measure: Arc<dyn Fn(RequestMeasure) + Send + Sync>,
    pub stamps: Arc<KeyStamps>,
    /// Turns true when the process drains: streams end cleanly (RUL-15, RUL-64b).
    pub closing: watch::Receiver<bool>,
}

impl AppState {
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A fresh identifier.
    pub fn id<T: From<uuid::Uuid>>(&self) -> T {
        T::from(self.rng.uuid())
    }

    /// The audit row of something that this caller did (lifecycle 10.3).
    pub fn audit(
        &self,
        caller: &Signed,
        action: &'static str,
        resource_type: &'static str,
        resource_id: impl std::fmt::Display,
    ) -> NewAudit {
        NewAudit {
            account_id: Some(caller.account_id()),
            action,
            resource_type,
            resource_id: Some(resource_id.to_string()),
            actor: caller.actor(),
            request_ip: caller.remote_ip.clone(),
            metadata: Default::default(),
        }
    }
}
