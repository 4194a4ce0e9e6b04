//! Sandboxes of `fountain sprites` through the adapter, next to the bare operations of the system.
//!
//! - create: one machine with all the isolation that this host gives, to its answer. Baseline: fork and exec of `true`.
//! - exec of `true`: through adapter, socket, server and enclosure. Baseline: fork and exec of `true`, plus one round trip
//!   over a loopback TCP socket.
//! - output of `head -c` from a file of zeroes: bytes from the process to the adapter's caller. Baseline: the same
//!   command into a pipe that is read and thrown away.
//! - checkpoint and restore of a tree of 10,000 files (1 GB). Baselines: `cp -a --reflink=auto` of the same tree, and
//!   `tar` of it.
//! - replay of a finished session with 100 MB of output. Baseline: reading a file of that size. And what memory the server
//!   has of its own meanwhile. Baseline: the same with a session of 10 MB.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use common::process::{Process, fountain, own_memory_bytes};
use common::{Options, Table, median, ms};
use fountain_actors::ports::sandbox::{ExecOptions, Frame, Handle, SandboxAdapter, SpawnOptions};
use fountain_provider_sprites::{SpritesAdapter, SpritesSettings};

const TOKEN: &str = "benchmark";

fn main() -> anyhow::Result<()> {
    let options = Options::read();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir()?;
    let mut command = fountain(folder.path());
    command
        .args([
            "sprites",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--token",
            TOKEN,
            "--root",
        ])
        .arg(folder.path().join("root"));
    let mut server = Process::start("sprites", folder.path(), command)?;
    let greeting = server.greeting()?;
    common::say(&format!(
        "isolation of this host: {}",
        greeting.get("isolation").unwrap_or(&serde_json::Value::Null)
    ));
    let adapter = SpritesAdapter::new(SpritesSettings {
        base_url: greeting
            .get("url")
            .and_then(|url| url.as_str())
            .unwrap_or_default()
            .to_owned(),
        token: TOKEN.to_owned().into(),
        timeout: Duration::from_secs(120),
        public_urls: false,
        checkpoints: true,
    });
    let bench = Bench {
        folder: folder.path(),
        server: server.id(),
        options,
    };
    let measured = actix_rt::System::new().block_on(measure(&adapter, bench));
    measured.with_context(|| format!("the server's log ends with\n{}", server.tail()))
}

/// What the parts need to know.
#[derive(Clone, Copy)]
struct Bench<'a> {
    folder: &'a Path,
    /// The server's process.
    server: u32,
    options: Options,
}

async fn measure(adapter: &dyn SandboxAdapter, bench: Bench<'_>) -> anyhow::Result<()> {
    let Bench { folder, options, .. } = bench;
    let mut table = Table::new("sprites: one host, one client");
    create(adapter, options, &mut table).await.context("create")?;
    let machine = adapter.create("bench", None).await.map_err(told)?.handle;
    exec_true(adapter, &machine, options, &mut table)
        .await
        .context("exec_true")?;
    throughput(adapter, &machine, options, &mut table)
        .await
        .context("throughput")?;
    replay(adapter, &machine, bench, &mut table).await.context("replay")?;
    checkpoints(adapter, &machine, folder, options, &mut table)
        .await
        .context("checkpoints")?;
    table.print();
    let started = Instant::now();
    let destroyed = adapter.destroy(&machine, None).await.map_err(told);
    common::say(&format!("destroying it took {:.0} ms", ms(started.elapsed())));
    destroyed.context("destroy")
}

