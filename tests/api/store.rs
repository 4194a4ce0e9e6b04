//! An in-memory store: honest about ownership, ids and order, and about nothing else.
//!
//! What the doors never call answers an internal error, so that a new call shows at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fountain_actors::domain::account::*;
use fountain_actors::domain::agent::*;
use fountain_actors::domain::conversation::*;
use fountain_actors::domain::environment::*;
use fountain_actors::domain::event::*;
use fountain_actors::domain::machine::*;
use fountain_actors::domain::operation::Operation;
use fountain_actors::domain::process::Process;
use fountain_actors::domain::runner::*;
use fountain_actors::domain::turn::*;
use fountain_actors::domain::*;
use fountain_actors::ports::store::accounts::*;
use fountain_actors::ports::store::conversations::*;
use fountain_actors::ports::store::machines::*;
use fountain_actors::ports::store::runners::*;
use fountain_actors::ports::store::transcript::*;
use fountain_actors::ports::store::turns::*;
use fountain_actors::ports::store::warm::*;
use fountain_actors::ports::store::{Answer, Committed, Store, StoreError};

#[derive(Default)]
pub struct Tables {
    pub accounts: Vec<Account>,
    pub keys: Vec<([u8; 32], ApiKey)>,
    pub stamps: Vec<(KeyId, Moment)>,
    pub audits: Vec<NewAudit>,
    pub agents: Vec<Agent>,
    pub environments: Vec<Environment>,
    pub vaults: Vec<Vault>,
    pub secrets: Vec<(SecretInfo, String)>,
    pub conversations: Vec<ConversationView>,
    pub turns: Vec<Turn>,
    pub images: HashMap<TurnId, Vec<PromptImage>>,
    pub events: Vec<(AccountId, LogEvent)>,
    pub machines: Vec<(AccountId, MachineView)>,
    pub runners: Vec<Runner>,
    pub launches: crate::store_launches::LaunchTables,
    /// Oldest first.
    pub operations: Vec<Operation>,
}

impl Tables {
    pub fn own_home(&self, account: AccountId, home: SecretHome) -> Result<(), StoreError> {
        let own = match home {
            SecretHome::Environment(id) => self.environments.iter().any(|e| e.id == id && e.account_id == account),
            SecretHome::Vault(id) => self.vaults.iter().any(|v| v.id == id && v.account_id == account),
        };
        own.then_some(()).ok_or(StoreError::NotFound("home"))
    }

    fn own_conversation(&self, account: AccountId, id: ConversationId) -> Result<(), StoreError> {
        let mut rows = self.conversations.iter().map(|view| &view.conversation);
        let own = rows.any(|c| c.id == id && c.account_id == account);
        own.then_some(()).ok_or(StoreError::NotFound("conversation"))
    }
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Rows {
    pub tables: Mutex<Tables>,
    /// Every verb answers `Unavailable` while this is set.
    pub down: AtomicBool,
    /// Every verb panics while this is set.
    pub cursed: AtomicBool,
    /// Event pages read so far.
    pub reads: AtomicUsize,
    /// Runs once, after the next event page was read and before its reader sees it.
    pub hook: Mutex<Option<Hook>>,
}

impl Rows {
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Tables) -> T) -> T {
        edit(&mut self.tables.lock().unwrap())
    }

    pub fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&mut Tables) -> Result<T, StoreError>) -> Answer<'_, T> {
        assert!(!self.cursed.load(Ordering::SeqCst), "the planned panic of a test");
        let answer = if self.down.load(Ordering::SeqCst) {
            Err(StoreError::Unavailable {
                op: "fake",
                detail: "planned".into(),
            })
        } else {
            self.edit(ask)
        };
        Box::pin(async move { answer })
    }

    fn ask_and_hook(&self, ask: impl FnOnce(&mut Tables) -> Result<EventPage, StoreError>) -> Answer<'_, EventPage> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let answer = self.ask(ask);
        if let Some(hook) = self.hook.lock().unwrap().take() {
            hook();
        }
        answer
    }
}

