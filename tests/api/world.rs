//! Two accounts with one of everything each, and the ports around them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use actix_http::Request;
use actix_web::body::{BoxBody, to_bytes};
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::header::HeaderMap;
use actix_web::test::{self, TestRequest};
use actix_web::{App, Error, web};
use fountain::api::{self, ApiSettings, AppState, CatalogFacts, RequestMeasure};
use fountain_actors::domain::account::*;
use fountain_actors::domain::agent::*;
use fountain_actors::domain::conversation::*;
use fountain_actors::domain::environment::*;
use fountain_actors::domain::event::*;
use fountain_actors::domain::machine::*;
use fountain_actors::domain::queue::*;
use fountain_actors::domain::runner::*;
use fountain_actors::domain::schedule::{Schedule, ScheduleConfig};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::turn::*;
use fountain_actors::domain::*;
use fountain_actors::doors::{Answer, Doors, LaunchRequest, Launched, LaunchedOrQueued};
use fountain_actors::ports::store::catalog::Fenced;
use fountain_actors::ports::store::machines::{MachineTenant, MachineView};
use fountain_actors::ports::{Bus, Clock, Cursor, Rng, RunnerPresence, Topic};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::store::Rows;

pub fn start() -> Moment {
    "2026-01-02T03:04:05.123456Z".parse().unwrap()
}

/// A wall clock that stands still.
#[derive(Default)]
pub struct Watch;

impl Clock for Watch {
    fn now(&self) -> Moment {
        start()
    }
}

/// Counts, so that every value is new and every run the same.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Rng for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        let n = self.0.fetch_add(1, Ordering::SeqCst).to_le_bytes();
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = n[index % 8];
        }
    }
}

#[derive(Default)]
pub struct LocalBus(Mutex<HashMap<Topic, watch::Sender<EventId>>>);

impl LocalBus {
    fn sender(&self, topic: Topic) -> watch::Sender<EventId> {
        self.0
            .lock()
            .unwrap()
            .entry(topic)
            .or_insert_with(|| watch::Sender::new(EventId(0)))
            .clone()
    }
}

impl Bus for LocalBus {
    fn publish(&self, cursor: Cursor) {
        for topic in [Topic::Conversation(cursor.conversation), Topic::Account(cursor.account)] {
            self.sender(topic)
                .send_modify(|newest| *newest = (*newest).max(cursor.id));
        }
    }

    fn subscribe(&self, topic: Topic) -> watch::Receiver<EventId> {
        self.sender(topic).subscribe()
    }
}

#[derive(Default)]
pub struct Online {
    pub online: Mutex<Vec<RunnerId>>,
    pub ended: Mutex<Vec<RunnerId>>,
    pub revoked: Mutex<Vec<KeyId>>,
    changes: watch::Sender<u64>,
}

impl RunnerPresence for Online {
    fn is_online(&self, runner: RunnerId) -> bool {
        self.online.lock().unwrap().contains(&runner)
    }
    fn online(&self) -> Vec<RunnerId> {
        self.online.lock().unwrap().iter().copied().collect()
    }
    fn connected(&self, _: RunnerId) -> Option<Runner> {
        None
    }
    fn latest(&self, _: AccountId) -> Option<Runner> {
        None
    }
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
    fn disconnect(&self, runner: RunnerId) {
        self.ended.lock().unwrap().push(runner);
    }
    fn key_revoked(&self, key: KeyId) {
        self.revoked.lock().unwrap().push(key);
    }
}

/// Doors that know whose things are whose, note what they were asked, and refuse what the test plans.
pub struct NotingDoors {
    rows: Arc<Rows>,
    pub asked: Mutex<Vec<String>>,
    pub launches: Mutex<Vec<LaunchRequest>>,
    pub prompts: Mutex<Vec<Prompt>>,
    pub resumes: Mutex<bool>,
    pub refusal: Mutex<Option<Refusal>>,
}

