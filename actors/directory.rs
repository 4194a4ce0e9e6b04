//! Which actor owns what on this replica.
