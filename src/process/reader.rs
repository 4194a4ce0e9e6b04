//! A cursor into a journal: replay and live output are the same walk, only from another position.

use std::{collections::VecDeque, io, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use tokio::sync::watch;

use super::journal::{CHUNK, Exit, Found, HEADER, Journal, Stream, Tail, first_record};

/// Bytes fetched at once; at least one whole record fits.
const FETCH: usize = 8 * (HEADER + CHUNK);

/// What a reader meets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next chunk of output.
    Output {
        /// Where it came from.
        stream: Stream,
        /// At most [`CHUNK`] bytes.
        data: Bytes,
    },
    /// The end; the same answer again for whoever asks again.
    Exit(Exit),
}

/// A cursor. It keeps the journal alive, and nothing of it in memory but what it fetched last.
#[derive(Debug)]
pub struct Reader {
    journal: Arc<Journal>,
    tail: watch::Receiver<Tail>,
    position: u64,
    fetched: VecDeque<(Stream, Bytes)>,
    fetched_to: u64,
}

impl Reader {
    /// Reads from the first byte.
    pub fn new(journal: Arc<Journal>) -> Self {
        Self::at(journal, 0)
    }

    /// Reads from a position that [`Tail::end`] or [`Reader::position`] gave.
    pub fn at(journal: Arc<Journal>, position: u64) -> Self {
        let tail = journal.watch();
        Self {
            journal,
            tail,
            position,
            fetched: VecDeque::new(),
            fetched_to: position,
        }
    }

    /// The position of the next event.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that it holds in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.fetched.iter().map(|(_, data)| HEADER + data.len()).sum()
    }

    /// The next event, as soon as there is one. May be dropped and called again without losing anything.
    ///
    /// # Errors
    /// The spill file cannot be read. The position stays; asking again tries again.
    pub async fn next(&mut self) -> io::Result<Event> {
        loop {
            let tail = *self.tail.borrow_and_update();
            if let Some((stream, data)) = self.next_before(tail.end).await? {
                return Ok(Event::Output { stream, data });
            }
            if let Some(exit) = tail.exit {
                return Ok(Event::Exit(exit));
            }
            if self.tail.changed().await.is_err() {
                // The recorder ends its journal when it goes, so the next look finds the exit.
                tokio::task::yield_now().await;
            }
        }
    }

    /// The next chunk that begins before `end`, which must have been reached by the journal; `None` at `end`.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_before(&mut self, end: u64) -> io::Result<Option<(Stream, Bytes)>> {
        if self.position >= end {
            return Ok(None);
        }
        if self.fetched.is_empty() {
            self.fetch(end).await?;
        }
        let Some((stream, data)) = self.fetched.pop_front() else {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the journal is shorter than it was",
            ));
        };
        self.position += (HEADER + data.len()) as u64;
        Ok(Some((stream, data)))
    }

    async fn fetch(&mut self, end: u64) -> io::Result<()> {
        let bytes = match self.journal.look(self.fetched_to, FETCH) {
            Found::Memory(bytes) => bytes,
            Found::File(file) => {
                let position = self.fetched_to;
                let length = usize::try_from(end - position).unwrap_or(FETCH).min(FETCH);
                let read = tokio::task::spawn_blocking(move || {
                    let mut bytes = vec![0; length];
                    file.read_exact_at(&mut bytes, position).map(|()| Bytes::from(bytes))
                });
                read.await.map_err(io::Error::other)??
            }
        };
        let mut rest = bytes.as_ref();
        while let Some((stream, data, after)) = first_record(rest) {
            self.fetched.push_back((stream, bytes.slice_ref(data)));
            self.fetched_to += (HEADER + data.len()) as u64;
            rest = after;
        }
        Ok(())
    }
}
