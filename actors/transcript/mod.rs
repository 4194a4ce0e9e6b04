//! The one writer of output.

pub mod blocks;
pub mod redaction;
