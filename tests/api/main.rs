//! The HTTP doors in a process without sockets, against an in-memory store and doors that note what they are asked.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

mod actions;
mod bodies;
mod explain;
mod gates;
mod launches;
mod logs;
mod resources;
mod socket;
mod store;
mod store_catalog;
mod store_detached;
mod store_explain;
mod store_launches;
mod store_passes;
mod store_replicas;
mod stream;
mod stream_property;
mod world;