impl NotingDoors {
    pub fn note(&self, what: String) -> Result<(), Refusal> {
        self.asked.lock().unwrap().push(what);
        self.refusal.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    /// A machine of whichever account.
    pub fn any(&self, machine: MachineId) -> Result<(), Refusal> {
        let is_there = |t: &mut crate::store::Tables| t.machines.iter().any(|(_, v)| v.machine.id == machine);
        match self.rows.edit(is_there) {
            true => Ok(()),
            false => Err(ErrorCode::NotFound.into()),
        }
    }

    fn own(&self, caller: &Caller, id: ConversationId) -> Result<(), Refusal> {
        let view = |t: &mut crate::store::Tables| {
            t.conversations
                .iter()
                .any(|v| v.conversation.id == id && v.conversation.account_id == caller.account.id)
        };
        if self.rows.edit(view) {
            Ok(())
        } else {
            Err(ErrorCode::NotFound.into())
        }
    }
}

fn answered<T: 'static>(answer: Result<T, Refusal>) -> Answer<'static, T> {
    Box::pin(async move { answer })
}

/// A request in its line.
fn waiting(account: AccountId, agent: AgentId, id: QueueRequestId) -> SandboxRequest {
    SandboxRequest {
        id,
        account_id: account,
        agent_id: agent,
        kind: RequestKind::Start,
        status: RequestStatus::Queued,
        source: RequestSource::Api,
        schedule_id: None,
        launch: None,
        conversation_id: None,
        error: None,
        inserted_at: start(),
        updated_at: start(),
    }
}

impl Doors for NotingDoors {
    fn launch(&self, caller: Caller, request: LaunchRequest) -> Answer<'_, Launched> {
        self.launches.lock().unwrap().push(request.clone());
        let resumed = *self.resumes.lock().unwrap();
        let found = self.rows.edit(|t| {
            let own = t
                .agents
                .iter()
                .any(|a| a.id == request.agent_id && a.account_id == caller.account.id);
            let view = t
                .conversations
                .iter()
                .find(|v| v.conversation.account_id == caller.account.id)
                .cloned();
            view.filter(|_| own)
        });
        answered(self.note("launch".into()).and_then(|()| {
            let view = found.ok_or(Refusal::from(ErrorCode::NotFound))?;
            Ok(Launched { view, resumed })
        }))
    }
    fn launch_or_queue(&self, caller: Caller, request: LaunchRequest) -> Answer<'_, LaunchedOrQueued> {
        let waits = |refusal: &Refusal| Setback::of(refusal.code()) == Setback::NoRoom;
        if self.refusal.lock().unwrap().as_ref().is_some_and(waits) {
            let request = waiting(caller.account.id, request.agent_id, QueueRequestId(uuid::Uuid::nil()));
            let position = Some(1);
            return answered(Ok(LaunchedOrQueued::Queued(RequestView { request, position })));
        }
        let launched = self.launch(caller, request);
        Box::pin(async move { launched.await.map(LaunchedOrQueued::Launched) })
    }
    fn run_schedule(&self, caller: Caller, schedule: Schedule) -> Answer<'_, ConversationId> {
        let team = self.rows.edit(|t| {
            let mut own = t.conversations.iter().map(|view| &view.conversation);
            own.find(|row| row.account_id == caller.account.id).map(|row| row.id)
        });
        let noted = self.note(format!("run {}", schedule.id));
        answered(noted.and_then(|()| team.ok_or(ErrorCode::NotFound.into())))
    }
    fn prompt(&self, caller: Caller, id: ConversationId, prompt: Prompt) -> Answer<'_, ()> {
        let own = self.own(&caller, id);
        answered(
            own.and_then(|()| self.note(format!("prompt {}", prompt.text)))
                .inspect(|()| {
                    self.prompts.lock().unwrap().push(prompt);
                }),
        )
    }
    fn interrupt(&self, caller: Caller, id: ConversationId) -> Answer<'_, ()> {
        answered(self.own(&caller, id).and_then(|()| self.note("interrupt".into())))
    }
    fn terminate(&self, caller: Caller, id: ConversationId) -> Answer<'_, ()> {
        answered(self.own(&caller, id).and_then(|()| self.note("terminate".into())))
    }
    fn delete_conversation(&self, caller: Caller, id: ConversationId) -> Answer<'_, ()> {
        answered(self.own(&caller, id).and_then(|()| self.note("delete".into())))
    }
    fn answer_permission(&self, caller: Caller, id: ConversationId, request: String, option: String) -> Answer<'_, ()> {
        answered(
            self.own(&caller, id)
                .and_then(|()| self.note(format!("answer {request} {option}"))),
        )
    }
    fn reset(&self, caller: Caller, machine: MachineId) -> Answer<'_, ()> {
        let own = self.rows.edit(|t| {
            t.machines
                .iter()
                .any(|(of, v)| *of == caller.account.id && v.machine.id == machine)
        });
        let own = if own { Ok(()) } else { Err(ErrorCode::NotFound.into()) };
        answered(own.and_then(|()| self.note("reset".into())))
    }
    fn destroy_fenced(&self, fenced: Fenced) {
        self.asked
            .lock()
            .unwrap()
            .push(format!("destroy {}", fenced.machines.len()));
    }
    fn is_live(&self, _: ConversationId) -> bool {
        false
    }
}

