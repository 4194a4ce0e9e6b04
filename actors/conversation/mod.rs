//! One actor per conversation that has a process.
