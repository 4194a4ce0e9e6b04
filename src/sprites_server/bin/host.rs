//! The helper of this crate's tests: the first process of an enclosure, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    let no_device = || Err(std::io::ErrorKind::Unsupported.into());
    fountain_sprites::enclosure::init::main(std::env::args_os().skip(1).collect(), no_device)
}
