//! Creating by name, and what to think of a machine that stood there already (M3, RUL-L-22).
//!
//! The journal decides, never the name alone. Ours of this epoch, with a lost answer: taken. Ours of an older epoch: a
//! remnant, deleted with confirmation, once. Nobody's: not ours to delete (INV-60); a minted name is given up, a name
//! that the user chose means that machine.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::Value;

use super::super::facade::CallError;
use super::super::names;
use super::Stop;
use super::pipeline::Build;
use crate::domain::event::Stage;
use crate::domain::operation::Verb;
use crate::ports::sandbox::{Created, SandboxError};
use crate::retry::{Policy, retry};

impl Build<'_> {
    /// Creates the machine and answers the facts to keep with its row.
    pub(super) async fn create(&mut self) -> Result<BTreeMap<String, Value>, Stop> {
        // Twice at most: a stranger or a remnant is met once, never chased.
        for last in [false, true] {
            let (created, lost_an_answer) = self.create_once().await?;
            if !created.adopted || lost_an_answer {
                return Ok(created.meta);
            }
            let remnant = self.older_build_used(&created.handle.name);
            if !remnant && names::is_chosen(&self.machine) {
                return Ok(created.meta);
            }
            if !remnant {
                // Not ours: it must not be deleted if this build fails.
                self.facade.trace().settled_create();
                tracing::warn!(
                    machine.id = %self.machine.id, machine.name = %created.handle.name, provider = %self.machine.provider,
                    "an untracked machine has the name that was minted for machine {}", self.machine.id
                );
            }
            if last {
                break;
            }
            if remnant {
                self.delete_remnant().await?;
            } else {
                self.take_another_name().await?;
            }
        }
        Err(Stop::at(
            Stage::Provision,
            "name_taken",
            "a machine that is not this one has its name at the provider",
        ))
    }

    /// Up to three calls; says whether one before the last had an unknown fate.
    async fn create_once(&mut self) -> Result<(Created, bool), Stop> {
        let lost_an_answer = Cell::new(false);
        let world = &self.site.world;
        let (facade, lease, lost) = (&self.facade, self.lease, &lost_an_answer);
        let call = |_| async move {
            let answer = facade.create(lease).await;
            if matches!(&answer, Err(CallError::Provider(error)) if !error.is_refusal()) {
                lost.set(true);
            }
            answer
        };
        let answer = retry(Policy::CONTRACT, &mut || world.rng.unit(), CallError::verdict, call).await;
        let error = match answer {
            Ok(created) => return Ok((created, lost_an_answer.get())),
            Err(CallError::Superseded) => return Err(Stop::Superseded),
            Err(CallError::Provider(error)) => error,
        };
        if !lost_an_answer.get() {
            // Refused every time: nothing was made (RUL-L-21).
            self.facade.trace().settled_create();
        }
        let reason = match &error {
            SandboxError::RateLimited { .. } => "rate_limited",
            error if error.is_runner_offline() => "runner_offline",
            _ => "create_failed",
        };
        Err(Stop::at(
            Stage::Provision,
            reason,
            format!("the provider did not create the machine: {error}"),
        ))
    }

    /// An earlier build of this row may have created something under this name.
    fn older_build_used(&self, name: &str) -> bool {
        self.claimed
            .debts
            .iter()
            .any(|debt| debt.verb == Verb::Provision && debt.machine_name == name)
    }
}
