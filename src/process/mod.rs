//! A process with a journal.
