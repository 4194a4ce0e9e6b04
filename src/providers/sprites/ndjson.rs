//! Lines of JSON that arrive in pieces (providers 1.4, 1.8).
//!
//! Pure: bytes in, lines out. A line has a bound, a piece may end anywhere, and the last line needs no newline. Whether
//! the body that carried the lines was whole is not for this module: its reader knows (`wire`).

use bytes::Bytes;

/// A line is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is too long")]
pub struct TooLong;

/// Cuts a stream into lines. Blank lines are no lines.
#[derive(Debug)]
pub struct Lines {
    rest: Vec<u8>,
    longest: usize,
}

impl Lines {
    /// A cutter whose lines are at most `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self {
            rest: Vec::new(),
            longest,
        }
    }

    /// Takes a piece and gives the lines that it completes.
    ///
    /// # Errors
    /// [`TooLong`], also for a line that is not complete yet.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Bytes>, TooLong> {
        let mut lines = Vec::new();
        let mut parts = piece.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            if self.rest.len() + part.len() > self.longest {
                return Err(TooLong);
            }
            self.rest.extend_from_slice(part);
            if parts.peek().is_some() {
                lines.extend(line(std::mem::take(&mut self.rest)));
            }
        }
        Ok(lines)
    }

    /// The last line, where no newline ended it.
    pub fn finish(self) -> Option<Bytes> {
        line(self.rest)
    }
}

/// All lines of a body that is already here.
///
/// # Errors
/// [`TooLong`].
pub fn lines(body: &[u8], longest: usize) -> Result<Vec<Bytes>, TooLong> {
    let mut cutter = Lines::new(longest);
    let mut lines = cutter.push(body)?;
    lines.extend(cutter.finish());
    Ok(lines)
}

fn line(bytes: Vec<u8>) -> Option<Bytes> {
    let trimmed = bytes.trim_ascii();
    (!trimmed.is_empty()).then(|| Bytes::copy_from_slice(trimmed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_last_line_needs_no_newline_and_blank_lines_are_none() {
        assert_eq!(lines(b"{}\r\n\n  \n[1]", 10).unwrap(), ["{}", "[1]"]);
        assert_eq!(lines(b"", 10).unwrap(), Vec::<Bytes>::new());
    }

    #[test]
    fn a_line_that_never_ends_is_refused_at_its_bound() {
        let mut cutter = Lines::new(4);
        assert_eq!(cutter.push(b"abcd").unwrap(), Vec::<Bytes>::new());
        assert_eq!(cutter.push(b"e"), Err(TooLong));
    }

    proptest! {
        #[test]
        fn where_the_pieces_end_does_not_matter(body in "[a\\n {}]{0,60}", cut in 0usize..60) {
            let cut = cut.min(body.len());
            let mut cutter = Lines::new(100);
            let mut pieced = cutter.push(&body.as_bytes()[..cut]).unwrap();
            pieced.extend(cutter.push(&body.as_bytes()[cut..]).unwrap());
            pieced.extend(cutter.finish());
            prop_assert_eq!(pieced, lines(body.as_bytes(), 100).unwrap());
        }
    }
}
