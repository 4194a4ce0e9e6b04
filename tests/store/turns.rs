//! Turns: admission, pending prompts, endings, interrupts, reconnect windows, permissions and processes.

use std::time::Duration;

use futures_util::future::join_all;

use fountain_actors::domain::account::Actor;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineMode, MachineStatus};
use fountain_actors::domain::turn::{Ending, OrphanReason, Prompt, PromptImage, TurnStatus, Usage};
use fountain_actors::domain::*;
use fountain_actors::ports::store::machines::Purpose;
use fountain_actors::ports::store::transcript::Effect;
use fountain_actors::ports::store::turns::{Admit, QueueTurn, Serving};
use fountain_actors::ports::store::{ConversationStore, MachineStore, StoreError, TranscriptStore, TurnStore};

use crate::lab::Lab;
use crate::support::{id, not_found, refused};

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const PERSISTENT: MachineMode = MachineMode::Persistent;

#[track_caller]
fn stale<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::Stale(_))), "{answer:?}");
}

/// Destroys a machine that is fenced already.
async fn destroy(lab: &Lab, machine: MachineId) {
    let held = lab.claim(machine, Purpose::Destroy).await;
    lab.finish(&held, MachineEvent::DeleteConfirmed).await;
}

#[actix::test]
async fn walk_8_2_a_prompt_is_one_commit_with_everything_in_it() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let conversation = serving.conversation.id;
        let image = PromptImage {
            media_type: "image/png".into(),
            bytes: vec![0, 1, 2].into(),
        };
        let prompt = Prompt {
            text: "look".into(),
            images: vec![image.clone()],
            client_request_id: Some("mine".into()),
        };
        let admit = Admit {
            prompt,
            ..lab.new_admit(&serving)
        };
        let done = lab.store().admit_turn(admit.clone()).await.unwrap();
        let turn = done.value;
        assert_eq!(
            (turn.number, turn.status, turn.image_count),
            (1, TurnStatus::Running, 1)
        );
        assert_eq!((turn.started_at, turn.spawn_id), (Some(admit.now), admit.spawn_id));
        assert_eq!(
            lab.store().turns(lab.account, conversation).await.unwrap(),
            std::slice::from_ref(&turn)
        );
        assert_eq!(lab.store().prompt_images(turn.id).await.unwrap(), [image]);
        let row = lab.conversation(conversation).await;
        assert_eq!(
            (row.status, row.last_active_at),
            (ConversationStatus::Running, Some(admit.now)),
            "INV-72"
        );
        assert!(lab.audited().contains(&"conversation.prompted".to_owned()));
        let events = lab.events(conversation).await;
        let meta: serde_json::Value = serde_json::from_str(&events[0].data).unwrap();
        let expected = serde_json::json!({
            "turn_id": turn.id.to_string(), "turn_number": 1, "mode": "run", "client_request_id": "mine",
        });
        assert_eq!(meta, expected);
        assert_eq!(done.cursors[0].id, events[0].id);

        let ending = Ending::completed(turn.id, "end_turn", lab.now());
        lab.effect(&serving, Effect::TurnEnded(ending)).await;
        let quiet = Admit {
            announce: false,
            ..lab.new_admit(&serving)
        };
        let second = lab.store().admit_turn(quiet).await.unwrap();
        assert!(
            second.cursors.is_empty(),
            "RUL-34: a reused connection is announced when the prompt was written"
        );
        assert_eq!(second.value.number, 2);
        let sent = Effect::PromptSent {
            turn_id: second.value.id,
            acp_prompt_id: 7,
            reused: true,
        };
        lab.effect(&serving, sent).await;
        let last = lab.events(conversation).await.pop().unwrap();
        let meta: serde_json::Value = serde_json::from_str(&last.data).unwrap();
        assert_eq!(
            (meta["mode"].as_str(), meta["connection"].as_str()),
            (Some("continue"), Some("reused"))
        );
        assert_eq!(
            lab.store().turns(lab.account, conversation).await.unwrap()[1].acp_prompt_id,
            Some(7)
        );
    }
}

