//! The one writer of output.
