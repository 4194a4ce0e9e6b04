//! Machines: leases, operations, fences, quotas and sweeps.

use std::time::Duration;

use diesel::prelude::*;
use futures_util::future::join_all;

use fountain::store::backend::Kind;
use fountain::store::schema::machines;
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::machine::{
    DestroyReason, MachineEvent, MachineMode, MachineState, MachineStatus, Transition,
};
use fountain_actors::domain::operation::{Outcome, Receipt, Verb};
use fountain_actors::domain::turn::OrphanReason;
use fountain_actors::domain::*;
use fountain_actors::ports::store::machines::{
    ClaimAnswer, ClaimRefusal, FenceAnswer, Finish, ParkRule, Patch, Purpose,
};
use fountain_actors::ports::store::{ConversationStore, MachineStore, StoreError, TurnStore};

use crate::lab::{Lab, ROOMY, TTL};
use crate::support::{id, not_found, refused};

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const PERSISTENT: MachineMode = MachineMode::Persistent;

fn wake() -> Purpose {
    Purpose::Wake { limits: ROOMY }
}

#[actix::test]
async fn inv_03_inv_04_one_holder_at_a_time_and_no_epoch_twice() {
    for lab in Lab::all().await {
        let machine = lab.launch(EPHEMERAL, None).await.machine.id;
        let first = lab.claim(machine, Purpose::Provision).await;
        assert_eq!(first.claimed.epoch, Epoch(1), "0 is never a lease");
        let answer = lab.try_claim(machine, Purpose::Provision).await;
        assert!(
            matches!(answer, ClaimAnswer::Held { ref holder, .. } if holder == "node-a/1"),
            "{answer:?}"
        );
        lab.store().release(machine, first.claimed.epoch).await.unwrap();
        let second = lab.claim(machine, Purpose::Provision).await;
        assert_eq!(second.claimed.epoch, Epoch(2));
        lab.expire(machine);
        let third = lab.claim(machine, Purpose::Provision).await;
        assert_eq!(third.claimed.epoch, Epoch(3));
        let old = lab.store().release(machine, second.claimed.epoch).await;
        assert!(matches!(old, Err(StoreError::Stale(_))), "{old:?}");
    }
}

#[actix::test]
async fn inv_04_of_many_claims_at_once_one_is_had() {
    for lab in Lab::all().await {
        let machine = lab.launch(EPHEMERAL, None).await.machine.id;
        let answers = join_all((0..8).map(|_| lab.try_claim(machine, Purpose::Provision))).await;
        let had = answers
            .iter()
            .filter(|answer| matches!(answer, ClaimAnswer::Claimed(_)))
            .count();
        assert_eq!(had, 1, "{answers:?}");
    }
}

#[actix::test]
async fn inv_06_rul_l_3_a_superseded_finish_writes_its_own_journal_row_and_nothing_else() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, None).await;
        let machine = view.machine.id;
        let dead = lab.claim(machine, Purpose::Provision).await;
        lab.expire(machine);
        let alive = lab.claim(machine, Purpose::Provision).await;
        assert_eq!(alive.claimed.debts.len(), 1, "what the dead owner left is shown");
        assert_eq!(alive.claimed.debts[0].id, dead.operation);
        let before = lab.machine(machine).await;

        let advanced = lab
            .store()
            .advance(
                machine,
                dead.claimed.epoch,
                Some(MachineEvent::CreateAnswered),
                Patch::default(),
                vec![],
                lab.now(),
            )
            .await;
        assert!(matches!(advanced, Err(StoreError::Stale(_))), "{advanced:?}");
        let late = Finish {
            event: Some(MachineEvent::BuildFailed),
            stages: vec![(
                view.conversation.id,
                NewStage::new(Stage::Provision, StageState::Failed),
            )],
            audit: vec![lab.audit("sandbox.provision_failed")],
            usage: Some("provision_failed"),
            ..lab.new_finish(&dead, None)
        };
        let finished = lab.store().finish(late).await;
        assert!(matches!(finished, Err(StoreError::Stale(_))), "{finished:?}");

        assert_eq!(lab.machine(machine).await, before);
        assert_eq!(lab.outcomes(machine), [Some("superseded".to_owned()), None]);
        assert!(lab.events(view.conversation.id).await.is_empty());
        assert!(lab.used().is_empty());
        assert_eq!(lab.audited(), ["conversation.created"]);
    }
}

