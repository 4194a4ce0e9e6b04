//! What a service writes, as lines of JSON (providers 1.10).

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use fountain_process::{Event, Exit, Reader, Session, Stream};
use serde_json::{Value, json};

/// Most bytes that are kept while the last lines are looked for.
const KEPT: usize = 1 << 20;

/// An event with the time in ms.
pub fn event(kind: &str, mut more: Value) -> Value {
    if let Some(fields) = more.as_object_mut() {
        fields.insert("type".to_owned(), kind.into());
        fields.insert("timestamp".to_owned(), crate::clock::now().timestamp_millis().into());
    }
    more
}

/// Output as text: a character that a chunk cuts waits for its rest.
#[derive(Debug)]
pub struct Log {
    reader: Reader,
    rest: [Vec<u8>; 2],
}

impl Log {
    /// From the first byte.
    pub fn of(session: &Session) -> Self {
        Self {
            reader: session.reader(),
            rest: Default::default(),
        }
    }

    /// The next event of output, or the end. May be dropped and called again.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn next(&mut self) -> io::Result<Result<Value, Exit>> {
        match self.reader.next().await? {
            Event::Output { stream, data } => Ok(Ok(self.text(stream, &data))),
            Event::Exit(exit) => Ok(Err(exit)),
        }
    }

    fn text(&mut self, stream: Stream, data: &[u8]) -> Value {
        let (kind, [out, err]) = (stream, &mut self.rest);
        let (kind, rest) = match kind {
            Stream::Stdout => ("stdout", out),
            Stream::Stderr => ("stderr", err),
        };
        rest.extend_from_slice(data);
        let cut = rest.len() - unfinished(rest);
        let later = rest.split_off(cut);
        let text = String::from_utf8_lossy(&std::mem::replace(rest, later)).into_owned();
        event(kind, json!({"data": text}))
    }

    /// Skips to the last `lines` of what there is now; answers them. Holds no more than a few chunks beyond [`KEPT`].
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn last(&mut self, session: &Session, lines: usize) -> io::Result<Vec<Value>> {
        let end = session.tail().end;
        let mut kept: VecDeque<(Stream, Bytes)> = VecDeque::new();
        let (mut bytes, mut breaks) = (0, 0);
        while let Some((stream, data)) = self.reader.next_before(end).await? {
            bytes += data.len();
            breaks += count(&data);
            kept.push_back((stream, data));
            while let Some((_, first)) = kept.front()
                && (bytes > KEPT || breaks.saturating_sub(count(first)) > lines)
            {
                bytes -= first.len();
                breaks -= count(first);
                kept.pop_front();
            }
        }
        // A last line without an end is one as well.
        let open = kept.back().is_some_and(|(_, data)| !data.ends_with(b"\n"));
        let mut surplus = (breaks + usize::from(open)).saturating_sub(lines);
        let mut events = Vec::new();
        for (stream, mut data) in kept {
            while surplus > 0 && !data.is_empty() {
                let line = data.iter().position(|byte| *byte == b'\n');
                surplus -= usize::from(line.is_some());
                drop(data.split_to(line.map_or(data.len(), |at| at + 1)));
            }
            if !data.is_empty() && lines > 0 {
                events.push(self.text(stream, &data));
            }
        }
        Ok(events)
    }
}

fn count(data: &[u8]) -> usize {
    data.iter().filter(|byte| **byte == b'\n').count()
}

/// How many bytes at the end begin a character that is not whole.
fn unfinished(data: &[u8]) -> usize {
    let tail = data.iter().rev().take(3).enumerate();
    for (back, byte) in tail {
        let needs = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if needs > back + 1 { back + 1 } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::unfinished;

    #[test]
    fn a_cut_character_waits_and_garbage_does_not() {
        assert_eq!(unfinished("aé".as_bytes()), 0);
        assert_eq!(unfinished(&"é".as_bytes()[..1]), 1);
        assert_eq!(unfinished(&"€".as_bytes()[..2]), 2);
        assert_eq!(unfinished(&"🦀".as_bytes()[..3]), 3);
        assert_eq!(unfinished(&[0x80, 0x80, 0x80, 0x80]), 0);
        assert_eq!(unfinished(&[0xff]), 0);
        assert_eq!(unfinished(b""), 0);
    }
}
