//! Permission requests: first answer, expiry, and what an ending does to them.

use fountain_actors::domain::account::Actor;
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::turn::{AnswerOutcome, Ending, PendingPermission};
use fountain_actors::domain::*;
use fountain_actors::ports::store::transcript::Effect;
use fountain_actors::ports::store::turns::Serving;
use fountain_actors::ports::store::{ConversationStore, TurnStore};

use crate::lab::Lab;
use crate::support::refused;

const PERSISTENT: MachineMode = MachineMode::Persistent;

fn permission(lab: &Lab, deadline: i64) -> PendingPermission {
    PendingPermission {
        request_id: "5.0123456789abcdef".into(),
        rpc_id: serde_json::json!(5),
        tool: Some("bash".into()),
        options: vec![
            serde_json::json!({"optionId": "yes"}),
            serde_json::json!({"optionId": "no"}),
        ],
        asked_at: lab.now(),
        deadline: lab.in_seconds(deadline),
        detached_until: None,
        answer: None,
    }
}

/// A running turn that asks.
async fn asking(lab: &Lab, deadline: i64) -> (Serving, TurnId, PendingPermission) {
    let serving = lab.up(PERSISTENT).await;
    let turn = lab.admit(&serving).await.id;
    let open = permission(lab, deadline);
    lab.effect(
        &serving,
        Effect::PermissionOpened {
            turn_id: turn,
            permission: open.clone(),
        },
    )
    .await;
    (serving, turn, open)
}

#[actix::test]
async fn rul_56_the_first_answer_wins_and_is_kept_until_it_is_delivered() {
    for lab in Lab::all().await {
        let (serving, turn, open) = asking(&lab, 300).await;
        let conversation = serving.conversation.id;
        let view = async || {
            lab.store()
                .conversation_view(lab.account, conversation)
                .await
                .unwrap()
                .unwrap()
        };
        assert_eq!(view().await.pending_requests, [(turn, open.clone())]);
        let answer = |request: &str, option: &str| {
            let (request, option) = (request.to_owned(), option.to_owned());
            lab.store()
                .answer_permission(lab.account, conversation, request, option, Actor::Api, lab.now())
        };
        assert_eq!(
            refused(answer("5.other", "yes").await),
            ErrorCode::PermissionRequestResolved,
            "RUL-10"
        );
        assert_eq!(
            refused(answer(&open.request_id, "maybe").await),
            ErrorCode::UnknownOption
        );
        let (of, stored) = answer(&open.request_id, "yes").await.unwrap();
        let given = stored.answer.unwrap();
        assert_eq!(
            (of, given.outcome, given.option_id.as_deref()),
            (turn, AnswerOutcome::Answered, Some("yes"))
        );
        assert_eq!(
            refused(answer(&open.request_id, "no").await),
            ErrorCode::PermissionRequestResolved
        );
        assert!(view().await.pending_requests.is_empty());
        let again = lab.serve(conversation).await;
        let kept = again.open_turn.unwrap().pending_permission.unwrap();
        assert_eq!(
            kept.answer.map(|answer| answer.option_id),
            Some(Some("yes".to_owned())),
            "walk 8.5"
        );
        let serving = lab.serve(conversation).await;
        let delivered = Effect::PermissionDelivered {
            turn_id: turn,
            request_id: open.request_id.clone(),
        };
        lab.effect(&serving, delivered).await;
        let turns = lab.store().turns(lab.account, conversation).await.unwrap();
        assert_eq!(turns[0].pending_permission, None);
    }
}

#[actix::test]
async fn rul_l_57_an_expired_request_is_denied_once_whoever_serves_it() {
    for lab in Lab::all().await {
        let (serving, turn, open) = asking(&lab, 60).await;
        let conversation = serving.conversation.id;
        let expired = async |now| lab.store().expired_permissions(now, 10).await.unwrap();
        let late = lab.in_seconds(61);
        assert!(expired(lab.now()).await.is_empty());
        assert_eq!(expired(late).await, [(conversation, turn, open.request_id.clone())]);
        let expire = |now| lab.store().expire_permission(turn, open.request_id.clone(), now);
        assert_eq!(expire(lab.now()).await.unwrap(), None, "not yet");
        let denied = expire(late).await.unwrap().unwrap().answer.unwrap();
        assert_eq!((denied.outcome, denied.option_id), (AnswerOutcome::Timeout, None));
        assert_eq!(expire(late).await.unwrap(), None);
        assert_eq!(expired(late).await.len(), 1, "until the agent knows");
        let answer = lab
            .store()
            .answer_permission(
                lab.account,
                conversation,
                open.request_id.clone(),
                "yes".into(),
                Actor::Api,
                late,
            )
            .await;
        assert_eq!(refused(answer), ErrorCode::PermissionRequestResolved);
    }
}

#[actix::test]
async fn lifecycle_6_7_a_turn_resolves_its_request_unless_it_ends_waiting() {
    for lab in Lab::all().await {
        let (serving, turn, open) = asking(&lab, 300).await;
        let conversation = serving.conversation.id;
        let ending = Ending::failed(turn, "runner_reconnect_timeout", lab.now());
        let closed = lab
            .store()
            .close_turn(conversation, ending, None, false)
            .await
            .unwrap()
            .value
            .unwrap();
        assert_eq!(closed.pending_permission, None);
        assert_eq!(
            lab.told(conversation).await,
            ["turn/started", "request/done", "turn/failed"]
        );
        let done: serde_json::Value = serde_json::from_str(&lab.events(conversation).await[1].data).unwrap();
        assert_eq!(
            (done["outcome"].as_str(), done["request_id"].as_str()),
            (Some("turn_ended"), Some(&*open.request_id))
        );

        let turn = lab.admit(&serving).await.id;
        let open = permission(&lab, 3600);
        lab.effect(
            &serving,
            Effect::PermissionOpened {
                turn_id: turn,
                permission: open.clone(),
            },
        )
        .await;
        let ending = Ending::completed(turn, "waiting", lab.now());
        let waiting = lab.effect(&serving, Effect::TurnEnded(ending)).await.turn.unwrap();
        assert!(waiting.waiting);
        assert_eq!(waiting.pending_permission, Some(open.clone()));
        let last: serde_json::Value =
            serde_json::from_str(&lab.events(conversation).await.pop().unwrap().data).unwrap();
        assert_eq!(
            (last["waiting"].as_bool(), last["waiting_request_id"].as_str()),
            (Some(true), Some(&*open.request_id))
        );
        lab.admit(&serving).await;
    }
}
