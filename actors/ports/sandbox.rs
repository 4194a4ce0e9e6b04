//! The sandbox contract: everything a machine can do, behind one trait (sandbox-contract 1 to 10).
//!
//! A handle is provider and name; every operation must work with nothing else. A command is one local attachment to a
//! running process; its frames arrive through a [`FrameStream`]. Nobody but the machine actor's facade
//! (`machine/facade.rs`) calls `create`, `destroy`, `suspend` or `resume` (RUL-38a); a test looks for other callers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::domain::machine::Provider;
use crate::domain::{Epoch, Moment};
use crate::vocabulary;

pub mod checked;

/// The answer of an operation.
pub type Answer<'a, T> = LocalBoxFuture<'a, Result<T, SandboxError>>;

vocabulary! {
    /// What an adapter offers; a missing one is `not_supported`, never a pretence (sandbox-contract 4).
    Capability {
        Suspend = "suspend", NetworkPolicy = "network_policy", Attach = "attach", Tty = "tty",
        PublicUrl = "public_url", TerminateSession = "terminate_session",
        ForceTerminateSession = "force_terminate_session", CreateNew = "create_new", DestroyOnce = "destroy_once",
        Checkpoint = "checkpoint", CreateCheckpointOnce = "create_checkpoint_once",
    }
}

/// The closed taxonomy (sandbox-contract 6). Details never hold secrets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SandboxError {
    /// Definitive absence of a machine or session.
    #[error("not found")]
    NotFound,
    /// A listing is incomplete, and therefore no listing.
    #[error("the listing is incomplete")]
    Truncated,
    #[error("not supported")]
    NotSupported,
    #[error("already exists")]
    AlreadyExists,
    /// Input to a command that has ended.
    #[error("the command has ended")]
    CommandExited,
    #[error("rate limited")]
    RateLimited { retry_after_s: Option<u64> },
    /// Transport, timeout, 5xx: the fate of the request is unknown. `runner_offline` is one of these.
    #[error("unavailable: {0}")]
    Unavailable(String),
    #[error("denied: {0}")]
    Denied(String),
    #[error("invalid: {0}")]
    Invalid(String),
    #[error("restore failed: {0}")]
    RestoreFailed(String),
    #[error("write failed: {0}")]
    WriteFailed(String),
    /// Something the adapter could not classify.
    #[error("{provider}: {detail}")]
    Provider { provider: Provider, detail: String },
}

impl SandboxError {
    /// The call certainly had no effect; everything else has an unknown fate (RUL-L-4).
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NotFound
            | Self::Denied(_)
            | Self::Invalid(_)
            | Self::NotSupported
            | Self::RateLimited { .. }
            | Self::AlreadyExists => true,
            // A request that never left: there was no connection to send it on.
            Self::Unavailable(detail) => detail == RUNNER_OFFLINE || detail == NOT_CONNECTED,
            Self::Truncated
            | Self::CommandExited
            | Self::RestoreFailed(_)
            | Self::WriteFailed(_)
            | Self::Provider { .. } => false,
        }
    }

    /// Worth another try on the provision path (sandbox-contract 8; `command_exited`, `write_failed` never, RUL-L-98).
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. } | Self::Unavailable(_) | Self::Provider { .. }
        )
    }

    /// A server that keeps epochs has seen a higher one: the sender is superseded (RUL-L-2).
    pub fn is_stale_epoch(&self) -> bool {
        matches!(self, Self::Invalid(detail) if detail == STALE_EPOCH)
    }

    /// The machine's runner is not connected.
    pub fn is_runner_offline(&self) -> bool {
        matches!(self, Self::Unavailable(detail) if detail == RUNNER_OFFLINE)
    }

    /// The class for the journal: never a detail that a provider wrote (RUL-L-60).
    pub fn class(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Truncated => "truncated",
            Self::NotSupported => "not_supported",
            Self::AlreadyExists => "already_exists",
            Self::CommandExited => "command_exited",
            Self::RateLimited { .. } => "rate_limited",
            Self::Unavailable(_) => "unavailable",
            Self::Denied(_) => "denied",
            Self::Invalid(_) => "invalid",
            Self::RestoreFailed(_) => "restore_failed",
            Self::WriteFailed(_) => "write_failed",
            Self::Provider { .. } => "provider",
        }
    }
}

