//! What the outside may ask, found its owner (http-api 5.7; `crate::doors`).
//!
//! A door reads at most the row that says whose the conversation is, and hands the request to the server that acts. No
//! rule of the domain is decided here, except that ended, foreign and missing things are told apart.

use actix::MailboxError;
use serde_json::Value;
use tokio::time::Instant;

use super::Engine;
use crate::conversation::messages::{Ask, Deliver, Interrupt, Miss, StandDown, Terminate};
use crate::conversation::{Cause, ConversationActor, destroy_behind, launch, terminate};
use crate::domain::account::{Actor as By, Caller, NewAudit, Scope};
use crate::domain::conversation::Conversation;
use crate::domain::schedule::Schedule;
use crate::domain::turn::{DetachedAnswer, Prompt};
use crate::domain::{ConversationId, ErrorCode, MachineId, Refusal};
use crate::doors::{Answer, Doors, LaunchRequest, Launched, LaunchedOrQueued};
use crate::machine::messages::Reset;
use crate::ports::store::StoreError;
use crate::ports::store::catalog::Fenced;

impl Doors for Engine {
    fn launch(&self, caller: Caller, request: LaunchRequest) -> Answer<'_, Launched> {
        Box::pin(async move {
            self.check_open()?;
            let prompt = request.prompt.clone();
            let opened = launch::open(self, &caller, request, None).await?;
            self.serve_opened(&caller, prompt, opened).await
        })
    }

    fn launch_or_queue(&self, caller: Caller, request: LaunchRequest) -> Answer<'_, LaunchedOrQueued> {
        Box::pin(async move {
            self.check_open()?;
            self.launch_or_wait(&caller, request).await
        })
    }

    fn run_schedule(&self, caller: Caller, schedule: Schedule) -> Answer<'_, ConversationId> {
        Box::pin(async move {
            self.check_open()?;
            self.run_schedule_now(&caller, &schedule).await
        })
    }

    fn prompt(&self, caller: Caller, conversation: ConversationId, prompt: Prompt) -> Answer<'_, ()> {
        Box::pin(async move {
            self.check_open()?;
            let row = self.owned(caller.account_id(), conversation).await?;
            if row.status.is_terminal() {
                return Err(ErrorCode::ConversationTerminated.into());
            }
            if !caller.account.is_active() {
                return Err(ErrorCode::AccountSuspended.into());
            }
            self.deliver_prompt(&caller, &row, prompt).await
        })
    }

    fn interrupt(&self, caller: Caller, conversation: ConversationId) -> Answer<'_, ()> {
        Box::pin(async move {
            let row = self.owned(caller.account_id(), conversation).await?;
            let audit = audit(&caller, conversation, "conversation.interrupted", Vec::new());
            for _ in 0..2 {
                let Some(server) = self.inner.seats.live_server(conversation) else {
                    break;
                };
                match server.send(Interrupt { audit: audit.clone() }).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(Miss::Refused(refusal))) => return Err(refusal),
                    Ok(Err(Miss::Retry)) | Err(_) => self.inner.seats.forget_server(conversation, None),
                }
            }
            let world = self.world();
            let answer = world
                .store
                .interrupt(caller.account_id(), conversation, audit, world.now())
                .await;
            let interrupted = answer.map_err(|error| error.refusal())?.announce(&*world.bus);
            if interrupted.process.is_some() {
                self.serve(conversation, row.machine_id); // it stops the process, now or when its runner is back
            }
            Ok(())
        })
    }

    fn terminate(&self, caller: Caller, conversation: ConversationId) -> Answer<'_, ()> {
        Box::pin(async move {
            let row = self.owned(caller.account_id(), conversation).await?;
            if row.status.is_terminal() {
                return Ok(());
            }
            self.end(&caller, &row).await
        })
    }

    fn delete_conversation(&self, caller: Caller, conversation: ConversationId) -> Answer<'_, ()> {
        Box::pin(async move {
            let row = self.owned(caller.account_id(), conversation).await?;
            if !row.status.is_terminal() {
                self.end(&caller, &row).await?;
            }
            let world = self.world();
            let audit = audit(&caller, conversation, "conversation.deleted", Vec::new());
            let account = caller.account_id();
            let deleted = world
                .store
                .delete_conversation(account, conversation, audit, world.now())
                .await;
            deleted.map_err(|error| error.refusal())
        })
    }

    fn answer_permission(
        &self,
        caller: Caller,
        conversation: ConversationId,
        request_id: String,
        option_id: String,
    ) -> Answer<'_, ()> {
        Box::pin(async move {
            if matches!(caller.scope, Scope::Sprite(_)) {
                return Err(Refusal::ScopeTooSmall(ErrorCode::SpriteMayNotAnswer));
            }
            let world = self.world();
            let account = caller.account_id();
            let row = self.owned(account, conversation).await?;
            let (request, option) = (request_id.clone(), option_id.clone());
            let stored = world
                .store
                .answer_permission(account, conversation, request, option, caller.actor(), world.now())
                .await;
            if let Err(StoreError::Refused(refusal)) = &stored
                && refusal.code() == ErrorCode::PermissionRequestResolved
            {
                // Asked second: a request goes from its running turn to the detached ones, and never back.
                let waiting = world.store.detached_request(account, conversation, request_id).await;
                if let Some(waiting) = waiting.map_err(|error| error.refusal())? {
                    self.check_open()?;
                    return self
                        .answer_detached(&caller, &row, &waiting.permission, option_id)
                        .await;
                }
            }
            let (turn_id, permission) = stored.map_err(|error| error.refusal())?;
            if let Some(server) = self.inner.seats.live_server(conversation) {
                // Durable already: whoever serves the turn next sends it too (walk 8.5).
                let _ = server.send(Deliver { turn_id, permission }).await;
            }
            Ok(())
        })
    }

    fn reset(&self, caller: Caller, machine: MachineId) -> Answer<'_, ()> {
        Box::pin(async move {
            let found = self
                .world()
                .store
                .machine(machine)
                .await
                .map_err(|error| error.refusal())?;
            if found.is_none_or(|found| found.account_id != Some(caller.account_id())) {
                return Err(ErrorCode::NotFound.into());
            }
            let reset = Reset {
                actor: caller.actor(),
                request_ip: caller.remote_ip.clone(),
            };
            let answer = self.ask_machine(machine, reset).await;
            let is_fenced = match &answer {
                Ok(()) => true,
                Err(error) => error.refusal().code() == ErrorCode::SandboxResetPending,
            };
            if is_fenced {
                self.stand_down(machine);
            }
            answer.map_err(|error| error.refusal())
        })
    }

    fn destroy_fenced(&self, fenced: Fenced) {
        for conversation in fenced.ended {
            if let Some(server) = self.inner.seats.live_server(conversation) {
                server.do_send(StandDown);
            }
        }
        for machine in fenced.machines {
            self.stand_down(machine);
            self.destroy_behind(machine, By::System("identity"));
        }
    }

    fn is_live(&self, conversation: ConversationId) -> bool {
        Engine::is_live(self, conversation)
    }

    fn is_member(&self) -> bool {
        Engine::is_member(self)
    }
}

