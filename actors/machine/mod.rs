//! One actor per active machine.
