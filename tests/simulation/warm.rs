//! Cold steps and warm starts, on a provider that keeps checkpoints (lifecycle 4.4, RUL-L-33, RUL-L-34).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::world::*;
use bytes::Bytes;
use fountain_actors::domain::environment::EnvironmentConfig;
use fountain_actors::domain::event::Stage;
use fountain_actors::domain::machine::{MachineMode, MachineStatus};
use fountain_actors::domain::*;
use fountain_actors::fakes::{FakeProcess, FakeSandbox, Fault, Logged, Op, Spawn, Stdio};
use fountain_actors::machine::groundwork::*;
use fountain_actors::machine::messages::*;
use fountain_actors::ports::sandbox::{Capability, Env, NOT_CONNECTED, NetworkPolicy, SandboxError};
use fountain_actors::ports::store::WarmStore;
use fountain_actors::ports::store::catalog::CatalogStore;
use secrecy::SecretString;

/// What the machine was told to run.
type Ran = Arc<Mutex<Vec<Spawn>>>;

/// Ends at once, with what the test planned for the next commands, then 0.
struct Ends(Bytes, i64);

impl FakeProcess for Ends {
    fn start(&mut self, stdio: &Stdio) {
        stdio.stdout(self.0.clone());
        stdio.exit(self.1);
    }
    fn stdin(&mut self, _: &[u8], _: &Stdio) {}
    fn eof(&mut self, _: &Stdio) {}
}

struct Bench {
    sim: Sim,
    ran: Ran,
    environment: EnvironmentId,
    config: EnvironmentConfig,
}

impl Bench {
    async fn start() -> Self {
        Self::ending(&[]).await
    }

