//! What happens to homes whose ground is taken away (RUL-L-46, RUL-L-81), and to machines of a forgotten runner.

use diesel::prelude::*;

use fountain::store::schema::{conversations, machines, turns};
use fountain_actors::domain::agent::AgentConfig;
use fountain_actors::domain::environment::EnvironmentConfig;
use fountain_actors::domain::*;
use fountain_actors::ports::store::catalog::{CatalogStore, NewVault};

use crate::support::{Backend, agent_config, audit, audited, id, not_found, refused};

/// An account with an agent on an environment, another environment and a vault.
struct Ground {
    account: AccountId,
    agent: AgentId,
    environment: EnvironmentId,
    other: EnvironmentId,
    vault: VaultId,
}

fn on(environment: Option<EnvironmentId>) -> AgentConfig {
    AgentConfig {
        environment_id: environment,
        ..agent_config("a")
    }
}

async fn ground(db: &Backend) -> Ground {
    let account = db.account().await.id;
    let entry = || audit(account, "x");
    let mut environments = Vec::new();
    for name in ["one", "two"] {
        let config = EnvironmentConfig::named(name);
        environments.push(
            db.store
                .create_environment(account, id(), config, entry(), db.tick())
                .await
                .unwrap()
                .id,
        );
    }
    let vault = NewVault {
        name: "v".into(),
        description: String::new(),
        metadata: Default::default(),
    };
    let vault = db
        .store
        .create_vault(account, id(), vault, entry(), db.tick())
        .await
        .unwrap()
        .id;
    let agent = db
        .store
        .create_agent(account, id(), id(), on(Some(environments[0])), entry(), db.tick())
        .await
        .unwrap();
    Ground {
        account,
        agent: agent.id,
        environment: environments[0],
        other: environments[1],
        vault,
    }
}

/// A machine to be planted, past the verbs.
#[derive(Clone)]
struct Plant {
    mode: &'static str,
    status: &'static str,
    agent: Option<AgentId>,
    environment: Option<EnvironmentId>,
    vault: Option<VaultId>,
}

impl Plant {
    fn home(ground: &Ground) -> Self {
        Self {
            mode: "persistent",
            status: "ready",
            agent: Some(ground.agent),
            environment: Some(ground.environment),
            vault: None,
        }
    }

    fn grow(self, db: &Backend, account: AccountId) -> MachineId {
        let machine: MachineId = id();
        let now = db.tick().naive_utc();
        diesel::insert_into(machines::table)
            .values((
                machines::id.eq(machine.to_string()),
                machines::account_id.eq(account.to_string()),
                machines::name.eq(format!("fountain-{machine}")),
                machines::status.eq(self.status),
                machines::mode.eq(self.mode),
                machines::runtime.eq("claude"),
                machines::provider.eq("fake"),
                machines::provider_meta.eq("{}"),
                machines::lease_epoch.eq(0),
                machines::cleanup_pending.eq(false),
                machines::departed_conversations.eq("[]"),
                machines::agent_id.eq(self.agent.map(|id| id.to_string())),
                machines::environment_id.eq(self.environment.map(|id| id.to_string())),
                machines::vault_id.eq(self.vault.map(|id| id.to_string())),
                machines::inserted_at.eq(now),
                machines::updated_at.eq(now),
            ))
            .execute(&mut db.raw())
            .unwrap();
        machine
    }
}

fn conversation(db: &Backend, ground: &Ground, machine: MachineId, status: &str) -> ConversationId {
    let conversation: ConversationId = id();
    let now = db.tick().naive_utc();
    diesel::insert_into(conversations::table)
        .values((
            conversations::id.eq(conversation.to_string()),
            conversations::account_id.eq(ground.account.to_string()),
            conversations::status.eq(status),
            conversations::runtime.eq("claude"),
            conversations::configuration_revision.eq(0),
            conversations::runtime_session_id.eq("session-1"),
            conversations::machine_id.eq(machine.to_string()),
            conversations::agent_id.eq(ground.agent.to_string()),
            conversations::source.eq("api"),
            conversations::labels.eq("{}"),
            conversations::sandbox_api_access.eq("owner"),
            conversations::server_epoch.eq(0),
            conversations::output_bytes.eq(0),
            conversations::usage_input_tokens.eq(0),
            conversations::usage_output_tokens.eq(0),
            (conversations::inserted_at.eq(now), conversations::updated_at.eq(now)),
        ))
        .execute(&mut db.raw())
        .unwrap();
    conversation
}

