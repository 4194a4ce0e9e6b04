//! The exec socket (providers 1.3): `session_info`, output from byte zero, the exit, a hold, the close.
//!
//! Output and input are walked at the same time, so a client that does not read keeps its own input flowing and a command
//! that does not read keeps its output flowing. The exit frame follows all output; it is never made up: a lost session
//! (RUL-L-112, RUL-L-114) closes with 1011 and without one.

use std::{pin::pin, str::FromStr, sync::Arc, time::UNIX_EPOCH};

use actix_web::{HttpRequest, HttpResponse, http::header::HeaderValue, web};
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason, Closed, ProtocolError};
use bytes::{BufMut, Bytes, BytesMut};
use fountain_process::{Event, Reader, Session, Stream, WindowSize};
use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::json;

use super::{
    Attachment, MAX_FRAME, Settings, SpriteExec, no_session, not_started,
    query::{Run, WINDOW},
};

/// Marks of the messages of a command without a terminal.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const EXIT: u8 = 3;
const STDIN_END: u8 = 4;
/// Input that waits for a command that does not read: beyond either the socket is not read.
const WAITING_BYTES: usize = 1024 * 1024;
const WAITING_MESSAGES: usize = 64;

/// Starts a command and answers with its socket.
pub(super) async fn run(sprite: SpriteExec, run: Run, request: &HttpRequest, body: web::Payload) -> HttpResponse {
    let (mut response, socket, messages) = match actix_ws::handle(request, body) {
        Ok(upgrade) => upgrade,
        Err(error) => return error.error_response(),
    };
    let session = match sprite.start(&run).await {
        Ok(session) => session,
        Err(error) => return not_started(&error),
    };
    let window = run.terminal.unwrap_or(WINDOW);
    let attachment = sprite.attachments.open(&session, run.after_disconnect, window);
    announce(&mut response);
    serve(
        attachment,
        Role::Owner { stdin: run.stdin },
        window,
        socket,
        messages,
        sprite.settings,
    );
    response
}

/// Answers with a socket of a session that exists.
pub(super) fn attach(sprite: &SpriteExec, id: &str, request: &HttpRequest, body: web::Payload) -> HttpResponse {
    let Some(session) = sprite.session(id) else {
        return no_session(id);
    };
    let (mut response, socket, messages) = match actix_ws::handle(request, body) {
        Ok(upgrade) => upgrade,
        Err(error) => return error.error_response(),
    };
    let (window, attachment) = (sprite.attachments.window(id), sprite.attachments.attach(&session));
    announce(&mut response);
    serve(attachment, Role::Guest, window, socket, messages, sprite.settings);
    response
}

fn announce(response: &mut HttpResponse) {
    let name = actix_web::http::header::HeaderName::from_static("x-sprite-capabilities");
    response.headers_mut().insert(name, HeaderValue::from_static("signal"));
}

/// Who opened the socket.
#[derive(Clone, Copy)]
enum Role {
    /// Who started the command. Without input, what it sends as such is ignored.
    Owner {
        stdin: bool,
    },
    Guest,
}

impl Role {
    fn may_write(self) -> bool {
        matches!(self, Self::Owner { stdin: true } | Self::Guest)
    }
}

fn serve(
    attachment: Attachment,
    role: Role,
    window: WindowSize,
    socket: actix_ws::Session,
    messages: actix_ws::MessageStream,
    settings: Settings,
) {
    let messages = messages
        .max_frame_size(MAX_FRAME)
        .aggregate_continuations()
        .max_continuation_size(MAX_FRAME);
    actix_web::rt::spawn(async move {
        let info = session_info(attachment.session(), role, window);
        converse(&attachment, role, info, socket, messages, settings).await;
    });
}

