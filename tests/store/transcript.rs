//! The transcript: appends, their guards, their isolation, and pages that skip nothing.

use std::collections::BTreeSet;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use fountain::store::backend::{Db, lock_events};
use fountain::store::schema::log_events;
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::event::{
    ByteRange, LogEvent, NewEvent, NewOutput, NewStage, RawStream, Stage, StageState, Stream, StreamFilter, StreamSet,
};
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::process::{Advance, Process};
use fountain_actors::domain::turn::{Ending, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::transcript::{Effect, Entry, EventQuery};
use fountain_actors::ports::store::turns::Serving;
use fountain_actors::ports::store::{ConversationStore, StoreError, TranscriptStore, TurnStore};

use crate::lab::Lab;
use crate::support::{id, not_found};

const PERSISTENT: MachineMode = MachineMode::Persistent;
const EPHEMERAL: MachineMode = MachineMode::Ephemeral;

fn output(stream: Stream, data: &str) -> NewEvent {
    NewOutput {
        turn_id: None,
        stream,
        data: data.into(),
        source: None,
        gap: None,
    }
    .into()
}

fn moved(process: &Process, from: i64, to: i64) -> Advance {
    Advance {
        process_id: process.id,
        stream: RawStream::Stdout,
        from,
        to,
        digest: format!("digest-{to}"),
    }
}

fn query(after: EventId) -> EventQuery {
    EventQuery {
        after,
        filter: StreamFilter::default(),
        limit: 1000,
    }
}

#[track_caller]
fn stale<T: std::fmt::Debug>(answer: &Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::Stale(_))), "{answer:?}");
}

#[actix::test]
async fn rul_25_the_end_of_a_turn_comes_behind_its_last_output_in_one_commit() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let conversation = serving.conversation.id;
        let process = lab.process(&serving).await;
        let turn = lab.admit(&serving).await;
        let range = ByteRange { from: 0, to: 12 };
        let line = NewOutput {
            turn_id: Some(turn.id),
            stream: Stream::Acp,
            data: "{\"jsonrpc\":\"2.0\"}".into(),
            source: Some((process.id, RawStream::Stdout, range)),
            gap: None,
        };
        let gap = NewOutput {
            gap: Some((RawStream::Stderr, ByteRange { from: 3, to: 9 })),
            source: None,
            stream: Stream::Stderr,
            data: "6 bytes are missing".into(),
            ..line.clone()
        };
        let entry = Entry {
            rows: vec![line.into(), gap.into()],
            advances: vec![moved(&process, 0, 12)],
            effect: Some(Effect::TurnEnded(Ending::completed(turn.id, "end_turn", lab.now()))),
            ..lab.entry(&serving)
        };
        let written = lab
            .store()
            .append(vec![entry.clone()])
            .await
            .unwrap()
            .remove(0)
            .unwrap();
        assert_eq!(written.turn.unwrap().status, TurnStatus::Completed);
        assert_eq!(written.output_bytes, 17 + 19);
        assert_eq!(
            lab.told(conversation).await,
            ["turn/started", "acp", "stderr", "turn/done"]
        );
        let events = lab.events(conversation).await;
        assert_eq!(written.cursor.unwrap().id, events[3].id);
        assert_eq!(
            events[2].gap,
            Some((RawStream::Stderr, ByteRange { from: 3, to: 9 })),
            "RUL-42a"
        );
        assert_eq!((events[1].stage, events[1].at), (Some(Stage::Turn), entry.now));
        let row = lab.conversation(conversation).await;
        assert_eq!((row.status, row.output_bytes), (ConversationStatus::Idle, 36));
        assert_eq!(lab.store().turn_output(turn.id).await.unwrap(), [events[1].clone()]);
        let position = lab.serve(conversation).await.processes[0].stdout.clone();
        assert_eq!((position.consumed, position.digest.as_deref()), (12, Some("digest-12")));
    }
}

