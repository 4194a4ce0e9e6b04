//! Event streams: rows after a cursor, from the store alone (http-api 3.1 to 3.3; RUL-15, RUL-19c; P60, P61, P63 to P65).
//!
//! The bus only says "look again": a subscriber is registered before its first read, reads pages after its cursor, and
//! also looks once a second although nobody announced anything. So nothing falls between backlog and live events, a
//! missed announcement costs latency, and an event is sent once and in order because the cursor only grows.
//!
//! A stream is pulled by its socket. It holds one page and reads the next when that is written: a reader that stalls
//! costs one page of memory and nobody else's time. Pages shrink where rows are large.
//!
//! It ends by itself when its conversation has ended for good and everything is sent, when the process drains, and after
//! half a minute in which a running turn said nothing: the published Python client looks at its deadline only when a
//! stream ends or falls silent for 5 s, and heartbeats keep it from falling silent. A clean end is safe for every client;
//! it comes back with its cursor. A parked conversation's stream stays open with heartbeats: it needs no actor.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::web::{Bytes, Data};
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::event::{EventKind, LogEvent, Stage, StageState, StreamFilter};
use fountain_actors::domain::{AccountId, ConversationId, EventId};
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::transcript::{EventPage, EventQuery};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::events;
use super::state::AppState;
use super::wire::micros;

/// Rows a page begins with, at least and at most.
const FIRST_PAGE: i64 = 64;
const LONGEST_PAGE: i64 = 256;
/// What a page should hold, in bytes of `data`: rows are capped at megabytes, so a count alone bounds nothing (P64).
const PAGE_BYTES: usize = 1024 * 1024;
/// Frames that are ready together leave in pieces of about this size.
const PIECE_BYTES: usize = 16 * 1024;
/// How long changes are gathered before `event: conversations` (http-api 3.2: debounced).
const SIGNAL_DELAY: Duration = Duration::from_millis(500);

/// What is followed.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    Conversation(AccountId, ConversationId),
    Account(AccountId),
}

/// Why a conversation will say nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Terminated,
    Failed,
    Deleted,
}

/// What the conversation's row says of the stream's future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nothing more will come.
    Ended(End),
    /// A turn is open: silence is worth a fresh look by the client.
    Working,
    Resting,
}

/// One subscriber.
pub struct Follower {
    state: Data<AppState>,
    subject: Subject,
    announced: watch::Receiver<EventId>,
    closing: watch::Receiver<bool>,
    after: EventId,
    filter: StreamFilter,
    blocks: bool,
    wait: bool,
    /// Pieces that wait for the socket.
    ready: VecDeque<Bytes>,
    page: i64,
    /// The conversation's row is to be looked at before the next read.
    suspect_end: bool,
    heartbeat_at: Instant,
    /// When an event was last read.
    heard_at: Instant,
    signal_at: Option<Instant>,
    /// Everything that was announced is read: wait before reading again.
    idle: bool,
    over: bool,
}

/// What ended a wait.
enum Woken {
    Announced,
    /// The bus is gone; only the clock is left.
    Deaf,
    Poll,
    Heartbeat,
    Signal,
    Closing,
}

impl Follower {
    pub fn new(state: Data<AppState>, subject: Subject, announced: watch::Receiver<EventId>, after: EventId) -> Self {
        let heartbeat_at = Instant::now() + state.api.heartbeat;
        Self {
            closing: state.closing.clone(),
            state,
            subject,
            announced,
            after,
            filter: StreamFilter::default(),
            blocks: false,
            wait: true,
            ready: VecDeque::from([Bytes::from_static(b": connected\n\n")]),
            page: FIRST_PAGE,
            suspect_end: true,
            heartbeat_at,
            heard_at: Instant::now(),
            signal_at: None,
            idle: false,
            over: false,
        }
    }

    pub fn filtered(mut self, filter: StreamFilter) -> Self {
        self.filter = filter;
        self
    }

    pub fn with_blocks(mut self, blocks: bool) -> Self {
        self.blocks = blocks;
        self
    }

