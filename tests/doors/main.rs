//! The door matrix over HTTP: the real doors, the real engine, the store in memory and a fake provider, on a clock that
//! only a test moves (lifecycle 2.3 as amended; DESIGN 9).
//!
//! One binary, one room. `world` sets a machine into a state and knocks at a door; `matrix` holds the table, door by
//! door; `cases` the worked cases of rulings-lifecycle 9. The replica is the one of the simulation's flows.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

#[path = "../audit/auditor.rs"]
#[allow(dead_code, reason = "the bench of the flows names it")]
mod auditor;
#[path = "../simulation/conversation_bench.rs"]
#[allow(dead_code, reason = "the simulation uses what is not used here")]
mod conversation_bench;
#[path = "../audit/provider.rs"]
#[allow(dead_code, reason = "the auditor's other half")]
mod provider;

mod cases;
mod matrix;
mod world;