/// One account's things.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub account: AccountId,
    pub full: String,
    pub sprite: String,
    pub runner_key: String,
    pub full_id: KeyId,
    pub agent: AgentId,
    pub environment: EnvironmentId,
    pub vault: VaultId,
    pub machine: MachineId,
    pub conversation: ConversationId,
    /// A second conversation of the account, without events.
    pub other: ConversationId,
    pub turn: TurnId,
    pub runner: RunnerId,
}

impl Tenant {
    pub fn request(&self) -> QueueRequestId {
        QueueRequestId(self.runner.0)
    }

    pub fn schedule(&self) -> ScheduleId {
        ScheduleId(self.turn.0)
    }
}

pub struct World {
    pub rows: Arc<Rows>,
    pub bus: Arc<LocalBus>,
    pub doors: Arc<NotingDoors>,
    pub online: Arc<Online>,
    pub closing: watch::Sender<bool>,
    pub measured: Arc<Mutex<Vec<RequestMeasure>>>,
    pub state: web::Data<AppState>,
    pub ann: Tenant,
    pub bob: Tenant,
}

impl Default for World {
    fn default() -> Self {
        Self::with(ApiSettings::default())
    }
}

impl World {
    pub fn with(settings: ApiSettings) -> Self {
        let rows = Arc::new(Rows::default());
        let (ann, bob) = (seed(&rows, 1), seed(&rows, 2));
        let bus = Arc::new(LocalBus::default());
        let clock = Arc::new(Watch);
        let online = Arc::new(Online::default());
        let doors = Arc::new(NotingDoors {
            rows: rows.clone(),
            asked: Mutex::default(),
            launches: Mutex::default(),
            prompts: Mutex::default(),
            resumes: Mutex::default(),
            refusal: Mutex::default(),
        });
        let closing = watch::Sender::new(false);
        let measured = Arc::new(Mutex::new(Vec::new()));
        let seen = measured.clone();
        let state = AppState {
            store: rows.clone(),
            doors: doors.clone(),
            bus: bus.clone(),
            clock,
            rng: Arc::new(Counter::default()),
            runners: online.clone(),
            settings: Arc::new(Settings::default()),
            api: settings,
            catalog: CatalogFacts {
                runtimes: vec![Runtime::Acp],
                providers: vec![Provider::Runner],
            },
            blocks: |line| vec![json!({"kind": "text", "body": line})],
            landing: "<p>hello</p>".into(),
            measure: Arc::new(move |measure| seen.lock().unwrap().push(measure)),
            stamps: Arc::default(),
            closing: closing.subscribe(),
        };
        Self {
            rows,
            bus,
            doors,
            online,
            closing,
            measured,
            state: web::Data::new(state),
            ann,
            bob,
        }
    }

    pub async fn app(&self) -> impl Service<Request, Response = ServiceResponse<BoxBody>, Error = Error> + use<> {
        let state = self.state.clone();
        test::init_service(App::new().configure(|config| api::configure(config, state))).await
    }

    /// Stores an event and, if `announced`, says so on the bus.
    pub fn append(&self, tenant: &Tenant, conversation: ConversationId, event: NewEvent, announced: bool) -> EventId {
        let cursor = store_event(&self.rows, tenant.account, conversation, event);
        if announced {
            self.bus.publish(cursor);
        }
        cursor.id
    }