    /// Whether to go on once everything stored is sent.
    pub fn waiting(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// The response: headers at once, then pieces as the socket takes them. Never compressed (caution 4).
    pub fn respond(self) -> HttpResponse {
        let pieces = stream::unfold(self, |mut follower| async move {
            let piece = follower.next().await?;
            Some((Ok::<_, Infallible>(piece), follower))
        });
        HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, "text/event-stream"))
            .insert_header((header::CACHE_CONTROL, "no-cache"))
            .insert_header((header::CONTENT_ENCODING, "identity"))
            // A reverse proxy must not gather what has to arrive now.
            .insert_header(("x-accel-buffering", "no"))
            .streaming(pieces)
    }

    /// The next piece; None ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                self.heartbeat_at = Instant::now() + self.state.api.heartbeat;
                return Some(piece);
            }
            if self.over || *self.closing.borrow() {
                return None;
            }
            if std::mem::take(&mut self.idle) {
                self.wait().await;
            } else {
                self.step().await;
            }
        }
    }

    /// Looks once.
    async fn step(&mut self) {
        // What is announced from here on wakes the wait below.
        self.announced.borrow_and_update();
        let outlook = if std::mem::take(&mut self.suspect_end) {
            self.look_ahead().await
        } else {
            Outlook::Resting
        };
        let page = match self.read().await {
            Ok(page) => page,
            Err(StoreError::NotFound(_)) => return self.finish(End::Deleted),
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, "a stream could not read; it looks again");
                self.idle = true;
                return;
            }
            Err(error) => {
                tracing::error!(%error, "a stream could not read and ends");
                self.over = true;
                return;
            }
        };
        let (empty, more) = (page.events.is_empty(), page.has_more);
        if !empty {
            self.heard_at = Instant::now();
        }
        self.take(page);
        match outlook {
            // Asked again with the last page.
            Outlook::Ended(_) if more => self.suspect_end = true,
            _ if more => {}
            _ if !self.wait => self.over = true,
            Outlook::Ended(end) if empty => self.finish(end),
            // The end was seen before this page was read; that nothing follows is shown by an empty one only.
            Outlook::Ended(_) => self.suspect_end = true,
            Outlook::Working if self.heard_at.elapsed() >= self.state.api.silence => self.over = true,
            Outlook::Working | Outlook::Resting => self.idle = !self.suspect_end,
        }
    }

    async fn read(&self) -> Result<EventPage, StoreError> {
        let query = EventQuery {
            after: self.after,
            filter: self.filter.clone(),
            limit: self.page,
        };
        match self.subject {
            Subject::Conversation(account, id) => self.state.store.events(account, id, query).await,
            Subject::Account(account) => self.state.store.account_events(account, query).await,
        }
    }

    /// Renders a page, moves the cursor past it and sizes the next one.
    fn take(&mut self, page: EventPage) {
        let bytes: usize = page.events.iter().map(|event| event.data.len()).sum();
        let rows = i64::try_from(page.events.len()).unwrap_or(LONGEST_PAGE);
        if bytes > PAGE_BYTES {
            self.page = (rows / 2).max(1);
        } else if rows == self.page && bytes < PAGE_BYTES / 4 {
            self.page = (self.page * 2).min(LONGEST_PAGE);
        }
        let mut piece = String::new();
        for event in &page.events {
            self.notice(event);
            self.frame(event, &mut piece);
            if piece.len() >= PIECE_BYTES {
                self.ready.push_back(Bytes::from(std::mem::take(&mut piece)));
            }
        }
        if !piece.is_empty() {
            self.ready.push_back(Bytes::from(piece));
        }
        let last = page.events.last().map_or(EventId(0), |event| event.id);
        self.after = self.after.max(page.reached).max(last);
    }

    /// What an event means for the stream itself.
    fn notice(&mut self, event: &LogEvent) {
        if event.kind != EventKind::Stage {
            return;
        }
        match self.subject {
            Subject::Conversation(..) => {
                let ends = event.stage == Some(Stage::Terminate) || event.state == Some(StageState::Failed);
                self.suspect_end |= ends;
            }
            Subject::Account(_) => {
                self.signal_at.get_or_insert_with(|| Instant::now() + SIGNAL_DELAY);
            }
        }
    }

    fn frame(&self, event: &LogEvent, piece: &mut String) {
        let mut payload = events::payload(event);
        if self.blocks {
            payload.insert("blocks".into(), events::blocks(event, self.state.blocks).into());
        }
        if let Subject::Account(_) = self.subject {
            payload.insert("conversation_id".into(), event.conversation_id.to_string().into());
            payload.insert("duration_ms".into(), json!(event.duration_ms));
        }
        piece.push_str(&format!(
            "id: {}\nevent: {}\ndata: {}\n\n",
            event.id.0,
            event.kind,
            Value::Object(payload)
        ));
    }

    /// Whether the conversation has ended for good (RUL-15), and whether it works. A read that fails is no answer.
    async fn look_ahead(&self) -> Outlook {
        let Subject::Conversation(_, id) = self.subject else {
            return Outlook::Resting;
        };
        match self.state.store.conversation(id).await {
            Ok(None) => Outlook::Ended(End::Deleted),
            Ok(Some(row)) => match row.status {
                ConversationStatus::Terminated => Outlook::Ended(End::Terminated),
                ConversationStatus::Failed => Outlook::Ended(End::Failed),
                ConversationStatus::Pending | ConversationStatus::Running => Outlook::Working,
                ConversationStatus::Idle => Outlook::Resting,
            },
            Err(_) => Outlook::Resting,
        }
    }

    /// The synthetic frame: no id, not stored (http-api 3.2).
    fn finish(&mut self, end: End) {
        self.over = true;
        if !self.wait {
            return;
        }
        let (state, reason, message) = match end {
            End::Terminated => ("done", "terminated", "the conversation was terminated"),
            End::Deleted => ("done", "deleted", "the conversation was deleted"),
            End::Failed => ("failed", "failed", "the conversation has failed"),
        };
        let mut payload = json!({
            "kind": "stage",
            "stream": "",
            "data": json!({"reason": reason, "message": message}).to_string(),
            "stage": "server",
            "state": state,
            "turn_id": null,
            "ts": micros(self.state.now()),
        });
        if let Some(payload) = payload.as_object_mut().filter(|_| self.blocks) {
            payload.insert("blocks".into(), json!([]));
        }
        self.ready
            .push_back(Bytes::from(format!("event: stage\ndata: {payload}\n\n")));
    }

    /// Waits for an announcement, for the clock, or for the drain.
    async fn wait(&mut self) {
        match self.woken().await {
            Woken::Announced | Woken::Poll => {}
            Woken::Deaf => tokio::time::sleep_until(self.poll_at()).await,
            Woken::Heartbeat => {
                self.suspect_end = true;
                self.ready.push_back(Bytes::from_static(b": heartbeat\n\n"));
            }
            Woken::Signal => {
                self.signal_at = None;
                self.ready.push_back(Bytes::from_static(
                    b"event: conversations\ndata: {\"reason\":\"changed\"}\n\n",
                ));
            }
            Woken::Closing => self.over = true,
        }
    }

    fn poll_at(&self) -> Instant {
        (Instant::now() + self.state.api.poll).min(self.heartbeat_at)
    }

    async fn woken(&mut self) -> Woken {
        let poll = tokio::time::sleep(self.state.api.poll);
        let heartbeat = tokio::time::sleep_until(self.heartbeat_at);
        let signal_at = self.signal_at;
        let signal = async move {
            match signal_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // A sender that is gone drains as well: nobody will ever say so.
            _ = self.closing.wait_for(|closing| *closing) => Woken::Closing,
            changed = self.announced.changed() => if changed.is_ok() { Woken::Announced } else { Woken::Deaf },
            () = heartbeat => Woken::Heartbeat,
            () = signal => Woken::Signal,
            () = poll => Woken::Poll,
        }
    }
}
