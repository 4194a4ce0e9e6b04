//! A connection for one request, read down to its last byte.
//!
//! Receipts and streams of JSON lines need to know whether a body was whole, which the pooled client does not tell for
//! chunked bodies; upgrades need the answer's body when they are refused. Dropping the future closes the socket: in
//! HTTP/1 that cancels the request, so nothing outlives its caller or its deadline (sandbox-contract 10).

use std::sync::Arc;
use std::time::Duration;

use actix_codec::{AsyncRead, AsyncWrite, Framed};
use actix_http::body::BodySize;
use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, RequestHead, RequestHeadType, ResponseHead, StatusCode, Uri, h1, ws};
use actix_service::Service as _;
use actix_tls::connect::rustls_0_23::TlsConnector;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _};
use rustls::ClientConfig;
use tokio::net::TcpStream;

use crate::address::Address;
use crate::call::{Call, Lost, Reply};
use crate::entropy;
use crate::frames::LONGEST_MESSAGE;

/// Name look-up and TCP, then the TLS handshake, each.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of the body of a refused upgrade.
const LONGEST_REFUSAL: usize = 64 * 1024;

pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

type BoxedIo = Box<dyn Io>;
/// An open exec socket.
pub(crate) type Socket = Framed<BoxedIo, ws::Codec>;

/// Where and as whom.
pub(crate) struct Wire<'a> {
    pub address: &'a Address,
    pub tls: &'a Arc<ClientConfig>,
    pub token: &'a str,
}

/// The head of an answer, its body still to be read.
pub(crate) struct Incoming {
    pub head: ResponseHead,
    body: Body,
}

enum Body {
    None,
    Rest(Box<Framed<BoxedIo, h1::ClientPayloadCodec>>),
}

/// The answer to an upgrade.
pub(crate) enum Upgraded {
    Open(Box<Socket>, ResponseHead),
    Refused(Reply),
}

impl Wire<'_> {
    /// Sends a call on a connection of its own.
    pub async fn send(&self, call: &Call) -> Result<Incoming, Lost> {
        let mut head = self.head(call)?;
        head.set_connection_type(ConnectionType::Close);
        let body = call.body.as_ref().map(|(bytes, _)| bytes.clone());
        let framed = self.exchange(head, body).await?;
        Ok(Incoming::new(framed))
    }

    /// Asks for a WebSocket.
    pub async fn upgrade(&self, call: &Call) -> Result<Upgraded, Lost> {
        let key = entropy::base64_key().ok_or(Lost::Unsendable)?;
        let mut head = self.head(call)?;
        head.set_connection_type(ConnectionType::Upgrade);
        head.headers
            .insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        head.headers
            .insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let value = HeaderValue::from_str(&key).map_err(|_| Lost::Unsendable)?;
        head.headers.insert(header::SEC_WEBSOCKET_KEY, value);
        let (head, framed) = self.exchange(head, None).await?;
        if head.status != StatusCode::SWITCHING_PROTOCOLS {
            let reply = Incoming::new((head, framed)).whole(LONGEST_REFUSAL).await?;
            return Ok(Upgraded::Refused(reply));
        }
        let accepted = head
            .headers
            .get(header::SEC_WEBSOCKET_ACCEPT)
            .map(HeaderValue::as_bytes);
        if accepted != Some(&ws::hash_key(key.as_bytes())[..]) {
            return Err(Lost::Broken);
        }
        let socket = framed.into_map_codec(|_| ws::Codec::new().max_size(LONGEST_MESSAGE).client_mode());
        Ok(Upgraded::Open(Box::new(socket), head))
    }

    fn head(&self, call: &Call) -> Result<RequestHead, Lost> {
        let mut head = RequestHead::default();
        head.method = call.method.clone();
        head.uri = Uri::try_from(self.address.target(&call.path)).map_err(|_| Lost::Unsendable)?;
        head.headers = call.headers(self.token).ok_or(Lost::Unsendable)?;
        let host = HeaderValue::from_str(&self.address.authority).map_err(|_| Lost::Unsendable)?;
        head.headers.insert(header::HOST, host);
        Ok(head)
    }

    async fn connect(&self) -> Result<BoxedIo, Lost> {
        let place = (self.address.host.as_str(), self.address.port);
        let tcp = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(place))
            .await
            .map_err(|_| Lost::NotConnected)?
            .map_err(|_| Lost::NotConnected)?;
        // Small frames of a terminal are not to wait for each other.
        let _ = tcp.set_nodelay(true);
        if !self.address.secure {
            return Ok(Box::new(tcp));
        }
        let plain = actix_tls::connect::Connection::new(self.address.host.clone(), tcp);
        let handshake = TlsConnector::service(Arc::clone(self.tls)).call(plain);
        let (tls, _) = tokio::time::timeout(CONNECT_LIMIT, handshake)
            .await
            .map_err(|_| Lost::NotConnected)?
            .map_err(|_| Lost::NotConnected)?
            .into_parts();
        Ok(Box::new(tls))
    }

    async fn exchange(
        &self,
        head: RequestHead,
        body: Option<Bytes>,
    ) -> Result<(ResponseHead, Framed<BoxedIo, h1::ClientCodec>), Lost> {
        let mut framed = Framed::new(self.connect().await?, h1::ClientCodec::default());
        let size = match &body {
            Some(bytes) => BodySize::Sized(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            None if head.method == actix_http::Method::POST => BodySize::Sized(0),
            None => BodySize::None,
        };
        let head = (RequestHeadType::Owned(head), size);
        framed.feed(head.into()).await.map_err(|_| Lost::Broken)?;
        if let Some(bytes) = body.filter(|bytes| !bytes.is_empty()) {
            framed
                .feed(h1::Message::Chunk(Some(bytes)))
                .await
                .map_err(|_| Lost::Broken)?;
        }
        // A server may answer, and stop reading, before it has the whole body: its answer is looked at all the same.
        let _ = framed.flush().await;
        match framed.next().await {
            Some(Ok(head)) => Ok((head, framed)),
            Some(Err(_)) | None => Err(Lost::Broken),
        }
    }
}

impl Incoming {
    fn new((head, framed): (ResponseHead, Framed<BoxedIo, h1::ClientCodec>)) -> Self {
        let body = match framed.codec_ref().message_type() {
            h1::MessageType::None => Body::None,
            _ => Body::Rest(Box::new(framed.into_map_codec(h1::ClientCodec::into_payload_codec))),
        };
        Self { head, body }
    }

    /// The next piece; None at the proven end. A connection that ends before it is [`Lost::Broken`].
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Lost> {
        let Body::Rest(framed) = &mut self.body else {
            return Ok(None);
        };
        match framed.next().await {
            Some(Ok(Some(piece))) => Ok(Some(piece)),
            Some(Ok(None)) => {
                self.body = Body::None;
                Ok(None)
            }
            Some(Err(_)) | None => Err(Lost::Broken),
        }
    }

    /// The whole body, which may be at most `longest` bytes.
    pub async fn body(&mut self, longest: usize) -> Result<Bytes, Lost> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > longest {
                return Err(Lost::TooLong);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// The whole answer.
    pub async fn whole(mut self, longest: usize) -> Result<Reply, Lost> {
        let body = self.body(longest).await?;
        let (status, headers) = (self.head.status, std::mem::take(&mut self.head.headers));
        Ok(Reply { status, headers, body })
    }
}