#[actix::test]
async fn inv_70_rul_7_of_prompts_at_once_one_is_admitted_and_the_others_hear_busy() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let answers = join_all((0..6).map(|_| lab.store().admit_turn(lab.new_admit(&serving)))).await;
        let mut admitted = 0;
        for answer in answers {
            match answer {
                Ok(done) => {
                    admitted += 1;
                    assert_eq!(done.value.number, 1);
                }
                refusal => assert_eq!(refused(refusal), ErrorCode::ConversationBusy),
            }
        }
        assert_eq!(admitted, 1);
        assert_eq!(
            lab.store()
                .turns(lab.account, serving.conversation.id)
                .await
                .unwrap()
                .len(),
            1,
            "INV-74"
        );
    }
}

#[actix::test]
async fn rul_27_a_user_turn_closes_the_turn_that_the_agent_began_by_itself() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let own = lab.admit(&serving).await;
        lab.make_autonomous(own.id);
        let turn = lab.admit(&serving).await;
        assert_eq!(turn.number, 2);
        let turns = lab.store().turns(lab.account, serving.conversation.id).await.unwrap();
        assert_eq!(turns[0].status, TurnStatus::Completed, "T6");
        assert_eq!(
            lab.conversation(serving.conversation.id).await.status,
            ConversationStatus::Running
        );
        assert_eq!(
            lab.told(serving.conversation.id).await,
            ["turn/started", "turn/done", "turn/started"]
        );
        let done: serde_json::Value = serde_json::from_str(&lab.events(serving.conversation.id).await[1].data).unwrap();
        assert_eq!(
            (done["origin"].as_str(), done.get("stop_reason")),
            (Some("autonomous"), None)
        );
    }
}

#[actix::test]
async fn lifecycle_6_2_admission_reads_everything_again() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let (machine, conversation) = (serving.machine.id, serving.conversation.id);
        let admit = async |change: fn(&mut Admit, &Lab)| {
            let mut admit = lab.new_admit(&serving);
            change(&mut admit, &lab);
            lab.store().admit_turn(admit).await
        };
        stale(admit(|admit, _| admit.server_epoch.0 -= 1).await);
        stale(admit(|admit, _| admit.server_epoch.0 += 1).await);
        let elsewhere = lab.launch(EPHEMERAL, None).await.machine.id;
        stale(
            lab.store()
                .admit_turn(Admit {
                    machine_id: elsewhere,
                    ..lab.new_admit(&serving)
                })
                .await,
        );
        stale(admit(|admit, _| admit.machine_id = id()).await);
        let late = admit(|admit, lab| admit.deadline = lab.in_seconds(-5)).await;
        assert_eq!(refused(late), ErrorCode::SandboxUnavailable, "INV-75, R-26");
        let old = admit(|admit, _| admit.revision -= 1).await;
        assert_eq!(refused(old), ErrorCode::ConfigurationChanged, "INV-76");
        let held = lab.claim(machine, Purpose::Confirm).await;
        assert_eq!(refused(admit(|_, _| {}).await), ErrorCode::SandboxUnavailable);
        lab.store().release(machine, held.claimed.epoch).await.unwrap();
        lab.park(machine).await;
        assert_eq!(refused(admit(|_, _| {}).await), ErrorCode::SandboxUnavailable);
        assert!(
            lab.store().turns(lab.account, conversation).await.unwrap().is_empty(),
            "no refusal left a row"
        );
        assert!(lab.events(conversation).await.is_empty());
        lab.store()
            .terminate(lab.account, conversation, Actor::Api, None, lab.now())
            .await
            .unwrap();
        assert_eq!(
            refused(admit(|_, _| {}).await),
            ErrorCode::ConversationTerminated,
            "INV-78"
        );
        not_found(admit(|admit, _| admit.conversation_id = id()).await);
    }
}

