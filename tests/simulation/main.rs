//! Whole flows of the domain: real actors, the real store in memory, a fake provider, and time that only a test moves.

mod conversation_bench;
mod conversation_recovery;
mod conversation_stop;
mod conversation_turns;
