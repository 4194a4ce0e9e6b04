//! Agents, environments and vaults: what is kept, what is refused, and whose it is.

use diesel::prelude::*;
use serde_json::json;

use fountain::store::schema::{agent_versions, environments};
use fountain_actors::domain::agent::{Agent, AgentConfig, AgentFilter, Runtime};
use fountain_actors::domain::environment::{
    EnvironmentCheckpoint, EnvironmentConfig, NetworkingType, Repository, SecretHome,
};
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::catalog::{CatalogStore, NewVault};
use fountain_actors::ports::store::warm::{Recorded, WarmStore};

use crate::support::{Backend, agent_config, audit, audited, id, not_found, refused_fields};

async fn create(db: &Backend, account: AccountId, config: AgentConfig) -> Result<Agent, StoreError> {
    db.store
        .create_agent(account, id(), id(), config, audit(account, "agent.created"), db.tick())
        .await
}

fn vault(name: &str) -> NewVault {
    NewVault {
        name: name.into(),
        description: "keys".into(),
        metadata: [("team".into(), json!("core"))].into_iter().collect(),
    }
}

/// Every field away from its default.
fn rich_agent(environment: EnvironmentId) -> AgentConfig {
    AgentConfig {
        name: "rich \u{1f980}".into(),
        description: "d".into(),
        system: "line one\nline \"two\"".into(),
        model: None,
        runtime: Runtime::Acp,
        runtime_command: Some("my-agent --acp".into()),
        sandbox_provider: Some(Provider::Runner),
        sandbox_mode: MachineMode::Ephemeral,
        environment_id: Some(environment),
        skills: vec![json!({"name": "a", "content": "b"})],
        mcp_servers: [("m".into(), json!({"url": "https://example.com"}))]
            .into_iter()
            .collect(),
        metadata: [("zeta".into(), json!(1)), ("alpha".into(), json!([null]))]
            .into_iter()
            .collect(),
        allowed_vault_ids: Some(vec![]),
        allowed_environment_ids: Some(vec![environment]),
        allowed_inference_credential_ids: Some(vec![id::<uuid::Uuid>()]),
        inference_credential_id: Some(id()),
        permission_policy: [("Bash".into(), json!("ask"))].into_iter().collect(),
    }
}

fn rich_environment() -> EnvironmentConfig {
    EnvironmentConfig {
        packages: [("apt".into(), vec!["ripgrep".into()])].into(),
        env_vars: [("A".into(), "1".into())].into(),
        setup_script: "make".into(),
        setup_timeout_seconds: 900,
        networking_type: NetworkingType::Limited,
        networking_config: [("allowed_hosts".into(), json!(["example.com"]))].into_iter().collect(),
        repositories: vec![Repository {
            url: "https://example.com/r.git".into(),
            mount_path: "/srv/r".into(),
            r#ref: Some("main".into()),
            secret_key: None,
        }],
        metadata: [("k".into(), json!({"deep": true}))].into_iter().collect(),
        ..EnvironmentConfig::named("rich")
    }
}

async fn environment(db: &Backend, account: AccountId, config: EnvironmentConfig) -> EnvironmentId {
    let made = db
        .store
        .create_environment(account, id(), config, audit(account, "environment.created"), db.tick())
        .await;
    made.expect("a fresh environment").id
}

#[actix::test]
async fn every_field_of_an_agent_comes_back_and_its_first_version_is_written() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let env = environment(&db, account, EnvironmentConfig::named("e")).await;
        let config = rich_agent(env);
        let made = create(&db, account, config.clone()).await.unwrap();
        assert_eq!(made.config, config);
        assert_eq!((made.version, made.conversation_count), (1, 0));
        assert_eq!(db.store.agent(account, made.id).await.unwrap(), Some(made.clone()));
        let keys: Vec<&String> = made.config.metadata.keys().collect();
        assert_eq!(keys, ["zeta", "alpha"], "the order of a map's keys is kept");
        let snapshot: String = agent_versions::table
            .filter(agent_versions::id.eq(made.version_id.to_string()))
            .select(agent_versions::config)
            .first(&mut db.raw())
            .unwrap();
        let snapshot: serde_json::Value = serde_json::from_str(&snapshot).unwrap();
        assert_eq!(snapshot["name"], json!("rich \u{1f980}"));
        assert_eq!(snapshot["runtime"], json!("acp"));
        assert_eq!(snapshot["environment_id"], json!(env.to_string()));
        assert_eq!(snapshot["permission_policy"], json!({"Bash": "ask"}));
    }
}

