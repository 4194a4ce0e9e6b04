//! Conversations: launch, attach, views, labels, terminate and delete.

use std::collections::BTreeMap;

use diesel::prelude::*;
use futures_util::future::join_all;

use fountain::store::schema::{api_keys, machines};
use fountain_actors::domain::account::Actor;
use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::{ConversationFilter, ConversationStatus};
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineMode, MachineStatus, Transition};
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Attach, Ended, Launch};
use fountain_actors::ports::store::machines::Purpose;
use fountain_actors::ports::store::{
    Committed, ConversationStore, MachineStore, StoreError, TranscriptStore, TurnStore,
};

use crate::lab::{Lab, ROOMY};
use crate::support::{id, not_found, refused, refused_fields};

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const PERSISTENT: MachineMode = MachineMode::Persistent;

async fn terminate(lab: &Lab, conversation: ConversationId) -> Result<Committed<Ended>, StoreError> {
    lab.store()
        .terminate(lab.account, conversation, Actor::Api, None, lab.now())
        .await
}

#[actix::test]
async fn rul_5_a_launch_writes_everything_and_its_first_turn_waits() {
    for lab in Lab::all().await {
        let launch = lab.new_launch(EPHEMERAL, Some("make me a sandwich"));
        let view = lab.store().launch(launch.clone()).await.unwrap().value;
        assert_eq!(view.conversation.status, ConversationStatus::Pending);
        assert_eq!(view.machine.status, MachineStatus::Pending);
        assert_eq!(view.machine.woken_at, Some(launch.now), "RUL-28");
        assert_eq!(
            (view.first_prompt.as_deref(), view.turn_count),
            (Some("make me a sandwich"), 1)
        );
        let turns = lab.store().turns(lab.account, view.conversation.id).await.unwrap();
        assert_eq!((turns[0].number, turns[0].status), (1, TurnStatus::Pending));
        assert_eq!(turns[0].pending_until, Some(launch.pending_until));
        assert_eq!(lab.audited(), ["conversation.created"]);
        assert!(
            lab.events(view.conversation.id).await.is_empty(),
            "a NEW machine has nothing to tell"
        );
        let bare = lab.launch(EPHEMERAL, None).await;
        assert_eq!((bare.first_prompt, bare.turn_count), (None, 0));
    }
}

#[actix::test]
async fn a_launch_for_what_was_deleted_meanwhile_is_not_found() {
    for lab in Lab::all().await {
        let mut launch = lab.new_launch(EPHEMERAL, None);
        launch.machine.agent_id = id();
        not_found(lab.store().launch(launch).await);
        assert!(
            lab.store().machine_views(lab.account, vec![]).await.unwrap().is_empty(),
            "all or nothing"
        );
    }
}

