//! A prompt at the gates: its turn in the line, the wake, the admission (lifecycle 5.3, 6.2; RUL-1, 3 to 7, 13; walk 8.4).
//!
//! One prompt is admitted at a time; those behind it wait with their own deadlines and hear `conversation_busy` as soon
//! as it is in, or are tried on their own merits when it is refused. A request that is answered with an error opens no
//! turn later: it is dropped from the line at its deadline, and once its transaction is out only that may answer it.

use actix::prelude::*;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::launch::place;
use super::messages::{Ask, Miss};
use super::{ConversationActor, Waiting, Work};
use crate::directory::Engine;
use crate::domain::agent::Agent;
use crate::domain::conversation::Conversation;
use crate::domain::machine::{Machine, MachineStatus};
use crate::domain::turn::Turn;
use crate::domain::{ErrorCode, Moment, Refusal, ServerEpoch, SpawnId};
use crate::machine::messages::{EnsureUp, Usable};
use crate::ports::World;
use crate::ports::clock::after;
use crate::ports::store::conversations::NewMachine;
use crate::ports::store::turns::{Admit, QueueTurn};
use crate::ports::store::{Committed, StoreError};

use super::profile::Profile;
use super::spend;

/// What came of a prompt at the gates.
enum Admission {
    /// The turn is `running`.
    In {
        turn: Box<Committed<Turn>>,
        agent: Box<Agent>,
        machine: Box<Machine>,
        /// The machine was parked: no process of before lives.
        resumed: bool,
        announced: bool,
    },
    /// The turn is `pending`: a machine has to be built first (RUL-5, RUL-6, RUL-13).
    Queued,
    /// The configuration moved on: the next generation admits it.
    Reload,
    Out(Miss),
}

/// What the gates judge by. A copy: the actor goes on while they do.
struct Gate {
    engine: Engine,
    world: World,
    conversation: Conversation,
    machine: Machine,
    epoch: ServerEpoch,
    /// Of the idle connection that would run the turn, if there is one.
    reuse: Option<SpawnId>,
    ask: Ask,
    /// The deadline on the lease clock.
    until: Moment,
}

impl Handler<Ask> for ConversationActor {
    type Result = ResponseFuture<Result<(), Miss>>;

    fn handle(&mut self, ask: Ask, ctx: &mut Context<Self>) -> Self::Result {
        let (reply, answer) = oneshot::channel();
        self.tickets += 1;
        let ticket = self.tickets;
        let left = ask.deadline.saturating_duration_since(Instant::now());
        self.prompts.push_back(Waiting { ask, reply, ticket });
        ctx.run_later(left, move |actor, _| actor.expire_prompt(ticket));
        self.next_prompt(ctx);
        Box::pin(async move { answer.await.unwrap_or(Err(Miss::Retry)) })
    }
}

impl ConversationActor {
    /// Takes the next prompt, or says why there is none to take.
    pub(super) fn next_prompt(&mut self, ctx: &mut Context<Self>) {
        if self.work == Some(Work::Ending) {
            for waiting in self.prompts.drain(..) {
                let _ = waiting.reply.send(Err(Miss::Retry));
            }
            return;
        }
        let is_busy = self.pending.is_some() || self.turn.as_ref().is_some_and(|turn| !turn.ending);
        if is_busy {
            return self.refuse_all(&ErrorCode::ConversationBusy.into());
        }
        if self.work.is_some() || self.turn.is_some() {
            return; // it waits, with its deadline
        }
        if let Some(waiting) = self.prompts.pop_front() {
            self.work = Some(Work::Admitting);
            self.admit(waiting, ctx);
        }
    }

    /// Everybody in the line gets this answer.
    pub(super) fn refuse_all(&mut self, refusal: &Refusal) {
        for waiting in self.prompts.drain(..) {
            let _ = waiting.reply.send(Err(Miss::Refused(refusal.clone())));
        }
    }

