//! The auditor of the rows: an honest database answers nothing, and every check sees the row that breaks it.

use diesel::connection::SimpleConnection;
use secrecy::SecretString;

use fountain::store::backend::Kind;
use fountain_actors::domain::environment::SecretHome;
use fountain_actors::domain::event::{ByteRange, NewEvent, NewOutput, RawStream, Stream};
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineMode};
use fountain_actors::domain::process::Advance;
use fountain_actors::domain::turn::Ending;
use fountain_actors::domain::*;
use fountain_actors::ports::store::TranscriptStore;
use fountain_actors::ports::store::catalog::{CatalogStore, NewVault};
use fountain_actors::ports::store::machines::{Finish, MachineStore, Purpose};
use fountain_actors::ports::store::transcript::{Effect, Entry};
use fountain_actors::ports::store::turns::Serving;

use crate::lab::Lab;
use crate::support::id;

/// A little of everything, made by the verbs: a machine that is up with a turn that is over and one that runs, output
/// with a gap, one that sleeps, one that is fenced, one that is destroyed.
struct Story {
    lab: Lab,
    up: Serving,
    over: TurnId,
    running: TurnId,
    asleep: MachineId,
    doomed: MachineId,
    gone: MachineId,
}

fn output(turn: TurnId, data: &str, source: (ProcessId, RawStream, ByteRange)) -> NewEvent {
    NewOutput {
        turn_id: Some(turn),
        stream: Stream::Acp,
        data: data.into(),
        source: Some(source),
        gap: None,
    }
    .into()
}

async fn told(lab: Lab) -> Story {
    let up = lab.up(MachineMode::Persistent).await;
    let process = lab.process(&up).await;
    let over = lab.admit(&up).await.id;
    let (first, second) = (ByteRange { from: 0, to: 12 }, ByteRange { from: 20, to: 24 });
    let gap = NewOutput {
        turn_id: Some(over),
        stream: Stream::Stderr,
        data: "8 bytes are missing".into(),
        source: None,
        gap: Some((RawStream::Stdout, ByteRange { from: 12, to: 20 })),
    };
    let entry = Entry {
        rows: vec![
            output(over, "one", (process.id, RawStream::Stdout, first)),
            gap.into(),
            output(over, "two", (process.id, RawStream::Stdout, second)),
        ],
        advances: vec![Advance {
            process_id: process.id,
            stream: RawStream::Stdout,
            from: 0,
            to: 24,
            digest: "digest".into(),
        }],
        effect: Some(Effect::TurnEnded(Ending::completed(over, "end_turn", lab.now()))),
        ..lab.entry(&up)
    };
    lab.store().append(vec![entry]).await.unwrap().remove(0).unwrap();
    let running = lab.admit(&up).await.id;

    let asleep = lab.launch(MachineMode::Ephemeral, None).await.machine.id;
    lab.build(asleep).await;
    lab.park(asleep).await;
    let doomed = lab.launch(MachineMode::Ephemeral, None).await.machine.id;
    lab.build(doomed).await;
    lab.fence(doomed, DestroyReason::Terminated).await.unwrap();
    let gone = lab.launch(MachineMode::Ephemeral, None).await.machine.id;
    lab.build(gone).await;
    lab.fence(gone, DestroyReason::Terminated).await.unwrap();
    let held = lab.claim(gone, Purpose::Destroy).await;
    let mut finish = lab.new_finish(&held, Some(MachineEvent::DeleteConfirmed));
    finish.receipt.evidence = Some(serde_json::json!({"absent": true}));
    finish.audit = vec![fountain_actors::domain::account::NewAudit {
        action: "sandbox.destroyed",
        resource_type: "sandbox",
        resource_id: Some(gone.to_string()),
        ..lab.audit("")
    }];
    lab.store().finish(Finish { ..finish }).await.unwrap();
    Story {
        lab,
        up,
        over,
        running,
        asleep,
        doomed,
        gone,
    }
}

impl Story {
    /// The laws that the auditor finds broken, with their rows.
    async fn found(&self) -> Vec<(&'static str, String)> {
        let found = self.lab.store().audit_rows(Vec::new()).await.unwrap();
        found
            .into_iter()
            .map(|violation| (violation.law, violation.row))
            .collect()
    }

    /// Breaks rows past the verbs.
    fn broken(&self, statement: &str) {
        self.lab.db.raw().batch_execute(statement).unwrap();
    }

    /// Breaks a row and looks for the law there.
    async fn canary(self, law: &str, at: &str, statement: &str) {
        assert_eq!(self.found().await, [], "an honest database");
        self.broken(statement);
        let found = self.found().await;
        assert!(
            found.iter().any(|(seen, row)| *seen == law && row.contains(at)),
            "{law} at {at} after {statement:?}; found {found:?}"
        );
    }
}

/// A canary on each database: law, where it is found, and what is done to the row.
async fn canary(law: &str, at: impl Fn(&Story) -> String, statement: impl Fn(&Story) -> String) {
    for lab in Lab::all().await {
        let story = told(lab).await;
        let (at, statement) = (at(&story), statement(&story));
        story.canary(law, &at, &statement).await;
    }
}