pub fn not_here<T: 'static>(op: &'static str) -> Answer<'static, T> {
    Box::pin(async move {
        Err(StoreError::Internal {
            op,
            detail: "the doors do not call this".into(),
        })
    })
}

pub fn plain<T>(value: T) -> Committed<T> {
    Committed {
        value,
        cursors: Vec::new(),
    }
}

fn page<'a>(events: impl Iterator<Item = &'a LogEvent>, query: EventQuery) -> EventPage {
    let mut page = EventPage {
        reached: query.after,
        ..EventPage::default()
    };
    for event in events.filter(|event| event.id > query.after) {
        if page.events.len() as i64 == query.limit {
            page.has_more = true;
            break;
        }
        page.reached = event.id;
        if query.filter.admits(event) {
            page.events.push(event.clone());
        }
    }
    page
}

impl Store for Rows {
    fn ping(&self) -> Answer<'_, ()> {
        self.ask(|_| Ok(()))
    }
}

impl AccountStore for Rows {
    fn create_account(&self, _: NewAccount) -> Answer<'_, Account> {
        not_here("create_account")
    }
    fn account(&self, _: AccountId) -> Answer<'_, Option<Account>> {
        not_here("account")
    }
    fn account_by_email(&self, _: String) -> Answer<'_, Option<Account>> {
        not_here("account_by_email")
    }
    fn count_accounts(&self) -> Answer<'_, i64> {
        not_here("count_accounts")
    }
    fn key_by_hash(&self, sha256: [u8; 32]) -> Answer<'_, Option<(ApiKey, Account)>> {
        self.ask(|t| {
            let found = t
                .keys
                .iter()
                .find(|(hash, _)| *hash == sha256)
                .map(|(_, key)| key.clone());
            Ok(found.map(|key| {
                let account = t.accounts.iter().find(|a| a.id == key.account_id).cloned();
                (key, account.expect("every key has its account"))
            }))
        })
    }
    fn create_key(&self, key: NewApiKey, audit: Option<NewAudit>, now: Moment) -> Answer<'_, ApiKey> {
        self.ask(|t| {
            t.audits.extend(audit);
            let row = ApiKey {
                id: key.id,
                account_id: key.account_id,
                name: key.name,
                prefix: key.prefix,
                scope: key.scope,
                expires_at: key.expires_at,
                revoked_at: None,
                last_used_at: None,
                inserted_at: now,
            };
            t.keys.push((key.sha256, row.clone()));
            Ok(row)
        })
    }
    fn keys(&self, account: AccountId, now: Moment) -> Answer<'_, Vec<ApiKey>> {
        self.ask(|t| {
            let shown = |key: &&ApiKey| {
                key.account_id == account
                    && key.revoked_at.is_none()
                    && key.expires_at.is_none_or(|end| end > now)
                    && !matches!(key.scope, Scope::Sprite(_))
            };
            Ok(t.keys.iter().map(|(_, key)| key).filter(shown).rev().cloned().collect())
        })
    }
    fn revoke_key(&self, account: AccountId, key: KeyId, audit: Option<NewAudit>, now: Moment) -> Answer<'_, ApiKey> {
        self.ask(|t| {
            let found = t
                .keys
                .iter_mut()
                .map(|(_, row)| row)
                .find(|row| row.id == key && row.account_id == account);
            let row = found.ok_or(StoreError::NotFound("key"))?;
            row.revoked_at.get_or_insert(now);
            t.audits.extend(audit);
            Ok(row.clone())
        })
    }
    fn stamp_keys(&self, used: Vec<(KeyId, Moment)>) -> Answer<'_, ()> {
        self.ask(|t| {
            t.stamps.extend(used);
            Ok(())
        })
    }
    fn mint_callback_key(&self, _: ConversationId, _: ServerEpoch, _: NewApiKey, _: Moment) -> Answer<'_, ApiKey> {
        not_here("mint_callback_key")
    }
    fn audit(&self, _: NewAudit, _: Moment) -> Answer<'_, Committed<()>> {
        not_here("audit")
    }
}