fn session_info(session: &Session, role: Role, window: WindowSize) -> String {
    let created = session.created_at().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "type": "session_info",
        "session_id": session.id(),
        "command": session.command(),
        "created": created.as_secs(),
        "cols": window.cols,
        "rows": window.rows,
        "is_owner": matches!(role, Role::Owner { .. }),
        "tty": session.has_terminal(),
    })
    .to_string()
}

/// How the output came to its end.
enum Ended {
    /// Everything was sent, the exit too.
    Told,
    /// There is no verdict to send.
    Lost,
    /// The client is gone.
    Gone,
}

/// Why no more input comes.
enum Left {
    Gone,
    /// A message beyond [`MAX_FRAME`].
    TooBig,
    /// Not a WebSocket any more.
    Broken,
}

async fn converse(
    attachment: &Attachment,
    role: Role,
    info: String,
    mut socket: actix_ws::Session,
    messages: AggregatedMessageStream,
    settings: Settings,
) {
    if socket.text(info).await.is_err() {
        return;
    }
    let session = attachment.session();
    let mut output = pin!(send_output(session, socket.clone(), settings));
    let mut input = pin!(take_input(attachment, role, socket.clone(), messages));
    let ended = tokio::select! {
        ended = &mut output => ended,
        left = &mut input => return leave(socket, left).await,
    };
    match ended {
        Ended::Gone => return,
        Ended::Lost => return close(socket, CloseCode::Error, "the end of the command is not known").await,
        Ended::Told => {}
    }
    // A terminal's client takes the close for the end; the others close by themselves or are closed.
    if !session.has_terminal()
        && let Ok(left) = tokio::time::timeout(settings.hold, input).await
    {
        return leave(socket, left).await;
    }
    close(socket, CloseCode::Normal, "").await;
}

async fn leave(socket: actix_ws::Session, left: Left) {
    match left {
        Left::Gone => close(socket, CloseCode::Normal, "").await,
        Left::TooBig => close(socket, CloseCode::Size, "a message is too big").await,
        Left::Broken => close(socket, CloseCode::Protocol, "").await,
    }
}

async fn close(socket: actix_ws::Session, code: CloseCode, why: &str) {
    let description = Some(why.to_owned()).filter(|why| !why.is_empty());
    // The client may have been faster.
    let _ = socket.close(Some(CloseReason { code, description })).await;
}

