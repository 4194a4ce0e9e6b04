//! The ACP client as a pure state machine (runtimes 10, 14).
//!
//! No I/O, no clock, no randomness of its own: bytes, answers and the time come in, [`Effect`]s go out, so every
//! recorded conversation replays in a unit test. One peer speaks for one process: `New → setup (initialize,
//! authenticate, session, [replay drained], model, options) → prompting → idle → setup …`. `Failed` and `Closed` are
//! final for writing; reading goes on, because what the process still says is output.
//!
//! The peer decides nothing about turns, rows or timers of people: it reports. It must never wait, never panic on what
//! an agent wrote, and never leave a request of the agent unanswered while it can write.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use tokio::time::Instant;

use super::codec::{Cut, Splitter};
use super::config::{Attach, PeerConfig, PromptRefused, PromptRequest};
use super::failure::Failure;
use super::message;
use super::model::{ModelSetter, Offer};
use super::permission::{self, AnswerError, Held};
use super::plans::Plans;
use super::report::{About, Effect, HeldPermission, OptionValue, Outgoing, Report, SessionMethod};
use super::session::Capabilities;
use crate::domain::event::ByteRange;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    New,
    /// A call before the prompt is out.
    Setup,
    /// `session/load` was answered; what still comes is history until it is quiet.
    Draining {
        quiet: Instant,
        until: Instant,
    },
    Prompting,
    Idle,
    Failed,
    Closed,
}

/// The call that waits for its answer. There is never more than one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pending {
    pub id: i64,
    pub call: Call,
    pub deadline: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Initialize,
    Authenticate,
    Session(SessionMethod),
    SetModel(ModelSetter),
    SetOption(String, OptionValue),
    Prompt,
}

/// The peer. See the module.
pub struct Peer {
    pub(super) config: PeerConfig,
    pub(super) splitter: Splitter,
    pub(super) state: State,
    pub(super) pending: Option<Pending>,
    pub(super) next_id: i64,
    pub(super) session: Option<String>,
    /// `None` until `initialize` was answered, and after an attach.
    pub(super) capabilities: Option<Capabilities>,
    pub(super) authenticated: bool,
    pub(super) restarted_session: bool,
    pub(super) started: Option<Instant>,
    pub(super) offer: Offer,
    pub(super) turn: PromptRequest,
    pub(super) options_done: BTreeSet<String>,
    pub(super) options_applied: Vec<(String, OptionValue)>,
    pub(super) held: Held,
    pub(super) plans: Plans,
    /// Lines behind a second question, not read yet.
    pub(super) deferred: VecDeque<(Cut, Instant)>,
    /// The turn was asked to stop: its questions are answered `cancelled`.
    pub(super) cancelling: bool,
    /// The process's output has ended: it reads nothing either.
    output_ended: bool,
    prompt_written: bool,
    armed: Option<Instant>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prompts, options and buffered output stay out of logs.
        f.debug_struct("Peer")
            .field("state", &self.state)
            .field("next_id", &self.next_id)
            .finish_non_exhaustive()
    }
}

impl Peer {
    /// A peer for a fresh process. Nothing is written before the first [`Peer::prompt`].
    #[must_use]
    pub fn new(config: PeerConfig) -> Self {
        Self {
            session: config.session.clone(),
            config,
            splitter: Splitter::new(0),
            state: State::New,
            pending: None,
            next_id: 1,
            capabilities: None,
            authenticated: false,
            restarted_session: false,
            started: None,
            offer: Offer::default(),
            turn: PromptRequest::default(),
            options_done: BTreeSet::new(),
            options_applied: Vec::new(),
            held: Held::default(),
            plans: Plans::default(),
            deferred: VecDeque::new(),
            cancelling: false,
            output_ended: false,
            prompt_written: false,
            armed: None,
        }
    }

    /// A peer that joins a process in the middle of a prompt: no handshake, the answer to `prompt_id` ends the turn.
    #[must_use]
    pub fn attach(config: PeerConfig, attach: Attach) -> Self {
        let mut peer = Self::new(config);
        peer.splitter = if attach.has_record {
            Splitter::new(attach.from)
        } else {
            Splitter::joining(attach.from)
        };
        peer.state = State::Prompting;
        peer.pending = Some(Pending {
            id: attach.prompt_id,
            call: Call::Prompt,
            deadline: None,
        });
        peer.next_id = attach.prompt_id.saturating_add(1);
        peer.turn.policy = attach.policy;
        peer.held = Held::new(attach.held);
        peer.prompt_written = true;
        peer
    }

