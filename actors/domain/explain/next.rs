//! The sentences: what a state means, what it waits for, and which step follows, by whom and not before when.

use chrono::{DurationRound, TimeDelta, Timelike};

use super::{Debt, DebtStage, Step, Testimony, Wait};
use crate::domain::Moment;
use crate::domain::machine::{Machine, MachineMode, MachineState, MachineStatus};
use crate::domain::settings::Settings;
use crate::domain::turn::TurnStatus;
use crate::ports::clock::after;

const HOLDER: &str = "holder";
const CLIENT: &str = "client";
const ADOPTION: &str = "adoption_pass";
const SETTLE: &str = "settle_pass";
const SWEEP: &str = "teardown_pass";
const REAPER: &str = "reaper";
const OVERDUE: &str = "overdue_pass";

pub(super) struct Told {
    pub because: String,
    pub waits_for: Vec<Wait>,
    pub next: Vec<Step>,
}

fn wait(what: impl Into<String>, until: Option<Moment>) -> Wait {
    Wait {
        what: what.into(),
        until,
    }
}

fn step(what: impl Into<String>, by: &'static str, at: Option<Moment>) -> Step {
    Step {
        what: what.into(),
        by,
        at,
    }
}

pub(super) fn told(testimony: &Testimony, state: MachineState, debts: &[Debt], settings: &Settings) -> Told {
    let machine = &testimony.machine;
    let mut told = match state {
        MachineState::New | MachineState::BuildStale => unbuilt(testimony, state, settings),
        MachineState::Building => building(testimony, settings),
        MachineState::Up => up(testimony, settings),
        MachineState::UpBusy | MachineState::Parking | MachineState::Waking => held(testimony, state, settings),
        MachineState::ParkStale | MachineState::WakeStale => stale(testimony, state, settings),
        MachineState::Asleep => asleep(testimony, settings),
        MachineState::Doomed { reset } => doomed(testimony, reset, settings),
        MachineState::Gone(status) => gone(machine, status, testimony.clock),
    };
    for debt in debts {
        owe(&mut told, debt, testimony.clock);
    }
    // What has a moment comes in its order; what a client may do at any time comes last.
    told.next.sort_by_key(|step| (step.at.is_none(), step.at));
    told
}

/// What a debt adds: a look, and until the first one no turn (RUL-L-45).
fn owe(told: &mut Told, debt: &Debt, clock: Moment) {
    let verb = debt.operation.verb;
    let (what, at) = match debt.stage {
        DebtStage::Open => (
            format!("looks what the {verb} of epoch {} did", debt.operation.epoch.0),
            debt.operation.lease_until,
        ),
        DebtStage::Probed => (
            format!("settles the {verb} of epoch {}", debt.operation.epoch.0),
            debt.settles_at,
        ),
        DebtStage::Settled => (
            format!("has the last look at the {verb} of epoch {}", debt.operation.epoch.0),
            debt.closes_at,
        ),
    };
    if debt.stage == DebtStage::Open {
        told.waits_for.push(wait(
            format!("a look at the provider: nobody knows what the {verb} did"),
            debt.settles_at,
        ));
    }
    told.next.push(step(what, SETTLE, at.map(|at| at.max(clock))));
}

/// The first minute `minute` of an hour that is not before `from`.
fn reaper_after(from: Moment, minute: u32) -> Moment {
    let hour = from.duration_trunc(TimeDelta::hours(1)).unwrap_or(from);
    let this = hour + TimeDelta::minutes(i64::from(minute));
    if from.minute() < minute || from <= this {
        this
    } else {
        this + TimeDelta::hours(1)
    }
}

/// A prompt that waits for the build, and its deadline (RUL-L-23).
fn waiting_prompt(testimony: &Testimony) -> Option<Moment> {
    let turns = testimony.tenants.iter().filter_map(|tenant| tenant.turn.as_ref());
    let pending = turns.filter(|turn| turn.status == TurnStatus::Pending);
    pending.filter_map(|turn| turn.pending_until).min()
}

