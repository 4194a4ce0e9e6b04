//! How a turn, or the process behind it, comes to its end (lifecycle 6.7, RUL-25, T2 to T5).
//!
//! The end goes through the same queue as the output, behind all of it, and is one commit with the position past the
//! last line. Until that commit the conversation is neither busy nor free: a prompt that arrives waits for it.

use actix::prelude::*;
use tokio::time::Instant;

use super::endings::{Course, End, Standing, course};
use super::rows;
use super::{ConversationActor, Work};
use crate::domain::TurnId;
use crate::domain::process::Process;
use crate::domain::turn::{Ending, TurnStatus};
use crate::ports::meter::Measure;
use crate::ports::sandbox::{Capability, SandboxError};
use crate::ports::store::transcript::Effect;

impl ConversationActor {
    /// Sends the end of the open turn on its way.
    pub(super) fn end_turn(&mut self, mut ending: Ending, ctx: &mut Context<Self>) {
        let Some(turn) = self
            .turn
            .as_mut()
            .filter(|turn| !turn.ending && turn.id == ending.turn_id)
        else {
            return;
        };
        turn.ending = true;
        if ending.reply_text.is_none() {
            ending.reply_text = turn.reply.finish();
        }
        if let Some(timer) = self.permission_timer.take() {
            ctx.cancel_future(timer);
        }
        let (turn_id, status) = (ending.turn_id, ending.status);
        self.effect(Effect::TurnEnded(ending), ctx);
        self.flush(
            Some(Box::new(move |actor, _, ctx| actor.turn_over(turn_id, status, ctx))),
            ctx,
        );
    }

    /// The end is durable.
    pub(super) fn turn_over(&mut self, turn_id: TurnId, status: TurnStatus, ctx: &mut Context<Self>) {
        let Some(turn) = self.turn.take_if(|turn| turn.id == turn_id) else {
            return;
        };
        self.window = None;
        self.last_active = self.now();
        self.record_ended(ctx);
        if let (Some(bound), Some(began)) = (&self.bound, turn.began) {
            self.world.meter.record(Measure::TurnCompleted {
                runtime: bound.conversation.runtime,
                status,
                provider: bound.machine.provider,
                took: began.elapsed(),
            });
        }
        if matches!(self.work, Some(Work::Opening | Work::Reattaching)) {
            self.work = None;
        }
        self.next_prompt(ctx);
    }

    /// The process ended with this code; everything that it said has arrived (F1).
    pub(super) fn exited(&mut self, code: i64, ctx: &mut Context<Self>) {
        self.settle_backlog(ctx);
        if let Some(connection) = self.connection.as_mut() {
            let steps = connection.peer.end_of_output(Instant::now());
            self.perform(steps, ctx);
        }
        self.take_stderr(true);
        self.flush(None, ctx);
        let standing = self.standing();
        let Some(connection) = self.connection.take() else {
            return; // the last line was a failure: the connection is being retired already
        };
        if let Some(alarm) = connection.alarm {
            ctx.cancel_future(alarm);
        }
        self.ended.push(connection.process_id);
        if self.turn.is_none() {
            tracing::info!(conversation.id = %self.id, code, "the agent's process ended between two turns");
            self.push_row(rows::connection_lost(code));
            self.flush(None, ctx);
            return self.record_ended(ctx);
        }
        self.follow(standing, End::Exit(code), ctx);
        if self.turn.as_ref().is_some_and(|turn| !turn.ending) {
            self.record_ended(ctx); // the turn goes on with another process
        }
    }

    /// Records the ends of processes. After the end of their turn: a crash in between must still find the process whose
    /// replay tells how the turn ended.
    fn record_ended(&mut self, ctx: &mut Context<Self>) {
        for process_id in std::mem::take(&mut self.ended) {
            let (store, now) = (self.world.store.clone(), self.now());
            let ended = async move { store.end_process(process_id, now).await };
            self.run(ctx, ended, |actor, answer, _| {
                if let Err(error) = answer {
                    tracing::warn!(conversation.id = %actor.id, %error, "a process's end was not recorded");
                }
            });
        }
    }

