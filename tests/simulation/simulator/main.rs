//! `simulate`: runs plans by seed, prints the first that breaks a rule, shrunk.
#![allow(clippy::print_stdout, reason = "a command line program prints")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use fountain_simulator::plan::{Menu, Plan};
use fountain_simulator::run::{Outcome, run};
use fountain_simulator::shrink::shrink;

/// Runs the control plane in virtual time under faults and checks every invariant.
#[derive(Parser, Debug)]
struct Args {
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from the first on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Steps of each run.
    #[arg(long, default_value_t = 300)]
    steps: usize,
    /// Runs at the same time; each has a thread of its own.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Never two replicas.
    #[arg(long)]
    one_replica: bool,
    /// The wall clock never jumps.
    #[arg(long)]
    no_jumps: bool,
    /// Go on after a violation and count them by number.
    #[arg(long)]
    all: bool,
    /// Runs that shrinking a failure may take; 0 prints it as it is.
    #[arg(long, default_value_t = 200)]
    shrink: usize,
    /// Print the log of the runs: RUST_LOG decides how much.
    #[arg(long)]
    log: bool,
    /// Run each seed twice and compare what the provider saw.
    #[arg(long)]
    twice: bool,
}

#[derive(Default)]
struct Total {
    steps: AtomicU64,
    commits: AtomicU64,
    checks: AtomicU64,
    failed: Mutex<Vec<(Plan, Outcome)>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.log {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .without_time()
            .init();
    }
    let menu = Menu {
        two_replicas: !args.one_replica,
        clock_jumps: !args.no_jumps,
    };
    let started = Instant::now();
    let (next, total) = (AtomicU64::new(args.seed), Total::default());
    let last = args.seed.saturating_add(args.seeds);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let enough = !args.all && !failures(&total).is_empty();
                    if seed >= last || enough {
                        return;
                    }
                    one(&args, menu, seed, &total);
                }
            });
        }
    });
    report(&args, &total, started)
}

fn failures(total: &Total) -> std::sync::MutexGuard<'_, Vec<(Plan, Outcome)>> {
    total.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn one(args: &Args, menu: Menu, seed: u64, total: &Total) {
    let plan = Plan::drawn(seed, args.steps, menu);
    let outcome = run(&plan);
    total.steps.fetch_add(outcome.steps as u64, Ordering::Relaxed);
    total.commits.fetch_add(outcome.commits, Ordering::Relaxed);
    total.checks.fetch_add(outcome.checks, Ordering::Relaxed);
    if args.twice {
        let again = run(&plan);
        let differs = outcome.log.iter().zip(&again.log).find(|(one, other)| one != other);
        if let Some((one, other)) = differs {
            println!("seed {seed}: two runs differ: {one} / {other}");
        }
    }
    if !outcome.violations.is_empty() {
        failures(total).push((plan, outcome));
    }
}

fn report(args: &Args, total: &Total, started: Instant) -> ExitCode {
    let mut failed = std::mem::take(&mut *failures(total));
    failed.sort_by_key(|(plan, _)| plan.seed);
    let (steps, commits, checks) = (
        total.steps.load(Ordering::Relaxed),
        total.commits.load(Ordering::Relaxed),
        total.checks.load(Ordering::Relaxed),
    );
    println!(
        "{} seeds, {steps} operations, {commits} commits judged, {checks} checks, {} failed, {:.1} s",
        args.seeds,
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    if args.all {
        let mut by_number: std::collections::BTreeMap<String, Vec<u64>> = std::collections::BTreeMap::new();
        for (plan, outcome) in &failed {
            let number = outcome.violations.first().map(|first| first.number.clone());
            by_number.entry(number.unwrap_or_default()).or_default().push(plan.seed);
        }
        for (number, seeds) in by_number {
            println!(
                "{number:10} {:5} seeds, for example {:?}",
                seeds.len(),
                seeds.iter().take(6).collect::<Vec<_>>()
            );
        }
        for (plan, outcome) in failed.iter().take(12) {
            if let Some(first) = outcome.violations.first() {
                println!(
                    "seed {} step {:?}: {} {}",
                    plan.seed, outcome.at, first.number, first.what
                );
            }
        }
    } else if let Some((plan, outcome)) = failed.first() {
        let (small, told) = if args.shrink > 0 {
            shrink(plan, outcome, args.shrink)
        } else {
            (plan.clone(), outcome.clone())
        };
        println!(
            "seed {} failed after step {:?} of {}; shrunk to:",
            plan.seed,
            outcome.at,
            plan.steps.len()
        );
        println!("{small:?}");
        for violation in &told.violations {
            println!("{}: {}", violation.number, violation.what);
        }
        for line in &told.history {
            println!("  {line}");
        }
        println!(
            "cargo run --release -p fountain-simulator --bin simulate -- --seed {} --steps {}",
            plan.seed,
            plan.steps.len()
        );
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