#[actix::test]
async fn m2_m3_m4_a_build_is_a_claim_a_step_and_a_finish() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, None).await;
        let (machine, conversation) = (view.machine.id, view.conversation.id);
        let mut claim = lab.new_claim(machine, Purpose::Provision);
        claim.stages = vec![(conversation, NewStage::new(Stage::Provision, StageState::Started))];
        let done = lab.store().claim(claim.clone()).await.unwrap();
        assert_eq!(done.cursors.len(), 1, "the commit announces its stage");
        let ClaimAnswer::Claimed(claimed) = done.value else {
            panic!("{done:?}")
        };
        assert_eq!(claimed.machine.transition, Some(Transition::Provisioning));
        assert_eq!(claimed.before.transition, None);
        assert_eq!(claimed.machine.transition_at, Some(claim.now));

        let renamed = Patch {
            name: Some("fountain-other".into()),
            provider_meta: [("address".to_owned(), "10.0.0.1".into())].into(),
            ..Patch::default()
        };
        let row = lab
            .store()
            .advance(
                machine,
                claimed.epoch,
                Some(MachineEvent::CreateAnswered),
                renamed,
                vec![],
                lab.now(),
            )
            .await
            .unwrap()
            .value;
        assert_eq!(row.status, MachineStatus::Starting);
        assert_eq!(row.name, "fountain-other");
        assert_eq!(
            row.provider_meta,
            serde_json::json!({"root": "/srv", "address": "10.0.0.1"}),
            "merged by key"
        );
        assert_eq!(row.transition_at, Some(claim.now), "RUL-L-12");

        let held = crate::lab::Held {
            machine,
            operation: claim.operation_id,
            claimed,
        };
        let finish = Finish {
            stages: vec![(conversation, NewStage::new(Stage::Provision, StageState::Done))],
            audit: vec![lab.audit("sandbox.provisioned")],
            usage: Some("started"),
            ..lab.new_finish(&held, Some(MachineEvent::BuildFinished))
        };
        let finished = lab.store().finish(finish).await.unwrap().value;
        assert!(!finished.fenced);
        assert_eq!(finished.machine.state(lab.now()), MachineState::Up);
        assert_eq!(finished.machine.lease, None);
        assert_eq!(finished.machine.build_fingerprint.as_deref(), Some("f00d"));
        assert_eq!(lab.told(conversation).await, ["provision/started", "provision/done"]);
        assert_eq!(lab.used(), ["started"]);
        let journal = lab.store().operations(lab.account, machine, 10).await.unwrap();
        assert_eq!(
            (journal[0].verb, journal[0].outcome),
            (Verb::Provision, Some(Outcome::Done))
        );
        assert!(journal[0].finished_at.is_some());
        not_found(lab.store().operations(id(), machine, 10).await);
    }
}

#[actix::test]
async fn inv_22_a_machine_is_not_ready_without_its_fingerprint() {
    for lab in Lab::all().await {
        let machine = lab.launch(EPHEMERAL, None).await.machine.id;
        let held = lab.claim(machine, Purpose::Provision).await;
        let created = Some(MachineEvent::CreateAnswered);
        lab.store()
            .advance(
                machine,
                held.claimed.epoch,
                created,
                Patch::default(),
                vec![],
                lab.now(),
            )
            .await
            .unwrap();
        let bare = Finish {
            patch: Patch::default(),
            ..lab.new_finish(&held, Some(MachineEvent::BuildFinished))
        };
        assert!(matches!(
            lab.store().finish(bare).await,
            Err(StoreError::Internal { .. })
        ));
        assert_eq!(lab.machine(machine).await.status, MachineStatus::Starting);
    }
}

