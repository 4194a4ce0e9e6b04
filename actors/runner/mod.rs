//! One actor per connected runner.
