//! The runner daemon: dials out to a control plane and serves sandboxes on this machine (runner-protocol).
//!
//! A sandbox is a directory; its commands run as the user who started the daemon ("trusted mode", seed 001). The daemon
//! owns the processes: they outlive any connection and die with it. Read it in this order: [`run`] dials until it may
//! stop ([`dial`], [`redial`]); `connection` serves one socket; `operations` does what requests ask, with `sandboxes`
//! (directories), `commands` (processes) and `subscriptions` (who hears what). `crate::process` knows nothing of all this.
//!
//! Never here: a decision that belongs to the control plane. The daemon does what a request says, refuses what an older
//! owner of the machine says (`epochs`), and reports no absence that it has not seen (`root`).

mod at_once;
mod commands;
mod connection;
mod dial;
mod environment;
mod epochs;
mod operations;
mod paths;
mod redial;
mod root;
mod sandboxes;
mod socket;
mod subscriptions;
mod wire;

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fountain_actors::retry::Policy;
use tokio::time::Instant;

pub use dial::Endpoint;

use self::{
    connection::Ended,
    dial::{Card, Dialed, NoTarget},
    environment::Inherited,
    epochs::Epochs,
    redial::{Attempt, Next, Redial},
    root::Root,
    wire::{Code, Refusal},
};
use crate::process::{Ledger, LedgerError, Registry};

/// Finished sessions that a sandbox keeps for replay (runner-protocol 5.3).
const FINISHED_KEPT: usize = 100;

/// Everything that a daemon needs to know. Not `Debug`: its environment may hold secrets.
#[derive(Clone)]
pub struct DaemonConfig {
    /// The server and the key.
    pub endpoint: Endpoint,
    /// The runner's name; see [`is_runner_name`].
    pub name: String,
    /// Where sandboxes lie; made when missing.
    pub root: PathBuf,
    /// Shown to the server.
    pub version: String,
    /// The machine's name, shown to the server.
    pub hostname: String,
    /// The daemon's own environment, which commands inherit without what is Fountain's.
    pub environment: Vec<(OsString, OsString)>,
    /// How patient the daemon is.
    pub timing: Timing,
}

/// Limits and pauses. The defaults are the protocol's.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two pings (RUL-45).
    pub ping_every: Duration,
    /// In which something must arrive after a ping (runner-protocol 9).
    pub pong_within: Duration,
    /// In which a write must move (RUL-43).
    pub write_stall: Duration,
    /// For a dial.
    pub dial: Duration,
    /// Between dials.
    pub redial: Policy,
    /// Without any answer from a server, after which a daemon with a connection file ends (RUL-57).
    pub no_server_for: Duration,
    /// For commands of a sandbox that is suspended or destroyed.
    pub stop_grace: Duration,
    /// For commands when the daemon ends.
    pub shutdown_grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            ping_every: Duration::from_secs(10),
            pong_within: Duration::from_secs(5),
            write_stall: Duration::from_secs(30),
            dial: Duration::from_secs(30),
            redial: Policy::REDIAL,
            no_server_for: Duration::from_secs(15 * 60),
            stop_grace: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(3),
        }
    }
}

