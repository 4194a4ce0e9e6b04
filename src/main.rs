//! The one binary: server, runner daemon, Sprites server, demo agent and command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    {
        // The first process of an enclosure: before any thread, and before a command line is looked at.
        let mut args = std::env::args_os().skip(1);
        if args.next().is_some_and(|first| first == fountain::cli::sprites::INIT) {
            let device = fountain_sprites::network::inside::open_tun;
            return fountain_sprites::enclosure::init::main(args.collect(), device);
        }
    }
    ExitCode::from(u8::try_from(fountain::cli::main()).unwrap_or(1))
}
