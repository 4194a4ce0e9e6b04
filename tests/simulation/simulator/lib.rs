//! The simulator: the real actors over the real store on SQLite in memory, a provider that breaks, one thread, virtual
//! time, one seed (DESIGN 9, lifecycle 11, RUL-L-121 to RUL-L-123).
//!
//! A run is a [`plan::Plan`]: a list of steps drawn from a seed. Steps name things by number ("the third conversation
//! that there is"), so any part of a plan is a plan, which is what [`shrink`] lives on. [`run::run`] plays one:
//! [`nodes`] are the replicas, each behind a [`gate`] through which all of its database calls pass (it can freeze there,
//! die, and be lied to) and under a [`sky`] through which all of its provider calls pass. [`watch`] judges every commit
//! and every request at the moment it is sent; [`rest`] ends the faults and asks whether everything comes to rest: no
//! stamp, no debt, no waiting turn, no machine without a row, and every byte once.

pub mod gate;
pub mod nodes;
pub mod oracle;
mod panics;
pub mod plan;
pub mod rest;
pub mod run;
pub mod shrink;
pub mod sky;
pub mod watch;
