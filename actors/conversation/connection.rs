//! A live attachment to the agent's process: command, peer, input queue, positions. It outlives a turn (lifecycle 6.1).

use std::collections::VecDeque;

use actix::SpawnHandle;

use super::position::Track;
use super::replay::Replay;
use crate::acp::{Outgoing, Peer};
use crate::domain::event::RawStream;
use crate::domain::{ProcessId, SpawnId};
use crate::ports::sandbox::{Command, Frame, FrameStream, Held};

/// One attachment. `number` tells it from its predecessors: answers of an older one are dropped.
pub(super) struct Connection {
    pub number: u64,
    pub command: Command,
    pub process_id: ProcessId,
    pub spawn_id: SpawnId,
    pub peer: Peer,
    pub stdout: Track,
    pub stderr: Track,
    /// What is skipped of a replay, until each stream has reached its position.
    pub replays: Option<[Replay; 2]>,
    /// Frames whose bytes are not durable yet, with the raw position at which each ends.
    pub held: [VecDeque<(i64, Held)>; 2],
    /// Raw bytes of each stream that have arrived, from the process's first.
    pub arrived: [i64; 2],
    pub outbox: VecDeque<Outgoing>,
    /// A write is out; its successor waits for it.
    pub writing: bool,
    /// The prompt is being written: frames wait, so that its commit comes before any output (RUL-34).
    pub prompting: bool,
    /// JSON-RPC id of a prompt whose line was handed to the transport while nobody knows whether the agent has it: it
    /// must not be given to another process (P56).
    pub doubtful: Option<i64>,
    /// Frames that arrived meanwhile.
    pub stash: Vec<Frame>,
    /// None while a read is out.
    pub frames: Option<FrameStream>,
    pub close_input: bool,
    /// Input is over: a write failed, or it was closed.
    pub input_over: bool,
    pub has_spoken: bool,
    /// Bytes that are queued for the transcript and not durable.
    pub unsaved: usize,
    pub alarm: Option<SpawnHandle>,
    /// How many turns it was given.
    pub turns: u32,
}

/// Index of a stream in the pairs of a connection.
pub(super) fn index(stream: RawStream) -> usize {
    match stream {
        RawStream::Stdout => 0,
        RawStream::Stderr => 1,
    }
}

impl Connection {
    /// A connection to a process that was just spawned.
    pub fn fresh(
        number: u64,
        command: Command,
        frames: FrameStream,
        process_id: ProcessId,
        spawn_id: SpawnId,
        peer: Peer,
    ) -> Self {
        Self {
            number,
            command,
            process_id,
            spawn_id,
            peer,
            stdout: Track::new(RawStream::Stdout),
            stderr: Track::new(RawStream::Stderr),
            replays: None,
            held: Default::default(),
            arrived: [0, 0],
            outbox: VecDeque::new(),
            writing: false,
            prompting: false,
            doubtful: None,
            stash: Vec::new(),
            frames: Some(frames),
            close_input: false,
            input_over: false,
            has_spoken: false,
            unsaved: 0,
            alarm: None,
            turns: 0,
        }
    }

    pub fn track(&mut self, stream: RawStream) -> &mut Track {
        match stream {
            RawStream::Stdout => &mut self.stdout,
            RawStream::Stderr => &mut self.stderr,
        }
    }

    /// Whether a commit could move a position, given what a draft covers.
    pub fn can_advance(&self, to: [Option<i64>; 2]) -> bool {
        let [stdout, stderr] = to;
        self.stdout.could_advance(stdout) || self.stderr.could_advance(stderr)
    }

    /// Takes out the frames that are durable with position `to` of `stream`.
    pub fn release(&mut self, stream: RawStream, to: i64) -> Vec<Held> {
        let Some(queue) = self.held.get_mut(index(stream)) else {
            return Vec::new();
        };
        let mut released = Vec::new();
        while queue.front().is_some_and(|(end, _)| *end <= to) {
            released.extend(queue.pop_front().map(|(_, held)| held));
        }
        released
    }
}
