//! What the benchmark programs share: a stack of real processes, a plain HTTP client, a driver for an agent on its own
//! pipes, and the arithmetic of a table.
//!
//! Every figure is measured next to a baseline in the same run, in alternating rounds, because the machines are noisy;
//! the quoted value is the median of the rounds, and the ratio is what to compare between machines. The client is
//! blocking and hand-written on purpose: what it costs is a system call, so the figures are the server's. Everything is
//! bounded in time, listens on ports that the kernel picks, and removes what it made.
#![allow(dead_code, reason = "no program uses all of it")]
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

pub mod acp;
pub mod http;
pub mod postgres;
pub mod process;
pub mod stack;
pub mod wal;

use std::time::{Duration, Instant};

/// How long any single wait may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How a program was called.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `--quick`: small numbers, to see that the program works. Its figures mean little.
    pub quick: bool,
}

impl Options {
    /// Reads the command line; what `cargo bench` adds is ignored.
    pub fn read() -> Self {
        let quick = std::env::args().skip(1).any(|argument| argument == "--quick");
        if cfg!(debug_assertions) {
            println!("note: a debug build; its figures mean nothing (cargo bench builds a release one)");
        }
        Self { quick }
    }

    /// `full`, or `quick` in a quick run.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// The value below which the share `part` (0 to 1) of the values lie; NaN without values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let index = (last as f64 * part).round();
    sorted.get(index as usize).copied().unwrap_or(f64::NAN)
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Runs a closure and answers how long it took.
pub fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Duration)> {
    let started = Instant::now();
    let value = work()?;
    Ok((value, started.elapsed()))
}

/// Waits until `ready` answers something, asking every `pause`.
///
/// # Errors
/// After [`PATIENCE`], and when `ready` fails.
pub fn until<T>(
    what: &str,
    pause: Duration,
    mut ready: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        anyhow::ensure!(Instant::now() < give_up, "gave up waiting for {what}");
        rest(pause);
    }
}

/// Rests this thread: a benchmark has no arbiter to block.
pub fn rest(pause: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the thread is the program's own")]
    std::thread::sleep(pause);
}

/// One table: what, measured, baseline, ratio, aim.
pub struct Table {
    title: &'static str,
    rows: Vec<[String; 5]>,
}

impl Table {
    pub fn new(title: &'static str) -> Self {
        let head = ["what", "measured", "baseline", "ratio", "aim"].map(str::to_owned);
        Self {
            title,
            rows: vec![head],
        }
    }

    pub fn row(&mut self, what: &str, measured: String, baseline: String, ratio: String, aim: &str) {
        self.rows
            .push([what.to_owned(), measured, baseline, ratio, aim.to_owned()]);
    }

    pub fn print(&self) {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..5).map(width).collect();
        println!("\n{}", self.title);
        for row in &self.rows {
            let line: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            println!("| {} |", line.join(" | "));
        }
    }
}

/// One line of progress or explanation.
pub fn say(text: &str) {
    println!("{text}");
}
