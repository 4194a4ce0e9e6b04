//! How many turns of a runtime one machine carries (INV-77, R-76; runtimes 1).

use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::turn::{Ending, TurnStatus};
use fountain_actors::domain::{ConversationId, ErrorCode};
use fountain_actors::ports::store::TurnStore;
use fountain_actors::ports::store::transcript::Effect;
use fountain_actors::ports::store::turns::Serving;

use crate::lab::Lab;
use crate::support::{id, refused};

/// Two conversations on one home, of these runtimes.
async fn pair(lab: &Lab, first: Runtime, second: Runtime) -> (Serving, Serving) {
    let one = lab.up(MachineMode::Persistent).await;
    let two = lab.attach(one.machine.id).await.unwrap().value.conversation.id;
    lab.make_runtime(one.conversation.id, first);
    lab.make_runtime(two, second);
    (lab.serve(one.conversation.id).await, lab.serve(two).await)
}

async fn end(lab: &Lab, serving: &Serving) {
    let turns = lab.store().turns(lab.account, serving.conversation.id).await.unwrap();
    let ending = Ending::completed(turns.last().unwrap().id, "end_turn", lab.now());
    lab.effect(serving, Effect::TurnEnded(ending)).await;
}

#[actix::test]
async fn inv_77_a_second_turn_of_a_runtime_that_runs_one_at_a_time_is_refused_and_leaves_nothing() {
    for runtime in [Runtime::Opencode, Runtime::Gemini] {
        for lab in Lab::all().await {
            let (one, two) = pair(&lab, runtime, runtime).await;
            lab.admit(&one).await;
            let full = lab.store().admit_turn(lab.new_admit(&two)).await;
            assert_eq!(refused(full), ErrorCode::SandboxAtCapacity, "{runtime}");
            let id = two.conversation.id;
            assert!(lab.store().turns(lab.account, id).await.unwrap().is_empty());
            assert!(lab.events(id).await.is_empty());
            assert_eq!(lab.conversation(id).await.status, ConversationStatus::Idle);
            end(&lab, &one).await;
            lab.admit(&two).await;
        }
    }
}

#[actix::test]
async fn inv_77_of_two_prompts_at_once_on_one_machine_one_is_admitted() {
    for lab in Lab::all().await {
        let (one, two) = pair(&lab, Runtime::Gemini, Runtime::Gemini).await;
        let (first, second) = futures_util::join!(
            lab.store().admit_turn(lab.new_admit(&one)),
            lab.store().admit_turn(lab.new_admit(&two)),
        );
        let lost = match (first, second) {
            (Ok(_), lost) | (lost, Ok(_)) => lost,
            (first, second) => panic!("{first:?} {second:?}"),
        };
        assert_eq!(refused(lost), ErrorCode::SandboxAtCapacity);
    }
}

#[actix::test]
async fn r_76_capacity_is_counted_for_each_runtime() {
    let together = [
        (Runtime::Claude, Runtime::Opencode),
        (Runtime::Claude, Runtime::Claude),
        (Runtime::Codex, Runtime::Codex),
        (Runtime::Acp, Runtime::Acp),
    ];
    for (first, second) in together {
        for lab in Lab::all().await {
            let (one, two) = pair(&lab, first, second).await;
            lab.admit(&one).await;
            lab.admit(&two).await;
        }
    }
}

#[actix::test]
async fn inv_77_rul_27_a_refusal_leaves_the_turn_that_the_agent_began_by_itself_open() {
    for lab in Lab::all().await {
        let (one, two) = pair(&lab, Runtime::Opencode, Runtime::Claude).await;
        lab.admit(&one).await;
        let own = lab.admit(&two).await;
        lab.make_autonomous(own.id);
        lab.make_runtime(two.conversation.id, Runtime::Opencode);
        let full = lab.store().admit_turn(lab.new_admit(&two)).await;
        assert_eq!(refused(full), ErrorCode::SandboxAtCapacity);
        assert_eq!(status(&lab, two.conversation.id).await, [TurnStatus::Running]);
    }
}

#[actix::test]
async fn inv_77_a_prompt_that_waited_for_its_machine_fails_when_it_is_full() {
    for lab in Lab::all().await {
        let (one, two) = pair(&lab, Runtime::Gemini, Runtime::Gemini).await;
        let waiting = lab.store().queue_turn(lab.new_queue(&two, None)).await.unwrap().value.0;
        lab.admit(&one).await;
        let opened = lab
            .store()
            .open_pending_turn(
                two.conversation.id,
                two.conversation.server_epoch,
                two.machine.id,
                waiting.id,
                id(),
                lab.now(),
            )
            .await
            .unwrap();
        assert_eq!(opened.value.status, TurnStatus::Failed);
        assert_eq!(lab.told(two.conversation.id).await, ["turn/failed"]);
        let events = lab.events(two.conversation.id).await;
        let meta: serde_json::Value = serde_json::from_str(&events[0].data).unwrap();
        assert_eq!(meta["reason"], "sandbox_at_capacity");
        assert_eq!(
            lab.conversation(two.conversation.id).await.status,
            ConversationStatus::Idle
        );
    }
}

async fn status(lab: &Lab, conversation: ConversationId) -> Vec<TurnStatus> {
    let turns = lab.store().turns(lab.account, conversation).await.unwrap();
    turns.into_iter().map(|turn| turn.status).collect()
}