    /// The deadline of a prompt that still stands in the line.
    fn expire_prompt(&mut self, ticket: u64) {
        let code = match self.work {
            Some(Work::Building) => ErrorCode::Provisioning,
            _ => ErrorCode::SandboxUnavailable,
        };
        if let Some(at) = self.prompts.iter().position(|waiting| waiting.ticket == ticket)
            && let Some(waiting) = self.prompts.remove(at)
        {
            let _ = waiting.reply.send(Err(code.into()));
        }
    }

    fn admit(&mut self, waiting: Waiting, ctx: &mut Context<Self>) {
        let Some(bound) = &self.bound else { return };
        let idle = self
            .connection
            .as_ref()
            .filter(|connection| connection.peer.is_idle() && !connection.input_over);
        let gate = Gate {
            engine: self.engine.clone(),
            world: self.world.clone(),
            conversation: bound.conversation.clone(),
            machine: bound.machine.clone(),
            epoch: bound.epoch,
            reuse: idle.map(|connection| connection.spawn_id),
            ask: waiting.ask.clone(),
            until: self.lease_moment(waiting.ask.deadline),
        };
        self.run(ctx, gate.pass(), move |actor, admission, ctx| {
            actor.admitted(waiting, admission, ctx)
        });
    }

    fn admitted(&mut self, waiting: Waiting, admission: Admission, ctx: &mut Context<Self>) {
        if self.work != Some(Work::Admitting) {
            // The server began to end while the transaction was out. The rows are true; the next server runs the turn.
            let _ = waiting.reply.send(match admission {
                Admission::In { .. } | Admission::Queued => Ok(()),
                Admission::Reload => Err(Miss::Retry),
                Admission::Out(miss) => Err(miss),
            });
            return;
        }
        self.work = None;
        match admission {
            Admission::In {
                turn,
                agent,
                machine,
                resumed,
                announced,
            } => {
                let turn = turn.announce(&*self.world.bus);
                let _ = waiting.reply.send(Ok(()));
                if let Some(bound) = self.bound.as_mut() {
                    bound.machine = *machine;
                }
                if let Some(profile) = self.profile.as_mut() {
                    std::sync::Arc::make_mut(profile).agent = Some(*agent);
                }
                if resumed {
                    self.drop_attachment(ctx);
                }
                self.run_turn(&turn, waiting.ask.prompt.images, announced, ctx);
            }
            Admission::Queued => {
                let _ = waiting.reply.send(Ok(()));
                self.drop_attachment(ctx);
                self.restart(ctx);
            }
            Admission::Reload => {
                self.prompts.push_front(waiting);
                self.retire_connection(ctx); // its agent was configured for the older selection
                self.restart(ctx);
            }
            Admission::Out(miss) => {
                let is_over = miss == Miss::Retry;
                let _ = waiting.reply.send(Err(miss));
                if is_over {
                    return self.superseded(ctx);
                }
                self.next_prompt(ctx);
            }
        }
    }
}

impl Gate {
    async fn pass(self) -> Admission {
        match self.try_pass().await {
            Ok(admission) => admission,
            Err(miss) => Admission::Out(miss),
        }
    }

    async fn try_pass(&self) -> Result<Admission, Miss> {
        let agent = match self.conversation.agent_id {
            Some(id) => self.world.store.agent(self.conversation.account_id, id).await?,
            None => None,
        };
        let agent = Box::new(agent.ok_or(ErrorCode::NoAgent)?);
        spend::refuse_limits(&self.world)?;
        spend::require_credit(&self.world, self.conversation.account_id).await?;
        if self.reuse.is_some() && self.machine.status == MachineStatus::Ready {
            match self.admit(&self.machine).await {
                Ok(turn) => {
                    return Ok(Admission::In {
                        turn: Box::new(turn),
                        agent,
                        machine: Box::new(self.machine.clone()),
                        resumed: false,
                        announced: false,
                    });
                }
                // Held, or parked underneath us: the machine's owner knows.
                Err(StoreError::Refused(refusal)) if refusal.code() == ErrorCode::SandboxUnavailable => {}
                Err(error) => return self.refused(error),
            }
        }
        let profile = Profile::resolve(&self.world, self.conversation.clone(), self.machine.clone()).await?;
        let ensure = EnsureUp {
            conversation: self.conversation.id,
            limits: self.engine.limits(),
            policy: profile.network(),
            actor: self.ask.actor.clone(),
            deadline: self.ask.deadline,
        };
        let usable = self.engine.ask_machine(self.machine.id, ensure).await;
        let (machine, resumed) = match usable.map_err(|error| error.refusal())? {
            Usable::AlreadyUp(machine) => (machine, false),
            Usable::Resumed(machine) => (machine, true),
            Usable::Lost(machine) | Usable::Gone(machine) => return self.queue(&machine, Some(&agent)).await,
            Usable::NotBuilt(machine) => return self.queue(&machine, None).await,
        };
        match self.admit_patiently(&machine).await {
            Ok(turn) => Ok(Admission::In {
                turn: Box::new(turn),
                agent,
                machine: Box::new(machine),
                resumed,
                announced: self.reuse.is_none(),
            }),
            Err(error) => self.refused(error),
        }
    }

