//! Machines at a Sprites service, hosted or our own (providers 1, sandbox-contract).
//!
//! The adapter holds configuration and the list of open attachments; everything else is asked from the service, by name.
//! It never retries: the build path does, and who reattaches is the caller. No secret stands in a request line (RUL-L-92),
//! and neither the token nor the URL of a command reaches an error, a log line or a `Debug`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_http::StatusCode;
use actix_http::header::HeaderMap;
use bytes::Bytes;
use fountain_actors::domain::Epoch;
use fountain_actors::domain::machine::Provider;
use fountain_actors::ports::sandbox::{
    Answer, Capability, CheckpointOnce, Command, CreateNew, Created, DestroyOnce, ExecOptions, ExecOutput, FrameStream,
    Handle, Info, NamePage, NetworkPolicy, PublicUrlError, SandboxAdapter, SandboxError, Session, SpawnOptions,
    Terminate,
};
use futures_util::future::LocalBoxFuture;
use rustls::{ClientConfig, RootCertStore};
use secrecy::{ExposeSecret as _, SecretString};

mod address;
mod attachments;
mod call;
mod checkpoints;
mod entropy;
mod environment;
mod errors;
mod exec;
pub mod frames;
mod machines;
pub mod ndjson;
mod policy;
mod pools;
mod receipts;
mod sessions;
#[cfg(test)]
mod tests;
mod wire;

use address::Address;
use attachments::Attachments;
use call::{Call, Lost, Reply};
use pools::{Pool, Via};
use wire::Wire;

/// Most bytes of an ordinary answer: a page of fifty machines is far below it.
const LONGEST_ANSWER: usize = 8 * 1024 * 1024;

/// What an operator says about the service.
#[derive(Clone)]
pub struct SpritesSettings {
    /// `http` or `https`; a path before `/v1` is kept.
    pub base_url: String,
    pub token: SecretString,
    /// Bound of an ordinary REST call; 30 s unless an operator says otherwise (providers 1.2).
    pub timeout: Duration,
    /// New machines' URLs open to everybody (RUL-L-99).
    pub public_urls: bool,
    /// The service's checkpoints may be used.
    pub checkpoints: bool,
}

impl fmt::Debug for SpritesSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpritesSettings")
            .field("timeout", &self.timeout)
            .field("public_urls", &self.public_urls)
            .field("checkpoints", &self.checkpoints)
            .finish_non_exhaustive()
    }
}

/// Bounds of the contract; tests have shorter ones.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// A create waits for a machine (providers 1.2).
    create: Duration,
    /// A policy waits for a booting machine (sandbox-contract 8).
    policy: Duration,
    /// A checkpoint or a restore copies a disk; the build gives it 120 s (RUL-L-33).
    checkpoint: Duration,
    /// A WebSocket upgrade (RUL-L-99).
    upgrade: Duration,
    /// The first message after it.
    acknowledge: Duration,
    /// Beyond a termination's own time (sandbox-contract 10.4).
    termination_margin: Duration,
    /// Between pings of an open socket, and how long one may be silent (providers 1.3, obligation 6).
    ping: Duration,
    silence: Duration,
}

const LIMITS: Limits = Limits {
    create: Duration::from_secs(120),
    policy: Duration::from_secs(90),
    checkpoint: Duration::from_secs(120),
    upgrade: Duration::from_secs(10),
    acknowledge: Duration::from_secs(10),
    termination_margin: Duration::from_secs(5),
    ping: Duration::from_secs(15),
    silence: Duration::from_secs(45),
};

/// What the service said about itself in the headers of its answers.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// `Sprite-Version` is a release; None until an answer came.
    is_release: Option<bool>,
    /// Checkpoint ids have a form that other machines can restore (RUL-L-111).
    has_global_checkpoints: bool,
}

/// The adapter.
pub struct SpritesAdapter {
    core: Arc<Core>,
}

/// What tasks of this adapter share.
struct Core {
    /// Tells adapters of one process apart in the threads' pools.
    number: u64,
    address: Option<Address>,
    token: SecretString,
    timeout: Duration,
    public_urls: bool,
    checkpoints: bool,
    limits: Limits,
    tls: Arc<ClientConfig>,
    facts: Mutex<Facts>,
    attachments: Attachments,
}

impl SpritesAdapter {
    /// An adapter for one service. Pure; a base URL that is none is `invalid(sprites_settings)` at every call.
    #[expect(clippy::new_ret_no_self, reason = "callers see the contract, not the type")]
    pub fn new(settings: SpritesSettings) -> impl SandboxAdapter + fmt::Debug + use<> {
        Self::with_limits(settings, LIMITS, tls(public_roots()))
    }