    /// Starts a turn: the handshake first on a fresh process, the model again on an idle one.
    ///
    /// # Errors
    /// [`PromptRefused`]; nothing was changed then.
    pub fn prompt(&mut self, request: PromptRequest, now: Instant) -> Result<Vec<Effect>, PromptRefused> {
        match self.state {
            State::New => {}
            State::Idle if self.capabilities.is_none() => {
                if !request.images.is_empty() || request.model.is_some() || !request.options.is_empty() {
                    return Err(PromptRefused::CapabilitiesUnknown);
                }
            }
            State::Idle => {}
            State::Failed | State::Closed => return Err(PromptRefused::Closed),
            State::Setup | State::Draining { .. } | State::Prompting => return Err(PromptRefused::NotIdle),
        }
        self.turn = request;
        self.options_done.clear();
        self.options_applied.clear();
        self.prompt_written = false;
        self.cancelling = false;
        let mut out = Vec::new();
        if self.state == State::New {
            self.initialize(now, &mut out);
        } else if self.takes_the_images(None, &mut out) {
            self.select_model(None, now, &mut out);
        }
        Ok(self.finish(out))
    }

    /// Takes the next bytes of the process's stdout.
    pub fn feed(&mut self, bytes: &[u8], now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        for cut in self.splitter.push(bytes) {
            self.cut(cut, now, &mut out);
        }
        self.finish(out)
    }

    /// The process's stdout has ended; a last line without a newline counts.
    pub fn end_of_output(&mut self, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        self.output_ended = true;
        for cut in self.splitter.finish() {
            self.cut(cut, now, &mut out);
        }
        self.finish(out)
    }

    /// The time that [`Effect::Arm`] asked for has come. Harmless at any other time; an alarm that came too early is
    /// asked for again.
    pub fn tick(&mut self, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        self.armed = None;
        if let State::Draining { quiet, until } = self.state {
            if now >= quiet.min(until) {
                self.select_model(None, now, &mut out);
            }
        } else if let Some(pending) = &self.pending
            && pending.deadline.is_some_and(|deadline| now >= deadline)
        {
            let request = pending.call.rpc();
            self.fail(Failure::Timeout { request }, None, &mut out);
        }
        self.finish(out)
    }

