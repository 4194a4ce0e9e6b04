//! Fixtures of the machine, conversation, turn and transcript suites: the shortest way to a state of interest, through
//! the verbs themselves.
//!
//! PostgreSQL compares leases by its own clock, so moments here are real ones; a lease is made old by [`Lab::expire`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use diesel::prelude::*;

use fountain::server::SystemClock;
use fountain::store::SqlStore;
use fountain::store::schema::{accounts, agents, conversations, machines, operations, turns, usage_events};
use fountain_actors::domain::account::{Actor, NewAudit, Scope};
use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::{Conversation, ConversationView, SandboxApiAccess, Source};
use fountain_actors::domain::event::{LogEvent, StreamFilter};
use fountain_actors::domain::machine::{DestroyReason, Machine, MachineEvent, MachineMode, Provider};
use fountain_actors::domain::operation::{Outcome, Receipt};
use fountain_actors::domain::process::{Position, Process};
use fountain_actors::domain::turn::{Prompt, Turn};
use fountain_actors::domain::*;
use fountain_actors::ports::Clock;
use fountain_actors::ports::clock::after;
use fountain_actors::ports::store::conversations::{Attach, Launch, Limits, NewConversation, NewMachine};
use fountain_actors::ports::store::machines::{
    Claim, ClaimAnswer, Claimed, Fence, FenceAnswer, Finish, Finished, ParkRule, Patch, Purpose,
};
use fountain_actors::ports::store::transcript::{Effect, Entry, EventQuery, Written};
use fountain_actors::ports::store::turns::{Admit, QueueTurn, Serving};
use fountain_actors::ports::store::{
    Committed, ConversationStore, MachineStore, StoreError, TranscriptStore, TurnStore,
};

use crate::support::{Backend, id};

/// Room for everything.
pub const ROOMY: Limits = Limits::flat(1000, 1000);
pub const TTL: Duration = Duration::from_secs(60);

/// One account with one agent.
pub struct Lab {
    pub db: Backend,
    pub account: AccountId,
    pub agent: AgentId,
    ahead: AtomicI64,
}

/// A lease that a test holds.
#[derive(Clone, Debug)]
pub struct Held {
    pub machine: MachineId,
    pub operation: OperationId,
    pub claimed: Claimed,
}

impl Lab {
    pub async fn all() -> Vec<Self> {
        Backend::all().await.into_iter().map(Self::on).collect()
    }

    pub async fn postgres() -> Option<Self> {
        Backend::postgres().await.map(Self::on)
    }

    fn on(db: Backend) -> Self {
        let mut lab = Self {
            db,
            account: id(),
            agent: id(),
            ahead: AtomicI64::new(0),
        };
        (lab.account, lab.agent) = lab.tenant();
        lab
    }

    /// Another account with an agent, past the verbs.
    pub fn tenant(&self) -> (AccountId, AgentId) {
        let (account, agent): (AccountId, AgentId) = (id(), id());
        let now = self.now().naive_utc();
        let mut raw = self.db.raw();
        diesel::insert_into(accounts::table)
            .values((
                accounts::id.eq(account.to_string()),
                accounts::is_admin.eq(false),
                accounts::comped.eq(false),
                accounts::inserted_at.eq(now),
                accounts::updated_at.eq(now),
            ))
            .execute(&mut raw)
            .unwrap();
        diesel::insert_into(agents::table)
            .values((
                agents::id.eq(agent.to_string()),
                agents::account_id.eq(account.to_string()),
                agents::name.eq("a"),
                agents::runtime.eq("acp"),
                agents::version_id.eq(id::<AgentVersionId>().to_string()),
                agents::version.eq(1_i64),
                agents::config.eq("{}"),
                agents::inserted_at.eq(now),
                agents::updated_at.eq(now),
            ))
            .execute(&mut raw)
            .unwrap();
        (account, agent)
    }

    pub fn store(&self) -> &SqlStore {
        &self.db.store
    }

    /// Strictly later than the last one, and real: PostgreSQL compares leases with its own clock.
    pub fn now(&self) -> Moment {
        let ahead = self.ahead.fetch_add(1, Ordering::Relaxed);
        SystemClock.now() + chrono::TimeDelta::microseconds(ahead)
    }

