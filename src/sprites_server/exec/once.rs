//! `POST /v1/sprites/{n}/exec` (providers 1.5): a command whose input is the body and whose output is the answer.
//!
//! Every chunk of the answer is one frame: 1 or 2 and output, at last 3 and the code. Without a verdict the answer breaks
//! off, so that no client takes it for whole. A client that leaves is a disconnect like any other.
//!
//! The published npm client finds the frames by what one read of its stream gives, and Node joins chunks that arrive
//! together. So no frame follows another at once ([`APART`]): it helps that client nearly always, and promises nothing.

use std::io;
use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};
use bytes::Bytes;
use fountain_process::{Event, Reader};
use futures_util::stream;

use super::{
    Attachment, SpriteExec, not_started,
    query::{ExecQuery, QueryError, WINDOW},
    refuse, socket,
};

/// Most input, in bytes.
pub const BODY_LIMIT: usize = 10 * 1024 * 1024;

/// Between two frames. Also lets each leave in a packet of its own.
const APART: Duration = Duration::from_millis(10);

/// Runs a command.
pub async fn post(sprite: SpriteExec, request: HttpRequest, body: web::Payload) -> HttpResponse {
    let mut run = match ExecQuery::parse(request.query_string()) {
        Ok(ExecQuery::Run(run)) => run,
        Ok(ExecQuery::Attach(_)) => return refuse(StatusCode::BAD_REQUEST, &QueryError::NoCommand.to_string()),
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let input = match body.to_bytes_limited(BODY_LIMIT).await {
        Ok(Ok(input)) => input,
        Ok(Err(_)) => return refuse(StatusCode::BAD_REQUEST, "the body cannot be read"),
        Err(_) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 10 MiB"),
    };
    // Frames tell the streams apart; a terminal has but one.
    run.terminal = None;
    run.stdin |= !input.is_empty();
    let session = match sprite.start(&run).await {
        Ok(session) => session,
        Err(error) => return not_started(&error),
    };
    let attachment = sprite.attachments.open(&session, run.after_disconnect, WINDOW);
    if run.stdin {
        let (writing, closing) = (session.write(input), session.close_stdin());
        actix_web::rt::spawn(async move {
            // A command need not read its input.
            let _ = tokio::join!(writing, closing);
        });
    }
    let walk = Walk {
        reader: session.reader(),
        attachment,
        has_sent: false,
    };
    HttpResponse::Ok()
        .content_type("application/octet-stream")
        .streaming(stream::unfold(Some(walk), step))
}

/// The output on its way to the client.
struct Walk {
    reader: Reader,
    attachment: Attachment,
    has_sent: bool,
}

async fn step(walk: Option<Walk>) -> Option<(io::Result<Bytes>, Option<Walk>)> {
    let mut walk = walk?;
    if walk.has_sent {
        tokio::time::sleep(APART).await;
    }
    walk.has_sent = true;
    Some(match walk.reader.next().await {
        Ok(Event::Output { stream, data }) => (Ok(socket::marked(stream, &data)), Some(walk)),
        Ok(Event::Exit(exit)) => match exit.verdict() {
            Some(code) => (Ok(socket::exit_frame(code)), None),
            None => (Err(io::Error::other("the end of the command is not known")), None),
        },
        Err(error) => {
            tracing::error!(session = walk.attachment.session().id(), %error, "a journal cannot be read");
            (Err(error), None)
        }
    })
}