#[actix::test]
async fn inv_01_inv_11_a_terminal_row_stays_and_is_dated_once() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        lab.fence(machine, DestroyReason::Terminated).await.unwrap();
        let held = lab.claim(machine, Purpose::Destroy).await;
        let gone = lab.finish(&held, MachineEvent::DeleteConfirmed).await.machine;
        assert!(gone.terminated_at.is_some());
        assert_eq!((gone.transition, gone.transition_at), (None, None));
        for purpose in [
            Purpose::Provision,
            wake(),
            Purpose::Destroy,
            Purpose::Confirm,
            Purpose::Park(lab.park_rule()),
        ] {
            let answer = lab.try_claim(machine, purpose).await;
            let terminal = ClaimAnswer::Not(ClaimRefusal::Terminal(MachineStatus::Terminated));
            assert_eq!(answer, terminal);
        }
        assert_eq!(
            lab.fence(machine, DestroyReason::Idle).await.unwrap(),
            FenceAnswer::AlreadyTerminal(gone.clone())
        );
        assert_eq!(lab.machine(machine).await, gone);
        let late = lab
            .store()
            .finish(lab.new_finish(&held, Some(MachineEvent::DeleteConfirmed)))
            .await;
        assert!(matches!(late, Err(StoreError::Stale(_))));
    }
}

#[actix::test]
async fn m22_a_late_stamp_on_a_gone_row_is_cleared() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        diesel::update(machines::table.find(machine.to_string()))
            .set((
                machines::status.eq("terminated"),
                machines::transition.eq("destroying"),
                machines::transition_at.eq(lab.now().naive_utc()),
            ))
            .execute(&mut lab.db.raw())
            .unwrap();
        let answer = lab.try_claim(machine, Purpose::Destroy).await;
        assert_eq!(
            answer,
            ClaimAnswer::Not(ClaimRefusal::Terminal(MachineStatus::Terminated))
        );
        assert_eq!(lab.machine(machine).await.transition, None);
    }
}

#[actix::test]
async fn inv_12_rul_l_21_a_name_is_free_when_the_delete_is_no_longer_owed() {
    for lab in Lab::all().await {
        let named = |name: &str| {
            let mut launch = lab.new_launch(EPHEMERAL, None);
            launch.machine.name = name.into();
            launch
        };
        let machine = lab.store().launch(named("chosen")).await.unwrap().value.machine.id;
        assert_eq!(
            refused(lab.store().launch(named("chosen")).await),
            ErrorCode::SandboxUnavailable
        );
        let held = lab.claim(machine, Purpose::Provision).await;
        let failed = Finish {
            patch: Patch {
                cleanup_pending: Some(true),
                ..Patch::default()
            },
            receipt: Receipt::of(Outcome::Failed),
            ..lab.new_finish(&held, Some(MachineEvent::BuildFailed))
        };
        let failed = lab.store().finish(failed).await.unwrap().value.machine;
        assert_eq!((failed.status, failed.cleanup_pending), (MachineStatus::Failed, true));
        assert!(failed.is_counted(), "it may still cost money");
        assert_eq!(
            refused(lab.store().launch(named("chosen")).await),
            ErrorCode::SandboxUnavailable
        );
        assert!(
            lab.store()
                .live_names(failed.provider)
                .await
                .unwrap()
                .contains("chosen")
        );

        let held = lab.claim(machine, Purpose::Destroy).await;
        let gone = lab.finish(&held, MachineEvent::DeleteConfirmed).await.machine;
        assert_eq!((gone.status, gone.cleanup_pending), (MachineStatus::Failed, false));
        assert_eq!(gone.terminated_at, failed.terminated_at, "INV-11");
        lab.store().launch(named("chosen")).await.unwrap();
    }
}

