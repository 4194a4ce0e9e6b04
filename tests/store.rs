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
#[path = "store/catalog.rs"]
mod catalog;
#[path = "store/disk.rs"]
mod disk;
#[path = "store/homes.rs"]
mod homes;
#[path = "store/migrations.rs"]
mod migrations;
#[path = "store/runners.rs"]
mod runners;
#[path = "store/secrets.rs"]
mod secrets;
#[path = "store/support.rs"]
mod support;