fn unbuilt(testimony: &Testimony, state: MachineState, settings: &Settings) -> Told {
    let machine = &testimony.machine;
    let because = match state {
        MachineState::New => "its row is reserved and nobody has begun to build it",
        _ => "the process that built it is gone; its lease has ended and the build is begun anew",
    };
    let since = machine.transition_at.unwrap_or(machine.inserted_at);
    let released = reaper_after(
        after(since, settings.stuck_build_age).max(testimony.clock),
        settings.reaper_minute,
    );
    let mut told = Told {
        because: because.into(),
        waits_for: vec![wait("a server of its conversation that builds it", Some(released))],
        next: vec![step(
            "fails the build and deletes what it made, if nobody began it again",
            REAPER,
            Some(released),
        )],
    };
    if let Some(until) = waiting_prompt(testimony) {
        let soon = after(testimony.clock, settings.adoption_interval);
        told.waits_for.push(wait("a prompt that waits for it", Some(until)));
        told.next
            .push(step("starts a server that builds it", ADOPTION, Some(soon)));
        told.next.push(step("fails the waiting prompt", OVERDUE, Some(until)));
    }
    told
}

fn building(testimony: &Testimony, settings: &Settings) -> Told {
    let machine = &testimony.machine;
    let since = machine.transition_at.unwrap_or(machine.inserted_at);
    let ceiling = after(since, settings.provision_ceiling);
    Told {
        because: match machine.status {
            MachineStatus::Starting => "the provider made it and it is being prepared".into(),
            _ => "the provider is being asked for it".into(),
        },
        waits_for: vec![wait("the build", Some(ceiling))],
        next: vec![step(
            "finishes the build, or fails it at the ceiling",
            HOLDER,
            Some(ceiling),
        )],
    }
}

fn held(testimony: &Testimony, state: MachineState, settings: &Settings) -> Told {
    let machine = &testimony.machine;
    let verb = super::running(testimony).map_or("operation", |operation| operation.verb.as_str());
    let until = machine.lease.as_ref().map(|lease| lease.until);
    let because = match state {
        MachineState::Parking => "it is being parked".to_owned(),
        MachineState::Waking => "it is being woken".to_owned(),
        _ => format!("an operation ({verb}) holds it"),
    };
    Told {
        because,
        waits_for: vec![wait(format!("the end of the {verb}"), until)],
        next: vec![
            step(format!("finishes the {verb}, or renews its lease"), HOLDER, until),
            step(
                "looks at the machine, if the holder dies",
                SETTLE,
                until.map(|until| after(until, settings.settle_interval)),
            ),
        ],
    }
}

fn stale(testimony: &Testimony, state: MachineState, settings: &Settings) -> Told {
    let what = if state == MachineState::ParkStale {
        "park"
    } else {
        "wake"
    };
    let soon = after(testimony.clock, settings.settle_interval);
    Told {
        because: format!("its {what} never ended: the holder is gone, or nobody knows what the provider did"),
        waits_for: vec![wait(
            "a look at the provider, by the settle pass or the next request",
            Some(soon),
        )],
        next: vec![
            step("a prompt looks first, and then runs or wakes it", CLIENT, None),
            step("looks at the machine and makes its row true", SETTLE, Some(soon)),
        ],
    }
}

/// The newest sign of use that is stored.
fn last_use(testimony: &Testimony) -> Moment {
    let machine = &testimony.machine;
    let active = testimony.tenants.iter().filter_map(|tenant| tenant.last_active_at);
    active
        .chain(machine.last_resumed_at)
        .chain([machine.inserted_at])
        .max()
        .unwrap_or(machine.inserted_at)
}

