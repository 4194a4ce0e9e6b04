//! The verbs of the store, each on SQLite and, where `FOUNTAIN_TEST_POSTGRES_URL` names a server, on PostgreSQL.
//!
//! One binary, one room: `support` holds the harness, every other file a group of verbs.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

#[path = "store/accounts.rs"]
mod accounts;
#[path = "store/audit.rs"]
mod audit;
#[path = "store/catalog.rs"]
mod catalog;
#[path = "store/conversations.rs"]
mod conversations;
#[path = "store/credits.rs"]
mod credits;
#[path = "store/disk.rs"]
mod disk;
#[path = "store/explain.rs"]
mod explain;
#[path = "store/guests.rs"]
mod guests;
#[path = "store/homes.rs"]
mod homes;
#[path = "store/lab.rs"]
mod lab;
#[path = "store/machines.rs"]
mod machines;
#[path = "store/machines_fence.rs"]
mod machines_fence;
#[path = "store/machines_quota.rs"]
mod machines_quota;
#[path = "store/machines_sweeps.rs"]
mod machines_sweeps;
#[path = "store/migrations.rs"]
mod migrations;
#[path = "store/passes.rs"]
mod passes;
#[path = "store/queue.rs"]
mod queue;
#[path = "store/replicas.rs"]
mod replicas;
#[path = "store/runners.rs"]
mod runners;
#[path = "store/schedules.rs"]
mod schedules;
#[path = "store/secrets.rs"]
mod secrets;
#[path = "store/support.rs"]
mod support;
#[path = "store/transcript.rs"]
mod transcript;
#[path = "store/turns.rs"]
mod turns;
#[path = "store/turns_capacity.rs"]
mod turns_capacity;
#[path = "store/turns_permissions.rs"]
mod turns_permissions;
