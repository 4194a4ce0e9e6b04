//! The transcript: append and read.