fn told(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

fn ratio(value: f64, base: f64) -> String {
    format!("{:.2} x", value / base)
}

fn fork_and_exec() -> anyhow::Result<Duration> {
    let started = Instant::now();
    anyhow::ensure!(Command::new("/bin/true").status()?.success(), "true failed");
    Ok(started.elapsed())
}

async fn create(adapter: &dyn SandboxAdapter, options: Options, table: &mut Table) -> anyhow::Result<()> {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for number in 0..options.pick(30, 3) {
        let name = format!("create-{number}");
        let started = Instant::now();
        let created = adapter.create(&name, None).await.map_err(told)?;
        ours.push(ms(started.elapsed()));
        bare.push(ms(fork_and_exec()?));
        adapter.destroy(&created.handle, None).await.map_err(told)?;
    }
    let (value, base) = (median(&ours), median(&bare));
    table.row(
        "create, p50",
        format!("{value:.1} ms"),
        format!("fork+exec: {base:.2} ms"),
        ratio(value, base),
        "at most 20 ms",
    );
    Ok(())
}

/// One byte there and back over a loopback socket.
fn round_trip(socket: &mut TcpStream) -> anyhow::Result<Duration> {
    let started = Instant::now();
    socket.write_all(b"x")?;
    socket.read_exact(&mut [0])?;
    Ok(started.elapsed())
}

async fn exec_true(
    adapter: &dyn SandboxAdapter,
    machine: &Handle,
    options: Options,
    table: &mut Table,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut peer, _) = listener.accept()?;
        peer.set_nodelay(true)?;
        let mut byte = [0];
        loop {
            peer.read_exact(&mut byte)?;
            peer.write_all(&byte)?;
        }
    });
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..options.pick(300, 10) {
        let started = Instant::now();
        let done = adapter
            .exec(machine, "/bin/true", &[], ExecOptions::default())
            .await
            .map_err(told)?;
        ours.push(ms(started.elapsed()));
        anyhow::ensure!(done.code == 0, "true failed inside");
        bare.push(ms(fork_and_exec()?) + ms(round_trip(&mut socket)?));
    }
    let (value, base) = (median(&ours), median(&bare));
    table.row(
        "exec of true, p50",
        format!("{value:.2} ms"),
        format!("fork+exec and a round trip: {base:.2} ms"),
        ratio(value, base),
        "at most 3 x",
    );
    Ok(())
}

fn speed(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

async fn throughput(
    adapter: &dyn SandboxAdapter,
    machine: &Handle,
    options: Options,
    table: &mut Table,
) -> anyhow::Result<()> {
    let bytes: u64 = options.pick(256, 16) * 1_000_000;
    let arguments = ["-c".to_owned(), bytes.to_string(), "/dev/zero".to_owned()];
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..options.pick(3, 1) {
        let started = Instant::now();
        let (command, mut frames) = adapter
            .spawn(machine, "head", &arguments, SpawnOptions::default())
            .await
            .map_err(told)?;
        let got = drain(&mut frames).await?;
        anyhow::ensure!(got == bytes, "{got} of {bytes} bytes came");
        ours.push(speed(bytes, started.elapsed()));
        adapter.stop_command(&command).await;

        let started = Instant::now();
        let mut child = Command::new("head").args(&arguments).stdout(Stdio::piped()).spawn()?;
        let mut pipe = child.stdout.take().ok_or_else(|| anyhow::anyhow!("no pipe"))?;
        anyhow::ensure!(std::io::copy(&mut pipe, &mut std::io::sink())? == bytes, "short pipe");
        child.wait()?;
        bare.push(speed(bytes, started.elapsed()));
    }
    let (value, base) = (median(&ours), median(&bare));
    table.row(
        "output",
        format!("{value:.0} MB/s"),
        format!("pipe: {base:.0} MB/s"),
        ratio(value, base),
        "at least half",
    );
    Ok(())
}

/// Counts the output up to an exit with 0.
async fn drain(frames: &mut fountain_actors::ports::sandbox::FrameStream) -> anyhow::Result<u64> {
    let mut bytes = 0;
    loop {
        match frames.recv().await {
            Some(Frame::Stdout(held) | Frame::Stderr(held)) => bytes += held.bytes.len() as u64,
            Some(Frame::ReplayEnd { .. }) => {}
            Some(Frame::Exit(0)) => return Ok(bytes),
            other => anyhow::bail!("the command ended with {other:?}"),
        }
    }
}

async fn replay(
    adapter: &dyn SandboxAdapter,
    machine: &Handle,
    bench: Bench<'_>,
    table: &mut Table,
) -> anyhow::Result<()> {
    let bytes: u64 = bench.options.pick(100, 8) * 1_000_000;
    // A tenth as long first: memory that grows with the session would show as a ratio of ten.
    let short = finished(adapter, machine, bytes / 10).await?;
    let long = finished(adapter, machine, bytes).await?;
    let file = bench.folder.join("baseline");
    std::fs::write(&file, vec![0; usize::try_from(bytes)?])?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for _ in 0..bench.options.pick(3, 1) {
        let memory = Watch::start(bench.server)?;
        attach(adapter, machine, &short, bytes / 10).await?;
        small.push(memory.peak()?);

        let (memory, started) = (Watch::start(bench.server)?, Instant::now());
        attach(adapter, machine, &long, bytes).await?;
        ours.push(speed(bytes, started.elapsed()));
        large.push(memory.peak()?);

        let started = Instant::now();
        std::io::copy(&mut std::fs::File::open(&file)?, &mut std::io::sink())?;
        bare.push(speed(bytes, started.elapsed()));
    }
    let (value, base) = (median(&ours), median(&bare));
    table.row(
        "replay of 100 MB",
        format!("{value:.0} MB/s"),
        format!("reading the file: {base:.0} MB/s"),
        ratio(value, base),
        "speed of a disk",
    );
    let (value, base) = (median(&large), median(&small));
    table.row(
        "server's memory meanwhile",
        format!("{value:.1} MB"),
        format!("replay of 10 MB: {base:.1} MB"),
        ratio(value, base),
        "constant",
    );
    Ok(())
}

/// A session that wrote this much and ended.
async fn finished(adapter: &dyn SandboxAdapter, machine: &Handle, bytes: u64) -> anyhow::Result<String> {
    let arguments = ["-c".to_owned(), bytes.to_string(), "/dev/zero".to_owned()];
    let spawn = SpawnOptions {
        detachable: true,
        ..SpawnOptions::default()
    };
    let (command, mut frames) = adapter.spawn(machine, "head", &arguments, spawn).await.map_err(told)?;
    drain(&mut frames).await?;
    Ok(command.session_id)
}

async fn attach(adapter: &dyn SandboxAdapter, machine: &Handle, session: &str, bytes: u64) -> anyhow::Result<()> {
    let (_, mut frames) = adapter.attach(machine, session).await.map_err(told)?;
    anyhow::ensure!(drain(&mut frames).await? == bytes, "the replay is not whole");
    Ok(())
}

/// Looks at a process's own memory every other millisecond.
struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

impl Watch {
    fn start(process: u32) -> anyhow::Result<Self> {
        let mut peak = own_memory_bytes(process)?;
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(2)) == Err(RecvTimeoutError::Timeout) {
                peak = peak.max(own_memory_bytes(process)?);
            }
            Ok(peak)
        });
        Ok(Self { stop, thread })
    }

    /// The most that was seen, in MB.
    fn peak(self) -> anyhow::Result<f64> {
        drop(self.stop);
        let peak = self.thread.join().map_err(|_| anyhow::anyhow!("the watch failed"))??;
        Ok(peak as f64 / 1e6)
    }
}

