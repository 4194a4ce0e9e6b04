//! The reference adapter in memory: honest by default, wrong by plan, and it remembers everything.
//!
//! A request takes effect whether or not its caller still waits, as at a real provider: a slow call that was dropped
//! still happens. Suspending stops the processes of a machine; its disk stays.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use tokio::time::Instant;

use super::faults::{Fault, LogEntry, Logged, Op};
use super::process::{Program, Spawn, Stdio, vocabulary};
use super::sessions::{FakeSession, Pipe, Replay, closed};
use crate::domain::Epoch;
use crate::domain::machine::Provider;
use crate::ports::Clock;
use crate::ports::sandbox::*;

/// What a machine's disk holds: contents and modes by path.
pub(super) type Files = BTreeMap<String, (Bytes, Option<u32>)>;

/// A fake machine.
pub(super) struct FakeMachine {
    pub state: RunState,
    /// Tells one disk of a name from the next.
    pub disk: u64,
    pub files: Files,
    pub sessions: Vec<FakeSession>,
    pub policy: Option<NetworkPolicy>,
}

impl FakeMachine {
    pub fn new(disk: u64) -> Self {
        Self {
            state: RunState::Running,
            disk,
            files: BTreeMap::new(),
            sessions: Vec::new(),
            policy: None,
        }
    }

    pub fn stop_processes(&mut self) {
        for session in &mut self.sessions {
            session.exit(137);
        }
    }

    /// The two programs that every fake machine has, because somebody must be able to look at its files: `cat PATH` and
    /// `stat -c %a PATH`. None for any other command.
    pub fn looked_at(&self, command: &str, arguments: &[String]) -> Option<ExecOutput> {
        let path = match (command, arguments) {
            ("cat", [path]) => path,
            ("stat", [flag, format, path]) if flag == "-c" && format == "%a" => path,
            _ => return None,
        };
        let Some((content, mode)) = self.files.get(path) else {
            // The complaint went to stderr.
            return Some(ExecOutput {
                output: Bytes::new(),
                code: 1,
            });
        };
        let output = match command {
            "cat" => content.clone(),
            _ => format!("{:o}\n", mode.unwrap_or(0o644)).into(),
        };
        Some(ExecOutput { output, code: 0 })
    }
}

pub(super) struct Inner {
    pub machines: BTreeMap<String, FakeMachine>,
    faults: HashMap<Op, VecDeque<Fault>>,
    log: Vec<LogEntry>,
    /// Of disks, sessions and attachments.
    next: u64,
    offline: bool,
    honours_epochs: bool,
    highest: HashMap<String, Epoch>,
    pub capabilities: BTreeSet<Capability>,
    /// Disks, by global id; they outlive their machine.
    pub checkpoints: BTreeMap<String, Files>,
    pub marks_replay: bool,
    /// `get` says that a machine exists, never how it is (RUL-L-115).
    pub is_vague: bool,
    /// Names in one page of a listing.
    pub page_size: usize,
    program: Program,
}

impl Inner {
    pub fn draw(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn machine(&mut self, name: &str) -> Result<&mut FakeMachine, SandboxError> {
        self.machines.get_mut(name).ok_or(SandboxError::NotFound)
    }

    /// A machine that can run something.
    pub fn running(&mut self, name: &str) -> Result<&mut FakeMachine, SandboxError> {
        let machine = self.machine(name)?;
        if machine.state == RunState::Suspended {
            return Err(SandboxError::Unavailable("the machine is suspended".into()));
        }
        Ok(machine)
    }

    /// Refuses what this provider does not offer.
    pub fn offers(&self, capability: Capability) -> Result<(), SandboxError> {
        if self.capabilities.contains(&capability) {
            Ok(())
        } else {
            Err(SandboxError::NotSupported)
        }
    }

    pub fn session(&mut self, machine: &str, session: &str) -> Result<&mut FakeSession, SandboxError> {
        let machine = self.machine(machine)?;
        machine
            .sessions
            .iter_mut()
            .find(|known| known.id == session)
            .ok_or(SandboxError::NotFound)
    }
}

/// What the adapter, its processes and its late effects share.
pub(super) struct State {
    inner: Mutex<Inner>,
    clock: Arc<dyn Clock>,
    origin: Instant,
}

impl State {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, op: Op, what: Logged, machine: &str, epoch: Option<Epoch>, answer: &'static str) {
        let entry = LogEntry {
            at: self.origin.elapsed(),
            op,
            what,
            machine: machine.to_owned(),
            epoch,
            answer,
        };
        self.lock().log.push(entry);
    }