    fn with_limits(settings: SpritesSettings, limits: Limits, tls: Arc<ClientConfig>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let core = Core {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            address: Address::parse(&settings.base_url),
            token: settings.token,
            timeout: settings.timeout,
            public_urls: settings.public_urls,
            checkpoints: settings.checkpoints,
            limits,
            tls,
            facts: Mutex::default(),
            attachments: Attachments::default(),
        };
        Self { core: Arc::new(core) }
    }
}

fn public_roots() -> RootCertStore {
    actix_tls::connect::rustls_0_23::webpki_roots_cert_store()
}

/// HTTP/1 only: closing a socket must cancel what runs on it (sandbox-contract 10).
fn tls(roots: RootCertStore) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring offers the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

impl Core {
    /// An ordinary call within the ordinary limit.
    async fn ask(&self, call: Call) -> Result<Reply, SandboxError> {
        Ok(self.send(call, Pool::General, self.timeout).await?)
    }

    /// An ordinary call whose answer must be a success.
    async fn expect(&self, call: Call) -> Result<Reply, SandboxError> {
        let reply = self.ask(call).await?;
        if reply.status.is_success() {
            Ok(reply)
        } else {
            Err(errors::refused(&reply))
        }
    }

    async fn send(&self, call: Call, pool: Pool, limit: Duration) -> Result<Reply, Lost> {
        let url = self.address()?.absolute(&call.path);
        let via = Via {
            adapter: self.number,
            pool,
            tls: &self.tls,
            token: self.token.expose_secret(),
            limit,
            longest: LONGEST_ANSWER,
        };
        let reply = pools::send(call, url, via).await?;
        self.learn(&reply.headers);
        Ok(reply)
    }

    fn wire(&self) -> Result<Wire<'_>, Lost> {
        Ok(Wire {
            address: self.address()?,
            tls: &self.tls,
            token: self.token.expose_secret(),
        })
    }

    fn address(&self) -> Result<&Address, Lost> {
        self.address.as_ref().ok_or(Lost::Unsendable)
    }

    fn facts(&self) -> Facts {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        match text("sprite-version") {
            Some(version) => facts.is_release = Some(is_release(version)),
            // An answer of something in between says nothing about the service.
            None => facts.is_release = facts.is_release.or(Some(false)),
        }
        if let Some(announced) = text("x-sprite-capabilities") {
            facts.has_global_checkpoints = announced
                .split([',', ' '])
                .any(|word| word.trim() == "checkpoint-global");
        }
    }
}

/// `v1.0.0` or `1.0.0`; development builds say something else.
fn is_release(version: &str) -> bool {
    let numbers = version.strip_prefix('v').unwrap_or(version).split('.');
    let mut count = 0;
    let all = numbers
        .inspect(|_| count += 1)
        .all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    all && count == 3
}

/// A name that a path can carry: dots alone would climb.
fn named(name: &str) -> Result<(), SandboxError> {
    if matches!(name, "" | "." | "..") {
        Err(SandboxError::Invalid("sprite_name".to_owned()))
    } else {
        Ok(())
    }
}

impl fmt::Debug for SpritesAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpritesAdapter")
    }
}

impl SandboxAdapter for SpritesAdapter {
    fn provider(&self) -> Provider {
        Provider::Sprites
    }

    fn address(&self) -> String {
        let service = self.core.address.as_ref().map(|address| address.absolute(""));
        format!("sprites {}", service.unwrap_or_default())
    }

    fn capabilities(&self) -> BTreeSet<Capability> {
        let mut offered = BTreeSet::from([
            Capability::Suspend,
            Capability::NetworkPolicy,
            Capability::Attach,
            Capability::Tty,
            Capability::PublicUrl,
            Capability::TerminateSession,
            Capability::ForceTerminateSession,
            Capability::CreateNew,
            Capability::DestroyOnce,
        ]);
        if self.core.checkpoints {
            offered.extend([Capability::Checkpoint, Capability::CreateCheckpointOnce]);
        }
        offered
    }

    fn create<'a>(&'a self, name: &'a str, epoch: Option<Epoch>) -> Answer<'a, Created> {
        Box::pin(async move {
            let adopted = self.core.create(name, epoch).await?;
            Ok(Created {
                handle: self.handle(name),
                adopted,
                meta: Default::default(),
            })
        })
    }

    fn get<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Info> {
        Box::pin(self.core.info(&handle.name))
    }

