//! Starts and stops the server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_web::dev::ServerHandle;
use actix_web::middleware::DefaultHeaders;
use actix_web::rt::task::JoinHandle;
use actix_web::{App, HttpServer, web};
use secrecy::SecretString;

use crate::enclosure::Enclosures;
use crate::limits::Limits;
use crate::state::Store;
use crate::tokens::Tokens;
use crate::world::World;
use crate::{api, exec};

/// How often what is too old is looked for.
const SWEEP: Duration = Duration::from_secs(3600);
/// How long an idle connection is kept. Longer than clients keep theirs (15 s for awc): whoever takes one from its pool just
/// as it is closed here loses a request, and cannot know whether it was carried out.
const IDLE: Duration = Duration::from_secs(75);

/// How long a stop waits for work on the disk, and how often it looks.
const RELEASE: Duration = Duration::from_secs(10);
const RELEASE_LOOK: Duration = Duration::from_millis(2);

/// What a server needs.
#[derive(Clone)]
pub struct Settings {
    /// Where it listens; port 0 takes any.
    pub address: SocketAddr,
    /// Where it keeps everything; one server a root.
    pub root: PathBuf,
    /// Who is let in; each token is an account of its own.
    pub tokens: Vec<SecretString>,
    /// How this host keeps sprites apart.
    pub enclosures: Arc<dyn Enclosures>,
    pub limits: Limits,
    pub exec: exec::Settings,
    /// HTTP workers.
    pub workers: usize,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("no token is set, so nobody could be let in")]
    NoToken,
    #[error("the state directory cannot be used")]
    Root(#[source] io::Error),
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
}

/// A server that answers.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    world: Arc<World>,
    handle: ServerHandle,
    server: JoinHandle<io::Result<()>>,
    sweeper: JoinHandle<()>,
}

/// Opens the state and begins to answer. Call inside an actix system; signals are the caller's.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(settings: Settings) -> Result<Running, ServeError> {
    let tokens = Tokens::new(&settings.tokens);
    if tokens.is_empty() {
        return Err(ServeError::NoToken);
    }
    let root = settings.root.clone();
    let opened = tokio::task::spawn_blocking(move || Store::open(&root)).await;
    let store = opened.map_err(io::Error::other).flatten().map_err(ServeError::Root)?;
    let world = World::new(store, tokens, settings.enclosures, settings.limits, settings.exec);
    let world = Arc::new(world);
    let shared = web::Data::from(Arc::clone(&world));
    let server = HttpServer::new(move || {
        App::new()
            .app_data(shared.clone())
            .wrap(
                DefaultHeaders::new()
                    .add(("Sprite-Version", "v1.0.0"))
                    .add(("X-Sprite-Capabilities", "checkpoint-global")),
            )
            .configure(api::routes)
    })
    .workers(settings.workers.max(1))
    // Output and verdict are small and whole; held back for an acknowledgement they wait 40 ms.
    .tcp_nodelay(true)
    .keep_alive(IDLE)
    .shutdown_timeout(1)
    .disable_signals()
    .bind(settings.address)
    .map_err(|error| ServeError::Listen(settings.address, error))?;
    let address = server.addrs().first().copied().unwrap_or(settings.address);
    let server = server.run();
    let handle = server.handle();
    Ok(Running {
        address,
        handle,
        server: actix_web::rt::spawn(server),
        sweeper: actix_web::rt::spawn(sweep(Arc::clone(&world))),
        world,
    })
}

async fn sweep(world: Arc<World>) {
    let mut times = tokio::time::interval(SWEEP);
    loop {
        times.tick().await;
        world.registry.forget_older(exec::FINISHED_FOR, SystemTime::now());
        let store = Arc::clone(&world.store);
        let swept = tokio::task::spawn_blocking(move || store.expire(crate::clock::now())).await;
        if let Err(error) = swept.map_err(io::Error::other).flatten() {
            tracing::warn!(%error, "old checkpoints could not be removed");
        }
    }
}

impl Running {
    /// Ends everything that runs inside, then stops answering. Records stay.
    pub async fn stop(self) {
        self.world.shut().await;
        self.kill().await;
    }

    /// Answers when the server has stopped by itself.
    ///
    /// # Errors
    /// Why it did.
    pub async fn ended(&mut self) -> io::Result<()> {
        (&mut self.server).await.map_err(io::Error::other).flatten()
    }

    /// Stops answering and ends nothing in order, as a kill does.
    pub async fn kill(self) {
        self.sweeper.abort();
        self.handle.stop(false).await;
        let _ = self.server.await;
        let _ = self.sweeper.await;
        let store = Arc::downgrade(&self.world.store);
        drop(self.world);
        // What works on the disk off the threads of the doors finishes; the root is somebody else's only then.
        let released = async {
            while store.strong_count() > 0 {
                tokio::time::sleep(RELEASE_LOOK).await;
            }
        };
        if tokio::time::timeout(RELEASE, released).await.is_err() {
            tracing::warn!("something still works on the disk; the root is locked until it ends");
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
