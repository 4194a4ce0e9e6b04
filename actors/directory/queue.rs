//! Launches that wait: into the queue, and out of it through the same gates as every other (lifecycle 2.7; R-103;
//! RUL-L-58).
//!
//! A start that reserves a machine ends its request in the reservation's transaction. One that joins a machine or a
//! channel has two steps, the joining and the prompt; its conversation carries the request (or is found by its channel),
//! and the turn itself shows whether the prompt arrived, so that a second claim delivers what the first did not.

use super::Engine;
use crate::conversation::launch::{self, Opened};
use crate::domain::account::{Account, Caller, NewAudit, Scope};
use crate::domain::conversation::Conversation;
use crate::domain::queue::{QueuedLaunch, RequestKind, RequestSource, RequestView, Setback};
use crate::domain::turn::Prompt;
use crate::domain::{AccountId, AgentId, ConversationId, ErrorCode, KeyId, Refusal, ScheduleId};
use crate::doors::{LaunchRequest, LaunchedOrQueued};
use crate::ports::store::queue::{ClaimedRequest, Enqueued, NewRequest};

/// What a claimed request came to. What is not yet written is to be written by whoever holds the claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Replayed {
    /// Reserved; the request is `started` already.
    Started(ConversationId),
    /// The prompt arrived in a conversation that exists; the request is to be ended.
    Delivered(ConversationId),
    Refused(Refusal),
}

/// A request to be queued, before anybody looked for room.
pub(super) struct Wish {
    pub account: AccountId,
    pub agent: AgentId,
    pub kind: RequestKind,
    pub source: RequestSource,
    pub schedule: Option<ScheduleId>,
    pub launch: QueuedLaunch,
    pub audit: NewAudit,
}

/// A caller for what the product does by itself on an account's behalf. No key was shown.
pub(super) fn on_behalf_of(account: Account, scope: Scope) -> Caller {
    Caller {
        account,
        key_id: KeyId(uuid::Uuid::nil()),
        scope,
        remote_ip: None,
    }
}

/// The part of a launch that waits; None when it is one that never waits.
fn waiting(caller: &Caller, request: &LaunchRequest) -> Option<QueuedLaunch> {
    let prompt = request.prompt.as_ref();
    if request.sandbox_id.is_some() || prompt.is_some_and(|prompt| !prompt.images.is_empty()) {
        return None;
    }
    Some(QueuedLaunch {
        prompt: prompt.map(|prompt| prompt.text.clone()),
        client_request_id: prompt.and_then(|prompt| prompt.client_request_id.clone()),
        title: request.title.clone(),
        vault_id: request.vault_id,
        environment_id: request.environment_id,
        inference_credential_id: request.inference_credential_id,
        model: request.model.clone(),
        permission_policy: request.permission_policy.clone(),
        sandbox_mode: request.sandbox_mode,
        sandbox_api_access: request.sandbox_api_access,
        sprite_name: request.sprite_name.clone(),
        channel_id: request.channel_id.clone(),
        fresh: request.fresh,
        labels: request.labels.clone(),
        parent: request.parent.clone(),
        asked_by: match caller.scope {
            Scope::Sprite(conversation) => Some(conversation),
            Scope::Full | Scope::Runner(_) => None,
        },
    })
}

fn prompt_of(launch: &QueuedLaunch) -> Option<Prompt> {
    launch.prompt.clone().map(|text| Prompt {
        text,
        images: Vec::new(),
        client_request_id: launch.client_request_id.clone(),
    })
}

fn request_of(agent: AgentId, launch: &QueuedLaunch) -> LaunchRequest {
    LaunchRequest {
        agent_id: agent,
        prompt: prompt_of(launch),
        title: launch.title.clone(),
        vault_id: launch.vault_id,
        environment_id: launch.environment_id,
        inference_credential_id: launch.inference_credential_id,
        model: launch.model.clone(),
        permission_policy: launch.permission_policy.clone(),
        sandbox_mode: launch.sandbox_mode,
        sandbox_id: None,
        sandbox_api_access: launch.sandbox_api_access,
        sprite_name: launch.sprite_name.clone(),
        channel_id: launch.channel_id.clone(),
        fresh: launch.fresh,
        labels: launch.labels.clone(),
        parent: launch.parent.clone(),
    }
}