/// Detail of `Unavailable` when a machine's runner has no connection (runner-protocol 4.6).
pub const RUNNER_OFFLINE: &str = "runner_offline";
/// Detail when the runner's connection ended under a call.
pub const RUNNER_DISCONNECTED: &str = "runner_disconnected";
/// Detail of a transport that closed without a verdict. Never an exit 0 (RUL-2).
pub const CLOSED_BEFORE_EXIT: &str = "closed_before_exit";

/// Detail of `Unavailable` when no connection to the provider could be made: nothing was sent (RUL-L-4).
pub const NOT_CONNECTED: &str = "not_connected";
/// Detail of `Invalid` when a server that keeps epochs refused an older one (RUL-L-2).
pub const STALE_EPOCH: &str = "stale_epoch";

/// A machine at its provider. Printing it shows provider and name only.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    pub provider: Provider,
    pub name: String,
    /// This incarnation of the name. Only `create_new` knows it; it guards no write (sandbox-contract 1).
    pub instance_id: Option<String>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}, {})", self.provider, self.name)
    }
}

/// What `create` found (RUL-L-90).
#[derive(Clone, Debug, PartialEq)]
pub struct Created {
    pub handle: Handle,
    /// The machine stood there already.
    pub adopted: bool,
    /// Facts to keep with the row, for example a runner's `root` (RUL-49).
    pub meta: BTreeMap<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    Running,
    Suspended,
    /// The provider says that it exists, not how it is.
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    pub state: RunState,
    /// Where the machine's home is on the host, when the adapter maps paths.
    pub path: Option<String>,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePage {
    pub names: Vec<String>,
    /// Where the next part begins; None: this was the last one.
    pub next: Option<String>,
}

/// Ordered environment pairs; later wins. Values are secrets: printing shows names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(pub Vec<(String, String)>);

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[derive(Clone, Debug, Default)]
pub struct ExecOptions {
    pub env: Env,
    pub dir: Option<String>,
    /// None: no limit.
    pub timeout: Option<Duration>,
    pub stderr_to_stdout: bool,
    /// Set by build steps (RUL-L-2).
    pub epoch: Option<Epoch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    pub output: Bytes,
    pub code: i64,
}

#[derive(Clone, Debug, Default)]
pub struct SpawnOptions {
    pub env: Env,
    pub dir: Option<String>,
    pub stdin: bool,
    pub tty: bool,
    pub detachable: bool,
}

/// A remote process that can outlive an attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub id: String,
    pub command: Option<String>,
    pub created_at: Option<Moment>,
    pub last_activity_at: Option<Moment>,
    /// Known to have ended, with this code.
    pub exit_code: Option<i64>,
}

/// Output or a verdict of a command. All output precedes the verdict; there is exactly one (F1, F2).
#[derive(Debug)]
pub enum Frame {
    Stdout(Held),
    Stderr(Held),
    /// The replay of an attach ends here; how long each stream's replay was (RUL-44). Absent where the far end
    /// cannot tell.
    ReplayEnd {
        stdout_bytes: i64,
        stderr_bytes: i64,
    },
    Exit(i64),
    /// The attachment ended without a verdict of the process.
    Error(SandboxError),
}

/// Bytes that are counted against their connection until they are dropped, which is when they are durable (RUL-43).
pub struct Held {
    pub bytes: Bytes,
    ledger: Option<Arc<AtomicUsize>>,
}

impl Held {
    /// Bytes that nobody counts.
    pub fn free(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            ledger: None,
        }
    }

    /// Bytes that stay on `ledger` for as long as this value lives.
    pub fn counted(bytes: Bytes, ledger: &Arc<AtomicUsize>) -> Self {
        ledger.fetch_add(bytes.len(), Ordering::Relaxed);
        Self {
            bytes,
            ledger: Some(Arc::clone(ledger)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(ledger) = &self.ledger {
            ledger.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// The frames of one attachment, in order.
pub type FrameStream = mpsc::UnboundedReceiver<Frame>;

/// One local attachment to a running process. `reference` names it to its adapter; printing shows nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    pub provider: Provider,
    pub machine: String,
    pub session_id: String,
    /// Unique among the attachments of this process.
    pub reference: u64,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({}, {})", self.provider, self.reference)
    }
}

/// Egress rules; an empty list denies everything (INV-29).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    pub allow: Vec<String>,
}

/// How a session is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminateMode {
    /// SIGTERM, the time, SIGKILL.
    Graceful,
    /// SIGKILL, with proof that it was sent. Needs [`Capability::ForceTerminateSession`].
    Force,
}

