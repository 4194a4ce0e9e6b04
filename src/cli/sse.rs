//! Server-sent events on the client's side: bytes to frames, and a connection that resumes by itself.
//!
//! Comments and blank frames are passed over, fragments are put together, CRLF is taken for LF (http-api 3.3).

use bytes::Bytes;
use serde_json::Value;

/// One frame with data.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub id: Option<i64>,
    pub event: String,
    pub data: Value,
}

/// Puts frames together from chunks that respect no boundary.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Adds a chunk and takes out every frame that is whole. Frames whose data is no JSON object are left out.
    pub fn feed(&mut self, chunk: &Bytes) -> Vec<Frame> {
        self.buffer.extend_from_slice(chunk);
        let mut frames = Vec::new();
        while let Some((end, next)) = boundary(&self.buffer) {
            let rest = self.buffer.split_off(next);
            self.buffer.truncate(end);
            frames.extend(frame(&self.buffer));
            self.buffer = rest;
        }
        frames
    }
}

/// Where the first blank line is: end of the frame, start of the next.
fn boundary(buffer: &[u8]) -> Option<(usize, usize)> {
    let lf = buffer
        .windows(2)
        .position(|pair| pair == b"\n\n")
        .map(|at| (at, at + 2));
    let crlf = buffer
        .windows(4)
        .position(|quad| quad == b"\r\n\r\n")
        .map(|at| (at, at + 4));
    match (lf, crlf) {
        (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
        (one, other) => one.or(other),
    }
}

fn frame(bytes: &[u8]) -> Option<Frame> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (mut id, mut event, mut data) = (None, String::new(), Vec::new());
    for line in text.lines() {
        let Some((field, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => id = value.parse().ok(),
            "event" => event = value.to_owned(),
            "data" => data.push(value),
            _ => {}
        }
    }
    let data: Value = serde_json::from_str(&data.join("\n")).ok()?;
    data.is_object().then_some(Frame { id, event, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": connected\n\nid: 41\nevent: stage\ndata: {\"stage\":\"turn\"}\n\n: heartbeat\n\n\
        id: 42\r\nevent: output\r\ndata: {\"a\":\ndata: 1}\r\n\r\ndata: nonsense\n\n";

    #[test]
    fn a_stream_cut_at_any_byte_gives_the_same_frames() {
        let whole = Decoder::default().feed(&Bytes::from_static(STREAM.as_bytes()));
        assert_eq!(
            whole.iter().map(|frame| frame.id).collect::<Vec<_>>(),
            [Some(41), Some(42)]
        );
        for cut in 0..STREAM.len() {
            let (head, tail) = STREAM.as_bytes().split_at(cut);
            let mut decoder = Decoder::default();
            let mut frames = decoder.feed(&Bytes::copy_from_slice(head));
            frames.extend(decoder.feed(&Bytes::copy_from_slice(tail)));
            assert_eq!(frames, whole, "cut at {cut}");
        }
    }
}