    pub fn in_seconds(&self, seconds: i64) -> Moment {
        self.now() + chrono::TimeDelta::seconds(seconds)
    }

    pub fn audit(&self, action: &'static str) -> NewAudit {
        crate::support::audit(self.account, action)
    }

    pub fn audited(&self) -> Vec<String> {
        crate::support::audited(&self.db, self.account)
    }

    pub fn new_conversation(&self, of: (AccountId, AgentId)) -> NewConversation {
        NewConversation {
            id: id(),
            account_id: of.0,
            runtime: Runtime::Acp,
            agent_id: of.1,
            agent_version_id: id(),
            environment_id: None,
            vault_id: None,
            parent_conversation_id: None,
            source: Source::Api,
            channel_id: None,
            title: None,
            labels: BTreeMap::new(),
            model: None,
            sandbox_api_access: SandboxApiAccess::Owner,
            permission_policy: None,
        }
    }

    pub fn new_machine(&self, mode: MachineMode) -> NewMachine {
        let machine: MachineId = id();
        NewMachine {
            id: machine,
            name: format!("fountain-{machine}"),
            mode,
            runtime: Runtime::Acp,
            provider: Provider::Fake,
            provider_meta: serde_json::json!({"root": "/srv"}),
            agent_id: self.agent,
            environment_id: None,
            vault_id: None,
        }
    }

    pub fn prompt(&self, text: &str) -> Prompt {
        Prompt {
            text: text.into(),
            images: Vec::new(),
            client_request_id: None,
        }
    }

    pub fn new_launch(&self, mode: MachineMode, prompt: Option<&str>) -> Launch {
        Launch {
            conversation: self.new_conversation((self.account, self.agent)),
            machine: self.new_machine(mode),
            prompt: prompt.map(|text| (id(), self.prompt(text))),
            pending_until: self.in_seconds(3600),
            limits: ROOMY,
            audit: self.audit("conversation.created"),
            now: self.now(),
        }
    }

    pub async fn launch(&self, mode: MachineMode, prompt: Option<&str>) -> ConversationView {
        self.store().launch(self.new_launch(mode, prompt)).await.unwrap().value
    }

    pub fn new_attach(&self, machine: MachineId) -> Attach {
        Attach {
            conversation: self.new_conversation((self.account, self.agent)),
            machine_id: machine,
            environment_id: None,
            scope: Scope::Full,
            audit: self.audit("conversation.created"),
            now: self.now(),
        }
    }

    pub async fn attach(&self, machine: MachineId) -> Result<Committed<ConversationView>, StoreError> {
        self.store().attach(self.new_attach(machine)).await
    }

    pub fn new_claim(&self, machine: MachineId, purpose: Purpose) -> Claim {
        Claim {
            machine_id: machine,
            holder: "node-a/1".into(),
            ttl: TTL,
            purpose,
            operation_id: id(),
            actor: Actor::System("test"),
            stages: Vec::new(),
            now: self.now(),
        }
    }

    pub async fn try_claim(&self, machine: MachineId, purpose: Purpose) -> ClaimAnswer {
        self.store()
            .claim(self.new_claim(machine, purpose))
            .await
            .unwrap()
            .value
    }

    #[track_caller]
    fn held(claim: &Claim, answer: ClaimAnswer) -> Held {
        match answer {
            ClaimAnswer::Claimed(claimed) => Held {
                machine: claim.machine_id,
                operation: claim.operation_id,
                claimed,
            },
            other => panic!("the claim was not had: {other:?}"),
        }
    }

    pub async fn claim(&self, machine: MachineId, purpose: Purpose) -> Held {
        let claim = self.new_claim(machine, purpose);
        let answer = self.store().claim(claim.clone()).await.unwrap().value;
        Self::held(&claim, answer)
    }

    pub fn new_finish(&self, held: &Held, event: Option<MachineEvent>) -> Finish {
        let mut patch = Patch::default();
        if event == Some(MachineEvent::BuildFinished) {
            patch.build_fingerprint = Some("f00d".into());
        }
        Finish {
            machine_id: held.machine,
            epoch: held.claimed.epoch,
            operation_id: held.operation,
            event,
            keep_stamp: false,
            patch,
            receipt: Receipt::of(Outcome::Done),
            learned: true,
            end_turns: None,
            forget_sessions: false,
            stages: Vec::new(),
            audit: Vec::new(),
            usage: None,
            now: self.now(),
        }
    }

