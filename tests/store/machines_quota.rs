//! Quotas: what is counted, and who gets the last slot.

use diesel::prelude::*;
use futures_util::future::join_all;

use fountain::store::schema::machines;
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineMode, MachineStatus, Transition};
use fountain_actors::domain::operation::{Outcome, Receipt};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Launch, Limits};
use fountain_actors::ports::store::machines::{ClaimAnswer, ClaimRefusal, Finish, Purpose};
use fountain_actors::ports::store::{ConversationStore, MachineStore};

use crate::lab::{Lab, ROOMY};
use crate::support::refused;

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;

fn wake() -> Purpose {
    Purpose::Wake { limits: ROOMY }
}

#[actix::test]
async fn inv_51_inv_102_a_slot_is_held_until_the_delete_is_confirmed() {
    for lab in Lab::all().await {
        let one = Limits::flat(100, 1);
        let tight = || Launch {
            limits: one,
            ..lab.new_launch(EPHEMERAL, None)
        };
        let machine = lab.store().launch(tight()).await.unwrap().value.machine.id;
        lab.build(machine).await;
        assert_eq!(
            refused(lab.store().launch(tight()).await),
            ErrorCode::SandboxQuotaExceeded
        );
        lab.park(machine).await;
        lab.fence(machine, DestroyReason::Terminated).await.unwrap();
        assert_eq!(
            refused(lab.store().launch(tight()).await),
            ErrorCode::SandboxQuotaExceeded,
            "parked and doomed"
        );
        let held = lab.claim(machine, Purpose::Destroy).await;
        let unconfirmed = Finish {
            receipt: Receipt::of(Outcome::Unconfirmed),
            ..lab.new_finish(&held, None)
        };
        let row = lab.store().finish(unconfirmed).await.unwrap().value.machine;
        assert_eq!(row.transition, Some(Transition::Destroying));
        assert_eq!(
            refused(lab.store().launch(tight()).await),
            ErrorCode::SandboxQuotaExceeded
        );
        let held = lab.claim(machine, Purpose::Destroy).await;
        lab.finish(&held, MachineEvent::DeleteConfirmed).await;
        lab.store().launch(tight()).await.unwrap();
    }
}

#[actix::test]
async fn r_04_two_wakes_at_the_last_slot_and_exactly_one_passes() {
    for lab in Lab::all().await {
        let mut parked = Vec::new();
        for _ in 0..2 {
            let machine = lab.up(EPHEMERAL).await.machine.id;
            lab.park(machine).await;
            parked.push(machine);
        }
        let limits = Limits::flat(100, 1);
        let answers = join_all(
            parked
                .iter()
                .map(|machine| lab.try_claim(*machine, Purpose::Wake { limits })),
        )
        .await;
        let passed = answers
            .iter()
            .filter(|answer| matches!(answer, ClaimAnswer::Claimed(_)))
            .count();
        assert_eq!(passed, 1, "{answers:?}");
        let refusal = ClaimAnswer::Not(ClaimRefusal::Refused(Refusal::QuotaExceeded { active: 1, limit: 1 }));
        assert!(answers.contains(&refusal), "{answers:?}");
    }
}

#[actix::test]
async fn inv_101_rul_l_71_a_wake_is_counted_from_its_claim_and_never_twice() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        lab.park(machine).await;
        let limits = Limits::flat(100, 1);
        lab.claim(machine, Purpose::Wake { limits }).await;
        let full = Launch {
            limits,
            ..lab.new_launch(EPHEMERAL, None)
        };
        assert_eq!(
            refused(lab.store().launch(full.clone()).await),
            ErrorCode::SandboxQuotaExceeded
        );
        lab.expire(machine);
        assert_eq!(
            refused(lab.store().launch(full).await),
            ErrorCode::SandboxQuotaExceeded,
            "RUL-L-70"
        );
        let held = lab.claim(machine, Purpose::Wake { limits }).await;
        assert_eq!(
            held.claimed.before.transition,
            Some(Transition::Resuming),
            "the dead stamp shows"
        );
    }
}