    fn refused(&self, error: StoreError) -> Result<Admission, Miss> {
        match error {
            StoreError::Refused(refusal) if refusal.code() == ErrorCode::ConfigurationChanged => Ok(Admission::Reload),
            other => Err(other.into()),
        }
    }

    /// Waits for a lease that somebody holds: five seconds at most, and never past the deadline (lifecycle 6.2).
    async fn admit_patiently(&self, machine: &Machine) -> Result<Committed<Turn>, StoreError> {
        let settings = &self.world.settings;
        let until = self.ask.deadline.min(Instant::now() + settings.busy_wait);
        loop {
            match self.admit(machine).await {
                Err(StoreError::Refused(refusal))
                    if refusal.code() == ErrorCode::SandboxUnavailable
                        && Instant::now() + settings.busy_poll < until =>
                {
                    tokio::time::sleep(settings.busy_poll).await;
                }
                answer => return answer,
            }
        }
    }

    /// C1: the locked insert.
    async fn admit(&self, machine: &Machine) -> Result<Committed<Turn>, StoreError> {
        let admit = Admit {
            conversation_id: self.conversation.id,
            server_epoch: self.epoch,
            machine_id: machine.id,
            revision: self.conversation.configuration_revision,
            turn_id: self.world.id(),
            prompt: self.ask.prompt.clone(),
            spawn_id: self.reuse.or_else(|| Some(self.world.id())),
            announce: self.reuse.is_none(),
            answers: self.ask.answers.clone(),
            deadline: self.until,
            audit: self.ask.audit.clone(),
            now: self.world.now(),
        };
        self.world.store.admit_turn(admit).await
    }

    /// The prompt waits for a build: of the same row, or of a fresh one where the old has ended.
    async fn queue(&self, seen: &Machine, fresh_for: Option<&Agent>) -> Result<Admission, Miss> {
        let world = &self.world;
        let fresh = match fresh_for {
            None => None,
            Some(agent) => {
                let placed = place(world, self.conversation.account_id, seen.provider, None)?;
                Some(NewMachine {
                    id: world.id(),
                    name: placed.name,
                    mode: seen.mode,
                    runtime: self.conversation.runtime,
                    provider: seen.provider,
                    provider_meta: placed.meta,
                    agent_id: agent.id,
                    environment_id: self.conversation.environment_id.or(agent.config.environment_id),
                    vault_id: self.conversation.vault_id,
                })
            }
        };
        let now = world.now();
        let queue = QueueTurn {
            account_id: self.conversation.account_id,
            conversation_id: self.conversation.id,
            turn_id: world.id(),
            prompt: self.ask.prompt.clone(),
            pending_until: after(now, world.settings.pending_turn_limit),
            seen_machine: seen.id,
            fresh,
            answers: self.ask.answers.clone(),
            limits: self.engine.limits(),
            audit: self.ask.audit.clone(),
            now,
        };
        if Instant::now() >= self.ask.deadline {
            return Err(ErrorCode::SandboxUnavailable.into()); // RUL-3: nothing is left behind
        }
        world.store.queue_turn(queue).await?.announce(&*world.bus);
        Ok(Admission::Queued)
    }
}
