//! Open attachments of this process: who reads their sockets, and how input gets into them (sandbox-contract 7).
//!
//! Each attachment has two tasks on the thread that opened it: one reads, one writes. They are apart because a process
//! that echoes a large input blocks both ways unless somebody reads while the other writes. All output precedes the one
//! verdict, and the attachment is closed in the list before its verdict can be seen: a write after it is `command_exited`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_http::ws;
use bytes::Bytes;
use fountain_actors::ports::sandbox::{CLOSED_BEFORE_EXIT, Frame, FrameStream, Held, SandboxError};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

use crate::environment::OneTimeFile;
use crate::errors::unavailable;
use crate::exec::{piece, settle_file};
use crate::frames::{self, Decoder, Event};
use crate::wire::Socket;
use crate::{Core, Limits};

/// Most bytes of one message of input.
const LARGEST_INPUT: usize = 64 * 1024;
/// Orders that may wait for the writer.
const WAITING_ORDERS: usize = 16;
/// Bytes of output that may wait for their owner, and pieces; above it the socket is not read (RUL-43).
const WAITING_OUTPUT: usize = 8 * 1024 * 1024;
const WAITING_PIECES: usize = 64 * 1024;
/// How often a full attachment looks whether its owner has caught up.
const CAUGHT_UP: Duration = Duration::from_millis(10);
/// References of lost attachments that are remembered.
const REMEMBERED_LOSSES: usize = 1024;

type Reply = oneshot::Sender<Result<(), SandboxError>>;

enum Order {
    Input(Bytes, Reply),
    End(Reply),
    Pong(Bytes),
    Ping,
}

/// The attachments by reference.
#[derive(Default)]
pub(crate) struct Attachments {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    open: BTreeMap<u64, Open>,
    /// Those whose socket closed without a verdict: their process may well run.
    lost: BTreeSet<u64>,
}

struct Open {
    orders: mpsc::Sender<Order>,
    has_input: bool,
    reader: JoinHandle<()>,
    writer: AbortHandle,
}

/// A running attachment.
pub(crate) struct Attached {
    pub reference: u64,
    pub frames: FrameStream,
}

/// A socket, and what is known about its session.
pub(crate) struct Pump {
    pub socket: Socket,
    pub decoder: Decoder,
    /// Empty: the server did not say.
    pub session_id: String,
    /// Read before the pump ran.
    pub early: Vec<Event>,
    file: Option<OneTimeFile>,
    limits: Limits,
}

impl Pump {
    pub fn new(socket: Socket, decoder: Decoder, file: Option<OneTimeFile>, limits: Limits) -> Self {
        Self {
            socket,
            decoder,
            session_id: String::new(),
            early: Vec::new(),
            file,
            limits,
        }
    }
}

/// Tasks that end with this value.
pub(crate) struct Running {
    reader: JoinHandle<()>,
    writer: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
    }
}

/// Runs a pump that nobody else knows.
pub(crate) fn run_alone(pump: Pump) -> (Running, FrameStream) {
    let started = start(pump, |_| {});
    let running = Running {
        reader: started.reader,
        writer: started.writer,
    };
    (running, started.frames)
}

/// Runs a pump as an attachment of the list.
pub(crate) fn run(core: &Arc<Core>, pump: Pump, has_input: bool) -> Attached {
    static REFERENCES: AtomicU64 = AtomicU64::new(1);
    let reference = REFERENCES.fetch_add(1, Ordering::Relaxed);
    let at_end = {
        let core = Arc::clone(core);
        move |was_lost| core.attachments.ended(reference, was_lost)
    };
    let started = start(pump, at_end);
    let open = Open {
        orders: started.orders,
        has_input,
        reader: started.reader,
        writer: started.writer,
    };
    // The tasks have not run yet: they are of this thread.
    core.attachments.list().open.insert(reference, open);
    Attached {
        reference,
        frames: started.frames,
    }
}

struct Started {
    orders: mpsc::Sender<Order>,
    reader: JoinHandle<()>,
    writer: AbortHandle,
    frames: FrameStream,
}

