//! The server end of the runner protocol: one actor per connected runner, and who is connected (runner-protocol 4, 8).

pub mod registry;

pub use registry::{Presence, RunnerRegistry};