#[actix::test]
async fn r_59_persistent_launches_that_race_for_one_identity_make_one_home() {
    for lab in Lab::all().await {
        let answers = join_all((0..6).map(|_| lab.store().launch(lab.new_launch(PERSISTENT, None)))).await;
        let home = lab
            .store()
            .home_of(lab.account, lab.agent, None, None, Runtime::Acp)
            .await
            .unwrap()
            .unwrap();
        let mut made = 0;
        for answer in answers {
            match answer {
                Ok(done) => {
                    made += 1;
                    assert_eq!(done.value.machine.id, home);
                }
                Err(StoreError::HomeTaken(taken)) => assert_eq!(taken, home, "the loser learns where to attach"),
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(made, 1, "INV-12");
        lab.build(home).await;
        lab.attach(home).await.unwrap();
    }
}

#[actix::test]
async fn lifecycle_5_7_attach_refuses_what_lasts_before_what_passes() {
    for lab in Lab::all().await {
        not_found_sandbox(lab.attach(id()).await);
        let serving = lab.up(PERSISTENT).await;
        let machine = serving.machine.id;
        let view = lab.attach(machine).await.unwrap().value;
        assert_eq!(view.conversation.status, ConversationStatus::Idle, "RUL-11");

        let mismatch = |change: fn(&mut Attach)| {
            let mut attach = lab.new_attach(machine);
            change(&mut attach);
            lab.store().attach(attach)
        };
        lab.claim(machine, Purpose::Confirm).await;
        assert_eq!(
            refused(lab.attach(machine).await),
            ErrorCode::SandboxUnavailable,
            "R-24"
        );
        let vault = mismatch(|attach| attach.conversation.vault_id = Some(id())).await;
        assert_eq!(refused(vault), ErrorCode::SandboxIdentityMismatch);
        let environment = mismatch(|attach| attach.environment_id = Some(id())).await;
        assert_eq!(refused(environment), ErrorCode::SandboxIdentityMismatch);
        let agent = mismatch(|attach| attach.conversation.agent_id = id()).await;
        assert_eq!(refused(agent), ErrorCode::SandboxIdentityMismatch, "RUL-18");
        let runtime = mismatch(|attach| attach.conversation.runtime = Runtime::Codex).await;
        assert_eq!(refused(runtime), ErrorCode::SandboxRuntimeMismatch);

        let building = lab.launch(EPHEMERAL, None).await.machine.id;
        let answer = lab.attach(building).await;
        let not_attachable = Refusal::NotAttachable(MachineStatus::Pending);
        assert!(
            matches!(&answer, Err(StoreError::Refused(r)) if *r == not_attachable),
            "{answer:?}"
        );
        lab.fence(building, DestroyReason::Terminated).await.unwrap();
        assert_eq!(
            refused(lab.attach(building).await),
            ErrorCode::SandboxResetPending,
            "RUL-L-39"
        );
        let held = lab.claim(building, Purpose::Destroy).await;
        lab.finish(&held, MachineEvent::DeleteConfirmed).await;
        assert_eq!(refused(lab.attach(building).await), ErrorCode::SandboxNotAttachable);

        let (other, agent) = lab.tenant();
        let mut foreign = lab.new_attach(machine);
        foreign.conversation = lab.new_conversation((other, agent));
        not_found_sandbox(lab.store().attach(foreign).await);
    }
}

#[track_caller]
fn not_found_sandbox<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert_eq!(refused(answer), ErrorCode::SandboxNotFound);
}

#[actix::test]
async fn rul_l_36_a_suspended_account_starts_nothing() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        lab.limit_account(None, true);
        assert_eq!(
            refused(lab.attach(serving.machine.id).await),
            ErrorCode::AccountSuspended
        );
        let admitted = lab.store().admit_turn(lab.new_admit(&serving)).await;
        assert_eq!(refused(admitted), ErrorCode::AccountSuspended);
        let queued = lab.store().queue_turn(lab.new_queue(&serving, None)).await;
        assert_eq!(refused(queued), ErrorCode::AccountSuspended);
    }
}

#[actix::test]
async fn inv_57_the_last_conversation_takes_an_ephemeral_machine_with_it() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let machine = serving.machine.id;
        let process = lab.process(&serving).await;
        let second = lab.attach(machine).await.unwrap().value.conversation.id;
        let kept = terminate(&lab, serving.conversation.id).await.unwrap().value;
        assert_eq!(kept.fenced, None);
        assert_eq!(
            kept.to_stop.iter().map(|process| process.id).collect::<Vec<_>>(),
            [process.id]
        );
        assert_eq!(
            lab.store().processes_to_stop(machine).await.unwrap().len(),
            1,
            "the wish is a row"
        );
        assert_eq!(lab.machine(machine).await.transition, None);
        let last = terminate(&lab, second).await.unwrap().value;
        assert_eq!((last.fenced, last.to_stop), (Some(machine), vec![]));
        let row = lab.machine(machine).await;
        assert_eq!(row.transition, Some(Transition::Destroying));
        assert_eq!(row.transition_reason.as_deref(), Some("terminated"));

        let home = lab.up(PERSISTENT).await;
        let kept = terminate(&lab, home.conversation.id).await.unwrap().value;
        assert_eq!(kept.fenced, None, "a home is nobody's conversation");
        assert_eq!(lab.machine(home.machine.id).await.transition, None);
    }
}

