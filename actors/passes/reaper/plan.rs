//! What the reaper and the five-minute sweep would do now, and from which evidence, without doing it (issue 4, Deliver 3).
//!
//! Nothing is written, no lease is taken, and providers are only asked to list. Whether a server lives is asked by the
//! run itself, and every claim reads its conditions again, so a verdict here is the most that can happen.

use std::time::Duration;

use super::super::expiry::{self, Verdict};
use super::listing::{self, Mode};
use super::{expired, stuck_builds};
use crate::domain::machine::{Machine, MachineMode, Provider};
use crate::domain::{MachineId, Moment};
use crate::ports::store::StoreError;
use crate::ports::{World, clock};

/// Rows of one kind.
const MOST: i64 = 1_000;

/// One verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which part of which pass.
    pub part: &'static str,
    /// What would be done.
    pub verdict: &'static str,
    pub provider: Provider,
    pub name: String,
    /// None: no row has this name.
    pub machine: Option<MachineId>,
    /// What speaks for it.
    pub evidence: String,
    /// Since when that has been so, or when it was seen.
    pub as_of: Moment,
}

/// All verdicts, and the providers whose listing told nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub findings: Vec<Finding>,
    /// The provider and why.
    pub no_listing: Vec<(Provider, String)>,
    /// Names in the listings that were read to their end.
    pub listed: u64,
    /// Listed names without a row; the findings hold a sample of them.
    pub untracked: u64,
}

impl Plan {
    fn row(&mut self, part: &'static str, verdict: &'static str, machine: &Machine, as_of: Moment, evidence: String) {
        self.findings.push(Finding {
            part,
            verdict,
            provider: machine.provider,
            name: machine.name.clone(),
            machine: Some(machine.id),
            evidence,
            as_of,
        });
    }
}

/// Looks at everything.
///
/// # Errors
/// What the store said. A provider that does not list stands in the answer.
pub async fn plan(world: &World) -> Result<Plan, StoreError> {
    let mut plan = Plan::default();
    rows(world, &mut plan).await?;
    for provider in world.adapters.providers() {
        let most = usize::try_from(MOST).unwrap_or(usize::MAX);
        match listing::harvest(world, provider, most, Mode::Dry).await {
            Ok(harvest) => {
                plan.listed += harvest.listed;
                plan.untracked += harvest.untracked;
                let as_of = harvest.began_at;
                for (name, machine) in harvest.leftovers {
                    plan.findings.push(Finding {
                        part: "leftovers",
                        verdict: "delete",
                        provider,
                        name,
                        machine: Some(machine),
                        evidence: "the provider lists it, and every row of this name has ended".into(),
                        as_of,
                    });
                }
                for name in harvest.sample {
                    plan.findings.push(Finding {
                        part: "untracked",
                        verdict: "report",
                        provider,
                        name,
                        machine: None,
                        evidence: "the provider lists it, and no row has this name".into(),
                        as_of,
                    });
                }
            }
            Err(why) => plan.no_listing.push((provider, why.to_string())),
        }
    }
    Ok(plan)
}

async fn rows(world: &World, plan: &mut Plan) -> Result<(), StoreError> {
    let (now, settings) = (world.now(), &world.settings);
    let grace = clock::before(now, settings.teardown_grace);
    for machine in stuck_builds(world, MOST).await? {
        let as_of = machine.transition_at.unwrap_or(machine.inserted_at);
        let evidence = format!("{}, its build unleased and unmarked", machine.status);
        plan.row("stuck builds", "fail the build", &machine, as_of, evidence);
    }
    for machine in expired(world, MOST).await? {
        let (verdict, evidence) = match expiry::verdict(settings, &machine, now) {
            Verdict::Park(reason) => ("park", format!("ready, unleased, past its bound ({reason})")),
            Verdict::Destroy(reason) => ("destroy", format!("ready, unleased, past its bound ({reason})")),
        };
        let as_of = machine.last_resumed_at.unwrap_or(machine.inserted_at);
        plan.row("past a bound", verdict, &machine, as_of, evidence);
    }
    for machine in world.store.doomed(now, grace, MOST).await? {
        let reason = machine.transition_reason.as_deref().unwrap_or("a build that failed");
        let evidence = format!("{}, fenced or owing a delete ({reason})", machine.status);
        let as_of = machine.transition_at.unwrap_or(machine.updated_at);
        plan.row("teardown", "delete", &machine, as_of, evidence);
    }
    for machine in world.store.abandoned(now, grace, MOST).await? {
        let mode = MachineMode::Ephemeral;
        let evidence = format!("{}, {mode}, without a conversation that has not ended", machine.status);
        plan.row("nobody's", "destroy", &machine, machine.updated_at, evidence);
    }
    for id in world.store.indebted(now, MOST).await? {
        let Some(machine) = world.store.machine(id).await? else {
            continue;
        };
        let evidence = format!("{}, an operation left its outcome unknown", machine.status);
        plan.row("debts", "look", &machine, machine.updated_at, evidence);
    }
    Ok(())
}

impl Finding {
    /// How old the evidence is at `now`.
    pub fn age(&self, now: Moment) -> Duration {
        (now - self.as_of).to_std().unwrap_or_default()
    }
}