#[actix::test]
async fn p73_fifty_launches_at_once_against_a_cap_of_five_make_five() {
    for lab in Lab::all().await {
        let limits = Limits::flat(1000, 5);
        let launches = (0..50).map(|_| {
            lab.store().launch(Launch {
                limits,
                ..lab.new_launch(EPHEMERAL, Some("go"))
            })
        });
        let answers = join_all(launches).await;
        let made = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(made, 5);
        for answer in answers.into_iter().filter(Result::is_err) {
            assert_eq!(refused(answer), ErrorCode::SandboxQuotaExceeded);
        }
        assert_eq!(
            lab.store().machine_views(lab.account, vec![]).await.unwrap().len(),
            5,
            "INV-100"
        );
    }
}

#[actix::test]
async fn lifecycle_8_fleet_before_suspension_before_cap_and_the_override_wins() {
    for lab in Lab::all().await {
        let with = |limits| Launch {
            limits,
            ..lab.new_launch(EPHEMERAL, None)
        };
        let (full, closed) = (Limits::flat(0, 0), Limits::flat(9, 0));
        lab.limit_account(None, true);
        assert_eq!(refused(lab.store().launch(with(full)).await), ErrorCode::FleetFull);
        assert_eq!(
            refused(lab.store().launch(with(closed)).await),
            ErrorCode::AccountSuspended
        );
        lab.limit_account(None, false);
        assert_eq!(
            refused(lab.store().launch(with(closed)).await),
            ErrorCode::SandboxQuotaExceeded
        );
        lab.limit_account(Some(1), false);
        let machine = lab.store().launch(with(closed)).await.unwrap().value.machine.id;
        lab.limit_account(Some(0), false);
        assert_eq!(
            refused(lab.store().launch(with(ROOMY)).await),
            ErrorCode::SandboxQuotaExceeded
        );
        lab.build(machine).await;
        lab.park(machine).await;
        lab.limit_account(None, true);
        let answer = lab.try_claim(machine, wake()).await;
        let suspended = Refusal::Plain(ErrorCode::AccountSuspended);
        assert_eq!(answer, ClaimAnswer::Not(ClaimRefusal::Refused(suspended)));
    }
}

#[actix::test]
async fn rul_l_70_the_count_in_sql_is_the_count_of_the_domain() {
    for lab in Lab::all().await {
        let transitions = [
            None,
            Some("provisioning"),
            Some("resuming"),
            Some("parking"),
            Some("destroying"),
        ];
        for status in MachineStatus::ALL {
            for transition in transitions {
                for owed in [false, true] {
                    let (account, agent) = lab.tenant();
                    let mut launch = lab.new_launch(EPHEMERAL, None);
                    launch.conversation = lab.new_conversation((account, agent));
                    launch.machine.agent_id = agent;
                    let machine = lab.store().launch(launch.clone()).await.unwrap().value.machine.id;
                    diesel::update(machines::table.find(machine.to_string()))
                        .set((
                            machines::status.eq(status.as_str()),
                            machines::transition.eq(transition),
                            machines::transition_at.eq(transition.map(|_| lab.now().naive_utc())),
                            machines::cleanup_pending.eq(owed),
                        ))
                        .execute(&mut lab.db.raw())
                        .unwrap();
                    let counted = lab.machine(machine).await.is_counted();
                    let mut next = lab.new_launch(EPHEMERAL, None);
                    next.conversation = lab.new_conversation((account, agent));
                    next.machine.agent_id = agent;
                    next.limits = Limits::flat(1000, 1);
                    let refused = lab.store().launch(next).await.is_err();
                    assert_eq!(refused, counted, "{status} {transition:?} {owed}");
                }
            }
        }
    }
}
