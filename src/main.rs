//! The one binary. Its commands are mounted when the engine has landed.

fn main() {}
