//! The one writer of output.

pub mod blocks;
pub mod budget;
pub mod redaction;
pub mod writer;
