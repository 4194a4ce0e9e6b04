//! Framing: bytes of the agent's stdout into lines with exact positions (runtimes 10, RUL-41, RUL-55).
//!
//! Chunks respect no boundary, so a partial line stays here until its newline comes. Every line knows the raw bytes
//! it was cut from, counted from the process's first stdout byte, newline included. A line longer than
//! [`LINE_MAX`] stops being a line: it leaves in pieces as soon as it is known to be too long, so that memory stays
//! bounded, and none of the pieces is read as protocol. Where the stream is cut into chunks never changes the result.

use crate::domain::event::ByteRange;

/// Longest stdout line that may be protocol (RUL-55).
pub const LINE_MAX: usize = 16 * 1024 * 1024;

/// Size of the pieces of a line that is too long: a quarter of what one commit takes (RUL-26).
pub const PIECE: usize = 1024 * 1024;

/// What the splitter found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// A complete line without its newline; `range` includes the newline.
    Line { text: String, range: ByteRange },
    /// A piece of a line that is too long to be one.
    Piece {
        text: String,
        range: ByteRange,
        place: Place,
    },
}

impl Cut {
    /// The raw bytes it was cut from.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        match self {
            Self::Line { range, .. } | Self::Piece { range, .. } => *range,
        }
    }
}

/// Where in its line a piece stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The first piece of its line.
    First,
    /// Neither first nor last.
    Middle,
    /// The last piece; its newline belongs to the range, not to the text.
    Last,
}

/// Cuts a byte stream into lines.
#[derive(Debug)]
pub struct Splitter {
    tail: Vec<u8>,
    /// Position of the first byte of `tail`.
    start: i64,
    overlong: bool,
    join: Join,
}

/// Whether the stream may begin in the middle of a line (RUL-42).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    /// It begins at a line, or its first newline has passed.
    Whole,
    /// Nothing has been seen yet: the first byte decides.
    Undecided,
    /// In the middle of a line: everything up to the newline is dropped.
    Dropping,
}

impl Splitter {
    /// A splitter whose first byte is byte `start` of the stream.
    #[must_use]
    pub fn new(start: i64) -> Self {
        Self {
            tail: Vec::new(),
            start,
            overlong: false,
            join: Join::Whole,
        }
    }

    /// The same, for a stream that may begin in the middle of a line: a first chunk that does not open with `{` loses
    /// everything up to its first newline. Only for sessions without a process record.
    #[must_use]
    pub fn joining(start: i64) -> Self {
        Self {
            join: Join::Undecided,
            ..Self::new(start)
        }
    }

    /// Position one past the last byte that was handed out.
    #[must_use]
    pub fn position(&self) -> i64 {
        self.start
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Cut> {
        let mut cuts = Vec::new();
        if self.join != Join::Whole {
            bytes = self.drop_partial(bytes, &mut cuts);
        }
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            if self.tail.is_empty() && !self.overlong && head.len() <= LINE_MAX {
                self.line(head, 1, &mut cuts); // the common case: no copy through the tail
            } else {
                self.tail.extend_from_slice(head);
                self.shed(&mut cuts);
                self.end_of_line(1, &mut cuts);
            }
        }
        self.tail.extend_from_slice(bytes);
        self.shed(&mut cuts);
        cuts
    }

    /// The stream has ended: what is left is a line without a newline.
    pub fn finish(&mut self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        if !self.tail.is_empty() {
            self.end_of_line(0, &mut cuts);
        }
        cuts
    }

    /// Drops the rest of a line that began before we joined, and returns what follows it.
    fn drop_partial<'a>(&mut self, bytes: &'a [u8], cuts: &mut Vec<Cut>) -> &'a [u8] {
        match bytes.first() {
            None => return bytes,
            Some(b'{') if self.join == Join::Undecided => {
                self.join = Join::Whole;
                return bytes;
            }
            Some(_) => {}
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        self.join = if end.is_some() { Join::Whole } else { Join::Dropping };
        let dropped = end.map_or(bytes.len(), |end| end + 1);
        let range = self.advance(dropped);
        cuts.push(Cut::Line {
            text: String::new(),
            range,
        });
        bytes.get(dropped..).unwrap_or_default()
    }

    fn advance(&mut self, bytes: usize) -> ByteRange {
        let from = self.start;
        self.start = self.start.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
        ByteRange { from, to: self.start }
    }

    fn line(&mut self, bytes: &[u8], newline: usize, cuts: &mut Vec<Cut>) {
        let range = self.advance(bytes.len() + newline);
        cuts.push(Cut::Line {
            text: String::from_utf8_lossy(bytes).into_owned(),
            range,
        });
    }

    fn end_of_line(&mut self, newline: usize, cuts: &mut Vec<Cut>) {
        let tail = std::mem::take(&mut self.tail);
        if std::mem::take(&mut self.overlong) {
            let range = self.advance(tail.len() + newline);
            cuts.push(Cut::Piece {
                text: String::from_utf8_lossy(&tail).into_owned(),
                range,
                place: Place::Last,
            });
        } else {
            self.line(&tail, newline, cuts);
        }
    }

    /// Hands out full pieces of a line that has become too long. Keeps up to one piece, so that there is a last one.
    fn shed(&mut self, cuts: &mut Vec<Cut>) {
        let first = !self.overlong;
        if first && self.tail.len() <= LINE_MAX {
            return;
        }
        self.overlong = true;
        let mut done = 0;
        while self.tail.len() - done > PIECE {
            let rest = self.tail.get(done..).unwrap_or_default();
            let size = char_floor(rest, PIECE);
            let text = String::from_utf8_lossy(rest.get(..size).unwrap_or_default()).into_owned();
            let range = self.advance(size);
            let place = if first && done == 0 {
                Place::First
            } else {
                Place::Middle
            };
            cuts.push(Cut::Piece { text, range, place });
            done += size;
        }
        self.tail.drain(..done);
    }
}