    pub fn say(&self, tenant: &Tenant, stream: Stream, text: &str) -> EventId {
        self.append(tenant, tenant.conversation, output(stream, text), true)
    }

    pub fn stage(&self, tenant: &Tenant, stage: Stage, state: StageState) -> EventId {
        self.append(tenant, tenant.conversation, NewStage::new(stage, state).into(), true)
    }

    pub fn set_status(&self, id: ConversationId, status: ConversationStatus) {
        self.rows.edit(|t| {
            let mut rows = t.conversations.iter_mut().map(|view| &mut view.conversation);
            rows.find(|c| c.id == id).unwrap().status = status;
        });
    }
}

pub fn output(stream: Stream, text: &str) -> NewEvent {
    NewOutput {
        turn_id: None,
        stream,
        data: text.into(),
        source: None,
        gap: None,
    }
    .into()
}

pub fn store_event(rows: &Rows, account: AccountId, conversation: ConversationId, event: NewEvent) -> Cursor {
    rows.edit(|t| {
        let id = EventId(t.events.last().map_or(0, |(_, event)| event.id.0) + 1);
        let event = match event {
            NewEvent::Output(o) => LogEvent {
                id,
                conversation_id: conversation,
                turn_id: o.turn_id,
                kind: EventKind::Output,
                stream: Some(o.stream),
                data: o.data,
                stage: Some(Stage::Turn),
                state: None,
                duration_ms: None,
                gap: o.gap,
                at: start(),
            },
            NewEvent::Stage(s) => LogEvent {
                id,
                conversation_id: conversation,
                turn_id: s.turn_id,
                kind: EventKind::Stage,
                stream: None,
                data: Value::Object(s.meta).to_string(),
                stage: Some(s.stage),
                state: Some(s.state),
                duration_ms: s.duration_ms,
                gap: None,
                at: start(),
            },
        };
        t.events.push((account, event));
        Cursor {
            account,
            conversation,
            id,
        }
    })
}

fn uuid(tenant: u64, thing: u64) -> uuid::Uuid {
    uuid::Uuid::from_u64_pair(tenant, thing)
}

fn seed(rows: &Rows, n: u64) -> Tenant {
    let tenant = Tenant {
        account: AccountId(uuid(n, 1)),
        full: format!("ftn_full_{n}"),
        sprite: format!("ftn_sprite_{n}"),
        runner_key: format!("ftn_runner_{n}"),
        full_id: KeyId(uuid(n, 20)),
        agent: AgentId(uuid(n, 2)),
        environment: EnvironmentId(uuid(n, 3)),
        vault: VaultId(uuid(n, 4)),
        machine: MachineId(uuid(n, 5)),
        conversation: ConversationId(uuid(n, 6)),
        other: ConversationId(uuid(n, 7)),
        turn: TurnId(uuid(n, 8)),
        runner: RunnerId(uuid(n, 9)),
    };
    seed_keys(rows, &tenant, n);
    seed_catalog(rows, &tenant, n);
    seed_work(rows, &tenant, n);
    seed_launches(rows, &tenant);
    tenant
}

fn seed_launches(rows: &Rows, tenant: &Tenant) {
    rows.edit(|t| {
        let request = waiting(tenant.account, tenant.agent, tenant.request());
        t.launches.requests.push(request);
        t.launches.schedules.push(Schedule {
            id: tenant.schedule(),
            account_id: tenant.account,
            agent_id: tenant.agent,
            config: ScheduleConfig {
                name: None,
                cron: "@hourly".into(),
                prompt: "go".into(),
                one_off: false,
                enabled: true,
            },
            next_run_at: Some(start()),
            last_run_at: None,
            last_conversation_id: None,
            last_error: None,
            firing: None,
            inserted_at: start(),
            updated_at: start(),
        });
    });
}

