//! Fences, and what they win over; how machines and the turns on them go.

use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::event::{NewStage, Stage, StageState};
use fountain_actors::domain::machine::{
    DestroyReason, MachineEvent, MachineMode, MachineState, MachineStatus, Transition,
};
use fountain_actors::domain::turn::{OrphanReason, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::machines::{ClaimAnswer, ClaimRefusal, FenceAnswer, Finish, Patch, Purpose};
use fountain_actors::ports::store::{MachineStore, StoreError, TurnStore};

use crate::lab::{Lab, ROOMY};
use crate::support::{id, not_found, refused};

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const PERSISTENT: MachineMode = MachineMode::Persistent;

fn wake() -> Purpose {
    Purpose::Wake { limits: ROOMY }
}

#[actix::test]
async fn inv_02_inv_23_a_fence_before_the_finalize_wins_over_a_build() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, None).await;
        let machine = view.machine.id;
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
        lab.fence(machine, DestroyReason::Terminated).await.unwrap();
        let finish = Finish {
            stages: vec![(view.conversation.id, NewStage::new(Stage::Provision, StageState::Done))],
            audit: vec![lab.audit("sandbox.provisioned")],
            ..lab.new_finish(&held, Some(MachineEvent::BuildFinished))
        };
        let finished = lab.store().finish(finish).await.unwrap().value;
        assert!(finished.fenced);
        assert_eq!(finished.machine.status, MachineStatus::Starting);
        assert_eq!(finished.machine.transition, Some(Transition::Destroying));
        assert_eq!(finished.machine.lease, None, "the destroy runs next");
        assert!(
            lab.events(view.conversation.id).await.is_empty(),
            "nobody is told that it is ready"
        );
        assert!(!lab.audited().contains(&"sandbox.provisioned".to_owned()));
        let destroy = lab.claim(machine, Purpose::Destroy).await;
        let gone = lab.finish(&destroy, MachineEvent::DeleteConfirmed).await;
        assert_eq!(gone.machine.status, MachineStatus::Terminated);
    }
}

#[actix::test]
async fn rul_l_25_a_wake_under_a_fence_writes_the_true_status_and_no_resumed() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        lab.park(machine).await;
        let held = lab.claim(machine, wake()).await;
        assert_eq!(lab.machine(machine).await.state(lab.now()), MachineState::Waking);
        lab.fence(machine, DestroyReason::Terminated).await.unwrap();
        let finish = Finish {
            audit: vec![lab.audit("sandbox.resumed")],
            usage: Some("resumed"),
            ..lab.new_finish(&held, Some(MachineEvent::WakeConfirmed))
        };
        let finished = lab.store().finish(finish).await.unwrap().value;
        assert!(finished.fenced);
        assert_eq!(finished.machine.status, MachineStatus::Ready);
        assert_eq!(finished.machine.transition, Some(Transition::Destroying));
        assert!(!lab.audited().contains(&"sandbox.resumed".to_owned()));
        assert_eq!(lab.used(), ["resumed"], "the machine ran, so it costs");
    }
}

#[actix::test]
async fn inv_52_a_repeated_fence_keeps_the_first_stamp_and_one_audit_row() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        let FenceAnswer::Fenced(first) = lab.fence(machine, DestroyReason::Terminated).await.unwrap() else {
            panic!()
        };
        let FenceAnswer::Fenced(second) = lab.fence(machine, DestroyReason::Idle).await.unwrap() else {
            panic!()
        };
        assert_eq!(first, second);
        let asked = lab
            .audited()
            .into_iter()
            .filter(|action| action == "sandbox.teardown_requested")
            .count();
        assert_eq!(asked, 1);
    }
}

#[actix::test]
async fn inv_53_after_the_fence_nobody_attaches_is_admitted_wakes_or_serves() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let machine = serving.machine.id;
        lab.fence(machine, DestroyReason::Reset).await.unwrap();
        assert_eq!(refused(lab.attach(machine).await), ErrorCode::SandboxResetPending);
        let admitted = lab.store().admit_turn(lab.new_admit(&serving)).await;
        assert_eq!(refused(admitted), ErrorCode::SandboxUnavailable);
        for purpose in [
            wake(),
            Purpose::Confirm,
            Purpose::Park(lab.park_rule()),
            Purpose::Provision,
        ] {
            let answer = lab.try_claim(machine, purpose).await;
            assert_eq!(answer, ClaimAnswer::Not(ClaimRefusal::Doomed { reset: true }));
        }
        let server = lab.store().start_server(serving.conversation.id, lab.now()).await;
        assert_eq!(refused(server), ErrorCode::SandboxResetPending);
        let queued = lab.store().queue_turn(lab.new_queue(&serving, None)).await;
        assert_eq!(refused(queued), ErrorCode::SandboxResetPending);
    }
}

