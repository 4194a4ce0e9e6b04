//! A replica behind its HTTP doors, and the shortest way to every state of lifecycle 2.1.

use std::sync::Arc;
use std::time::Duration;

use actix_web::body::to_bytes;
use actix_web::test::{self, TestRequest};
use actix_web::{App, web};
use fountain::api::{self, ApiSettings, AppState, CatalogFacts};
use fountain_actors::domain::account::{Actor, NewApiKey, Scope};
use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineEvent, MachineMode, MachineState, Provider};
use fountain_actors::domain::operation::{Outcome, Receipt};
use fountain_actors::domain::*;
use fountain_actors::fakes::{Fault, Op};
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::conversations::Limits;
use fountain_actors::ports::store::machines::{Claim, ClaimAnswer, Claimed, Fence, Finish, ParkRule, Patch, Purpose};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::conversation_bench::{Bench, Setup};

const KEY: &str = "ftn_doors";
/// Longer than any door waits.
const LONG: Duration = Duration::from_secs(600);
const ROOMY: Limits = Limits::flat(100, 100);

/// The columns of lifecycle 2.3, each state by itself.
pub const STATES: [&str; 11] = [
    "BUILDING",
    "BUILD-STALE",
    "UP",
    "UP-BUSY",
    "PARKING",
    "WAKING",
    "PARK-STALE",
    "WAKE-STALE",
    "ASLEEP",
    "DOOMED",
    "GONE",
];

/// What a door said.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub status: u16,
    pub code: String,
    pub retry_after: Option<String>,
    pub body: Value,
    pub took: Duration,
}

impl Said {
    /// `503 sandbox_unavailable 30`, or `204`.
    pub fn words(&self) -> String {
        let mut words = vec![self.status.to_string()];
        words.extend((!self.code.is_empty()).then(|| self.code.clone()));
        words.extend(self.retry_after.clone());
        words.join(" ")
    }
}

pub struct House {
    pub bench: Bench,
    pub conversation: ConversationId,
    pub machine: MachineId,
    _closing: watch::Sender<bool>,
    closing: watch::Receiver<bool>,
}

/// A claim by another process.
pub struct Held {
    pub claimed: Claimed,
    operation: OperationId,
}

impl House {
    /// A conversation on a machine that is up; its server is alive and its first turn has ended.
    pub async fn up(setup: Setup) -> Self {
        let bench = Bench::of(setup).await;
        let conversation = bench.warm().await;
        Self::around(bench, conversation).await
    }

