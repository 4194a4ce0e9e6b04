//! One connection between its two ends: a socket of the stack here, a stream of the host there.
//!
//! A task per connection reads and writes the stream; the gateway moves bytes between the task and the socket. Both ways
//! are bounded: the task reads on only when what it read was taken, and the socket's window closes when the stream is
//! slow. A half that ends is passed on as such.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::State;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::packets::Key;
use super::stack::Stack;

/// Bytes of one hand-over.
const PIECE: usize = 64 * 1024;
/// Pieces under way in each direction.
const PIECES: usize = 2;

/// What a connection's task tells.
#[derive(Debug)]
pub enum Told {
    Data(Bytes),
    /// The host's end sends nothing more.
    End,
    /// There is room for more.
    Drained,
    /// The host's end is gone.
    Broken,
}

/// A connection.
pub struct Flow {
    pub handle: SocketHandle,
    outgoing: mpsc::Sender<Option<Bytes>>,
    incoming: VecDeque<Bytes>,
    credit: Arc<Semaphore>,
    host_ended: bool,
    sprite_ended: bool,
    task: JoinHandle<()>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flow {
    /// Carries a connection. `tell` hears of it under `key`.
    pub fn start(
        key: Key,
        handle: SocketHandle,
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        tell: mpsc::Sender<(Key, Told)>,
    ) -> Self {
        let (outgoing, from_sprite) = mpsc::channel(PIECES);
        let credit = Arc::new(Semaphore::new(PIECES));
        let task = tokio::spawn(carry(key, stream, from_sprite, Arc::clone(&credit), tell));
        Self {
            handle,
            outgoing,
            incoming: VecDeque::new(),
            credit,
            host_ended: false,
            sprite_ended: false,
            task,
        }
    }

    /// Takes what the task told. False: the connection is broken.
    pub fn hear(&mut self, told: Told) -> bool {
        match told {
            Told::Data(bytes) => self.incoming.push_back(bytes),
            Told::End => self.host_ended = true,
            Told::Drained => {}
            Told::Broken => return false,
        }
        true
    }

    /// Moves what can be moved. False: the connection is over.
    pub fn pump(&mut self, stack: &mut Stack) -> bool {
        let socket = stack.socket(self.handle);
        if socket.timeout().is_some() && !matches!(socket.state(), State::SynReceived) {
            // A connection may be silent for as long as it likes.
            socket.set_timeout(None);
        }
        while socket.can_recv() {
            let Ok(permit) = self.outgoing.try_reserve() else { break };
            let taken = socket.recv(|bytes| {
                let piece = bytes.get(..bytes.len().min(PIECE)).unwrap_or_default();
                (piece.len(), Bytes::copy_from_slice(piece))
            });
            match taken {
                Ok(bytes) => permit.send(Some(bytes)),
                Err(_) => break,
            }
        }
        let sends_no_more = matches!(
            socket.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        if sends_no_more && !socket.can_recv() && !self.sprite_ended && self.outgoing.try_send(None).is_ok() {
            self.sprite_ended = true;
        }
        while let Some(bytes) = self.incoming.front_mut() {
            match socket.send_slice(bytes) {
                Ok(0) | Err(_) => break,
                Ok(sent) => bytes.advance(sent),
            }
            if bytes.is_empty() {
                self.incoming.pop_front();
                self.credit.add_permits(1);
            }
        }
        if self.host_ended && self.incoming.is_empty() && socket.may_send() {
            socket.close();
        }
        match socket.state() {
            State::Closed => false,
            State::TimeWait => !self.sprite_ended,
            _ => true,
        }
    }
}

async fn carry(
    key: Key,
    stream: impl AsyncRead + AsyncWrite,
    mut from_sprite: mpsc::Receiver<Option<Bytes>>,
    credit: Arc<Semaphore>,
    tell: mpsc::Sender<(Key, Told)>,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let reading = async {
        let mut buffer = BytesMut::new();
        loop {
            // The semaphore is never closed.
            let Ok(permit) = credit.acquire().await else {
                return true;
            };
            permit.forget();
            buffer.reserve(PIECE);
            let told = match reader.read_buf(&mut buffer).await {
                Ok(0) => Told::End,
                Ok(_) => Told::Data(buffer.split().freeze()),
                Err(_) => return false,
            };
            let is_end = matches!(told, Told::End);
            if tell.send((key, told)).await.is_err() || is_end {
                return true;
            }
        }
    };
    let writing = async {
        while let Some(Some(bytes)) = from_sprite.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                return false;
            }
            if tell.send((key, Told::Drained)).await.is_err() {
                return true;
            }
        }
        writer.shutdown().await.is_ok()
    };
    let (mut reading, mut writing) = (std::pin::pin!(reading), std::pin::pin!(writing));
    let whole = tokio::select! {
        whole = &mut reading => whole && writing.await,
        whole = &mut writing => whole && reading.await,
    };
    if !whole {
        let _ = tell.send((key, Told::Broken)).await;
    }
}