fn seed_keys(rows: &Rows, tenant: &Tenant, n: u64) {
    rows.edit(|t| {
        t.accounts.push(Account {
            id: tenant.account,
            email: Some(format!("user{n}@example.com")),
            email_verified_at: Some(start()),
            is_admin: n == 1,
            comped: false,
            sandbox_limit_override: None,
            suspended_at: None,
            deleting_at: None,
            inserted_at: start(),
        });
        let keys = [
            (tenant.full_id, &tenant.full, Scope::Full),
            (KeyId(uuid(n, 21)), &tenant.sprite, Scope::Sprite(tenant.conversation)),
            (KeyId(uuid(n, 22)), &tenant.runner_key, Scope::Runner("mini".into())),
        ];
        for (id, key, scope) in keys {
            let row = ApiKey {
                id,
                account_id: tenant.account,
                name: "seed".into(),
                prefix: key.chars().take(12).collect(),
                scope,
                expires_at: None,
                revoked_at: None,
                last_used_at: None,
                inserted_at: start(),
            };
            t.keys.push((api::auth::digest(key), row));
        }
    });
}

fn seed_catalog(rows: &Rows, tenant: &Tenant, n: u64) {
    rows.edit(|t| {
        t.agents.push(Agent {
            id: tenant.agent,
            account_id: tenant.account,
            config: AgentConfig {
                name: "demo".into(),
                description: String::new(),
                system: String::new(),
                model: None,
                runtime: Runtime::Acp,
                runtime_command: Some("agent".into()),
                sandbox_provider: None,
                sandbox_mode: MachineMode::Ephemeral,
                environment_id: Some(tenant.environment),
                skills: vec![],
                mcp_servers: Map::new(),
                metadata: Map::new(),
                allowed_vault_ids: None,
                allowed_environment_ids: None,
                allowed_inference_credential_ids: None,
                inference_credential_id: None,
                permission_policy: Map::new(),
            },
            version_id: AgentVersionId(uuid(n, 30)),
            version: 1,
            conversation_count: 2,
            inserted_at: start(),
            updated_at: start(),
        });
        t.environments.push(Environment {
            id: tenant.environment,
            account_id: tenant.account,
            config: EnvironmentConfig::named("ci"),
            secret_count: 1,
            agent_count: 1,
            inserted_at: start(),
            updated_at: start(),
        });
        t.vaults.push(Vault {
            id: tenant.vault,
            account_id: tenant.account,
            name: "prod".into(),
            description: String::new(),
            metadata: Map::new(),
            secret_count: 1,
            inserted_at: start(),
            updated_at: start(),
        });
        for (thing, home) in [
            (40, SecretHome::Environment(tenant.environment)),
            (41, SecretHome::Vault(tenant.vault)),
        ] {
            let secret = SecretInfo {
                id: SecretId(uuid(n, thing)),
                key: "TOKEN".into(),
                home,
                expires_at: None,
                inserted_at: start(),
                updated_at: start(),
            };
            t.secrets.push((secret, "hunter2".into()));
        }
        t.runners.push(Runner {
            id: tenant.runner,
            account_id: tenant.account,
            name: "mini".into(),
            details: RunnerDetails {
                hostname: Some("mini.local".into()),
                root: Some("/srv".into()),
                ..Default::default()
            },
            connected_at: Some(start()),
            last_seen_at: Some(start()),
            forgotten_at: None,
            inserted_at: start(),
        });
    });
}

fn seed_work(rows: &Rows, tenant: &Tenant, n: u64) {
    let machine = Machine {
        id: tenant.machine,
        account_id: Some(tenant.account),
        name: format!("fountain-{n}-box"),
        status: MachineStatus::Ready,
        mode: MachineMode::Ephemeral,
        runtime: Some("acp".into()),
        provider: Provider::Runner,
        provider_meta: json!({"root": "/srv/"}),
        transition: None,
        transition_reason: None,
        transition_at: None,
        lease_epoch: Epoch(1),
        lease: None,
        woken_at: None,
        cleanup_pending: false,
        next_attempt_at: None,
        build_fingerprint: None,
        agent_id: Some(tenant.agent),
        environment_id: Some(tenant.environment),
        vault_id: None,
        last_resumed_at: None,
        terminated_at: None,
        inserted_at: start(),
        updated_at: start(),
    };
    rows.edit(|t| {
        let runner = t.runners.iter().find(|r| r.id == tenant.runner).cloned();
        for id in [tenant.conversation, tenant.other] {
            t.conversations.push(view(tenant, id, machine.clone(), runner.clone()));
        }
        let tenants = vec![MachineTenant {
            id: tenant.conversation,
            status: ConversationStatus::Idle,
            runtime: Runtime::Acp,
            title: None,
            mid_turn: false,
            inserted_at: start(),
        }];
        t.machines.push((
            tenant.account,
            MachineView {
                machine,
                runner,
                conversations: tenants,
            },
        ));
        t.turns.push(turn(tenant));
        let image = PromptImage {
            media_type: "image/png".into(),
            bytes: "png".into(),
        };
        t.images.insert(tenant.turn, vec![image]);
    });
}