#[actix::test]
async fn rul_l_29_terminate_is_one_transaction_with_the_end_of_its_turn() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let conversation = serving.conversation.id;
        let turn = lab.admit(&serving).await;
        let done = terminate(&lab, conversation).await.unwrap();
        assert_eq!(
            done.value.cut.as_ref().map(|cut| (cut.id, cut.status)),
            Some((turn.id, TurnStatus::Interrupted))
        );
        assert_eq!(done.value.conversation.status, ConversationStatus::Terminated);
        assert_eq!(lab.conversation(conversation).await, done.value.conversation);
        assert_eq!(
            lab.told(conversation).await,
            ["turn/started", "turn/interrupted", "terminate/done"]
        );
        assert_eq!(
            done.cursors[0].id,
            lab.store().last_event(lab.account, conversation).await.unwrap()
        );
        let said = lab.audited();
        assert!(
            said.contains(&"conversation.terminated".into()) && said.contains(&"sandbox.teardown_requested".into())
        );

        let late = lab.store().append(vec![lab.entry(&serving)]).await.unwrap().remove(0);
        assert!(
            matches!(late, Err(StoreError::Stale(_))),
            "its server is a generation behind"
        );
        let again = terminate(&lab, conversation).await.unwrap();
        assert!(again.cursors.is_empty() && again.value.cut.is_none(), "idempotent");
        assert_eq!(lab.audited(), said);
        assert_eq!(
            refused(lab.store().start_server(conversation, lab.now()).await),
            ErrorCode::ConversationTerminated
        );
        not_found(
            lab.store()
                .terminate(id(), conversation, Actor::Api, None, lab.now())
                .await,
        );
    }
}

#[actix::test]
async fn inv_58_a_refused_terminate_changed_nothing() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let (machine, conversation) = (serving.machine.id, serving.conversation.id);
        lab.admit(&serving).await;
        lab.claim(machine, Purpose::Confirm).await;
        let before = (lab.machine(machine).await, lab.conversation(conversation).await);
        let events = lab.events(conversation).await;
        assert_eq!(
            refused(terminate(&lab, conversation).await),
            ErrorCode::SandboxUnavailable
        );
        assert_eq!(
            (lab.machine(machine).await, lab.conversation(conversation).await),
            before
        );
        assert_eq!(lab.events(conversation).await, events);
        assert!(!lab.audited().contains(&"conversation.terminated".into()));
        lab.expire(machine);
        terminate(&lab, conversation).await.unwrap();
    }
}

#[actix::test]
async fn rul_12_a_build_is_fenced_at_once_whatever_its_lease() {
    for lab in Lab::all().await {
        let view = lab.launch(EPHEMERAL, Some("go")).await;
        let held = lab.claim(view.machine.id, Purpose::Provision).await;
        let ended = terminate(&lab, view.conversation.id).await.unwrap().value;
        assert_eq!(ended.fenced, Some(view.machine.id));
        assert_eq!(
            ended.cut.map(|turn| turn.status),
            Some(TurnStatus::Interrupted),
            "RUL-5: pending to interrupted"
        );
        let row = lab.machine(view.machine.id).await;
        assert_eq!(row.lease_epoch, held.claimed.epoch);
        assert!(row.lease.is_some(), "the builder finds out at its next step");

        let home = lab.launch(PERSISTENT, None).await;
        let held = lab.claim(home.machine.id, Purpose::Provision).await;
        assert_eq!(terminate(&lab, home.conversation.id).await.unwrap().value.fenced, None);
        let created = Some(MachineEvent::CreateAnswered);
        let epoch = held.claimed.epoch;
        lab.store()
            .advance(home.machine.id, epoch, created, Default::default(), vec![], lab.now())
            .await
            .unwrap();
        assert_eq!(
            lab.finish(&held, MachineEvent::BuildFinished).await.machine.status,
            MachineStatus::Ready
        );
    }
}

