//! Questions that change nothing and wait for nobody. They hold no lease, so what they say may be old when it arrives.

use super::Site;
use super::lease;
use super::messages::{MachineError, MachineReport};
use super::settle;

/// The row, its state on the lease clock, and what runs in this actor.
pub(crate) async fn report(
    site: &Site,
    running: Option<&'static str>,
    waiting: usize,
) -> Result<MachineReport, MachineError> {
    let machine = settle::row(site).await?;
    let state = machine.state(lease::clock(site).await?);
    Ok(MachineReport {
        machine,
        state,
        running,
        waiting,
    })
}

/// Where a path is on the machine's host.
pub(crate) async fn host_path(site: &Site, path: &str) -> Result<String, MachineError> {
    let machine = settle::row(site).await?;
    Ok(settle::facade(site, &machine)?.host_path(path).await)
}
