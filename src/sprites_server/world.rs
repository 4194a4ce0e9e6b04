//! The sprites of one server, and the order of what is done to them (RUL-L-110, 113; RUL-L-2).
//!
//! A gate per name: whoever changes the sprite or its disk holds it alone, whoever starts a command or touches a file
//! shares it. An enclosure is opened with the stored policy when the sprite is made, and again by the first who needs it
//! after a restart or a death; nobody gets one that was opened without it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fountain_process::{Bound, Ledger, Registry, Session};
use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use actix_web::http::StatusCode;

use crate::api::refusal::Refusal;
use crate::enclosure::{Enclosure, Enclosures, Plan};
use crate::exec::{self, Attachments, SpriteExec};
use crate::limits::{Creations, Limits};
use crate::policy::Policy;
use crate::services;
use crate::state::Store;
use crate::state::record::{Begun, Sprite};
use crate::tokens::{Account, Tokens};

/// How long one operation waits for another on the same name (RUL-L-110).
const PATIENCE: Duration = Duration::from_secs(30);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whoever changes a sprite holds it alone.
type Gate = Arc<RwLock<()>>;

/// Everything the doors share.
pub struct World {
    pub store: Arc<Store>,
    pub tokens: Tokens,
    pub enclosures: Arc<dyn Enclosures>,
    pub registry: Arc<Registry>,
    pub attachments: Arc<Attachments>,
    pub limits: Limits,
    pub creations: Creations,
    pub exec: exec::Settings,
    pub services: Arc<services::Book>,
    gates: Mutex<HashMap<(String, String), Gate>>,
    insides: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Inside>>>>,
}

/// What of a sprite lives in this process.
#[derive(Default)]
struct Inside {
    ledger: Option<Arc<Ledger>>,
    /// Where the journals of its services spill.
    services: Option<Arc<Ledger>>,
    enclosure: Option<Arc<dyn Enclosure>>,
}

/// Who calls, about which name, of which epoch.
#[derive(Clone, Debug)]
pub struct Caller {
    pub account: Account,
    pub name: String,
    pub epoch: Option<u64>,
}

/// Runs what blocks.
///
/// # Errors
/// It panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Refusal::broken(&error))
}

/// Work that goes on when its caller hangs up: a half-done change helps nobody.
///
/// # Errors
/// Its own, or it panicked.
pub async fn to_the_end<T: 'static>(work: impl Future<Output = Result<T, Refusal>> + 'static) -> Result<T, Refusal> {
    match actix_web::rt::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(Refusal::broken(&error)),
    }
}

impl World {
    /// A world over an open store.
    pub fn new(
        store: Store,
        tokens: Tokens,
        enclosures: Arc<dyn Enclosures>,
        limits: Limits,
        exec: exec::Settings,
    ) -> Self {
        Self {
            store: Arc::new(store),
            tokens,
            enclosures,
            registry: Arc::new(Registry::new(exec::FINISHED_KEPT)),
            attachments: Arc::default(),
            limits,
            creations: Creations::default(),
            exec,
            services: Arc::default(),
            gates: Mutex::default(),
            insides: Mutex::default(),
        }
    }

    fn gate(&self, caller: &Caller) -> Gate {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        let key = (caller.account.as_str().to_owned(), caller.name.clone());
        Arc::clone(gates.entry(key).or_default())
    }

    /// The name for oneself, if the epoch is not stale.
    ///
    /// # Errors
    /// 503 after 30 s, 409 for an epoch.
    pub async fn alone(&self, caller: &Caller) -> Result<OwnedRwLockWriteGuard<()>, Refusal> {
        let gate = self.gate(caller).write_owned();
        let guard = tokio::time::timeout(PATIENCE, gate)
            .await
            .map_err(|_| Refusal::busy())?;
        self.observe(caller).await?;
        Ok(guard)
    }

    /// The name shared with others who do not change the sprite.
    ///
    /// # Errors
    /// As [`Self::alone`].
    pub async fn shared(&self, caller: &Caller) -> Result<OwnedRwLockReadGuard<()>, Refusal> {
        let gate = self.gate(caller).read_owned();
        let guard = tokio::time::timeout(PATIENCE, gate)
            .await
            .map_err(|_| Refusal::busy())?;
        self.observe(caller).await?;
        Ok(guard)
    }

    async fn observe(&self, caller: &Caller) -> Result<(), Refusal> {
        let Some(epoch) = caller.epoch else { return Ok(()) };
        let (store, caller) = (Arc::clone(&self.store), caller.clone());
        let seen = blocking(move || store.observe(caller.account.as_str(), &caller.name, epoch)).await?;
        let stale = match seen.map_err(|error| Refusal::broken(&error))? {
            Ok(()) => return Ok(()),
            Err(stale) => stale,
        };
        let message = format!("epoch {epoch} is over; {} was seen", stale.highest);
        Err(Refusal::with(
            StatusCode::CONFLICT,
            json!({"error": "stale_epoch", "message": message}),
        ))
    }