impl ConversationStore for Rows {
    fn launch(&self, _: Launch) -> Answer<'_, Committed<ConversationView>> {
        not_here("launch")
    }
    fn attach(&self, _: Attach) -> Answer<'_, Committed<ConversationView>> {
        not_here("attach")
    }
    fn home_of(
        &self,
        _: AccountId,
        _: AgentId,
        _: Option<EnvironmentId>,
        _: Option<VaultId>,
        _: Runtime,
    ) -> Answer<'_, Option<MachineId>> {
        not_here("home_of")
    }
    fn channel_conversation(
        &self,
        account: AccountId,
        channel: String,
        agent: AgentId,
        vault: Option<VaultId>,
        environment: Option<EnvironmentId>,
    ) -> Answer<'_, Option<Conversation>> {
        self.ask(|t| {
            let rows = t.conversations.iter().map(|view| &view.conversation);
            let mut found = rows.filter(|c| {
                c.account_id == account
                    && c.channel_id.as_deref() == Some(&channel)
                    && (c.agent_id, c.vault_id, c.environment_id) == (Some(agent), vault, environment)
            });
            Ok(found.next_back().cloned())
        })
    }
    fn conversation(&self, id: ConversationId) -> Answer<'_, Option<Conversation>> {
        self.ask(|t| {
            Ok(t.conversations
                .iter()
                .map(|v| &v.conversation)
                .find(|c| c.id == id)
                .cloned())
        })
    }
    fn conversation_view(&self, account: AccountId, id: ConversationId) -> Answer<'_, Option<ConversationView>> {
        self.ask(|t| {
            let found = t
                .conversations
                .iter()
                .find(|v| v.conversation.id == id && v.conversation.account_id == account);
            Ok(found.cloned())
        })
    }
    fn conversation_views(&self, account: AccountId, filter: ConversationFilter) -> Answer<'_, Vec<ConversationView>> {
        self.ask(|t| {
            let wanted = |view: &&ConversationView| {
                let row = &view.conversation;
                row.account_id == account
                    && (filter.statuses.is_empty() || filter.statuses.contains(&row.status))
                    && filter
                        .labels
                        .iter()
                        .all(|(key, value)| row.labels.get(key) == Some(value))
                    && (!filter.roots_only || row.parent_conversation_id.is_none())
                    && filter.agent_id.is_none_or(|id| row.agent_id == Some(id))
                    && filter.machine_id.is_none_or(|id| row.machine_id == id)
            };
            let limit = filter.limit.map_or(usize::MAX, |limit| limit as usize);
            Ok(t.conversations.iter().filter(wanted).take(limit).cloned().collect())
        })
    }
    fn merge_labels(
        &self,
        account: AccountId,
        id: ConversationId,
        changes: BTreeMap<String, Option<String>>,
        now: Moment,
    ) -> Answer<'_, Conversation> {
        self.ask(|t| {
            let mut rows = t.conversations.iter_mut().map(|view| &mut view.conversation);
            let row = rows
                .find(|c| c.id == id && c.account_id == account)
                .ok_or(StoreError::NotFound("conversation"))?;
            for (key, value) in changes {
                match value {
                    Some(value) => row.labels.insert(key, value),
                    None => row.labels.remove(&key),
                };
            }
            row.updated_at = now;
            Ok(row.clone())
        })
    }
    fn mark_read(&self, account: AccountId, id: ConversationId, now: Moment) -> Answer<'_, ()> {
        self.ask(|t| {
            let mut rows = t.conversations.iter_mut().map(|view| &mut view.conversation);
            let row = rows
                .find(|c| c.id == id && c.account_id == account)
                .ok_or(StoreError::NotFound("conversation"))?;
            row.last_read_at = Some(now);
            Ok(())
        })
    }
    fn terminate(
        &self,
        _: AccountId,
        _: ConversationId,
        _: Actor,
        _: Option<String>,
        _: Moment,
    ) -> Answer<'_, Committed<Ended>> {
        not_here("terminate")
    }
    fn delete_conversation(&self, _: AccountId, _: ConversationId, _: NewAudit, _: Moment) -> Answer<'_, ()> {
        not_here("delete_conversation")
    }
}

