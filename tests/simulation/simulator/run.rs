//! Plays a plan.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use fountain_actors::directory::ShutdownKind;
use fountain_actors::domain::agent::AgentConfig;
use fountain_actors::domain::conversation::{Conversation, SandboxApiAccess};
use fountain_actors::domain::machine::Machine;
use fountain_actors::domain::turn::Prompt;
use fountain_actors::domain::{ErrorCode, Refusal};
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{AgentStep, FakeAgent};
use fountain_actors::machine::messages::Abandon;
use futures_util::FutureExt as _;

use crate::nodes::{Realm, Tenant, audit};
use crate::oracle::Told;
use crate::plan::{Op, Pick, Plan, Script, Step};
use crate::watch::Violation;

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub violations: Vec<Violation>,
    pub steps: usize,
    /// Index of the step after which the first violation was seen.
    pub at: Option<usize>,
    pub commits: u64,
    pub checks: u64,
    /// Everything that was asked of the provider and when: equal for equal runs.
    pub log: Vec<String>,
    pub notes: Vec<String>,
    /// The journals of the machines that a violation names, and what the provider was asked about them.
    pub history: Vec<String>,
}

/// What a prompt says, and its agent does. The words carry the prompt's id and their number.
fn text(id: &str, script: Script) -> String {
    let words = match script {
        Script::Says { words, gap_ms } => format!("says {words} {gap_ms}"),
        Script::Drops { words, gap_ms } => format!("drops {words} {gap_ms}"),
        Script::Asks => "asks".into(),
        Script::Exits { words, code } => format!("exits {words} {code}"),
        Script::Hangs => "hangs".into(),
        Script::Refuses => "refuses".into(),
    };
    format!("{id} {words}")
}

/// One word of an agent.
pub fn word(id: &str, number: u32) -> String {
    format!("<{id}.{number}>")
}

/// How many words the agent says before it ends its turn by itself.
pub fn words_of(prompt: &str) -> Option<u32> {
    let mut parts = prompt.split(' ').skip(1);
    match parts.next()? {
        "says" | "drops" => parts.next()?.parse().ok(),
        "asks" => Some(2),
        _ => None,
    }
}

/// The agent inside the machines.
pub fn agent() -> FakeAgent {
    FakeAgent::new(|prompt| {
        let mut parts = prompt.split(' ');
        let id = parts.next().unwrap_or_default().to_owned();
        let verb = parts.next().unwrap_or_default().to_owned();
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
        let (first, second) = (number(), number());
        let mut steps = Vec::new();
        let end = AgentStep::Stop("end_turn");
        match verb.as_str() {
            "says" | "drops" => {
                for at in 0..first {
                    if second > 0 {
                        steps.push(AgentStep::Sleep(Duration::from_millis(second.into())));
                    }
                    if verb == "drops" && at == first / 2 {
                        steps.push(AgentStep::DropConnections);
                    }
                    steps.push(AgentStep::Say(word(&id, at)));
                }
                steps.push(end);
            }
            "asks" => {
                steps.push(AgentStep::Say(word(&id, 0)));
                steps.push(AgentStep::Ask(vec!["allow_once".into(), "reject_once".into()]));
                steps.push(AgentStep::Say(word(&id, 1)));
                steps.push(end);
            }
            "exits" => {
                for at in 0..first {
                    steps.push(AgentStep::Say(word(&id, at)));
                }
                steps.push(AgentStep::Exit(second.into()));
            }
            "refuses" => steps.push(AgentStep::Stop("refusal")),
            // Says one word and is never heard of again.
            _ => steps.push(AgentStep::Say(word(&id, 0))),
        }
        steps
    })
}

impl Realm {
    fn prompt(&self, script: Script) -> Prompt {
        let id = self
            .nodes
            .first()
            .map(|node| node.world.rng.uuid().simple().to_string())
            .unwrap_or_default();
        Prompt {
            text: text(&id, script),
            images: Vec::new(),
            client_request_id: Some(id),
        }
    }

    async fn conversations(&self) -> Vec<Conversation> {
        let talk = self.store.talk().await.unwrap_or_default();
        talk.conversations
    }

    /// Machines that are not gone; of the others the newest few, because doors must refuse them too.
    async fn machines(&self) -> Vec<Machine> {
        let fleet = self.store.fleet().await.unwrap_or_default();
        let (live, mut gone): (Vec<_>, Vec<_>) = fleet.machines.into_iter().partition(|row| !row.status.is_terminal());
        gone.sort_by_key(|row| std::cmp::Reverse(row.inserted_at));
        live.into_iter().chain(gone.into_iter().take(2)).collect()
    }