/// Options of `terminate_session` (sandbox-contract 10.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    pub mode: TerminateMode,
    /// 1 to 30,000.
    pub timeout_ms: i64,
}

impl Terminate {
    /// The defaults of the contract.
    pub const GRACEFUL: Self = Self {
        mode: TerminateMode::Graceful,
        timeout_ms: 10_000,
    };
    pub const FORCE: Self = Self {
        mode: TerminateMode::Force,
        ..Self::GRACEFUL
    };

    /// An orderly end within `grace`, cut to what the contract allows.
    pub fn within(grace: Duration) -> Self {
        Self {
            timeout_ms: i64::try_from(grace.as_millis()).unwrap_or(i64::MAX).clamp(1, 30_000),
            ..Self::GRACEFUL
        }
    }
}

/// Options of `create_new` (sandbox-contract 10.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateNew {
    /// 1 to 120,000.
    pub timeout_ms: i64,
    pub wait_for_capacity: Option<bool>,
    pub epoch: Option<Epoch>,
}

impl Default for CreateNew {
    fn default() -> Self {
        Self {
            timeout_ms: 120_000,
            wait_for_capacity: None,
            epoch: None,
        }
    }
}

/// Options of `destroy_once` (sandbox-contract 10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestroyOnce {
    /// 1 to 120,000.
    pub timeout_ms: i64,
    pub epoch: Option<Epoch>,
}

impl Default for DestroyOnce {
    fn default() -> Self {
        Self {
            timeout_ms: 30_000,
            epoch: None,
        }
    }
}

/// Options of `create_checkpoint_once` (sandbox-contract 10.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOnce {
    /// 1 to 128 of `A-Z a-z 0-9 _ -`.
    pub operation_id: String,
    /// 1 to 120,000.
    pub timeout_ms: i64,
    pub epoch: Option<Epoch>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PublicUrlError {
    Unsupported,
    Failed(SandboxError),
}

/// One provider. Methods never panic; a missing operation is [`SandboxError::NotSupported`].
pub trait SandboxAdapter: Send + Sync {
    fn provider(&self) -> Provider;
    fn capabilities(&self) -> BTreeSet<Capability>;

    /// The service behind this adapter, for what is remembered about a service and not about its kind (RUL-L-34).
    fn address(&self) -> String {
        self.provider().as_str().to_owned()
    }

    /// Pure; no I/O.
    fn handle(&self, name: &str) -> Handle {
        Handle {
            provider: self.provider(),
            name: name.to_owned(),
            instance_id: None,
        }
    }

