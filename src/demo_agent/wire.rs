//! The demo agent's end of the pipe: lines in, lines out, and never more than a few waiting.
//!
//! The protocol crate queues what is sent without a bound. A client that stops reading would make the agent's memory
//! grow with its output, so every update first waits for [`Wire::room`]. The steps `garbage` and `split` also work
//! here, on the bytes themselves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use agent_client_protocol::Lines;
use futures_util::{Sink, Stream, sink, stream};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{Mutex, Notify};

/// Updates that may wait for the client to read.
const WINDOW: usize = 64;
/// Size of the pieces of `split`: prime and smaller than a character can be long, so that everything is cut somewhere.
const PIECE: usize = 7;

type Output = Pin<Box<dyn AsyncWrite + Send>>;

pub(super) struct Wire {
    /// Held over a write on purpose: lines must not mix.
    output: Mutex<Output>,
    waiting: AtomicUsize,
    written: Notify,
    split: AtomicBool,
    input_ended: Notify,
}

impl Wire {
    pub fn new(output: impl AsyncWrite + Send + 'static) -> Self {
        Self {
            output: Mutex::new(Box::pin(output)),
            waiting: AtomicUsize::new(0),
            written: Notify::new(),
            split: AtomicBool::new(false),
            input_ended: Notify::new(),
        }
    }

    /// Waits until another update may be sent, and counts it.
    pub async fn room(&self) {
        self.until(|waiting| waiting < WINDOW).await;
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until every counted update is written.
    pub async fn drained(&self) {
        self.until(|waiting| waiting == 0).await;
    }

    async fn until(&self, enough: impl Fn(usize) -> bool) {
        loop {
            // Registered before the look, so that a write in between is not missed.
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            if enough(self.waiting.load(Ordering::Acquire)) {
                return;
            }
            written.await;
        }
    }

    /// From now on lines leave in odd pieces.
    pub fn split(&self) {
        self.split.store(true, Ordering::Release);
    }

    /// Resolves when the client has closed our input. For one waiter.
    pub async fn input_ended(&self) {
        self.input_ended.notified().await;
    }

    /// Writes bytes past the protocol.
    pub async fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        let mut output = self.output.lock().await;
        output.write_all(bytes).await?;
        output.flush().await
    }

    async fn line(&self, mut line: String) -> io::Result<()> {
        // Only updates are counted by `room`; nothing else that we send can contain this.
        let counted = line.contains("\"session/update\"");
        line.push('\n');
        let mut output = self.output.lock().await;
        if self.split.load(Ordering::Acquire) {
            for piece in line.as_bytes().chunks(PIECE) {
                output.write_all(piece).await?;
                output.flush().await?;
            }
        } else {
            output.write_all(line.as_bytes()).await?;
            output.flush().await?;
        }
        if counted {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.written.notify_waiters();
        }
        Ok(())
    }
}

/// The transport for the protocol crate.
pub(super) fn transport(
    wire: Arc<Wire>,
    input: impl AsyncRead + Send + Unpin + 'static,
) -> Lines<impl Sink<String, Error = io::Error> + Send + 'static, impl Stream<Item = io::Result<String>> + Send + 'static>
{
    let outgoing = sink::unfold(wire.clone(), async |wire: Arc<Wire>, line: String| {
        wire.line(line).await?;
        Ok(wire)
    });
    let lines = (BufReader::new(input).lines(), wire);
    let incoming = stream::unfold(lines, async |(mut lines, wire)| {
        let line = lines.next_line().await.transpose();
        if line.is_none() {
            wire.input_ended.notify_one();
        }
        line.map(|line| (line, (lines, wire)))
    });
    Lines::new(Box::pin(outgoing), Box::pin(incoming))
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn p65_a_client_that_does_not_read_stops_the_agent_and_not_its_memory() {
        let wire = Wire::new(tokio::io::sink());
        for _ in 0..WINDOW {
            assert!(poll!(std::pin::pin!(wire.room())).is_ready());
        }
        let mut next = std::pin::pin!(wire.room());
        let mut drained = std::pin::pin!(wire.drained());
        assert!(poll!(next.as_mut()).is_pending(), "the window is full");
        assert!(poll!(drained.as_mut()).is_pending());
        wire.line(r#"{"result":{}}"#.into()).await.unwrap();
        assert!(poll!(next.as_mut()).is_pending(), "an answer frees nothing");
        wire.line(r#"{"method":"session/update"}"#.into()).await.unwrap();
        assert!(poll!(next.as_mut()).is_ready());
        for _ in 0..WINDOW {
            wire.line(r#"{"method":"session/update"}"#.into()).await.unwrap();
        }
        assert!(poll!(drained.as_mut()).is_ready());
    }
}