#[actix::test]
async fn inv_15_renewing_moves_the_lease_and_nothing_else() {
    for lab in Lab::all().await {
        let machine = lab.launch(EPHEMERAL, None).await.machine.id;
        let held = lab.claim(machine, Purpose::Provision).await;
        let epoch = held.claimed.epoch;
        let before = lab.machine(machine).await;
        let longer = Duration::from_secs(600);
        lab.store()
            .renew(machine, epoch, "node-a/1".into(), longer, lab.now())
            .await
            .unwrap();
        let after = lab.machine(machine).await;
        assert_eq!(after.updated_at, before.updated_at);
        assert!(after.lease.as_ref().unwrap().until > before.lease.unwrap().until);
        for (epoch, holder) in [(epoch, "node-a/2"), (Epoch(epoch.0 + 1), "node-a/1")] {
            let other = lab
                .store()
                .renew(machine, epoch, holder.into(), longer, lab.now())
                .await;
            assert!(matches!(other, Err(StoreError::Stale(_))), "{other:?}");
        }
        lab.expire(machine);
        lab.store()
            .renew(machine, epoch, "node-a/1".into(), TTL, lab.now())
            .await
            .expect("nobody took it");
    }
}

#[actix::test]
async fn inv_35_last_resumed_at_moves_only_from_suspended_to_ready() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        let resumed = |held: &crate::lab::Held, at: Moment| Finish {
            patch: Patch {
                last_resumed_at: Some(at),
                ..Patch::default()
            },
            ..lab.new_finish(held, Some(MachineEvent::WakeConfirmed))
        };
        let held = lab.claim(machine, Purpose::Confirm).await;
        let up = lab
            .store()
            .finish(resumed(&held, lab.now()))
            .await
            .unwrap()
            .value
            .machine;
        assert_eq!(up.last_resumed_at, None, "it was up");
        lab.park(machine).await;
        let held = lab.claim(machine, wake()).await;
        let at = lab.now();
        let up = lab.store().finish(resumed(&held, at)).await.unwrap().value.machine;
        assert_eq!(up.last_resumed_at, Some(at));
    }
}

#[actix::test]
async fn rul_l_4_an_unknown_outcome_keeps_the_stamp_and_leaves_a_debt() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        lab.park(machine).await;
        let held = lab.claim(machine, wake()).await;
        let unknown = Finish {
            keep_stamp: true,
            receipt: Receipt::of(Outcome::Unknown),
            ..lab.new_finish(&held, None)
        };
        let row = lab.store().finish(unknown).await.unwrap().value.machine;
        assert_eq!(row.state(lab.now()), MachineState::WakeStale);
        let held = lab.claim(machine, Purpose::Confirm).await;
        assert_eq!(held.claimed.debts.len(), 1);
        assert_eq!(held.claimed.debts[0].outcome, Some(Outcome::Unknown));
        let settled = lab.finish(&held, MachineEvent::WakeConfirmed).await.machine;
        assert_eq!(settled.state(lab.now()), MachineState::Up);
        let held = lab.claim(machine, Purpose::Confirm).await;
        assert_eq!(
            held.claimed.debts.len(),
            1,
            "a probe within two minutes may have come too early"
        );
        assert!(held.claimed.debts[0].probed_at.is_some() && held.claimed.debts[0].settled_at.is_none());
    }
}

#[actix::test]
async fn r_03_r_20_of_two_operations_one_runs_and_the_other_finds_it_done() {
    for lab in Lab::all().await {
        let machine = lab.up(PERSISTENT).await.machine.id;
        lab.park(machine).await;
        let answers = join_all((0..4).map(|_| lab.try_claim(machine, wake()))).await;
        assert_eq!(
            answers
                .iter()
                .filter(|answer| matches!(answer, ClaimAnswer::Claimed(_)))
                .count(),
            1
        );
        assert_eq!(
            answers
                .iter()
                .filter(|answer| matches!(answer, ClaimAnswer::Held { .. }))
                .count(),
            3
        );
        let epoch = lab.machine(machine).await.lease_epoch;
        lab.store().release(machine, epoch).await.unwrap();
        lab.fence(machine, DestroyReason::Reset).await.unwrap();
        let answers = join_all((0..4).map(|_| lab.try_claim(machine, Purpose::Destroy))).await;
        assert_eq!(
            answers
                .iter()
                .filter(|answer| matches!(answer, ClaimAnswer::Claimed(_)))
                .count(),
            1,
            "{answers:?}"
        );
    }
}

