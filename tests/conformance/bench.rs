//! What a case needs to know of the adapter that it judges, and how it waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fountain_actors::ports::sandbox::*;
use futures_util::FutureExt as _;
use tokio::time::timeout;

/// A command line that an adapter's machines understand.
pub struct Line {
    pub command: &'static str,
    pub arguments: Vec<String>,
}

/// A line from literals.
pub fn line(command: &'static str, arguments: &[&str]) -> Line {
    Line {
        command,
        arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
    }
}

/// One adapter and its fixtures (the parameters of sandbox-contract 12).
pub trait Bench: Sized {
    /// What stands behind the adapter is started for this test alone, and ends when the value is dropped.
    async fn start() -> Self;
    fn adapter(&self) -> Arc<dyn SandboxAdapter>;
    /// A fresh machine name; names that carry a route are minted by their bench.
    fn name(&self, case: &str) -> String;
    /// How long any one frame may take.
    fn timeout(&self) -> Duration {
        Duration::from_secs(20)
    }
    /// Exactly what this adapter claims; a claim more or less is a failure of case 2.
    fn capabilities(&self) -> BTreeSet<Capability>;

    /// Writes `hello` to stdout, exits 0.
    fn ok(&self) -> Line;
    /// Exits 3.
    fn fails(&self) -> Line;
    /// Writes `ready`, echoes its input in some form, exits 0 at EOF.
    fn stays(&self) -> Line;
    /// Writes, then the transport closes without a verdict; None where no command can cause that.
    fn drops(&self) -> Option<Line>;
    /// Writes `out` to stdout and `err` to stderr, exits 0.
    fn both(&self) -> Line;
    /// Writes something every few milliseconds for minutes.
    fn pours(&self) -> Line;
    /// Answers its input byte for byte, exits 0 at EOF.
    fn cat(&self) -> Line;
    /// Writes the bytes 0 to 255 in order, exits 0.
    fn bytes(&self) -> Line;
    /// A path that does not exist, nor does its folder.
    fn path(&self) -> String {
        "/home/sprite/deep/down/file".to_owned()
    }

    /// What an exec of 500 ms answers when they are over: the code, or the error of the contract.
    fn out_of_time(&self) -> Result<i64, SandboxError> {
        Err(SandboxError::Unavailable("exec_timeout 500".to_owned()))
    }

    /// Options of every spawn.
    fn spawn_options(&self, stdin: bool) -> SpawnOptions {
        SpawnOptions {
            stdin,
            detachable: true,
            ..SpawnOptions::default()
        }
    }
}

/// A case's hands: the adapter, a name of its own, and the bench behind both.
pub struct Lab<B> {
    pub bench: B,
    pub adapter: Arc<dyn SandboxAdapter>,
    pub name: String,
}

/// Runs a case, and destroys its machine however it ended.
pub async fn run<B: Bench>(case: &'static str, body: impl AsyncFnOnce(&Lab<B>)) {
    let bench = B::start().await;
    let lab = Lab {
        adapter: bench.adapter(),
        name: bench.name(case),
        bench,
    };
    let outcome = std::panic::AssertUnwindSafe(body(&lab)).catch_unwind().await;
    let destroyed = lab.adapter.destroy(&lab.adapter.handle(&lab.name), None).await;
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure);
    }
    assert_eq!(destroyed, Ok(()), "the machine of {case} could not be destroyed");
}

impl<B: Bench> Lab<B> {
    pub fn has(&self, capability: Capability) -> bool {
        self.bench.capabilities().contains(&capability)
    }

    /// A machine of this test's name.
    pub async fn made(&self) -> Handle {
        self.adapter.create(&self.name, None).await.unwrap().handle
    }

    pub async fn exec(&self, handle: &Handle, line: &Line, options: ExecOptions) -> Result<ExecOutput, SandboxError> {
        let answer = self.adapter.exec(handle, line.command, &line.arguments, options);
        timeout(Duration::from_secs(60), answer).await.expect("an exec answers")
    }

    /// Runs a line to its end and answers its output, which must be all there was: exit 0.
    pub async fn output(&self, handle: &Handle, line: &Line) -> Bytes {
        let done = self.exec(handle, line, ExecOptions::default()).await.unwrap();
        assert_eq!(done.code, 0);
        done.output
    }

    pub async fn spawn(&self, handle: &Handle, line: &Line, stdin: bool) -> (Command, Frames) {
        let options = self.bench.spawn_options(stdin);
        let spawned = self.adapter.spawn(handle, line.command, &line.arguments, options).await;
        let (command, stream) = spawned.unwrap();
        (command, self.frames(stream))
    }

    pub async fn attach(&self, handle: &Handle, session: &str) -> (Command, Frames) {
        let (command, stream) = self.adapter.attach(handle, session).await.unwrap();
        (command, self.frames(stream))
    }

    fn frames(&self, stream: FrameStream) -> Frames {
        Frames {
            stream,
            patience: self.bench.timeout(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            replayed: None,
        }
    }
}

/// How an attachment ended.
pub type Verdict = Result<i64, SandboxError>;

/// One attachment's frames, accumulated: chunking is arbitrary (F6), so cases compare bytes.
pub struct Frames {
    stream: FrameStream,
    patience: Duration,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Where the replay ended, if the far end said so.
    pub replayed: Option<(i64, i64)>,
}

impl Frames {
    /// Takes one frame; a verdict is answered.
    async fn step(&mut self) -> Option<Verdict> {
        let next = timeout(self.patience, self.stream.recv()).await;
        match next
            .expect("a frame comes in time")
            .expect("a verdict comes before the stream ends")
        {
            Frame::Stdout(held) => self.stdout.extend_from_slice(&held.bytes),
            Frame::Stderr(held) => self.stderr.extend_from_slice(&held.bytes),
            Frame::ReplayEnd {
                stdout_bytes,
                stderr_bytes,
            } => self.replayed = Some((stdout_bytes, stderr_bytes)),
            Frame::Exit(code) => return Some(Ok(code)),
            Frame::Error(error) => return Some(Err(error)),
        }
        None
    }

    /// Waits until stdout holds `wanted`; a verdict before that is a failure.
    pub async fn until(&mut self, wanted: &[u8]) {
        while !contains(&self.stdout, wanted) {
            if let Some(verdict) = self.step().await {
                panic!("{verdict:?} before {:?} was heard", String::from_utf8_lossy(wanted));
            }
        }
    }

    /// Waits for the verdict, and that nothing follows it (F2).
    pub async fn verdict(&mut self) -> Verdict {
        let verdict = loop {
            if let Some(verdict) = self.step().await {
                break verdict;
            }
        };
        self.assert_quiet().await;
        verdict
    }

    /// Nothing comes within the contract's 50 ms; the stream may end.
    pub async fn assert_quiet(&mut self) {
        let more = timeout(Duration::from_millis(50), self.stream.recv()).await;
        assert!(matches!(more, Err(_) | Ok(None)), "something followed: {more:?}");
    }
}

pub fn contains(text: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || text.windows(wanted.len()).any(|window| window == wanted)
}