#[actix::test]
async fn a_version_is_written_when_something_changed_and_only_then() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let made = create(&db, account, agent_config("a")).await.unwrap();
        let update = |config: AgentConfig| {
            db.store.update_agent(
                account,
                made.id,
                id(),
                config,
                audit(account, "agent.updated"),
                db.tick(),
            )
        };
        let (same, fenced) = update(agent_config("a")).await.unwrap().value;
        assert_eq!((same, fenced.machines.len()), (made.clone(), 0));
        let changed = AgentConfig {
            system: "be brief".into(),
            ..agent_config("a")
        };
        let (second, _) = update(changed.clone()).await.unwrap().value;
        assert_eq!((second.version, &second.config), (2, &changed));
        assert_ne!(second.version_id, made.version_id);
        assert!(second.updated_at > made.updated_at && second.inserted_at == made.inserted_at);
        let versions: Vec<i64> = agent_versions::table
            .filter(agent_versions::agent_id.eq(made.id.to_string()))
            .order(agent_versions::version)
            .select(agent_versions::version)
            .load(&mut db.raw())
            .unwrap();
        assert_eq!(versions, [1, 2]);
        assert_eq!(
            audited(&db, account),
            ["account.created", "agent.created", "agent.updated"]
        );
    }
}

#[actix::test]
async fn a_name_is_taken_within_its_account_alone() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let other = db.account().await.id;
        let first = create(&db, account, agent_config("same")).await.unwrap();
        create(&db, other, agent_config("same")).await.unwrap();
        assert_eq!(
            refused_fields(create(&db, account, agent_config("same")).await),
            ["name"]
        );
        let second = create(&db, account, agent_config("second")).await.unwrap();
        let renamed = db
            .store
            .update_agent(
                account,
                second.id,
                id(),
                agent_config("same"),
                audit(account, "agent.updated"),
                db.tick(),
            )
            .await;
        assert_eq!(refused_fields(renamed), ["name"]);
        assert_eq!(
            db.store.agent(account, second.id).await.unwrap(),
            Some(second),
            "nothing of it was kept"
        );

        let e = |name| EnvironmentConfig::named(name);
        let env = environment(&db, account, e("same")).await;
        environment(&db, other, e("same")).await;
        let entry = || audit(account, "x");
        assert_eq!(
            refused_fields(
                db.store
                    .create_environment(account, id(), e("same"), entry(), db.tick())
                    .await
            ),
            ["name"]
        );
        environment(&db, account, e("e2")).await;
        assert_eq!(
            refused_fields(
                db.store
                    .update_environment(account, env, e("e2"), entry(), db.tick())
                    .await
            ),
            ["name"]
        );
        let v = db
            .store
            .create_vault(account, id(), vault("same"), entry(), db.tick())
            .await
            .unwrap();
        db.store
            .create_vault(other, id(), vault("same"), audit(other, "x"), db.tick())
            .await
            .unwrap();
        db.store
            .create_vault(account, id(), vault("v2"), entry(), db.tick())
            .await
            .unwrap();
        assert_eq!(
            refused_fields(
                db.store
                    .create_vault(account, id(), vault("same"), entry(), db.tick())
                    .await
            ),
            ["name"]
        );
        assert_eq!(
            refused_fields(
                db.store
                    .update_vault(account, v.id, vault("v2"), entry(), db.tick())
                    .await
            ),
            ["name"]
        );
        assert_eq!(db.store.agent(account, first.id).await.unwrap(), Some(first));
    }
}

#[actix::test]
async fn an_agent_names_only_an_environment_of_its_account() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let theirs = environment(&db, db.account().await.id, EnvironmentConfig::named("e")).await;
        let on = |environment| AgentConfig {
            environment_id: Some(environment),
            ..agent_config("a")
        };
        for foreign in [theirs, id()] {
            assert_eq!(
                refused_fields(create(&db, account, on(foreign)).await),
                ["environment_id"]
            );
        }
        let made = create(&db, account, agent_config("a")).await.unwrap();
        let moved = db
            .store
            .update_agent(account, made.id, id(), on(theirs), audit(account, "x"), db.tick())
            .await;
        assert_eq!(refused_fields(moved), ["environment_id"]);
    }
}

