//! A schedule's run: its prompt goes into the agent's team conversation, which is opened where there is none (lifecycle 7;
//! http-api 5.11; R-104).
//!
//! A firing is known by its fire time: the turn that it became carries it as its client id, so that a run which is tried
//! again after a crash sees that it has happened.

use std::collections::BTreeMap;

use super::Engine;
use super::queue::{Wish, on_behalf_of};
use crate::conversation::launch;
use crate::domain::account::{Actor, Caller, NewAudit, Scope};
use crate::domain::conversation::{Conversation, ConversationFilter, ConversationStatus, SandboxApiAccess};
use crate::domain::queue::{QueuedLaunch, RequestKind, RequestSource, Setback};
use crate::domain::schedule::{SNOOZE, Schedule, TEAM_CHANNEL, TRIED_FOR};
use crate::domain::turn::Prompt;
use crate::domain::{AccountId, AgentId, ConversationId, ErrorCode, Moment, Refusal};
use crate::doors::LaunchRequest;
use crate::ports::clock::after;
use crate::ports::store::schedules::Fired;

fn said(error: crate::ports::store::StoreError) -> Refusal {
    error.refusal()
}

/// The client id of a firing's turn.
fn mark(schedule: &Schedule, fire_time: Moment) -> String {
    format!("schedule:{}:{}", schedule.id, fire_time.timestamp())
}

fn prompt(schedule: &Schedule, client_request_id: Option<String>) -> Prompt {
    Prompt {
        text: schedule.config.prompt.clone(),
        images: Vec::new(),
        client_request_id,
    }
}

fn team_launch(agent: AgentId, prompt: Prompt) -> LaunchRequest {
    LaunchRequest {
        agent_id: agent,
        prompt: Some(prompt),
        title: None,
        vault_id: None,
        environment_id: None,
        inference_credential_id: None,
        model: None,
        permission_policy: None,
        sandbox_mode: None,
        sandbox_id: None,
        sandbox_api_access: SandboxApiAccess::Owner,
        sprite_name: None,
        channel_id: Some(TEAM_CHANNEL.to_owned()),
        fresh: false,
        labels: BTreeMap::new(),
        parent: None,
    }
}

impl Engine {
    /// The live team conversation of an agent, whatever its environment and vault.
    pub(super) async fn team_conversation(
        &self,
        account: AccountId,
        agent: AgentId,
    ) -> Result<Option<Conversation>, Refusal> {
        use ConversationStatus as S;
        let filter = ConversationFilter {
            agent_id: Some(agent),
            channel_id: Some(TEAM_CHANNEL.to_owned()),
            statuses: vec![S::Pending, S::Running, S::Idle],
            limit: Some(1),
            ..ConversationFilter::default()
        };
        let views = self
            .world()
            .store
            .conversation_views(account, filter)
            .await
            .map_err(said)?;
        Ok(views.into_iter().next().map(|view| view.conversation))
    }

    /// Sends a prompt into the team conversation.
    async fn send_to_team(&self, caller: &Caller, agent: AgentId, prompt: Prompt) -> Result<ConversationId, Refusal> {
        if !caller.account.is_active() {
            return Err(ErrorCode::AccountSuspended.into());
        }
        let account = caller.account_id();
        if let Some(team) = self.team_conversation(account, agent).await? {
            if let Some(mark) = &prompt.client_request_id {
                let turns = self.world().store.turns(account, team.id).await.map_err(said)?;
                if turns.iter().any(|turn| turn.client_request_id.as_ref() == Some(mark)) {
                    return Ok(team.id); // it arrived before whoever sent it died
                }
            }
            self.deliver_prompt(caller, &team, prompt).await?;
            return Ok(team.id);
        }
        let request = team_launch(agent, prompt.clone());
        let opened = launch::open(self, caller, request, None).await?;
        let launched = self.serve_opened(caller, Some(prompt), opened).await?;
        Ok(launched.view.conversation.id)
    }

    /// A person's run.
    pub(super) async fn run_schedule_now(
        &self,
        caller: &Caller,
        schedule: &Schedule,
    ) -> Result<ConversationId, Refusal> {
        let sent = self
            .send_to_team(caller, schedule.agent_id, prompt(schedule, None))
            .await;
        let noted = sent.clone().map_err(|refusal| refusal.code().as_str().to_owned());
        let world = self.world();
        if let Err(error) = world.store.note_run(schedule.id, noted, world.now()).await {
            tracing::warn!(%error, "a schedule's run was not noted");
        }
        sent
    }

    /// The run of a claimed firing.
    pub async fn fire(&self, schedule: &Schedule) -> Fired {
        let Some(firing) = schedule.firing else {
            return Fired::Failed(ErrorCode::NotFound.as_str().to_owned());
        };
        let refusal = match self.try_fire(schedule, firing.at).await {
            Ok(conversation) => return Fired::Ran(conversation),
            Err(refusal) => refusal,
        };
        let code = refusal.code();
        let failed = || Fired::Failed(code.as_str().to_owned());
        let now = self.world().now();
        match Setback::of(code) {
            Setback::Lasting => failed(),
            Setback::Passing if now < after(firing.since, TRIED_FOR) => Fired::Snoozed(after(now, SNOOZE)),
            Setback::Passing => failed(),
            Setback::NoRoom => match self.enqueue(wish(schedule, firing.at)).await {
                Ok(Some(_)) => Fired::Queued,
                Ok(None) => failed(),
                Err(_) => Fired::Snoozed(after(now, SNOOZE)),
            },
        }
    }

    async fn try_fire(&self, schedule: &Schedule, fire_time: Moment) -> Result<ConversationId, Refusal> {
        self.check_open()?;
        let account = self.world().store.account(schedule.account_id).await.map_err(said)?;
        let caller = on_behalf_of(account.ok_or(ErrorCode::NotFound)?, Scope::Full);
        let prompt = prompt(schedule, Some(mark(schedule, fire_time)));
        self.send_to_team(&caller, schedule.agent_id, prompt).await
    }
}

/// A firing that waits for room: one for each schedule (INV-104).
fn wish(schedule: &Schedule, fire_time: Moment) -> Wish {
    Wish {
        account: schedule.account_id,
        agent: schedule.agent_id,
        kind: RequestKind::ScheduleRun,
        source: RequestSource::Schedule,
        schedule: Some(schedule.id),
        launch: QueuedLaunch {
            prompt: Some(schedule.config.prompt.clone()),
            client_request_id: Some(mark(schedule, fire_time)),
            title: None,
            vault_id: None,
            environment_id: None,
            inference_credential_id: None,
            model: None,
            permission_policy: None,
            sandbox_mode: None,
            sandbox_api_access: SandboxApiAccess::Owner,
            sprite_name: None,
            channel_id: Some(TEAM_CHANNEL.to_owned()),
            fresh: false,
            labels: BTreeMap::new(),
            parent: None,
            asked_by: None,
        },
        audit: NewAudit {
            account_id: Some(schedule.account_id),
            action: "sandbox_request.enqueued",
            resource_type: "sandbox_request",
            resource_id: None,
            actor: Actor::System("schedules"),
            request_ip: None,
            metadata: [
                ("agent_id", schedule.agent_id.to_string().into()),
                ("schedule_id", schedule.id.to_string().into()),
            ]
            .into(),
        },
    }
}
