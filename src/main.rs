//! The one binary: server, runner daemon, demo agent and command line.

fn main() {
    std::process::exit(fountain::cli::main());
}
