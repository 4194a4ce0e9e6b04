//! The runner daemon.