#[actix::test]
async fn the_agents_list_is_sorted_and_every_filter_narrows_it() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let env = environment(&db, account, EnvironmentConfig::named("e")).await;
        let mut rich = rich_agent(env);
        rich.name = "Beta".into();
        create(&db, account, rich).await.unwrap();
        create(&db, account, agent_config("gamma")).await.unwrap();
        create(&db, account, agent_config("alpha")).await.unwrap();
        create(&db, db.account().await.id, agent_config("foreign"))
            .await
            .unwrap();
        let cases: [(AgentFilter, &[&str]); 7] = [
            (AgentFilter::default(), &["Beta", "alpha", "gamma"]),
            (
                AgentFilter {
                    search: Some("BET".into()),
                    ..Default::default()
                },
                &["Beta"],
            ),
            (
                AgentFilter {
                    search: Some("%".into()),
                    ..Default::default()
                },
                &[],
            ),
            (
                AgentFilter {
                    runtimes: vec![Runtime::Claude, Runtime::Codex],
                    ..Default::default()
                },
                &["alpha", "gamma"],
            ),
            (
                AgentFilter {
                    environment_ids: vec![env],
                    ..Default::default()
                },
                &["Beta"],
            ),
            (
                AgentFilter {
                    has_skills: Some(false),
                    ..Default::default()
                },
                &["alpha", "gamma"],
            ),
            (
                AgentFilter {
                    has_mcp: Some(true),
                    has_skills: Some(true),
                    ..Default::default()
                },
                &["Beta"],
            ),
        ];
        for (filter, expected) in cases {
            let names: Vec<String> = db
                .store
                .agents(account, filter.clone())
                .await
                .unwrap()
                .into_iter()
                .map(|a| a.config.name)
                .collect();
            assert_eq!(names, expected, "{filter:?}");
        }
    }
}

#[actix::test]
async fn every_field_of_an_environment_comes_back_with_its_counts() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let env = environment(&db, account, rich_environment()).await;
        environment(&db, account, EnvironmentConfig::named("a-plain")).await;
        let on = AgentConfig {
            environment_id: Some(env),
            ..agent_config("a")
        };
        create(&db, account, on).await.unwrap();
        let home = SecretHome::Environment(env);
        let secret = db.store.put_secret(
            account,
            home,
            "A".into(),
            "v".to_owned().into(),
            None,
            audit(account, "secret.created"),
            db.tick(),
        );
        secret.await.unwrap();
        let found = db.store.environment(account, env).await.unwrap().unwrap();
        assert_eq!(found.config, rich_environment());
        assert_eq!((found.secret_count, found.agent_count), (1, 1));
        let list = db.store.environments(account).await.unwrap();
        let names: Vec<&str> = list.iter().map(|e| e.config.name.as_str()).collect();
        assert_eq!(names, ["a-plain", "rich"]);
        assert_eq!(list[1], found);
        assert_eq!((list[0].secret_count, list[0].agent_count), (0, 0));
    }
}

#[actix::test]
async fn a_warm_start_checkpoint_goes_with_a_change_of_what_it_was_made_from() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let env = environment(&db, account, rich_environment()).await;
        let own = || environments::table.find(env.to_string());
        let plant = || {
            diesel::update(own())
                .set(environments::checkpoint.eq("cp-1"))
                .execute(&mut db.raw())
                .unwrap();
        };
        let checkpoint = || {
            own()
                .select(environments::checkpoint)
                .first::<Option<String>>(&mut db.raw())
                .unwrap()
        };
        let update = |config| {
            db.store
                .update_environment(account, env, config, audit(account, "environment.updated"), db.tick())
        };
        plant();
        let mut renamed = rich_environment();
        renamed.name = "renamed".into();
        renamed.metadata.clear();
        update(renamed.clone()).await.unwrap();
        assert_eq!(
            checkpoint().as_deref(),
            Some("cp-1"),
            "name and metadata are not built into it"
        );
        let changes: [fn(&mut EnvironmentConfig); 7] = [
            |c| c.packages.clear(),
            |c| c.env_vars.clear(),
            |c| c.setup_script.clear(),
            |c| c.setup_timeout_seconds = 1,
            |c| c.networking_type = NetworkingType::Unrestricted,
            |c| c.networking_config.clear(),
            |c| c.repositories.clear(),
        ];
        let mut config = renamed;
        for (at, change) in changes.into_iter().enumerate() {
            plant();
            change(&mut config);
            assert_eq!(update(config.clone()).await.unwrap().config, config);
            assert_eq!(checkpoint(), None, "change {at}");
        }
    }
}