async fn checkpoints(
    adapter: &dyn SandboxAdapter,
    machine: &Handle,
    folder: &Path,
    options: Options,
    table: &mut Table,
) -> anyhow::Result<()> {
    let (files, kilobytes) = options.pick((10_000, 100), (500, 10));
    let script = format!(
        "mkdir -p ~/tree && cd ~/tree && for i in $(seq 1 {files}); do head -c {kilobytes}000 /dev/urandom > f$i; done"
    );
    let shell = async |script: &str| {
        let arguments = ["-c".to_owned(), script.to_owned()];
        let done = adapter.exec(machine, "sh", &arguments, ExecOptions::default()).await;
        done.map_err(told)
    };
    anyhow::ensure!(shell(&script).await.context("tree")?.code == 0, "the tree was not made");
    let started = Instant::now();
    let id = adapter
        .create_checkpoint(machine, "bench", None)
        .await
        .map_err(told)
        .context("checkpoint")?;
    let checkpoint = ms(started.elapsed());
    shell("rm -rf ~/tree").await.context("rm")?;
    let started = Instant::now();
    adapter
        .restore_checkpoint(machine, &id, None)
        .await
        .map_err(told)
        .context("restore")?;
    let restore = ms(started.elapsed());
    let counted = shell("find ~/tree -type f | wc -l").await?.output;
    anyhow::ensure!(
        String::from_utf8_lossy(&counted).trim() == files.to_string(),
        "the restored tree is not whole"
    );

    let tree = folder.join("tree");
    std::fs::create_dir(&tree)?;
    let mut random = std::fs::File::open("/dev/urandom")?;
    let mut content = vec![0; kilobytes * 1000];
    for number in 0..files {
        random.read_exact(&mut content)?;
        std::fs::write(tree.join(format!("f{number}")), &content)?;
    }
    let timed = |command: &mut Command| -> anyhow::Result<f64> {
        let started = Instant::now();
        anyhow::ensure!(command.status()?.success(), "a baseline failed");
        Ok(ms(started.elapsed()))
    };
    let copy = timed(
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(&tree)
            .arg(folder.join("copy")),
    )?;
    let tar = timed(
        Command::new("tar")
            .arg("-cf")
            .arg(folder.join("t.tar"))
            .arg("-C")
            .arg(&tree)
            .arg("."),
    )?;
    for (what, value) in [("checkpoint of 1 GB", checkpoint), ("restore of it", restore)] {
        table.row(
            what,
            format!("{value:.0} ms"),
            format!("cp: {copy:.0} ms, tar: {tar:.0} ms"),
            ratio(value, copy),
            "",
        );
    }
    Ok(())
}