    pub(super) fn emit(&self, machine: &str, session: &str, pipe: Pipe, bytes: Bytes) {
        let now = self.clock.now();
        if let Ok(session) = self.lock().session(machine, session) {
            session.emit(pipe, bytes, now);
        }
    }

    pub(super) fn exit(&self, machine: &str, session: &str, code: i64) {
        if let Ok(session) = self.lock().session(machine, session) {
            session.exit(code);
        }
    }

    pub(super) fn end_without_verdict(&self, machine: &str, session: &str) {
        if let Ok(session) = self.lock().session(machine, session) {
            session.end(Err(closed()));
        }
    }

    pub(super) fn drop_connections(&self, machine: &str, session: &str) {
        if let Ok(session) = self.lock().session(machine, session) {
            session.drop_connections(&closed());
        }
    }

    pub(super) fn is_over(&self, machine: &str, session: &str) -> bool {
        self.lock()
            .session(machine, session)
            .map_or(true, |session| session.verdict.is_some())
    }

    /// Whether a request of this epoch comes too late (RUL-L-2).
    fn refuses(&self, machine: &str, epoch: Option<Epoch>) -> bool {
        let mut inner = self.lock();
        let (true, Some(epoch)) = (inner.honours_epochs, epoch) else {
            return false;
        };
        let highest = inner.highest.entry(machine.to_owned()).or_default();
        let refused = epoch < *highest;
        *highest = epoch.max(*highest);
        refused
    }

    fn apply<T>(
        &self,
        request: &Request,
        effect: impl FnOnce(&Self) -> Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        let Request {
            op,
            machine,
            epoch,
            weather,
        } = request;
        let done = if self.refuses(machine, *epoch) {
            Err(SandboxError::Invalid(STALE_EPOCH.into()))
        } else {
            effect(self)
        };
        if done.is_ok() {
            self.note(*op, Logged::Effect, machine, *epoch, "");
            if let Some(weather) = weather {
                weather.effect(*op, machine, *epoch);
            }
        }
        done
    }
}

#[derive(Clone)]
struct Request {
    op: Op,
    machine: String,
    epoch: Option<Epoch>,
    weather: Option<Arc<dyn Weather>>,
}

/// What stands between one replica and the provider in the simulation (DESIGN 9).
pub trait Weather: Send + Sync {
    /// Before anything is sent: a dead replica sends nothing, and one that was frozen finds its connection gone (false).
    fn leaving(&self) -> LocalBoxFuture<'_, bool>;
    /// A request leaves the replica now, and may take effect whatever becomes of its sender.
    fn sent(&self, op: Op, machine: &str, epoch: Option<Epoch>);
    /// What befalls it, when no test planned anything.
    fn fault(&self, op: Op, machine: &str) -> Option<Fault>;
    /// It took effect.
    fn effect(&self, op: Op, machine: &str, epoch: Option<Epoch>);
    /// Before the answer reaches its asker: a frozen replica hears it later, a dead one never.
    fn answered(&self) -> LocalBoxFuture<'_, ()>;
}

/// The provider.
#[derive(Clone)]
pub struct FakeSandbox {
    pub(super) provider: Provider,
    pub(super) state: Arc<State>,
    weather: Option<Arc<dyn Weather>>,
}