fn turn(
    db: &Backend,
    ground: &Ground,
    conversation: ConversationId,
    machine: Option<MachineId>,
    status: &str,
) -> TurnId {
    let turn: TurnId = id();
    let now = db.tick().naive_utc();
    diesel::insert_into(turns::table)
        .values((
            turns::id.eq(turn.to_string()),
            turns::account_id.eq(ground.account.to_string()),
            turns::conversation_id.eq(conversation.to_string()),
            turns::machine_id.eq(machine.map(|id| id.to_string())),
            turns::number.eq(1),
            turns::prompt.eq("hello"),
            turns::origin.eq("user"),
            turns::status.eq(status),
            turns::started_at.eq((status == "running").then_some(now)),
            turns::waiting.eq(false),
            turns::image_count.eq(0),
            turns::inserted_at.eq(now),
        ))
        .execute(&mut db.raw())
        .unwrap();
    turn
}

/// Transition and its reason.
fn stamp(db: &Backend, machine: MachineId) -> (Option<String>, Option<String>) {
    machines::table
        .find(machine.to_string())
        .select((machines::transition, machines::transition_reason))
        .first(&mut db.raw())
        .unwrap()
}

fn doomed(reason: &str) -> (Option<String>, Option<String>) {
    (Some("destroying".into()), Some(reason.into()))
}

/// Status and session of a conversation.
fn state(db: &Backend, conversation: ConversationId) -> (String, Option<String>) {
    conversations::table
        .find(conversation.to_string())
        .select((conversations::status, conversations::runtime_session_id))
        .first(&mut db.raw())
        .unwrap()
}

fn turn_status(db: &Backend, turn: TurnId) -> String {
    turns::table
        .find(turn.to_string())
        .select(turns::status)
        .first(&mut db.raw())
        .unwrap()
}