#[actix::test]
async fn rul_l_8_an_append_starts_exactly_where_the_record_stands() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let process = lab.process(&serving).await;
        let entry = |from, to, text: &str| Entry {
            rows: vec![output(Stream::Acp, text)],
            advances: vec![moved(&process, from, to)],
            ..lab.entry(&serving)
        };
        let chain = vec![entry(0, 4, "a"), entry(4, 9, "b")];
        assert!(lab.store().append(chain).await.unwrap().iter().all(Result::is_ok));
        let plain = Entry {
            rows: vec![output(Stream::Acp, "after a hole")],
            ..lab.entry(&serving)
        };
        let broken = vec![entry(9, 11, "c"), entry(9, 12, "again"), plain, entry(11, 13, "later")];
        let answers = lab.store().append(broken).await.unwrap();
        assert!(answers[0].is_ok());
        answers[1..].iter().for_each(stale);
        let backwards = lab.store().append(vec![entry(11, 5, "x")]).await.unwrap();
        stale(&backwards[0]);
        let data: Vec<String> = lab
            .events(serving.conversation.id)
            .await
            .into_iter()
            .map(|event| event.data)
            .collect();
        assert_eq!(data, ["a", "b", "c"], "each byte once");
        let other = lab.up(EPHEMERAL).await;
        let stolen = Entry {
            advances: vec![moved(&process, 11, 12)],
            ..lab.entry(&other)
        };
        stale(&lab.store().append(vec![stolen]).await.unwrap()[0]);
    }
}

#[actix::test]
async fn rul_26_one_bad_row_hurts_only_its_own_conversation() {
    for lab in Lab::all().await {
        let poison = match lab.db.raw() {
            Db::Sqlite(mut conn) => conn.batch_execute(
                "CREATE TRIGGER poison BEFORE INSERT ON log_events WHEN NEW.data = 'poison' \
                 BEGIN SELECT RAISE(ABORT, 'poisoned'); END",
            ),
            Db::Postgres(mut conn) => conn.batch_execute(
                "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF NEW.data = 'poison' THEN RAISE EXCEPTION 'poisoned'; END IF; RETURN NEW; END $$; \
                 CREATE TRIGGER poison BEFORE INSERT ON log_events FOR EACH ROW EXECUTE FUNCTION poison()",
            ),
        };
        poison.unwrap();
        let (good, bad) = (lab.up(EPHEMERAL).await, lab.up(EPHEMERAL).await);
        let process = lab.process(&bad).await;
        let entry = |serving: &Serving, text: &str| Entry {
            rows: vec![output(Stream::Stdout, text)],
            ..lab.entry(serving)
        };
        let fatal = Entry {
            advances: vec![moved(&process, 0, 6)],
            ..entry(&bad, "poison")
        };
        let deleted = Entry {
            conversation_id: id(),
            ..entry(&good, "nobody")
        };
        let group = vec![entry(&good, "one"), fatal, deleted, entry(&good, "two")];
        let answers = lab.store().append(group).await.unwrap();
        assert!(answers[0].is_ok() && answers[3].is_ok(), "{answers:?}");
        assert!(matches!(answers[1], Err(StoreError::Internal { .. })), "{answers:?}");
        assert!(matches!(answers[2], Err(StoreError::NotFound(_))), "{answers:?}");
        let data: Vec<String> = lab
            .events(good.conversation.id)
            .await
            .into_iter()
            .map(|event| event.data)
            .collect();
        assert_eq!(data, ["one", "two"], "in order, once");
        assert_eq!(
            lab.serve(bad.conversation.id).await.processes[0].stdout.consumed,
            0,
            "nothing of it was written"
        );
    }
}

