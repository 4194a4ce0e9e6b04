//! The world of the tests: time that only a test moves, chance from a seed, and a provider in memory (STYLE 10, 11).
//!
//! A fake is a small honest implementation, not a recording: [`FakeSandbox`] keeps machines, files, sessions and their
//! replay, follows the vocabulary of sandbox-contract 11, and passes the suite that every adapter passes. What goes wrong
//! is planned by name ([`Fault`]); what was asked and what really happened stands in its log (RUL-L-123).

mod adapter;
mod agent;
mod faults;
mod process;
mod sandbox;
mod sessions;
mod world;

#[cfg(test)]
mod tests;

pub use agent::{AgentStep, FakeAgent, Script};
pub use faults::{Fault, LogEntry, Logged, Op};
pub use process::{FakeProcess, Program, Spawn, Stdio, vocabulary};
pub use sandbox::{FakeSandbox, Weather};
pub use world::{FakeClock, SeededRng};