macro_rules! canaries {
    ($($name:ident: $law:literal, |$story:ident| $at:expr, $statement:expr;)+) => {
        $(
            #[actix::test]
            async fn $name() {
                let at = |$story: &Story| {
                    let _ = $story;
                    $at.to_string()
                };
                let statement = |$story: &Story| {
                    let _ = $story;
                    String::from($statement)
                };
                canary($law, at, statement).await;
            }
        )+
    };
}

canaries! {
    inv_11_a_live_row_with_an_end: "INV-11", |s| s.asleep,
        format!("UPDATE machines SET terminated_at = inserted_at WHERE id = '{}'", s.asleep);
    inv_02_a_stamp_on_a_row_that_is_gone: "INV-02", |s| s.gone,
        format!("UPDATE machines SET transition = 'parking', transition_at = inserted_at WHERE id = '{}'", s.gone);
    inv_09_a_lease_without_an_operation: "INV-09", |s| s.asleep,
        format!("UPDATE machines SET lease_holder = 'x', lease_until = inserted_at WHERE id = '{}'", s.asleep);
    inv_05_a_stamp_that_no_operation_wrote: "INV-05", |s| s.up.machine.id,
        format!("UPDATE machines SET transition = 'resuming', transition_at = inserted_at WHERE id = '{}'",
            s.up.machine.id);
    inv_22_a_machine_without_the_fingerprint_of_its_build: "INV-22", |s| s.asleep,
        format!("UPDATE machines SET build_fingerprint = NULL WHERE id = '{}'", s.asleep);
    rul_l_21_a_live_row_that_owes_a_delete: "RUL-L-21", |s| s.asleep,
        format!("UPDATE machines SET cleanup_pending = TRUE WHERE id = '{}'", s.asleep);
    lifecycle_2_4_a_fence_without_a_reason: "lifecycle 2.4", |s| s.doomed,
        format!("UPDATE machines SET transition_reason = NULL WHERE id = '{}'", s.doomed);
    inv_03_an_epoch_that_is_two_operations: "INV-03", |s| s.asleep,
        format!("UPDATE operations SET epoch = 1 WHERE machine_id = '{}'", s.asleep);
    inv_03_an_epoch_that_went_back: "INV-03", |s| "operations",
        format!("UPDATE machines SET lease_epoch = 0 WHERE id = '{}'", s.asleep);
    rul_l_3_a_known_outcome_that_is_not_finished: "RUL-L-3", |s| "operations",
        format!("UPDATE operations SET finished_at = NULL WHERE machine_id = '{}'", s.asleep);
    inv_51_a_machine_that_ended_without_evidence: "INV-51", |s| s.gone,
        format!("UPDATE operations SET evidence = NULL WHERE machine_id = '{}'", s.gone);
    inv_52_a_fence_that_was_audited_twice: "INV-52", |s| s.doomed,
        "INSERT INTO audit_events (account_id, action, resource_type, resource_id, actor, metadata, inserted_at) \
         SELECT account_id, action, resource_type, resource_id, actor, metadata, inserted_at FROM audit_events \
         WHERE action = 'sandbox.teardown_requested'";
    inv_52_a_fence_that_nobody_audited: "INV-52", |s| s.doomed,
        "DELETE FROM audit_events WHERE action = 'sandbox.teardown_requested'";
    inv_52_a_machine_that_was_destroyed_twice: "INV-52", |s| s.gone,
        "INSERT INTO audit_events (account_id, action, resource_type, resource_id, actor, metadata, inserted_at) \
         SELECT account_id, action, resource_type, resource_id, actor, metadata, inserted_at FROM audit_events \
         WHERE action = 'sandbox.destroyed'";
    inv_52_a_live_machine_that_is_called_destroyed: "INV-52", |s| s.asleep,
        format!("UPDATE audit_events SET resource_id = '{}' WHERE action = 'sandbox.destroyed'", s.asleep);
    inv_56_a_turn_that_runs_on_a_machine_that_is_gone: "INV-56", |s| s.running,
        format!("UPDATE turns SET machine_id = '{}' WHERE id = '{}'", s.gone, s.running);
    inv_70_two_open_turns: "INV-70", |s| s.up.conversation.id,
        format!("DROP INDEX turns_open; UPDATE turns SET status = 'running' WHERE id = '{}'", s.over);
    inv_70_a_number_that_is_missing: "INV-70", |s| s.up.conversation.id,
        format!("UPDATE turns SET number = 7 WHERE id = '{}'", s.running);
    inv_71_a_turn_without_its_end: "INV-71", |s| s.over,
        format!("DELETE FROM log_events WHERE turn_id = '{}' AND stage = 'turn' AND state = 'done'", s.over);
    inv_71_a_turn_that_runs_and_has_an_end: "INV-71", |s| s.running,
        format!("UPDATE log_events SET state = 'done' WHERE turn_id = '{}' AND state = 'started'", s.running);
    inv_71_a_turn_that_is_over_without_a_time: "INV-71", |s| s.over,
        format!("UPDATE turns SET ended_at = NULL WHERE id = '{}'", s.over);
    r_86_a_turn_that_started_twice: "R-86", |s| s.over,
        format!("UPDATE log_events SET turn_id = '{}' WHERE turn_id = '{}' AND state = 'started'", s.over, s.running);
    rul_25_output_behind_the_end: "RUL-25", |s| "log_events",
        format!("UPDATE log_events SET turn_id = '{}', kind = 'output', state = NULL WHERE turn_id = '{}'",
            s.over, s.running);
    inv_72_a_conversation_that_runs_nothing: "INV-72", |s| s.up.conversation.id,
        format!("UPDATE turns SET status = 'interrupted', ended_at = inserted_at WHERE id = '{}'", s.running);
    inv_78_a_conversation_that_is_over_with_an_open_turn: "INV-78", |s| s.up.conversation.id,
        format!("UPDATE conversations SET status = 'terminated' WHERE id = '{}'", s.up.conversation.id);
    promise_6_a_request_without_a_deadline: "promise 6", |s| s.running,
        format!("UPDATE turns SET pending_permission = '{{}}' WHERE id = '{}'", s.running);
    inv_83_a_turn_that_is_billed_twice: "INV-83", |s| s.over,
        "INSERT INTO usage_events (account_id, kind, turn_id, metadata, inserted_at) \
         SELECT account_id, kind, turn_id, metadata, inserted_at FROM usage_events WHERE kind = 'turn'";
    inv_84_an_id_that_was_drawn_late: "INV-84", |s| "log_events",
        "UPDATE log_events SET inserted_at = '2001-01-01 00:00:00' WHERE id = (SELECT max(id) FROM log_events)";
    inv_81_a_range_of_another_conversation_s_process: "INV-81", |s| "log_events",
        "UPDATE log_events SET process_id = 'nobody' WHERE raw_from = 20";
    inv_81_a_range_that_comes_twice: "INV-81", |s| "log_events",
        "UPDATE log_events SET raw_from = 3 WHERE raw_from = 20";
    rul_40_a_row_from_bytes_that_were_not_read: "RUL-40", |s| "log_events",
        "UPDATE processes SET stdout_consumed = 5";
    promise_4_a_row_inside_a_gap: "promise 4", |s| "log_events",
        "UPDATE log_events SET process_id = (SELECT id FROM processes), gap_from = 5 WHERE gap_stream IS NOT NULL";
    promise_4_a_gap_of_nothing: "promise 4", |s| "log_events",
        "UPDATE log_events SET gap_to = gap_from WHERE gap_stream IS NOT NULL";
}