#[actix::test]
async fn m7_a_park_is_refused_while_somebody_is_there() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let (machine, conversation) = (serving.machine.id, serving.conversation.id);
        let park = |rule| lab.try_claim(machine, Purpose::Park(rule));
        let occupied = ClaimAnswer::Not(ClaimRefusal::Occupied);
        let turn = lab.admit(&serving).await;
        let live = ParkRule {
            live_servers: vec![conversation],
            ..lab.park_rule()
        };
        assert_eq!(park(live.clone()).await, occupied);
        let marked = ParkRule {
            marker_before: Some(lab.in_seconds(-900)),
            ..lab.park_rule()
        };
        assert_eq!(park(marked).await, occupied, "INV-36");
        let idle = ParkRule {
            idle_before: Some(lab.in_seconds(-60)),
            ..lab.park_rule()
        };
        assert_eq!(park(idle.clone()).await, ClaimAnswer::Not(ClaimRefusal::NotExpired));
        lab.age(machine, lab.in_seconds(-600));
        // its turn still runs, but nobody serves it, and all else is old.
        let held = lab.claim(machine, Purpose::Park(idle)).await;
        assert_eq!(held.claimed.machine.state(lab.now()), MachineState::Parking);
        assert_eq!(
            refused(lab.store().admit_turn(lab.new_admit(&serving)).await),
            ErrorCode::SandboxUnavailable,
            "INV-30"
        );
        let cut = Finish {
            end_turns: Some(OrphanReason::MachineParked),
            ..lab.new_finish(&held, Some(MachineEvent::ParkConfirmed))
        };
        let finished = lab.store().finish(cut).await.unwrap().value;
        assert_eq!(finished.machine.state(lab.now()), MachineState::Asleep);
        assert_eq!(finished.ended_turns[0].1.id, turn.id);
        assert_eq!(
            park(live).await,
            ClaimAnswer::Not(ClaimRefusal::Status(MachineStatus::Suspended))
        );
    }
}

#[actix::test]
async fn m10_a_stale_park_is_taken_over_without_a_new_stamp() {
    for lab in Lab::all().await {
        let machine = lab.up(PERSISTENT).await.machine.id;
        let dead = lab.claim(machine, Purpose::Park(lab.park_rule())).await;
        lab.expire(machine);
        assert_eq!(lab.machine(machine).await.state(lab.now()), MachineState::ParkStale);
        let refused_wake = lab.try_claim(machine, wake()).await;
        assert_eq!(
            refused_wake,
            ClaimAnswer::Not(ClaimRefusal::Status(MachineStatus::Ready)),
            "it is probed first"
        );
        let strict = ParkRule {
            marker_before: Some(lab.in_seconds(-900)),
            ..lab.park_rule()
        };
        let held = lab.claim(machine, Purpose::Park(strict)).await;
        assert_eq!(
            held.claimed.machine.transition_at, dead.claimed.machine.transition_at,
            "RUL-L-12"
        );
        let up = lab.finish(&held, MachineEvent::WakeConfirmed).await.machine;
        assert_eq!(up.state(lab.now()), MachineState::Up);
    }
}

#[actix::test]
async fn rul_29_leases_have_one_clock() {
    for lab in Lab::all().await {
        let fiction = Moment::UNIX_EPOCH;
        let clock = lab.store().lease_clock(fiction).await.unwrap();
        match lab.db.kind() {
            Kind::Sqlite => assert_eq!(clock, fiction),
            Kind::Postgres => assert!((lab.now() - clock).num_seconds().abs() < 60, "{clock}"),
        }
    }
}