#[actix::test]
async fn rul_l_46_moving_an_agent_fences_its_homes_on_the_old_environment_alone() {
    for db in Backend::all().await {
        let ground = ground(&db).await;
        let account = ground.account;
        let old = Plant::home(&ground).grow(&db, account);
        let building = Plant {
            status: "starting",
            vault: Some(ground.vault),
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let elsewhere = Plant {
            environment: Some(ground.other),
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let gone = Plant {
            status: "terminated",
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let ephemeral = Plant {
            mode: "ephemeral",
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let idle = conversation(&db, &ground, old, "idle");
        let away = conversation(&db, &ground, ephemeral, "idle");
        let answer = db
            .store
            .update_agent(
                account,
                ground.agent,
                id(),
                on(Some(ground.other)),
                audit(account, "agent.updated"),
                db.tick(),
            )
            .await
            .unwrap()
            .value;
        let mut expected = vec![old, building];
        expected.sort();
        assert_eq!(answer.1.machines, expected);
        assert!(answer.1.ended.is_empty());
        assert_eq!(answer.0.config.environment_id, Some(ground.other));
        for machine in expected {
            assert_eq!(stamp(&db, machine), doomed("environment_changed"));
        }
        for machine in [elsewhere, gone, ephemeral] {
            assert_eq!(stamp(&db, machine), (None, None));
        }
        assert_eq!(state(&db, idle), ("idle".into(), None), "kept, on a disk to come");
        assert_eq!(state(&db, away), ("idle".into(), Some("session-1".into())));
        let trail = audited(&db, account);
        assert_eq!(
            trail
                .iter()
                .filter(|action| *action == "sandbox.teardown_requested")
                .count(),
            2
        );
    }
}

#[actix::test]
async fn r_113_one_open_turn_anywhere_refuses_the_whole_change() {
    for db in Backend::all().await {
        for open in ["running", "pending"] {
            let ground = ground(&db).await;
            let account = ground.account;
            let home = Plant {
                vault: Some(ground.vault),
                ..Plant::home(&ground)
            }
            .grow(&db, account);
            let quiet = Plant::home(&ground).grow(&db, account);
            let busy = conversation(&db, &ground, home, "running");
            let machine = (open == "running").then_some(home);
            let open = turn(&db, &ground, busy, machine, open);
            let entry = || audit(account, "refused");
            let s = &db.store;
            let moved = s
                .update_agent(account, ground.agent, id(), on(None), entry(), db.tick())
                .await;
            assert_eq!(refused(moved), ErrorCode::SandboxMidTurn);
            let deleted = s
                .delete_environment(account, ground.environment, entry(), db.tick())
                .await;
            assert_eq!(refused(deleted), ErrorCode::SandboxMidTurn);
            let deleted = s.delete_vault(account, ground.vault, entry(), db.tick()).await;
            assert_eq!(refused(deleted), ErrorCode::SandboxMidTurn);
            for machine in [home, quiet] {
                assert_eq!(stamp(&db, machine), (None, None));
            }
            assert_eq!(state(&db, busy).1.as_deref(), Some("session-1"));
            assert!(s.environment(account, ground.environment).await.unwrap().is_some());
            assert!(!audited(&db, account).contains(&"refused".to_owned()));

            diesel::update(turns::table.find(open.to_string()))
                .set(turns::status.eq("completed"))
                .execute(&mut db.raw())
                .unwrap();
            let fenced = s
                .delete_vault(account, ground.vault, entry(), db.tick())
                .await
                .unwrap()
                .value;
            assert_eq!(fenced.machines, [home]);
            assert_eq!(stamp(&db, home), doomed("vault_deleted"));
        }
    }
}

#[actix::test]
async fn homes_of_every_agent_go_with_their_environment_and_identities_do_not_collide() {
    for db in Backend::all().await {
        let ground = ground(&db).await;
        let account = ground.account;
        let home = Plant::home(&ground).grow(&db, account);
        // The home that the first one would be confused with once its environment's id is gone.
        let bare = Plant {
            environment: None,
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let with_vault = Plant {
            environment: None,
            vault: Some(ground.vault),
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let fenced = db
            .store
            .delete_environment(account, ground.environment, audit(account, "x"), db.tick())
            .await
            .unwrap()
            .value;
        assert_eq!(fenced.machines, [home]);
        assert_eq!(stamp(&db, home), doomed("environment_deleted"));
        let fenced = db
            .store
            .delete_vault(account, ground.vault, audit(account, "x"), db.tick())
            .await
            .unwrap()
            .value;
        assert_eq!(fenced.machines, [with_vault]);
        assert_eq!(stamp(&db, bare), (None, None));
    }
}

#[actix::test]
async fn a_home_that_is_doomed_keeps_its_first_stamp() {
    for db in Backend::all().await {
        let ground = ground(&db).await;
        let home = Plant::home(&ground).grow(&db, ground.account);
        diesel::update(machines::table.find(home.to_string()))
            .set((
                machines::transition.eq("destroying"),
                machines::transition_reason.eq("reset"),
                machines::transition_at.eq(db.tick().naive_utc()),
            ))
            .execute(&mut db.raw())
            .unwrap();
        let entry = audit(ground.account, "x");
        let fenced = db
            .store
            .delete_environment(ground.account, ground.environment, entry, db.tick())
            .await
            .unwrap()
            .value;
        assert!(fenced.machines.is_empty(), "somebody else destroys it");
        assert_eq!(stamp(&db, home), doomed("reset"));
    }
}

#[actix::test]
async fn rul_l_81_a_deleted_agent_ends_everyone_on_its_homes_and_nobody_elsewhere() {
    for db in Backend::all().await {
        let ground = ground(&db).await;
        let account = ground.account;
        let home = Plant::home(&ground).grow(&db, account);
        let ephemeral = Plant {
            mode: "ephemeral",
            ..Plant::home(&ground)
        }
        .grow(&db, account);
        let busy = conversation(&db, &ground, home, "running");
        let cut = turn(&db, &ground, busy, Some(home), "running");
        let guest = conversation(&db, &ground, home, "idle");
        let ended = conversation(&db, &ground, home, "failed");
        let away = conversation(&db, &ground, ephemeral, "running");
        let goes_on = turn(&db, &ground, away, Some(ephemeral), "running");
        let committed = db
            .store
            .delete_agent(account, ground.agent, audit(account, "agent.deleted"), db.tick())
            .await
            .unwrap();
        let mut expected = vec![busy, guest];
        expected.sort();
        assert_eq!(
            (committed.value.machines, committed.value.ended),
            (vec![home], expected.clone())
        );
        let mut told: Vec<ConversationId> = committed.cursors.iter().map(|cursor| cursor.conversation).collect();
        told.sort();
        assert_eq!(told, expected, "both have news");
        assert_eq!(stamp(&db, home), doomed("agent_deleted"));
        for conversation in [busy, guest] {
            assert_eq!(state(&db, conversation).0, "terminated");
        }
        assert_eq!(state(&db, ended).0, "failed");
        assert_eq!(state(&db, away), ("running".into(), Some("session-1".into())));
        assert_eq!(turn_status(&db, cut), "interrupted");
        assert_eq!(turn_status(&db, goes_on), "running");
        assert_eq!(stages(&db, busy), ["turn/interrupted", "terminate/done"]);
        assert_eq!(stages(&db, guest), ["terminate/done"]);
        let trail = audited(&db, account);
        assert_eq!(
            trail
                .iter()
                .filter(|action| *action == "conversation.terminated")
                .count(),
            2
        );
        assert!(trail.contains(&"sandbox.teardown_requested".to_owned()));
        assert_eq!(trail.last().map(String::as_str), Some("agent.deleted"));
        let named: Option<String> = conversations::table
            .find(away.to_string())
            .select(conversations::agent_id)
            .first(&mut db.raw())
            .unwrap();
        assert_eq!(named, None);
    }
}

#[actix::test]
async fn a_callback_key_is_minted_by_the_current_server_of_its_own_conversation_alone() {
    use fountain_actors::domain::account::{NewApiKey, Scope};
    use fountain_actors::ports::store::{AccountStore, StoreError};
    for db in Backend::all().await {
        let ground = ground(&db).await;
        let machine = Plant::home(&ground).grow(&db, ground.account);
        let conversation = conversation(&db, &ground, machine, "idle");
        diesel::update(conversations::table.find(conversation.to_string()))
            .set(conversations::server_epoch.eq(3))
            .execute(&mut db.raw())
            .unwrap();
        let key = |account_id: AccountId, scope: Scope| NewApiKey {
            id: id(),
            account_id,
            name: "callback".into(),
            prefix: "ftn_callback".into(),
            sha256: rand::random(),
            scope,
            expires_at: Some(db.tick()),
        };
        let own = || key(ground.account, Scope::Sprite(conversation));
        let mint = |epoch: i64, key: NewApiKey| {
            db.store
                .mint_callback_key(conversation, ServerEpoch(epoch), key, db.tick())
        };
        let first = mint(3, own()).await.unwrap();
        for old in [2, 4] {
            assert!(matches!(mint(old, own()).await, Err(StoreError::Stale(_))));
        }
        let stranger = db.account().await.id;
        not_found(mint(3, key(stranger, Scope::Sprite(conversation))).await);
        let missing = db.store.mint_callback_key(id(), ServerEpoch(0), own(), db.tick()).await;
        assert!(
            matches!(missing, Err(StoreError::Internal { .. })),
            "a key of another conversation is a bug"
        );
        assert!(mint(3, key(ground.account, Scope::Full)).await.is_err());
        let second = mint(3, own()).await.unwrap();
        let current: Option<String> = conversations::table
            .find(conversation.to_string())
            .select(conversations::callback_key_id)
            .first(&mut db.raw())
            .unwrap();
        assert_eq!(current, Some(second.id.to_string()));
        assert!(first.revoked_at.is_none(), "the one before stays good until it expires");

        // The end of the conversation is the end of both.
        db.store
            .delete_agent(ground.account, ground.agent, audit(ground.account, "x"), db.tick())
            .await
            .unwrap();
        let open: i64 = fountain::store::schema::api_keys::table
            .filter(fountain::store::schema::api_keys::revoked_at.is_null())
            .count()
            .get_result(&mut db.raw())
            .unwrap();
        assert_eq!(open, 0);
    }
}

/// Stage events of a conversation, in order.
fn stages(db: &Backend, conversation: ConversationId) -> Vec<String> {
    use fountain::store::schema::log_events;
    let rows: Vec<(Option<String>, Option<String>)> = log_events::table
        .filter(log_events::conversation_id.eq(conversation.to_string()))
        .order(log_events::id)
        .select((log_events::stage, log_events::state))
        .load(&mut db.raw())
        .unwrap();
    rows.into_iter()
        .map(|(stage, state)| format!("{}/{}", stage.unwrap(), state.unwrap()))
        .collect()
}

#[actix::test]
async fn rul_l_95_what_owes_a_delete_on_a_forgotten_runner_is_handed_over_and_the_rest_stays() {
    use fountain::store::schema::operations;
    use fountain_actors::domain::runner::machine_name;
    use fountain_actors::ports::store::{MachineStore, RunnerStore, StoreError};
    for db in Backend::all().await {
        let ground = ground(&db).await;
        let account = ground.account;
        let dial = |name: &str| {
            db.store
                .dial_runner(account, id(), name.into(), Default::default(), db.tick())
        };
        let (mini, other) = (dial("mini").await.unwrap().0, dial("other").await.unwrap().0);
        let place = |machine: MachineId, runner: RunnerId, doomed: bool| {
            let stamp = doomed.then(|| db.tick().naive_utc());
            diesel::update(machines::table.find(machine.to_string()))
                .set((
                    machines::provider.eq("runner"),
                    machines::name.eq(machine_name(runner, &machine.0.simple().to_string())),
                    machines::transition.eq(stamp.map(|_| "destroying")),
                    machines::transition_reason.eq(stamp.map(|_| "terminated")),
                    machines::transition_at.eq(stamp),
                    machines::lease_epoch.eq(7),
                    machines::lease_holder.eq("node-1"),
                    machines::lease_until.eq(db.tick().naive_utc()),
                ))
                .execute(&mut db.raw())
                .unwrap();
        };
        let plant = |status: &'static str| {
            let plant = Plant {
                mode: "ephemeral",
                status,
                ..Plant::home(&ground)
            };
            plant.grow(&db, account)
        };
        let going = plant("ready");
        place(going, mini.id, true);
        let owing = plant("failed");
        place(owing, mini.id, false);
        diesel::update(machines::table.find(owing.to_string()))
            .set(machines::cleanup_pending.eq(true))
            .execute(&mut db.raw())
            .unwrap();
        let alive = plant("suspended");
        place(alive, mini.id, false);
        let elsewhere = plant("ready");
        place(elsewhere, other.id, true);
        let busy = conversation(&db, &ground, going, "running");
        let cut = turn(&db, &ground, busy, Some(going), "running");

        db.store.forget_runner(account, mini.id, db.tick()).await.unwrap();

        for (machine, status) in [
            (going, "terminated"),
            (owing, "failed"),
            (alive, "suspended"),
            (elsewhere, "ready"),
        ] {
            let row = db.store.machine(machine).await.unwrap().unwrap();
            let handed_over = machine == going || machine == owing;
            assert_eq!(row.status.as_str(), status);
            assert_eq!(row.lease.is_none(), handed_over, "{status}");
            assert!(!row.cleanup_pending);
            if handed_over {
                assert_eq!(
                    (row.lease_epoch, row.transition),
                    (Epoch(8), None),
                    "an owner is superseded"
                );
            }
            let outcomes: Vec<Option<String>> = operations::table
                .filter(operations::machine_id.eq(machine.to_string()))
                .select(operations::outcome)
                .load(&mut db.raw())
                .unwrap();
            assert_eq!(
                outcomes,
                if handed_over {
                    vec![Some("handed_over".to_owned())]
                } else {
                    vec![]
                }
            );
        }
        assert_eq!(turn_status(&db, cut), "interrupted");
        assert_eq!(state(&db, busy), ("idle".into(), None));
        let stale = db
            .store
            .renew(
                going,
                Epoch(7),
                "node-1".into(),
                std::time::Duration::from_secs(60),
                db.tick(),
            )
            .await;
        assert!(matches!(stale, Err(StoreError::Stale(_))), "{stale:?}");
        let trail = audited(&db, account);
        assert_eq!(
            trail.iter().filter(|action| *action == "sandbox.handed_over").count(),
            2
        );
    }
}
