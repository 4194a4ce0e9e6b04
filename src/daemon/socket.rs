//! The socket underneath: whether bytes still move, and one writer for everything that goes out.
//!
//! Three limits end a connection: a write that moves no byte for 30 s (RUL-43), a ping after which nothing arrives for
//! 5 s (runner-protocol 9), and whatever the socket itself reports. "Moves" is measured at the bytes, not at messages: a
//! large file on a slow line takes its time without being taken for dead. Large messages go out in fragments, so that
//! pings and their answers get through between them.

use std::{
    cell::Cell,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use actix_http::ws::{Item, ProtocolError};
use awc::{
    BoxedSocket,
    ws::{CloseCode, CloseReason, Frame, Message},
};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};

use super::Timing;

/// A message above this size is sent in fragments of the second size.
const FRAGMENTED: (usize, usize) = (1024 * 1024, 256 * 1024);

/// An open connection: frames in, messages out, and the eye on both.
pub struct Socket {
    /// What goes out.
    pub sink: Pin<Box<dyn Sink<Message, Error = ProtocolError>>>,
    /// What comes in.
    pub stream: Pin<Box<dyn Stream<Item = Result<Frame, ProtocolError>>>>,
    /// Whether bytes move.
    pub liveness: Rc<Liveness>,
}

/// What the bytes of a socket have done.
#[derive(Debug)]
pub struct Liveness {
    last_read: Cell<Instant>,
    last_write: Cell<Instant>,
    asked: Cell<Option<Instant>>,
    has_asked: Notify,
}

impl Liveness {
    /// A socket that was just opened.
    pub fn new() -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Self {
            last_read: Cell::new(now),
            last_write: Cell::new(now),
            asked: Cell::new(None),
            has_asked: Notify::new(),
        })
    }

    /// The answer to a ping came.
    pub fn answered(&self) {
        self.asked.set(None);
    }

    fn ask(&self) {
        // An earlier ping that is still open counts on.
        if self.asked.get().is_none() {
            self.asked.set(Some(Instant::now()));
            self.has_asked.notify_one();
        }
    }

    /// Ends when a ping was sent and nothing at all arrived for `limit` since.
    pub async fn silence(&self, limit: Duration) {
        loop {
            let Some(asked) = self.asked.get() else {
                self.has_asked.notified().await;
                continue;
            };
            let deadline = asked.max(self.last_read.get()) + limit;
            if Instant::now() >= deadline {
                return;
            }
            sleep_until(deadline).await;
        }
    }

    /// Runs a write as long as it moves.
    async fn moving<F: Future>(&self, limit: Duration, write: F) -> io::Result<F::Output> {
        let began = Instant::now();
        let mut write = std::pin::pin!(write);
        loop {
            let deadline = began.max(self.last_write.get()) + limit;
            tokio::select! {
                biased;
                done = &mut write => return Ok(done),
                () = sleep_until(deadline) => {
                    if Instant::now() >= began.max(self.last_write.get()) + limit {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the server takes no more data"));
                    }
                }
            }
        }
    }
}

/// A socket that notes when bytes move.
pub struct Watched {
    socket: BoxedSocket,
    liveness: Rc<Liveness>,
}

impl Watched {
    /// Watches a socket.
    pub fn new(socket: BoxedSocket, liveness: Rc<Liveness>) -> Self {
        Self { socket, liveness }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        self.liveness.last_read.set(Instant::now());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes))?;
        self.liveness.last_write.set(Instant::now());
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, bytes))?;
        self.liveness.last_write.set(Instant::now());
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// What goes out ahead of messages.
#[derive(Debug)]
pub enum Control {
    /// The answer to a server's ping.
    Pong(Bytes),
    /// Sends what is queued, then a close.
    Close,
}

/// The one writer of a connection.
pub struct Writer<S> {
    sink: S,
    messages: mpsc::Receiver<String>,
    controls: mpsc::Receiver<Control>,
    liveness: Rc<Liveness>,
    stall: Duration,
    ping_every: Duration,
    next_ping: Instant,
}