#[actix::test]
async fn r_24_rul_l_80_attach_and_terminate_at_once_agree_on_the_machine() {
    for lab in Lab::all().await {
        for _ in 0..8 {
            let serving = lab.up(EPHEMERAL).await;
            let machine = serving.machine.id;
            let (attached, ended) = futures_util::join!(lab.attach(machine), terminate(&lab, serving.conversation.id));
            match (attached, ended.unwrap().value.fenced) {
                (Ok(_), None) => assert_eq!(lab.machine(machine).await.transition, None),
                (Err(refusal), Some(_)) => assert_eq!(refusal.refusal().code(), ErrorCode::SandboxResetPending),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[actix::test]
async fn rul_28a_a_deleted_conversation_leaves_a_descriptor_and_its_ids_do_not_come_back() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let (machine, conversation) = (serving.machine.id, serving.conversation.id);
        let delete = async |conversation| {
            lab.store()
                .delete_conversation(lab.account, conversation, lab.audit("conversation.deleted"), lab.now())
                .await
        };
        not_found(delete(conversation).await);
        lab.admit(&serving).await;
        terminate(&lab, conversation).await.unwrap();
        let newest = lab.store().last_event(lab.account, conversation).await.unwrap();
        delete(conversation).await.unwrap();
        not_found(lab.store().turns(lab.account, conversation).await);
        assert_eq!(lab.store().conversation(conversation).await.unwrap(), None);
        let departed = |lab: &Lab| -> String {
            machines::table
                .find(machine.to_string())
                .select(machines::departed_conversations)
                .first(&mut lab.db.raw())
                .unwrap()
        };
        let first = departed(&lab);
        assert_eq!(first, format!(r#"[{{"runtime":"acp","agent_id":"{}"}}]"#, lab.agent));
        let second = lab.attach(machine).await.unwrap().value.conversation.id;
        let serving = lab.serve(second).await;
        lab.admit(&serving).await;
        assert!(lab.events(second).await[0].id > newest, "INV-84");
        terminate(&lab, second).await.unwrap();
        delete(second).await.unwrap();
        assert_eq!(departed(&lab), first, "one a distinct source");
    }
}

#[actix::test]
async fn callback_keys_end_with_their_conversation() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let conversation = serving.conversation.id;
        diesel::insert_into(api_keys::table)
            .values((
                api_keys::id.eq(id::<KeyId>().to_string()),
                api_keys::account_id.eq(lab.account.to_string()),
                api_keys::name.eq("callback"),
                api_keys::prefix.eq("ftn_"),
                api_keys::sha256.eq(vec![7u8; 32]),
                api_keys::scope.eq("sprite"),
                api_keys::conversation_id.eq(conversation.to_string()),
                api_keys::inserted_at.eq(lab.now().naive_utc()),
            ))
            .execute(&mut lab.db.raw())
            .unwrap();
        terminate(&lab, conversation).await.unwrap();
        let revoked: Option<chrono::NaiveDateTime> = api_keys::table
            .select(api_keys::revoked_at)
            .first(&mut lab.db.raw())
            .unwrap();
        assert!(revoked.is_some());
    }
}

#[actix::test]
async fn http_5_7_3_lists_filter_order_and_keep_accounts_apart() {
    for lab in Lab::all().await {
        let labelled = |labels: &[(&str, &str)], channel: Option<&str>| {
            let mut launch = lab.new_launch(EPHEMERAL, Some("hi"));
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            launch.conversation.labels = labels.iter().map(pair).collect();
            launch.conversation.channel_id = channel.map(Into::into);
            launch
        };
        let make = async |launch: Launch| lab.store().launch(launch).await.unwrap().value.conversation.id;
        let first = make(labelled(&[("team", "a"), ("tier", "1")], Some("c-1"))).await;
        let tricky = make(labelled(&[("q\",\"team", "a"), ("note", "{\"team\":\"a\"}")], None)).await;
        let mut child = labelled(&[("tier", "1")], None);
        child.conversation.parent_conversation_id = Some(first);
        let child = make(child).await;

        let list = async |filter: ConversationFilter| {
            let views = lab.store().conversation_views(lab.account, filter).await.unwrap();
            views.into_iter().map(|view| view.conversation.id).collect::<Vec<_>>()
        };
        let all = ConversationFilter::default;
        assert_eq!(list(all()).await, [child, tricky, first]);
        assert_eq!(
            list(ConversationFilter {
                limit: Some(2),
                ..all()
            })
            .await,
            [child, tricky]
        );
        assert_eq!(
            list(ConversationFilter {
                roots_only: true,
                ..all()
            })
            .await,
            [tricky, first]
        );
        assert_eq!(
            list(ConversationFilter {
                channel_id: Some("c-1".into()),
                ..all()
            })
            .await,
            [first]
        );
        assert_eq!(
            list(ConversationFilter {
                agent_id: Some(id()),
                ..all()
            })
            .await,
            []
        );
        assert_eq!(
            list(ConversationFilter {
                agent_id: Some(lab.agent),
                ..all()
            })
            .await
            .len(),
            3
        );
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            list(ConversationFilter {
                labels: vec![label("team", "a")],
                ..all()
            })
            .await,
            [first]
        );
        let both = vec![label("tier", "1"), label("team", "a")];
        assert_eq!(
            list(ConversationFilter {
                labels: both,
                limit: Some(1),
                ..all()
            })
            .await,
            [first]
        );
        let machine = lab.conversation(child).await.machine_id;
        assert_eq!(
            list(ConversationFilter {
                machine_id: Some(machine),
                ..all()
            })
            .await,
            [child]
        );
        terminate(&lab, tricky).await.unwrap();
        assert_eq!(list(all()).await, [tricky, child, first], "most recently updated first");
        let ended = ConversationFilter {
            statuses: vec![ConversationStatus::Terminated],
            ..all()
        };
        assert_eq!(list(ended).await, [tricky]);
        let (other, _) = lab.tenant();
        assert!(lab.store().conversation_views(other, all()).await.unwrap().is_empty());
        assert_eq!(lab.store().conversation_view(other, first).await.unwrap(), None);
    }
}

#[actix::test]
async fn http_4_12_labels_merge_and_end_at_thirty_two() {
    for lab in Lab::all().await {
        let conversation = lab.launch(EPHEMERAL, None).await.conversation.id;
        let merge = async |changes: BTreeMap<String, Option<String>>| {
            lab.store()
                .merge_labels(lab.account, conversation, changes, lab.now())
                .await
        };
        let many = (0..32).map(|n| (format!("k{n}"), Some("v".to_owned()))).collect();
        assert_eq!(merge(many).await.unwrap().labels.len(), 32);
        let over = merge([("one".to_owned(), Some("more".to_owned()))].into()).await;
        assert_eq!(refused_fields(over), ["labels"]);
        let swap = [("one".to_owned(), Some("more".to_owned())), ("k0".to_owned(), None)];
        let merged = merge(swap.into()).await.unwrap();
        assert_eq!(merged.labels.len(), 32);
        assert!(!merged.labels.contains_key("k0"));
        assert_eq!(lab.conversation(conversation).await, merged);
        not_found(
            lab.store()
                .merge_labels(id(), conversation, BTreeMap::new(), lab.now())
                .await,
        );
        lab.store()
            .mark_read(lab.account, conversation, lab.now())
            .await
            .unwrap();
        assert!(lab.conversation(conversation).await.last_read_at.is_some());
        not_found(lab.store().mark_read(id(), conversation, lab.now()).await);
    }
}

#[actix::test]
async fn a_channel_finds_its_latest_live_conversation() {
    for lab in Lab::all().await {
        let launch = || {
            let mut launch = Launch {
                limits: ROOMY,
                ..lab.new_launch(EPHEMERAL, None)
            };
            launch.conversation.channel_id = Some("c".into());
            launch
        };
        let find = async |environment: Option<EnvironmentId>| {
            let found = lab
                .store()
                .channel_conversation(lab.account, "c".into(), lab.agent, None, environment)
                .await
                .unwrap();
            found.map(|conversation| conversation.id)
        };
        assert_eq!(find(None).await, None);
        let first = lab.store().launch(launch()).await.unwrap().value.conversation.id;
        let second = lab.store().launch(launch()).await.unwrap().value.conversation.id;
        assert_eq!(find(None).await, Some(second));
        assert_eq!(find(Some(id())).await, None, "another override is another conversation");
        terminate(&lab, second).await.unwrap();
        assert_eq!(find(None).await, Some(first));
    }
}