#[actix::test]
async fn rul_l_8_a_new_server_ends_the_old_generation() {
    for lab in Lab::all().await {
        let old = lab.up(PERSISTENT).await;
        let new = lab.serve(old.conversation.id).await;
        assert_eq!(new.conversation.server_epoch.0, old.conversation.server_epoch.0 + 1);
        assert!(new.machine.woken_at.is_some());
        assert_eq!(
            new.machine.updated_at, old.machine.updated_at,
            "the marker is bookkeeping"
        );
        stale(lab.store().admit_turn(lab.new_admit(&old)).await);
        stale(lab.store().append(vec![lab.entry(&old)]).await.unwrap().remove(0));
        let process = lab.process(&new).await;
        stale(
            lab.store()
                .open_process(process.clone(), old.conversation.server_epoch)
                .await,
        );
        let turn = lab.admit(&new).await;
        let next = lab.serve(old.conversation.id).await;
        assert_eq!(next.open_turn.map(|turn| turn.id), Some(turn.id));
        assert_eq!(next.processes, [process]);
    }
}

#[actix::test]
async fn rul_5_a_pending_turn_opens_once() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, Some("go")).await;
        let (machine, conversation) = (view.machine.id, view.conversation.id);
        lab.build(machine).await;
        lab.store().settle_idle(conversation, machine, lab.now()).await.unwrap();
        assert_eq!(
            lab.conversation(conversation).await.status,
            ConversationStatus::Pending,
            "its prompt comes first"
        );
        let serving = lab.serve(conversation).await;
        let turn = serving.open_turn.clone().unwrap();
        let epoch = serving.conversation.server_epoch;
        let open = |epoch, machine| {
            lab.store()
                .open_pending_turn(conversation, epoch, machine, turn.id, id(), lab.now())
        };
        assert_eq!(
            refused(lab.store().admit_turn(lab.new_admit(&serving)).await),
            ErrorCode::ConversationBusy,
            "RUL-6"
        );
        stale(open(ServerEpoch(epoch.0 + 1), machine).await);
        stale(open(epoch, id()).await);
        let opened = open(epoch, machine).await.unwrap().value;
        assert_eq!((opened.status, opened.number), (TurnStatus::Running, 1));
        stale(open(epoch, machine).await);
        assert_eq!(lab.conversation(conversation).await.status, ConversationStatus::Running);
        assert_eq!(lab.told(conversation).await, ["turn/started"], "INV-119: once");
    }
}

#[actix::test]
async fn rul_5_an_interrupted_pending_turn_never_opens() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, Some("go")).await;
        let (machine, conversation) = (view.machine.id, view.conversation.id);
        let interrupt = |now| {
            lab.store()
                .interrupt(lab.account, conversation, lab.audit("conversation.interrupted"), now)
        };
        let done = interrupt(lab.now()).await.unwrap().value;
        assert_eq!((done.turn.status, done.process), (TurnStatus::Interrupted, None));
        assert_eq!(
            lab.told(conversation).await,
            ["turn/interrupted"],
            "a client that follows the turn waits for it"
        );
        lab.build(machine).await;
        let serving = lab.serve(conversation).await;
        assert_eq!(serving.open_turn, None);
        let epoch = serving.conversation.server_epoch;
        stale(
            lab.store()
                .open_pending_turn(conversation, epoch, machine, done.turn.id, id(), lab.now())
                .await,
        );
        assert_eq!(refused(interrupt(lab.now()).await), ErrorCode::NoTurnRunning);
    }
}

#[actix::test]
async fn inv_71_an_interrupt_ends_the_turn_once_and_remembers_the_process() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let conversation = serving.conversation.id;
        let turn = lab.admit(&serving).await;
        let process = lab.process(&serving).await;
        let now = lab.now();
        let done = lab
            .store()
            .interrupt(lab.account, conversation, lab.audit("x"), now)
            .await
            .unwrap()
            .value;
        assert_eq!(
            done.process.map(|process| (process.id, process.stop_requested)),
            Some((process.id, true))
        );
        assert_eq!(lab.conversation(conversation).await.status, ConversationStatus::Idle);
        assert_eq!(
            lab.store().processes_to_stop(serving.machine.id).await.unwrap().len(),
            1,
            "RUL-19d"
        );
        let late = Ending::completed(turn.id, "end_turn", lab.now());
        let written = lab.effect(&serving, Effect::TurnEnded(late)).await;
        assert_eq!((written.turn, written.cursor), (None, None), "nothing is published");
        assert_eq!(lab.told(conversation).await, ["turn/started", "turn/interrupted"]);
        lab.store().end_process(process.id, lab.now()).await.unwrap();
        assert!(
            lab.store()
                .processes_to_stop(serving.machine.id)
                .await
                .unwrap()
                .is_empty()
        );
        not_found(lab.store().interrupt(id(), conversation, lab.audit("x"), now).await);
        lab.store()
            .terminate(lab.account, conversation, Actor::Api, None, lab.now())
            .await
            .unwrap();
        let ended = lab
            .store()
            .interrupt(lab.account, conversation, lab.audit("x"), lab.now())
            .await;
        assert_eq!(refused(ended), ErrorCode::NotRunning);
    }
}

