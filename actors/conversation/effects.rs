//! What the peer wants done: lines written, reports turned into rows and effects (runtimes 10.3).
//!
//! One write is out at a time, in the peer's order. What an acknowledged write means is decided here: the prompt's id is
//! committed right after its line was taken, ahead of any output (RUL-34), and a permission is done when its answer was
//! taken (RUL-56). A write that fails is no verdict about the process: the stream's end is, and it is given a moment.

use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use tokio::time::Instant;

use super::ConversationActor;
use super::rows;
use crate::acp::updates::tidy_title;
use crate::acp::{About, Effect as Step, Failure, LineKind, LineStream, Report, StopReason};
use crate::domain::account::{Actor as By, NewAudit};
use crate::domain::event::{ByteRange, RawStream, Stream};
use crate::domain::turn::{Ending, Usage};
use crate::ports::sandbox::{CLOSED_BEFORE_EXIT, SandboxError};
use crate::ports::store::transcript::Effect;

/// How long after a failed write the stream may take to say how the process ended.
const VERDICT_WAIT: Duration = Duration::from_secs(5);

impl ConversationActor {
    /// Does what the peer asked for, in order.
    pub(super) fn perform(&mut self, steps: Vec<Step>, ctx: &mut Context<Self>) {
        for step in steps {
            match step {
                Step::Write(outgoing) => {
                    if let Some(connection) = self.connection.as_mut().filter(|connection| !connection.input_over) {
                        connection.outbox.push_back(outgoing);
                    }
                }
                Step::Report(report) => self.report(report, ctx),
                Step::Arm(at) => self.arm(at, ctx),
                Step::CloseInput => {
                    if let Some(connection) = self.connection.as_mut() {
                        connection.close_input = true;
                    }
                }
            }
        }
        self.write_next(ctx);
    }

