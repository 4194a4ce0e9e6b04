//! Enclosures with real processes, in every way that this host can make them.
//!
//! What cannot be tested here is said aloud on standard error; it is never passed over in silence.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "enclosure/inside.rs"]
mod inside;
#[path = "enclosure/isolation.rs"]
mod isolation;
#[path = "enclosure/lifecycle.rs"]
mod lifecycle;
#[path = "enclosure/network.rs"]
mod network;
#[path = "enclosure/ordinary.rs"]
mod ordinary;
#[path = "enclosure/terminal.rs"]
mod terminal;
#[path = "enclosure/uplink.rs"]
mod uplink;
