//! The control plane in memory: real actors, the real store on SQLite in memory, a fake provider, and time that only a
//! test moves (DESIGN 9).
//!
//! One binary, one room. `world` holds the harness of one machine, `conversation_bench` the one of whole flows; every
//! other file is a part of the domain.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

#[path = "../audit/auditor.rs"]
mod auditor;
mod build;
mod conversation_bench;
mod conversation_detached;
mod conversation_faults;
mod conversation_recovery;
mod conversation_stop;
mod conversation_turns;
mod credits;
mod destroy;
mod launch_queue;
mod lease;
mod liveness;
mod park;
mod passes;
mod passes_debts;
mod passes_reaper;
#[path = "../audit/provider.rs"]
mod provider;
mod schedules;
mod seam;
mod wake;
mod warm;
mod watchdog;
mod world;