/// The largest cut up to `at` that does not part a UTF-8 character.
fn char_floor(bytes: &[u8], at: usize) -> usize {
    (at.saturating_sub(3)..=at)
        .rev()
        .find(|cut| bytes.get(*cut).is_none_or(|byte| byte & 0b1100_0000 != 0b1000_0000))
        .unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(cuts: Vec<Cut>) -> Vec<(String, i64, i64)> {
        cuts.into_iter()
            .map(|cut| match cut {
                Cut::Line { text, range } | Cut::Piece { text, range, .. } => (text, range.from, range.to),
            })
            .collect()
    }

    #[test]
    fn lines_know_the_raw_bytes_they_came_from() {
        let mut splitter = Splitter::new(100);
        assert_eq!(
            lines(splitter.push(b"ab\n\nc")),
            [("ab".into(), 100, 103), (String::new(), 103, 104)]
        );
        assert_eq!(splitter.position(), 104);
        assert_eq!(lines(splitter.push(b"d\ne")), [("cd".into(), 104, 107)]);
        assert_eq!(lines(splitter.finish()), [("e".into(), 107, 108)]);
        assert_eq!(lines(splitter.finish()), []);
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_counted_raw() {
        let mut splitter = Splitter::new(0);
        assert_eq!(
            lines(splitter.push(b"a\xff\xfeb\n")),
            [("a\u{fffd}\u{fffd}b".into(), 0, 5)]
        );
    }

    #[test]
    fn rul_55_a_line_over_16_mib_leaves_in_pieces_that_cover_every_byte() {
        let mut splitter = Splitter::new(0);
        let mut cuts = Vec::new();
        let chunk = "é".repeat(500_000);
        for _ in 0..20 {
            cuts.extend(splitter.push(chunk.as_bytes()));
            assert!(splitter.tail.len() <= LINE_MAX, "memory stays bounded");
        }
        cuts.extend(splitter.push(b"\nnext\n"));
        assert!(matches!(
            cuts.first(),
            Some(Cut::Piece {
                place: Place::First,
                ..
            })
        ));
        assert!(matches!(
            cuts.get(cuts.len() - 2),
            Some(Cut::Piece { place: Place::Last, .. })
        ));
        assert!(matches!(cuts.last(), Some(Cut::Line { text, .. }) if text == "next"));
        let lines = lines(cuts);
        assert!(lines.windows(2).all(|pair| pair[0].2 == pair[1].1));
        assert!(
            lines.iter().all(|(text, ..)| !text.contains('\u{fffd}')),
            "no character is cut"
        );
        assert_eq!(lines.last().unwrap().2, 20 * 1_000_000 + 6);
    }

    #[test]
    fn rul_42_only_a_joined_stream_drops_its_first_partial_line() {
        let mut splitter = Splitter::joining(0);
        assert_eq!(lines(splitter.push(b"alf a li")), [(String::new(), 0, 8)]);
        assert_eq!(
            lines(splitter.push(b"{ne\n{}\n")),
            [(String::new(), 8, 12), ("{}".into(), 12, 15)]
        );
        let mut splitter = Splitter::joining(0);
        assert_eq!(lines(splitter.push(b"{}\n")), [("{}".into(), 0, 3)]);
        let mut splitter = Splitter::new(0);
        assert_eq!(lines(splitter.push(b"half\n")), [("half".into(), 0, 5)]);
    }

    proptest! {
        #[test]
        fn p67_where_the_stream_is_cut_changes_nothing(text in "[a-é\n😀]{0,60}", cuts in prop::collection::vec(0usize..240, 0..8)) {
            let bytes = text.as_bytes();
            let mut whole = Splitter::new(7);
            let mut expected = whole.push(bytes);
            expected.extend(whole.finish());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut parts = Splitter::new(7);
            let mut seen = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                seen.extend(parts.push(&bytes[from..cut]));
                from = cut;
            }
            seen.extend(parts.finish());
            prop_assert_eq!(seen, expected);
        }
    }
}