    pub async fn finish(&self, held: &Held, event: MachineEvent) -> Finished {
        self.store()
            .finish(self.new_finish(held, Some(event)))
            .await
            .unwrap()
            .value
    }

    pub async fn machine(&self, machine: MachineId) -> Machine {
        self.store().machine(machine).await.unwrap().unwrap()
    }

    pub async fn conversation(&self, conversation: ConversationId) -> Conversation {
        self.store().conversation(conversation).await.unwrap().unwrap()
    }

    /// NEW to UP.
    pub async fn build(&self, machine: MachineId) {
        let held = self.claim(machine, Purpose::Provision).await;
        let epoch = held.claimed.epoch;
        let created = Some(MachineEvent::CreateAnswered);
        self.store()
            .advance(machine, epoch, created, Patch::default(), Vec::new(), self.now())
            .await
            .unwrap();
        self.finish(&held, MachineEvent::BuildFinished).await;
    }

    pub fn park_rule(&self) -> ParkRule {
        ParkRule {
            live_servers: Vec::new(),
            idle_before: None,
            marker_before: None,
        }
    }

    /// UP to ASLEEP.
    pub async fn park(&self, machine: MachineId) {
        let held = self.claim(machine, Purpose::Park(self.park_rule())).await;
        self.finish(&held, MachineEvent::ParkConfirmed).await;
    }

    /// A conversation, idle, on a machine that is up, with a server.
    pub async fn up(&self, mode: MachineMode) -> Serving {
        let view = self.launch(mode, None).await;
        self.build(view.machine.id).await;
        let conversation = view.conversation.id;
        self.store()
            .settle_idle(conversation, view.machine.id, self.now())
            .await
            .unwrap();
        self.serve(conversation).await
    }

    pub async fn serve(&self, conversation: ConversationId) -> Serving {
        self.store().start_server(conversation, self.now()).await.unwrap()
    }

    pub fn new_admit(&self, serving: &Serving) -> Admit {
        Admit {
            conversation_id: serving.conversation.id,
            server_epoch: serving.conversation.server_epoch,
            machine_id: serving.machine.id,
            revision: serving.conversation.configuration_revision,
            turn_id: id(),
            prompt: self.prompt("hello"),
            spawn_id: Some(id()),
            announce: true,
            answers: None,
            deadline: self.in_seconds(60),
            audit: self.audit("conversation.prompted"),
            now: self.now(),
        }
    }

    pub async fn admit(&self, serving: &Serving) -> Turn {
        self.store().admit_turn(self.new_admit(serving)).await.unwrap().value
    }

    pub fn new_queue(&self, serving: &Serving, fresh: Option<NewMachine>) -> QueueTurn {
        QueueTurn {
            account_id: self.account,
            conversation_id: serving.conversation.id,
            turn_id: id(),
            prompt: self.prompt("later"),
            pending_until: self.in_seconds(3600),
            seen_machine: serving.machine.id,
            fresh,
            answers: None,
            limits: ROOMY,
            audit: self.audit("conversation.prompted"),
            now: self.now(),
        }
    }

    pub async fn fence(&self, machine: MachineId, reason: DestroyReason) -> Result<FenceAnswer, StoreError> {
        let fence = Fence {
            machine_id: machine,
            reason,
            actor: Actor::Api,
            request_ip: None,
            reset: reason == DestroyReason::Reset,
            now: self.now(),
        };
        self.store().fence(fence).await.map(|done| done.value)
    }

    /// A process record of a served conversation.
    pub async fn process(&self, serving: &Serving) -> Process {
        let process = Process {
            id: id(),
            account_id: serving.conversation.account_id,
            conversation_id: serving.conversation.id,
            machine_id: serving.machine.id,
            spawn_id: id(),
            session_id: None,
            stdout: Position::default(),
            stderr: Position::default(),
            stop_requested: false,
            ended_at: None,
            inserted_at: self.now(),
        };
        self.store()
            .open_process(process.clone(), serving.conversation.server_epoch)
            .await
            .unwrap();
        process
    }

