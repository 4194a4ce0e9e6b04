//! What passes remember: debts and their looks, their leases, whose a listed name is, and what is forgotten.

use std::time::Duration;

use diesel::prelude::*;

use fountain::store::schema::{api_keys, audit_events, log_events, machines, operations, turns, usage_events};
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineMode, MachineStatus, Provider};
use fountain_actors::domain::operation::{Operation, Outcome, Receipt};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Launch, Limits};
use fountain_actors::ports::store::machines::{ClaimAnswer, ClaimRefusal, Finish, Purpose};
use fountain_actors::ports::store::passes::{Forgettable, NameHolder, PassStore};
use fountain_actors::ports::store::{ConversationStore, MachineStore, StoreError, TurnStore};

use crate::lab::{Held, Lab, ROOMY, TTL};
use crate::support::refused;

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const PERSISTENT: MachineMode = MachineMode::Persistent;

fn wake() -> Purpose {
    Purpose::Wake { limits: ROOMY }
}

/// Lets every lease of a machine's journal have ended so many seconds ago.
fn ended_ago(lab: &Lab, machine: MachineId, seconds: i64) {
    diesel::update(operations::table.filter(operations::machine_id.eq(machine.to_string())))
        .set(operations::lease_until.eq(lab.in_seconds(-seconds).naive_utc()))
        .execute(&mut lab.db.raw())
        .unwrap();
}

/// A wake of a parked machine whose outcome nobody knows; its stamp is cleared by a first look that saw it parked.
async fn lost_wake(lab: &Lab, machine: MachineId) -> Held {
    lab.park(machine).await;
    let held = lab.claim(machine, wake()).await;
    let unknown = Finish {
        keep_stamp: true,
        receipt: Receipt::of(Outcome::Unknown),
        learned: false,
        ..lab.new_finish(&held, None)
    };
    lab.store().finish(unknown).await.unwrap();
    held
}

async fn look(lab: &Lab, machine: MachineId, event: Option<MachineEvent>) {
    let held = lab.claim(machine, Purpose::Settle).await;
    lab.store().finish(lab.new_finish(&held, event)).await.unwrap();
}

async fn journal_row(lab: &Lab, held: &Held) -> Operation {
    let journal = lab.store().operations(lab.account, held.machine, 100).await.unwrap();
    journal.into_iter().find(|row| row.id == held.operation).unwrap()
}

#[actix::test]
async fn rul_l_3_a_debt_is_probed_then_settled_then_closed_by_the_end_of_its_lease() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        let held = lost_wake(&lab, machine).await;
        let due = async || !lab.store().indebted(lab.now(), 10).await.unwrap().is_empty();
        assert!(due().await, "looked after at once");
        look(&lab, machine, Some(MachineEvent::ParkConfirmed)).await;
        let row = journal_row(&lab, &held).await;
        assert!(row.probed_at.is_some() && row.settled_at.is_none() && row.is_debt());
        assert!(!due().await, "the next look is due after 120 s");
        ended_ago(&lab, machine, 121);
        assert!(due().await);
        look(&lab, machine, None).await;
        let row = journal_row(&lab, &held).await;
        assert!(row.settled_at.is_some() && row.finished_at.is_some() && row.closed_at.is_none());
        assert_eq!(row.outcome, Some(Outcome::Unknown), "what was known then stays written");
        assert!(!due().await);
        ended_ago(&lab, machine, 15 * 60 + 1);
        assert!(due().await, "the last look");
        look(&lab, machine, None).await;
        assert!(!journal_row(&lab, &held).await.is_debt());
        ended_ago(&lab, machine, 3600);
        assert!(!due().await);
    }
}

#[actix::test]
async fn rul_l_3_an_operation_that_learned_nothing_settles_nothing() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        let held = lost_wake(&lab, machine).await;
        ended_ago(&lab, machine, 3600);
        for outcome in [Outcome::Failed, Outcome::Refused, Outcome::Done] {
            let claim = lab.claim(machine, Purpose::Confirm).await;
            let finish = Finish {
                keep_stamp: true,
                learned: false,
                receipt: Receipt::of(outcome),
                ..lab.new_finish(&claim, None)
            };
            lab.store().finish(finish).await.unwrap();
            assert_eq!(journal_row(&lab, &held).await.probed_at, None, "{outcome}");
        }
    }
}

