//! Turns: admission, endings, interrupts, permission answers, processes and what the sweeps look for.
//!
//! Every verb here is one transaction. Locks: machine, conversation, process, turn (RUL-L-9); endings that touch no
//! machine start at the conversation. Follows lifecycle 2.6, 6.2, 6.7 to 6.10 and RUL-3 to 7, 27, 34 to 37, 56.

pub mod admission;
mod detached;
pub mod ending;
pub mod permissions;
pub mod processes;
pub mod rows;
pub mod stuck;
mod sweeps;

use std::time::Duration;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::conversation::ConversationEvent;
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::process::Process;
use fountain_actors::domain::turn::{Ending, OrphanReason, PendingPermission, PromptImage, Turn, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::turns::{Admit, Adoptable, Interrupted, QueueTurn, Serving, TurnStore};
use fountain_actors::ports::store::{Answer, Committed};

use super::SqlStore;
use super::backend::{Access, Db, Fault};
use super::conversations::rows as conversations;
use super::events::Outbox;

/// Writes what was announced, and answers it with the result.
pub(super) fn commit<T>(db: &mut Db, value: T, outbox: Outbox) -> Result<Committed<T>, Fault> {
    let cursors = outbox.write(db)?;
    Ok(Committed { value, cursors })
}

impl TurnStore for SqlStore {
    fn start_server(&self, conversation: ConversationId, now: Moment) -> Answer<'_, Serving> {
        self.answer("turn.start_server", Access::Write, move |db| {
            admission::start_server(db, conversation, now)
        })
    }

    fn admit_turn(&self, admit: Admit) -> Answer<'_, Committed<Turn>> {
        self.answer("turn.admit", Access::Write, move |db| {
            let (turn, outbox) = admission::admit(db, admit)?;
            commit(db, turn, outbox)
        })
    }

    fn queue_turn(&self, queue: QueueTurn) -> Answer<'_, Committed<(Turn, Machine)>> {
        self.answer("turn.queue", Access::Write, move |db| {
            let (turn, machine, outbox) = admission::queue(db, queue)?;
            commit(db, (turn, machine), outbox)
        })
    }

    fn open_pending_turn(
        &self,
        conversation: ConversationId,
        server_epoch: ServerEpoch,
        machine: MachineId,
        turn: TurnId,
        spawn_id: SpawnId,
        now: Moment,
    ) -> Answer<'_, Committed<Turn>> {
        self.answer("turn.open_pending", Access::Write, move |db| {
            let (turn, outbox) = admission::open_pending(db, conversation, server_epoch, machine, turn, spawn_id, now)?;
            commit(db, turn, outbox)
        })
    }

    fn close_turn(
        &self,
        conversation: ConversationId,
        ending: Ending,
        binding: Option<MachineId>,
        fail_conversation: bool,
    ) -> Answer<'_, Committed<Option<Turn>>> {
        self.answer("turn.close", Access::Write, move |db| {
            let (turn, outbox) = ending::close(db, conversation, ending, binding, fail_conversation)?;
            commit(db, turn, outbox)
        })
    }

    fn settle_idle(&self, conversation: ConversationId, machine: MachineId, now: Moment) -> Answer<'_, ()> {
        self.answer("turn.settle_idle", Access::Write, move |db| {
            admission::settle_pending(db, conversation, machine, ConversationEvent::BuildFinished, now)
        })
    }

    fn fail_pending(&self, conversation: ConversationId, machine: MachineId, now: Moment) -> Answer<'_, ()> {
        self.answer("turn.fail_pending", Access::Write, move |db| {
            admission::settle_pending(db, conversation, machine, ConversationEvent::BuildFailed, now)
        })
    }

    fn interrupt(
        &self,
        account: AccountId,
        conversation: ConversationId,
        audit: NewAudit,
        now: Moment,
    ) -> Answer<'_, Committed<Interrupted>> {
        self.answer("turn.interrupt", Access::Write, move |db| {
            let (interrupted, outbox) = interrupt(db, account, conversation, audit, now)?;
            commit(db, interrupted, outbox)
        })
    }

    fn orphan_running(
        &self,
        conversation: ConversationId,
        binding: Option<MachineId>,
        reason: OrphanReason,
        now: Moment,
    ) -> Answer<'_, Committed<Option<Turn>>> {
        self.answer("turn.orphan_running", Access::Write, move |db| {
            let (turn, outbox) = ending::orphan(db, conversation, binding, reason, now)?;
            commit(db, turn, outbox)
        })
    }

    fn turns(&self, account: AccountId, conversation: ConversationId) -> Answer<'_, Vec<Turn>> {
        self.answer("turn.list", Access::Snapshot, move |db| {
            conversations::of_account(db, account, conversation)?;
            rows::all(db, conversation)
        })
    }

    fn prompt_images(&self, turn: TurnId) -> Answer<'_, Vec<PromptImage>> {
        self.answer("turn.images", Access::Read, move |db| rows::images(db, turn))
    }

    fn adoptable(&self, limit: i64) -> Answer<'_, Vec<Adoptable>> {
        self.answer("turn.adoptable", Access::Read, move |db| sweeps::adoptable(db, limit))
    }

    fn open_reconnect_window(
        &self,
        turn: TurnId,
        now: Moment,
        until: Moment,
        hard_limit: Duration,
    ) -> Answer<'_, Moment> {
        self.answer("turn.open_window", Access::Write, move |db| {
            sweeps::open_window(db, turn, now, until, hard_limit)
        })
    }

    fn close_reconnect_window(&self, turn: TurnId) -> Answer<'_, ()> {
        self.answer("turn.close_window", Access::Write, move |db| {
            sweeps::close_window(db, turn)
        })
    }

    fn overdue_turns(&self, now: Moment, limit: i64) -> Answer<'_, Vec<Adoptable>> {
        self.answer("turn.overdue", Access::Snapshot, move |db| {
            sweeps::overdue(db, now, limit)
        })
    }

    fn answer_permission(
        &self,
        account: AccountId,
        conversation: ConversationId,
        request_id: String,
        option_id: String,
        actor: Actor,
        now: Moment,
    ) -> Answer<'_, (TurnId, PendingPermission)> {
        self.answer("permission.answer", Access::Write, move |db| {
            permissions::answer(db, account, conversation, &request_id, &option_id, actor, now)
        })
    }

    fn expire_permission(
        &self,
        turn: TurnId,
        request_id: String,
        now: Moment,
    ) -> Answer<'_, Option<PendingPermission>> {
        self.answer("permission.expire", Access::Write, move |db| {
            permissions::expire(db, turn, &request_id, now)
        })
    }

    fn expired_permissions(&self, now: Moment, limit: i64) -> Answer<'_, Vec<(ConversationId, TurnId, String)>> {
        self.answer("permission.expired", Access::Read, move |db| {
            permissions::expired(db, now, limit)
        })
    }

    fn open_process(&self, process: Process, server_epoch: ServerEpoch) -> Answer<'_, ()> {
        self.answer("process.open", Access::Write, move |db| {
            processes::open(db, &process, server_epoch)
        })
    }

    fn bind_session(&self, process: ProcessId, session_id: String) -> Answer<'_, ()> {
        self.answer("process.bind_session", Access::Write, move |db| {
            processes::bind_session(db, process, &session_id)
        })
    }

    fn request_stop(&self, process: ProcessId) -> Answer<'_, ()> {
        self.answer("process.request_stop", Access::Write, move |db| {
            processes::request_stop(db, process)
        })
    }

    fn end_process(&self, process: ProcessId, now: Moment) -> Answer<'_, ()> {
        self.answer("process.end", Access::Write, move |db| processes::end(db, process, now))
    }

    fn processes_to_stop(&self, machine: MachineId) -> Answer<'_, Vec<Process>> {
        self.answer("process.to_stop", Access::Read, move |db| {
            processes::to_stop(db, machine)
        })
    }
}

