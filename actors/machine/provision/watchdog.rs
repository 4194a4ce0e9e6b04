//! The clock over a build's own clock (lifecycle 4.6, RUL-L-59, INV-25, INV-26, R-45).
//!
//! A build ends itself at its ceiling. One that is stuck cannot, and its owner's queue stands behind it; so this runs
//! beside both and decides by the row alone. A lease and a half after the ceiling it claims the machine, as anybody
//! may whose predecessor stopped renewing, and writes `failed` with the delete that it owes. The server is stopped only
//! after the row says so, or after a quarter of an hour in which the lease was not to be had: a server that restarts over
//! a row that is not terminal would build a second machine (#394).

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Ended, end_build};
use crate::domain::ConversationId;
use crate::domain::account::Actor;
use crate::machine::Site;
use crate::machine::messages::FailBuild;
use crate::ports::meter::Measure;

/// After the ceiling: one lease and thirty seconds (lifecycle 4.6).
const GRACE: Duration = Duration::from_secs(90);
/// The first attempt waits this long for the lease.
const PATIENCE: Duration = Duration::from_secs(150);
/// Between two further attempts (RUL-L-59).
const ASK_EVERY: Duration = Duration::from_secs(30);
/// How long it asks after the first attempt was refused.
const ASK_FOR: Duration = Duration::from_secs(15 * 60);
/// Who does it.
const WATCHDOG: Actor = Actor::System("provision_watchdog");
/// What the conversation is told.
pub(crate) const TOO_LONG: &str = "the build took too long and was given up; the next prompt builds anew";

/// What became of a build that outlived its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It ended by itself, or its server did: nothing is left to do.
    Over,
    /// The row is `failed` now; its conversation and its server are still to be told.
    Failed,
    /// The lease was not to be had: the server is stopped anyway, and the row is left to the hourly pass.
    GaveUp,
}

/// Watches one build, which begins now. `over` closes when the build, or its server, ends.
pub(crate) async fn watch(site: &Site, conversation: ConversationId, mut over: oneshot::Receiver<()>) -> Verdict {
    let limit = site.world.settings.provision_ceiling + GRACE;
    if tokio::time::timeout(limit, &mut over).await.is_ok() {
        return Verdict::Over;
    }
    let mut patience = PATIENCE;
    let give_up = Instant::now() + PATIENCE + ASK_FOR;
    loop {
        let fail = FailBuild {
            conversation: Some(conversation),
            reason: "deadline_exceeded".into(),
            message: TOO_LONG.into(),
            actor: WATCHDOG,
        };
        match end_build(site, fail, patience).await {
            Ok(Ended::Now(_)) => {
                site.world.meter.record(Measure::ProvisionDeadlineExceeded);
                return Verdict::Failed;
            }
            Ok(Ended::Before) => return Verdict::Over,
            Err(error) => {
                tracing::warn!(machine.id = %site.machine, %error, "a build past its ceiling could not be ended yet");
            }
        }
        patience = Duration::ZERO;
        if Instant::now() + ASK_EVERY > give_up {
            return Verdict::GaveUp;
        }
        if tokio::time::timeout(ASK_EVERY, &mut over).await.is_ok() {
            return Verdict::Over;
        }
    }
}