const SECRET: &str = "correct-horse \"battery\"";

#[actix::test]
async fn promise_8_a_secret_in_a_text_is_found_and_not_told() {
    for lab in Lab::all().await {
        let story = told(lab).await;
        let secret = || vec![SecretString::from(SECRET)];
        assert_eq!(story.lab.store().audit_rows(secret()).await.unwrap(), []);
        let set = match story.lab.db.kind() {
            Kind::Sqlite => "json_quote",
            Kind::Postgres => "to_json",
        };
        // As it stands, and as it stands inside JSON.
        story.broken(&format!(
            "UPDATE turns SET reply_text = 'it is {SECRET}' WHERE id = '{}'",
            story.over
        ));
        story.broken(&format!(
            "UPDATE log_events SET data = CAST({set}(CAST('a{SECRET}b' AS TEXT)) AS TEXT) WHERE raw_from = 0"
        ));
        // What a user typed is the user's.
        story.broken(&format!("UPDATE turns SET prompt = 'use {SECRET}'"));
        let found = story.lab.store().audit_rows(secret()).await.unwrap();
        let places: Vec<_> = found
            .iter()
            .map(|violation| (violation.law, violation.detail.as_str()))
            .collect();
        assert_eq!(
            places,
            [
                ("promise 8", "column data, 1 rows"),
                ("promise 8", "column reply_text, 1 rows")
            ]
        );
        assert!(!format!("{found:?}").contains("horse"));
    }
}

#[actix::test]
async fn promise_8_what_the_database_keeps_sealed_is_looked_for_by_itself() {
    for lab in Lab::all().await {
        let vault = NewVault {
            name: "v".into(),
            description: String::new(),
            metadata: Default::default(),
        };
        let account = lab.db.account().await.id;
        let audit = |action| crate::support::audit(account, action);
        let vault = lab
            .store()
            .create_vault(account, id(), vault, audit("vault.created"), lab.now())
            .await
            .unwrap();
        let home = SecretHome::Vault(vault.id);
        lab.store()
            .put_secret(
                account,
                home,
                "TOKEN".into(),
                SECRET.into(),
                None,
                audit("secret.put"),
                lab.now(),
            )
            .await
            .unwrap();
        assert_eq!(lab.store().audit_rows(Vec::new()).await.unwrap(), []);
        let leak = format!("UPDATE vaults SET description = '{SECRET}'");
        lab.db.raw().batch_execute(&leak).unwrap();
        let found = lab.store().audit_rows(Vec::new()).await.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].law, found[0].row.as_str()),
            ("promise 8", format!("vaults {}", vault.id).as_str())
        );
    }
}