#[actix::test]
async fn rul_23_a_group_of_many_accounts_is_written_whole_and_in_order() {
    for lab in Lab::all().await {
        let mut served = Vec::new();
        for _ in 0..20 {
            let tenant = lab.tenant();
            let mut launch = lab.new_launch(EPHEMERAL, None);
            launch.conversation = lab.new_conversation(tenant);
            launch.machine.agent_id = tenant.1;
            let view = lab.store().launch(launch).await.unwrap().value;
            served.push(lab.serve(view.conversation.id).await);
        }
        let entry = |serving: &Serving, text: String| Entry {
            rows: vec![output(Stream::Stdout, &text)],
            ..lab.entry(serving)
        };
        let group: Vec<Entry> = (0..3)
            .flat_map(|round| served.iter().map(move |serving| (serving, round)))
            .map(|(serving, round)| entry(serving, format!("{round}")))
            .collect();
        let places: Vec<ConversationId> = group.iter().map(|entry| entry.conversation_id).collect();
        let answers = lab.store().append(group).await.unwrap();
        for (answer, conversation) in answers.iter().zip(places) {
            assert_eq!(
                answer.as_ref().unwrap().cursor.unwrap().conversation,
                conversation,
                "answers keep their places"
            );
        }
        for serving in &served {
            let account = serving.conversation.account_id;
            let page = lab.store().account_events(account, query(EventId(0))).await.unwrap();
            let data: Vec<&str> = page.events.iter().map(|event| event.data.as_str()).collect();
            assert_eq!(data, ["0", "1", "2"]);
        }
    }
}

#[actix::test]
async fn rul_20_a_nul_byte_is_stored_as_a_replacement_character() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let entry = Entry {
            rows: vec![output(Stream::Stdout, "a\0b")],
            ..lab.entry(&serving)
        };
        lab.store().append(vec![entry]).await.unwrap().remove(0).unwrap();
        assert_eq!(lab.events(serving.conversation.id).await[0].data, "a\u{fffd}b");
    }
}

#[actix::test]
async fn more_rows_than_one_statement_holds_keep_their_order_and_their_cursor() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        for count in [1, 63, 64, 65, 127, 500] {
            let before = lab
                .store()
                .last_event(lab.account, serving.conversation.id)
                .await
                .unwrap();
            let rows = (0..count).map(|n| output(Stream::Stdout, &n.to_string())).collect();
            let entry = Entry {
                rows,
                ..lab.entry(&serving)
            };
            let written = lab.store().append(vec![entry]).await.unwrap().remove(0).unwrap();
            let page = lab
                .store()
                .events(lab.account, serving.conversation.id, query(before))
                .await
                .unwrap();
            let data: Vec<String> = page.events.iter().map(|event| event.data.clone()).collect();
            assert_eq!(data, (0..count).map(|n: i32| n.to_string()).collect::<Vec<_>>());
            assert_eq!(written.cursor.unwrap().id, page.reached);
        }
    }
}

#[actix::test]
async fn rul_56_a_request_that_nobody_can_answer_any_more_is_not_announced() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let conversation = serving.conversation.id;
        let turn = lab.admit(&serving).await.id;
        let ending = Ending::interrupted(turn, lab.now());
        lab.store().close_turn(conversation, ending, None, false).await.unwrap();
        let delivered = Entry {
            rows: vec![
                NewStage::new(Stage::Request, StageState::Done).into(),
                output(Stream::Acp, "line"),
            ],
            effect: Some(Effect::PermissionDelivered {
                turn_id: turn,
                request_id: "1.x".into(),
            }),
            ..lab.entry(&serving)
        };
        lab.store().append(vec![delivered]).await.unwrap().remove(0).unwrap();
        assert_eq!(
            lab.told(conversation).await,
            ["turn/started", "turn/interrupted", "acp"]
        );
    }
}

#[actix::test]
async fn a_given_title_wins_over_a_proposed_one() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        lab.effect(&serving, Effect::TitleProposed(None)).await;
        assert_eq!(lab.conversation(serving.conversation.id).await.title, None);
        lab.effect(&serving, Effect::TitleProposed(Some("proposed".into())))
            .await;
        assert_eq!(
            lab.conversation(serving.conversation.id).await.title.as_deref(),
            Some("proposed")
        );
        let mut launch = lab.new_launch(EPHEMERAL, None);
        launch.conversation.title = Some("mine".into());
        let titled = lab.store().launch(launch).await.unwrap().value.conversation.id;
        let titled = lab.serve(titled).await;
        lab.effect(&titled, Effect::TitleProposed(Some("proposed".into())))
            .await;
        assert_eq!(
            lab.conversation(titled.conversation.id).await.title.as_deref(),
            Some("mine")
        );
    }
}