impl Engine {
    /// Every server on a machine that goes stops without a word; the rows were written by who fenced it.
    pub(super) fn stand_down(&self, machine: MachineId) {
        for conversation in self.live_on(machine) {
            if let Some(server) = self.inner.seats.live_server(conversation) {
                server.do_send(StandDown);
            }
        }
    }

    /// What follows a reservation or an attach: a server, or the first prompt.
    pub(super) async fn serve_opened(
        &self,
        caller: &Caller,
        prompt: Option<Prompt>,
        opened: launch::Opened,
    ) -> Result<Launched, Refusal> {
        match opened {
            launch::Opened::Resumed(view) => Ok(Launched { view, resumed: true }),
            launch::Opened::Reserved(view) => {
                self.server(view.conversation.id, view.machine.id, Cause::Launch);
                Ok(Launched { view, resumed: false })
            }
            launch::Opened::Attached(view) => {
                let id = view.conversation.id;
                let Some(prompt) = prompt else {
                    return Ok(Launched { view, resumed: false });
                };
                // The attach stands whatever becomes of its first prompt (RUL-L-82).
                self.deliver_prompt(caller, &view.conversation, prompt).await?;
                let fresh = self.world().store.conversation_view(caller.account_id(), id).await;
                let view = fresh.map_err(|error| error.refusal())?.unwrap_or(view);
                Ok(Launched { view, resumed: false })
            }
        }
    }

