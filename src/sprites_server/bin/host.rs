//! The helper of this crate's tests: the processes of an enclosure, and nothing else.
//!
//! After the word `device` a file stands for the network device, so that the way out can be tested without one.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::{fs::File, io};

    use fountain_sprites::enclosure::init::{OpenDevice, main as run};

    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    let mut open: OpenDevice = || Err(io::ErrorKind::Unsupported.into());
    if args.first().is_some_and(|first| first == "device") {
        args.remove(0);
        open = || Ok(File::open("/dev/zero")?.into());
    }
    run(args, open)
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