async fn send_output(session: &Arc<Session>, mut socket: actix_ws::Session, settings: Settings) -> Ended {
    let mut reader = session.reader();
    loop {
        let sent = match tokio::time::timeout(settings.keepalive, reader.next()).await {
            Err(_) => socket.text(r#"{"type":"keepalive"}"#).await,
            Ok(Ok(Event::Output { stream, data })) => send_chunk(session, &mut socket, stream, data).await,
            Ok(Ok(Event::Exit(exit))) => {
                let Some(code) = exit.verdict() else { return Ended::Lost };
                let told = send_exit(session, &mut socket, code).await;
                return if told.is_ok() { Ended::Told } else { Ended::Gone };
            }
            Ok(Err(error)) => {
                tracing::error!(session = session.id(), position = Reader::position(&reader), %error, "a journal cannot be read");
                return Ended::Lost;
            }
        };
        if sent.is_err() {
            return Ended::Gone;
        }
    }
}

async fn send_chunk(
    session: &Session,
    socket: &mut actix_ws::Session,
    stream: Stream,
    data: Bytes,
) -> Result<(), Closed> {
    if session.has_terminal() {
        return socket.binary(data).await;
    }
    socket.binary(marked(stream, &data)).await
}

/// A chunk with the mark of its stream.
pub(super) fn marked(stream: Stream, data: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(1 + data.len());
    message.put_u8(match stream {
        Stream::Stdout => STDOUT,
        Stream::Stderr => STDERR,
    });
    message.put_slice(data);
    message.freeze()
}

/// The message that ends a command without a terminal: one byte of code.
pub(super) fn exit_frame(code: i32) -> Bytes {
    Bytes::copy_from_slice(&[EXIT, exit_byte(code)])
}

/// A code as a process can give it; anything else (there is none) is a failure.
pub(super) fn exit_byte(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

async fn send_exit(session: &Session, socket: &mut actix_ws::Session, code: i32) -> Result<(), Closed> {
    if session.has_terminal() {
        let code = exit_byte(code);
        let exit = json!({"type": "exit", "exit_code": code, "code": code});
        return socket.text(exit.to_string()).await;
    }
    socket.binary(exit_frame(code)).await
}

type Writing = LocalBoxFuture<'static, usize>;

/// Takes what the client sends until it leaves. Input that the command has not taken yet waits here, up to a limit.
async fn take_input(
    attachment: &Attachment,
    role: Role,
    mut socket: actix_ws::Session,
    mut messages: AggregatedMessageStream,
) -> Left {
    let mut writing = FuturesUnordered::<Writing>::new();
    let mut waiting = 0_usize;
    loop {
        let has_room = waiting < WAITING_BYTES && writing.len() < WAITING_MESSAGES;
        let message = tokio::select! {
            Some(taken) = writing.next(), if !writing.is_empty() => {
                waiting -= taken;
                continue;
            }
            message = messages.recv(), if has_room => message,
        };
        match message {
            Some(Ok(AggregatedMessage::Binary(data))) => {
                if let Some((length, write)) = write(attachment.session(), role, data) {
                    waiting += length;
                    writing.push(write);
                }
            }
            Some(Ok(AggregatedMessage::Text(text))) => obey(attachment, &text),
            Some(Ok(AggregatedMessage::Ping(data))) => {
                if socket.pong(&data).await.is_err() {
                    return Left::Gone;
                }
            }
            Some(Ok(AggregatedMessage::Pong(_))) => {}
            Some(Ok(AggregatedMessage::Close(_))) | None => return Left::Gone,
            Some(Err(ProtocolError::Overflow)) => return Left::TooBig,
            Some(Err(ProtocolError::Io(_))) => return Left::Gone,
            Some(Err(_)) => return Left::Broken,
        }
    }
}

/// Queues input in the order of arrival. Refused input (the command is over, or does not read) is nobody's news.
fn write(session: &Session, role: Role, mut data: Bytes) -> Option<(usize, Writing)> {
    if !role.may_write() {
        return None;
    }
    if session.has_terminal() {
        return Some(writing(session, data));
    }
    match data.first() {
        Some(&STDIN) => Some(writing(session, data.split_off(1))),
        Some(&STDIN_END) => {
            let closing = session.close_stdin();
            let closing = async move {
                let _ = closing.await;
                0
            };
            Some((0, Box::pin(closing)))
        }
        _ => None,
    }
}

fn writing(session: &Session, data: Bytes) -> (usize, Writing) {
    let length = data.len();
    let write = session.write(data);
    let write = async move {
        let _ = write.await;
        length
    };
    (length, Box::pin(write))
}

/// What a client says in words.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Order {
    Resize { cols: u16, rows: u16 },
    Signal { signal: String },
}

/// Obeys what is known and ignores the rest.
fn obey(attachment: &Attachment, text: &str) {
    match serde_json::from_str(text) {
        Ok(Order::Resize { cols, rows }) if cols > 0 && rows > 0 => attachment.resize(WindowSize { rows, cols }),
        Ok(Order::Signal { signal }) => {
            if let Some(signal) = signal_named(&signal) {
                attachment.session().signal(signal);
            }
        }
        Ok(Order::Resize { .. }) | Err(_) => {}
    }
}

/// A signal by its name, with or without `SIG`.
pub(super) fn signal_named(name: &str) -> Option<Signal> {
    let name = name.trim().to_ascii_uppercase();
    let name = if name.starts_with("SIG") {
        name
    } else {
        format!("SIG{name}")
    };
    Signal::from_str(&name).ok()
}
