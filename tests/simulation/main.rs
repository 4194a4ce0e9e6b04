//! The control plane in memory: actors, the real store on SQLite in memory, a fake provider, virtual time (DESIGN 9).
//!
//! One binary, one room: `world` holds the harness, every other file a part of the domain.

mod build;
mod destroy;
mod lease;
mod park;
mod passes;
mod seam;
mod wake;
mod world;