    /// The caller's sprite.
    ///
    /// # Errors
    /// 404.
    pub fn sprite(&self, caller: &Caller) -> Result<Sprite, Refusal> {
        self.store
            .sprite(caller.account.as_str(), &caller.name)
            .ok_or_else(Refusal::no_sprite)
    }

    fn inside(&self, id: &str) -> Arc<tokio::sync::Mutex<Inside>> {
        let mut insides = self.insides.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(insides.entry(id.to_owned()).or_default())
    }

    /// The running inside of a sprite; opens it when it is not. Call with the name held or shared.
    ///
    /// # Errors
    /// 503 when it cannot be made, or not with this policy (RUL-L-113).
    pub async fn enter(&self, sprite: &Sprite) -> Result<SpriteExec, Refusal> {
        Ok(self.enter_services(sprite).await?.exec)
    }

    /// As [`Self::enter`], for whoever starts services; the opening itself starts those that shall run.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub async fn enter_services(&self, sprite: &Sprite) -> Result<services::Inside, Refusal> {
        let inside = self.inside(&sprite.id);
        let mut inside = inside.lock().await;
        self.finish(sprite).await?;
        let ledger = match &inside.ledger {
            Some(ledger) => Arc::clone(ledger),
            None => {
                let ledger = self.recall(sprite).await?;
                Arc::clone(inside.ledger.insert(ledger))
            }
        };
        let services = match &inside.services {
            Some(ledger) => Arc::clone(ledger),
            None => {
                let directory = self.store.directory(&sprite.id).join("services");
                let opened = blocking(move || Ledger::open(&directory)).await?;
                let (ledger, _) = opened.map_err(|error| Refusal::broken(&error))?;
                Arc::clone(inside.services.insert(ledger))
            }
        };
        let living = inside
            .enclosure
            .take()
            .filter(|found| found.closed().now_or_never().is_none());
        let is_new = living.is_none();
        let enclosure = match living {
            Some(enclosure) => enclosure,
            None => {
                // Those of an enclosure that died by itself.
                self.services.leave(&sprite.id).await;
                self.enclosures.open(self.plan(sprite)).await.map_err(not_opened)?
            }
        };
        inside.enclosure = Some(Arc::clone(&enclosure));
        let exec = SpriteExec {
            owner: sprite.id.clone(),
            registry: Arc::clone(&self.registry),
            attachments: Arc::clone(&self.attachments),
            ledger,
            environment: environment(sprite, enclosure.home()),
            enclosure,
            settings: self.exec,
        };
        let entered = services::Inside { exec, ledger: services };
        if is_new {
            self.services.begin(&entered, &sprite.services);
        }
        Ok(entered)
    }

    /// Finishes what an operation began before it failed.
    async fn finish(&self, sprite: &Sprite) -> Result<(), Refusal> {
        match &sprite.begun {
            None => return Ok(()),
            Some(Begun::Delete) => return Err(Refusal::no_sprite()),
            Some(_) => {}
        }
        let (store, mut sprite) = (Arc::clone(&self.store), sprite.clone());
        let finished = blocking(move || store.finish(&mut sprite).and_then(|()| store.save(&sprite)));
        finished.await?.map_err(|error| Refusal::broken(&error))
    }

    /// Finds the sessions of an earlier server.
    async fn recall(&self, sprite: &Sprite) -> Result<Arc<Ledger>, Refusal> {
        let directory = self.store.directory(&sprite.id).join("sessions");
        let recalled = blocking(move || {
            let (ledger, _) = Ledger::open_durable(&directory, Bound::SPRITE).map_err(io::Error::other)?;
            let sessions = Session::recover(&ledger)?;
            Ok::<_, io::Error>((ledger, sessions))
        });
        let (ledger, sessions) = recalled.await?.map_err(|error| Refusal::broken(&error))?;
        self.registry.adopt(&sprite.id, sessions);
        Ok(ledger)
    }

    fn plan(&self, sprite: &Sprite) -> Plan {
        Plan {
            id: sprite.id.clone(),
            hostname: sprite.name.replace(['.', '_'], "-"),
            directory: self.store.directory(&sprite.id),
            layers: sprite.layers.iter().map(|layer| self.store.layer(layer)).collect(),
            policy: sprite.policy.clone(),
        }
    }

    /// Whether anything may be running inside.
    pub fn is_busy(&self, sprite: &Sprite) -> bool {
        let sessions = self.registry.of(&sprite.id);
        let is_running = sessions
            .iter()
            .any(|session| session.exit().is_none() || session.group().is_some_and(fountain_process::Group::may_live));
        is_running || self.services.is_busy(&sprite.id)
    }

    /// Ends everything inside. Call with the name held.
    pub async fn close(&self, sprite: &Sprite) {
        self.services.leave(&sprite.id).await;
        self.registry.stop(&sprite.id, Duration::ZERO).await;
        let inside = self.inside(&sprite.id);
        let enclosure = inside.lock().await.enclosure.take();
        if let Some(enclosure) = enclosure {
            enclosure.close().await;
        }
    }

    /// Makes a sprite (RUL-L-110).
    ///
    /// # Errors
    /// 409 when there is one, 429, 503; nothing is left then.
    pub async fn create(self: Arc<Self>, caller: Caller, sprite: Sprite) -> Result<Sprite, Refusal> {
        let _alone = self.alone(&caller).await?;
        if self.sprite(&caller).is_ok() {
            let text = format!(
                "A sprite named '{}' already exists. Please choose a different name.",
                caller.name
            );
            return Err(Refusal::new(StatusCode::CONFLICT, &text));
        }
        self.limits
            .one_more(self.store.sprites(caller.account.as_str()).len())?;
        self.creations
            .count(&caller.account, &self.limits, std::time::Instant::now())?;
        let (store, record) = (Arc::clone(&self.store), sprite.clone());
        let added = blocking(move || store.add(&record)).await?;
        added.map_err(|error| Refusal::broken(&error))?;
        if let Err(refusal) = self.enter(&sprite).await {
            self.remove(&sprite).await?;
            return Err(refusal);
        }
        Ok(sprite)
    }

    /// Deletes a sprite; answers when processes, mounts and files are gone (RUL-L-110).
    ///
    /// # Errors
    /// 404 when there is none.
    pub async fn destroy(self: Arc<Self>, caller: Caller) -> Result<(), Refusal> {
        let _alone = self.alone(&caller).await?;
        let sprite = self.sprite(&caller)?;
        self.remove(&sprite).await
    }

    async fn remove(&self, sprite: &Sprite) -> Result<(), Refusal> {
        let mut doomed = sprite.clone();
        doomed.begun = Some(Begun::Delete);
        self.save(&doomed).await?;
        self.close(sprite).await;
        self.registry.forget(&sprite.id);
        self.insides
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&sprite.id);
        let store = Arc::clone(&self.store);
        let removed = blocking(move || store.remove(&doomed)).await?;
        removed.map_err(|error| Refusal::broken(&error))
    }

    /// Writes a record down. Call with the name held.
    ///
    /// # Errors
    /// The disk; the old record is in force then.
    pub async fn save(&self, sprite: &Sprite) -> Result<(), Refusal> {
        let (store, sprite) = (Arc::clone(&self.store), sprite.clone());
        let saved = blocking(move || store.save(&sprite)).await?;
        saved.map_err(|error| Refusal::broken(&error))
    }

    /// Ends everything inside and opens it again.
    ///
    /// # Errors
    /// 404, 503.
    pub async fn restart(self: Arc<Self>, caller: Caller) -> Result<Sprite, Refusal> {
        let _alone = self.alone(&caller).await?;
        let sprite = self.sprite(&caller)?;
        self.close(&sprite).await;
        self.enter(&sprite).await?;
        Ok(sprite)
    }

    /// Replaces the policy: stored, then enforced; where that fails, nothing runs any more (RUL-L-113).
    ///
    /// # Errors
    /// 422 and nothing changed, 503 and everything inside ended.
    pub async fn set_policy(self: Arc<Self>, caller: Caller, policy: Policy) -> Result<(), Refusal> {
        let _alone = self.alone(&caller).await?;
        let mut sprite = self.sprite(&caller)?;
        self.enclosures.check(&policy)?;
        sprite.policy = policy.clone();
        sprite.updated_at = crate::clock::now();
        self.save(&sprite).await?;
        let inside = self.inside(&sprite.id);
        let enclosure = inside.lock().await.enclosure.clone();
        let Some(enclosure) = enclosure else { return Ok(()) };
        if let Err(error) = enclosure.set_policy(policy).await {
            tracing::error!(%error, sprite = sprite.id, "a policy is not enforced; the sprite is closed");
            self.close(&sprite).await;
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the network policy could not be enforced; everything in the sprite was ended",
            ));
        }
        Ok(())
    }

    /// Ends everything of every sprite. Records stay.
    pub async fn shut(&self) {
        self.services.leave_all().await;
        self.registry.close(Duration::ZERO).await;
        let insides: Vec<_> = {
            let mut insides = self.insides.lock().unwrap_or_else(PoisonError::into_inner);
            insides.drain().map(|(_, inside)| inside).collect()
        };
        for inside in insides {
            let enclosure = inside.lock().await.enclosure.take();
            if let Some(enclosure) = enclosure {
                enclosure.close().await;
            }
        }
    }
}

/// Whatever keeps it from opening with its policy, no command runs.
fn not_opened(error: crate::enclosure::EnclosureError) -> Refusal {
    tracing::error!(%error, "a sandbox was not opened");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the sandbox could not be started")
}

/// What every command gets; the sprite's own variables win.
fn environment(sprite: &Sprite, home: &str) -> Vec<(String, String)> {
    let defaults = [("PATH", PATH), ("HOME", home), ("USER", "sprite"), ("LANG", "C.UTF-8")];
    let defaults = defaults
        .iter()
        .filter(|(name, _)| !sprite.environment.contains_key(*name));
    let defaults = defaults.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let own = sprite.environment.iter();
    defaults
        .chain(own.map(|(name, value)| (name.clone(), value.clone())))
        .collect()
}