fn start(pump: Pump, at_end: impl FnOnce(bool) + 'static) -> Started {
    let (orders, waiting) = mpsc::channel(WAITING_ORDERS);
    let (output, frames) = mpsc::unbounded_channel();
    let (sink, stream) = pump.socket.split();
    let tty = pump.decoder.is_tty();
    let writer = actix_rt::spawn(write(sink, waiting, tty)).abort_handle();
    let reader = Reader {
        stream,
        decoder: pump.decoder,
        early: pump.early,
        file: pump.file,
        limits: pump.limits,
        orders: orders.clone(),
        output,
        ledger: Arc::default(),
    };
    let reader = actix_rt::spawn(reader.run(writer.clone(), at_end));
    Started {
        orders,
        reader,
        writer,
        frames,
    }
}

struct Reader {
    stream: SplitStream<Socket>,
    decoder: Decoder,
    early: Vec<Event>,
    file: Option<OneTimeFile>,
    limits: Limits,
    orders: mpsc::Sender<Order>,
    output: mpsc::UnboundedSender<Frame>,
    ledger: Arc<AtomicUsize>,
}

/// Why reading ended.
enum End {
    Verdict(i64),
    Lost,
    /// Nobody listens any more.
    Unheard,
}

impl Reader {
    async fn run(mut self, writer: AbortHandle, at_end: impl FnOnce(bool)) {
        let end = self.read().await;
        at_end(matches!(end, End::Lost));
        writer.abort();
        let last = match end {
            End::Verdict(code) => {
                settle_file(self.file.take(), code);
                Frame::Exit(code)
            }
            End::Lost => Frame::Error(unavailable(CLOSED_BEFORE_EXIT)),
            End::Unheard => return,
        };
        // The owner may be gone: fine.
        let _ = self.output.send(last);
    }

    async fn read(&mut self) -> End {
        for event in std::mem::take(&mut self.early) {
            if let Some(end) = self.pass_on(event) {
                return end;
            }
        }
        // Pings in a row after which nothing was heard. Counted, not timed: a thread that was held up has missed one.
        let mut unanswered = 0;
        loop {
            if self.is_full() {
                tokio::select! {
                    () = self.output.closed() => return End::Unheard,
                    () = tokio::time::sleep(CAUGHT_UP) => {}
                }
                unanswered = 0;
                continue;
            }
            let frame = tokio::select! {
                () = self.output.closed() => return End::Unheard,
                frame = self.stream.next() => frame,
                () = tokio::time::sleep(self.limits.ping) => {
                    unanswered += 1;
                    if self.limits.ping * unanswered >= self.limits.silence {
                        return End::Lost;
                    }
                    // A full queue of orders is traffic enough.
                    let _ = self.orders.try_send(Order::Ping);
                    continue;
                }
            };
            unanswered = 0;
            match frame {
                Some(Ok(ws::Frame::Ping(bytes))) => {
                    let _ = self.orders.try_send(Order::Pong(bytes));
                }
                Some(Ok(ws::Frame::Close(_)) | Err(_)) | None => return self.at_close(),
                Some(Ok(frame)) => match piece(frame).map(|piece| self.decoder.take(piece)) {
                    Some(Ok(Some(event))) => {
                        if let Some(end) = self.pass_on(event) {
                            return end;
                        }
                    }
                    Some(Ok(None)) | None => {}
                    Some(Err(_)) => return End::Lost,
                },
            }
        }
    }

    fn is_full(&self) -> bool {
        // Every piece that waits holds the ledger.
        self.ledger.load(Ordering::Relaxed) > WAITING_OUTPUT || Arc::strong_count(&self.ledger) > WAITING_PIECES
    }

    fn at_close(&self) -> End {
        match self.decoder.at_close() {
            Event::Exit(code) => End::Verdict(code),
            _ => End::Lost,
        }
    }

