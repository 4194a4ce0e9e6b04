//! A launch: the gates in their order, then one reservation (lifecycle 4.1, 4.2; http-api 5.7.2; RUL-11, 18, 19a, 51).
//!
//! Gates only read. The first transaction is the reservation, or the attach to a home; whoever loses the race for a
//! home's identity attaches to the winner's. The answer leaves before anything is built: a crash behind the
//! commit leaves a NEW machine with its pending turn, which the next server builds (RUL-36).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::directory::Engine;
use crate::domain::account::{Caller, NewAudit};
use crate::domain::agent::Agent;
use crate::domain::conversation::{ConversationView, SandboxApiAccess, Source};
use crate::domain::machine::{MachineMode, MachineStatus, Provider};
use crate::domain::policy::PermissionPolicy;
use crate::domain::{AccountId, ConversationId, EnvironmentId, ErrorCode, MachineId, Refusal};
use crate::doors::LaunchRequest;
use crate::machine::names;
use crate::ports::World;
use crate::ports::clock::after;
use crate::ports::store::conversations::{Attach, Launch, NewConversation, NewMachine};
use crate::ports::store::queue::ClaimedRequest;
use crate::ports::store::{Committed, StoreError};
use crate::runtimes;

use super::spend;

/// Where a new machine goes.
pub(crate) struct Placed {
    pub name: String,
    pub meta: Value,
}

/// What a launch came to, before anybody serves it.
pub(crate) enum Opened {
    /// A machine of its own was reserved; its server builds it.
    Reserved(ConversationView),
    /// It joined a machine that exists; its prompt is delivered like any other.
    Attached(ConversationView),
    /// The channel's conversation, which gets no prompt.
    Resumed(ConversationView),
}

/// Gate 13: the provider is configured, and for a runner one is connected. Mints the name.
pub(crate) fn place(
    world: &World,
    account: AccountId,
    provider: Provider,
    chosen: Option<&str>,
) -> Result<Placed, Refusal> {
    let is_offered =
        world.adapters.offers(provider) && (provider != Provider::Runner || world.settings.runners_enabled);
    if !is_offered {
        return Err(ErrorCode::SandboxProviderDisabled.into());
    }
    let mut meta = Map::new();
    let name = match (provider, chosen) {
        (Provider::Runner, _) => {
            let runner = world.runners.latest(account).ok_or(ErrorCode::NoRunnerOnline)?;
            if let Some(root) = &runner.details.root {
                meta.insert("root".into(), root.as_str().into()); // RUL-49
            }
            names::minted_on_runner(runner.id, &*world.rng)
        }
        (_, Some(suffix)) => {
            meta.insert(names::CHOSEN.into(), true.into());
            format!("{}-{suffix}", names::account_part(account))
        }
        (_, None) => names::minted(account, &*world.rng),
    };
    Ok(Placed {
        name,
        meta: Value::Object(meta),
    })
}

/// Runs the gates and reserves.
/// A start out of the queue shows its claim, and its rows carry the request (RUL-L-58).
pub(crate) async fn open(
    engine: &Engine,
    caller: &Caller,
    request: LaunchRequest,
    claim: Option<&ClaimedRequest>,
) -> Result<Opened, Refusal> {
    let gates = Gates {
        engine,
        world: engine.world(),
        caller,
        account: caller.account_id(),
        claim,
    };
    gates.open(request).await
}

struct Gates<'a> {
    engine: &'a Engine,
    world: &'a World,
    caller: &'a Caller,
    account: AccountId,
    claim: Option<&'a ClaimedRequest>,
}

/// What the gates found out.
struct Admitted {
    agent: Agent,
    environment: Option<EnvironmentId>,
    mode: MachineMode,
    provider: Provider,
    policy: Option<Map<String, Value>>,
    parent: Option<ConversationId>,
}

