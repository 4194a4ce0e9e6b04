//! Who is looking at a session, and what happens when the last one leaves (providers 1.3, `max_run_after_disconnect`).
//!
//! A session that is not detachable runs on for its limit and is then stopped, unless somebody attaches meanwhile.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fountain_process::{Session, WindowSize};

use super::query::WINDOW;

/// A stopped session gets this long for an orderly end.
const GRACE: Duration = Duration::from_secs(5);

/// The clients of all running sessions of this server.
#[derive(Debug, Default)]
pub struct Attachments {
    sessions: Mutex<HashMap<String, Slot>>,
}

#[derive(Debug)]
struct Slot {
    clients: usize,
    /// Counts arrivals, so that a limit that began before one is void.
    arrivals: u64,
    after_disconnect: Option<Duration>,
    window: WindowSize,
}

/// One client of one session; it has left when this is dropped.
#[derive(Debug)]
pub struct Attachment {
    attachments: Arc<Attachments>,
    session: Arc<Session>,
}

impl Attachments {
    /// Notes a new session and its first client. Must be called inside the runtime that the session lives on.
    pub fn open(
        self: &Arc<Self>,
        session: &Arc<Session>,
        after_disconnect: Option<Duration>,
        window: WindowSize,
    ) -> Attachment {
        let slot = Slot {
            clients: 0,
            arrivals: 0,
            after_disconnect,
            window,
        };
        self.sessions().insert(session.id().to_owned(), slot);
        let (attachments, ended) = (Arc::clone(self), Arc::clone(session));
        tokio::spawn(async move {
            ended.ending().await;
            attachments.sessions().remove(ended.id());
        });
        self.attach(session)
    }

    /// Notes another client.
    pub fn attach(self: &Arc<Self>, session: &Arc<Session>) -> Attachment {
        if let Some(slot) = self.sessions().get_mut(session.id()) {
            slot.clients += 1;
            slot.arrivals += 1;
        }
        Attachment {
            attachments: Arc::clone(self),
            session: Arc::clone(session),
        }
    }

    /// Whether anybody is looking.
    pub fn is_watched(&self, session: &str) -> bool {
        self.sessions().get(session).is_some_and(|slot| slot.clients > 0)
    }

    /// The size of a session's terminal.
    pub fn window(&self, session: &str) -> WindowSize {
        self.sessions().get(session).map_or(WINDOW, |slot| slot.window)
    }

    fn resized(&self, session: &str, window: WindowSize) {
        if let Some(slot) = self.sessions().get_mut(session) {
            slot.window = window;
        }
    }

    /// The last client left: how long the session may go on, and the arrival that was the last.
    fn leave(&self, session: &str) -> Option<(Duration, u64)> {
        let mut sessions = self.sessions();
        let slot = sessions.get_mut(session)?;
        slot.clients = slot.clients.saturating_sub(1);
        let limit = slot.after_disconnect.filter(|_| slot.clients == 0)?;
        Some((limit, slot.arrivals))
    }

    fn is_still_alone(&self, session: &str, arrivals: u64) -> bool {
        self.sessions()
            .get(session)
            .is_some_and(|slot| slot.clients == 0 && slot.arrivals == arrivals)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        // The map is whole after every line under this lock.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attachment {
    /// What it is attached to.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Changes the size of the terminal, for everybody.
    pub fn resize(&self, window: WindowSize) {
        match self.session.resize(window) {
            Ok(()) => self.attachments.resized(self.session.id(), window),
            Err(error) => tracing::debug!(session = self.session.id(), %error, "a terminal was not resized"),
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let Some((limit, arrivals)) = self.attachments.leave(self.session.id()) else {
            return;
        };
        let (attachments, session) = (Arc::clone(&self.attachments), Arc::clone(&self.session));
        // Without a runtime the server is going down, and its sessions with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(limit).await;
                if attachments.is_still_alone(session.id(), arrivals) {
                    tracing::info!(session = session.id(), "nobody came back to a session; it is stopped");
                    session.stop(GRACE).await;
                }
            });
        }
    }
}