    fn pass_on(&mut self, event: Event) -> Option<End> {
        let frame = match event {
            Event::SessionInfo { .. } => return None,
            Event::Stdout(bytes) => {
                // Output is the command's, whose shell has removed the file. An error text may be the shell's own.
                if let Some(file) = self.file.take() {
                    file.forget();
                }
                Frame::Stdout(Held::counted(bytes, &self.ledger))
            }
            Event::Stderr(bytes) => Frame::Stderr(Held::counted(bytes, &self.ledger)),
            Event::Exit(code) => return Some(End::Verdict(code)),
            Event::NoVerdict => return Some(End::Lost),
        };
        self.output.send(frame).err().map(|_| End::Unheard)
    }
}

async fn write(mut sink: SplitSink<Socket, ws::Message>, mut orders: mpsc::Receiver<Order>, tty: bool) {
    let mut has_ended = false;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Input(_, reply) if has_ended => {
                let _ = reply.send(Err(failed("stdin_closed")));
            }
            Order::Input(bytes, reply) => {
                let _ = reply.send(input(&mut sink, &bytes, tty).await);
            }
            Order::End(reply) => {
                let sent = if has_ended {
                    Ok(())
                } else {
                    sink.send(ws::Message::Binary(frames::stdin_eof())).await
                };
                has_ended = true;
                let _ = reply.send(sent.map_err(|_| failed("transport_failed")));
            }
            // A socket that cannot be written is found out by its reader.
            Order::Pong(bytes) => drop(sink.send(ws::Message::Pong(bytes)).await),
            Order::Ping => drop(sink.send(ws::Message::Ping(Bytes::new())).await),
        }
    }
}

async fn input(sink: &mut SplitSink<Socket, ws::Message>, bytes: &[u8], tty: bool) -> Result<(), SandboxError> {
    for part in bytes.chunks(LARGEST_INPUT) {
        sink.send(ws::Message::Binary(frames::stdin(part, tty)))
            .await
            .map_err(|_| failed("transport_failed"))?;
    }
    Ok(())
}

fn failed(why: &str) -> SandboxError {
    SandboxError::WriteFailed(why.to_owned())
}

impl Attachments {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, reference: u64, was_lost: bool) {
        let mut list = self.list();
        list.open.remove(&reference);
        if was_lost {
            list.lost.insert(reference);
            if list.lost.len() > REMEMBERED_LOSSES {
                list.lost.pop_first();
            }
        }
    }

    fn orders(&self, reference: u64) -> Option<(mpsc::Sender<Order>, bool)> {
        let list = self.list();
        let open = list.open.get(&reference)?;
        Some((open.orders.clone(), open.has_input))
    }

    /// Why a command takes no input: it ended or was let go, or its socket closed without a verdict.
    fn closed(&self, reference: u64) -> SandboxError {
        if self.list().lost.contains(&reference) {
            failed(CLOSED_BEFORE_EXIT)
        } else {
            SandboxError::CommandExited
        }
    }

    /// Total: ok, `command_exited` or `write_failed`, in call order.
    pub async fn write(&self, reference: u64, bytes: Bytes) -> Result<(), SandboxError> {
        let Some((orders, has_input)) = self.orders(reference) else {
            return Err(self.closed(reference));
        };
        if !has_input {
            return Err(failed("no_stdin"));
        }
        let (reply, answer) = oneshot::channel();
        if orders.send(Order::Input(bytes, reply)).await.is_err() {
            return Err(self.closed(reference));
        }
        answer.await.unwrap_or_else(|_| Err(self.closed(reference)))
    }

    /// One end of input, however often it is asked for. Fine after the exit.
    pub async fn end_input(&self, reference: u64) -> Result<(), SandboxError> {
        let Some((orders, _)) = self.orders(reference) else {
            return Ok(());
        };
        let (reply, answer) = oneshot::channel();
        if orders.send(Order::End(reply)).await.is_err() {
            return Ok(());
        }
        // No answer: the command ended meanwhile.
        answer.await.unwrap_or(Ok(()))
    }

    /// Closes the socket. When this returns no frame follows.
    pub async fn stop(&self, reference: u64) {
        let open = self.list().open.remove(&reference);
        if let Some(open) = open {
            open.writer.abort();
            open.reader.abort();
            let _ = open.reader.await;
        }
    }
}