impl TurnStore for Rows {
    fn start_server(&self, _: ConversationId, _: Moment) -> Answer<'_, Serving> {
        not_here("start_server")
    }
    fn admit_turn(&self, _: Admit) -> Answer<'_, Committed<Turn>> {
        not_here("admit_turn")
    }
    fn queue_turn(&self, _: QueueTurn) -> Answer<'_, Committed<(Turn, Machine)>> {
        not_here("queue_turn")
    }
    fn open_pending_turn(
        &self,
        _: ConversationId,
        _: ServerEpoch,
        _: MachineId,
        _: TurnId,
        _: SpawnId,
        _: Moment,
    ) -> Answer<'_, Committed<Turn>> {
        not_here("open_pending_turn")
    }
    fn close_turn(
        &self,
        _: ConversationId,
        _: Ending,
        _: Option<MachineId>,
        _: bool,
    ) -> Answer<'_, Committed<Option<Turn>>> {
        not_here("close_turn")
    }
    fn settle_idle(&self, _: ConversationId, _: MachineId, _: Moment) -> Answer<'_, ()> {
        not_here("settle_idle")
    }
    fn fail_pending(&self, _: ConversationId, _: MachineId, _: Moment) -> Answer<'_, ()> {
        not_here("fail_pending")
    }
    fn interrupt(&self, _: AccountId, _: ConversationId, _: NewAudit, _: Moment) -> Answer<'_, Committed<Interrupted>> {
        not_here("interrupt")
    }
    fn orphan_running(
        &self,
        _: ConversationId,
        _: Option<MachineId>,
        _: OrphanReason,
        _: Moment,
    ) -> Answer<'_, Committed<Option<Turn>>> {
        not_here("orphan_running")
    }
    fn turns(&self, account: AccountId, conversation: ConversationId) -> Answer<'_, Vec<Turn>> {
        self.ask(|t| {
            t.own_conversation(account, conversation)?;
            Ok(t.turns
                .iter()
                .filter(|turn| turn.conversation_id == conversation)
                .cloned()
                .collect())
        })
    }
    fn prompt_images(&self, turn: TurnId) -> Answer<'_, Vec<PromptImage>> {
        self.ask(|t| Ok(t.images.get(&turn).cloned().unwrap_or_default()))
    }
    fn adoptable(&self, _: i64) -> Answer<'_, Vec<Adoptable>> {
        not_here("adoptable")
    }
    fn open_reconnect_window(&self, _: TurnId, _: Moment, _: Moment, _: std::time::Duration) -> Answer<'_, Moment> {
        not_here("open_reconnect_window")
    }
    fn close_reconnect_window(&self, _: TurnId) -> Answer<'_, ()> {
        not_here("close_reconnect_window")
    }
    fn overdue_turns(&self, _: Moment, _: i64) -> Answer<'_, Vec<Adoptable>> {
        not_here("overdue_turns")
    }
    fn answer_permission(
        &self,
        _: AccountId,
        _: ConversationId,
        _: String,
        _: String,
        _: Actor,
        _: Moment,
    ) -> Answer<'_, (TurnId, PendingPermission)> {
        not_here("answer_permission")
    }
    fn expire_permission(&self, _: TurnId, _: String, _: Moment) -> Answer<'_, Option<PendingPermission>> {
        not_here("expire_permission")
    }
    fn expired_permissions(&self, _: Moment, _: i64) -> Answer<'_, Vec<(ConversationId, TurnId, String)>> {
        not_here("expired_permissions")
    }
    fn open_process(&self, _: Process, _: ServerEpoch) -> Answer<'_, ()> {
        not_here("open_process")
    }
    fn bind_session(&self, _: ProcessId, _: String) -> Answer<'_, ()> {
        not_here("bind_session")
    }
    fn request_stop(&self, _: ProcessId) -> Answer<'_, ()> {
        not_here("request_stop")
    }
    fn end_process(&self, _: ProcessId, _: Moment) -> Answer<'_, ()> {
        not_here("end_process")
    }
    fn processes_to_stop(&self, _: MachineId) -> Answer<'_, Vec<Process>> {
        not_here("processes_to_stop")
    }
}

