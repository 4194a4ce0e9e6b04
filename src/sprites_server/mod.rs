//! A Sprites-compatible server (providers 1; RUL-L-110 to 115): sandboxes on one Linux host, without a vendor.
//!
//! `enclosure` is the port between what a sprite is (doors, state, checkpoints) and how this host keeps it apart.
//! `network` makes the device by which packets leave one; `policy` says what its names may be.

mod api;
mod checkpoints;
mod clock;
pub mod enclosure;
pub mod exec;
pub mod files;
mod limits;
#[cfg(target_os = "linux")]
pub mod network;
pub mod policy;
mod server;
mod services;
mod state;
mod tokens;
mod url;
mod world;

pub use limits::Limits;
pub use server::{Running, ServeError, Settings, serve};
