//! Watches over one service until it is stopped, ends well, or its sprite is closed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use fountain_process::{Launch, Leftovers, Session, StartError, Stderr, Stdin};
use tokio::sync::watch;
use tokio::time::Instant;

use super::slot::{Slot, Status, Wish};
use super::{Inside, Service};

/// The pause before a failed service is started again: doubled each time, up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(120));
/// Whoever ran this long failed for a new reason: its pause is the first again.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// One watch.
pub(super) struct Supervisor {
    pub slot: Arc<Slot>,
    pub inside: Inside,
    pub name: String,
    pub service: Service,
    pub needs: Vec<(String, Arc<Slot>)>,
    /// The watch before, which ends first.
    pub before: Option<Arc<Slot>>,
}

/// Whatever way a watch ends, it says so: others wait for it.
struct Over(Arc<Slot>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.is_over = true;
            state.pid = None;
            state.next_restart_at = None;
            if state.status != Status::Failed {
                state.status = Status::Stopped;
            }
        });
    }
}

/// How a run came to its end.
enum Ended {
    /// As was wished, or with its enclosure.
    Wished,
    Well,
    Failed(String),
}

impl Supervisor {
    pub async fn run(mut self) {
        let over = Over(Arc::clone(&self.slot));
        if let Some(before) = self.before.take() {
            before.over().await;
        }
        let mut wishes = self.slot.wishes();
        let needs_run = tokio::select! {
            () = changed(&mut wishes) => return,
            needs_run = self.needs_run() => needs_run,
        };
        if let Err(error) = needs_run {
            return self.slot.change(|state| {
                state.status = Status::Failed;
                state.error = Some(error);
            });
        }
        let mut pause = PAUSE.0;
        loop {
            let begun = Instant::now();
            let error = match self.once(&mut wishes).await {
                Ended::Wished | Ended::Well => break,
                Ended::Failed(error) => error,
            };
            if begun.elapsed() >= GOOD_RUN {
                pause = PAUSE.0;
            }
            tracing::info!(
                sprite = self.inside.exec.owner,
                service = self.name,
                error,
                "a service failed"
            );
            self.slot.change(|state| {
                state.status = Status::Failed;
                state.pid = None;
                state.error = Some(error);
                state.next_restart_at = TimeDelta::from_std(pause).ok().map(|pause| crate::clock::now() + pause);
            });
            tokio::select! {
                () = changed(&mut wishes) => {
                    self.slot.change(|state| state.status = Status::Stopped);
                    break;
                }
                () = self.inside.exec.enclosure.closed() => break,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE.1);
            self.slot.change(|state| {
                state.status = Status::Starting;
                state.restart_count += 1;
                state.next_restart_at = None;
            });
        }
        drop(over);
    }

    /// Waits until everything needed runs, or has ended well.
    async fn needs_run(&self) -> Result<(), String> {
        for (name, slot) in &self.needs {
            let mut state = slot.watch();
            let reached = state
                .wait_for(|state| state.status == Status::Running || state.is_over)
                .await;
            let runs = reached.is_ok_and(|state| state.status == Status::Running || state.exit_code == Some(0));
            if !runs {
                return Err(format!("it needs '{name}', which does not run"));
            }
        }
        Ok(())
    }

    async fn once(&self, wishes: &mut watch::Receiver<Wish>) -> Ended {
        if *wishes.borrow_and_update() != Wish::Run {
            return Ended::Wished;
        }
        let exec = &self.inside.exec;
        let (spawner, id) = (exec.enclosure.spawner(), format!("{:016x}", rand::random::<u64>()));
        let starting = Session::start(
            &spawner,
            id,
            self.service.cmd.clone(),
            self.launch(),
            &self.inside.ledger,
        );
        // It is stopped with the sprite, and no list shows it.
        let run = match exec.registry.start_one_shot(&exec.owner, starting).await {
            Ok(run) => run,
            Err(StartError::Stopped) => return Ended::Wished,
            Err(StartError::Refused(error)) => return Ended::Failed(error.to_string()),
        };
        let session = Arc::clone(run.session());
        self.slot.change(|state| {
            state.status = Status::Running;
            state.pid = session.group().map(fountain_process::Group::id);
            state.started_at = Some(crate::clock::now());
            state.error = None;
            state.exit_code = None;
            state.session = Some(Arc::clone(&session));
        });
        let exit = tokio::select! {
            exit = session.ending() => exit,
            () = changed(wishes) => {
                let grace = match *wishes.borrow_and_update() {
                    Wish::Stop(grace) => grace,
                    Wish::Run | Wish::Leave => Duration::ZERO,
                };
                self.slot.change(|state| state.status = Status::Stopping);
                session.stop(grace).await;
                let code = session.exit().and_then(|exit| exit.verdict());
                self.slot.change(|state| state.exit_code = code);
                return Ended::Wished;
            }
            // Nothing inside outlives it; the next opening starts anew.
            () = exec.enclosure.closed() => {
                session.stop(Duration::ZERO).await;
                return Ended::Wished;
            }
        };
        let code = exit.verdict();
        self.slot.change(|state| state.exit_code = code);
        match code {
            Some(0) => Ended::Well,
            Some(code) => Ended::Failed(format!("it ended with exit code {code}")),
            None => Ended::Failed("how it ended is not known".to_owned()),
        }
    }

    fn launch(&self) -> Launch {
        let exec = &self.inside.exec;
        let own = self
            .service
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        let env = exec.environment.iter().cloned().chain(own);
        let home = exec.enclosure.home();
        Launch {
            program: self.service.cmd.clone().into(),
            args: self.service.args.iter().map(Into::into).collect(),
            env: env.map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: Path::new(home).join(self.service.dir.as_deref().unwrap_or(home)),
            stdin: Stdin::Null,
            stderr: Stderr::Journal,
            // A child that keeps the port would fail the next run.
            leftovers: Leftovers::ONE_SHOT,
            terminal: None,
        }
    }
}

/// Waits for another wish than to run.
async fn changed(wishes: &mut watch::Receiver<Wish>) {
    let _ = wishes.wait_for(|wish| *wish != Wish::Run).await;
}