impl TranscriptStore for Rows {
    fn append(&self, _: Vec<Entry>) -> Answer<'_, Vec<Result<Written, StoreError>>> {
        not_here("append")
    }
    fn events(&self, account: AccountId, conversation: ConversationId, query: EventQuery) -> Answer<'_, EventPage> {
        self.ask_and_hook(|t| {
            t.own_conversation(account, conversation)?;
            Ok(page(
                t.events
                    .iter()
                    .map(|(_, event)| event)
                    .filter(|e| e.conversation_id == conversation),
                query,
            ))
        })
    }
    fn account_events(&self, account: AccountId, query: EventQuery) -> Answer<'_, EventPage> {
        self.ask_and_hook(|t| {
            Ok(page(
                t.events.iter().filter(|(of, _)| *of == account).map(|(_, event)| event),
                query,
            ))
        })
    }
    fn last_event(&self, account: AccountId, conversation: ConversationId) -> Answer<'_, EventId> {
        self.ask(|t| {
            t.own_conversation(account, conversation)?;
            let ids = t
                .events
                .iter()
                .filter(|(_, e)| e.conversation_id == conversation)
                .map(|(_, e)| e.id);
            Ok(ids.max().unwrap_or_default())
        })
    }
    /// Acp lines of one turn, in order, for its reply text after a restart.
    fn turn_output(&self, _: TurnId) -> Answer<'_, Vec<LogEvent>> {
        not_here("last_account_event")
    }
}