    pub fn entry(&self, serving: &Serving) -> Entry {
        Entry {
            account_id: serving.conversation.account_id,
            conversation_id: serving.conversation.id,
            server_epoch: serving.conversation.server_epoch,
            rows: Vec::new(),
            advances: Vec::new(),
            effect: None,
            now: self.now(),
        }
    }

    /// Appends one entry with an effect.
    pub async fn effect(&self, serving: &Serving, effect: Effect) -> Written {
        let entry = Entry {
            effect: Some(effect),
            ..self.entry(serving)
        };
        self.store().append(vec![entry]).await.unwrap().remove(0).unwrap()
    }

    pub async fn events(&self, conversation: ConversationId) -> Vec<LogEvent> {
        let query = EventQuery {
            after: EventId(0),
            filter: StreamFilter::default(),
            limit: 1000,
        };
        self.store()
            .events(self.account, conversation, query)
            .await
            .unwrap()
            .events
    }

    /// `stage/state` of every stage event of a conversation, output rows as their stream.
    pub async fn told(&self, conversation: ConversationId) -> Vec<String> {
        let told = |event: LogEvent| match (event.state, event.stream) {
            (Some(state), _) => format!("{}/{state}", event.stage.unwrap()),
            (None, Some(stream)) => stream.to_string(),
            (None, None) => panic!("{event:?}"),
        };
        self.events(conversation).await.into_iter().map(told).collect()
    }

    /// Lets the lease of a machine run out.
    pub fn expire(&self, machine: MachineId) {
        let past = after(Moment::UNIX_EPOCH, Duration::from_secs(1)).naive_utc();
        diesel::update(machines::table.find(machine.to_string()))
            .filter(machines::lease_until.is_not_null())
            .set(machines::lease_until.eq(past))
            .execute(&mut self.db.raw())
            .unwrap();
    }

    /// Sets the age of a machine, and of everything that happened on it.
    pub fn age(&self, machine: MachineId, to: Moment) {
        let mut raw = self.db.raw();
        let then = to.naive_utc();
        diesel::update(machines::table.find(machine.to_string()))
            .set((
                machines::inserted_at.eq(then),
                machines::updated_at.eq(then),
                machines::woken_at.eq(None::<chrono::NaiveDateTime>),
            ))
            .execute(&mut raw)
            .unwrap();
        diesel::update(conversations::table.filter(conversations::machine_id.eq(machine.to_string())))
            .set((
                conversations::updated_at.eq(then),
                conversations::last_active_at.eq(None::<chrono::NaiveDateTime>),
            ))
            .execute(&mut raw)
            .unwrap();
    }

    /// Outcomes of a machine's journal, by epoch.
    pub fn outcomes(&self, machine: MachineId) -> Vec<Option<String>> {
        operations::table
            .filter(operations::machine_id.eq(machine.to_string()))
            .order(operations::epoch)
            .select(operations::outcome)
            .load(&mut self.db.raw())
            .unwrap()
    }

    /// Kinds of the usage rows of the account.
    pub fn used(&self) -> Vec<String> {
        usage_events::table
            .filter(usage_events::account_id.eq(self.account.to_string()))
            .order(usage_events::id)
            .select(usage_events::kind)
            .load(&mut self.db.raw())
            .unwrap()
    }

    /// Sets what an operator sets.
    pub fn limit_account(&self, cap: Option<i64>, suspended: bool) {
        let suspended = suspended.then(|| self.now().naive_utc());
        diesel::update(accounts::table.find(self.account.to_string()))
            .set((
                accounts::sandbox_limit_override.eq(cap),
                accounts::suspended_at.eq(suspended),
            ))
            .execute(&mut self.db.raw())
            .unwrap();
    }

    /// Turns the open turn of a conversation into one that the agent began by itself.
    pub fn make_autonomous(&self, turn: TurnId) {
        diesel::update(turns::table.find(turn.to_string()))
            .set(turns::origin.eq("autonomous"))
            .execute(&mut self.db.raw())
            .unwrap();
    }

    /// Makes a conversation one of another runtime.
    pub fn make_runtime(&self, conversation: ConversationId, runtime: Runtime) {
        diesel::update(conversations::table.find(conversation.to_string()))
            .set(conversations::runtime.eq(runtime.as_str()))
            .execute(&mut self.db.raw())
            .unwrap();
    }
}