fn view(tenant: &Tenant, id: ConversationId, machine: Machine, runner: Option<Runner>) -> ConversationView {
    ConversationView {
        conversation: Conversation {
            id,
            account_id: tenant.account,
            status: ConversationStatus::Idle,
            runtime: Runtime::Acp,
            configuration_revision: 0,
            runtime_session_id: None,
            machine_id: tenant.machine,
            agent_id: Some(tenant.agent),
            agent_version_id: None,
            vault_id: None,
            environment_id: None,
            parent_conversation_id: None,
            source: Source::Api,
            channel_id: None,
            title: None,
            labels: BTreeMap::new(),
            model: None,
            sandbox_api_access: SandboxApiAccess::Owner,
            permission_policy: None,
            callback_key_id: None,
            server_epoch: ServerEpoch(1),
            output_bytes: 0,
            usage_input_tokens: 0,
            usage_output_tokens: 0,
            last_active_at: Some(start()),
            last_read_at: None,
            inserted_at: start(),
            updated_at: start(),
        },
        machine,
        runner,
        agent_version: Some(1),
        first_prompt: Some("hi".into()),
        turn_count: 1,
        pending_requests: vec![],
    }
}

fn turn(tenant: &Tenant) -> Turn {
    Turn {
        id: tenant.turn,
        conversation_id: tenant.conversation,
        number: 1,
        prompt: "hi".into(),
        origin: Origin::User,
        client_request_id: Some("c-1".into()),
        status: TurnStatus::Completed,
        started_at: Some(start()),
        ended_at: Some(start()),
        exit_code: None,
        limit_reason: None,
        orphaned_at: None,
        acp_prompt_id: None,
        spawn_id: None,
        pending_permission: None,
        waiting: false,
        pending_until: None,
        reattach_deadline: None,
        reattach_first_loss: None,
        usage: Some(Usage {
            input: 12,
            output: 34,
            ..Usage::default()
        }),
        model_selection: None,
        reply_text: None,
        image_count: 1,
        inserted_at: start(),
    }
}

/// A finished answer.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: web::Bytes,
}

impl Answered {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("no JSON: {:?}", self.bytes))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Status and code, for one-line assertions.
    pub fn code(&self) -> (u16, String) {
        (
            self.status,
            self.json()["error"].as_str().unwrap_or_default().to_owned(),
        )
    }

    /// The fields of a validation.
    pub fn faults(&self) -> Vec<String> {
        assert_eq!(self.code(), (422, "validation_failed".into()), "{:?}", self.bytes);
        self.json()["errors"].as_object().unwrap().keys().cloned().collect()
    }
}

/// Sends a request and reads the whole answer.
pub async fn call<S>(app: &S, request: TestRequest) -> Answered
where
    S: Service<Request, Response = ServiceResponse<BoxBody>, Error = Error>,
{
    let response = match test::try_call_service(app, request.to_request()).await {
        Ok(response) => response.map_into_boxed_body().into_parts().1,
        // What the server itself would do with it.
        Err(error) => actix_web::HttpResponse::from_error(error),
    };
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = to_bytes(response.into_body()).await.unwrap();
    Answered { status, headers, bytes }
}

pub fn request(method: &str, path: &str) -> TestRequest {
    TestRequest::with_uri(path).method(method.parse().unwrap())
}

pub fn signed(method: &str, path: &str, key: &str) -> TestRequest {
    request(method, path).insert_header(("authorization", format!("Bearer {key}")))
}
