//! The inside of the reading of live actors: the real engine and store over the reference provider in memory.
//!
//! The database is a file, on a file system in memory where there is one: its pages are not this process's own, and
//! nothing here is a matter of durability.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use fountain_actors::directory::{Engine, Placement};
use fountain_actors::domain::account::{Caller, Scope};
use fountain_actors::domain::conversation::{ConversationStatus, SandboxApiAccess};
use fountain_actors::domain::machine::Provider;
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::turn::Prompt;
use fountain_actors::domain::*;
use fountain_actors::doors::{Doors as _, LaunchRequest};
use fountain_actors::fakes::{FakeAgent, FakeSandbox, Program, Spawn, vocabulary};
use fountain_actors::ports::bus::InProcessBus;
use fountain_actors::ports::clock::cut;
use fountain_actors::ports::meter::NoMeter;
use fountain_actors::ports::presence::NoRunners;
use fountain_actors::ports::sandbox::{FrameStream, SandboxAdapter as _, SpawnOptions};
use fountain_actors::ports::store::AccountStore as _;
use fountain_actors::ports::{AdapterSet, Clock, World};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::common::process::own_memory_bytes;
use crate::common::{PATIENCE, say};
use crate::seed;

/// Conversations that are being built at once.
const AT_ONCE: usize = 16;
const PROMPT: &str = "hello";

/// One reading: prints the bytes of this process.
pub fn child(role: &str, count: usize) -> anyhow::Result<()> {
    let bytes = actix_rt::System::new().block_on(async {
        match role {
            "actors" => actors(count).await,
            "provider" => provider(count).await,
            _ => anyhow::bail!("no reading is called {role}"),
        }
    })?;
    say(&bytes.to_string());
    Ok(())
}

struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Moment {
        cut(seed::now())
    }
}

/// Agents are started through `env`; everything else is a shell that does nothing and ends.
fn machines() -> FakeSandbox {
    let (agent, shell) = (FakeAgent::echo().program(), vocabulary());
    let program: Program = Arc::new(move |spawn: &Spawn| match spawn.command.as_str() {
        "env" => agent(spawn),
        _ => shell(spawn),
    });
    FakeSandbox::new(Arc::new(WallClock)).with_program(program)
}

async fn actors(count: usize) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let (store, rng) = seed::open(&format!("sqlite://{}/live.db", folder.path().display()), 1).await?;
    let (account, agent, _) = seed::agent(&store, rng.as_ref()).await?;
    let account = store.account(account).await?.context("the account was made")?;
    let caller = Caller {
        account,
        key_id: KeyId(rng.uuid()),
        scope: Scope::Full,
        remote_ip: None,
    };
    let settings = Settings {
        default_provider: Provider::Fake,
        cap_ceiling: i64::MAX,
        fleet_ceiling: i64::MAX,
        // Owners of machines with nothing to do go after a minute; nobody here waits that long.
        owner_idle_stop: Duration::from_secs(1),
        ..Settings::default()
    };
    let world = World {
        store: Arc::new(store.clone()),
        adapters: Arc::new(AdapterSet::default().with(Arc::new(machines()))),
        bus: Arc::new(InProcessBus::default()),
        clock: Arc::new(WallClock),
        rng,
        meter: Arc::new(NoMeter),
        runners: Arc::new(NoRunners::default()),
        settings: Arc::new(settings),
        holder: "bench/0".into(),
    };
    let engine = Engine::start(world, Placement::Current);
    let opened: Vec<anyhow::Result<ConversationId>> = futures_util::stream::iter(0..count)
        .map(|_| open(&engine, &caller, agent))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let conversations = opened.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    // Owners of machines stop, and what they held is given back.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let live = conversations.iter().filter(|id| engine.is_live(**id)).count();
    anyhow::ensure!(live == count, "{live} of {count} conversations have a live actor");
    own_memory_bytes(std::process::id())
}

/// A conversation whose turn has ended.
async fn open(engine: &Engine, caller: &Caller, agent: AgentId) -> anyhow::Result<ConversationId> {
    let launched = engine.launch(caller.clone(), request(agent)).await;
    let launched = launched.map_err(|refusal| anyhow::anyhow!("a launch was refused: {refusal:?}"))?;
    let id = launched.view.conversation.id;
    let rest = async {
        loop {
            let row = engine
                .world()
                .store
                .conversation(id)
                .await?
                .context("the conversation was made")?;
            match row.status {
                ConversationStatus::Idle => return Ok(id),
                ConversationStatus::Pending | ConversationStatus::Running => {}
                status => anyhow::bail!("a conversation is {status}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, rest)
        .await
        .context("a conversation did not come to rest")?
}

fn request(agent: AgentId) -> LaunchRequest {
    LaunchRequest {
        agent_id: agent,
        prompt: Some(Prompt {
            text: PROMPT.into(),
            images: Vec::new(),
            client_request_id: None,
        }),
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
    }
}

/// The provider by itself: the same machines, agents and exchange.
async fn provider(count: usize) -> anyhow::Result<u64> {
    let provider = machines();
    let mut streams: Vec<FrameStream> = Vec::with_capacity(count);
    for number in 0..count {
        streams.push(
            exchange(&provider, number)
                .await
                .map_err(|error| anyhow::anyhow!("{error}"))?,
        );
    }
    let bytes = own_memory_bytes(std::process::id())?;
    anyhow::ensure!(streams.len() == count, "every agent is connected");
    Ok(bytes)
}

async fn exchange(
    provider: &FakeSandbox,
    number: usize,
) -> Result<FrameStream, fountain_actors::ports::sandbox::SandboxError> {
    let handle = provider.create(&format!("bench-{number}"), None).await?.handle;
    let options = SpawnOptions {
        stdin: true,
        detachable: true,
        ..SpawnOptions::default()
    };
    let (command, mut frames) = provider.spawn(&handle, "env", &["agent".to_owned()], options).await?;
    for (id, method, params) in [
        (1, "initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})),
        (2, "session/new", json!({"cwd": "/", "mcpServers": []})),
        (
            3,
            "session/prompt",
            json!({"sessionId": "s", "prompt": [{"type": "text", "text": PROMPT}]}),
        ),
    ] {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        provider.write_stdin(&command, Bytes::from(format!("{line}\n"))).await?;
    }
    while frames.try_recv().is_ok() {}
    Ok(frames)
}
