//! The one way into the transcript: a task per replica that turns a queue of entries into group commits.
//!
//! What every live server of this replica appends goes through one queue, so a commit carries whatever is waiting and
//! its cost is shared (RUL-26, RUL-33). Order within a conversation is the order of [`Writer::append`]. An entry's
//! waiter is answered after its commit, never before, and cursors are published after the commit too. A store that does
//! not answer is asked again until it does (RUL-31): nothing is dropped, positions have not moved, and the bytes stay
//! counted on their connection until they are durable (RUL-43). A refused entry is the business of its own server: the
//! others of its group are not touched by it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::domain::event::NewEvent;
use crate::ports::sandbox::Held;
use crate::ports::store::StoreError;
use crate::ports::store::transcript::{Entry, Written};
use crate::ports::{Bus, Rng, Store};
use crate::retry::{Jitter, Policy};

/// Rows of one commit: an admission never waits behind a flood (RUL-26).
const COMMIT_ROWS: usize = 5_000;
/// Bytes of one commit (RUL-26).
const COMMIT_BYTES: usize = 4 * 1024 * 1024;
/// Accounts of one commit: each costs an advisory lock on PostgreSQL (RUL-23).
const COMMIT_ACCOUNTS: usize = 16;

/// How long to leave a store alone that did not answer. It never gives up: the rows exist nowhere else.
const OUTAGE: Policy = Policy {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(5),
    attempts: None,
    jitter: Jitter::UpperHalf,
};

/// What became of an entry. `Err` inside is the store's refusal; [`WriterGone`] only happens while a process ends.
pub type Outcome = Result<Written, StoreError>;

/// The answer to an append, once it is durable.
pub type Durable = oneshot::Receiver<Outcome>;

struct Job {
    entry: Entry,
    /// Kept until the entry is durable, because until then the bytes must stay counted.
    held: Vec<Held>,
    reply: oneshot::Sender<Outcome>,
}

/// A handle to the writer of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    queue: mpsc::UnboundedSender<Job>,
}

impl Writer {
    /// A writer and the task that does its work; the task ends when every handle is gone and the queue is empty.
    pub fn new(store: Arc<dyn Store>, bus: Arc<dyn Bus>, rng: Arc<dyn Rng>) -> (Self, WriterTask) {
        let (queue, jobs) = mpsc::unbounded_channel();
        let task = WriterTask {
            jobs,
            waiting: VecDeque::new(),
            store,
            bus,
            rng,
            failures: 0,
        };
        (Self { queue }, task)
    }

    /// Queues an entry behind everything that was queued before. `held` is released when the entry is settled.
    ///
    /// The queue itself has no bound: whoever appends stops reading its process while too much of it is unsaved.
    pub fn append(&self, entry: Entry, held: Vec<Held>) -> Durable {
        let (reply, durable) = oneshot::channel();
        // A closed queue drops the job, and with it the reply: the waiter sees that nothing was written.
        let _ = self.queue.send(Job { entry, held, reply });
        durable
    }
}

/// The work of a [`Writer`]. Run it with [`WriterTask::run`] on any thread that may wait for the store.
pub struct WriterTask {
    jobs: mpsc::UnboundedReceiver<Job>,
    waiting: VecDeque<Job>,
    store: Arc<dyn Store>,
    bus: Arc<dyn Bus>,
    rng: Arc<dyn Rng>,
    /// Commits in a row that the store did not answer.
    failures: u32,
}

impl WriterTask {
    /// Commits until every handle is gone.
    pub async fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                match self.jobs.recv().await {
                    Some(job) => self.waiting.push_back(job),
                    None => return,
                }
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.waiting.push_back(job);
            }
            let group = take_group(&mut self.waiting);
            self.commit(group).await;
        }
    }

    async fn commit(&mut self, group: Vec<Job>) {
        let entries = group.iter().map(|job| job.entry.clone()).collect();
        match self.store.append(entries).await {
            Ok(outcomes) if outcomes.len() == group.len() => self.settle(group, outcomes).await,
            Ok(_) => self.refuse(group, "answers are missing"),
            Err(error) if error.is_transient() => self.postpone(group).await,
            Err(error) => {
                tracing::error!(%error, "a group of transcript entries could not be written");
                self.refuse(group, "the group failed");
            }
        }
    }

    async fn settle(&mut self, group: Vec<Job>, outcomes: Vec<Outcome>) {
        let mut again = Vec::new();
        for (job, outcome) in group.into_iter().zip(outcomes) {
            if outcome.as_ref().is_err_and(StoreError::is_transient) {
                again.push(job);
                continue;
            }
            if let Ok(written) = &outcome
                && let Some(cursor) = written.cursor
            {
                self.bus.publish(cursor);
            }
            drop(job.held);
            let _ = job.reply.send(outcome); // the server may be gone: the rows are there
        }
        if again.is_empty() {
            self.failures = 0;
        } else {
            self.postpone(again).await;
        }
    }

    /// Puts entries back where they were and leaves the store alone for a while.
    async fn postpone(&mut self, group: Vec<Job>) {
        for job in group.into_iter().rev() {
            self.waiting.push_front(job);
        }
        self.failures = self.failures.saturating_add(1);
        let delay = OUTAGE.delay(self.failures, &mut || self.rng.unit());
        tracing::warn!(
            waiting = self.waiting.len(),
            attempt = self.failures,
            delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            "the store does not take output; keeping it"
        );
        tokio::time::sleep(delay).await;
    }

    fn refuse(&self, group: Vec<Job>, detail: &str) {
        for job in group {
            let _ = job.reply.send(Err(StoreError::Internal {
                op: "transcript.append",
                detail: detail.to_owned(),
            }));
        }
    }
}

/// Takes what one commit may carry: at least one entry, then as many as stay within the bounds, in order.
fn take_group(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let mut group: Vec<Job> = Vec::new();
    let (mut rows, mut bytes, mut accounts) = (0usize, 0usize, BTreeSet::new());
    while let Some(job) = waiting.front() {
        rows += job.entry.rows.len();
        bytes += size_bytes(&job.entry);
        accounts.insert(job.entry.account_id);
        let fits = rows <= COMMIT_ROWS && bytes <= COMMIT_BYTES && accounts.len() <= COMMIT_ACCOUNTS;
        if !fits && !group.is_empty() {
            break;
        }
        group.extend(waiting.pop_front());
    }
    group
}

fn size_bytes(entry: &Entry) -> usize {
    entry
        .rows
        .iter()
        .map(|row| match row {
            NewEvent::Output(output) => output.data.len(),
            NewEvent::Stage(_) => 256,
        })
        .sum()
}