#[actix::test]
async fn a_vault_reads_back_changes_and_goes() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let made = db
            .store
            .create_vault(account, id(), vault("b"), audit(account, "x"), db.tick())
            .await
            .unwrap();
        db.store
            .create_vault(account, id(), vault("a"), audit(account, "x"), db.tick())
            .await
            .unwrap();
        assert_eq!(
            (made.name.as_str(), made.description.as_str(), made.secret_count),
            ("b", "keys", 0)
        );
        assert_eq!(made.metadata["team"], json!("core"));
        let changed = NewVault {
            name: "c".into(),
            description: String::new(),
            metadata: Default::default(),
        };
        let changed = db
            .store
            .update_vault(account, made.id, changed, audit(account, "x"), db.tick())
            .await
            .unwrap();
        assert_eq!(
            (
                changed.name.as_str(),
                changed.description.as_str(),
                changed.metadata.len()
            ),
            ("c", "", 0)
        );
        assert_eq!(db.store.vault(account, made.id).await.unwrap(), Some(changed));
        let names: Vec<String> = db
            .store
            .vaults(account)
            .await
            .unwrap()
            .into_iter()
            .map(|v| v.name)
            .collect();
        assert_eq!(names, ["a", "c"]);
        let gone = db
            .store
            .delete_vault(account, made.id, audit(account, "x"), db.tick())
            .await
            .unwrap();
        assert!(gone.value.machines.is_empty());
        assert_eq!(db.store.vault(account, made.id).await.unwrap(), None);
        not_found(
            db.store
                .delete_vault(account, made.id, audit(account, "x"), db.tick())
                .await,
        );
    }
}

#[actix::test]
async fn an_environment_that_goes_leaves_its_agents_without_one() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let env = environment(&db, account, EnvironmentConfig::named("e")).await;
        let on = AgentConfig {
            environment_id: Some(env),
            ..agent_config("a")
        };
        let agent = create(&db, account, on).await.unwrap();
        db.store
            .delete_environment(account, env, audit(account, "environment.deleted"), db.tick())
            .await
            .unwrap();
        assert_eq!(db.store.environment(account, env).await.unwrap(), None);
        assert_eq!(
            db.store
                .agent(account, agent.id)
                .await
                .unwrap()
                .unwrap()
                .config
                .environment_id,
            None
        );
        db.store
            .delete_agent(account, agent.id, audit(account, "agent.deleted"), db.tick())
            .await
            .unwrap();
        assert_eq!(db.store.agent(account, agent.id).await.unwrap(), None);
        let versions: i64 = agent_versions::table.count().get_result(&mut db.raw()).unwrap();
        assert_eq!(versions, 0, "versions go with their agent");
    }
}