impl Engine {
    /// A launch that waits when there is no room for it. What opened something never waits: its conversation stands.
    pub(super) async fn launch_or_wait(
        &self,
        caller: &Caller,
        request: LaunchRequest,
    ) -> Result<LaunchedOrQueued, Refusal> {
        let (agent, prompt) = (request.agent_id, request.prompt.clone());
        let waits = waiting(caller, &request);
        let source = match &request.parent {
            Some(_) => RequestSource::Agent,
            None => RequestSource::Api,
        };
        let refusal = match launch::open(self, caller, request, None).await {
            Ok(opened) => {
                let launched = self.serve_opened(caller, prompt, opened).await?;
                return Ok(LaunchedOrQueued::Launched(launched));
            }
            Err(refusal) => refusal,
        };
        let Some(launch) = waits.filter(|_| Setback::of(refusal.code()) == Setback::NoRoom) else {
            return Err(refusal);
        };
        let wish = Wish {
            account: caller.account_id(),
            agent,
            kind: RequestKind::Start,
            source,
            schedule: None,
            launch,
            audit: NewAudit {
                account_id: Some(caller.account_id()),
                action: "sandbox_request.enqueued",
                resource_type: "sandbox_request",
                resource_id: None,
                actor: caller.actor(),
                request_ip: caller.remote_ip.clone(),
                metadata: [("agent_id", agent.to_string().into())].into(),
            },
        };
        // A full queue keeps the answer that there would have been without one.
        let queued = self.enqueue(wish).await?.ok_or(refusal)?;
        Ok(LaunchedOrQueued::Queued(queued))
    }

    /// Puts a wish into its line; None when the line is full.
    pub(super) async fn enqueue(&self, wish: Wish) -> Result<Option<RequestView>, Refusal> {
        let world = self.world();
        let id = world.id();
        let new = NewRequest {
            id,
            account_id: wish.account,
            agent_id: wish.agent,
            kind: wish.kind,
            source: wish.source,
            schedule_id: wish.schedule,
            launch: wish.launch,
            depth: world.settings.queue_max_depth,
            audit: NewAudit {
                resource_id: Some(id.to_string()),
                ..wish.audit
            },
            now: world.now(),
        };
        let enqueued = world.store.enqueue(new).await.map_err(|error| error.refusal())?;
        match enqueued.announce(&*world.bus) {
            Enqueued::Waits(view) => {
                // The slot may have become free between the refusal and the row.
                world.bus.slot_freed();
                Ok(Some(view))
            }
            Enqueued::Known(view) => Ok(Some(view)),
            Enqueued::Full => Ok(None),
        }
    }

    /// Starts a claimed request.
    pub async fn replay(&self, claim: &ClaimedRequest) -> Replayed {
        match self.try_replay(claim).await {
            Ok(replayed) => replayed,
            Err(refusal) => Replayed::Refused(refusal),
        }
    }

    async fn try_replay(&self, claim: &ClaimedRequest) -> Result<Replayed, Refusal> {
        self.check_open()?;
        let (world, request) = (self.world(), &claim.request);
        let Some(launch) = &request.launch else {
            return Err(ErrorCode::SandboxUnavailable.into()); // it has ended since
        };
        let account = world.store.account(request.account_id).await;
        let account = account.map_err(|error| error.refusal())?.ok_or(ErrorCode::NotFound)?;
        let scope = launch.asked_by.map_or(Scope::Full, Scope::Sprite);
        let caller = on_behalf_of(account, scope);
        if !caller.account.is_active() {
            return Err(ErrorCode::AccountSuspended.into());
        }
        if let Some(opened) = claim.opened {
            let row = self.owned(request.account_id, opened).await?;
            return self.deliver_request(&caller, claim, &row).await;
        }
        if request.kind == RequestKind::ScheduleRun
            && let Some(team) = self.team_conversation(request.account_id, request.agent_id).await?
        {
            return self.deliver_request(&caller, claim, &team).await;
        }
        match launch::open(self, &caller, request_of(request.agent_id, launch), Some(claim)).await? {
            Opened::Reserved(view) => {
                let id = view.conversation.id;
                self.serve_opened(&caller, None, Opened::Reserved(view)).await?;
                Ok(Replayed::Started(id))
            }
            // Somebody bound the channel or built the home while this one waited: the prompt goes there.
            Opened::Attached(view) | Opened::Resumed(view) => {
                self.deliver_request(&caller, claim, &view.conversation).await
            }
        }
    }

    /// Sends the prompt of a request into a conversation, unless an earlier claim did.
    async fn deliver_request(
        &self,
        caller: &Caller,
        claim: &ClaimedRequest,
        row: &Conversation,
    ) -> Result<Replayed, Refusal> {
        let store = &self.world().store;
        let arrived = store.request_delivered(claim.clone(), row.id).await;
        if !arrived.map_err(|error| error.refusal())? {
            if row.status.is_terminal() {
                return Err(ErrorCode::ConversationTerminated.into());
            }
            if let Some(prompt) = claim.request.launch.as_ref().and_then(prompt_of) {
                self.deliver_prompt(caller, row, prompt).await?;
            }
        }
        Ok(Replayed::Delivered(row.id))
    }
}
