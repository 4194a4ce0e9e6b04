//! A blocking HTTP/1.1 client of as little as these programs need: JSON calls over one kept connection, and event
//! streams. It reads what our server writes; it is no client for anything else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::PATIENCE;

/// A connection that was idle for longer is about to be closed by the server.
const KEPT: Duration = Duration::from_secs(2);

/// One kept connection.
pub struct Client {
    address: SocketAddr,
    key: String,
    socket: BufReader<TcpStream>,
    used: Instant,
}

struct Head {
    status: u16,
    /// None: chunked.
    length: Option<usize>,
}

fn connect(address: SocketAddr) -> anyhow::Result<BufReader<TcpStream>> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(BufReader::with_capacity(256 * 1024, socket))
}

fn request(method: &str, path: &str, address: SocketAddr, key: &str, body: Option<&Value>) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n");
    let body = body.map(Value::to_string);
    if let Some(body) = &body {
        text.push_str(&format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        ));
    }
    text.push_str("\r\n");
    text.push_str(&body.unwrap_or_default());
    text.into_bytes()
}

fn read_head(socket: &mut BufReader<TcpStream>) -> anyhow::Result<Head> {
    let mut line = String::new();
    socket.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    let mut head = Head {
        status: status.with_context(|| format!("no status line: {line:?}"))?,
        length: Some(0),
    };
    loop {
        line.clear();
        anyhow::ensure!(
            socket.read_line(&mut line)? > 0,
            "the connection closed inside the head"
        );
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok(head);
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = Some(value.trim().parse()?),
            "transfer-encoding" => head.length = None,
            _ => {}
        }
    }
}

/// Appends the next chunk to `buffer`; false at the end.
fn read_chunk(socket: &mut BufReader<TcpStream>, buffer: &mut Vec<u8>) -> anyhow::Result<bool> {
    let mut line = String::new();
    socket.read_line(&mut line)?;
    let size = usize::from_str_radix(line.trim(), 16).with_context(|| format!("no chunk size: {line:?}"))?;
    let start = buffer.len();
    buffer.resize(start + size + 2, 0);
    socket.read_exact(buffer.get_mut(start..).unwrap_or_default())?;
    buffer.truncate(start + size);
    Ok(size > 0)
}

impl Client {
    pub fn new(address: SocketAddr, key: &str) -> anyhow::Result<Self> {
        Ok(Self {
            address,
            key: key.to_owned(),
            socket: connect(address)?,
            used: Instant::now(),
        })
    }

    /// A call on the kept connection: status and body, `Null` when it is no JSON.
    pub fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
        let (status, body) = self.fetch(method, path, body)?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// A call whose answer is 2xx, or an error that shows the answer.
    pub fn done(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let (status, answer) = self.call(method, path, body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {path} answered {status}: {answer}");
        }
        Ok(answer)
    }

    /// Status and raw body.
    pub fn fetch(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Vec<u8>)> {
        let message = request(method, path, self.address, &self.key, body);
        if self.used.elapsed() > KEPT {
            self.socket = connect(self.address)?;
        }
        self.used = Instant::now();
        self.socket.get_mut().write_all(&message)?;
        let head = read_head(&mut self.socket)?;
        let mut content = Vec::new();
        match head.length {
            Some(length) => {
                content.resize(length, 0);
                self.socket.read_exact(&mut content)?;
            }
            None => while read_chunk(&mut self.socket, &mut content)? {},
        }
        Ok((head.status, content))
    }
}

/// One frame of an event stream, and when its last byte was read.
#[derive(Debug)]
pub struct Frame {
    pub event: String,
    pub data: String,
    pub at: Instant,
}

impl Frame {
    /// The payload.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or(Value::Null)
    }
}

/// An open event stream.
pub struct Events {
    socket: BufReader<TcpStream>,
    buffer: Vec<u8>,
    /// Where the next frame begins in the buffer.
    start: usize,
    /// Up to where the buffer was searched for a frame's end.
    seen: usize,
}

impl Events {
    /// Opens a stream and waits for its head.
    pub fn open(address: SocketAddr, key: &str, path: &str) -> anyhow::Result<Self> {
        let mut socket = connect(address)?;
        socket.get_mut().write_all(&request("GET", path, address, key, None))?;
        let head = read_head(&mut socket)?;
        anyhow::ensure!(head.status == 200, "GET {path} answered {}", head.status);
        Ok(Self {
            socket,
            buffer: Vec::new(),
            start: 0,
            seen: 0,
        })
    }

    /// The next frame that carries an event; comments are skipped.
    pub fn next(&mut self) -> anyhow::Result<Frame> {
        loop {
            while let Some(end) = self.find_end() {
                let text = self.buffer.get(self.start..end).unwrap_or_default();
                let frame = parse(std::str::from_utf8(text)?);
                self.start = end + 2;
                self.seen = self.start;
                if let Some(frame) = frame {
                    return Ok(frame);
                }
            }
            self.buffer.drain(..self.start);
            self.seen -= self.start;
            self.start = 0;
            anyhow::ensure!(read_chunk(&mut self.socket, &mut self.buffer)?, "the stream ended");
        }
    }

    fn find_end(&mut self) -> Option<usize> {
        let rest = self.buffer.get(self.seen..)?;
        match rest.windows(2).position(|pair| pair == b"\n\n") {
            Some(offset) => Some(self.seen + offset),
            None => {
                self.seen = self.buffer.len().saturating_sub(1).max(self.start);
                None
            }
        }
    }
}

fn parse(text: &str) -> Option<Frame> {
    let mut frame = Frame {
        event: String::new(),
        data: String::new(),
        at: Instant::now(),
    };
    for line in text.lines() {
        match line.split_once(": ") {
            Some(("event", event)) => frame.event = event.to_owned(),
            Some(("data", data)) => frame.data = data.to_owned(),
            _ => {}
        }
    }
    (!frame.event.is_empty()).then_some(frame)
}