    /// Name-keyed and adopting: an existing machine of that name is success, never a fresh disk.
    fn create<'a>(&'a self, name: &'a str, epoch: Option<Epoch>) -> Answer<'a, Created>;
    /// `NotFound` only when absence is definitive.
    fn get<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Info>;
    /// Already gone is success; the caller confirms with `get` (RUL-L-91).
    fn destroy<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()>;
    /// All names of the account, or an error: a partial view is [`SandboxError::Truncated`].
    fn list_all_names(&self) -> Answer<'_, BTreeSet<String>>;
    /// The names of the account page by page, so that a reconciler needs no memory for all of them. `after` is the
    /// `next` of the page before. The same rule: a page that may be incomplete is an error.
    fn list_names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, NamePage> {
        let _ = after;
        Box::pin(async move {
            Ok(NamePage {
                names: self.list_all_names().await?.into_iter().collect(),
                next: None,
            })
        })
    }
    fn suspend<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()>;
    /// The same disk, usable afterwards.
    fn resume<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()>;
    /// Creates parent directories; `mode` is honoured after the write, whatever the umask.
    fn write_file<'a>(
        &'a self,
        handle: &'a Handle,
        path: &'a str,
        bytes: Bytes,
        mode: Option<u32>,
        epoch: Option<Epoch>,
    ) -> Answer<'a, ()>;
    /// A nonzero code is data. After a transport failure the answer is the error alone, never partial output.
    fn exec<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: ExecOptions,
    ) -> Answer<'a, ExecOutput>;
    /// Answers only after the provider acknowledged the process.
    fn spawn<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: SpawnOptions,
    ) -> Answer<'a, (Command, FrameStream)>;
    /// In call order; the caller awaits one write before the next.
    fn write_stdin<'a>(&'a self, command: &'a Command, bytes: Bytes) -> Answer<'a, ()>;
    /// A real EOF; idempotent; fine after the exit.
    fn close_stdin<'a>(&'a self, command: &'a Command) -> Answer<'a, ()>;
    /// Drops the local attachment only. Infallible, repeatable; no frame follows.
    fn stop_command<'a>(&'a self, command: &'a Command) -> LocalBoxFuture<'a, ()>;
    /// Newest first.
    fn list_sessions<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Vec<Session>>;
    /// Replay from byte 0, then the tail, then one verdict. An unknown id is `NotFound`.
    fn attach<'a>(&'a self, handle: &'a Handle, session_id: &'a str) -> Answer<'a, (Command, FrameStream)>;
    /// Ends one session, with proof; never the machine. `NotSupported` where neither capability nor protocol has it.
    fn terminate_session<'a>(&'a self, _: &'a Handle, _session_id: &'a str, _: Terminate) -> Answer<'a, ()> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// Replaces the policy. An empty list denies everything and is sent like any other.
    fn apply_network_policy<'a>(&'a self, _: &'a Handle, _: &'a NetworkPolicy, _: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// Read-back of the policy in force (RUL-64a). A machine without one answers `["*"]`.
    fn network_policy<'a>(&'a self, _: &'a Handle) -> Answer<'a, NetworkPolicy> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    fn public_url<'a>(&'a self, _: &'a Handle) -> LocalBoxFuture<'a, Result<String, PublicUrlError>> {
        Box::pin(async { Err(PublicUrlError::Unsupported) })
    }
    /// The id under which [`Self::restore_checkpoint`] finds it: the widest form that the provider offers (RUL-L-111).
    fn create_checkpoint<'a>(&'a self, _: &'a Handle, _comment: &'a str, _: Option<Epoch>) -> Answer<'a, String> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// A stream that reports an error is [`SandboxError::RestoreFailed`], whatever the status said. Sessions end.
    fn restore_checkpoint<'a>(&'a self, _: &'a Handle, _id: &'a str, _: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// Where the provider can (RUL-L-35). Already gone is success.
    fn delete_checkpoint<'a>(&'a self, _: &'a Handle, _id: &'a str, _: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// Creates, and never adopts: one write, no retry (sandbox-contract 10.1). The handle carries `instance_id`.
    fn create_new<'a>(&'a self, _name: &'a str, _: CreateNew) -> Answer<'a, Handle> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// One delete and one look (10.2). `Ok` is confirmed absence.
    fn destroy_once<'a>(&'a self, _: &'a Handle, _: DestroyOnce) -> Answer<'a, ()> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// One write and one listing (10.3); the id comes from the listing.
    fn create_checkpoint_once<'a>(&'a self, _: &'a Handle, _: &'a CheckpointOnce) -> Answer<'a, String> {
        Box::pin(async { Err(SandboxError::NotSupported) })
    }
    /// Where `path` is on the host, for agents that validate it there. On any failure the input.
    fn host_path<'a>(&'a self, _: &'a Handle, path: &'a str) -> LocalBoxFuture<'a, String> {
        Box::pin(async move { path.to_owned() })
    }
}

/// The configured adapters, by provider. Dispatch is on the tag, never on private state.
#[derive(Default)]
pub struct AdapterSet {
    adapters: BTreeMap<&'static str, Arc<dyn SandboxAdapter>>,
}

impl AdapterSet {
    /// Adds an adapter under its own tag.
    #[must_use]
    pub fn with(mut self, adapter: Arc<dyn SandboxAdapter>) -> Self {
        self.adapters.insert(adapter.provider().as_str(), adapter);
        self
    }

    /// The adapter of a provider.
    ///
    /// # Errors
    /// `Invalid` for a provider that is not configured.
    pub fn get(&self, provider: Provider) -> Result<&Arc<dyn SandboxAdapter>, SandboxError> {
        self.adapters
            .get(provider.as_str())
            .ok_or_else(|| SandboxError::Invalid(format!("sandbox provider {provider} is not configured")))
    }

    /// Whether a provider is configured here.
    pub fn offers(&self, provider: Provider) -> bool {
        self.adapters.contains_key(provider.as_str())
    }

    /// The configured providers, sorted by name.
    pub fn providers(&self) -> Vec<Provider> {
        self.adapters.values().map(|adapter| adapter.provider()).collect()
    }
}
