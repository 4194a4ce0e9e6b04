//! Carries one request to what listens inside a sprite and its answer back (providers 1.2, the URL of a sprite).
//!
//! A connection inside per request, both ways at the same time, each holding no more than a few chunks. What concerns one
//! connection only stays on it. The answer comes from a stranger: it is framed anew, and one that breaks off inside breaks
//! off outside as well, so that nobody takes it for whole.

use std::io;
use std::time::Duration;

use actix_codec::Decoder;
use actix_http::ResponseHead;
use actix_http::h1::{ClientCodec, ClientPayloadCodec};
use actix_web::body::{BodyStream, SizedStream};
use actix_web::http::{Method, StatusCode, header};
use actix_web::rt::task::JoinHandle;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream as Chunks, StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::enclosure::Stream;

const CHUNK: usize = 64 * 1024;
/// How long the head of an answer may take. Longer than any client waits for one; what has begun may take for ever.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a socket whose client has left may still say something.
const LINGER: Duration = Duration::from_secs(5);

/// Headers that concern one connection (RFC 9110, 7.6.1), and those that this door answers itself.
const OF_ONE_CONNECTION: [&str; 10] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Where the address of the sprite begins, for those inside who make links.
const PREFIX: &str = "x-forwarded-prefix";

/// What changes on the way in.
pub struct Passage<'p> {
    /// Path and query as they are asked for inside.
    pub target: &'p str,
    /// What was taken off the path.
    pub prefix: &'p str,
    /// Whether `Authorization` is for the inside.
    pub authorization: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("what listens there does not answer")]
    Silent,
    #[error("what listens there does not speak HTTP/1.1")]
    Garbled,
    #[error("it broke off")]
    Broken(#[source] io::Error),
    #[error("the body cannot be read")]
    Body,
}

impl Failed {
    /// The status that says so.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Silent => StatusCode::GATEWAY_TIMEOUT,
            Self::Garbled | Self::Broken(_) => StatusCode::BAD_GATEWAY,
            Self::Body => StatusCode::BAD_REQUEST,
        }
    }
}

/// How the body of a request goes in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    None,
    Length,
    Chunked,
    /// A socket: bytes without an end.
    Raw,
}

/// Ends with whoever waits for the answer.
struct Upload(JoinHandle<()>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Carries a request in; answers when the head of the answer is there. Its body follows by itself.
///
/// # Errors
/// [`Failed`].
pub async fn forward(
    inside: Box<dyn Stream>,
    request: &HttpRequest,
    body: web::Payload,
    passage: &Passage<'_>,
) -> Result<HttpResponse, Failed> {
    let framing = framing(request);
    let head = head(request, passage, framing);
    let (mut reader, writer) = tokio::io::split(inside);
    let (ending, mut ended) = oneshot::channel();
    let upload = Upload(actix_web::rt::spawn(async move {
        let mut writer = writer;
        let sent = send(&mut writer, &head, body, framing).await;
        let _ = ending.send(sent);
        // The half stays open until the answer is over.
        std::future::pending::<()>().await;
    }));
    let mut codec = ClientCodec::default();
    let mut buffer = BytesMut::with_capacity(CHUNK);
    let head = {
        let answered = answer(&mut reader, &mut buffer, &mut codec);
        tokio::pin!(answered);
        // An answer may be there before all of the input was read; the time for it runs from the end of the input.
        let early = match framing {
            Framing::Raw => None,
            _ => tokio::select! {
                early = &mut answered => Some(early),
                sent = &mut ended => match sent {
                    Ok(Err(Sent::ClientLeft)) => return Err(Failed::Body),
                    _ => None,
                },
            },
        };
        match early {
            Some(early) => early?,
            None => timeout(PATIENCE, answered).await.map_err(|_| Failed::Silent)??,
        }
    };
    let is_switch = head.status == StatusCode::SWITCHING_PROTOCOLS;
    if is_switch && framing != Framing::Raw {
        return Err(Failed::Garbled);
    }
    let mut response = HttpResponse::build(head.status);
    for (name, value) in head.headers() {
        if is_carried(name.as_str(), &head.headers) && name != header::CONTENT_LENGTH {
            response.append_header((name.clone(), value.clone()));
        }
    }
    if is_switch {
        let tunnel = Tunnel {
            reader,
            buffer,
            ended: Some(ended),
            _upload: upload,
        };
        return Ok(response.upgrade("websocket").body(BodyStream::new(tunnel.chunks())));
    }
    let length = length(&head);
    let is_bare = matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if is_bare || request.method() == Method::HEAD {
        return Ok(match length.filter(|_| !is_bare) {
            Some(length) => response.body(SizedStream::new(length, stream::empty::<io::Result<Bytes>>())),
            None => response.finish(),
        });
    }
    let is_framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
    let download = Download {
        reader,
        buffer,
        // Without either, the end of the connection is the end of the answer.
        codec: is_framed.then(|| codec.into_payload_codec()),
        _upload: upload,
    };
    Ok(match length {
        Some(0) => response.finish(),
        Some(length) => response.body(SizedStream::new(length, download.chunks())),
        None => response.body(BodyStream::new(download.chunks())),
    })
}

fn framing(request: &HttpRequest) -> Framing {
    let headers = request.headers();
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if request.head().upgrade() && upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        Framing::Raw
    } else if headers.contains_key(header::TRANSFER_ENCODING) {
        Framing::Chunked
    } else if headers.contains_key(header::CONTENT_LENGTH) {
        Framing::Length
    } else {
        Framing::None
    }
}

/// The length that an answer announces. Where it is chunked, that counts.
fn length(head: &ResponseHead) -> Option<u64> {
    if head.headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    let length = head.headers.get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.trim().parse().ok()
}