    /// Asks the agent to stop. It answers with stop reason `cancelled`, in its own time; held requests are answered
    /// `cancelled`, as the protocol demands. Outside a prompt there is nothing to ask.
    pub fn cancel(&mut self) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.state == State::Prompting {
            let params = match &self.session {
                Some(session) => json!({"sessionId": session}),
                None => json!({}),
            };
            write(
                message::notification("session/cancel", &params),
                About::Cancel,
                &mut out,
            );
            self.cancelling = true;
            self.release_held(&mut out);
        }
        self.finish(out)
    }

    /// Answers a held request with one of its options.
    ///
    /// # Errors
    /// [`AnswerError`]; the request is still held after `UnknownOption`.
    pub fn answer(&mut self, request_id: &str, option: &str) -> Result<Vec<Effect>, AnswerError> {
        let held = self.held(request_id)?;
        if !permission::is_offered(&held.options, option) {
            return Err(AnswerError::UnknownOption);
        }
        Ok(self.resolve(request_id, Some(option)))
    }

    /// Denies a held request: [`permission::denial_option`], else `cancelled`.
    ///
    /// # Errors
    /// `NotPending` or `Closed`.
    pub fn deny(&mut self, request_id: &str) -> Result<Vec<Effect>, AnswerError> {
        let option = permission::denial_option(&self.held(request_id)?.options);
        Ok(self.resolve(request_id, option.as_deref()))
    }

    /// The transport did not take a line: the connection is over.
    pub fn write_failed(&mut self) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.can_write() {
            self.fail(Failure::WriteFailed, None, &mut out);
        }
        self.finish(out)
    }

    /// Ends the connection. What still arrives is read, nothing more is written.
    pub fn close(&mut self) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.state != State::Closed {
            self.state = State::Closed;
            self.pending = None;
            out.push(Effect::CloseInput);
        }
        self.finish(out)
    }

    /// True when the next prompt could be given to this connection.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// True once `session/prompt` of the current turn is written: only then an exit code 0 completes it (RUL-39).
    #[must_use]
    pub fn prompt_was_written(&self) -> bool {
        self.prompt_written
    }

    /// The session of this connection, once known.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Ids of the requests that wait for an answer.
    #[must_use]
    pub fn held_requests(&self) -> Vec<String> {
        self.held.ids()
    }

    /// Raw stdout bytes whose reports have left.
    #[must_use]
    pub fn position(&self) -> i64 {
        match self.deferred.front() {
            Some((cut, _)) => cut.range().from,
            None => self.splitter.position(),
        }
    }

    fn held(&self, request_id: &str) -> Result<&HeldPermission, AnswerError> {
        if !self.can_write() {
            return Err(AnswerError::Closed);
        }
        self.held.get(request_id).ok_or(AnswerError::NotPending)
    }

    fn resolve(&mut self, request_id: &str, option: Option<&str>) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Some(held) = self.held.get(request_id) {
            let about = About::Permission {
                request_id: request_id.to_owned(),
            };
            write(
                message::result(&held.raw_id, &permission::outcome(option)),
                about,
                &mut out,
            );
        }
        self.held.remove(request_id);
        self.finish(out)
    }

    /// Tells the agent `cancelled` for everything that is held.
    pub(super) fn release_held(&mut self, out: &mut Vec<Effect>) -> Vec<String> {
        let mut ids = Vec::new();
        for held in self.held.take() {
            write(
                message::result(&held.raw_id, &permission::outcome(None)),
                About::Automatic,
                out,
            );
            ids.push(held.request_id);
        }
        ids
    }

    /// Sends the prompt: the last step of the setup.
    pub(super) fn send_prompt(&mut self, out: &mut Vec<Effect>) {
        let mut blocks = vec![json!({"type": "text", "text": self.turn.text})];
        for image in &self.turn.images {
            blocks.push(json!({"type": "image", "mimeType": image.media_type, "data": BASE64.encode(&image.bytes)}));
        }
        let params = match &self.session {
            Some(session) => json!({"sessionId": session, "prompt": blocks}),
            None => json!({"prompt": blocks}),
        };
        let rpc_id = self.take_id();
        write(
            message::request(rpc_id, "session/prompt", &params),
            About::Prompt { rpc_id },
            out,
        );
        out.push(Effect::Report(Report::PromptSent { rpc_id }));
        self.pending = Some(Pending {
            id: rpc_id,
            call: Call::Prompt,
            deadline: None,
        });
        self.state = State::Prompting;
        self.prompt_written = true;
        self.turn.text.clear(); // not needed again; a prompt can be large
        self.turn.images.clear();
    }

    pub(super) fn take_id(&mut self) -> i64 {
        let id = self.next_id;
        self.next_id = self.next_id.saturating_add(1);
        id
    }

    pub(super) fn fail(&mut self, reason: Failure, range: Option<ByteRange>, out: &mut Vec<Effect>) {
        self.state = State::Failed;
        self.pending = None;
        out.push(Effect::Report(Report::Failed { reason, range }));
    }

    pub(super) fn can_write(&self) -> bool {
        !self.output_ended && !matches!(self.state, State::Failed | State::Closed)
    }

    fn finish(&mut self, mut out: Vec<Effect>) -> Vec<Effect> {
        self.resume(&mut out);
        let deadline = match self.state {
            State::Draining { quiet, until } => Some(quiet.min(until)),
            _ => self.pending.as_ref().and_then(|pending| pending.deadline),
        };
        if deadline != self.armed {
            self.armed = deadline;
            out.push(Effect::Arm(deadline));
        }
        out
    }
}

impl Call {
    pub(super) fn rpc(&self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Authenticate => "authenticate",
            Self::Session(method) => method.rpc(),
            Self::SetModel(setter) => setter.rpc(),
            Self::SetOption(..) => "session/set_config_option",
            Self::Prompt => "session/prompt",
        }
    }
}

pub(super) fn write(line: String, about: About, out: &mut Vec<Effect>) {
    out.push(Effect::Write(Outgoing { line, about }));
}