#[actix::test]
async fn c4_rul_11_only_a_first_build_that_fails_is_final() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, Some("go")).await;
        let (machine, conversation) = (view.machine.id, view.conversation.id);
        let turn = lab.store().turns(lab.account, conversation).await.unwrap()[0].id;
        let failed = || Ending::failed(turn, "provision_failed", lab.now());
        let elsewhere = lab
            .store()
            .close_turn(conversation, failed(), Some(id()), true)
            .await
            .unwrap();
        assert_eq!(elsewhere.value, None, "INV-73");
        let closed = lab
            .store()
            .close_turn(conversation, failed(), Some(machine), true)
            .await
            .unwrap();
        assert_eq!(closed.value.map(|turn| turn.status), Some(TurnStatus::Failed));
        assert_eq!(lab.conversation(conversation).await.status, ConversationStatus::Failed);
        let again = lab
            .store()
            .close_turn(conversation, failed(), Some(machine), true)
            .await
            .unwrap();
        assert!(again.value.is_none() && again.cursors.is_empty());
        assert_eq!(
            refused(lab.store().start_server(conversation, lab.now()).await),
            ErrorCode::ConversationTerminated
        );

        let serving = lab.up(PERSISTENT).await;
        let turn = lab.admit(&serving).await.id;
        let failed = Ending::failed(turn, "provision_failed", lab.now());
        lab.store()
            .close_turn(serving.conversation.id, failed, None, true)
            .await
            .unwrap();
        assert_eq!(
            lab.conversation(serving.conversation.id).await.status,
            ConversationStatus::Idle,
            "C8 is not for it"
        );
    }
}

#[actix::test]
async fn c9_a_build_without_a_prompt_settles_idle_on_its_own_machine() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, None).await;
        let conversation = view.conversation.id;
        lab.store().settle_idle(conversation, id(), lab.now()).await.unwrap();
        assert_eq!(lab.conversation(conversation).await.status, ConversationStatus::Pending);
        lab.store()
            .settle_idle(conversation, view.machine.id, lab.now())
            .await
            .unwrap();
        assert_eq!(lab.conversation(conversation).await.status, ConversationStatus::Idle);
    }
}

#[actix::test]
async fn t5_an_orphaned_turn_says_why_and_is_not_billed() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let conversation = serving.conversation.id;
        let reason = OrphanReason::NoActiveSession;
        let orphan = |binding| lab.store().orphan_running(conversation, binding, reason, lab.now());
        assert_eq!(orphan(None).await.unwrap().value, None);
        lab.admit(&serving).await;
        assert_eq!(orphan(Some(id())).await.unwrap().value, None, "INV-73");
        let turn = orphan(Some(serving.machine.id)).await.unwrap().value.unwrap();
        assert!(turn.orphaned_at.is_some());
        assert_eq!(
            lab.told(conversation).await,
            ["turn/started", "reattach/interrupted", "turn/interrupted"]
        );
        let last: serde_json::Value = serde_json::from_str(&lab.events(conversation).await[2].data).unwrap();
        assert_eq!(last["reason"], "no_active_session");
        assert!(lab.used().is_empty(), "INV-83");
        assert!(lab.audited().contains(&"conversation.turn.orphaned".to_owned()));
    }
}