/// The user's interrupt: no machine is touched, so a machine mid-operation does not refuse it (door matrix).
fn interrupt(
    db: &mut Db,
    account: AccountId,
    id: ConversationId,
    audit: NewAudit,
    now: Moment,
) -> Result<(Interrupted, Outbox), Fault> {
    conversations::of_account(db, account, id)?;
    let mut conversation = conversations::require(db, id)?;
    if conversation.status.is_terminal() {
        return Err(ErrorCode::NotRunning.into());
    }
    let idle = || Fault::from(ErrorCode::NoTurnRunning);
    let turn = rows::open(db, id)?.ok_or_else(idle)?;
    // The process first: records are locked before turns are written (RUL-L-9).
    let process = match turn.status {
        TurnStatus::Running => {
            let live = processes::live_of(db, id)?;
            let own = live.iter().find(|process| Some(process.spawn_id) == turn.spawn_id);
            own.or(live.first()).cloned()
        }
        _ => None,
    };
    let process = match process {
        Some(mut process) => {
            processes::request_stop(db, process.id)?;
            process.stop_requested = true;
            Some(process)
        }
        None => None,
    };
    let mut outbox = Outbox::default();
    let ending = Ending::interrupted(turn.id, now);
    let turn = ending::end(db, &mut outbox, &mut conversation, turn, ending)?.ok_or_else(idle)?;
    conversations::save(db, &conversation)?;
    outbox.audit(audit, now);
    Ok((Interrupted { turn, process }, outbox))
}
