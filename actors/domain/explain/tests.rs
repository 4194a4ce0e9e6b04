//! What is said about each state: never nothing, and never a moment that has passed.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::domain::machine::{MachineMode, MachineStatus, Provider, Transition};
use crate::domain::operation::{Outcome, Verb};

fn now() -> Moment {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn machine(status: MachineStatus, transition: Option<Transition>, leased: bool) -> Machine {
    Machine {
        id: MachineId(uuid::Uuid::from_u128(1)),
        account_id: None,
        name: "fountain-x".into(),
        status,
        mode: MachineMode::Persistent,
        runtime: None,
        provider: Provider::Fake,
        provider_meta: json!({}),
        transition,
        transition_reason: None,
        transition_at: transition.map(|_| now()),
        lease_epoch: Epoch(3),
        lease: leased.then(|| LeaseInfo {
            holder: "node/1".into(),
            until: after(now(), Duration::from_secs(60)),
        }),
        woken_at: None,
        cleanup_pending: false,
        next_attempt_at: None,
        build_fingerprint: None,
        agent_id: None,
        environment_id: None,
        vault_id: None,
        last_resumed_at: None,
        terminated_at: None,
        inserted_at: now(),
        updated_at: now(),
    }
}

fn operation(epoch: i64, verb: Verb, outcome: Option<Outcome>) -> Operation {
    Operation {
        id: OperationId(uuid::Uuid::from_u64_pair(9, epoch.unsigned_abs())),
        machine_id: MachineId(uuid::Uuid::from_u128(1)),
        machine_name: "fountain-x".into(),
        verb,
        reason: None,
        actor: "api".into(),
        epoch: Epoch(epoch),
        started_at: now(),
        finished_at: None,
        outcome,
        provider_call: None,
        provider_answer: None,
        evidence: None,
        lease_until: Some(now()),
        probed_at: None,
        settled_at: None,
        closed_at: None,
    }
}

fn testimony(machine: Machine, open: Vec<Operation>) -> Testimony {
    Testimony {
        counted: machine.is_counted(),
        machine,
        clock: now(),
        operations: open.clone(),
        open,
        tenants: Vec::new(),
    }
}

fn explained(testimony: &Testimony) -> Why {
    why(testimony, &Settings::default())
}

/// Promise 6, over every combination of status, stamp and lease.
#[test]
fn every_state_has_a_sentence_and_a_next_step_that_is_not_in_the_past() {
    let stamps = std::iter::once(None).chain(Transition::ALL.iter().copied().map(Some));
    let mut seen = std::collections::BTreeSet::new();
    for transition in stamps {
        for status in MachineStatus::ALL {
            for leased in [false, true] {
                let told = explained(&testimony(machine(*status, transition, leased), Vec::new()));
                assert!(!told.because.is_empty());
                assert!(!told.next.is_empty(), "{told:?}");
                for step in &told.next {
                    assert!(step.at.is_none_or(|at| at >= now()), "{status} {transition:?} {step:?}");
                }
                let waits_alone = matches!(
                    told.state,
                    MachineState::BuildStale
                        | MachineState::ParkStale
                        | MachineState::WakeStale
                        | MachineState::Doomed { .. }
                );
                if waits_alone {
                    let unasked = told.next.iter().any(|step| step.by != "client" && step.at.is_some());
                    assert!(unasked, "it waits for a client: {told:?}");
                    assert!(!told.waits_for.is_empty());
                }
                seen.insert(state_word(told.state));
            }
        }
    }
    assert_eq!(seen.len(), 12, "{seen:?}");
}

#[test]
fn rul_l_3_a_debt_says_when_it_settles_and_closes_and_the_running_operation_is_none() {
    let park = operation(3, Verb::Park, None);
    let wake = operation(2, Verb::Wake, Some(Outcome::Unknown));
    let up = machine(MachineStatus::Ready, Some(Transition::Parking), true);
    let told = explained(&testimony(up, vec![wake.clone(), park.clone()]));
    assert_eq!(told.holder.unwrap().1, Some(park.clone()));
    assert_eq!(told.debts.len(), 1);
    let debt = &told.debts[0];
    assert_eq!((&debt.operation, debt.stage), (&wake, DebtStage::Open));
    assert_eq!(debt.settles_at, Some(after(now(), Duration::from_secs(120))));
    assert_eq!(debt.closes_at, Some(after(now(), Duration::from_secs(900))));

    // Its lease is over: what ran is a debt as well.
    let stale = machine(MachineStatus::Ready, Some(Transition::Parking), false);
    let told = explained(&testimony(stale, vec![wake, park]));
    assert_eq!(told.debts.len(), 2);
    assert_eq!(told.holder, None);
}

#[test]
fn rul_l_45_an_unprobed_debt_is_waited_for_and_a_settled_one_is_not() {
    let up = || machine(MachineStatus::Ready, None, false);
    let owed = operation(2, Verb::Park, Some(Outcome::Unknown));
    let told = explained(&testimony(up(), vec![owed.clone()]));
    assert!(
        told.waits_for
            .iter()
            .any(|wait| wait.what.contains("look at the provider"))
    );
    let settled = Operation {
        probed_at: Some(now()),
        settled_at: Some(now()),
        ..owed
    };
    let told = explained(&testimony(up(), vec![settled]));
    assert_eq!(told.waits_for, []);
    assert!(
        told.next
            .iter()
            .any(|step| step.by == "settle_pass" && step.what.contains("last look"))
    );
}

#[test]
fn rul_l_23_a_waiting_prompt_shows_its_deadline() {
    let until = after(now(), Duration::from_secs(1800));
    let mut told = testimony(machine(MachineStatus::Pending, None, false), Vec::new());
    told.tenants.push(Tenant {
        conversation: ConversationId(uuid::Uuid::from_u128(5)),
        status: ConversationStatus::Running,
        last_active_at: None,
        turn: Some(OpenTurn {
            id: TurnId(uuid::Uuid::from_u128(6)),
            status: TurnStatus::Pending,
            pending_until: Some(until),
        }),
    });
    let why = explained(&told);
    assert!(why.waits_for.iter().any(|wait| wait.until == Some(until)));
    assert_eq!(why.next[0].by, "adoption_pass");
    assert!(
        why.next
            .iter()
            .any(|step| step.by == "overdue_pass" && step.at == Some(until))
    );
}

#[test]
fn rul_l_20_a_receipt_is_confirmed_unconfirmed_or_handed_over() {
    let doomed = Machine {
        next_attempt_at: Some(after(now(), Duration::from_secs(300))),
        ..machine(MachineStatus::Ready, Some(Transition::Destroying), false)
    };
    let tried = Operation {
        evidence: Some(json!({"absent": false, "why": "timeout"})),
        ..operation(4, Verb::Destroy, Some(Outcome::Unconfirmed))
    };
    let unconfirmed = |next_try| DeletionReceipt::Unconfirmed {
        why: "timeout".into(),
        next_try,
    };
    assert_eq!(
        receipt(&tried, &doomed, Some(tried.id)),
        Some(unconfirmed(doomed.next_attempt_at))
    );
    assert_eq!(
        receipt(&tried, &doomed, None),
        Some(unconfirmed(None)),
        "a newer one was tried"
    );
    let gone = machine(MachineStatus::Terminated, None, false);
    let done = Operation {
        provider_call: Some("destroy,get".into()),
        finished_at: Some(now()),
        ..operation(5, Verb::Reset, Some(Outcome::Done))
    };
    let confirmed = DeletionReceipt::Confirmed {
        by: "get".into(),
        at: Some(now()),
    };
    assert_eq!(receipt(&done, &gone, Some(done.id)), Some(confirmed));
    let given = operation(6, Verb::Destroy, Some(Outcome::HandedOver));
    assert_eq!(
        receipt(&given, &gone, Some(given.id)),
        Some(DeletionReceipt::HandedOver { at: None })
    );
    assert_eq!(
        receipt(&operation(7, Verb::Park, Some(Outcome::Done)), &gone, None),
        None
    );
}