impl<S> Writer<S>
where
    S: Sink<Message> + Unpin,
    S::Error: std::fmt::Display,
{
    /// Writes what comes through the two queues into `sink`.
    pub fn new(
        sink: S,
        messages: mpsc::Receiver<String>,
        controls: mpsc::Receiver<Control>,
        liveness: Rc<Liveness>,
        timing: &Timing,
    ) -> Self {
        let (stall, ping_every) = (timing.write_stall, timing.ping_every);
        Self {
            sink,
            messages,
            controls,
            liveness,
            stall,
            ping_every,
            next_ping: Instant::now() + ping_every,
        }
    }

    /// Writes until it is told to close.
    ///
    /// # Errors
    /// The socket broke, or took no byte for too long.
    pub async fn run(mut self) -> io::Result<()> {
        loop {
            // Flush only when there is nothing more to put into the same packet.
            let message = match self.messages.try_recv() {
                Ok(message) => Some(message),
                Err(_) => {
                    self.flush().await?;
                    None
                }
            };
            let message = match message {
                Some(message) => message,
                None => tokio::select! {
                    biased;
                    control = self.controls.recv() => match control {
                        Some(Control::Pong(data)) => {
                            self.put(Message::Pong(data)).await?;
                            continue;
                        }
                        Some(Control::Close) | None => return self.close().await,
                    },
                    () = sleep_until(self.next_ping) => {
                        self.ping().await?;
                        continue;
                    }
                    message = self.messages.recv() => match message {
                        Some(message) => message,
                        None => return self.close().await,
                    },
                },
            };
            self.send(message).await?;
        }
    }

    /// Sends one message, in fragments when it is large, with control frames that are due in between.
    async fn send(&mut self, message: String) -> io::Result<()> {
        if message.len() <= FRAGMENTED.0 {
            self.between().await?;
            return self.put(Message::Text(message.into())).await;
        }
        let mut rest = Bytes::from(message);
        let mut is_first = true;
        while !rest.is_empty() {
            self.between().await?;
            let piece = rest.split_to(rest.len().min(FRAGMENTED.1));
            let item = match (is_first, rest.is_empty()) {
                (true, _) => Item::FirstText(piece),
                (false, false) => Item::Continue(piece),
                (false, true) => Item::Last(piece),
            };
            is_first = false;
            self.put(Message::Continuation(item)).await?;
        }
        Ok(())
    }

    /// What may not wait behind messages. A wish to close does wait: it comes after what is queued.
    async fn between(&mut self) -> io::Result<()> {
        while let Ok(control) = self.controls.try_recv() {
            match control {
                Control::Pong(data) => self.put(Message::Pong(data)).await?,
                Control::Close => self.controls.close(),
            }
        }
        if Instant::now() >= self.next_ping {
            self.ping().await
        } else {
            Ok(())
        }
    }

    async fn ping(&mut self) -> io::Result<()> {
        self.put(Message::Ping(Bytes::new())).await?;
        self.flush().await?;
        // Counted from when it left, which may be long after it was due.
        self.liveness.ask();
        self.next_ping = Instant::now() + self.ping_every;
        Ok(())
    }

    async fn close(mut self) -> io::Result<()> {
        while let Ok(message) = self.messages.try_recv() {
            self.put(Message::Text(message.into())).await?;
        }
        self.put(Message::Close(Some(CloseReason::from(CloseCode::Away))))
            .await?;
        self.flush().await
    }

    async fn put(&mut self, message: Message) -> io::Result<()> {
        let put = self.liveness.moving(self.stall, self.sink.feed(message)).await?;
        put.map_err(|error| io::Error::other(error.to_string()))
    }

    async fn flush(&mut self) -> io::Result<()> {
        let flushed = self.liveness.moving(self.stall, self.sink.flush()).await?;
        flushed.map_err(|error| io::Error::other(error.to_string()))
    }
}