#[actix::test]
async fn rul_l_3_the_end_of_a_lease_is_known_whoever_dies() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        let held = lab.claim(machine, Purpose::Confirm).await;
        let first = journal_row(&lab, &held).await.lease_until.unwrap();
        assert_eq!(Some(first), lab.machine(machine).await.lease.map(|lease| lease.until));
        let (epoch, long) = (held.claimed.epoch, TTL * 10);
        let renewed = lab.store().renew(machine, epoch, "node-a/1".into(), long, lab.now());
        renewed.await.unwrap();
        let later = journal_row(&lab, &held).await.lease_until.unwrap();
        assert!(later - first > chrono::TimeDelta::seconds(500));
        let busy = lab.store().indebted(lab.now(), 10).await.unwrap();
        assert!(busy.is_empty(), "an operation under a live lease is no debt");
        lab.expire(machine);
        assert_eq!(
            lab.store().indebted(lab.now(), 10).await.unwrap(),
            [machine],
            "its owner died"
        );
        lab.store().postpone_debts(machine, lab.in_seconds(60)).await.unwrap();
        assert!(lab.store().indebted(lab.now(), 10).await.unwrap().is_empty());
        assert_eq!(lab.store().indebted(lab.in_seconds(61), 10).await.unwrap(), [machine]);
    }
}

#[actix::test]
async fn rul_l_45_a_turn_waits_until_somebody_has_looked() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let machine = serving.machine.id;
        let held = lab.claim(machine, Purpose::Confirm).await;
        lab.store().release(machine, held.claimed.epoch).await.unwrap();
        assert!(lab.store().owes_look(machine, lab.now()).await.unwrap());
        let admitted = lab.store().admit_turn(lab.new_admit(&serving)).await;
        assert_eq!(refused(admitted), ErrorCode::SandboxUnavailable);
        look(&lab, machine, Some(MachineEvent::WakeConfirmed)).await;
        assert!(!lab.store().owes_look(machine, lab.now()).await.unwrap());
        lab.admit(&serving).await;
    }
}

#[actix::test]
async fn rul_l_70_a_parked_machine_counts_until_its_lost_wake_is_settled() {
    for lab in Lab::all().await {
        let tight = || Launch {
            limits: Limits::flat(100, 1),
            ..lab.new_launch(EPHEMERAL, None)
        };
        let machine = lab.up(EPHEMERAL).await.machine.id;
        lost_wake(&lab, machine).await;
        look(&lab, machine, Some(MachineEvent::ParkConfirmed)).await;
        let row = lab.machine(machine).await;
        assert_eq!((row.status, row.transition), (MachineStatus::Suspended, None));
        ended_ago(&lab, machine, 16 * 60 + 1);
        let full = ErrorCode::SandboxQuotaExceeded;
        assert_eq!(
            refused(lab.store().launch(tight()).await),
            full,
            "time alone frees nothing"
        );
        look(&lab, machine, None).await;
        lab.store().launch(tight()).await.unwrap();
    }
}

#[actix::test]
async fn rul_l_52_a_leftover_is_claimed_only_under_a_name_that_nobody_holds() {
    for lab in Lab::all().await {
        let old = lab.up(PERSISTENT).await.machine;
        lab.fence(old.id, DestroyReason::Terminated).await.unwrap();
        let held = lab.claim(old.id, Purpose::Destroy).await;
        lab.finish(&held, MachineEvent::DeleteConfirmed).await;
        let names = || vec![old.name.clone(), "nobody".to_owned()];
        let holders = async || lab.store().name_holders(Provider::Fake, names()).await.unwrap();
        assert_eq!(holders().await, [(old.name.clone(), NameHolder::Ended(old.id))]);
        assert!(
            !lab.store()
                .is_name_held(Provider::Fake, old.name.clone())
                .await
                .unwrap()
        );
        let held = lab.claim(old.id, Purpose::Leftover).await;
        lab.store().finish(lab.new_finish(&held, None)).await.unwrap();
        let row = lab.machine(old.id).await;
        assert_eq!((row.status, row.lease), (MachineStatus::Terminated, None));
        let mut again = lab.new_launch(PERSISTENT, None);
        again.machine.name.clone_from(&old.name);
        let new = lab.store().launch(again).await.unwrap().value.machine.id;
        assert_eq!(holders().await, [(old.name.clone(), NameHolder::Live)]);
        assert!(
            lab.store()
                .is_name_held(Provider::Fake, old.name.clone())
                .await
                .unwrap()
        );
        let taken = ClaimAnswer::Not(ClaimRefusal::NameTaken);
        assert_eq!(lab.try_claim(old.id, Purpose::Leftover).await, taken);
        let alive = lab.try_claim(new, Purpose::Leftover).await;
        assert!(matches!(alive, ClaimAnswer::Not(ClaimRefusal::Status(_))), "{alive:?}");
    }
}