    fn arm(&mut self, at: Option<Instant>, ctx: &mut Context<Self>) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        if let Some(alarm) = connection.alarm.take() {
            ctx.cancel_future(alarm);
        }
        let Some(at) = at else { return };
        let number = connection.number;
        let alarm = ctx.run_later(at.saturating_duration_since(Instant::now()), move |actor, ctx| {
            let Some(connection) = actor
                .connection
                .as_mut()
                .filter(|connection| connection.number == number)
            else {
                return;
            };
            connection.alarm = None;
            let steps = connection.peer.tick(Instant::now());
            actor.perform(steps, ctx);
            actor.flush(None, ctx);
        });
        connection.alarm = Some(alarm);
    }

    /// Writes what is next, if nothing is being written.
    pub(super) fn write_next(&mut self, ctx: &mut Context<Self>) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        if connection.writing || connection.input_over {
            return;
        }
        let (number, command) = (connection.number, connection.command.clone());
        let Ok(adapter) = self.world.adapters.get(command.provider).cloned() else {
            return;
        };
        match connection.outbox.pop_front() {
            Some(outgoing) => {
                connection.writing = true;
                if let About::Prompt { rpc_id } = outgoing.about {
                    connection.prompting = true;
                    connection.doubtful = Some(rpc_id);
                }
                let (line, about) = (Bytes::from(outgoing.line), outgoing.about);
                let write = async move { adapter.write_stdin(&command, line).await };
                self.run(ctx, write, move |actor, answer, ctx| {
                    actor.wrote(number, about, answer, ctx)
                });
            }
            None if connection.close_input => {
                connection.input_over = true;
                let close = async move { adapter.close_stdin(&command).await };
                self.run(ctx, close, |_, _, _| {}); // idempotent; the stream tells how the process takes it
            }
            None => {}
        }
    }

    fn wrote(&mut self, number: u64, about: About, answer: Result<(), SandboxError>, ctx: &mut Context<Self>) {
        let Some(connection) = self
            .connection
            .as_mut()
            .filter(|connection| connection.number == number)
        else {
            return;
        };
        connection.writing = false;
        if matches!(about, About::Prompt { .. }) {
            connection.prompting = false;
            let is_refused = |error: &SandboxError| error.is_refusal() || matches!(error, SandboxError::CommandExited);
            if answer.as_ref().map_or_else(is_refused, |()| true) {
                connection.doubtful = None;
            }
        }
        let stash = std::mem::take(&mut connection.stash);
        match answer {
            Ok(()) => self.acknowledged(about, ctx),
            Err(error) => {
                tracing::debug!(conversation.id = %self.id, class = error.class(), "the agent's input took no line");
                connection.input_over = true;
                connection.outbox.clear();
                ctx.run_later(VERDICT_WAIT, move |actor, ctx| actor.no_verdict_came(number, ctx));
            }
        }
        self.take_frames(stash, ctx);
        self.write_next(ctx);
        self.pump(ctx);
    }

    fn no_verdict_came(&mut self, number: u64, ctx: &mut Context<Self>) {
        if self
            .connection
            .as_ref()
            .is_some_and(|connection| connection.number == number)
        {
            self.attachment_lost(&SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into()), ctx);
        }
    }

    fn acknowledged(&mut self, about: About, ctx: &mut Context<Self>) {
        match about {
            About::Prompt { rpc_id } => {
                let Some(turn) = self.turn.as_mut().filter(|turn| !turn.ending) else {
                    return;
                };
                turn.acp_prompt_id = Some(rpc_id);
                let (turn_id, reused) = (turn.id, !turn.announced);
                turn.announced = true;
                let sent = Effect::PromptSent {
                    turn_id,
                    acp_prompt_id: rpc_id,
                    reused,
                };
                self.effect(sent, ctx);
                self.flush(None, ctx);
            }
            About::Permission { request_id } => self.permission_delivered(&request_id, ctx),
            About::Setup(_) | About::Cancel | About::Automatic => {}
        }
    }

    /// Takes a report, unless it stands behind a permission request that has to wait for an earlier one.
    fn report(&mut self, report: Report, ctx: &mut Context<Self>) {
        let is_end = matches!(report, Report::Done { .. } | Report::Failed { .. });
        if is_end {
            self.settle_backlog(ctx);
            return self.take_report(report, ctx);
        }
        let asks = matches!(report, Report::PermissionAsk(_));
        let is_open = self
            .turn
            .as_ref()
            .is_some_and(|turn| !turn.ending && turn.permission.is_some());
        if !self.backlog.is_empty() || (asks && is_open) {
            return self.backlog.push_back(report);
        }
        self.take_report(report, ctx);
    }

    /// The prompt is over, or its process is, and every request with it: nothing is held back any more.
    pub(super) fn settle_backlog(&mut self, ctx: &mut Context<Self>) {
        for held_back in std::mem::take(&mut self.backlog) {
            match held_back {
                Report::PermissionAsk(ask) => self.output_row(Stream::Acp, RawStream::Stdout, &ask.line, ask.range),
                other => self.take_report(other, ctx),
            }
        }
    }

    /// The open request was settled: what stood behind it goes on, up to the next one.
    pub(super) fn take_backlog(&mut self, ctx: &mut Context<Self>) {
        for report in std::mem::take(&mut self.backlog) {
            self.report(report, ctx);
        }
        self.flush(None, ctx);
    }

    fn take_report(&mut self, report: Report, ctx: &mut Context<Self>) {
        match report {
            Report::Line {
                stream,
                text,
                kind,
                range,
            } => self.line(stream, &text, kind, range),
            Report::Passed { to } => self.pass(to),
            Report::Session { id, range, .. } => {
                self.cover(RawStream::Stdout, range.to);
                if self.knows_session(&id) {
                    return;
                }
                if let Some(bound) = self.bound.as_mut() {
                    bound.conversation.runtime_session_id = Some(id.clone());
                }
                self.effect(Effect::SessionChosen { session_id: id }, ctx);
            }
            Report::SessionGone { detail, range } => {
                self.cover(RawStream::Stdout, range.to);
                let detail = self.redactor.clean(&detail).into_owned();
                self.forget_session("session_gone", Some(&detail), ctx);
            }
            Report::ModelSelected {
                requested: Some(requested),
                effective,
                source,
                range,
            } => {
                if let Some(range) = range {
                    self.cover(RawStream::Stdout, range.to);
                }
                let Some(turn_id) = self.open_turn_id() else { return };
                let selection = rows::selection(&Some(requested), &effective, source.as_str());
                self.push_row(rows::model_selected(turn_id, &selection));
                self.effect(Effect::ModelSelected { turn_id, selection }, ctx);
            }
            // Nothing was asked for: what the agent runs by itself costs no commit on the warm path (RUL-33).
            Report::ModelSelected { range, .. } | Report::ConfigSelected { range, .. } => {
                self.pass(range.map_or(0, |range| range.to));
            }
            Report::PermissionAsk(ask) => self.permission_asked(&ask, ctx),
            Report::PermissionDenied { tool, range } => {
                self.pass(range.to);
                self.audit_permission("conversation.permission.denied", tool.as_deref(), "policy", ctx);
            }
            Report::Labels { labels, range } => {
                self.pass(range.to);
                self.stamp_labels(labels, ctx);
            }
            Report::Title { title, range } => {
                self.cover(RawStream::Stdout, range.to);
                let title = title.and_then(|title| tidy_title(&self.redactor.clean(&title)));
                self.effect(Effect::TitleProposed(title), ctx);
            }
            Report::CycleEnd { range, .. } => self.pass(range.to),
            Report::Done {
                stop_reason,
                usage,
                range,
                ..
            } => {
                self.believe_prompt(ctx);
                self.cover(RawStream::Stdout, range.to);
                self.answered(&stop_reason, usage, ctx);
            }
            Report::Failed { reason, range } => {
                if let Some(range) = range {
                    self.cover(RawStream::Stdout, range.to);
                }
                self.peer_failed(&reason, ctx);
            }
            Report::Handshake { .. }
            | Report::ConfigSkipped { .. }
            | Report::ConfigOptions { .. }
            | Report::PromptSent { .. } => {} // the acknowledged write counts, not the wish to write
        }
    }

    fn line(&mut self, stream: LineStream, text: &str, kind: LineKind, range: ByteRange) {
        if self.open_turn_id().is_none() && kind == LineKind::Metadata {
            return self.pass(range.to); // metadata after a turn belongs to nothing
        }
        let stream = match stream {
            LineStream::Acp => Stream::Acp,
            LineStream::Stdout => Stream::Stdout,
        };
        self.output_row(stream, RawStream::Stdout, text, range);
    }

    /// Nothing of the line has to be remembered.
    fn pass(&mut self, to: i64) {
        if let Some(connection) = self.connection.as_mut() {
            connection.stdout.pass(to);
        }
    }

    fn knows_session(&self, id: &str) -> bool {
        self.bound
            .as_ref()
            .is_some_and(|bound| bound.conversation.runtime_session_id.as_deref() == Some(id))
    }

    /// The agent's session is gone, or its disk is.
    pub(super) fn forget_session(&mut self, reason: &str, detail: Option<&str>, ctx: &mut Context<Self>) {
        if let Some(bound) = self.bound.as_mut() {
            bound.conversation.runtime_session_id = None;
        }
        let turn_id = self.open_turn_id();
        self.push_row(rows::session(turn_id, "reset", Some(reason), detail));
        self.effect(Effect::SessionForgotten, ctx);
    }

    /// An answer proves that the prompt had arrived, whatever became of its write. Committed before the answer's line is
    /// covered: the position may pass that line only together with the end of the turn.
    fn believe_prompt(&mut self, ctx: &mut Context<Self>) {
        let doubted = self
            .connection
            .as_mut()
            .and_then(|connection| connection.doubtful.take());
        if let Some(rpc_id) = doubted {
            self.acknowledged(About::Prompt { rpc_id }, ctx);
        }
    }

    /// The agent answered its prompt (lifecycle 6.7).
    fn answered(&mut self, stop_reason: &StopReason, usage: Option<Usage>, ctx: &mut Context<Self>) {
        let Some(turn_id) = self.open_turn_id() else { return };
        let at = self.now();
        let mut ending = if stop_reason.completes() {
            Ending::completed(turn_id, stop_reason.as_str(), at)
        } else {
            let mut failed = Ending::failed(turn_id, "", at);
            failed.reason = None;
            failed.stop_reason = Some(self.redactor.clean(stop_reason.as_str()).into_owned());
            failed
        };
        ending.usage = usage;
        self.end_turn(ending, ctx);
        if *stop_reason == StopReason::Waiting {
            // its peer would take the next request of the same id for a replay.
            self.retire_connection(ctx);
        }
    }

    /// The connection is of no more use, and so is its turn.
    fn peer_failed(&mut self, failure: &Failure, ctx: &mut Context<Self>) {
        let message = self.redactor.clean(&failure.to_string()).into_owned();
        if let Some(turn_id) = self.open_turn_id() {
            if failure.is_about_the_model() {
                self.push_row(rows::model_failed(turn_id, failure, &message));
            }
            let mut ending = Ending::failed(turn_id, failure.code(), self.now());
            ending.message = Some(message);
            self.end_turn(ending, ctx);
        }
        self.retire_connection(ctx);
    }

    fn stamp_labels(&mut self, labels: std::collections::BTreeMap<String, String>, ctx: &mut Context<Self>) {
        let Some(account) = self.bound.as_ref().map(|bound| bound.conversation.account_id) else {
            return;
        };
        let clean = |text: String| self.redactor.clean(&text).into_owned();
        let changes = labels
            .into_iter()
            .map(|(key, value)| (clean(key), Some(clean(value))))
            .collect();
        let (store, id, now) = (self.world.store.clone(), self.id, self.now());
        let stamp = async move { store.merge_labels(account, id, changes, now).await };
        self.run(ctx, stamp, |actor, answer, _| {
            if let Err(error) = answer {
                tracing::warn!(conversation.id = %actor.id, %error, "the agent's labels were not taken");
            }
        });
    }

    /// An audit row about a permission: tool and verdict, nothing else (runtimes 8.2).
    pub(super) fn audit_permission(
        &mut self,
        action: &'static str,
        tool: Option<&str>,
        verdict: &'static str,
        ctx: &mut Context<Self>,
    ) {
        let Some(account) = self.bound.as_ref().map(|bound| bound.conversation.account_id) else {
            return;
        };
        let tool = tool.map(|tool| self.redactor.clean(tool).into_owned());
        let entry = NewAudit {
            account_id: Some(account),
            action,
            resource_type: "conversation",
            resource_id: Some(self.id.to_string()),
            actor: By::System("conversation"),
            request_ip: None,
            metadata: [("tool", tool.into()), ("verdict", verdict.into())].into(),
        };
        let (store, now) = (self.world.store.clone(), self.now());
        let audit = async move { store.audit(entry, now).await };
        self.run(ctx, audit, |actor, answer, _| match answer {
            Ok(committed) => committed.announce(&*actor.world.bus),
            Err(error) => tracing::warn!(conversation.id = %actor.id, %error, "an audit row was not written"),
        });
    }
}