    /// The first commands end so.
    async fn ending(ends: &[(&'static str, i64)]) -> Self {
        let ran = Ran::default();
        let (noted, planned) = (ran.clone(), Mutex::new(ends.to_vec()));
        let program = move |spawn: &Spawn| -> Box<dyn FakeProcess> {
            noted.lock().unwrap().push(spawn.clone());
            let mut planned = planned.lock().unwrap();
            let (said, code) = if planned.is_empty() { ("", 0) } else { planned.remove(0) };
            Box::new(Ends(Bytes::from_static(said.as_bytes()), code))
        };
        let shape = |fake: FakeSandbox| fake.offering(Capability::Checkpoint).with_program(Arc::new(program));
        let sim = Sim::with(|settings| settings.checkpoint_creation = true, shape).await;
        let environment = sim.world().id();
        let mut config = EnvironmentConfig::named("env");
        config.setup_script = "make".into();
        let created = audited(sim.account, "environment.created");
        let made = sim
            .store
            .create_environment(sim.account, environment, config.clone(), created, sim.now());
        made.await.unwrap();
        Self {
            sim,
            ran,
            environment,
            config,
        }
    }

    async fn ask(&self, home: Home) -> Provision {
        let mut ask = self.sim.provision(home).await;
        ask.plan.policy = Some(NetworkPolicy {
            allow: vec!["example.com".into()],
        });
        ask.plan.groundwork = Groundwork {
            installs: vec![
                Install {
                    manager: Manager::Apt,
                    names: vec!["ripgrep".into(), "jq".into()],
                },
                Install {
                    manager: Manager::Npm,
                    names: vec!["tsx".into()],
                },
            ],
            checkouts: vec![Checkout {
                url: "https://git.test/a.git".into(),
                mount_path: "/home/sprite/a".into(),
                reference: Some("main".into()),
                secret_key: Some("GIT".into()),
                token: Some(SecretString::from("git-token")),
            }],
            setup: Some(Setup {
                script: "make".into(),
                limit: Duration::from_secs(7),
                env: Env(vec![("FOUNTAIN_TOKEN".into(), "callback".into())]),
                dir: "/home/sprite".into(),
            }),
            warm: Some(WarmStart {
                account: self.sim.account,
                environment: self.environment,
                vault: None,
                fingerprint: self.config.warm_start_fingerprint(),
                skills: String::new(),
            }),
        };
        ask
    }

    /// A machine of a new conversation.
    async fn build(&self) -> (Home, Result<Provisioned, ProvisionError>) {
        let home = self.sim.launch(MachineMode::Ephemeral).await;
        let ask = self.ask(home).await;
        (home, self.sim.here.owner(home.machine).send(ask).await.unwrap())
    }

    async fn built(&self) -> Home {
        let (home, answer) = self.build().await;
        answer.unwrap();
        home
    }

    async fn recorded(&self) -> Option<String> {
        let found = self
            .sim
            .store
            .environment_checkpoint(self.sim.account, self.environment);
        found.await.unwrap().map(|checkpoint| checkpoint.id)
    }

    /// What took effect at the provider for one machine, in order.
    async fn effects(&self, home: Home) -> Vec<Op> {
        let name = self.sim.row(home).await.name;
        let log = self.sim.fake.log().into_iter();
        log.filter(|entry| entry.what == Logged::Effect && entry.machine == name)
            .map(|entry| entry.op)
            .filter(|op| !matches!(op, Op::Get | Op::PolicyRead))
            .collect()
    }

    async fn change(&self, config: &EnvironmentConfig) {
        let sim = &self.sim;
        let updated = audited(sim.account, "environment.updated");
        sim.store
            .update_environment(sim.account, self.environment, config.clone(), updated, sim.now())
            .await
            .unwrap();
    }
}

fn failed(answer: Result<Provisioned, ProvisionError>) -> ProvisionFailure {
    match answer {
        Err(ProvisionError::Failed(failure)) => failure,
        other => panic!("the build should have failed: {other:?}"),
    }
}

const COLD: [&str; 10] = [
    "provision/started",
    "packages/started",
    "packages/done",
    "network/started",
    "network/done",
    "clone/started",
    "clone/done",
    "setup/started",
    "setup/done",
    "provision/done",
];

#[actix::test]
async fn rul_l_33_a_cold_build_has_its_order_and_secrets_come_after_the_policy() {
    let bench = Bench::start().await;
    let home = bench.built().await;
    assert_eq!(bench.sim.stages(home).await, COLD);
    let effects = bench.effects(home).await;
    use Op::{Checkpoint, Create, Exec, Policy, WriteFile};
    // Packages; policy; clone; setup; marker and checkpoint; the files of the conversation.
    let order = [Create, Exec, Exec, Policy, Exec, Exec, WriteFile, Checkpoint, WriteFile];
    assert_eq!(effects, order);
    let ran = bench.ran.lock().unwrap();
    let knows = |spawn: &Spawn, value: &str| spawn.env.0.iter().any(|(_, known)| known == value);
    assert!(ran[..2].iter().all(|spawn| spawn.env.0.is_empty()));
    assert!(knows(&ran[2], "git-token") && !knows(&ran[2], "callback"));
    assert!(knows(&ran[3], "callback") && !knows(&ran[3], "git-token"));
    assert!(ran.iter().all(|spawn| !spawn.arguments.join(" ").contains("git-token")));
}

#[actix::test]
async fn rul_l_33_the_checkpoint_holds_nothing_of_the_conversation() {
    let bench = Bench::start().await;
    bench.built().await;
    let next = bench.sim.launch(MachineMode::Ephemeral).await;
    let ask = bench.ask(next).await;
    bench
        .sim
        .fake
        .plan(Op::WriteFile, Fault::Refused(SandboxError::Denied("read-only".into())));
    bench
        .sim
        .fake
        .plan(Op::Destroy, Fault::Refused(SandboxError::Denied("kept".into())));
    failed(bench.sim.here.owner(next.machine).send(ask).await.unwrap());
    let name = bench.sim.row(next).await.name;
    assert!(
        bench
            .sim
            .fake
            .file(&name, "/home/sprite/.fountain/checkpoint")
            .is_some(),
        "restored"
    );
    assert!(bench.sim.fake.file(&name, ENV_FILE).is_none());
}

#[actix::test]
async fn r_53_a_warm_start_skips_the_cold_steps_and_never_the_policy() {
    let bench = Bench::start().await;
    bench.built().await;
    let commands = bench.ran.lock().unwrap().len();
    let home = bench.built().await;
    let stages = bench.sim.stages(home).await;
    assert_eq!(
        stages,
        [
            "provision/started",
            "checkpoint_restore/started",
            "checkpoint_restore/done",
            "network/started",
            "network/done",
            "provision/done"
        ]
    );
    use Op::{Create, Exec, Policy, Restore, WriteFile};
    // The one command is our own look at the marker.
    assert_eq!(bench.effects(home).await, [Create, Restore, Exec, Policy, WriteFile]);
    assert_eq!(bench.ran.lock().unwrap().len(), commands);
    let row = bench.sim.row(home).await;
    assert!(bench.sim.fake.policy(&row.name).is_some());
    assert_eq!(
        row.provider_meta["public_url"],
        format!("https://{}.fake.test", row.name)
    );
}

#[actix::test]
async fn p77_rul_l_34_a_restore_without_the_marker_is_cold_and_not_tried_again_for_a_day() {
    let bench = Bench::start().await;
    bench.built().await;
    bench.sim.fake.mix_up_checkpoints();
    let home = bench.built().await;
    let stages = bench.sim.stages(home).await;
    assert_eq!(
        stages[1..3],
        ["checkpoint_restore/started", "checkpoint_restore/failed"]
    );
    assert_eq!(stages[3..], COLD[1..], "the cold path, on this machine");
    assert_eq!(bench.recorded().await, None);
    assert_eq!(bench.sim.fake.requests(Op::Create), 2);
    let taken = bench.sim.fake.requests(Op::Checkpoint);
    bench.built().await;
    assert_eq!(bench.sim.fake.requests(Op::Checkpoint), taken, "none is taken");
    tokio::time::sleep(Duration::from_secs(24 * 60 * 60 + 1)).await;
    bench.built().await;
    assert_eq!(bench.sim.fake.requests(Op::Checkpoint), taken + 1);
    assert!(bench.recorded().await.is_some());
}

#[actix::test]
async fn p77_a_restore_whose_stream_reports_an_error_is_cold() {
    let bench = Bench::start().await;
    bench.built().await;
    let error = SandboxError::RestoreFailed("the stream said error".into());
    bench.sim.fake.plan(Op::Restore, Fault::Refused(error));
    let home = bench.built().await;
    assert!(
        bench
            .sim
            .stages(home)
            .await
            .contains(&"checkpoint_restore/failed".to_owned())
    );
    assert_eq!(
        bench.sim.fake.requests(Op::Restore),
        1,
        "an answer is not asked for again"
    );
    assert_eq!(bench.recorded().await, None);
    assert_eq!(bench.sim.status(home).await, MachineStatus::Ready);
}

#[actix::test]
async fn rul_l_34_a_build_that_ends_after_a_change_does_not_bring_its_disk_back() {
    let bench = Bench::start().await;
    bench
        .sim
        .fake
        .plan(Op::Checkpoint, Fault::Slow(Duration::from_secs(20)));
    let mut changed = bench.config.clone();
    changed.setup_script = "make all".into();
    let change = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        bench.change(&changed).await;
    };
    let (home, ()) = tokio::join!(bench.built(), change);
    assert_eq!(bench.sim.status(home).await, MachineStatus::Ready);
    assert_eq!(bench.recorded().await, None);
    assert!(bench.sim.fake.checkpoints().is_empty(), "nobody would ever use it");
}

#[actix::test]
async fn rul_l_34_another_vault_or_other_fields_do_not_use_it_and_the_next_cold_build_replaces_it() {
    let bench = Bench::start().await;
    bench.built().await;
    let first = bench.recorded().await.unwrap();
    let home = bench.sim.launch(MachineMode::Ephemeral).await;
    let mut ask = bench.ask(home).await;
    let warm = ask.plan.groundwork.warm.as_mut().unwrap();
    warm.vault = Some(bench.sim.world().id());
    bench.sim.here.owner(home.machine).send(ask).await.unwrap().unwrap();
    assert_eq!(bench.sim.fake.requests(Op::Restore), 0);
    let second = bench.recorded().await.unwrap();
    assert_ne!(first, second);
    assert_eq!(bench.sim.fake.checkpoints(), [second], "the replaced one is deleted");
}

#[actix::test]
async fn rul_l_33_a_checkpoint_that_fails_or_is_slow_fails_nothing() {
    let bench = Bench::start().await;
    bench
        .sim
        .fake
        .plan(Op::Checkpoint, Fault::Refused(SandboxError::Denied("full".into())));
    bench.built().await;
    assert_eq!(bench.recorded().await, None);
    bench.sim.fake.plan(Op::Checkpoint, Fault::NoAnswer);
    let began = tokio::time::Instant::now();
    bench.built().await;
    let took = began.elapsed();
    assert!(
        took >= Duration::from_secs(119) && took < Duration::from_secs(125),
        "{took:?}"
    );
    assert_eq!(bench.recorded().await, None);
}

async fn setup_ends(code: i64, reason: &str) {
    let bench = Bench::ending(&[("", 0), ("", 0), ("", 0), ("", code)]).await;
    let (home, answer) = bench.build().await;
    let failure = failed(answer);
    assert_eq!(
        (failure.stage, failure.reason.as_str(), failure.exit_code),
        (Stage::Setup, reason, Some(code))
    );
    let stages = bench.sim.stages(home).await;
    assert_eq!(stages[stages.len() - 2..], ["setup/failed", "provision/failed"]);
    assert!(bench.sim.fake.machines().is_empty());
    assert_eq!(bench.ran.lock().unwrap().len(), 4, "a script is never run twice");
}

#[actix::test]
async fn rul_2_a_setup_script_at_its_limit_ends_the_build_with_124() {
    setup_ends(124, "timeout").await;
}

#[actix::test]
async fn a_setup_script_that_fails_ends_the_build_with_its_code() {
    setup_ends(3, "command_failed").await;
}

#[actix::test]
async fn a_clone_is_tried_again_when_git_never_connected() {
    let unreachable = "fatal: unable to access: Could not resolve host: git.test";
    let bench = Bench::ending(&[("", 0), ("", 0), (unreachable, 128)]).await;
    bench.built().await;
    assert_eq!(bench.ran.lock().unwrap().len(), 5);
}

#[actix::test]
async fn a_clone_that_was_refused_is_not_tried_again() {
    let bench = Bench::ending(&[("", 0), ("", 0), ("fatal: Authentication failed", 128)]).await;
    let failure = failed(bench.build().await.1);
    assert_eq!(
        (failure.stage, failure.reason.as_str()),
        (Stage::Clone, "command_failed")
    );
    assert_eq!(bench.ran.lock().unwrap().len(), 3);
}

#[actix::test]
async fn packages_are_tried_again_only_when_the_machine_was_not_reached() {
    let bench = Bench::start().await;
    let out_of_reach = || Fault::Refused(SandboxError::Unavailable(NOT_CONNECTED.into()));
    bench.sim.fake.plan(Op::Exec, out_of_reach());
    bench.built().await;
    bench.sim.fake.plan(Op::Restore, Fault::Refused(SandboxError::NotFound));
    bench.sim.fake.plan(Op::Exec, Fault::LostAnswer);
    let failure = failed(bench.build().await.1);
    assert_eq!(
        (failure.stage, failure.reason.as_str()),
        (Stage::Packages, "exec_failed")
    );
}

#[actix::test]
async fn rul_l_34_a_secret_that_is_not_there_fails_the_clone_before_anything_is_created() {
    let bench = Bench::start().await;
    let home = bench.sim.launch(MachineMode::Ephemeral).await;
    let mut ask = bench.ask(home).await;
    ask.plan.groundwork.checkouts[0].token = None;
    let failure = failed(bench.sim.here.owner(home.machine).send(ask).await.unwrap());
    assert_eq!(
        (failure.stage, failure.reason.as_str()),
        (Stage::Clone, "secret_missing")
    );
    assert!(bench.sim.fake.log().is_empty());
}

#[actix::test]
async fn rul_l_97_three_reads_that_do_not_answer_or_one_other_policy_fail_the_build_closed() {
    let bench = Bench::start().await;
    let lost = || Fault::Refused(SandboxError::Unavailable("down".into()));
    for _ in 0..2 {
        bench.sim.fake.plan(Op::PolicyRead, lost());
    }
    bench.built().await;
    for _ in 0..3 {
        bench.sim.fake.plan(Op::PolicyRead, lost());
    }
    let commands = bench.ran.lock().unwrap().len();
    let failure = failed(bench.build().await.1);
    assert_eq!(
        (failure.stage, failure.reason.as_str()),
        (Stage::Network, "network_policy_unverified")
    );
    assert_eq!(bench.ran.lock().unwrap().len(), commands, "nothing ran");
}

#[actix::test]
async fn rul_l_2_a_server_that_saw_a_newer_epoch_supersedes_the_build() {
    let bench = Bench::start().await;
    let stale = SandboxError::Invalid("stale_epoch".into());
    bench.sim.fake.plan(Op::Exec, Fault::Refused(stale));
    let (home, answer) = bench.build().await;
    assert!(matches!(answer, Err(ProvisionError::ClaimedElsewhere)), "{answer:?}");
    assert_eq!(bench.sim.fake.requests(Op::Destroy), 0, "a taker builds here");
    assert_eq!(bench.sim.status(home).await, MachineStatus::Starting);
}
