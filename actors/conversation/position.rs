//! How far one pipe of a process has been taken, with the digest of its prefix (RUL-40, RUL-41).
//!
//! Raw bytes come in as they arrive; an advance goes out when complete lines, or whole characters, have become rows or
//! effects. The SHA-256 of the prefix is carried along, so that an advance costs its own bytes and no more. Nothing here
//! looks at what the bytes mean.

use bytes::{Buf, BytesMut};
use sha2::{Digest, Sha256};

use crate::domain::ProcessId;
use crate::domain::event::RawStream;
use crate::domain::process::{Advance, Position};

/// One pipe: what was consumed, its digest, and the bytes behind it that are still part of something incomplete.
pub struct Track {
    stream: RawStream,
    /// The next advance starts here.
    consumed: i64,
    hasher: Sha256,
    /// Raw bytes from `consumed` on.
    pending: BytesMut,
    /// Passed by lines without any durable effect: the next advance moves here too (RUL-41).
    passed: i64,
}

impl Track {
    /// A pipe of a fresh process.
    pub fn new(stream: RawStream) -> Self {
        Self::resumed(stream, 0, Sha256::new())
    }

    /// A pipe whose first `consumed` bytes are durable; `hasher` has seen exactly the bytes that are taken for them.
    pub fn resumed(stream: RawStream, consumed: i64, hasher: Sha256) -> Self {
        Self {
            stream,
            consumed,
            hasher,
            pending: BytesMut::new(),
            passed: consumed,
        }
    }

    /// Takes bytes that arrived.
    pub fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Where the next advance starts.
    pub fn consumed(&self) -> i64 {
        self.consumed
    }

    /// Bytes that arrived and are not consumed.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Remembers that nothing before `to` needs a commit of its own.
    pub fn pass(&mut self, to: i64) {
        self.passed = self.passed.max(to);
    }

    /// Moves to `to`, or further where lines were passed without effect. None when there is nothing to move.
    pub fn advance(&mut self, process_id: ProcessId, to: i64) -> Option<Advance> {
        let arrived = i64::try_from(self.pending.len()).unwrap_or(i64::MAX);
        let to = to.max(self.passed).min(self.consumed.saturating_add(arrived));
        let length = usize::try_from(to - self.consumed).ok().filter(|length| *length > 0)?;
        let from = self.consumed;
        self.hasher.update(self.pending.get(..length).unwrap_or_default());
        self.pending.advance(length);
        self.consumed = to;
        Some(Advance {
            process_id,
            stream: self.stream,
            from,
            to,
            digest: digest(&self.hasher),
        })
    }

    /// Whether [`Track::advance`] would move.
    pub fn could_advance(&self, to: Option<i64>) -> bool {
        !self.pending.is_empty() && to.unwrap_or(self.consumed).max(self.passed) > self.consumed
    }

    /// The position as a process record holds it once everything that was advanced is durable.
    pub fn position(&self) -> Position {
        Position {
            consumed: self.consumed,
            digest: (self.consumed > 0).then(|| digest(&self.hasher)),
        }
    }
}

/// The digest so far, in hex, without ending the hash.
pub fn digest(hasher: &Sha256) -> String {
    hasher
        .clone()
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The longest prefix of `bytes` that does not end inside a UTF-8 character (P67). Bytes that can never become a
/// character do not hold anything back.
pub fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for start in (tail..bytes.len()).rev() {
        let Some(byte) = bytes.get(start) else { break };
        let width = match byte {
            0b1100_0000..=0b1101_1111 => 2,
            0b1110_0000..=0b1110_1111 => 3,
            0b1111_0000..=0b1111_0111 => 4,
            0b1000_0000..=0b1011_1111 => continue, // inside a character: look further back
            _ => 1,
        };
        return if start + width > bytes.len() {
            start
        } else {
            bytes.len()
        };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process() -> ProcessId {
        ProcessId(uuid::Uuid::from_u128(1))
    }

    fn sha(bytes: &[u8]) -> String {
        digest(&Sha256::new().chain_update(bytes))
    }

    #[test]
    fn rul_40_an_advance_names_its_range_and_the_digest_of_the_whole_prefix() {
        let mut track = Track::new(RawStream::Stdout);
        track.take(b"one\ntwo\nth");
        let first = track.advance(process(), 4).unwrap();
        assert_eq!((first.from, first.to, first.digest), (0, 4, sha(b"one\n")));
        let second = track.advance(process(), 8).unwrap();
        assert_eq!((second.from, second.to, second.digest), (4, 8, sha(b"one\ntwo\n")));
        assert_eq!(track.pending(), b"th");
        assert_eq!(track.advance(process(), 8), None, "nothing to move is no advance");
    }

    #[test]
    fn rul_41_a_line_without_effect_is_passed_by_the_next_advance_and_a_partial_line_never() {
        let mut track = Track::new(RawStream::Stdout);
        track.take(b"a\nb\nhalf");
        track.pass(4);
        assert_eq!(track.consumed(), 0, "passing commits nothing");
        assert_eq!(track.advance(process(), 2).unwrap().to, 4);
        assert_eq!(track.advance(process(), 100).unwrap().to, 8, "never past what arrived");
    }

    proptest! {
        #[test]
        fn p67_a_cut_never_splits_a_character(text in "[aé€😀]{0,12}", cut in 0usize..48) {
            let bytes = text.as_bytes();
            let cut = cut.min(bytes.len());
            let whole = whole_characters(&bytes[..cut]);
            prop_assert!(text.is_char_boundary(whole));
            prop_assert!(cut - whole < 4);
            prop_assert!(!text.is_char_boundary(cut) || whole == cut);
        }
    }

    #[test]
    fn p67_bytes_that_are_no_text_hold_nothing_back() {
        assert_eq!(whole_characters(b"a\xff"), 2);
        assert_eq!(whole_characters(b"\x80\x80\x80\x80"), 4);
        assert_eq!(whole_characters(b""), 0);
        assert_eq!(whole_characters(b"ab\xe2\x82"), 2);
    }
}
