//! Sessions by owner, newest first, with a limit for finished ones.
//!
//! An owner is a sandbox directory or a sprite; one-shot commands are kept beside the listed sessions only to be stopped
//! with them. Stopping an owner also catches a command that is just being started: its start sees that the owner's round
//! has moved on and ends what it started.

use std::{
    collections::HashMap,
    future::Future,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;

use super::{Group, Session};

/// Why a command is not running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system refused it.
    #[error("the command could not be started")]
    Refused(#[source] io::Error),
    /// Its owner was stopped in the meantime.
    #[error("stopped while starting")]
    Stopped,
}

/// The sessions of one daemon.
#[derive(Debug)]
pub struct Registry {
    finished_limit: usize,
    owners: Mutex<HashMap<String, Owner>>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Owner {
    /// Oldest first.
    sessions: Vec<Arc<Session>>,
    one_shots: Vec<Arc<Session>>,
    /// Groups of sessions that were forgotten while something of them may still run.
    abandoned: Vec<Group>,
    /// Counts the stops.
    round: u64,
}

/// Keeps a one-shot command among those to be stopped; it leaves when this is dropped.
#[derive(Debug)]
pub struct OneShot<'r> {
    registry: &'r Registry,
    owner: String,
    session: Arc<Session>,
}

impl Registry {
    /// An empty registry that keeps `finished_limit` finished sessions an owner (runner-protocol 5.3: 100).
    pub fn new(finished_limit: usize) -> Self {
        Self {
            finished_limit,
            owners: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Starts a session for `owner` and lists it.
    ///
    /// # Errors
    /// [`StartError::Stopped`] when the owner was stopped meanwhile; the command was ended.
    pub async fn start<F>(&self, owner: &str, starting: F) -> Result<Arc<Session>, StartError>
    where
        F: Future<Output = io::Result<Arc<Session>>>,
    {
        self.admit(owner, starting, |owner, session, limit| {
            owner.sessions.push(session);
            owner.forget_finished(limit);
        })
        .await
    }

    /// Starts a one-shot command for `owner`: stopped with it, never listed.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_one_shot<F>(&self, owner: &str, starting: F) -> Result<OneShot<'_>, StartError>
    where
        F: Future<Output = io::Result<Arc<Session>>>,
    {
        let session = self
            .admit(owner, starting, |owner, session, _| owner.one_shots.push(session))
            .await?;
        Ok(OneShot {
            registry: self,
            owner: owner.to_owned(),
            session,
        })
    }

    /// The listed session of this id, of any owner or of the one that is named.
    pub fn get(&self, owner: Option<&str>, session: &str) -> Option<Arc<Session>> {
        let owners = self.owners();
        let named = owners
            .iter()
            .filter(|(name, _)| owner.is_none_or(|owner| owner == name.as_str()));
        named
            .flat_map(|(_, owner)| &owner.sessions)
            .find(|kept| kept.id() == session)
            .cloned()
    }

    /// The listed sessions of an owner, newest first.
    pub fn of(&self, owner: &str) -> Vec<Arc<Session>> {
        self.owners()
            .get(owner)
            .map(|owner| owner.sessions.iter().rev().cloned().collect())
            .unwrap_or_default()
    }

    /// Lists sessions that were found after a restart, oldest first.
    pub fn adopt(&self, owner: &str, sessions: Vec<Arc<Session>>) {
        let mut owners = self.owners();
        let owner = owners.entry(owner.to_owned()).or_default();
        owner.sessions.splice(0..0, sessions);
        owner.forget_finished(self.finished_limit);
    }

    /// Forgets the sessions of every owner that ended more than `age` before `now` (RUL-L-112: 24 h).
    pub fn forget_older(&self, age: Duration, now: SystemTime) {
        for owner in self.owners().values_mut() {
            owner.forget(|session| {
                let ended = session.ended_at();
                ended.is_some_and(|ended| now.duration_since(ended).is_ok_and(|since| since > age))
            });
        }
    }

    /// Stops everything of an owner, all at once (runner-protocol P6). Sessions stay listed.
    pub async fn stop(&self, owner: &str, grace: Duration) {
        let (sessions, groups) = {
            let mut owners = self.owners();
            let owner = owners.entry(owner.to_owned()).or_default();
            owner.round += 1;
            owner.everything()
        };
        stop_all(sessions, groups, grace).await;
    }

    /// Stops everything of every owner, all at once, and starts nothing any more.
    pub async fn close(&self, grace: Duration) {
        self.closed.store(true, Ordering::Release);
        let (mut sessions, mut groups) = (Vec::new(), Vec::new());
        for owner in self.owners().values_mut() {
            owner.round += 1;
            let (more_sessions, more_groups) = owner.everything();
            sessions.extend(more_sessions);
            groups.extend(more_groups);
        }
        stop_all(sessions, groups, grace).await;
    }

    /// Forgets all sessions of an owner; call after [`Self::stop`]. Their journals go with their last reader.
    pub fn forget(&self, owner: &str) {
        if let Some(owner) = self.owners().get_mut(owner) {
            for session in owner.sessions.drain(..) {
                session.discard();
            }
            owner.abandoned.clear();
        }
    }

    async fn admit<F>(
        &self,
        owner: &str,
        starting: F,
        keep: impl FnOnce(&mut Owner, Arc<Session>, usize),
    ) -> Result<Arc<Session>, StartError>
    where
        F: Future<Output = io::Result<Arc<Session>>>,
    {
        let round = self.owners().entry(owner.to_owned()).or_default().round;
        let session = starting.await.map_err(StartError::Refused)?;
        let admitted = {
            let mut owners = self.owners();
            let owner = owners.entry(owner.to_owned()).or_default();
            let admitted = owner.round == round && !self.closed.load(Ordering::Acquire);
            if admitted {
                keep(owner, Arc::clone(&session), self.finished_limit);
            }
            admitted
        };
        if admitted {
            return Ok(session);
        }
        session.stop(Duration::ZERO).await;
        Err(StartError::Stopped)
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, Owner>> {
        // The lists are whole after every line under this lock.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    fn everything(&mut self) -> (Vec<Arc<Session>>, Vec<Group>) {
        let sessions = self.sessions.iter().chain(&self.one_shots).cloned().collect();
        (sessions, std::mem::take(&mut self.abandoned))
    }

    /// Drops the oldest finished sessions beyond `limit`. What they left running can still be stopped.
    fn forget_finished(&mut self, limit: usize) {
        let finished = self.sessions.iter().filter(|session| session.exit().is_some()).count();
        let mut surplus = finished.saturating_sub(limit);
        self.forget(|session| {
            let goes = surplus > 0 && session.exit().is_some();
            surplus -= usize::from(goes);
            goes
        });
    }

    fn forget(&mut self, mut goes: impl FnMut(&Session) -> bool) {
        let mut forgotten = Vec::new();
        self.sessions.retain(|session| {
            let goes = goes(session);
            if goes {
                session.discard();
                forgotten.extend(session.group().filter(|group| group.may_live()).cloned());
            }
            !goes
        });
        self.abandoned.retain(Group::may_live);
        self.abandoned.extend(forgotten);
    }
}

impl OneShot<'_> {
    /// The command.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for OneShot<'_> {
    fn drop(&mut self) {
        if let Some(owner) = self.registry.owners().get_mut(&self.owner) {
            owner.one_shots.retain(|kept| kept.id() != self.session.id());
        }
    }
}

async fn stop_all(sessions: Vec<Arc<Session>>, groups: Vec<Group>, grace: Duration) {
    let stopping_sessions = join_all(sessions.iter().map(|session| session.stop(grace)));
    let stopping_groups = join_all(groups.iter().map(|group| group.stop(grace)));
    tokio::join!(stopping_sessions, stopping_groups);
}
