//! The HTTP doors in a process without sockets, against an in-memory store and doors that note what they are asked.

mod actions;
mod bodies;
mod gates;
mod logs;
mod resources;
mod socket;
mod store;
mod stream;
mod stream_property;
mod world;
