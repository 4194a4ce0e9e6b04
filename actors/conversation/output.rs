//! Frames into transcript entries (lifecycle 6.4, RUL-20, RUL-31, RUL-40 to RUL-43).
//!
//! Frames are read in batches, fed to the peer, and what it reports becomes rows of a [`Draft`]; a draft leaves as one
//! entry that carries its rows, the raw ranges that it makes durable and at most one effect. The bytes of a frame stay
//! counted on their connection until the entry that passes them is committed. While much is unsaved nothing more is
//! read: the far end keeps it in its journal. Nothing here may skip the redactor.

use actix::prelude::*;
use tokio::time::Instant;

use super::ConversationActor;
use super::connection::index;
use super::position::whole_characters;
use super::replay::Gap;
use super::rows;
use crate::domain::TurnId;
use crate::domain::event::{ByteRange, NewEvent, RawStream, Stream};
use crate::ports::meter::Measure;
use crate::ports::sandbox::{CLOSED_BEFORE_EXIT, Frame, FrameStream, Held, SandboxError};
use crate::ports::store::StoreError;
use crate::ports::store::transcript::{Effect, Entry, Written};
use crate::transcript::budget::Allowance;

/// Frames that are taken at once: enough to share a commit, few enough to leave the thread to others (STYLE 7).
const BATCH: usize = 64;
/// Unsaved bytes of one connection above which reading stops until some are durable: one commit's worth (RUL-26).
const PAUSE_BYTES: usize = 4 * 1024 * 1024;
/// A draft leaves at the latest with this much, so that an entry stays within one commit.
const DRAFT_ROWS: usize = 1_000;
const DRAFT_BYTES: usize = 1024 * 1024;

/// What happens when an entry is durable.
pub(super) type Then = Box<dyn FnOnce(&mut ConversationActor, Written, &mut Context<ConversationActor>)>;

/// Rows that will leave together.
#[derive(Default)]
pub(super) struct Draft {
    rows: Vec<NewEvent>,
    bytes: usize,
    /// How far each pipe is covered by the rows and the effect.
    to: [Option<i64>; 2],
    effect: Option<Effect>,
}

impl Draft {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.effect.is_none()
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= DRAFT_ROWS || self.bytes >= DRAFT_BYTES
    }
}

