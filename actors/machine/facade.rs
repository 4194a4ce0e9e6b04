//! The only caller of a provider's `create`, `destroy`, `suspend` and `resume` (RUL-38a).
//!
//! Every effect is guarded before it is sent (RUL-L-1), carries the epoch (RUL-L-2), is noted as in flight until it is
//! answered (RUL-L-5), bounded in time, and written down for the journal. A provider client that panics is an unknown
//! answer and takes nobody down. Deleting asks for a [`Fence`]: calling it before the fence does not compile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};

use super::Site;
use super::groundwork::Line;
use super::lease::{Fence, Lease, Superseded};
use super::messages::PlannedFile;
use crate::domain::machine::{Machine, Provider};
use crate::domain::operation::{Outcome, Receipt};
use crate::ports::sandbox::{
    Capability, Created, DestroyOnce, ExecOptions, ExecOutput, Handle, Info, NetworkPolicy, SandboxAdapter,
    SandboxError, Session,
};
use crate::retry::{Policy, Verdict, retry};

/// The longest that any call may take (RUL-L-3); adapters have shorter limits of their own (sandbox-contract 8).
const LONGEST_CALL: Duration = Duration::from_secs(120);
/// What a command's own limit needs to be told over the wire.
const EXEC_SLACK: Duration = Duration::from_secs(15);
/// A policy call on Sprites (RUL-L-44).
const POLICY_CALL: Duration = Duration::from_secs(90);

/// Why an effect was not had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The guard said no and nothing was sent, or a server that keeps epochs has seen a newer one (RUL-L-2).
    #[error("superseded")]
    Superseded,
    #[error(transparent)]
    Provider(SandboxError),
}

impl CallError {
    fn from_provider(error: SandboxError) -> Self {
        if error.is_stale_epoch() {
            return Self::Superseded;
        }
        Self::Provider(error)
    }

    /// Whether the build path tries once more (sandbox-contract 8).
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Provider(error) if error.is_transient() => Verdict::Transient,
            Self::Provider(_) | Self::Superseded => Verdict::Permanent,
        }
    }
}

impl From<Superseded> for CallError {
    fn from(_: Superseded) -> Self {
        Self::Superseded
    }
}

/// What was sent and what came back, for the journal row. Classes only, never a provider's words (RUL-L-60).
#[derive(Default)]
pub(crate) struct Trace {
    calls: RefCell<Vec<&'static str>>,
    answer: RefCell<Option<&'static str>>,
    /// Something may stand at the provider that a failed build has to delete (RUL-L-21).
    created: Cell<bool>,
    /// A create was sent and its answer lost: it may act minutes from now, whatever a look says today (RUL-L-3).
    lost_create: Cell<bool>,
}

impl Trace {
    /// An earlier build may have left something under this name.
    pub fn inherited_create(&self) {
        self.created.set(true);
    }

    /// Whatever a create may have made is gone, was never made, or is not ours.
    pub fn settled_create(&self) {
        self.created.set(false);
    }

    pub fn owes_delete(&self) -> bool {
        self.created.get()
    }

    /// How a build that made nothing ended, for the journal: a lost create stays a debt.
    pub fn failure(&self) -> Outcome {
        if self.lost_create.get() {
            Outcome::Unknown
        } else {
            Outcome::Failed
        }
    }

    fn sent(&self, call: &'static str) {
        // A poll of ninety gets says no more than one.
        let mut calls = self.calls.borrow_mut();
        if calls.last() != Some(&call) {
            calls.push(call);
        }
    }

    fn answered<T>(&self, answer: &Result<T, SandboxError>) {
        self.answer
            .replace(Some(answer.as_ref().map_or_else(SandboxError::class, |_| "ok")));
    }

    /// The journal's last word on the operation.
    pub fn receipt(&self, outcome: Outcome, evidence: Option<Value>) -> Receipt {
        let calls = self.calls.borrow();
        Receipt {
            outcome,
            provider_call: (!calls.is_empty()).then(|| calls.join(",")),
            provider_answer: self.answer.borrow().map(str::to_owned),
            evidence,
        }
    }
}

/// One machine at its provider.
pub(crate) struct Facade {
    adapter: Arc<dyn SandboxAdapter>,
    handle: Handle,
    trace: Trace,
    probe_timeout: Duration,
}