impl MachineStore for Rows {
    fn machine(&self, _: MachineId) -> Answer<'_, Option<Machine>> {
        not_here("machine")
    }
    fn lease_clock(&self, _: Moment) -> Answer<'_, Moment> {
        not_here("lease_clock")
    }
    fn machine_views(&self, account: AccountId, statuses: Vec<MachineStatus>) -> Answer<'_, Vec<MachineView>> {
        self.ask(|t| {
            let mine = t.machines.iter().filter(|(of, _)| *of == account).map(|(_, view)| view);
            let wanted = mine.filter(|view| statuses.is_empty() || statuses.contains(&view.machine.status));
            Ok(wanted.cloned().collect())
        })
    }
    fn machine_view(&self, account: AccountId, id: MachineId) -> Answer<'_, Option<MachineView>> {
        self.ask(|t| {
            let found = t
                .machines
                .iter()
                .find(|(of, view)| *of == account && view.machine.id == id);
            Ok(found.map(|(_, view)| view.clone()))
        })
    }
    fn claim(&self, _: Claim) -> Answer<'_, Committed<ClaimAnswer>> {
        not_here("claim")
    }
    fn renew(&self, _: MachineId, _: Epoch, _: String, _: Duration, _: Moment) -> Answer<'_, ()> {
        not_here("renew")
    }
    fn advance(
        &self,
        _: MachineId,
        _: Epoch,
        _: Option<MachineEvent>,
        _: Patch,
        _: Vec<(ConversationId, NewStage)>,
        _: Moment,
    ) -> Answer<'_, Committed<Machine>> {
        not_here("advance")
    }
    fn finish(&self, _: Finish) -> Answer<'_, Committed<Finished>> {
        not_here("finish")
    }
    fn release(&self, _: MachineId, _: Epoch) -> Answer<'_, ()> {
        not_here("release")
    }
    fn fence(&self, _: Fence) -> Answer<'_, Committed<FenceAnswer>> {
        not_here("fence")
    }
    fn retire_lost(&self, _: Finish) -> Answer<'_, Committed<Finished>> {
        not_here("retire_lost")
    }
    fn postpone(&self, _: MachineId, _: Moment) -> Answer<'_, ()> {
        not_here("postpone")
    }
    fn doomed(&self, _: Moment, _: Moment, _: i64) -> Answer<'_, Vec<Machine>> {
        not_here("doomed")
    }
    fn parkable(&self, _: Moment, _: Option<Moment>, _: Option<Moment>, _: Moment, _: i64) -> Answer<'_, Vec<Machine>> {
        not_here("parkable")
    }
    fn abandoned(&self, _: Moment, _: Moment, _: i64) -> Answer<'_, Vec<Machine>> {
        not_here("abandoned")
    }
    fn end_dead_leases(&self, _: String) -> Answer<'_, u64> {
        not_here("end_dead_leases")
    }
    fn operations(&self, _: AccountId, _: MachineId, _: i64) -> Answer<'_, Vec<Operation>> {
        not_here("operations")
    }
    fn live_names(&self, _: Provider) -> Answer<'_, BTreeSet<String>> {
        not_here("live_names")
    }
    fn census(&self) -> Answer<'_, Census> {
        not_here("census")
    }
}

impl RunnerStore for Rows {
    fn dial_runner(
        &self,
        _: AccountId,
        _: RunnerId,
        _: String,
        _: RunnerDetails,
        _: Moment,
    ) -> Answer<'_, (Runner, bool)> {
        not_here("dial_runner")
    }
    fn runners(&self, account: AccountId) -> Answer<'_, Vec<Runner>> {
        self.ask(|t| {
            let shown = |r: &&Runner| r.account_id == account && r.forgotten_at.is_none();
            Ok(t.runners.iter().filter(shown).cloned().collect())
        })
    }
    fn runner(&self, _: RunnerId) -> Answer<'_, Option<Runner>> {
        not_here("runner")
    }
    fn forget_runner(&self, account: AccountId, id: RunnerId, now: Moment) -> Answer<'_, Runner> {
        self.ask(|t| {
            let found = t.runners.iter_mut().find(|r| r.id == id && r.account_id == account);
            let runner = found.ok_or(StoreError::NotFound("runner"))?;
            runner.forgotten_at = Some(now);
            Ok(runner.clone())
        })
    }
    fn touch_runners(&self, _: Vec<RunnerId>, _: Moment) -> Answer<'_, ()> {
        not_here("touch_runners")
    }
}

impl WarmStore for Rows {
    fn environment_checkpoint(&self, _: AccountId, _: EnvironmentId) -> Answer<'_, Option<EnvironmentCheckpoint>> {
        not_here("environment_checkpoint")
    }
    fn record_checkpoint(&self, _: AccountId, _: EnvironmentId, _: EnvironmentCheckpoint) -> Answer<'_, Recorded> {
        not_here("record_checkpoint")
    }
    fn clear_checkpoint(&self, _: AccountId, _: EnvironmentId, _: EnvironmentCheckpoint) -> Answer<'_, bool> {
        not_here("clear_checkpoint")
    }
    fn distrust_checkpoints(&self, _: String, _: Moment) -> Answer<'_, ()> {
        not_here("distrust_checkpoints")
    }
    fn checkpoints_distrusted(&self, _: String, _: Moment) -> Answer<'_, bool> {
        not_here("checkpoints_distrusted")
    }
}