#[actix::test]
async fn inv_55_a_reset_is_refused_where_there_is_nothing_to_reset() {
    for lab in Lab::all().await {
        let reset = |machine| lab.fence(machine, DestroyReason::Reset);
        let ephemeral = lab.up(EPHEMERAL).await.machine.id;
        assert_eq!(refused(reset(ephemeral).await), ErrorCode::SandboxNotResettable);
        let new = lab.launch(PERSISTENT, None).await;
        let answer = reset(new.machine.id).await;
        assert!(
            matches!(&answer, Err(StoreError::Refused(Refusal::NotResettable(why))) if why == "pending"),
            "{answer:?}"
        );
        lab.build(new.machine.id).await;
        let serving = lab.serve(new.conversation.id).await;
        let turn = lab.admit(&serving).await;
        assert_eq!(refused(reset(new.machine.id).await), ErrorCode::SandboxMidTurn);
        let ending = turn::Ending::interrupted(turn.id, lab.now());
        lab.store()
            .close_turn(new.conversation.id, ending, None, false)
            .await
            .unwrap();
        reset(new.machine.id).await.unwrap();
        assert_eq!(refused(reset(new.machine.id).await), ErrorCode::SandboxResetPending);
        assert!(lab.audited().contains(&"sandbox.reset_requested".to_owned()));
        not_found(reset(id()).await);
    }
}

#[actix::test]
async fn inv_56_rul_l_38_a_destroy_ends_the_turns_on_it_and_the_sessions() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let (machine, conversation) = (serving.machine.id, serving.conversation.id);
        let chosen = fountain_actors::ports::store::transcript::Effect::SessionChosen {
            session_id: "s-1".into(),
        };
        lab.effect(&serving, chosen).await;
        let turn = lab.admit(&serving).await;
        lab.fence(machine, DestroyReason::AgentDeleted).await.unwrap();
        let held = lab.claim(machine, Purpose::Destroy).await;
        let finish = Finish {
            end_turns: Some(OrphanReason::MachineDestroyed),
            forget_sessions: true,
            stages: vec![(
                conversation,
                NewStage::new(Stage::Sandbox, StageState::Done).with("event", "reset"),
            )],
            audit: vec![lab.audit("sandbox.destroyed")],
            ..lab.new_finish(&held, Some(MachineEvent::DeleteConfirmed))
        };
        let finished = lab.store().finish(finish).await.unwrap();
        assert_eq!(finished.value.ended_turns.len(), 1);
        let (of, ended) = &finished.value.ended_turns[0];
        assert_eq!(
            (*of, ended.id, ended.status),
            (conversation, turn.id, TurnStatus::Interrupted)
        );
        assert!(ended.orphaned_at.is_some());
        let row = lab.conversation(conversation).await;
        assert_eq!((row.status, row.runtime_session_id), (ConversationStatus::Idle, None));
        assert_eq!(
            lab.told(conversation).await,
            [
                "turn/started",
                "reattach/interrupted",
                "turn/interrupted",
                "sandbox/done"
            ]
        );
        let newest = lab.events(conversation).await.last().unwrap().id;
        assert_eq!(
            finished.cursors.iter().map(|cursor| cursor.id).collect::<Vec<_>>(),
            [newest]
        );
        assert!(lab.audited().contains(&"conversation.turn.orphaned".to_owned()));
    }
}

#[actix::test]
async fn m18_a_lost_machine_is_fenced_and_ended_in_one_step() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let machine = serving.machine.id;
        let turn = lab.admit(&serving).await;
        let held = lab.claim(machine, Purpose::Confirm).await;
        let finished = lab
            .store()
            .retire_lost(lab.new_finish(&held, None))
            .await
            .unwrap()
            .value;
        assert_eq!(finished.machine.status, MachineStatus::Terminated);
        assert_eq!(finished.machine.transition_reason.as_deref(), Some("provider_gone"));
        assert_eq!(lab.machine(machine).await, finished.machine);
        assert_eq!(finished.ended_turns[0].1.id, turn.id);
        let again = lab.store().retire_lost(lab.new_finish(&held, None)).await;
        assert!(matches!(again, Err(StoreError::Stale(_))));
    }
}