    fn tenant_of(&self, id: fountain_actors::domain::AccountId) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.account.id == id)
    }

    async fn pick_conversation(&self, pick: Pick) -> Option<Conversation> {
        // Older ones are ended ones mostly.
        let mut all = self.conversations().await;
        all.sort_by_key(|row| (row.status.is_terminal(), std::cmp::Reverse(row.inserted_at)));
        let live = all.iter().filter(|row| !row.status.is_terminal()).count();
        all.truncate(live + 2);
        pick.of(&all).cloned()
    }

    async fn launch(&self, salt: u64, request: LaunchRequest, tenant: &Tenant) {
        let Some(node) = self.somebody(Pick(u32::try_from(salt & 0xffff).unwrap_or(0))) else {
            return;
        };
        let (engine, caller) = (node.engine.clone(), tenant.caller.clone());
        let (oracle, gate) = (Arc::clone(&self.oracle), Arc::clone(&node.gate));
        let asked = request
            .prompt
            .as_ref()
            .and_then(|prompt| prompt.client_request_id.clone());
        if let Some(asked) = &asked {
            oracle.asks(asked);
        }
        actix::spawn(async move {
            let answer = engine.launch(caller, request).await;
            if gate.is_dead() {
                return;
            }
            if let Some(asked) = asked {
                let told = match answer {
                    // A channel's conversation takes no prompt from a launch.
                    Ok(launched) if launched.resumed => return,
                    Ok(_) => Told::Yes,
                    Err(refusal) => Told::No(refusal),
                };
                oracle.prompt_told(&asked, told);
            }
        });
    }

    fn request(&self, tenant: &Tenant, agent: Pick, prompt: Option<Script>) -> Option<LaunchRequest> {
        Some(LaunchRequest {
            agent_id: agent.of(&tenant.agents)?.id,
            prompt: prompt.map(|script| self.prompt(script)),
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
            channel_id: None,
            fresh: false,
            labels: Default::default(),
            parent: None,
        })
    }

    /// Runs a door on somebody, behind the run's back: its asker waits while other things happen.
    fn ask<F>(&self, salt: u64, what: &'static str, door: impl FnOnce(fountain_actors::directory::Engine) -> F)
    where
        F: Future<Output = Result<(), Refusal>> + 'static,
    {
        let Some(node) = self.somebody(Pick(u32::try_from(salt & 0xffff).unwrap_or(0))) else {
            return;
        };
        let work = door(node.engine.clone());
        let (watch, climate) = (Arc::clone(&self.watch), Arc::clone(&self.climate));
        actix::spawn(async move {
            if let Err(refusal) = work.await
                && refusal.code() == ErrorCode::InternalError
                && !climate.is_rough()
            {
                watch.violate("error", format!("{what} was answered {refusal:?}"));
            }
        });
    }

    /// One step, without its pause.
    pub async fn play(&mut self, step: Step) {
        let salt = step.salt;
        self.climate.reseed(salt);
        match step.op {
            Op::Nothing | Op::Read { .. } | Op::Reapply { .. } | Op::DeleteAccount { .. } => {}
            Op::Launch {
                account,
                agent,
                prompt,
                channel,
                chosen_name,
            } => {
                let Some(tenant) = account.of(&self.tenants) else {
                    return;
                };
                let Some(mut request) = self.request(tenant, agent, prompt) else {
                    return;
                };
                request.channel_id = channel.then(|| "a channel".to_owned());
                request.fresh = channel && salt.is_multiple_of(3);
                request.sprite_name = chosen_name.then(|| format!("chosen-{}", salt % 3));
                self.launch(salt, request, tenant).await;
            }
            Op::Attach { machine, prompt } => {
                let Some(machine) = machine.of(&self.machines().await).cloned() else {
                    return;
                };
                let Some(tenant) = machine.account_id.and_then(|id| self.tenant_of(id)) else {
                    return;
                };
                let Some(agent) = tenant
                    .agents
                    .iter()
                    .position(|agent| Some(agent.id) == machine.agent_id)
                else {
                    return;
                };
                let agent = Pick(u32::try_from(agent).unwrap_or(0));
                let Some(mut request) = self.request(tenant, agent, prompt) else {
                    return;
                };
                request.sandbox_id = Some(machine.id);
                self.launch(salt, request, tenant).await;
            }
            Op::Prompt { conversation, script } => self.prompted(salt, conversation, script).await,
            Op::Interrupt { conversation } => {
                let Some((row, caller)) = self.whose(conversation).await else {
                    return;
                };
                self.ask(salt, "interrupt", |engine| async move {
                    engine.interrupt(caller, row.id).await
                });
            }
            Op::Terminate { conversation } => {
                let Some((row, caller)) = self.whose(conversation).await else {
                    return;
                };
                self.oracle.may_end(row.id);
                let oracle = Arc::clone(&self.oracle);
                self.ask(salt, "terminate", |engine| async move {
                    engine.terminate(caller, row.id).await?;
                    oracle.ended(row.id);
                    Ok(())
                });
            }
            Op::Delete { conversation } => {
                let Some((row, caller)) = self.whose(conversation).await else {
                    return;
                };
                self.oracle.may_end(row.id);
                self.oracle.deleted(row.id);
                self.ask(salt, "delete", |engine| async move {
                    engine.delete_conversation(caller, row.id).await
                });
            }
            Op::Answer { conversation, allow } => self.answered(salt, conversation, allow).await,
            Op::Reset { machine } => {
                let Some(machine) = machine.of(&self.machines().await).cloned() else {
                    return;
                };
                let Some(tenant) = machine.account_id.and_then(|id| self.tenant_of(id)) else {
                    return;
                };
                let (caller, oracle) = (tenant.caller.clone(), Arc::clone(&self.oracle));
                self.ask(salt, "reset", |engine| async move {
                    engine.reset(caller, machine.id).await?;
                    oracle.reset(machine.id);
                    Ok(())
                });
            }
            Op::DeleteAgent { account, agent } => self.delete_agent(salt, account, agent).await,
            Op::MoveEnvironment { account, agent } => self.move_environment(salt, account, agent).await,
            Op::Lose { machine } => {
                if let Some(machine) = machine.of(&self.machines().await) {
                    self.fake.lose(&machine.name);
                }
            }
            Op::Stop { machine } => {
                if let Some(machine) = machine.of(&self.machines().await) {
                    self.fake.stop(&machine.name);
                }
            }
            Op::DropConnections { machine } => {
                if let Some(machine) = machine.of(&self.machines().await) {
                    self.fake.drop_connections(&machine.name);
                }
            }
            Op::Blind { seconds } => self.climate.blind(Duration::from_secs(seconds.into())),
            Op::Offline { seconds } => {
                self.fake.set_offline(true);
                let fake = self.fake.clone();
                actix::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
                    fake.set_offline(false);
                });
            }
            Op::Weather(level) => self.climate.set_provider(level),
            Op::Database(level) => self.climate.set_database(level),
            Op::Freezing(level) => self.climate.set_freezing(level),
            Op::Kill { node } => {
                let Some(at) = self.index(node) else { return };
                if let Some(node) = self.nodes.get(at) {
                    self.kill(node);
                }
                self.replace(at).await;
            }
            Op::Freeze { node, seconds } => {
                if let Some(node) = node.of(&self.nodes) {
                    node.gate.freeze(Duration::from_secs(seconds.into()));
                }
            }
            Op::Drain { node } => self.drain(node).await,
            Op::Duplicate { node, conversation } => {
                let Some(row) = self.pick_conversation(conversation).await else {
                    return;
                };
                if let Some(node) = self.somebody(node) {
                    node.engine.serve(row.id, row.machine_id);
                }
            }
            Op::Abandon { node, machine } => {
                let Some(machine) = machine.of(&self.machines().await).cloned() else {
                    return;
                };
                if let Some(node) = self.somebody(node) {
                    node.engine.machine(machine.id).do_send(Abandon);
                }
            }
            Op::Jump { seconds } => self.clock.jump(Duration::from_secs(seconds.into())),
        }
    }

    fn index(&self, node: Pick) -> Option<usize> {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        node.of(&all).copied()
    }

    async fn whose(&self, pick: Pick) -> Option<(Conversation, fountain_actors::domain::account::Caller)> {
        let row = self.pick_conversation(pick).await?;
        let caller = self.tenant_of(row.account_id)?.caller.clone();
        Some((row, caller))
    }

    async fn prompted(&self, salt: u64, pick: Pick, script: Script) {
        let Some((row, caller)) = self.whose(pick).await else {
            return;
        };
        let prompt = self.prompt(script);
        let asked = prompt.client_request_id.clone().unwrap_or_default();
        let Some(node) = self.somebody(Pick(u32::try_from(salt & 0xffff).unwrap_or(0))) else {
            return;
        };
        let (engine, oracle, gate) = (node.engine.clone(), Arc::clone(&self.oracle), Arc::clone(&node.gate));
        let (watch, climate) = (Arc::clone(&self.watch), Arc::clone(&self.climate));
        oracle.asks(&asked);
        actix::spawn(async move {
            let answer = engine.prompt(caller, row.id, prompt).await;
            if gate.is_dead() {
                return;
            }
            let told = match answer {
                Ok(()) => Told::Yes,
                Err(refusal) => {
                    if refusal.code() == ErrorCode::InternalError && !climate.is_rough() {
                        watch.violate("error", format!("a prompt was answered {refusal:?}"));
                    }
                    Told::No(refusal)
                }
            };
            oracle.prompt_told(&asked, told);
        });
    }

    async fn answered(&self, salt: u64, pick: Pick, allow: bool) {
        let talk = self.store.talk().await.unwrap_or_default();
        let asking: Vec<_> = talk
            .turns
            .iter()
            .filter_map(|(turn, _)| {
                Some((
                    turn.conversation_id,
                    turn.pending_permission.as_ref()?.request_id.clone(),
                ))
            })
            .collect();
        let Some((conversation, request)) = pick.of(&asking).cloned() else {
            return;
        };
        let row = talk.conversations.iter().find(|row| row.id == conversation);
        let Some(tenant) = row.and_then(|row| self.tenant_of(row.account_id)) else {
            return;
        };
        let caller = tenant.caller.clone();
        let option = if allow { "allow_once" } else { "reject_once" };
        self.ask(salt, "answer", |engine| async move {
            engine
                .answer_permission(caller, conversation, request, option.to_owned())
                .await
        });
    }

    async fn delete_agent(&mut self, salt: u64, account: Pick, agent: Pick) {
        let Some(tenant) = account.of(&self.tenants) else {
            return;
        };
        // The last two stay, so that a long run has somebody to launch.
        let spare = tenant.agents.get(2..).unwrap_or_default();
        let Some(agent) = agent.of(spare).cloned() else { return };
        let account = tenant.account.id;
        for row in self.conversations().await {
            let of_agent = row.agent_id == Some(agent.id);
            let on_home = self
                .watch
                .fleet()
                .machines
                .iter()
                .any(|machine| machine.id == row.machine_id && machine.agent_id == Some(agent.id));
            if of_agent || on_home {
                self.oracle.may_end(row.id);
            }
        }
        let Some(node) = self.somebody(Pick(u32::try_from(salt & 0xffff).unwrap_or(0))) else {
            return;
        };
        let world = node.world.clone();
        let engine = node.engine.clone();
        let deleted = audit(account, "agent.deleted");
        actix::spawn(async move {
            if let Ok(fenced) = world.store.delete_agent(account, agent.id, deleted, world.now()).await {
                engine.destroy_fenced(fenced.announce(world.bus.as_ref()));
            }
        });
    }

    async fn move_environment(&mut self, salt: u64, account: Pick, agent: Pick) {
        let Some(tenant) = account.of(&self.tenants) else {
            return;
        };
        let Some(agent) = agent.of(&tenant.agents).cloned() else {
            return;
        };
        let choices = [
            None,
            tenant.environments.first().copied(),
            tenant.environments.get(1).copied(),
        ];
        let target = Pick(u32::try_from(salt & 0xff).unwrap_or(0))
            .of(&choices)
            .copied()
            .flatten();
        let Some(node) = self.somebody(Pick(u32::try_from((salt >> 8) & 0xff).unwrap_or(0))) else {
            return;
        };
        let (world, engine, account) = (node.world.clone(), node.engine.clone(), tenant.account.id);
        let updated = audit(account, "agent.updated");
        actix::spawn(async move {
            let Ok(Some(now)) = world.store.agent(account, agent.id).await else {
                return;
            };
            let config = AgentConfig {
                environment_id: target,
                ..now.config
            };
            let version = world.id();
            if let Ok(moved) = world
                .store
                .update_agent(account, agent.id, version, config, updated, world.now())
                .await
            {
                let (_, fenced) = moved.announce(world.bus.as_ref());
                engine.destroy_fenced(fenced);
            }
        });
    }

    /// An orderly stop, then another process.
    async fn drain(&mut self, pick: Pick) {
        let Some(at) = self.index(pick) else { return };
        let Some(node) = self.nodes.get(at).filter(|node| node.is_up()) else {
            return;
        };
        let engine = node.engine.clone();
        let drained = engine.shutdown(ShutdownKind::Drain);
        // Kubernetes gives it this long.
        let _ = tokio::time::timeout(Duration::from_secs(60), drained).await;
        if let Some(node) = self.nodes.get(at) {
            self.kill(node);
        }
        self.replace(at).await;
    }
}

