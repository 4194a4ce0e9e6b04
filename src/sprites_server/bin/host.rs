//! The helper of this crate's tests: the processes of an enclosure, and nothing else.
//!
//! After the word `tun` it makes the network device; after `device` a file stands for one, so that the seam can be tested
//! without.

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
    } else if args.first().is_some_and(|first| first == "tun") {
        args.remove(0);
        open = fountain_sprites::network::inside::open_tun;
    }
    run(args, open)
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