/// An ephemeral machine that nobody has is fenced (RUL-L-54).
fn abandoned(testimony: &Testimony, settings: &Settings) -> Option<Step> {
    let machine = &testimony.machine;
    let is = machine.mode == MachineMode::Ephemeral && testimony.tenants.is_empty();
    let at = after(machine.updated_at, settings.teardown_grace).max(testimony.clock);
    is.then(|| step("fences it, because no conversation has it", SWEEP, Some(at)))
}

fn up(testimony: &Testimony, settings: &Settings) -> Told {
    let machine = &testimony.machine;
    let clock = testimony.clock;
    let mut waits_for = Vec::new();
    let mut next: Vec<Step> = abandoned(testimony, settings).into_iter().collect();
    let open = testimony.tenants.iter().filter(|tenant| tenant.turn.is_some());
    for tenant in open {
        waits_for.push(wait(
            format!("the end of the turn of conversation {}", tenant.conversation),
            None,
        ));
    }
    if let Some(idle) = settings.idle_timeout {
        let at = after(last_use(testimony), idle).max(clock);
        next.push(step("parks it, if nobody used it since", SWEEP, Some(at)));
    }
    if let Some(lifetime) = settings.max_lifetime {
        let born = machine.last_resumed_at.unwrap_or(machine.inserted_at);
        next.push(step(
            "parks it at its ceiling",
            SWEEP,
            Some(after(born, lifetime).max(clock)),
        ));
    }
    next.push(step("a prompt runs on it at once", CLIENT, None));
    Told {
        because: if waits_for.is_empty() {
            "it is built and runs; no turn is open".into()
        } else {
            "it is built and runs; somebody works on it".into()
        },
        waits_for,
        next,
    }
}

fn asleep(testimony: &Testimony, settings: &Settings) -> Told {
    let mut next: Vec<Step> = abandoned(testimony, settings).into_iter().collect();
    next.push(step("a prompt wakes it", CLIENT, None));
    Told {
        because: "it is parked: its disk is kept, nothing runs, and it takes no slot".into(),
        waits_for: Vec::new(),
        next,
    }
}

fn doomed(testimony: &Testimony, reset: bool, settings: &Settings) -> Told {
    let machine = &testimony.machine;
    let clock = testimony.clock;
    let reason = machine.transition_reason.as_deref().unwrap_or("terminated");
    let until = machine.lease.as_ref().map(|lease| lease.until);
    if machine.lease_live(clock) {
        return Told {
            because: format!("it is fenced ({reason}) and its owner is at work"),
            waits_for: vec![wait("the provider to confirm that it is gone", until)],
            next: vec![step("deletes it and confirms the delete", HOLDER, until)],
        };
    }
    let stamped = machine.transition_at.unwrap_or(machine.updated_at);
    let grace = if reset {
        stamped
    } else {
        after(stamped, settings.teardown_grace)
    };
    let at = machine.next_attempt_at.unwrap_or(grace).max(clock);
    Told {
        because: format!("it is fenced ({reason}) and its delete is not confirmed yet"),
        waits_for: vec![wait(
            "the provider to confirm that it is gone; until then it is counted",
            None,
        )],
        next: vec![step("tries the delete again", SWEEP, Some(at))],
    }
}

fn gone(machine: &Machine, status: MachineStatus, clock: Moment) -> Told {
    if machine.cleanup_pending {
        let at = machine.next_attempt_at.map_or(clock, |at| at.max(clock));
        return Told {
            because: format!("its row ended ({status}), but what its build made is not deleted yet"),
            waits_for: vec![wait(
                "the provider to confirm that it is gone; until then it is counted",
                None,
            )],
            next: vec![step("tries the delete again", SWEEP, Some(at))],
        };
    }
    let reason = machine.transition_reason.as_deref();
    Told {
        because: match reason {
            Some(reason) => format!("it is gone ({status}, {reason})"),
            None => format!("it is gone ({status})"),
        },
        waits_for: Vec::new(),
        next: vec![step("a prompt of its conversation builds a new one", CLIENT, None)],
    }
}