impl ConversationActor {
    /// Reads the next batch, unless one is being read or too much is unsaved.
    pub(super) fn pump(&mut self, ctx: &mut Context<Self>) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        if connection.unsaved > PAUSE_BYTES || connection.prompting {
            return;
        }
        let number = connection.number;
        if let Some(frames) = connection.frames.take() {
            self.read(number, frames, ctx);
        }
    }

    /// Reads one batch of an attachment, whichever it is.
    pub(super) fn read(&mut self, number: u64, mut frames: FrameStream, ctx: &mut Context<Self>) {
        let read = async move {
            let mut batch = Vec::new();
            frames.recv_many(&mut batch, BATCH).await;
            (frames, batch)
        };
        self.run(ctx, read, move |actor, (frames, batch), ctx| {
            actor.arrived(number, frames, batch, ctx);
        });
    }

    fn arrived(&mut self, number: u64, frames: FrameStream, mut batch: Vec<Frame>, ctx: &mut Context<Self>) {
        if batch.is_empty() {
            // The stream ended without a verdict: that is one, and never an exit 0 (P39, RUL-2).
            batch.push(Frame::Error(SandboxError::Unavailable(CLOSED_BEFORE_EXIT.into())));
        }
        match self
            .connection
            .as_mut()
            .filter(|connection| connection.number == number)
        {
            Some(connection) => {
                connection.frames = Some(frames);
                if connection.prompting {
                    connection.stash.extend(batch);
                } else {
                    self.take_frames(batch, ctx);
                    self.pump(ctx);
                }
            }
            None => self.drain_stopping(number, frames, &batch, ctx),
        }
    }

    /// Takes frames in order; a verdict ends the connection.
    pub(super) fn take_frames(&mut self, batch: Vec<Frame>, ctx: &mut Context<Self>) {
        for frame in batch {
            match frame {
                Frame::Stdout(held) => self.feed(RawStream::Stdout, held, ctx),
                Frame::Stderr(held) => self.feed(RawStream::Stderr, held, ctx),
                Frame::ReplayEnd { .. } => self.replay_ended(),
                Frame::Exit(code) => {
                    self.replay_ended();
                    self.exited(code, ctx);
                    return;
                }
                Frame::Error(error) => {
                    self.flush(None, ctx);
                    self.attachment_lost(&error, ctx);
                    return;
                }
            }
            if self.draft.is_full() {
                self.flush(None, ctx);
            }
        }
        self.flush(None, ctx);
    }

    fn feed(&mut self, stream: RawStream, held: Held, ctx: &mut Context<Self>) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        let bytes = held.bytes.clone();
        let mut gap = None;
        let mut old = 0;
        if let Some(replay) = connection.replays.as_mut().and_then(|both| both.get_mut(index(stream)))
            && !replay.is_done()
        {
            (old, gap) = replay.skip(&bytes);
            if replay.is_done() {
                let track = replay.track();
                *connection.track(stream) = track;
            }
        }
        let fresh = bytes.get(old..).unwrap_or_default();
        if !fresh.is_empty() {
            let end = connection.arrived.get_mut(index(stream)).map_or(0, |arrived| {
                *arrived += i64::try_from(fresh.len()).unwrap_or(i64::MAX);
                *arrived
            });
            if let Some(queue) = connection.held.get_mut(index(stream)) {
                queue.push_back((end, held));
            }
            connection.track(stream).take(fresh);
        }
        if let Some(gap) = gap {
            self.remark_gap(gap);
        }
        if fresh.is_empty() {
            return;
        }
        match stream {
            RawStream::Stdout => {
                let Some(connection) = self.connection.as_mut() else {
                    return;
                };
                connection.has_spoken = true;
                let effects = connection.peer.feed(fresh, Instant::now());
                self.perform(effects, ctx);
            }
            RawStream::Stderr => self.take_stderr(false),
        }
    }

    /// Rows of what `stderr` has said, on character boundaries (P67); at the end whatever is left.
    pub(super) fn take_stderr(&mut self, at_the_end: bool) {
        let Some(connection) = self.connection.as_ref() else {
            return;
        };
        let consumed = connection.stderr.consumed();
        let from = self.draft.to.get(1).copied().flatten().unwrap_or(consumed);
        let drafted = usize::try_from(from - consumed).unwrap_or(0);
        let tail = connection.stderr.pending().get(drafted..).unwrap_or_default();
        let length = if at_the_end { tail.len() } else { whole_characters(tail) };
        if length == 0 {
            return;
        }
        let text = String::from_utf8_lossy(tail.get(..length).unwrap_or_default()).into_owned();
        let range = ByteRange {
            from,
            to: from + i64::try_from(length).unwrap_or(0),
        };
        self.output_row(Stream::Stderr, RawStream::Stderr, &text, range);
    }

    /// Whatever replay was still being skipped has ended: what is missing is said (RUL-42).
    fn replay_ended(&mut self) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        let Some(mut replays) = connection.replays.take() else {
            return;
        };
        let mut gaps = Vec::new();
        for (replay, stream) in replays.iter_mut().zip([RawStream::Stdout, RawStream::Stderr]) {
            if !replay.is_done() {
                gaps.extend(replay.end());
                *connection.track(stream) = replay.track();
            }
        }
        for gap in gaps {
            self.remark_gap(gap);
        }
    }

    fn remark_gap(&mut self, gap: Gap) {
        tracing::warn!(
            conversation.id = %self.id, stream = %gap.stream, from = gap.range.from, to = gap.range.to,
            "a replay does not cover what was stored"
        );
        let turn_id = self.open_turn_id();
        self.push_row(rows::gap(turn_id, gap));
    }

    /// One row of the process's output: redacted, without NUL, within the budget.
    pub(super) fn output_row(&mut self, stream: Stream, raw: RawStream, text: &str, range: ByteRange) {
        self.cover(raw, range.to);
        let Some(process_id) = self.connection.as_ref().map(|connection| connection.process_id) else {
            return;
        };
        let data = self.redactor.clean(text).into_owned();
        let turn_id = self.open_turn_id();
        match self.budget.take(data.len()) {
            Allowance::Store => {
                self.note_output(stream, &data);
                self.push_row(rows::output(turn_id, stream, data, Some((process_id, raw, range))));
            }
            Allowance::Mark => {
                self.world.meter.record(Measure::OutputCapped);
                let marker = self.budget.marker();
                self.push_row(rows::remark(turn_id, marker));
            }
            Allowance::Drop => {}
        }
    }

    fn note_output(&mut self, stream: Stream, data: &str) {
        self.last_active = self.now();
        let provider = self
            .bound
            .as_ref()
            .map(|bound| (bound.conversation.runtime, bound.machine.provider));
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.ending) else {
            return;
        };
        if stream == Stream::Acp {
            turn.reply.push(data);
        }
        if !turn.has_output {
            turn.has_output = true;
            if let (Some((runtime, provider)), Some(began)) = (provider, turn.began) {
                let took = began.elapsed();
                self.world.meter.record(Measure::FirstOutput {
                    runtime,
                    provider,
                    took,
                });
            }
        }
    }

    /// The turn that output belongs to now.
    pub(super) fn open_turn_id(&self) -> Option<TurnId> {
        self.turn.as_ref().filter(|turn| !turn.ending).map(|turn| turn.id)
    }

    pub(super) fn push_row(&mut self, row: NewEvent) {
        self.draft.bytes += match &row {
            NewEvent::Output(output) => output.data.len(),
            NewEvent::Stage(_) => 256,
        };
        self.draft.rows.push(row);
    }

    /// The draft makes the bytes before `to` durable.
    pub(super) fn cover(&mut self, stream: RawStream, to: i64) {
        if let Some(covered) = self.draft.to.get_mut(index(stream)) {
            *covered = Some(covered.map_or(to, |before| before.max(to)));
        }
    }

    /// Adds the effect of a line. One entry carries one effect: an earlier one leaves first.
    pub(super) fn effect(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        if self.draft.effect.is_some() {
            self.flush(None, ctx);
        }
        self.draft.effect = Some(effect);
    }

    /// Sends the draft on its way. `then` runs when it is durable.
    pub(super) fn flush(&mut self, then: Option<Then>, ctx: &mut Context<Self>) {
        if self.draft.is_empty() && then.is_none() && !self.holds_much() {
            return; // lines without effect are passed by the next commit (RUL-41)
        }
        let Some((account_id, server_epoch)) = self
            .bound
            .as_ref()
            .map(|bound| (bound.conversation.account_id, bound.epoch))
        else {
            return;
        };
        let draft = std::mem::take(&mut self.draft);
        let (mut advances, mut held, mut number) = (Vec::new(), Vec::new(), 0);
        if let Some(connection) = self.connection.as_mut() {
            number = connection.number;
            let process_id = connection.process_id;
            for stream in [RawStream::Stdout, RawStream::Stderr] {
                let to = draft.to.get(index(stream)).copied().flatten();
                let to = to.unwrap_or_else(|| connection.track(stream).consumed());
                if let Some(advance) = connection.track(stream).advance(process_id, to) {
                    held.extend(connection.release(stream, advance.to));
                    advances.push(advance);
                }
            }
            connection.unsaved += draft.bytes;
        }
        let entry = Entry {
            account_id,
            conversation_id: self.id,
            server_epoch,
            rows: draft.rows,
            advances,
            effect: draft.effect,
            now: self.now(),
        };
        self.unsettled += 1;
        let (durable, bytes) = (self.writer.append(entry, held), draft.bytes);
        self.run(ctx, durable, move |actor, outcome, ctx| {
            actor.unsettled = actor.unsettled.saturating_sub(1);
            match outcome {
                Ok(Ok(written)) => actor.settled(number, bytes, then, written, ctx),
                Ok(Err(StoreError::Stale(_) | StoreError::NotFound(_))) => actor.superseded(ctx),
                Ok(Err(error)) => {
                    tracing::error!(conversation.id = %actor.id, %error, "output could not be written; the server stops");
                    actor.stand_down(ctx);
                }
                Err(_) => actor.stand_down(ctx), // the writer ended: so does the process
            }
        });
    }

    /// Much has arrived that nothing was stored of: the position has to move by itself, or the connection would be
    /// closed for bytes that nobody needs (RUL-43).
    fn holds_much(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            let held: usize = connection.held.iter().flatten().map(|(_, held)| held.bytes.len()).sum();
            held > DRAFT_BYTES && connection.can_advance(self.draft.to)
        })
    }

    fn settled(&mut self, number: u64, bytes: usize, then: Option<Then>, written: Written, ctx: &mut Context<Self>) {
        if let Some(connection) = self
            .connection
            .as_mut()
            .filter(|connection| connection.number == number)
        {
            connection.unsaved = connection.unsaved.saturating_sub(bytes);
        }
        if let Some(then) = then {
            then(self, written, ctx);
        }
        self.pump(ctx);
    }
}