impl Gates<'_> {
    async fn open(&self, request: LaunchRequest) -> Result<Opened, Refusal> {
        let admitted = self.admit(&request).await?;
        if let Some(view) = self.resume_channel(&request, &admitted).await? {
            return Ok(Opened::Resumed(view));
        }
        if let Some(machine) = request.sandbox_id {
            let view = self.attach(machine, &request, &admitted).await?;
            return Ok(Opened::Attached(view));
        }
        if admitted.mode == MachineMode::Persistent {
            let home = self
                .world
                .store
                .home_of(
                    self.account,
                    admitted.agent.id,
                    admitted.environment,
                    request.vault_id,
                    admitted.agent.config.runtime,
                )
                .await
                .map_err(said)?;
            if let Some(home) = home {
                return self.attach_home(home, &request, &admitted).await;
            }
        }
        self.reserve(request, admitted).await
    }

    /// Gates 1 to 10. Where credits are on, money comes first (RUL-19a).
    async fn admit(&self, request: &LaunchRequest) -> Result<Admitted, Refusal> {
        spend::require_credit(self.world, self.account).await?;
        if request
            .prompt
            .as_ref()
            .is_some_and(|prompt| prompt.text.trim().is_empty())
        {
            return Err(ErrorCode::InvalidPrompt.into());
        }
        let store = &self.world.store;
        let agent = store.agent(self.account, request.agent_id).await.map_err(said)?;
        let agent = agent.ok_or(ErrorCode::NotFound)?;
        let config = &agent.config;
        spend::refuse_limits(self.world)?;
        if !runtimes::is_enabled(config.runtime) {
            return Err(ErrorCode::RuntimeDisabled.into());
        }
        let is_drivable = |model: &String| runtimes::models::accepts(config.runtime, model);
        if !request.model.as_ref().is_none_or(is_drivable) {
            return Err(ErrorCode::ModelInvalid.into());
        }
        let environment = self.environment(request, &agent).await?;
        let mode = request.sandbox_mode.unwrap_or(config.sandbox_mode);
        let provider = config.sandbox_provider.unwrap_or(self.world.settings.default_provider);
        self.check_shape(request, mode, provider)?;
        let policy = narrowed(&agent, request.permission_policy.as_ref())?;
        let parent = self.parent(request.parent.as_deref()).await?;
        if !self.caller.account.is_active() {
            return Err(ErrorCode::AccountSuspended.into());
        }
        Ok(Admitted {
            agent,
            environment,
            mode,
            provider,
            policy,
            parent,
        })
    }

    /// Gate 5: owned, and allowed by the agent. The agent's own environment always passes.
    async fn environment(&self, request: &LaunchRequest, agent: &Agent) -> Result<Option<EnvironmentId>, Refusal> {
        let (store, config) = (&self.world.store, &agent.config);
        if let Some(vault) = request.vault_id {
            store
                .vault(self.account, vault)
                .await
                .map_err(said)?
                .ok_or(ErrorCode::VaultNotFound)?;
            if config
                .allowed_vault_ids
                .as_ref()
                .is_some_and(|allowed| !allowed.contains(&vault))
            {
                return Err(ErrorCode::VaultNotAllowed.into());
            }
        }
        if let Some(environment) = request.environment_id {
            let found = store.environment(self.account, environment).await.map_err(said)?;
            found.ok_or(ErrorCode::EnvironmentNotFound)?;
            let is_own = config.environment_id == Some(environment);
            let allowed = config.allowed_environment_ids.as_ref();
            if !is_own && allowed.is_some_and(|allowed| !allowed.contains(&environment)) {
                return Err(ErrorCode::EnvironmentNotAllowed.into());
            }
        }
        if request.inference_credential_id.is_some() {
            // No account has a credential set yet, so none can be this account's.
            return Err(ErrorCode::InferenceCredentialNotFound.into());
        }
        Ok(request.environment_id.or(config.environment_id))
    }

    /// Gate 6: mode, API access and name go together.
    fn check_shape(&self, request: &LaunchRequest, mode: MachineMode, provider: Provider) -> Result<(), Refusal> {
        let name = request.sprite_name.as_deref();
        if request.sandbox_api_access == SandboxApiAccess::None
            && (mode != MachineMode::Ephemeral || request.sandbox_id.is_some() || name.is_some())
        {
            return Err(ErrorCode::InvalidSandboxApiAccess.into());
        }
        match name {
            Some(name) if !is_suffix(name) => Err(ErrorCode::InvalidSpriteName.into()),
            Some(_) if provider == Provider::Runner => Err(ErrorCode::SpriteNameNotSupported.into()),
            _ => Ok(()),
        }
    }

    /// Gate 8.
    async fn parent(&self, header: Option<&str>) -> Result<Option<ConversationId>, Refusal> {
        let Some(header) = header.filter(|header| !header.is_empty()) else {
            return Ok(None);
        };
        let missing = || Refusal::from(ErrorCode::ParentConversationNotFound);
        let id: ConversationId = header.parse().map_err(|_| missing())?;
        let parent = self.world.store.conversation(id).await.map_err(said)?;
        match parent.filter(|parent| parent.account_id == self.account) {
            Some(_) => Ok(Some(id)),
            None => Err(missing()),
        }
    }

    /// The channel's conversation, unless a fresh one is wanted. Its prompt is not delivered (http-api 5.7.2).
    async fn resume_channel(
        &self,
        request: &LaunchRequest,
        admitted: &Admitted,
    ) -> Result<Option<ConversationView>, Refusal> {
        let Some(channel) = request.channel_id.clone().filter(|_| !request.fresh) else {
            return Ok(None);
        };
        let store = &self.world.store;
        let found = store
            .channel_conversation(
                self.account,
                channel,
                admitted.agent.id,
                request.vault_id,
                request.environment_id,
            )
            .await
            .map_err(said)?;
        let Some(found) = found else { return Ok(None) };
        if request.model.is_some() && request.model != found.model {
            return Err(Refusal::ModelDiffers(found.model));
        }
        if !request.labels.is_empty() {
            let changes = request
                .labels
                .iter()
                .map(|(key, value)| (key.clone(), Some(value.clone())));
            let now = self.world.now();
            store
                .merge_labels(self.account, found.id, changes.collect(), now)
                .await
                .map_err(said)?;
        }
        let view = store.conversation_view(self.account, found.id).await.map_err(said)?;
        Ok(view)
    }

    async fn attach(
        &self,
        machine: MachineId,
        request: &LaunchRequest,
        admitted: &Admitted,
    ) -> Result<ConversationView, Refusal> {
        let found = self.world.store.machine(machine).await.map_err(said)?;
        if found.is_none_or(|found| found.account_id != Some(self.account)) {
            return Err(ErrorCode::SandboxNotFound.into());
        }
        let attach = Attach {
            conversation: self.conversation(request, admitted),
            machine_id: machine,
            environment_id: admitted.environment,
            scope: self.caller.scope.clone(),
            audit: self.audit(request, "attach"),
            now: self.world.now(),
        };
        let store = &self.world.store;
        let committed = match self.claim {
            None => store.attach(attach).await,
            Some(claim) => store.attach_request(claim.clone(), attach).await,
        };
        Ok(self.announce(committed.map_err(said)?))
    }

    /// Gate 12: a home of this identity lives.
    async fn attach_home(
        &self,
        home: MachineId,
        request: &LaunchRequest,
        admitted: &Admitted,
    ) -> Result<Opened, Refusal> {
        match self.attach(home, request, admitted).await {
            Ok(view) => Ok(Opened::Attached(view)),
            Err(Refusal::NotAttachable(MachineStatus::Pending | MachineStatus::Starting)) => {
                Err(ErrorCode::Provisioning.into())
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Gates 13 and 14.
    async fn reserve(&self, request: LaunchRequest, admitted: Admitted) -> Result<Opened, Refusal> {
        let world = self.world;
        let placed = place(world, self.account, admitted.provider, request.sprite_name.as_deref())?;
        let now = world.now();
        let launch = Launch {
            conversation: self.conversation(&request, &admitted),
            machine: NewMachine {
                id: world.id(),
                name: placed.name,
                mode: admitted.mode,
                runtime: admitted.agent.config.runtime,
                provider: admitted.provider,
                provider_meta: placed.meta,
                agent_id: admitted.agent.id,
                environment_id: admitted.environment,
                vault_id: request.vault_id,
            },
            prompt: request.prompt.clone().map(|prompt| (world.id(), prompt)),
            pending_until: after(now, world.settings.pending_turn_limit),
            limits: self.engine.limits(),
            audit: self.audit(&request, "launch"),
            now,
        };
        let reserved = match self.claim {
            None => world.store.launch(launch).await,
            Some(claim) => world.store.launch_request(claim.clone(), launch).await,
        };
        match reserved {
            Ok(committed) => Ok(Opened::Reserved(self.announce(committed))),
            // The race for the identity is lost: the winner's home is ours too.
            Err(StoreError::HomeTaken(home)) => self.attach_home(home, &request, &admitted).await,
            Err(error) => Err(said(error)),
        }
    }

    fn announce(&self, committed: Committed<ConversationView>) -> ConversationView {
        committed.announce(&*self.world.bus)
    }

    fn conversation(&self, request: &LaunchRequest, admitted: &Admitted) -> NewConversation {
        NewConversation {
            id: self.world.id(),
            account_id: self.account,
            runtime: admitted.agent.config.runtime,
            agent_id: admitted.agent.id,
            agent_version_id: admitted.agent.version_id,
            environment_id: request.environment_id,
            vault_id: request.vault_id,
            parent_conversation_id: admitted.parent,
            source: if admitted.parent.is_some() {
                Source::Agent
            } else {
                Source::Api
            },
            channel_id: request.channel_id.clone(),
            title: request.title.clone(),
            labels: request.labels.clone(),
            model: request.model.clone(),
            sandbox_api_access: request.sandbox_api_access,
            permission_policy: admitted.policy.clone(),
        }
    }

    fn audit(&self, request: &LaunchRequest, how: &'static str) -> NewAudit {
        let size = request.prompt.as_ref().map_or(0, |prompt| prompt.text.len());
        NewAudit {
            account_id: Some(self.account),
            action: "conversation.created",
            resource_type: "conversation",
            resource_id: None,
            actor: self.caller.actor(),
            request_ip: self.caller.remote_ip.clone(),
            metadata: BTreeMap::from([
                ("agent_id", request.agent_id.to_string().into()),
                ("how", how.into()),
                ("prompt_bytes", size.into()),
            ]),
        }
    }
}

/// Gate 7: a launch may only narrow, and only what the runtime enforces.
fn narrowed(agent: &Agent, launch: Option<&Map<String, Value>>) -> Result<Option<Map<String, Value>>, Refusal> {
    let Some(launch) = launch else { return Ok(None) };
    let launch = PermissionPolicy::parse(&Value::Object(launch.clone()))?;
    PermissionPolicy::from_stored(&agent.config.permission_policy).check_narrows(&launch)?;
    if launch.restricts() && !runtimes::layout::of(agent.config.runtime).asks {
        return Err(ErrorCode::PermissionPolicyUnenforceable.into());
    }
    Ok(Some(launch.to_map()))
}

/// `[A-Za-z0-9][A-Za-z0-9_-]{0,39}`
fn is_suffix(name: &str) -> bool {
    let bytes = name.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
    bytes.len() <= 40
        && bytes.first().is_some_and(is_plain)
        && bytes.iter().all(|byte| is_plain(byte) || matches!(byte, b'_' | b'-'))
}

fn said(error: StoreError) -> Refusal {
    error.refusal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_name_is_1_to_40_plain_characters() {
        let longest = "a".repeat(40);
        for good in ["a", "A1_-z", "0", longest.as_str()] {
            assert!(is_suffix(good), "{good}");
        }
        let too_long = "a".repeat(41);
        for bad in ["", "-a", "_a", "a b", "a/b", "é", too_long.as_str()] {
            assert!(!is_suffix(bad), "{bad}");
        }
    }
}
