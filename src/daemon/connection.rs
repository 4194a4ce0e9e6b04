//! One connection, from the upgrade to its end: reads requests, writes replies and frames, keeps the line alive.

use std::{rc::Rc, sync::Arc, time::Duration};

use actix_http::ws::Item;
use awc::ws::{CloseCode, Frame};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;

use super::{
    State,
    operations::Operations,
    socket::{Control, Liveness, Socket, Writer},
    subscriptions::{Outbound, Subscriptions},
    wire::Request,
};

/// Largest message of the server (runner-protocol 2, RUL-43a).
pub const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;
/// A message above this size is parsed on the blocking pool.
const PARSED_HERE: usize = 64 * 1024;
/// Pongs that may wait for the writer; more pings than that need no answer each.
const CONTROLS: usize = 16;
/// The last frames of stopped sessions, a close, and the answer to one may each take this long.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The server closed it with this code.
    Closed(u16),
    /// It broke.
    Lost(String),
    /// The daemon is shutting down; its sessions are stopped.
    ShutDown,
}

/// Serves a connection. Answers how it ended, and whether the server ever said anything but goodbye.
pub async fn serve(socket: Socket, state: &Arc<State>, shutdown: impl Future<Output = ()>) -> (Ended, bool) {
    let timing = &state.timing;
    let Socket { sink, stream, liveness } = socket;
    let (out, messages) = Outbound::new();
    let (control, controls) = mpsc::channel(CONTROLS);
    let subscriptions = Subscriptions::new(out.clone());
    let operations = Operations::new(Arc::clone(state), Rc::clone(&subscriptions), out);
    let writer = Writer::new(sink, messages, controls, Rc::clone(&liveness), timing);
    let mut reader = Reader {
        operations,
        control: control.clone(),
        liveness: &liveness,
        parts: None,
        has_heard: false,
    };

    let ended = {
        let serving = async {
            let (mut reading, mut writing) = (std::pin::pin!(reader.run(stream)), std::pin::pin!(writer.run()));
            let mut has_closed = false;
            loop {
                tokio::select! {
                    biased;
                    ended = &mut reading => {
                        if matches!(ended, Ended::Closed(_)) && !has_closed {
                            // A close is answered, or proxies on the way report a broken connection.
                            let _ = control.try_send(Control::Close);
                            let _ = tokio::time::timeout(FAREWELL, &mut writing).await;
                        }
                        return ended;
                    }
                    written = &mut writing, if !has_closed => match written {
                        // Ours went out; the server's answer is still to come.
                        Ok(()) => has_closed = true,
                        Err(error) => return Ended::Lost(error.to_string()),
                    },
                    () = liveness.silence(timing.pong_within) => {
                        return Ended::Lost("a ping was not answered".to_owned());
                    }
                }
            }
        };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            biased;
            ended = &mut serving => ended,
            () = shutdown => {
                // Sessions end while somebody can still hear of it; the close goes out after their last frames.
                let farewell = async {
                    state.registry.close(timing.shutdown_grace).await;
                    let _ = tokio::time::timeout(FAREWELL, subscriptions.finish()).await;
                    let _ = control.send(Control::Close).await;
                    tokio::time::sleep(FAREWELL).await;
                };
                tokio::select! {
                    _ = &mut serving => {}
                    () = farewell => {}
                }
                Ended::ShutDown
            }
        }
    };
    (ended, reader.has_heard)
}

struct Reader<'c> {
    operations: Operations,
    control: mpsc::Sender<Control>,
    liveness: &'c Liveness,
    /// The pieces of a fragmented text so far.
    parts: Option<BytesMut>,
    has_heard: bool,
}

impl Reader<'_> {
    async fn run<E>(&mut self, mut stream: impl Stream<Item = Result<Frame, E>> + Unpin) -> Ended
    where
        E: std::fmt::Display,
    {
        loop {
            let frame = match stream.next().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Ended::Lost(error.to_string()),
                None => return Ended::Lost("the connection was cut".to_owned()),
            };
            match frame {
                Frame::Close(reason) => {
                    let code = reason.map_or(CloseCode::Normal, |reason| reason.code);
                    return Ended::Closed(code.into());
                }
                Frame::Ping(data) => drop(self.control.try_send(Control::Pong(data))),
                Frame::Pong(_) => self.liveness.answered(),
                Frame::Text(text) => self.request(text).await,
                Frame::Binary(_) => tracing::warn!("a binary message was skipped"),
                Frame::Continuation(item) => {
                    if let Err(reason) = self.piece(item).await {
                        return Ended::Lost(reason.to_owned());
                    }
                }
            }
            self.has_heard = true;
        }
    }

    async fn piece(&mut self, item: Item) -> Result<(), &'static str> {
        let is_last = matches!(item, Item::Last(_));
        match item {
            Item::FirstText(data) => self.parts = Some(BytesMut::from(data.as_ref())),
            // Requests are text; the pieces of anything else are passed over.
            Item::FirstBinary(_) => self.parts = None,
            Item::Continue(data) | Item::Last(data) => {
                if let Some(parts) = &mut self.parts {
                    if parts.len() + data.len() > MESSAGE_LIMIT {
                        return Err("a message was larger than 64 MiB");
                    }
                    parts.extend_from_slice(&data);
                }
            }
        }
        if is_last && let Some(whole) = self.parts.take() {
            self.request(whole.freeze()).await;
        }
        Ok(())
    }

    /// Begins one request. The next one is not looked at before this one took its place, however long parsing takes.
    async fn request(&mut self, text: Bytes) {
        let parsed = if text.len() <= PARSED_HERE {
            serde_json::from_slice::<Request>(&text)
        } else {
            let parsing = tokio::task::spawn_blocking(move || serde_json::from_slice::<Request>(&text));
            match parsing.await {
                Ok(parsed) => parsed,
                Err(error) => return tracing::error!(%error, "a request could not be parsed"),
            }
        };
        match parsed {
            Ok(request) => {
                tracing::debug!(id = request.id, op = request.op, "request");
                self.operations.run(request);
            }
            // The error quotes positions, not the content.
            Err(error) => tracing::warn!(%error, "a message that is no request was skipped"),
        }
    }
}
