//! The domain of Fountain: everything that *decides*, and nothing that touches the world.
//!
//! Read it in the order of one prompt. [`domain`] is plain data with total transition functions. [`ports`] says
//! what the shell has to offer: a store whose verbs are transactions, sandbox adapters, a bus, a clock, a source of
//! randomness. [`directory`] finds the actor that owns a thing; [`conversation`] gates a prompt and runs its turn;
//! [`machine`] serializes what happens to one machine; [`runner`] speaks for one connected runner. [`acp`] is the
//! protocol peer, a pure state machine; [`runtimes`] says what to spawn; [`transcript`] is the only writer of output.
//! [`passes`] sweep up after everyone, and [`fakes`] is the world of the tests.

pub mod acp;
pub mod conversation;
pub mod directory;
pub mod domain;
pub mod doors;
#[cfg(any(test, feature = "fakes"))]
pub mod fakes;
pub mod machine;
pub mod passes;
pub mod ports;
pub mod retry;
pub mod runner;
pub mod runtimes;
pub mod transcript;