    /// A launch whose build never gets an answer to its create.
    pub async fn building(setup: Setup, prompt: Option<&str>) -> Self {
        let bench = Bench::of(setup).await;
        bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(7200)));
        let launched = bench.launch(prompt).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        Self::around(bench, launched.view.conversation.id).await
    }

    async fn around(bench: Bench, conversation: ConversationId) -> Self {
        let world = &bench.world;
        let key = NewApiKey {
            id: world.id(),
            account_id: bench.caller.account_id(),
            name: "doors".into(),
            prefix: KEY.into(),
            sha256: api::auth::digest(KEY),
            scope: Scope::Full,
            expires_at: None,
        };
        world.store.create_key(key, None, world.now()).await.unwrap();
        let machine = bench.view(conversation).await.machine.id;
        let (sender, closing) = watch::channel(false);
        Self {
            bench,
            conversation,
            machine,
            _closing: sender,
            closing,
        }
    }

    /// A home in this state, its conversation without a live server. A build has a prompt that waits for it.
    pub async fn of(state: &str) -> Self {
        Self::with(state, Setup::default(), Some("first")).await
    }

    /// As [`House::of`], and no prompt waits for a build.
    pub async fn quiet(state: &str) -> Self {
        Self::with(state, Setup::default(), None).await
    }

    pub async fn with(state: &str, setup: Setup, prompt: Option<&str>) -> Self {
        let mut house = match state {
            "BUILDING" | "BUILD-STALE" => Self::building(setup, prompt).await,
            _ => Self::up(setup).await,
        };
        house.bench.kill_and_restart().await;
        house.bring(state).await;
        assert!(
            house.is(state).await,
            "{state} was not reached: {:?}",
            house.row().await
        );
        house
    }

    async fn bring(&self, state: &str) {
        match state {
            "BUILD-STALE" | "UP" => {}
            "BUILDING" => drop(self.claim(Purpose::Provision, LONG).await),
            "UP-BUSY" => drop(self.claim(Purpose::Confirm, LONG).await),
            "PARKING" => drop(self.claim(park(), LONG).await),
            "PARK-STALE" => self.stale(park()).await,
            "ASLEEP" => self.asleep().await,
            "WAKING" => {
                self.asleep().await;
                self.claim(wake(), LONG).await;
            }
            "WAKE-STALE" => {
                self.asleep().await;
                self.stale(wake()).await;
            }
            "DOOMED" => self.fence(DestroyReason::Reset).await,
            "GONE" => {
                self.fence(DestroyReason::Reset).await;
                let held = self.claim(Purpose::Destroy, LONG).await;
                self.bench.sandbox.lose(&held.claimed.machine.name);
                self.finish(held, MachineEvent::DeleteConfirmed).await;
            }
            other => panic!("{other} is no column"),
        }
    }

    async fn is(&self, state: &str) -> bool {
        let row = self.row().await;
        let clock = self
            .bench
            .world
            .store
            .lease_clock(self.bench.world.now())
            .await
            .unwrap();
        let word = match row.state(clock) {
            MachineState::New => "NEW",
            MachineState::Building => "BUILDING",
            MachineState::BuildStale => "BUILD-STALE",
            MachineState::Up => "UP",
            MachineState::UpBusy => "UP-BUSY",
            MachineState::Parking => "PARKING",
            MachineState::ParkStale => "PARK-STALE",
            MachineState::Asleep => "ASLEEP",
            MachineState::Waking => "WAKING",
            MachineState::WakeStale => "WAKE-STALE",
            MachineState::Doomed { .. } => "DOOMED",
            MachineState::Gone(_) => "GONE",
        };
        word == state
    }

    pub async fn row(&self) -> Machine {
        self.bench.world.store.machine(self.machine).await.unwrap().unwrap()
    }

    /// Another process takes the machine.
    pub async fn claim(&self, purpose: Purpose, ttl: Duration) -> Held {
        let world = &self.bench.world;
        let claim = Claim {
            machine_id: self.machine,
            holder: "elsewhere/1".into(),
            ttl,
            purpose,
            operation_id: world.id(),
            actor: Actor::System("test"),
            stages: Vec::new(),
            now: world.now(),
        };
        let operation = claim.operation_id;
        match world.store.claim(claim).await.unwrap().value {
            ClaimAnswer::Claimed(claimed) => Held { claimed, operation },
            other => panic!("the claim was not had: {other:?}"),
        }
    }

    /// Another process took the machine and died.
    async fn stale(&self, purpose: Purpose) {
        self.claim(purpose, Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    async fn asleep(&self) {
        let held = self.claim(park(), LONG).await;
        self.bench.sandbox.stop(&held.claimed.machine.name);
        self.finish(held, MachineEvent::ParkConfirmed).await;
    }

    pub async fn fence(&self, reason: DestroyReason) {
        let fence = Fence {
            machine_id: self.machine,
            reason,
            actor: Actor::Api,
            request_ip: None,
            reset: reason == DestroyReason::Reset,
            now: self.bench.world.now(),
        };
        self.bench.world.store.fence(fence).await.unwrap();
    }

    pub async fn finish(&self, held: Held, event: MachineEvent) {
        self.try_finish(held, event).await.unwrap();
    }

    /// A holder that has a successor by now comes back.
    pub async fn finish_late(&self, held: Held, event: MachineEvent) {
        let refused = self.try_finish(held, event).await;
        assert!(matches!(refused, Err(StoreError::Stale(_))), "{refused:?}");
    }

    async fn try_finish(&self, held: Held, event: MachineEvent) -> Result<(), StoreError> {
        let finish = Finish {
            machine_id: self.machine,
            epoch: held.claimed.epoch,
            operation_id: held.operation,
            event: Some(event),
            keep_stamp: false,
            patch: Patch::default(),
            receipt: Receipt::of(Outcome::Done),
            learned: true,
            end_turns: None,
            forget_sessions: event == MachineEvent::DeleteConfirmed,
            stages: Vec::new(),
            audit: Vec::new(),
            usage: None,
            now: self.bench.world.now(),
        };
        self.bench.world.store.finish(finish).await.map(drop)
    }

    /// Ends every actor before the system is dropped. Without the auditor: the other process is played by the test, which
    /// writes outcomes for calls that nobody sent.
    pub async fn close(self) {
        self.bench
            .engine
            .shutdown(fountain_actors::directory::ShutdownKind::Drain)
            .await;
        self.bench.engine.freeze();
        tokio::time::sleep(Duration::from_secs(120)).await;
    }

    fn state(&self) -> web::Data<AppState> {
        let world = &self.bench.world;
        web::Data::new(AppState {
            store: world.store.clone(),
            doors: Arc::new(self.bench.engine.clone()),
            bus: world.bus.clone(),
            clock: world.clock.clone(),
            rng: world.rng.clone(),
            runners: world.runners.clone(),
            settings: world.settings.clone(),
            api: ApiSettings::default(),
            catalog: CatalogFacts {
                runtimes: vec![Runtime::Acp],
                providers: vec![Provider::Fake],
            },
            blocks: |_| Vec::new(),
            landing: "".into(),
            measure: Arc::new(|_| {}),
            stamps: Arc::default(),
            closing: self.closing.clone(),
        })
    }

    pub async fn call(&self, method: &str, path: &str, body: Value) -> Said {
        let state = self.state();
        let app = test::init_service(App::new().configure(|config| api::configure(config, state))).await;
        let request = TestRequest::with_uri(path)
            .method(method.parse().unwrap())
            .insert_header(("authorization", format!("Bearer {KEY}")))
            .set_json(body)
            .to_request();
        let asked = tokio::time::Instant::now();
        let response = test::call_service(&app, request).await;
        let took = asked.elapsed();
        let status = response.status().as_u16();
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
        let bytes = to_bytes(response.into_body()).await.unwrap();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Said {
            status,
            code: body["error"].as_str().unwrap_or_default().to_owned(),
            retry_after,
            body,
            took,
        }
    }

    /// Knocks at a door of lifecycle 2.3.
    pub async fn knock(&self, door: &str) -> Said {
        let of_conversation = |what: &str| format!("/api/conversations/{}/{what}", self.conversation);
        match door {
            "prompt" => {
                self.call("POST", &of_conversation("prompts"), json!({"prompt": "go on"}))
                    .await
            }
            "terminate" => self.call("POST", &of_conversation("terminate"), json!({})).await,
            "interrupt" => self.call("POST", &of_conversation("interrupt"), json!({})).await,
            "attach" => {
                let body = json!({"agent_id": self.bench.agent.id, "sandbox_id": self.machine});
                self.call("POST", "/api/conversations", body).await
            }
            "reset" => {
                self.call("DELETE", &format!("/api/sandboxes/{}", self.machine), json!({}))
                    .await
            }
            "reap" => {
                let path = format!("/api/admin/sandboxes/{}/reap", self.machine);
                self.call("POST", &path, json!({})).await
            }
            "why" => {
                self.call("GET", &format!("/api/sandboxes/{}/why", self.machine), json!({}))
                    .await
            }
            other => panic!("{other} is no door"),
        }
    }
}

pub fn park() -> Purpose {
    Purpose::Park(ParkRule {
        live_servers: Vec::new(),
        idle_before: None,
        marker_before: None,
    })
}

pub fn wake() -> Purpose {
    Purpose::Wake { limits: ROOMY }
}

/// A machine that goes with its conversation.
pub fn ephemeral() -> Setup {
    Setup {
        mode: MachineMode::Ephemeral,
        ..Setup::default()
    }
}
