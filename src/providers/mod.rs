//! The sandbox adapters: each speaks one provider's language and offers the contract of `fountain_actors::ports::sandbox`.
//!
//! An adapter holds configuration only. It never decides what a machine may do; it says what the provider answered.

pub mod runner;
