//! From the start of `fountain serve` on a migrated data directory to its first ready answer.
//!
//! Baseline: `fountain version`, start to end, which is what loading the program costs.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::http::Client;
use common::process::{Process, fountain};
use common::stack::Stack;
use common::{Options, Table, median, ms, quantile};

fn main() -> anyhow::Result<()> {
    let options = Options::read();
    let (rounds, starts) = options.pick((5, 6), (2, 2));
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    Stack::prepare(folder.path(), &data)?;
    let (mut ours, mut bare, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (mut ready, mut version) = (Vec::new(), Vec::new());
        for _ in 0..starts {
            ready.push(ms(serve(folder.path(), &data)?));
            version.push(ms(print_version(folder.path())?));
        }
        ours.push(median(&ready));
        slow.push(quantile(&ready, 1.0));
        bare.push(median(&version));
    }
    let mut table = Table::new("start_to_ready: from process start to readiness, SQLite");
    let base = median(&bare);
    for (what, values, aim) in [("median", &ours, "< 100 ms"), ("slowest of a round", &slow, "")] {
        let value = median(values);
        table.row(
            what,
            format!("{value:.1} ms"),
            format!("{base:.1} ms"),
            format!("{:.1} x", value / base),
            aim,
        );
    }
    table.print();
    Ok(())
}

/// Until `GET /health/ready` answers 200; the address is known from the greeting.
fn serve(home: &Path, data: &Path) -> anyhow::Result<Duration> {
    let mut command = fountain(home);
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data);
    let started = Instant::now();
    let mut server = Process::start("serve", home, command)?;
    let greeting = server.greeting()?;
    let address = common::stack::address(&greeting)?;
    let (status, answer) = Client::new(address, "")?.call("GET", "/health/ready", None)?;
    let took = started.elapsed();
    anyhow::ensure!(status == 200, "not ready: {status} {answer}");
    Ok(took)
}

fn print_version(home: &Path) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let output = fountain(home).arg("version").output()?;
    anyhow::ensure!(output.status.success(), "fountain version failed");
    Ok(started.elapsed())
}