/// Plays a plan to its end, or to its first violation, on this thread.
pub fn run(plan: &Plan) -> Outcome {
    crate::panics::listen();
    let runtime = || {
        let builder = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        builder.unwrap_or_else(|error| panic!("no runtime: {error}"))
    };
    let system = actix::System::with_tokio_rt(runtime);
    let played = std::panic::catch_unwind(AssertUnwindSafe(|| {
        system.block_on(AssertUnwindSafe(play(plan)).catch_unwind())
    }));
    // Futures of dead replicas go with the runtime; nothing that they do then counts.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(system)));
    let mut outcome = match played {
        Ok(Ok(Ok(outcome))) => outcome,
        Ok(Ok(Err(error))) => failed("setup", format!("{error:#}")),
        Ok(Err(_)) | Err(_) => failed("panic", "the run itself".into()),
    };
    for what in crate::panics::heard() {
        outcome.violations.push(Violation {
            number: "panic".into(),
            what,
        });
        outcome.at.get_or_insert(outcome.steps);
    }
    outcome
}

fn failed(number: &str, what: String) -> Outcome {
    Outcome {
        violations: vec![Violation {
            number: number.into(),
            what,
        }],
        at: Some(0),
        ..Outcome::default()
    }
}

async fn play(plan: &Plan) -> anyhow::Result<Outcome> {
    let mut realm = Realm::open(plan).await?;
    let mut outcome = Outcome::default();
    for (at, step) in plan.steps.iter().enumerate() {
        realm.play(*step).await;
        tokio::time::sleep(step.pause).await;
        outcome.steps = at + 1;
        if !realm.watch.violations().is_empty() {
            outcome.at = Some(at);
            break;
        }
    }
    if outcome.at.is_none() {
        crate::rest::rest(&mut realm).await;
        if !realm.watch.violations().is_empty() {
            outcome.at = Some(plan.steps.len());
        }
    }
    for node in &realm.nodes {
        node.engine.freeze();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    outcome.violations = realm.watch.violations();
    (outcome.commits, outcome.checks) = realm.watch.counts();
    outcome.log = log(&realm);
    outcome.notes = realm.watch.notes();
    if let Some(first) = outcome.violations.first() {
        outcome.history = history(&realm, &first.what).await;
    }
    Ok(outcome)
}

/// Everything that is on record about the machines in a violation's text.
async fn history(realm: &Realm, what: &str) -> Vec<String> {
    let fleet = realm.store.fleet().await.unwrap_or_default();
    let mut lines = Vec::new();
    for row in &fleet.machines {
        let mut names = vec![row.name.clone()];
        let journal = realm.store.journal_of(row.id).await.unwrap_or_default();
        names.extend(journal.iter().map(|operation| operation.machine_name.clone()));
        let is_meant = what.contains(&row.id.to_string()) || names.iter().any(|name| what.contains(name.as_str()));
        if !is_meant {
            continue;
        }
        lines.push(format!(
            "machine {} {} {} {:?} epoch {} cleanup {}",
            row.id, row.name, row.status, row.transition, row.lease_epoch.0, row.cleanup_pending
        ));
        for operation in journal {
            lines.push(format!(
                "  {} @{} {} by {}: {:?} calls {:?} answer {:?} evidence {} started {} until {:?} probed {:?} closed {:?}",
                operation.verb,
                operation.epoch.0,
                operation.machine_name,
                operation.actor,
                operation.outcome,
                operation.provider_call,
                operation.provider_answer,
                operation.evidence.map(|evidence| evidence.to_string()).unwrap_or_default(),
                operation.started_at.format("%T%.3f"),
                operation.lease_until.map(|at| at.format("%T%.3f").to_string()),
                operation.probed_at.map(|at| at.format("%T%.3f").to_string()),
                operation.closed_at.map(|at| at.format("%T%.3f").to_string()),
            ));
        }
        let log = realm.fake.log();
        let about: Vec<_> = log.iter().filter(|entry| names.contains(&entry.machine)).collect();
        for entry in about.iter().skip(about.len().saturating_sub(40)) {
            lines.push(format!(
                "    {:>10.3} {} {} {} {:?} {}",
                entry.at.as_secs_f64(),
                entry.machine,
                entry.op,
                entry.what,
                entry.epoch.map(|epoch| epoch.0),
                entry.answer
            ));
        }
    }
    lines
}

fn log(realm: &Realm) -> Vec<String> {
    let line = |entry: &fountain_actors::fakes::LogEntry| {
        let epoch = entry.epoch.map(|epoch| epoch.0);
        format!(
            "{:?} {} {} {} {epoch:?} {}",
            entry.at, entry.machine, entry.op, entry.what, entry.answer
        )
    };
    realm.fake.log().iter().map(line).collect()
}
