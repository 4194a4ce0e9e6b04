//! The beginning and the end of a replica's work (RUL-19c, RUL-36, RUL-57; lifecycle 3.8, 3.9, 6.12).
//!
//! Boot starts a server for every conversation with an open turn, whatever its machine's state, and for nobody else: an
//! idle conversation costs nothing until its next prompt. It never blocks a listener. A runner that registers is asked to
//! stop what somebody wished to stop while it was away (RUL-19d). Shutdown either leaves turns running for a successor
//! or ends them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;

use super::Engine;
#[cfg(any(test, feature = "fakes"))]
use crate::conversation::messages::StandDown;
use crate::conversation::messages::{Shutdown, ShutdownKind};
use crate::conversation::stop_process;
use crate::domain::RunnerId;
use crate::domain::machine::MachineStatus;
use crate::domain::process::Process;
use crate::domain::runner::runner_of;
use crate::machine::messages::Status;
use crate::ports::meter::Measure;
use crate::ports::store::StoreError;

/// Conversations of one sweep. More wait for the adoption pass (RUL-L-50).
const SWEEP: i64 = 10_000;
/// Longer than stopping an agent may take: cancel, grace, terminate, and the rows.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(25);
/// Between two looks at an owner that still works.
const SHUTDOWN_POLL: Duration = Duration::from_millis(100);

impl Engine {
    /// Becomes a member (RUL-L-7), starts the servers of open turns (RUL-36) and watches runners come. Answers how many turns it found.
    ///
    /// On SQLite the composition root has ended the leases of its dead predecessor before (RUL-30).
    ///
    /// # Errors
    /// What the store says; nothing is lost then, the adoption pass finds the same turns.
    pub async fn boot(&self) -> Result<usize, StoreError> {
        self.join().await;
        self.watch_runners();
        let adoptable = self.world().store.adoptable(SWEEP).await?;
        let found = adoptable.len();
        for open in adoptable {
            self.serve(open.conversation_id, open.machine_id);
        }
        let count = u64::try_from(found).unwrap_or(u64::MAX);
        self.world().meter.record(Measure::Rehydrated {
            candidates: count,
            started: count,
        });
        Ok(found)
    }

    fn watch_runners(&self) {
        let engine = self.clone();
        actix::spawn(async move {
            let mut changes = engine.world().runners.changes();
            let mut known = BTreeSet::new();
            loop {
                let online: BTreeSet<RunnerId> = engine.world().runners.online().into_iter().collect();
                for runner in online.difference(&known) {
                    engine.stop_unwanted(*runner).await;
                }
                known = online;
                if changes.changed().await.is_err() || engine.is_stopping() {
                    return;
                }
            }
        });
    }

    /// What somebody wished to stop on this runner, while it was away or its server was dead.
    async fn stop_unwanted(&self, runner: RunnerId) {
        if let Err(error) = self.try_stop_unwanted(runner).await {
            tracing::warn!(runner.id = %runner, %error, "processes to stop could not be looked up");
        }
    }

    async fn try_stop_unwanted(&self, runner: RunnerId) -> Result<(), StoreError> {
        let store = &self.world().store;
        let Some(row) = store.runner(runner).await? else {
            return Ok(());
        };
        let machines = store.machine_views(row.account_id, vec![MachineStatus::Ready]).await?;
        for view in machines {
            if runner_of(&view.machine.name) == Some(runner) {
                self.stop_behind(store.processes_to_stop(view.machine.id).await?);
            }
        }
        Ok(())
    }

    /// Stops processes that no live server will stop.
    pub(super) fn stop_behind(&self, processes: Vec<Process>) {
        let orphaned = processes
            .into_iter()
            .filter(|process| !self.is_live(process.conversation_id));
        for process in orphaned {
            let world = self.world().clone();
            actix::spawn(async move { stop_process(&world, process).await });
        }
    }

    /// Stops every server: `Drain` leaves turns to a successor, `Clean` ends them. New requests are refused from here on.
    pub async fn shutdown(&self, kind: ShutdownKind) {
        self.inner.stopping.store(true, Ordering::Release);
        let servers = self.inner.seats.servers();
        let all = join_all(servers.iter().map(|server| server.send(Shutdown(kind))));
        if tokio::time::timeout(SHUTDOWN_LIMIT, all).await.is_err() {
            tracing::warn!("some servers did not stop in time; their turns are found by the next boot");
        }
        let owners = self.finish_operations();
        if tokio::time::timeout(SHUTDOWN_LIMIT, owners).await.is_err() {
            tracing::warn!("some machine operations did not end in time; their leases lapse");
        }
        self.leave().await;
    }

    /// Lets every actor go without a word, as the death of the process does: nothing is written, attachments are gone,
    /// and whoever asks next finds nobody.
    #[cfg(any(test, feature = "fakes"))]
    pub fn freeze(&self) {
        self.inner.movers.silence();
        self.inner.membership.end();
        for server in self.inner.seats.clear() {
            server.do_send(StandDown);
        }
    }

    /// Waits until no machine operation runs here: each gives its lease back at its end (RUL-L-5).
    async fn finish_operations(&self) {
        for owner in self.inner.seats.machines() {
            while let Ok(Ok(report)) = owner.send(Status).await {
                if report.running.is_none() && report.waiting == 0 {
                    break;
                }
                tokio::time::sleep(SHUTDOWN_POLL).await;
            }
        }
    }
}