/// Whether a header goes beyond this connection.
fn is_carried(name: &str, all: &actix_http::header::HeaderMap) -> bool {
    let named = all.get_all(header::CONNECTION).filter_map(|value| value.to_str().ok());
    let mut named = named.flat_map(|value| value.split(','));
    !OF_ONE_CONNECTION.contains(&name) && !named.any(|other| other.trim().eq_ignore_ascii_case(name))
}

fn head(request: &HttpRequest, passage: &Passage<'_>, framing: Framing) -> BytesMut {
    let mut head = BytesMut::with_capacity(1024);
    let line = format!("{} {} HTTP/1.1\r\n", request.method(), passage.target);
    head.extend_from_slice(line.as_bytes());
    let mut add = |name: &[u8], value: &[u8]| {
        for part in [name, b": ", value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    };
    for (name, value) in request.headers() {
        let is_ours = name == PREFIX || (name == header::AUTHORIZATION && !passage.authorization);
        if !is_ours && is_carried(name.as_str(), request.headers()) {
            add(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    if !request.headers().contains_key(header::HOST) {
        add(b"host", b"localhost");
    }
    add(PREFIX.as_bytes(), passage.prefix.as_bytes());
    match framing {
        Framing::Raw => {
            add(b"connection", b"upgrade");
            add(b"upgrade", b"websocket");
        }
        Framing::Chunked => {
            add(b"connection", b"close");
            add(b"transfer-encoding", b"chunked");
        }
        Framing::Length | Framing::None => add(b"connection", b"close"),
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Why not all of a request went in.
enum Sent {
    /// The inside reads no more; it may have answered.
    Refused,
    ClientLeft,
}

async fn send(
    writer: &mut WriteHalf<Box<dyn Stream>>,
    head: &[u8],
    mut body: web::Payload,
    framing: Framing,
) -> Result<(), Sent> {
    let refused = |_| Sent::Refused;
    writer.write_all(head).await.map_err(refused)?;
    writer.flush().await.map_err(refused)?;
    if framing == Framing::None {
        return Ok(());
    }
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| Sent::ClientLeft)?;
        if chunk.is_empty() {
            continue;
        }
        if framing == Framing::Chunked {
            let size = format!("{:x}\r\n", chunk.len());
            writer.write_all(size.as_bytes()).await.map_err(refused)?;
            writer.write_all(&chunk).await.map_err(refused)?;
            writer.write_all(b"\r\n").await.map_err(refused)?;
        } else {
            writer.write_all(&chunk).await.map_err(refused)?;
        }
        writer.flush().await.map_err(refused)?;
    }
    match framing {
        Framing::Chunked => writer.write_all(b"0\r\n\r\n").await.map_err(refused)?,
        Framing::Raw => writer.shutdown().await.map_err(refused)?,
        Framing::Length | Framing::None => {}
    }
    writer.flush().await.map_err(refused)
}

/// The head of the answer; those before it that are no answer are passed over.
async fn answer(
    reader: &mut ReadHalf<Box<dyn Stream>>,
    buffer: &mut BytesMut,
    codec: &mut ClientCodec,
) -> Result<ResponseHead, Failed> {
    loop {
        while let Some(head) = codec.decode(buffer).map_err(|_| Failed::Garbled)? {
            if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(head);
            }
        }
        buffer.reserve(CHUNK);
        if reader.read_buf(buffer).await.map_err(Failed::Broken)? == 0 {
            return Err(Failed::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// The body of an answer.
struct Download {
    reader: ReadHalf<Box<dyn Stream>>,
    buffer: BytesMut,
    codec: Option<ClientPayloadCodec>,
    _upload: Upload,
}

impl Download {
    fn chunks(self) -> impl Chunks<Item = io::Result<Bytes>> {
        stream::unfold(Some(self), |download| async {
            let mut download = download?;
            match download.next().await {
                Ok(None) => None,
                Ok(Some(chunk)) => Some((Ok(chunk), Some(download))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match &mut self.codec {
                Some(codec) => {
                    if let Some(item) = codec.decode(&mut self.buffer).map_err(io::Error::other)? {
                        return Ok(item);
                    }
                }
                None if !self.buffer.is_empty() => return Ok(Some(self.buffer.split().freeze())),
                None => {}
            }
            self.buffer.reserve(CHUNK);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return match &self.codec {
                    Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                    None => Ok(None),
                };
            }
        }
    }
}

/// What a socket inside says.
struct Tunnel {
    reader: ReadHalf<Box<dyn Stream>>,
    buffer: BytesMut,
    /// Until the client has left.
    ended: Option<oneshot::Receiver<Result<(), Sent>>>,
    _upload: Upload,
}

impl Tunnel {
    fn chunks(self) -> impl Chunks<Item = io::Result<Bytes>> {
        stream::unfold(self, |mut tunnel| async {
            let chunk = tunnel.next().await?;
            Some((Ok(chunk), tunnel))
        })
    }

    /// A socket has no end that could be missed: its own protocol says so.
    async fn next(&mut self) -> Option<Bytes> {
        if self.buffer.is_empty() {
            self.buffer.reserve(CHUNK);
            let read = self.reader.read_buf(&mut self.buffer);
            tokio::pin!(read);
            let first = match &mut self.ended {
                None => None,
                Some(ended) => tokio::select! {
                    length = &mut read => Some(length),
                    _ = ended => None,
                },
            };
            let length = match first {
                Some(length) => length.ok()?,
                None => timeout(LINGER, read).await.ok()?.ok()?,
            };
            if length == 0 {
                return None;
            }
        }
        Some(self.buffer.split().freeze())
    }
}
