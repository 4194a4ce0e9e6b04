//! A server that answers what a test wrote down, request by request, and remembers what it saw.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_codec::Framed;
use actix_http::ws::{self, Message};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// No wait of a test is longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Which connection it came on.
    pub connection: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// An answer.
pub enum Say {
    /// Status, more headers (each with its line end), body.
    Http(u16, &'static str, String),
    /// These bytes, then the end of the connection.
    Cut(String),
    /// These bytes, then silence until the client closes.
    Hold(String),
    Socket(Vec<Act>),
    /// As `Socket`, with more headers.
    SocketWith(&'static str, Vec<Act>),
}

/// A step of a socket.
pub enum Act {
    Binary(&'static [u8]),
    Text(&'static str),
    Message(Message),
    /// Waits for a message and remembers it.
    Read,
    /// So many messages of 64 KiB of output; each is counted when it is on its way.
    Pour(usize),
    /// Input comes back as output until its end, then exit 0.
    Echo,
    /// The orderly end of a WebSocket.
    Close,
    /// Answers pings until the client closes.
    Hold,
    /// Reads nothing for as long as the client stays.
    Deaf,
}

pub fn http(status: u16, body: &str) -> Say {
    Say::Http(status, "", body.to_owned())
}

/// A whole answer in chunks.
pub fn chunked(body: &str) -> String {
    format!("{}0\r\n\r\n", half_chunked(body))
}

/// An answer in chunks whose end is missing.
pub fn half_chunked(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
        body.len()
    )
}

pub struct Server {
    pub base_url: String,
    shared: Arc<Shared>,
}

struct Shared {
    script: Mutex<VecDeque<Say>>,
    seen: watch::Sender<Vec<Seen>>,
    messages: watch::Sender<Vec<Bytes>>,
    poured: watch::Sender<usize>,
    /// Connections that the client closed while the server held them.
    closed: watch::Sender<usize>,
}

impl Server {
    pub async fn start(script: Vec<Say>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            script: Mutex::new(script.into()),
            seen: watch::Sender::new(Vec::new()),
            messages: watch::Sender::new(Vec::new()),
            poured: watch::Sender::new(0),
            closed: watch::Sender::new(0),
        });
        let serving = Arc::clone(&shared);
        actix_rt::spawn(async move {
            let mut number = 0;
            while let Ok((stream, _)) = listener.accept().await {
                number += 1;
                actix_rt::spawn(serve(stream, number, Arc::clone(&serving)));
            }
        });
        Self { base_url, shared }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.borrow().clone()
    }

    /// Method and target of every request.
    pub fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }

    pub fn messages(&self) -> Vec<Bytes> {
        self.shared.messages.borrow().clone()
    }

    pub async fn until_seen(&self, count: usize) -> Vec<Seen> {
        let mut seen = self.shared.seen.subscribe();
        let wait = seen.wait_for(|seen| seen.len() >= count);
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.expect("the request never came").unwrap().clone()
    }

    /// Messages of output that have left the server.
    pub fn poured(&self) -> usize {
        *self.shared.poured.borrow()
    }

    pub async fn until_messages(&self, count: usize) -> Vec<Bytes> {
        let mut messages = self.shared.messages.subscribe();
        let wait = messages.wait_for(|messages| messages.len() >= count);
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("the message never came")
            .unwrap()
            .clone()
    }

    /// Waits until the client has closed so many connections under the server.
    pub async fn until_closed(&self, count: usize) {
        let mut closed = self.shared.closed.subscribe();
        let wait = closed.wait_for(|closed| *closed >= count);
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("the client never closed")
            .unwrap();
    }
}

