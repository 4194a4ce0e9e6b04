//! What of a replay is new (RUL-40 to RUL-42a).
//!
//! An attach replays each stream from the process's first byte. The bytes before our position are hashed and dropped;
//! the digest must then be the stored one. Where it is not, or where the replay ends before the position, a gap says
//! so, and output goes on after it. Nothing is guessed from content: an honest repeat stays a repeat.

use sha2::{Digest, Sha256};

use super::position::{Track, digest};
use crate::domain::event::{ByteRange, RawStream};
use crate::domain::process::Position;

/// Bytes that a reader misses or cannot trust, and the sentence that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub stream: RawStream,
    pub range: ByteRange,
    pub sentence: String,
}

/// One stream of an attachment: the skipping first, then the tail.
pub struct Replay {
    stream: RawStream,
    position: i64,
    expected: Option<String>,
    seen: i64,
    hasher: Sha256,
    done: bool,
}

impl Replay {
    /// A replay against the stored position of this stream.
    pub fn against(stream: RawStream, stored: &Position) -> Self {
        Self {
            stream,
            position: stored.consumed,
            expected: stored.digest.clone(),
            seen: 0,
            hasher: Sha256::new(),
            done: stored.consumed == 0,
        }
    }

    /// Takes bytes of the replay: how many of them are old, and the gap if the old part is not what was stored.
    pub fn skip(&mut self, bytes: &[u8]) -> (usize, Option<Gap>) {
        if self.done {
            return (0, None);
        }
        let left = usize::try_from(self.position - self.seen).unwrap_or(usize::MAX);
        let old = left.min(bytes.len());
        self.hasher.update(bytes.get(..old).unwrap_or_default());
        self.seen += i64::try_from(old).unwrap_or(i64::MAX);
        if self.seen < self.position {
            return (old, None);
        }
        self.done = true;
        let agrees = self
            .expected
            .as_deref()
            .is_none_or(|expected| expected == digest(&self.hasher));
        let gap = (!agrees).then(|| {
            self.gap(
                0,
                format!(
                    "[the replay of {} differs from what was stored: its first {} bytes cannot be verified]\n",
                    self.stream, self.position
                ),
            )
        });
        (old, gap)
    }

    /// The replay has ended, or the stream has. A replay that is shorter than the position has lost bytes.
    pub fn end(&mut self) -> Option<Gap> {
        if self.done {
            return None;
        }
        self.done = true;
        Some(self.gap(
            self.seen,
            format!(
                "[the replay of {} ends at byte {} although {} were stored: the bytes between are not replayed]\n",
                self.stream, self.seen, self.position
            ),
        ))
    }

    /// Whether the next byte is new.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The pipe from here on. Positions go on from the stored one, whatever the replay was.
    pub fn track(&self) -> Track {
        Track::resumed(self.stream, self.position, self.hasher.clone())
    }

    fn gap(&self, from: i64, sentence: String) -> Gap {
        Gap {
            stream: self.stream,
            range: ByteRange {
                from,
                to: self.position,
            },
            sentence,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored(prefix: &[u8]) -> Position {
        Position {
            consumed: prefix.len() as i64,
            digest: (!prefix.is_empty()).then(|| digest(&Sha256::new().chain_update(prefix))),
        }
    }

    proptest! {
        #[test]
        fn r_94_inv_81_every_byte_after_the_position_comes_once_whatever_the_chunks(
            text in "[a-c\n]{0,60}", at in 0usize..60, cuts in prop::collection::vec(0usize..60, 0..6)
        ) {
            let bytes = text.as_bytes();
            let at = at.min(bytes.len());
            let mut replay = Replay::against(RawStream::Stdout, &stored(&bytes[..at]));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let (mut fresh, mut from) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let chunk = &bytes[from..cut];
                let (old, gap) = replay.skip(chunk);
                prop_assert_eq!(gap, None);
                fresh.extend_from_slice(&chunk[old..]);
                from = cut;
            }
            prop_assert_eq!(fresh, &bytes[at..]);
            prop_assert_eq!(replay.end(), None);
            prop_assert_eq!(replay.track().position(), stored(&bytes[..at]));
        }
    }

    #[test]
    fn rul_42_a_prefix_that_is_not_the_stored_one_is_a_gap_and_output_goes_on_after_it() {
        let mut replay = Replay::against(RawStream::Stdout, &stored(b"first\n"));
        let (old, gap) = replay.skip(b"FIRST\nsecond\n");
        assert_eq!(old, 6);
        assert_eq!(gap.unwrap().range, ByteRange { from: 0, to: 6 });
        assert_eq!(replay.skip(b"third\n"), (0, None));
    }

    #[test]
    fn rul_42_a_shorter_replay_is_a_gap_with_both_numbers() {
        let mut replay = Replay::against(RawStream::Stderr, &stored(b"0123456789"));
        assert_eq!(replay.skip(b"0123"), (4, None));
        let gap = replay.end().unwrap();
        assert_eq!(
            (gap.stream, gap.range),
            (RawStream::Stderr, ByteRange { from: 4, to: 10 })
        );
        assert!(gap.sentence.contains('4') && gap.sentence.contains("10"));
        assert_eq!(
            replay.skip(b"new"),
            (0, None),
            "what follows a shorter replay is output"
        );
        assert_eq!(replay.track().consumed(), 10, "positions never go back");
    }

    #[test]
    fn a_fresh_position_skips_nothing() {
        let mut replay = Replay::against(RawStream::Stdout, &Position::default());
        assert!(replay.is_done());
        assert_eq!(replay.skip(b"x"), (0, None));
        assert_eq!(replay.end(), None);
    }
}