#[actix::test]
async fn events_of_another_account_are_not_found() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let (other, _) = lab.tenant();
        not_found(
            lab.store()
                .events(other, serving.conversation.id, query(EventId(0)))
                .await,
        );
        not_found(lab.store().last_event(other, serving.conversation.id).await);
        assert!(
            lab.store()
                .account_events(other, query(EventId(0)))
                .await
                .unwrap()
                .events
                .is_empty()
        );
    }
}

/// The shortest cursor reader: page after page until there is nothing new.
async fn follow(lab: &Lab, from: EventId, filter: StreamFilter, limit: i64) -> (Vec<LogEvent>, EventId) {
    let (mut seen, mut after) = (Vec::new(), from);
    loop {
        let page = lab
            .store()
            .account_events(
                lab.account,
                EventQuery {
                    after,
                    filter: filter.clone(),
                    limit,
                },
            )
            .await
            .unwrap();
        assert!(page.reached >= after, "a cursor never goes back");
        seen.extend(page.events);
        after = page.reached;
        if !page.has_more {
            return (seen, after);
        }
    }
}

/// The cursor trap: ids drawn first and committed last. The slow writer holds the account's event lock, so the fast one
/// cannot get an id in front of it.
#[actix::test]
async fn rul_23_a_reader_with_a_cursor_skips_nothing_while_a_commit_is_slow() {
    let Some(lab) = Lab::postgres().await else { return };
    let (slow, fast) = (lab.up(EPHEMERAL).await, lab.up(EPHEMERAL).await);
    let mut writer = lab.db.raw();
    let Db::Postgres(conn) = &mut writer else {
        unreachable!("it is PostgreSQL")
    };
    conn.batch_execute("BEGIN").unwrap();
    lock_events(&mut writer, [lab.account]).unwrap();
    diesel::insert_into(log_events::table)
        .values((
            log_events::account_id.eq(lab.account.to_string()),
            log_events::conversation_id.eq(slow.conversation.id.to_string()),
            log_events::kind.eq("output"),
            log_events::stream.eq("stdout"),
            log_events::data.eq("slow"),
            log_events::inserted_at.eq(lab.now().naive_utc()),
        ))
        .execute(&mut writer)
        .unwrap();
    let entry = Entry {
        rows: vec![output(Stream::Stdout, "fast")],
        ..lab.entry(&fast)
    };
    let store = lab.store().clone();
    let append = actix::spawn(async move { store.append(vec![entry]).await.unwrap().remove(0).unwrap() });
    until_somebody_waits_for_a_lock(&lab).await;
    let (seen, cursor) = follow(&lab, EventId(0), StreamFilter::default(), 10).await;
    assert!(seen.is_empty(), "the fast writer waits for the slow one");
    let Db::Postgres(conn) = &mut writer else {
        unreachable!("it is PostgreSQL")
    };
    conn.batch_execute("COMMIT").unwrap();
    append.await.unwrap();
    let (seen, _) = follow(&lab, cursor, StreamFilter::default(), 10).await;
    assert_eq!(
        seen.iter().map(|event| event.data.as_str()).collect::<Vec<_>>(),
        ["slow", "fast"]
    );
}

