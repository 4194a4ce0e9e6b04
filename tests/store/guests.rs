//! Another agent on a home (lifecycle 5.7 as amended by RUL-L-39 and RUL-L-82 to 85).

use diesel::prelude::*;

use fountain::store::schema::agents;
use fountain_actors::domain::account::{Actor, Scope};
use fountain_actors::domain::agent::Runtime;
use fountain_actors::domain::conversation::{ConversationStatus, ConversationView};
use fountain_actors::domain::machine::{DestroyReason, MachineMode, MachineStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::Attach;
use fountain_actors::ports::store::machines::Purpose;
use fountain_actors::ports::store::{ConversationStore, StoreError};

use crate::lab::Lab;
use crate::support::{id, refused};

/// Another agent of the lab's account.
fn agent(lab: &Lab, runtime: Runtime) -> AgentId {
    let agent: AgentId = id();
    let now = lab.now().naive_utc();
    diesel::insert_into(agents::table)
        .values((
            agents::id.eq(agent.to_string()),
            agents::account_id.eq(lab.account.to_string()),
            agents::name.eq(agent.to_string()),
            agents::runtime.eq(runtime.as_str()),
            agents::version_id.eq(id::<AgentVersionId>().to_string()),
            agents::version.eq(1_i64),
            agents::config.eq("{}"),
            agents::inserted_at.eq(now),
            agents::updated_at.eq(now),
        ))
        .execute(&mut lab.db.raw())
        .unwrap();
    agent
}

/// A machine of the lab's agent that is up.
async fn machine(lab: &Lab, mode: MachineMode, runtime: Runtime) -> MachineId {
    let mut launch = lab.new_launch(mode, None);
    launch.machine.runtime = runtime;
    launch.conversation.runtime = runtime;
    let machine = lab.store().launch(launch).await.unwrap().value.machine.id;
    lab.build(machine).await;
    machine
}

async fn home(lab: &Lab) -> MachineId {
    machine(lab, MachineMode::Persistent, Runtime::Claude).await
}

fn joins(lab: &Lab, machine: MachineId, agent: AgentId, runtime: Runtime) -> Attach {
    let mut attach = lab.new_attach(machine);
    attach.conversation.agent_id = agent;
    attach.conversation.runtime = runtime;
    attach
}

async fn join(lab: &Lab, machine: MachineId, agent: AgentId, runtime: Runtime) -> Result<ConversationView, StoreError> {
    let attach = joins(lab, machine, agent, runtime);
    lab.store().attach(attach).await.map(|committed| committed.value)
}

const MISMATCH: ErrorCode = ErrorCode::SandboxIdentityMismatch;

#[actix::test]
async fn rul_l_82_a_guest_joins_a_home_that_keeps_its_own_labels() {
    for lab in Lab::all().await {
        let home = home(&lab).await;
        let guest = agent(&lab, Runtime::Codex);
        let view = join(&lab, home, guest, Runtime::Codex).await.unwrap();
        assert_eq!(view.conversation.status, ConversationStatus::Idle);
        assert_eq!(view.conversation.machine_id, home);
        let row = lab.machine(home).await;
        assert_eq!(
            (row.agent_id, row.runtime.as_deref()),
            (Some(lab.agent), Some("claude"))
        );
        let found = lab
            .store()
            .home_of(lab.account, guest, None, None, Runtime::Codex)
            .await;
        assert_eq!(found.unwrap(), None, "a home is never found for its guest");
        // The same guest agent again, and the home's own.
        join(&lab, home, guest, Runtime::Codex).await.unwrap();
        join(&lab, home, lab.agent, Runtime::Claude).await.unwrap();
    }
}

#[actix::test]
async fn rul_l_84_only_claude_and_codex_share_and_only_a_home() {
    for lab in Lab::all().await {
        let home = home(&lab).await;
        for runtime in [Runtime::Claude, Runtime::Acp, Runtime::Gemini, Runtime::Opencode] {
            let other = agent(&lab, runtime);
            assert_eq!(refused(join(&lab, home, other, runtime).await), MISMATCH, "{runtime}");
        }
        let guest = agent(&lab, Runtime::Codex);
        let ephemeral = machine(&lab, MachineMode::Ephemeral, Runtime::Claude).await;
        assert_eq!(refused(join(&lab, ephemeral, guest, Runtime::Codex).await), MISMATCH);
        let acp = machine(&lab, MachineMode::Persistent, Runtime::Acp).await;
        assert_eq!(refused(join(&lab, acp, guest, Runtime::Codex).await), MISMATCH);
    }
}

#[actix::test]
async fn r_115_rul_l_84_a_second_guest_agent_is_refused_until_a_reset() {
    for lab in Lab::all().await {
        let home = home(&lab).await;
        let (first, second) = (agent(&lab, Runtime::Codex), agent(&lab, Runtime::Codex));
        let race = (
            join(&lab, home, first, Runtime::Codex),
            join(&lab, home, second, Runtime::Codex),
        );
        let answers = futures_util::future::join(race.0, race.1).await;
        assert_ne!(answers.0.is_ok(), answers.1.is_ok(), "one of them");
        let lost = if answers.0.is_ok() { answers.1 } else { answers.0 };
        assert_eq!(refused(lost), MISMATCH);
    }
}

#[actix::test]
async fn r_116_rul_l_82_an_ended_and_a_deleted_guest_still_count() {
    for lab in Lab::all().await {
        let home = home(&lab).await;
        let (first, second) = (agent(&lab, Runtime::Codex), agent(&lab, Runtime::Codex));
        let guest = join(&lab, home, first, Runtime::Codex).await.unwrap().conversation.id;
        let store = lab.store();
        let ended = store.terminate(lab.account, guest, Actor::Api, None, lab.now()).await;
        assert_eq!(ended.unwrap().value.fenced, None, "a home stays when its guest ends");
        assert_eq!(
            refused(join(&lab, home, second, Runtime::Codex).await),
            MISMATCH,
            "ended"
        );
        let audit = lab.audit("conversation.deleted");
        store
            .delete_conversation(lab.account, guest, audit, lab.now())
            .await
            .unwrap();
        assert_eq!(
            refused(join(&lab, home, second, Runtime::Codex).await),
            MISMATCH,
            "deleted"
        );
        join(&lab, home, first, Runtime::Codex).await.unwrap();
        diesel::delete(agents::table.find(first.to_string()))
            .execute(&mut lab.db.raw())
            .unwrap();
        assert_eq!(
            refused(join(&lab, home, second, Runtime::Codex).await),
            MISMATCH,
            "and when its agent is gone"
        );
    }
}

#[actix::test]
async fn r_117_rul_l_85_a_sandbox_key_brings_no_other_agent() {
    for lab in Lab::all().await {
        let home = home(&lab).await;
        let guest = agent(&lab, Runtime::Codex);
        for channel in [None, Some("general".to_owned())] {
            let mut attach = joins(&lab, home, guest, Runtime::Codex);
            attach.scope = Scope::Sprite(id());
            attach.conversation.channel_id = channel;
            let answer = lab.store().attach(attach).await;
            let needs = Refusal::ScopeTooSmall(ErrorCode::GuestAttachRequiresFullScope);
            assert!(
                matches!(&answer, Err(StoreError::Refused(r)) if *r == needs),
                "{answer:?}"
            );
        }
        // What is not admissible is said first, to whoever asks.
        let other = agent(&lab, Runtime::Claude);
        let mut attach = joins(&lab, home, other, Runtime::Claude);
        attach.scope = Scope::Sprite(id());
        assert_eq!(refused(lab.store().attach(attach).await), MISMATCH);
        // Its own agent needs no more than its key.
        let mut own = joins(&lab, home, lab.agent, Runtime::Claude);
        own.scope = Scope::Sprite(id());
        lab.store().attach(own).await.unwrap();
    }
}

#[actix::test]
async fn rul_l_39_lasting_refusals_come_before_a_guests_and_the_lease_comes_last() {
    for lab in Lab::all().await {
        let home = home(&lab).await;
        let guest = agent(&lab, Runtime::Codex);
        let stranger = agent(&lab, Runtime::Claude);
        let held = lab.claim(home, Purpose::Confirm).await;
        assert_eq!(refused(join(&lab, home, stranger, Runtime::Claude).await), MISMATCH);
        let busy = ErrorCode::SandboxUnavailable;
        assert_eq!(refused(join(&lab, home, guest, Runtime::Codex).await), busy, "R-24");
        lab.fence(held.machine, DestroyReason::Reset).await.unwrap();
        let doomed = ErrorCode::SandboxResetPending;
        assert_eq!(refused(join(&lab, home, stranger, Runtime::Claude).await), doomed);

        let building = lab.new_launch(MachineMode::Ephemeral, None);
        let building = lab.store().launch(building).await.unwrap().value.machine.id;
        let answer = join(&lab, building, guest, Runtime::Codex).await;
        let not_yet = Refusal::NotAttachable(MachineStatus::Pending);
        assert!(
            matches!(&answer, Err(StoreError::Refused(r)) if *r == not_yet),
            "{answer:?}"
        );
    }
}
