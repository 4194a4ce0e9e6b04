//! The output budget of a conversation: 50,000,000 bytes over all its wakes, unless set otherwise (lifecycle 6.4).
//!
//! The first chunk that would go over it becomes one marker row; later output is dropped on record borders (P66), while
//! positions, stage events and the turn go on. 0 switches the budget off.

/// What to do with one chunk of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Store it.
    Store,
    /// Store the marker in its place.
    Mark,
    /// Drop it; the marker stands already.
    Drop,
}

/// Counts the durable output of one conversation against its limit.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: i64,
    used: i64,
    marked: bool,
}

impl Budget {
    /// A budget of which `used` bytes are durable already.
    pub fn new(limit: i64, used: i64) -> Self {
        Self {
            limit,
            used,
            marked: limit > 0 && used >= limit,
        }
    }

    /// Judges a chunk and counts it if it is stored.
    pub fn take(&mut self, length: usize) -> Allowance {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        if self.limit <= 0 {
            return Allowance::Store;
        }
        if self.marked {
            return Allowance::Drop;
        }
        if self.used.saturating_add(length) > self.limit {
            self.marked = true;
            return Allowance::Mark;
        }
        self.used += length;
        Allowance::Store
    }

    /// The text of the marker row, on stream `stderr`.
    pub fn marker(&self) -> String {
        format!(
            "[output limit reached: this conversation has stored {} of {} bytes; further output is dropped]\n",
            self.used, self.limit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p62_the_chunk_that_goes_over_becomes_one_marker_and_the_rest_is_dropped() {
        let mut budget = Budget::new(10, 4);
        assert_eq!(budget.take(6), Allowance::Store, "exactly full is within");
        assert_eq!(budget.take(1), Allowance::Mark);
        assert_eq!(budget.take(1), Allowance::Drop);
        assert!(budget.marker().contains("10 of 10"));
    }

    #[test]
    fn a_full_conversation_gets_no_second_marker_after_a_wake() {
        assert_eq!(Budget::new(10, 10).take(1), Allowance::Drop);
    }

    #[test]
    fn zero_means_no_budget() {
        assert_eq!(Budget::new(0, 1 << 40).take(usize::MAX), Allowance::Store);
    }
}