/// Why a daemon ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The name breaks the server's rule.
    #[error(
        "{0:?} cannot be a runner's name: use a-z, 0-9, '.', '_' and '-', begin with a letter or digit, at most 63"
    )]
    BadName(String),
    /// The base URL is not `http` or `https`.
    #[error("{0:?} is not an http or https URL")]
    BadBaseUrl(String),
    /// The server refused the key (401, 403), knows no runners (404), or rejects the name (400).
    #[error("the server refused the runner: HTTP {status} {body}")]
    Refused {
        /// The status.
        status: u16,
        /// The first 4096 bytes of the body.
        body: String,
    },
    /// No server answered for too long, and the daemon was started by one.
    #[error("no server answered for {} minutes", .0.as_secs() / 60)]
    NoServer(Duration),
    /// The sandbox root cannot be used.
    #[error("the sandbox root {path} cannot be used")]
    Root {
        /// The root.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another daemon serves the root, or its records cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Whether the server takes this name: `^[a-z0-9][a-z0-9._-]{0,62}$`.
pub fn is_runner_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63
        && name.bytes().next().is_some_and(is_plain)
        && name
            .bytes()
            .all(|byte| is_plain(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

/// A runner name made from a host name: lower case, other characters as `-`. `None` when nothing is left.
pub fn name_from_hostname(hostname: &str) -> Option<String> {
    let plain = hostname.to_lowercase();
    let plain = plain.replace(
        |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')),
        "-",
    );
    let name: String = plain
        .trim_start_matches(|c: char| !c.is_ascii_alphanumeric())
        .chars()
        .take(63)
        .collect();
    is_runner_name(&name).then_some(name)
}

/// Ends when the process is asked to end: SIGTERM or SIGINT.
///
/// # Errors
/// The handlers could not be installed.
pub fn termination() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// What all connections of one daemon share.
struct State {
    card: Card,
    root: Root,
    registry: Registry,
    ledger: Arc<Ledger>,
    epochs: Epochs,
    inherited: Inherited,
    timing: Timing,
    sessions_started: AtomicU64,
}

impl State {
    /// Opens root and records, ending what an earlier daemon left running. Blocks.
    fn open(config: &DaemonConfig) -> Result<Self, DaemonError> {
        let broken = |source| DaemonError::Root {
            path: config.root.clone(),
            source,
        };
        let root = Root::open(&config.root, &format!("{:032x}", rand::random::<u128>())).map_err(broken)?;
        let (ledger, killed) = Ledger::open(&root.path().join(".sessions"))?;
        if killed > 0 {
            tracing::warn!(killed, "ended commands that an earlier daemon had left running");
        }
        let epochs = Epochs::open(root.path()).map_err(broken)?;
        let card = Card {
            name: config.name.clone(),
            hostname: config.hostname.clone(),
            version: config.version.clone(),
            root: root.text().to_owned(),
            root_id: root.id().to_owned(),
        };
        Ok(Self {
            card,
            root,
            registry: Registry::new(FINISHED_KEPT),
            ledger,
            epochs,
            inherited: Inherited::new(config.environment.iter().cloned()),
            timing: config.timing,
            sessions_started: AtomicU64::new(0),
        })
    }

    /// A name that no other session of this machine has had (runner-protocol 5.2).
    fn session_id(&self) -> String {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let number = self.sessions_started.fetch_add(1, Ordering::Relaxed) + 1;
        format!("s-{now}-{number}-{:08x}", rand::random::<u32>())
    }

    /// Runs blocking work about sandboxes, once it is certain that this is the root that we know.
    async fn on_root<T, F>(&self, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Root) -> Result<T, Refusal> + Send + 'static,
    {
        let root = self.root.clone();
        commands::on_pool(move || root.check().and_then(|()| work(&root))).await
    }

    async fn save_epochs(&self) -> Result<(), Refusal> {
        let epochs = self.epochs.clone();
        let saving = move || {
            let saved = epochs.save(SystemTime::now());
            saved.map_err(|error| Refusal::new(Code::Unavailable, format!("the epoch cannot be saved: {error}")))
        };
        commands::on_pool(saving).await
    }
}

/// Runs a daemon until `shutdown` ends, its connection file is gone, or there is no point in dialling again. All its
/// sessions are stopped then. Runs inside an actix system, on one thread.
///
/// # Errors
/// Why there is no point; see [`DaemonError`].
pub async fn run(config: DaemonConfig, shutdown: impl Future<Output = ()>) -> Result<(), DaemonError> {
    // Without a provider the first connection would panic. Whoever was first is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if !is_runner_name(&config.name) {
        return Err(DaemonError::BadName(config.name));
    }
    let (endpoint, root) = (config.endpoint.clone(), config.root.clone());
    let opening = tokio::task::spawn_blocking(move || State::open(&config)).await;
    let crashed = |error| DaemonError::Root {
        path: root,
        source: io::Error::other(error),
    };
    let state = Arc::new(opening.map_err(crashed)??);
    let ended = stay_connected(&endpoint, &state, std::pin::pin!(shutdown)).await;
    state.registry.close(state.timing.shutdown_grace).await;
    ended
}

async fn stay_connected<S>(
    endpoint: &Endpoint,
    state: &Arc<State>,
    mut shutdown: Pin<&mut S>,
) -> Result<(), DaemonError>
where
    S: Future<Output = ()>,
{
    let mut redial = Redial::new(state.timing.redial);
    let mut last_answer = Instant::now();
    loop {
        let attempt = match endpoint.target().await {
            Err(NoTarget::Gone) => {
                tracing::info!("the connection file is gone; the runner ends");
                return Ok(());
            }
            Err(NoTarget::Unreadable(reason)) => {
                tracing::warn!(reason, "the connection file cannot be used");
                Attempt::Failed
            }
            Ok(target) => {
                let dialed = tokio::select! {
                    biased;
                    () = shutdown.as_mut() => return Ok(()),
                    dialed = dial::dial(&target, state) => dialed?,
                };
                if !matches!(dialed, Dialed::Failed(_)) {
                    last_answer = Instant::now();
                }
                match dialed {
                    Dialed::Open(socket) => {
                        tracing::info!(runner.name = state.card.name, "runner: connected");
                        let (ended, was_good) = connection::serve(socket, state, shutdown.as_mut()).await;
                        last_answer = Instant::now();
                        match ended {
                            Ended::ShutDown => return Ok(()),
                            Ended::Closed(code) => {
                                tracing::info!(code, "runner: the server closed the connection");
                                Attempt::Ended {
                                    code: Some(code),
                                    was_good,
                                }
                            }
                            Ended::Lost(reason) => {
                                tracing::warn!(reason, "runner: connection lost");
                                Attempt::Ended { code: None, was_good }
                            }
                        }
                    }
                    Dialed::Refused { status, body } => {
                        // A server that was started anew writes a new file; only the same file means the same answer.
                        let is_same = endpoint.target().await.is_ok_and(|now| now.is(&target));
                        if is_same {
                            Attempt::Refused { status, body }
                        } else {
                            redial.start_anew();
                            Attempt::Failed
                        }
                    }
                    Dialed::Answered(status) => {
                        let status = status.as_u16();
                        match status {
                            409 => tracing::warn!("runner: another daemon is connected under this name; waiting"),
                            _ => tracing::warn!(status, "runner: the server does not take the connection now"),
                        }
                        Attempt::Failed
                    }
                    Dialed::Failed(reason) => {
                        tracing::warn!(reason, "runner: no connection");
                        Attempt::Failed
                    }
                }
            }
        };
        if matches!(endpoint, Endpoint::File(_)) && last_answer.elapsed() >= state.timing.no_server_for {
            return Err(DaemonError::NoServer(state.timing.no_server_for));
        }
        match redial.after(attempt, &mut rand::random::<f64>) {
            Next::GiveUp(error) => return Err(error),
            Next::DialAfter(delay) => tokio::select! {
                biased;
                () = shutdown.as_mut() => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            },
        }
    }
}

#[cfg(test)]
mod tests;