impl FakeSandbox {
    /// A provider without machines, with the capabilities of sandbox-contract 4; see [`Self::offering`] for more.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        use Capability as C;
        let inner = Inner {
            machines: BTreeMap::new(),
            faults: HashMap::new(),
            log: Vec::new(),
            next: 0,
            offline: false,
            honours_epochs: false,
            highest: HashMap::new(),
            capabilities: BTreeSet::from([
                C::Suspend,
                C::NetworkPolicy,
                C::Attach,
                C::PublicUrl,
                C::TerminateSession,
                C::ForceTerminateSession,
                C::CreateNew,
            ]),
            checkpoints: BTreeMap::new(),
            marks_replay: true,
            is_vague: false,
            page_size: 1_000,
            program: vocabulary(),
        };
        Self {
            provider: Provider::Fake,
            state: Arc::new(State {
                inner: Mutex::new(inner),
                clock,
                origin: Instant::now(),
            }),
            weather: None,
        }
    }

    /// The same provider, as one replica reaches it.
    #[must_use]
    pub fn through(&self, weather: Arc<dyn Weather>) -> Self {
        Self {
            weather: Some(weather),
            ..self.clone()
        }
    }

    /// Stands in for another provider.
    #[must_use]
    pub fn as_provider(mut self, provider: Provider) -> Self {
        self.provider = provider;
        self
    }

    /// What spawned commands run from now on.
    #[must_use]
    pub fn with_program(self, program: Program) -> Self {
        self.state.lock().program = program;
        self
    }

    #[must_use]
    pub fn without(self, capability: Capability) -> Self {
        self.state.lock().capabilities.remove(&capability);
        self
    }

    /// Offers more than the contract's fake, for example checkpoints.
    #[must_use]
    pub fn offering(self, capability: Capability) -> Self {
        self.state.lock().capabilities.insert(capability);
        self
    }

    /// Says of a machine only that it exists.
    #[must_use]
    pub fn vague(self) -> Self {
        self.state.lock().is_vague = true;
        self
    }

    /// Lists so many names in a page.
    #[must_use]
    pub fn paging(self, names: usize) -> Self {
        self.state.lock().page_size = names;
        self
    }

    /// Somebody made machines that nobody here knows.
    pub fn plant(&self, names: impl IntoIterator<Item = String>) {
        let mut inner = self.state.lock();
        for name in names {
            let disk = inner.draw();
            inner.machines.insert(name, FakeMachine::new(disk));
        }
    }

    /// The ids of the checkpoints that exist.
    pub fn checkpoints(&self) -> Vec<String> {
        self.state.lock().checkpoints.keys().cloned().collect()
    }

    /// From now on every checkpoint id means another disk (field-lessons P77).
    pub fn mix_up_checkpoints(&self) {
        for disk in self.state.lock().checkpoints.values_mut() {
            disk.clear();
        }
    }

    /// Refuses requests of an older epoch, as our own servers do (RUL-L-2).
    #[must_use]
    pub fn honouring_epochs(self) -> Self {
        self.state.lock().honours_epochs = true;
        self
    }

    /// Attachments are not told where their replay ends.
    #[must_use]
    pub fn without_replay_end(self) -> Self {
        self.state.lock().marks_replay = false;
        self
    }

    /// Plans a fault for the next call of `op` that has none yet.
    pub fn plan(&self, op: Op, fault: Fault) {
        self.state.lock().faults.entry(op).or_default().push_back(fault);
    }

    /// Faults that were planned and did not happen: a test that leaves one has not tested it.
    pub fn unused_faults(&self) -> usize {
        self.state.lock().faults.values().map(VecDeque::len).sum()
    }

    /// Nobody can be reached; every call is refused as `runner_offline` before it is sent.
    pub fn set_offline(&self, offline: bool) {
        let mut inner = self.state.lock();
        inner.offline = offline;
        if offline {
            let gone = SandboxError::Unavailable(RUNNER_DISCONNECTED.into());
            for session in inner.machines.values_mut().flat_map(|machine| &mut machine.sessions) {
                session.drop_connections(&gone);
            }
        }
    }

    /// The provider loses a machine.
    pub fn lose(&self, name: &str) {
        if let Some(mut machine) = self.state.lock().machines.remove(name) {
            machine.stop_processes();
        }
    }

    /// The provider suspends a machine that nobody asked it to suspend.
    pub fn stop(&self, name: &str) {
        if let Some(machine) = self.state.lock().machines.get_mut(name) {
            machine.state = RunState::Suspended;
            machine.stop_processes();
        }
    }

    /// Every attachment of a machine's live sessions ends without a verdict.
    pub fn drop_connections(&self, name: &str) {
        if let Some(machine) = self.state.lock().machines.get_mut(name) {
            for session in &mut machine.sessions {
                session.drop_connections(&closed());
            }
        }
    }

    /// The names of the machines that exist: what costs money.
    pub fn machines(&self) -> Vec<String> {
        self.state.lock().machines.keys().cloned().collect()
    }

    /// How a machine is; None when there is none.
    pub fn run_state(&self, name: &str) -> Option<RunState> {
        self.state.lock().machines.get(name).map(|machine| machine.state)
    }

    /// Which disk a machine has: another number is another disk.
    pub fn disk(&self, name: &str) -> Option<u64> {
        self.state.lock().machines.get(name).map(|machine| machine.disk)
    }

    /// A file of a machine, with its mode.
    pub fn file(&self, name: &str, path: &str) -> Option<(Bytes, Option<u32>)> {
        self.state.lock().machines.get(name)?.files.get(path).cloned()
    }

    /// The policy in force; None when none was ever applied.
    pub fn policy(&self, name: &str) -> Option<NetworkPolicy> {
        self.state.lock().machines.get(name)?.policy.clone()
    }

    /// Sessions of a machine that have not ended.
    pub fn live_sessions(&self, name: &str) -> Vec<Session> {
        let inner = self.state.lock();
        let sessions = inner.machines.get(name).map(|machine| machine.sessions.iter());
        sessions
            .into_iter()
            .flatten()
            .filter(|session| session.verdict.is_none())
            .map(FakeSession::listed)
            .collect()
    }

    /// Everything that was asked and done, in order.
    pub fn log(&self) -> Vec<LogEntry> {
        self.state.lock().log.clone()
    }

    /// How often `op` was asked for.
    pub fn requests(&self, op: Op) -> usize {
        self.count(op, Logged::Requested)
    }

    /// How often `op` took effect.
    pub fn effects(&self, op: Op) -> usize {
        self.count(op, Logged::Effect)
    }

    fn count(&self, op: Op, what: Logged) -> usize {
        let inner = self.state.lock();
        inner
            .log
            .iter()
            .filter(|entry| entry.op == op && entry.what == what)
            .count()
    }

    /// One request with its faults. The effect belongs to the provider, not to the caller's future.
    pub(super) async fn perform<T: Send + 'static>(
        &self,
        op: Op,
        machine: &str,
        epoch: Option<Epoch>,
        effect: impl FnOnce(&State) -> Result<T, SandboxError> + Send + 'static,
    ) -> Result<T, SandboxError> {
        let request = Request {
            op,
            machine: machine.to_owned(),
            epoch,
            weather: self.weather.clone(),
        };
        if let Some(weather) = &self.weather {
            if !weather.leaving().await {
                return Err(SandboxError::Unavailable(NOT_CONNECTED.into()));
            }
            weather.sent(op, machine, epoch);
        }
        self.state.note(op, Logged::Requested, machine, epoch, "");
        let (offline, fault) = {
            let mut inner = self.state.lock();
            let offline = inner.offline;
            let planned = inner.faults.get_mut(&op).filter(|_| !offline);
            (offline, planned.and_then(VecDeque::pop_front))
        };
        let drawn = || self.weather.as_ref()?.fault(op, machine);
        let fault = fault.or_else(drawn);
        let lost = || SandboxError::Unavailable("the answer was lost".into());
        let answer = match fault {
            _ if offline => Err(SandboxError::Unavailable(RUNNER_OFFLINE.into())),
            None => self.state.apply(&request, effect),
            Some(Fault::Slow(delay)) => self
                .later(&request, delay, effect)
                .await
                .unwrap_or_else(|_| Err(lost())),
            Some(Fault::LateSuccess(delay)) => {
                drop(self.later(&request, delay, effect));
                Err(lost())
            }
            Some(Fault::LostAnswer) => self.state.apply(&request, effect).and_then(|_| Err(lost())),
            Some(Fault::Refused(error)) => Err(error),
            Some(Fault::NoAnswer) => std::future::pending().await,
            Some(Fault::Panics) => panic!("a planned panic of the provider client"),
            Some(Fault::Exists) => {
                let disk = self.state.lock().draw();
                let stranger = FakeMachine::new(disk);
                self.state.lock().machines.insert(machine.to_owned(), stranger);
                self.state.apply(&request, effect)
            }
        };
        if let Some(weather) = &self.weather {
            weather.answered().await;
        }
        let class = answer.as_ref().map_or_else(SandboxError::class, |_| "ok");
        self.state.note(op, Logged::Answered, machine, epoch, class);
        answer
    }

    /// Takes effect after a while, in a task of the provider.
    fn later<T: Send + 'static>(
        &self,
        request: &Request,
        delay: Duration,
        effect: impl FnOnce(&State) -> Result<T, SandboxError> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T, SandboxError>> {
        let (state, request) = (Arc::clone(&self.state), request.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            state.apply(&request, effect)
        })
    }

    /// Starts a process and answers its session id, with a first attachment.
    pub(super) fn launch(
        state: &Arc<State>,
        spawn: &mut Spawn,
        stdin: bool,
    ) -> Result<(u64, FrameStream), SandboxError> {
        let now = state.clock.now();
        let (reference, frames, process) = {
            let mut inner = state.lock();
            inner.running(&spawn.machine)?;
            spawn.session_id = format!("session-{}", inner.draw());
            let reference = inner.draw();
            let program = Arc::clone(&inner.program);
            let command = std::iter::once(&spawn.command).chain(&spawn.arguments);
            let command = command.map(String::as_str).collect::<Vec<_>>().join(" ");
            let mut session = FakeSession::new(spawn.session_id.clone(), command, now, program(spawn), stdin);
            let frames = session.attach(reference, Replay::None);
            let process = Arc::clone(&session.process);
            inner.running(&spawn.machine)?.sessions.push(session);
            (reference, frames, process)
        };
        // Not under the state's lock: the process writes through it.
        let stdio = Stdio {
            state: Arc::clone(state),
            machine: spawn.machine.clone(),
            session: spawn.session_id.clone(),
        };
        process.lock().unwrap_or_else(PoisonError::into_inner).start(&stdio);
        Ok((reference, frames))
    }

    /// Starts a command that has no input, as `exec` does: it meets the end of it at once.
    pub(super) fn launch_without_input(state: &Arc<State>, spawn: &mut Spawn) -> Result<FrameStream, SandboxError> {
        let (_, frames) = Self::launch(state, spawn, false)?;
        let process = match state.lock().session(&spawn.machine, &spawn.session_id) {
            Ok(session) if session.verdict.is_none() => Arc::clone(&session.process),
            _ => return Ok(frames),
        };
        let stdio = Stdio {
            state: Arc::clone(state),
            machine: spawn.machine.clone(),
            session: spawn.session_id.clone(),
        };
        process.lock().unwrap_or_else(PoisonError::into_inner).eof(&stdio);
        Ok(frames)
    }

    /// The process behind an attachment, to be talked to outside the state's lock.
    pub(super) fn process(
        state: &Arc<State>,
        command: &Command,
    ) -> Result<(Stdio, super::sessions::Running), SandboxError> {
        let mut inner = state.lock();
        let session = inner
            .session(&command.machine, &command.session_id)
            .map_err(|_| SandboxError::CommandExited)?;
        if !session.stdin_open || session.is_stopped(command.reference) {
            return Err(SandboxError::CommandExited);
        }
        let stdio = Stdio {
            state: Arc::clone(state),
            machine: command.machine.clone(),
            session: command.session_id.clone(),
        };
        Ok((stdio, Arc::clone(&session.process)))
    }
}