    /// The attachment ended without a verdict of the process, which may live on (RUL-L-40).
    pub(super) fn attachment_lost(&mut self, error: &SandboxError, ctx: &mut Context<Self>) {
        let standing = self.standing();
        let Some(process) = self.detach(ctx) else { return };
        tracing::info!(conversation.id = %self.id, class = error.class(), "the attachment to the agent ended");
        match (&self.turn, standing) {
            (Some(turn), Some(held)) if !turn.ending => match course(held, End::Lost) {
                Course::Reattach => self.take_back(Some(process), ctx),
                _ => {
                    self.abandon(process, ctx);
                    self.follow(standing, End::Lost, ctx);
                }
            },
            _ => self.abandon(process, ctx), // idle: the next prompt starts a new process, after this one's end
        }
    }

    /// Drops the local attachment, if there is one, and says what it was attached to.
    pub(super) fn detach(&mut self, ctx: &mut Context<Self>) -> Option<Process> {
        let connection = self.connection.take()?;
        self.backlog.clear(); // positions have not moved past it: a replay brings it again
        if let Some(alarm) = connection.alarm {
            ctx.cancel_future(alarm);
        }
        let bound = self.bound.as_ref()?;
        let process = Process {
            id: connection.process_id,
            account_id: bound.conversation.account_id,
            conversation_id: self.id,
            machine_id: bound.machine.id,
            spawn_id: connection.spawn_id,
            session_id: Some(connection.command.session_id.clone()),
            stdout: connection.stdout.position(),
            stderr: connection.stderr.position(),
            stop_requested: false,
            ended_at: None,
            inserted_at: self.now(),
        };
        self.drop_command(connection.command, ctx);
        Some(process)
    }

    /// Drops whatever attachment there is; the process goes on.
    pub(super) fn drop_attachment(&mut self, ctx: &mut Context<Self>) {
        let _ = self.detach(ctx);
    }

    fn drop_command(&self, command: crate::ports::sandbox::Command, _: &mut Context<Self>) {
        if let Ok(adapter) = self.world.adapters.get(command.provider).cloned() {
            // Not a child of this actor: it may be stopping, and a dropped attachment must really be dropped.
            actix::spawn(async move { adapter.stop_command(&command).await });
        }
    }

    fn standing(&self) -> Option<Standing> {
        let (turn, connection) = (self.turn.as_ref()?, self.connection.as_ref()?);
        let can_attach = self
            .world
            .adapters
            .get(connection.command.provider)
            .is_ok_and(|adapter| adapter.capabilities().contains(&Capability::Attach));
        Some(Standing {
            prompt_written: turn.acp_prompt_id.is_some() || (connection.peer.prompt_was_written() && !turn.reused),
            is_untouched: turn.reused && connection.doubtful.is_none(),
            has_spoken: connection.has_spoken,
            relaunched: turn.relaunched,
            can_attach,
        })
    }

    /// What follows for the turn.
    fn follow(&mut self, standing: Option<Standing>, end: End, ctx: &mut Context<Self>) {
        let (Some(turn), Some(standing)) = (self.turn.as_mut().filter(|turn| !turn.ending), standing) else {
            return;
        };
        let turn_id = turn.id;
        match course(standing, end) {
            Course::Over(verdict) => {
                let ending = verdict.ending(turn_id, self.now());
                self.end_turn(ending, ctx);
            }
            Course::SpawnFresh => {
                turn.reused = false;
                self.spawn_fresh(ctx);
            }
            Course::Relaunch(signal) => {
                turn.relaunched = true;
                self.push_row(rows::session(
                    Some(turn_id),
                    "restarted",
                    Some("adapter_crashed"),
                    Some(signal),
                ));
                self.flush(None, ctx);
                self.spawn_fresh(ctx);
            }
            Course::Reattach => {} // only from a lost attachment, which has the process in hand
        }
    }
}