#[actix::test]
async fn rul_l_53_what_no_row_explains_is_noted_once() {
    for lab in Lab::all().await {
        let (first, second) = (lab.now(), lab.in_seconds(3600));
        let note = |names: &[&str], at| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            lab.store().note_untracked(Provider::Sprites, names, at)
        };
        note(&["one", "two"], first).await.unwrap();
        note(&["two", "three"], second).await.unwrap();
        let count = async |since| lab.store().count_untracked(Provider::Sprites, since).await.unwrap();
        assert_eq!((count(first).await, count(second).await), (3, 2));
        assert_eq!(lab.store().count_untracked(Provider::E2b, first).await.unwrap(), 0);
    }
}

#[actix::test]
async fn rul_l_12_a_stuck_build_is_as_old_as_its_stamp() {
    for lab in Lab::all().await {
        let machine = lab.launch(EPHEMERAL, Some("hello")).await.machine.id;
        let stuck = async |before: i64| {
            let (before, marker) = (lab.in_seconds(before), lab.in_seconds(60));
            lab.store()
                .stuck_builds(lab.now(), before, marker, 10)
                .await
                .unwrap()
                .len()
        };
        assert_eq!((stuck(-60).await, stuck(60).await), (0, 1), "NEW counts from its row");
        lab.age(machine, lab.in_seconds(-7200));
        assert_eq!(stuck(-3600).await, 1);
        let held = lab.claim(machine, Purpose::Provision).await;
        assert_eq!(stuck(60).await, 0, "somebody builds it");
        lab.expire(machine);
        assert_eq!((stuck(-3600).await, stuck(60).await), (0, 1), "the stamp is young");
        assert_eq!(held.claimed.machine.inserted_at, lab.machine(machine).await.inserted_at);
        assert_eq!(lab.store().waiting_on(machine).await.unwrap().len(), 1);
    }
}

#[actix::test]
async fn stuck_turns_are_old_quiet_and_not_waiting_for_an_answer() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let turn = lab.admit(&serving).await;
        let stuck = async |started: i64, quiet: i64| {
            let (started, quiet) = (lab.in_seconds(started), lab.in_seconds(quiet));
            lab.store().stuck_turns(started, quiet, 10).await.unwrap().len()
        };
        assert_eq!(stuck(60, 60).await, 1);
        assert_eq!((stuck(-60, 60).await, stuck(60, -60).await), (0, 0));
        diesel::update(turns::table.find(turn.id.to_string()))
            .set(turns::pending_permission.eq("{}"))
            .execute(&mut lab.db.raw())
            .unwrap();
        assert_eq!(stuck(60, 60).await, 0);
    }
}