impl Facade {
    /// The machine of this row.
    ///
    /// # Errors
    /// `Invalid` when the row's provider is not configured here.
    pub fn of(site: &Site, machine: &Machine) -> Result<Self, SandboxError> {
        let adapter = Arc::clone(site.world.adapters.get(machine.provider)?);
        Ok(Self {
            handle: adapter.handle(&machine.name),
            adapter,
            trace: Trace::default(),
            probe_timeout: site.world.settings.probe_timeout,
        })
    }

    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The row was given another name (RUL-L-22).
    pub fn rename(&mut self, name: &str) {
        self.handle = self.adapter.handle(name);
    }

    pub fn capabilities(&self) -> BTreeSet<Capability> {
        self.adapter.capabilities()
    }

    /// Sends one call that changes something.
    async fn effect<T, F>(
        &self,
        lease: &Lease,
        name: &'static str,
        bound: Duration,
        call: impl FnOnce() -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, SandboxError>>,
    {
        lease.guard().await?;
        let flight = lease.take_off();
        let answer = self.ask(name, bound, call).await;
        flight.landed();
        answer.map_err(CallError::from_provider)
    }

    /// Sends one call; bounded, and a panic in it is an answer.
    async fn ask<T, F>(&self, name: &'static str, bound: Duration, call: impl FnOnce() -> F) -> Result<T, SandboxError>
    where
        F: Future<Output = Result<T, SandboxError>>,
    {
        self.trace.sent(name);
        let sent = tokio::time::Instant::now();
        let guarded = AssertUnwindSafe(async { call().await }).catch_unwind();
        let answer = match tokio::time::timeout(bound, guarded).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(self.broken("the adapter panicked")),
            Err(_) => Err(SandboxError::Unavailable(format!("{name} did not answer in time"))),
        };
        self.trace.answered(&answer);
        tracing::debug!(
            machine.name = %self.handle.name, provider = %self.handle.provider, op = name,
            duration_ms = sent.elapsed().as_millis() as u64, error = answer.as_ref().err().map(SandboxError::class),
            "provider call"
        );
        answer
    }

    fn broken(&self, detail: &str) -> SandboxError {
        SandboxError::Provider {
            provider: self.provider(),
            detail: detail.into(),
        }
    }

    fn provider(&self) -> Provider {
        self.handle.provider
    }

    pub async fn create(&self, lease: &Lease) -> Result<Created, CallError> {
        let epoch = Some(lease.epoch());
        lease.guard().await?;
        self.trace.created.set(true);
        let created = self
            .effect(lease, "create", LONGEST_CALL, || {
                self.adapter.create(&self.handle.name, epoch)
            })
            .await;
        if matches!(&created, Err(CallError::Provider(error)) if !error.is_refusal()) {
            self.trace.lost_create.set(true);
        }
        created
    }

    pub fn deletes_with_proof(&self) -> bool {
        self.capabilities().contains(&Capability::DestroyOnce)
    }

    /// Deletes the machine; says whether its absence is confirmed with that (RUL-L-91).
    pub async fn destroy(&self, fence: &Fence<'_>) -> Result<bool, CallError> {
        let epoch = Some(fence.lease().epoch());
        if self.deletes_with_proof() {
            let how = DestroyOnce {
                epoch,
                ..DestroyOnce::default()
            };
            self.effect(fence.lease(), "destroy_once", LONGEST_CALL, || {
                self.adapter.destroy_once(&self.handle, how)
            })
            .await?;
            return Ok(true);
        }
        self.effect(fence.lease(), "destroy", LONGEST_CALL, || {
            self.adapter.destroy(&self.handle, epoch)
        })
        .await?;
        Ok(false)
    }

    pub async fn suspend(&self, lease: &Lease) -> Result<(), CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "suspend", LONGEST_CALL, || {
            self.adapter.suspend(&self.handle, epoch)
        })
        .await
    }

    pub async fn resume(&self, lease: &Lease) -> Result<(), CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "resume", LONGEST_CALL, || {
            self.adapter.resume(&self.handle, epoch)
        })
        .await
    }

    pub async fn write_file(&self, lease: &Lease, file: &PlannedFile) -> Result<(), CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "write_file", LONGEST_CALL, || {
            self.adapter
                .write_file(&self.handle, &file.path, file.content.clone(), file.mode, epoch)
        })
        .await
    }

    /// Runs a command of a build to its end; a code that is not zero is an answer.
    pub async fn exec(&self, lease: &Lease, line: &Line) -> Result<ExecOutput, CallError> {
        self.effect(lease, "exec", line.limit + EXEC_SLACK, || {
            let options = ExecOptions {
                env: line.env.clone(),
                dir: line.dir.clone(),
                timeout: Some(line.limit),
                stderr_to_stdout: true,
                epoch: Some(lease.epoch()),
            };
            self.adapter.exec(&self.handle, line.command, &line.arguments, options)
        })
        .await
    }

    /// Puts the machine's disk back to a checkpoint.
    pub async fn restore(&self, lease: &Lease, id: &str) -> Result<(), CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "restore", LONGEST_CALL, || {
            self.adapter.restore_checkpoint(&self.handle, id, epoch)
        })
        .await
    }

    /// Takes a checkpoint, within `bound`, and answers its id.
    pub async fn create_checkpoint(&self, lease: &Lease, comment: &str, bound: Duration) -> Result<String, CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "checkpoint", bound, || {
            self.adapter.create_checkpoint(&self.handle, comment, epoch)
        })
        .await
    }

    pub async fn delete_checkpoint(&self, lease: &Lease, id: &str) -> Result<(), CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "delete_checkpoint", LONGEST_CALL, || {
            self.adapter.delete_checkpoint(&self.handle, id, epoch)
        })
        .await
    }

    /// Which service this is, for what is remembered about it (RUL-L-34).
    pub fn address(&self) -> String {
        self.adapter.address()
    }

    /// The machine's own address for browsers, as far as it has one; a look that nothing depends on.
    pub async fn public_url(&self) -> Option<String> {
        let asked = AssertUnwindSafe(self.adapter.public_url(&self.handle)).catch_unwind();
        match tokio::time::timeout(self.probe_timeout, asked).await {
            Ok(Ok(Ok(url))) => Some(url),
            _ => None,
        }
    }

    /// [`Facade::enforce_once`], three times at most: one way for builds, wakes and reattaches (RUL-L-97).
    pub async fn enforce(&self, site: &Site, lease: &Lease, policy: &NetworkPolicy) -> Result<Value, CallError> {
        let apply = |_| self.enforce_once(lease, policy);
        let chance = &mut || site.world.rng.unit();
        retry(Policy::CONTRACT, chance, CallError::verdict, apply).await
    }

    /// Applies a policy and, where the provider can, reads it back (promise 9). Answers the evidence.
    async fn enforce_once(&self, lease: &Lease, policy: &NetworkPolicy) -> Result<Value, CallError> {
        let epoch = Some(lease.epoch());
        self.effect(lease, "policy", POLICY_CALL, || {
            self.adapter.apply_network_policy(&self.handle, policy, epoch)
        })
        .await?;
        let read = self
            .ask("policy_read", POLICY_CALL, || self.adapter.network_policy(&self.handle))
            .await;
        match read {
            Ok(in_force) if same_rules(&in_force, policy) => Ok(json!("read_back")),
            Ok(_) => Err(CallError::Provider(self.broken("another network policy is in force"))),
            Err(SandboxError::NotSupported) => Ok(json!("acknowledged")),
            Err(error) => Err(CallError::Provider(error)),
        }
    }

    /// A look; changes nothing and needs no lease.
    pub async fn get(&self) -> Result<Info, SandboxError> {
        self.ask("get", self.probe_timeout, || self.adapter.get(&self.handle))
            .await
    }

    /// A look at what runs there.
    pub async fn sessions(&self) -> Result<Vec<Session>, SandboxError> {
        self.ask("list_sessions", self.probe_timeout, || {
            self.adapter.list_sessions(&self.handle)
        })
        .await
    }

    /// Where a path is on the host; the path itself where that cannot be told.
    pub async fn host_path(&self, path: &str) -> String {
        let asked = AssertUnwindSafe(self.adapter.host_path(&self.handle, path)).catch_unwind();
        match tokio::time::timeout(self.probe_timeout, asked).await {
            Ok(Ok(found)) => found,
            _ => path.to_owned(),
        }
    }
}

/// The order of the hosts means nothing.
fn same_rules(one: &NetworkPolicy, other: &NetworkPolicy) -> bool {
    let hosts = |policy: &NetworkPolicy| policy.allow.iter().cloned().collect::<BTreeSet<_>>();
    hosts(one) == hosts(other)
}