/// Polls the level itself; the statement is the pause.
async fn until_somebody_waits_for_a_lock(lab: &Lab) {
    #[derive(diesel::QueryableByName)]
    struct Waiting {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        count: i64,
    }
    let mut raw = lab.db.raw();
    for _ in 0..10_000 {
        let waiting: Waiting = diesel::sql_query(
            "SELECT count(*) AS count FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .get_result(&mut raw)
        .unwrap();
        if waiting.count > 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("nobody waits for the event lock");
}

#[actix::test]
async fn rul_23_two_writers_and_a_reader_agree_on_every_event() {
    for lab in Lab::all().await {
        let writers = [lab.up(EPHEMERAL).await, lab.up(EPHEMERAL).await];
        let done = std::cell::Cell::new(0);
        let write = async |serving: &Serving| {
            for n in 0..40 {
                let entry = Entry {
                    rows: vec![output(Stream::Stdout, &n.to_string())],
                    ..lab.entry(serving)
                };
                lab.store().append(vec![entry]).await.unwrap().remove(0).unwrap();
            }
            done.set(done.get() + 1);
        };
        let read = async {
            let (mut seen, mut cursor) = (Vec::new(), EventId(0));
            while seen.len() < 80 {
                let finished = done.get() == 2;
                let (more, reached) = follow(&lab, cursor, StreamFilter::default(), 7).await;
                assert!(
                    !(finished && more.is_empty()),
                    "the reader skipped some: {}",
                    seen.len()
                );
                seen.extend(more);
                cursor = reached;
            }
            seen
        };
        let (_, seen) = futures_util::join!(join_all(writers.iter().map(&write)), read);
        let ids: BTreeSet<EventId> = seen.iter().map(|event| event.id).collect();
        assert_eq!(ids.len(), 80, "none twice");
        assert!(seen.is_sorted_by_key(|event| event.id), "INV-84");
    }
}

#[actix::test]
async fn http_3_3_every_page_size_and_filter_gives_every_event_once_and_in_order() {
    for lab in Lab::all().await {
        let mut runner = TestRunner::deterministic();
        let serving = lab.up(EPHEMERAL).await;
        let kinds = proptest::collection::vec(0..4u8, 200)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let row = |kind: u8| match kind {
            0 => output(Stream::Stdout, "o"),
            1 => output(Stream::Stderr, "e"),
            2 => output(Stream::Acp, "a"),
            _ => NewStage::new(Stage::Session, StageState::Done).into(),
        };
        for chunk in kinds.chunks(17) {
            let entry = Entry {
                rows: chunk.iter().map(|kind| row(*kind)).collect(),
                ..lab.entry(&serving)
            };
            lab.store().append(vec![entry]).await.unwrap().remove(0).unwrap();
        }
        let all = lab.events(serving.conversation.id).await;
        assert_eq!(all.len(), 200);
        let newest = all.last().unwrap().id;
        let set = any::<[bool; 4]>().prop_map(|[stdout, stderr, acp, stage]| StreamSet {
            stdout,
            stderr,
            acp,
            stage,
        });
        let cases = (proptest::option::of(set), 1..40i64, 0..200usize);
        for _ in 0..48 {
            let (only, limit, start) = cases.new_tree(&mut runner).unwrap().current();
            let filter = StreamFilter { only };
            let from = all[start].id;
            let expected: Vec<&LogEvent> = all
                .iter()
                .filter(|event| event.id > from && filter.admits(event))
                .collect();
            let (seen, reached) = follow(&lab, from, filter.clone(), limit).await;
            assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{filter:?} by {limit}");
            assert_eq!(reached, newest, "filtered events count as looked at");
            let query = EventQuery {
                after: from,
                filter: filter.clone(),
                limit,
            };
            let page = lab
                .store()
                .events(lab.account, serving.conversation.id, query)
                .await
                .unwrap();
            assert_eq!(page.has_more, expected.len() > usize::try_from(limit).unwrap());
            assert!(page.events.iter().eq(expected.into_iter().take(page.events.len())));
        }
        let beyond = lab
            .store()
            .events(lab.account, serving.conversation.id, query(EventId(newest.0 + 50)))
            .await;
        assert_eq!(
            beyond.unwrap().reached,
            EventId(newest.0 + 50),
            "a cursor never goes back"
        );
    }
}