#[actix::test]
async fn rul_l_60_what_is_old_is_forgotten_in_batches_and_debts_never() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let machine = serving.machine.id;
        lab.admit(&serving).await;
        lab.admit(&lab.up(EPHEMERAL).await).await;
        let lost = lab.claim(machine, Purpose::Confirm).await;
        lab.expire(machine);
        lab.fence(machine, DestroyReason::Terminated).await.unwrap();
        let held = lab.claim(machine, Purpose::Destroy).await;
        let gone = Finish {
            usage: Some("terminated"),
            ..lab.new_finish(&held, Some(MachineEvent::DeleteConfirmed))
        };
        lab.store().finish(gone).await.unwrap();
        let count = async |what, before, limit| lab.store().forget(what, before, limit).await.unwrap();
        let (past, future) = (lab.in_seconds(-3600), lab.in_seconds(3600));
        for what in Forgettable::ALL {
            assert_eq!(count(what, past, 100).await, 0, "{what:?}");
        }
        let left = |lab: &Lab| {
            operations::table
                .order(operations::epoch)
                .select(operations::id)
                .load::<String>(&mut lab.db.raw())
                .unwrap()
        };
        count(Forgettable::Operations, future, 100).await;
        assert_eq!(left(&lab), [lost.operation.to_string(), held.operation.to_string()]);
        assert_eq!(count(Forgettable::DeletionReceipts, future, 100).await, 1);
        assert_eq!(
            left(&lab),
            [lost.operation.to_string()],
            "an indebted row is never forgotten"
        );
        let events: i64 = log_events::table.count().get_result(&mut lab.db.raw()).unwrap();
        assert!(events >= 2);
        assert_eq!(count(Forgettable::LogEvents, future, 1).await, 1, "one batch");
        assert_eq!(
            count(Forgettable::LogEvents, future, 100).await,
            events.unsigned_abs() - 1
        );
        assert!(count(Forgettable::AuditEvents, future, 100).await > 0);
        assert!(count(Forgettable::UsageEvents, future, 100).await > 0);
        let rows: (i64, i64) = (
            audit_events::table.count().get_result(&mut lab.db.raw()).unwrap(),
            usage_events::table.count().get_result(&mut lab.db.raw()).unwrap(),
        );
        assert_eq!(rows, (0, 0));
        diesel::insert_into(api_keys::table)
            .values((
                api_keys::id.eq("k"),
                api_keys::account_id.eq(lab.account.to_string()),
                api_keys::name.eq("k"),
                api_keys::prefix.eq("k"),
                api_keys::sha256.eq(vec![1_u8]),
                api_keys::scope.eq("full"),
                api_keys::inserted_at.eq(past.naive_utc()),
            ))
            .execute(&mut lab.db.raw())
            .unwrap();
        assert_eq!(
            count(Forgettable::RevokedKeys, future, 100).await,
            0,
            "it is not revoked"
        );
        diesel::update(api_keys::table)
            .set(api_keys::revoked_at.eq(Some(past.naive_utc())))
            .execute(&mut lab.db.raw())
            .unwrap();
        assert_eq!(count(Forgettable::RevokedKeys, future, 100).await, 1);
    }
}

#[actix::test]
async fn rul_l_56_a_pass_has_one_holder_and_its_epoch_only_grows() {
    for lab in Lab::all().await {
        let take = |holder: &str, ttl| lab.store().take_pass("sweep", holder.into(), ttl, lab.now());
        assert_eq!(take("a/1", TTL).await.unwrap(), Some(Epoch(1)));
        assert_eq!(take("b/1", TTL).await.unwrap(), None);
        let renew = |holder: &str, epoch, ttl| lab.store().renew_pass("sweep", holder.into(), epoch, ttl, lab.now());
        let stale = renew("b/1", Epoch(1), TTL).await;
        assert!(matches!(stale, Err(StoreError::Stale(_))));
        renew("a/1", Epoch(1), Duration::ZERO).await.unwrap();
        assert_eq!(take("b/1", TTL).await.unwrap(), Some(Epoch(2)), "given back");
        let stale = renew("a/1", Epoch(1), TTL).await;
        assert!(matches!(stale, Err(StoreError::Stale(_))), "and lost for good");
        let other = lab.store().take_pass("reaper", "a/1".into(), TTL, lab.now()).await;
        assert_eq!(other.unwrap(), Some(Epoch(1)), "each pass has a lease of its own");
    }
}

#[actix::test]
async fn rul_l_55_attempts_are_forgotten_when_an_operation_is_done() {
    for lab in Lab::all().await {
        let machine = lab.up(PERSISTENT).await.machine.id;
        let rests = fountain_actors::domain::settings::Settings::default().rests();
        for _ in 0..3 {
            lab.store().defer(machine, rests.clone(), lab.now()).await.unwrap();
        }
        let attempts = || -> i64 {
            let row = machines::table.find(machine.to_string()).select(machines::attempts);
            row.first(&mut lab.db.raw()).unwrap()
        };
        assert_eq!(attempts(), 3);
        lab.park(machine).await;
        assert_eq!((attempts(), lab.machine(machine).await.next_attempt_at), (0, None));
    }
}
