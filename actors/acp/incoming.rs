//! One line of the agent, from its bytes to what is reported and answered (runtimes 10.2, 10.4).
//!
//! Whatever a line is, it ends in a report of its range or in one `Passed`: the rule of RUL-41 is kept in one place,
//! [`Peer::cut`]. A request of the agent is answered here and now, or held by `permission`; none is left open.
//!
//! A turn remembers one open permission request. An agent that asks a second question meanwhile is not read further
//! until the first is settled: what it wrote stays here, its position does not move, and a restart replays it.

use serde_json::Value;
use tokio::time::Instant;

use super::codec::{Cut, Place};
use super::failure;
use super::message::{self, Incoming, REQUEST_CANCELLED, RpcError};
use super::peer::{Call, Peer, Pending, State, write};
use super::permission::{self, Request, Ruling};
use super::report::{About, Effect, HeldPermission, LineKind, LineStream, Report, SessionMethod, StopReason};
use super::{updates, usage};
use crate::domain::event::ByteRange;
use crate::domain::policy::Verdict;

/// What a person reads above the pieces of a line that was too long (RUL-55).
const OVERLONG_MARK: &str = "[a line longer than 16 MiB follows in pieces]\n";

impl Peer {
    pub(super) fn cut(&mut self, cut: Cut, now: Instant, out: &mut Vec<Effect>) {
        if !self.deferred.is_empty() {
            return self.deferred.push_back((cut, now));
        }
        let mark = out.len();
        let range = match cut {
            Cut::Line { text, range } => {
                self.line(text, range, now, out);
                range
            }
            Cut::Piece { text, range, place } => {
                let text = match place {
                    Place::First => format!("{OVERLONG_MARK}{text}"),
                    Place::Middle => text,
                    Place::Last => text + "\n",
                };
                noise(text, range, out);
                range
            }
        };
        if !self.deferred.is_empty() {
            return; // a second question: not read yet
        }
        // The rule of RUL-41 holds for every line, whatever its handler did.
        if !out
            .iter()
            .skip(mark)
            .any(|effect| matches!(effect, Effect::Report(report) if report.range() == Some(range)))
        {
            out.push(Effect::Report(Report::Passed { to: range.to }));
        }
    }

    /// Reads on once the question that stopped the reading is settled, or nothing can be answered any more.
    pub(super) fn resume(&mut self, out: &mut Vec<Effect>) {
        if self.can_write() && !self.held.is_empty() {
            return;
        }
        for (cut, now) in std::mem::take(&mut self.deferred) {
            self.cut(cut, now, out);
        }
    }

    fn line(&mut self, text: String, range: ByteRange, now: Instant, out: &mut Vec<Effect>) {
        if let State::Draining { quiet, .. } = &mut self.state {
            *quiet = now + super::session::REPLAY_QUIET;
        }
        match message::read(&text) {
            Incoming::Blank => {}
            Incoming::Noise => noise(text + "\n", range, out),
            Incoming::Request {
                id,
                method,
                params,
                whole,
            } if method == "session/request_permission" => {
                let request = Request {
                    id: &id,
                    params: &params,
                    whole,
                    range,
                };
                self.permission(request, text, now, out);
            }
            Incoming::Request { id, method, .. } => {
                if self.can_write() {
                    write(message::method_not_found(&id, &method), About::Automatic, out);
                }
            }
            Incoming::Notification { method, params, whole } if method == "session/update" => {
                if self.is_ours(&params) && !self.discards_replay() {
                    self.update(text, &params, whole, range, out);
                }
            }
            Incoming::Notification { .. } => {}
            Incoming::Response { id, answer } => {
                if let Some(pending) = self.pending.take_if(|pending| id.as_i64() == Some(pending.id)) {
                    self.answered(pending.call, answer, range, now, out);
                }
            }
        }
    }

    /// P54: on a shared machine, or with a confused agent, a message may belong to another conversation.
    fn is_ours(&self, params: &Value) -> bool {
        match (params.get("sessionId").and_then(Value::as_str), &self.session) {
            (Some(named), Some(ours)) => named == ours,
            _ => true,
        }
    }

    fn discards_replay(&self) -> bool {
        let loading = |pending: &Pending| pending.call == Call::Session(SessionMethod::Load);
        matches!(self.state, State::Draining { .. }) || self.pending.as_ref().is_some_and(loading)
    }

    fn update(&mut self, text: String, params: &Value, whole: Value, range: ByteRange, out: &mut Vec<Effect>) {
        let reading = updates::read(params, range);
        for note in reading.notes {
            if let Report::ConfigOptions { options } = &note {
                self.offer.options = Some(options.clone());
            }
            out.push(Effect::Report(note));
        }
        if let Some(kind) = reading.line {
            let text = self
                .plans
                .annotate(whole)
                .map_or_else(|| text + "\n", |annotated| format!("{annotated}\n"));
            out.push(Effect::Report(Report::Line {
                stream: LineStream::Acp,
                text,
                kind,
                range,
            }));
        }
    }

    fn permission(&mut self, request: Request<'_>, text: String, now: Instant, out: &mut Vec<Effect>) {
        if !self.can_write() || self.held.has_raw(request.id) {
            return;
        }
        if !self.is_ours(request.params) || self.cancelling {
            return write(
                message::result(request.id, &permission::outcome(None)),
                About::Automatic,
                out,
            );
        }
        let (id, range) = (request.id, request.range);
        if !self.held.is_empty() && permission::verdict(&request, &self.turn.policy) == Verdict::Ask {
            return self.deferred.push_back((Cut::Line { text, range }, now));
        }
        match permission::rule(
            request,
            &self.turn.policy,
            self.config.ask_ceiling,
            &mut self.config.mint,
        ) {
            Ruling::Answer { result, denied, tool } => {
                write(message::result(id, &result), About::Automatic, out);
                if denied {
                    out.push(Effect::Report(Report::PermissionDenied { tool, range }));
                }
            }
            Ruling::Ask(ask) => {
                self.held.push(HeldPermission::from(&*ask));
                out.push(Effect::Report(Report::PermissionAsk(ask)));
            }
        }
    }

    /// The answer to `session/prompt`.
    pub(super) fn prompt_answered(&mut self, answer: Result<Value, RpcError>, range: ByteRange, out: &mut Vec<Effect>) {
        let (stop_reason, usage) = match answer {
            Ok(result) => (StopReason::of_result(&result), usage::of_result(&result)),
            Err(error) if error.code() == Some(REQUEST_CANCELLED) => (StopReason::Cancelled, None),
            Err(error) => return self.fail(failure::of_prompt(&error), Some(range), out),
        };
        let unanswered = if stop_reason == StopReason::Waiting {
            self.held.ids()
        } else {
            self.release_held(out)
        };
        self.state = State::Idle;
        self.cancelling = false;
        out.push(Effect::Report(Report::Done {
            stop_reason,
            usage,
            unanswered,
            range,
        }));
    }
}

fn noise(text: String, range: ByteRange, out: &mut Vec<Effect>) {
    out.push(Effect::Report(Report::Line {
        stream: LineStream::Stdout,
        text,
        kind: LineKind::Noise,
        range,
    }));
}