#[actix::test]
async fn another_account_finds_nothing_whatever_it_asks() {
    for db in Backend::all().await {
        let owner = db.account().await.id;
        let thief = db.account().await.id;
        let env = environment(&db, owner, EnvironmentConfig::named("e")).await;
        let agent = create(&db, owner, agent_config("a")).await.unwrap();
        let safe = db
            .store
            .create_vault(owner, id(), vault("v"), audit(owner, "x"), db.tick())
            .await
            .unwrap();
        let homes = [SecretHome::Environment(env), SecretHome::Vault(safe.id)];
        for home in homes {
            let put = db.store.put_secret(
                owner,
                home,
                "TOKEN".into(),
                "hunter2".to_owned().into(),
                None,
                audit(owner, "x"),
                db.tick(),
            );
            put.await.unwrap();
        }
        let s = &db.store;
        let entry = || audit(thief, "theft");

        assert_eq!(s.agents(thief, AgentFilter::default()).await.unwrap(), []);
        assert_eq!(s.agent(thief, agent.id).await.unwrap(), None);
        not_found(
            s.update_agent(thief, agent.id, id(), agent_config("b"), entry(), db.tick())
                .await,
        );
        not_found(s.delete_agent(thief, agent.id, entry(), db.tick()).await);

        assert_eq!(s.environments(thief).await.unwrap(), []);
        assert_eq!(s.environment(thief, env).await.unwrap(), None);
        not_found(
            s.update_environment(thief, env, EnvironmentConfig::named("b"), entry(), db.tick())
                .await,
        );
        not_found(s.delete_environment(thief, env, entry(), db.tick()).await);

        assert_eq!(s.vaults(thief).await.unwrap(), []);
        assert_eq!(s.vault(thief, safe.id).await.unwrap(), None);
        not_found(s.update_vault(thief, safe.id, vault("b"), entry(), db.tick()).await);
        not_found(s.delete_vault(thief, safe.id, entry(), db.tick()).await);

        for home in homes {
            not_found(s.secrets(thief, home).await);
            let value = || "stolen".to_owned().into();
            not_found(
                s.put_secret(thief, home, "TOKEN".into(), value(), None, entry(), db.tick())
                    .await,
            );
            not_found(s.set_secret_expiry(thief, home, "TOKEN".into(), None, db.tick()).await);
            not_found(s.delete_secret(thief, home, "TOKEN".into(), entry(), db.tick()).await);
        }
        not_found(s.secret_bundle(thief, Some(env), None).await);
        not_found(s.secret_bundle(thief, None, Some(safe.id)).await);
        assert_eq!(
            audited(&db, thief),
            ["account.created"],
            "a refused action leaves no trace in the trail"
        );

        let ghost = id();
        not_found(create(&db, ghost, agent_config("a")).await);
        not_found(
            s.create_environment(ghost, id(), EnvironmentConfig::named("e"), entry(), db.tick())
                .await,
        );
        not_found(s.create_vault(ghost, id(), vault("v"), entry(), db.tick()).await);
    }
}

#[actix::test]
async fn rul_l_34_a_checkpoint_is_recorded_only_over_the_fields_that_it_was_built_from() {
    for db in Backend::all().await {
        let account = db.account().await.id;
        let config = rich_environment();
        let env = environment(&db, account, config.clone()).await;
        let of = |id: &str, config: &EnvironmentConfig| EnvironmentCheckpoint {
            id: id.into(),
            provider: Provider::Sprites,
            vault_id: None,
            fingerprint: config.warm_start_fingerprint(),
            skills: String::new(),
            marker: "marker".into(),
        };
        let s = &db.store;
        let first = of("a.v1", &config);
        let kept = s.record_checkpoint(account, env, first.clone()).await.unwrap();
        assert_eq!(kept, Recorded::Kept { replaced: None });
        assert_eq!(
            s.environment_checkpoint(account, env).await.unwrap(),
            Some(first.clone())
        );
        let second = of("b.v1", &config);
        let kept = s.record_checkpoint(account, env, second.clone()).await.unwrap();
        assert_eq!(
            kept,
            Recorded::Kept {
                replaced: Some(first.clone())
            }
        );
        assert!(
            !s.clear_checkpoint(account, env, first).await.unwrap(),
            "another one by now"
        );
        let mut changed = config.clone();
        changed.setup_script.push_str("true");
        s.update_environment(account, env, changed, audit(account, "environment.updated"), db.tick())
            .await
            .unwrap();
        let late = s.record_checkpoint(account, env, second.clone()).await.unwrap();
        assert_eq!(late, Recorded::Outdated);
        assert_eq!(s.environment_checkpoint(account, env).await.unwrap(), None);
        let other = db.account().await.id;
        assert_eq!(
            s.record_checkpoint(other, env, second.clone()).await.unwrap(),
            Recorded::Outdated
        );
        let now = db.tick();
        let day = now + chrono::TimeDelta::hours(24);
        s.distrust_checkpoints("here".into(), day).await.unwrap();
        s.distrust_checkpoints("here".into(), day).await.unwrap();
        assert!(s.checkpoints_distrusted("here".into(), now).await.unwrap());
        assert!(!s.checkpoints_distrusted("here".into(), day).await.unwrap());
        assert!(!s.checkpoints_distrusted("there".into(), now).await.unwrap());
    }
}
