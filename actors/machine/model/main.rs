//! Looks at every state of a world that is larger than the tests have time for:
//! `cargo run --release -p fountain-model -- --start new --claims 4 --faults 3`.
//!
//! Prints how many states there are and, for each broken law, the shortest way to it. Exits with 1 if one is broken.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use fountain_model::Protocol;
use fountain_model::rules::{Start, World};
use stateright::{Checker, HasDiscoveries, Model};

#[derive(Clone, Copy, ValueEnum)]
enum From {
    New,
    Stranger,
    Up,
    Asleep,
}

/// Checks the lease and fence protocol of a machine exhaustively.
#[derive(Parser)]
struct Arguments {
    /// Where the row begins.
    #[arg(long, value_enum, default_value = "new")]
    start: From,
    /// Claims of the row.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=6))]
    claims: u8,
    /// Faults, of any kind.
    #[arg(long, default_value_t = 3)]
    faults: u8,
    /// Fences by a user.
    #[arg(long, default_value_t = 1)]
    fences: u8,
    /// The provider refuses old epochs.
    #[arg(long)]
    honours_epochs: bool,
    /// The name was chosen and is kept.
    #[arg(long)]
    chosen_name: bool,
    /// A process may stop between its guard and its call.
    #[arg(long)]
    stops_after_guard: bool,
    /// A process that comes back frees the leases of the one before it.
    #[arg(long)]
    boot_frees: bool,
    /// Threads of the search.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
fn main() -> ExitCode {
    let asked = Arguments::parse();
    let start = match asked.start {
        From::New => Start::New,
        From::Stranger => Start::NewBesideStranger,
        From::Up => Start::Up,
        From::Asleep => Start::Asleep,
    };
    let world = World {
        claims: asked.claims,
        faults: asked.faults,
        fences: asked.fences,
        honours_epochs: asked.honours_epochs,
        chosen_name: asked.chosen_name,
        stops_after_guard: asked.stops_after_guard,
        boot_frees: asked.boot_frees,
        ..World::from(start)
    };
    let began = Instant::now();
    let checker = Protocol::new(world)
        .checker()
        .threads(asked.threads)
        .finish_when(HasDiscoveries::All)
        .spawn_bfs()
        .join();
    println!(
        "{} states, {} deep, {:.1} s: {world:?}",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    let broken = checker.discoveries();
    for (law, path) in &broken {
        println!("\nbroken: {law}");
        for (state, action) in path.clone().into_vec() {
            println!("  {:?} {:?} {:?}", state.row, state.provider.machines, state.requests);
            if let Some(action) = action {
                println!("  -> {action:?}");
            }
        }
    }
    if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