    fn destroy<'a>(&'a self, handle: &'a Handle, epoch: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(self.core.destroy(&handle.name, epoch))
    }

    fn list_all_names(&self) -> Answer<'_, BTreeSet<String>> {
        Box::pin(self.core.list_all_names())
    }

    fn list_names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, NamePage> {
        Box::pin(self.core.list_names(after))
    }

    /// The service parks on its own; nothing is sent (RUL-L-98).
    fn suspend<'a>(&'a self, _: &'a Handle, _: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// One look: the machine wakes with the first command (RUL-L-98).
    fn resume<'a>(&'a self, handle: &'a Handle, _: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(async move { self.core.info(&handle.name).await.map(drop) })
    }

    fn write_file<'a>(
        &'a self,
        handle: &'a Handle,
        path: &'a str,
        bytes: Bytes,
        mode: Option<u32>,
        epoch: Option<Epoch>,
    ) -> Answer<'a, ()> {
        Box::pin(self.core.write_file(&handle.name, path, bytes, mode, epoch))
    }

    fn exec<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: ExecOptions,
    ) -> Answer<'a, ExecOutput> {
        Box::pin(exec::exec(&self.core, &handle.name, command, arguments, options))
    }

    fn spawn<'a>(
        &'a self,
        handle: &'a Handle,
        command: &'a str,
        arguments: &'a [String],
        options: SpawnOptions,
    ) -> Answer<'a, (Command, FrameStream)> {
        Box::pin(exec::spawn(&self.core, &handle.name, command, arguments, options))
    }

    fn write_stdin<'a>(&'a self, command: &'a Command, bytes: Bytes) -> Answer<'a, ()> {
        Box::pin(self.core.attachments.write(command.reference, bytes))
    }

    fn close_stdin<'a>(&'a self, command: &'a Command) -> Answer<'a, ()> {
        Box::pin(self.core.attachments.end_input(command.reference))
    }

    fn stop_command<'a>(&'a self, command: &'a Command) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.core.attachments.stop(command.reference))
    }

    fn list_sessions<'a>(&'a self, handle: &'a Handle) -> Answer<'a, Vec<Session>> {
        Box::pin(self.core.list_sessions(&handle.name))
    }

    fn attach<'a>(&'a self, handle: &'a Handle, session_id: &'a str) -> Answer<'a, (Command, FrameStream)> {
        Box::pin(exec::attach(&self.core, &handle.name, session_id))
    }

    fn terminate_session<'a>(&'a self, handle: &'a Handle, session_id: &'a str, how: Terminate) -> Answer<'a, ()> {
        Box::pin(self.core.terminate_session(&handle.name, session_id, how))
    }

    fn apply_network_policy<'a>(
        &'a self,
        handle: &'a Handle,
        policy: &'a NetworkPolicy,
        epoch: Option<Epoch>,
    ) -> Answer<'a, ()> {
        Box::pin(self.core.apply_network_policy(&handle.name, policy, epoch))
    }

    fn network_policy<'a>(&'a self, handle: &'a Handle) -> Answer<'a, NetworkPolicy> {
        Box::pin(self.core.network_policy(&handle.name))
    }

    fn public_url<'a>(&'a self, handle: &'a Handle) -> LocalBoxFuture<'a, Result<String, PublicUrlError>> {
        Box::pin(self.core.public_url(&handle.name))
    }

    fn create_checkpoint<'a>(
        &'a self,
        handle: &'a Handle,
        comment: &'a str,
        epoch: Option<Epoch>,
    ) -> Answer<'a, String> {
        Box::pin(self.core.create_checkpoint(&handle.name, comment, epoch))
    }

    fn restore_checkpoint<'a>(&'a self, handle: &'a Handle, id: &'a str, epoch: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(self.core.restore_checkpoint(&handle.name, id, epoch))
    }

    fn delete_checkpoint<'a>(&'a self, handle: &'a Handle, id: &'a str, epoch: Option<Epoch>) -> Answer<'a, ()> {
        Box::pin(self.core.delete_checkpoint(&handle.name, id, epoch))
    }

    fn create_new<'a>(&'a self, name: &'a str, how: CreateNew) -> Answer<'a, Handle> {
        Box::pin(async move {
            let instance_id = self.core.create_new(name, how).await?;
            Ok(Handle {
                instance_id: Some(instance_id),
                ..self.handle(name)
            })
        })
    }

    fn destroy_once<'a>(&'a self, handle: &'a Handle, how: DestroyOnce) -> Answer<'a, ()> {
        Box::pin(self.core.destroy_once(&handle.name, how))
    }

    fn create_checkpoint_once<'a>(&'a self, handle: &'a Handle, how: &'a CheckpointOnce) -> Answer<'a, String> {
        Box::pin(self.core.create_checkpoint_once(&handle.name, how))
    }
}

/// Whether a status is this one exactly: a contract may accept no other success.
fn is_exactly(status: StatusCode, wanted: u16) -> bool {
    status.as_u16() == wanted
}