#[actix::test]
async fn inv_83_usage_is_counted_once() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let turn = lab.admit(&serving).await.id;
        let usage = Usage {
            input: 10,
            output: 4,
            ..Usage::default()
        };
        let ending = Ending {
            usage: Some(usage.clone()),
            reply_text: Some("done".into()),
            ..Ending::completed(turn, "end_turn", lab.now())
        };
        let first = lab
            .effect(&serving, Effect::TurnEnded(ending.clone()))
            .await
            .turn
            .unwrap();
        assert_eq!((first.usage, first.reply_text.as_deref()), (Some(usage), Some("done")));
        lab.effect(&serving, Effect::TurnEnded(ending)).await;
        let row = lab.conversation(serving.conversation.id).await;
        assert_eq!((row.usage_input_tokens, row.usage_output_tokens), (10, 4));
        assert_eq!(lab.used(), ["turn"]);
    }
}

#[actix::test]
async fn rul_6_rul_13_a_prompt_waits_for_the_same_row_or_for_a_fresh_one() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let conversation = serving.conversation.id;
        let elsewhere = QueueTurn {
            seen_machine: id(),
            ..lab.new_queue(&serving, None)
        };
        assert_eq!(
            refused(lab.store().queue_turn(elsewhere).await),
            ErrorCode::SandboxUnavailable
        );
        let early = lab.new_queue(&serving, Some(lab.new_machine(EPHEMERAL)));
        assert_eq!(
            refused(lab.store().queue_turn(early).await),
            ErrorCode::SandboxUnavailable,
            "the seen row lives"
        );
        let (turn, machine) = lab
            .store()
            .queue_turn(lab.new_queue(&serving, None))
            .await
            .unwrap()
            .value;
        assert_eq!((turn.status, machine.id), (TurnStatus::Pending, serving.machine.id));
        let second = lab.store().queue_turn(lab.new_queue(&serving, None)).await;
        assert_eq!(refused(second), ErrorCode::ConversationBusy);
        let ending = Ending::failed(turn.id, "provision_failed", lab.now());
        lab.store().close_turn(conversation, ending, None, false).await.unwrap();

        lab.effect(&serving, Effect::SessionChosen { session_id: "s".into() })
            .await;
        lab.fence(serving.machine.id, DestroyReason::Reset).await.unwrap_err();
        lab.fence(serving.machine.id, DestroyReason::ProviderGone)
            .await
            .unwrap();
        destroy(&lab, serving.machine.id).await;
        assert_eq!(
            refused(lab.store().queue_turn(lab.new_queue(&serving, None)).await),
            ErrorCode::SandboxUnavailable
        );
        let fresh = lab.new_machine(EPHEMERAL);
        let queue = lab.new_queue(&serving, Some(fresh.clone()));
        let (turn, machine) = lab.store().queue_turn(queue).await.unwrap().value;
        assert_eq!((machine.id, machine.status), (fresh.id, MachineStatus::Pending));
        let row = lab.conversation(conversation).await;
        assert_eq!(
            (row.machine_id, row.status, row.runtime_session_id),
            (fresh.id, ConversationStatus::Idle, None)
        );
        assert_eq!(turn.number, 2);
        stale(lab.store().admit_turn(lab.new_admit(&serving)).await);
    }
}

#[actix::test]
async fn r_59_a_co_tenant_of_a_lost_home_moves_to_the_living_one() {
    for lab in Lab::all().await {
        let first = lab.up(PERSISTENT).await;
        let second = lab.attach(first.machine.id).await.unwrap().value.conversation.id;
        let second = lab.serve(second).await;
        lab.fence(first.machine.id, DestroyReason::Reset).await.unwrap();
        destroy(&lab, first.machine.id).await;
        let queue = |serving: &Serving| lab.new_queue(serving, Some(lab.new_machine(PERSISTENT)));
        let (_, home) = lab.store().queue_turn(queue(&first)).await.unwrap().value;
        let (turn, same) = lab.store().queue_turn(queue(&second)).await.unwrap().value;
        assert_eq!(
            (same.id, turn.status),
            (home.id, TurnStatus::Pending),
            "one live home an identity"
        );
        assert_eq!(lab.conversation(second.conversation.id).await.machine_id, home.id);
    }
}

