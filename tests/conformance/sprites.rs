//! The Sprites adapter against our own Sprites server: `fountain sprites` as a process of its own.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fountain_actors::ports::sandbox::{Capability, SandboxAdapter};
use fountain_provider_sprites::{SpritesAdapter, SpritesSettings};

use crate::bench::{Bench, Line, line};

const TOKEN: &str = "conformance-token";
/// A create boots an enclosure, and the suite runs several at once.
const REST: Duration = Duration::from_secs(30);

pub struct Sprites {
    url: String,
    // In this order they end.
    _server: Served,
    _folder: tempfile::TempDir,
}

/// A child that ends with its test: asked first, because its enclosures are its to take down.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(id) = i32::try_from(self.0.id()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

/// Starts the server and answers where it listens: the one place that knows its command line and its greeting.
fn serve(folder: &std::path::Path) -> (Served, String) {
    let log = std::fs::File::create(folder.join("sprites.log")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_fountain"))
        .args([
            "sprites",
            "--listen",
            "127.0.0.1:0",
            "--token",
            TOKEN,
            "--json",
            "--root",
        ])
        .arg(folder.join("sprites"))
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut served = Served(child);
    let mut greeting = String::new();
    let stdout = served.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut greeting).unwrap();
    let greeting: serde_json::Value = serde_json::from_str(&greeting).unwrap_or_else(|_| {
        let log = std::fs::read_to_string(folder.join("sprites.log")).unwrap_or_default();
        panic!("the server ended before it was ready:\n{log}")
    });
    (served, greeting["url"].as_str().unwrap().to_owned())
}

impl Bench for Sprites {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (server, url) = serve(folder.path());
        Self {
            url,
            _server: server,
            _folder: folder,
        }
    }

    fn adapter(&self) -> Arc<dyn SandboxAdapter> {
        Arc::new(SpritesAdapter::new(SpritesSettings {
            base_url: self.url.clone(),
            token: TOKEN.to_owned().into(),
            timeout: REST,
            public_urls: true,
            checkpoints: true,
        }))
    }

    fn name(&self, _: &str) -> String {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        format!("conformance-{}", NUMBERS.fetch_add(1, Ordering::Relaxed))
    }

    fn capabilities(&self) -> BTreeSet<Capability> {
        Capability::ALL.iter().copied().collect()
    }

    fn ok(&self) -> Line {
        shell("echo hello")
    }

    fn fails(&self) -> Line {
        shell("echo oops; exit 3")
    }

    fn stays(&self) -> Line {
        shell("echo ready; exec cat")
    }

    /// A command inside an enclosure cannot break the socket of whoever watches it.
    fn drops(&self) -> Option<Line> {
        None
    }

    fn both(&self) -> Line {
        shell("echo out; echo err >&2")
    }

    fn pours(&self) -> Line {
        shell("while :; do echo drop; sleep 0.01; done")
    }

    fn cat(&self) -> Line {
        line("cat", &[])
    }

    fn bytes(&self) -> Line {
        shell("for n in $(seq 0 255); do printf \"\\\\$(printf %03o $n)\"; done")
    }
}

fn shell(script: &str) -> Line {
    line("bash", &["-c", script])
}

crate::suite!(Sprites);