async fn serve(mut stream: TcpStream, number: usize, shared: Arc<Shared>) {
    while let Some(seen) = request(&mut stream, number).await {
        let key = seen.header("sec-websocket-key").map(str::to_owned);
        let closes = seen.header("connection") == Some("close");
        shared.seen.send_modify(|all| all.push(seen));
        let say = shared.script.lock().unwrap().pop_front();
        match say.unwrap_or(Say::Http(500, "", "unscripted".to_owned())) {
            Say::Http(status, headers, body) => {
                let length = if status == 204 {
                    String::new()
                } else {
                    format!("Content-Length: {}\r\n", body.len())
                };
                let answer = format!("HTTP/1.1 {status} X\r\n{length}{headers}\r\n{body}");
                if stream.write_all(answer.as_bytes()).await.is_err() || closes {
                    return;
                }
            }
            Say::Cut(bytes) => {
                let _ = stream.write_all(bytes.as_bytes()).await;
                return;
            }
            Say::Hold(bytes) => {
                let _ = stream.write_all(bytes.as_bytes()).await;
                let mut rest = [0; 1024];
                while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                shared.closed.send_modify(|count| *count += 1);
                return;
            }
            Say::Socket(acts) => return socket(stream, &key.unwrap(), "", acts, &shared).await,
            Say::SocketWith(headers, acts) => return socket(stream, &key.unwrap(), headers, acts, &shared).await,
        }
    }
}

async fn request(stream: &mut TcpStream, connection: usize) -> Option<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    let headers: Vec<_> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().unwrap());
    while bytes.len() < end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(bytes[end + 4..end + 4 + length].to_vec()).unwrap();
    Some(Seen {
        line,
        headers,
        body,
        connection,
    })
}

async fn socket(mut stream: TcpStream, key: &str, headers: &str, acts: Vec<Act>, shared: &Shared) {
    let accept = ws::hash_key(key.as_bytes());
    let accept = std::str::from_utf8(&accept).unwrap();
    let head = format!(
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{headers}Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    let mut socket = Framed::new(stream, ws::Codec::new().max_size(1 << 20));
    for act in acts {
        let sent = match act {
            Act::Binary(bytes) => socket.send(Message::Binary(Bytes::from_static(bytes))).await,
            Act::Text(text) => socket.send(Message::Text(text.into())).await,
            Act::Message(message) => socket.send(message).await,
            Act::Close => socket.send(Message::Close(None)).await,
            Act::Read => {
                let Some(message) = read(&mut socket, shared).await else {
                    return;
                };
                shared.messages.send_modify(|all| all.push(message));
                Ok(())
            }
            Act::Pour(count) => {
                for _ in 0..count {
                    let output = Bytes::from(vec![1; 64 * 1024]);
                    if socket.send(Message::Binary(output)).await.is_err() {
                        return;
                    }
                    shared.poured.send_modify(|count| *count += 1);
                }
                Ok(())
            }
            Act::Echo => {
                while let Some(message) = read(&mut socket, shared).await {
                    let mut back = message.to_vec();
                    shared.messages.send_modify(|all| all.push(message));
                    let last = back[0] == 4;
                    if last {
                        back = vec![3, 0];
                    } else {
                        back[0] = 1;
                    }
                    if socket.send(Message::Binary(back.into())).await.is_err() || last {
                        break;
                    }
                }
                Ok(())
            }
            Act::Hold => {
                while read(&mut socket, shared).await.is_some() {}
                return;
            }
            Act::Deaf => {
                // What arrives stays in the buffers; only the reset of the client's end is noticed.
                let stream = socket.into_parts().io;
                let _ = stream.ready(tokio::io::Interest::ERROR).await;
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The next binary message; pings are answered. None when the client is gone, which is counted.
async fn read(socket: &mut Framed<TcpStream, ws::Codec>, shared: &Shared) -> Option<Bytes> {
    loop {
        match socket.next().await {
            Some(Ok(ws::Frame::Binary(bytes))) => return Some(bytes),
            Some(Ok(ws::Frame::Ping(bytes))) => socket.send(Message::Pong(bytes)).await.ok()?,
            Some(Ok(ws::Frame::Pong(bytes))) => shared.messages.send_modify(|all| all.push(bytes)),
            Some(Ok(ws::Frame::Close(_)) | Err(_)) | None => {
                shared.closed.send_modify(|count| *count += 1);
                return None;
            }
            Some(Ok(_)) => {}
        }
    }
}