#[actix::test]
async fn rul_37_the_reconnect_window_counts_from_the_first_loss() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let turn = lab.admit(&serving).await.id;
        let t0 = lab.now();
        let at = |seconds: i64| t0 + chrono::TimeDelta::seconds(seconds);
        let open = |now, until| {
            lab.store()
                .open_reconnect_window(turn, now, until, Duration::from_secs(600))
        };
        assert_eq!(open(t0, at(120)).await.unwrap(), at(120));
        assert_eq!(
            open(at(60), at(180)).await.unwrap(),
            at(120),
            "a running window is kept"
        );
        let overdue = async |now| lab.store().overdue_turns(now, 10).await.unwrap().len();
        assert_eq!((overdue(at(119)).await, overdue(at(120)).await), (0, 1));
        assert_eq!(
            open(at(300), at(420)).await.unwrap(),
            at(420),
            "it ran out while nobody was there"
        );
        assert_eq!(open(at(550), at(670)).await.unwrap(), at(600), "a crash loop ends");
        assert_eq!(open(at(700), at(820)).await.unwrap(), at(600));
        lab.store().close_reconnect_window(turn).await.unwrap();
        assert_eq!(open(at(2000), at(2120)).await.unwrap(), at(2120), "a new loss");
        lab.effect(&serving, Effect::Reattached { turn_id: turn }).await;
        assert_eq!(overdue(at(9000)).await, 0);
        let ending = Ending::interrupted(turn, lab.now());
        lab.store()
            .close_turn(serving.conversation.id, ending, None, false)
            .await
            .unwrap();
        stale(open(at(1), at(2)).await);
    }
}

#[actix::test]
async fn rul_l_23_rul_l_50_waiting_turns_are_adopted_until_their_time_is_over() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, Some("go")).await;
        let running = lab.up(PERSISTENT).await;
        lab.admit(&running).await;
        lab.up(EPHEMERAL).await;
        let adoptable = lab.store().adoptable(10).await.unwrap();
        let found: Vec<_> = adoptable
            .iter()
            .map(|turn| (turn.conversation_id, turn.turn.status))
            .collect();
        assert_eq!(
            found,
            [
                (view.conversation.id, TurnStatus::Pending),
                (running.conversation.id, TurnStatus::Running)
            ],
            "oldest first; idle ones need no server"
        );
        assert_eq!(adoptable[0].machine_name, view.machine.name);
        assert_eq!(lab.store().adoptable(1).await.unwrap().len(), 1);
        let late = lab.in_seconds(7200);
        assert_eq!(lab.store().overdue_turns(lab.now(), 10).await.unwrap(), []);
        let overdue = lab.store().overdue_turns(late, 10).await.unwrap();
        assert_eq!(
            overdue.iter().map(|turn| turn.turn.id).collect::<Vec<_>>(),
            [adoptable[0].turn.id]
        );
        lab.fence(running.machine.id, DestroyReason::AgentDeleted)
            .await
            .unwrap();
        assert_eq!(
            lab.store().adoptable(10).await.unwrap().len(),
            1,
            "DOOMED machines get no server"
        );
    }
}

#[actix::test]
async fn rul_l_41_the_turn_remembers_its_latest_spawn() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let turn = lab.admit(&serving).await;
        let process = lab.process(&serving).await;
        assert_ne!(turn.spawn_id, Some(process.spawn_id));
        let turns = lab.store().turns(lab.account, serving.conversation.id).await.unwrap();
        assert_eq!(turns[0].spawn_id, Some(process.spawn_id));
        lab.store().bind_session(process.id, "sess-1".into()).await.unwrap();
        not_found(lab.store().bind_session(id(), "sess-1".into()).await);
        let again = lab.serve(serving.conversation.id).await;
        assert_eq!(again.processes[0].session_id.as_deref(), Some("sess-1"));
        lab.store().request_stop(process.id).await.unwrap();
        lab.store().end_process(process.id, lab.now()).await.unwrap();
        assert!(lab.serve(serving.conversation.id).await.processes.is_empty());
    }
}