    pub(super) async fn deliver_prompt(
        &self,
        caller: &Caller,
        row: &Conversation,
        prompt: Prompt,
    ) -> Result<(), Refusal> {
        self.deliver(caller, row, prompt, None).await
    }

    /// Hands a prompt, or the answer to a detached request, to the conversation's server.
    pub(super) async fn deliver(
        &self,
        caller: &Caller,
        row: &Conversation,
        prompt: Prompt,
        answers: Option<DetachedAnswer>,
    ) -> Result<(), Refusal> {
        let size = ("prompt_bytes", prompt.text.len().into());
        let images = ("images", prompt.images.len().into());
        let action = match &answers {
            Some(_) => "conversation.request_answered",
            None => "conversation.prompted",
        };
        let ask = Ask {
            audit: audit(caller, row.id, action, vec![size, images]),
            prompt,
            answers,
            actor: caller.actor(),
            deadline: Instant::now() + self.world().settings.wake_wait,
        };
        // A server that dies under the request has done nothing, or the rows say what: the next one knows.
        for _ in 0..3 {
            let server = self.server(row.id, row.machine_id, Cause::Demand);
            match server.send(ask.clone()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Miss::Refused(refusal))) => return Err(refusal),
                Ok(Err(Miss::Retry)) => self.gone(row.id, &server).await,
                Err(MailboxError::Closed | MailboxError::Timeout) => {
                    self.inner.seats.forget_server(row.id, None);
                }
            }
        }
        Err(ErrorCode::SandboxUnavailable.into())
    }

    /// Lets a server that is over finish its stop, so that the next question finds another.
    async fn gone(&self, id: ConversationId, server: &actix::Addr<ConversationActor>) {
        let settings = &self.world().settings;
        let until = Instant::now() + settings.busy_wait;
        while server.connected() && Instant::now() < until {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.inner.seats.forget_server(id, None);
    }

    /// C5, by the live server or without one.
    async fn end(&self, caller: &Caller, row: &Conversation) -> Result<(), Refusal> {
        let order = Terminate {
            actor: caller.actor(),
            request_ip: caller.remote_ip.clone(),
            deadline: Instant::now() + self.world().settings.wake_wait,
        };
        for _ in 0..2 {
            let Some(server) = self.inner.seats.live_server(row.id) else {
                break;
            };
            match server.send(order.clone()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Miss::Refused(refusal))) => return Err(refusal),
                Ok(Err(Miss::Retry)) | Err(_) => self.inner.seats.forget_server(row.id, None),
            }
        }
        let committed = terminate(self.world(), caller.account_id(), row.id, &order).await;
        let ended = committed.map_err(|error| error.refusal())?.announce(&*self.world().bus);
        destroy_behind(self, &ended);
        self.stop_behind(ended.to_stop);
        Ok(())
    }
}

fn audit(
    caller: &Caller,
    conversation: ConversationId,
    action: &'static str,
    metadata: Vec<(&'static str, Value)>,
) -> NewAudit {
    NewAudit {
        account_id: Some(caller.account_id()),
        action,
        resource_type: "conversation",
        resource_id: Some(conversation.to_string()),
        actor: caller.actor(),
        request_ip: caller.remote_ip.clone(),
        metadata: metadata.into_iter().collect(),
    }
}
