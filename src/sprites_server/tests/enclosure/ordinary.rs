//! Lesser hosts: an ordinary user, a host without overlays, a host that keeps nothing apart. And a killed server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use fountain_sprites::enclosure::{Disk, EnclosureError, Enclosures, Isolation, Network};
use fountain_sprites::policy::Policy;

use crate::inside::{LIMIT, World, control_groups, finish, helper, launch, sh, start, until};

const NOBODY: &str = "65534";

fn denying() -> Policy {
    serde_json::from_str(r#"{"rules":[{"domain":"*","action":"deny"}]}"#).unwrap()
}

/// Runs every test of the other files again, as a user without rights.
#[test]
fn an_ordinary_user_gets_the_same() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("NOT TESTED: this is an ordinary user already");
        return;
    }
    let reach = |program: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", program])
            .args(args);
        command
    };
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let can = |program: &str| {
        reach("test", &["-x", program])
            .status()
            .is_ok_and(|status| status.success())
    };
    if !can(own) || !can(helper().to_str().unwrap()) {
        eprintln!("NOT TESTED: no setpriv, or the tests lie where an ordinary user cannot reach them");
        return;
    }
    // Another filesystem too, where there is one.
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if !reach("unshare", &["-Urmpnf", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("NOT TESTED: an ordinary user may not make namespaces on this host");
        return;
    }
    let mut again = reach(
        own,
        &[
            "isolation::",
            "lifecycle::",
            "terminal::",
            "uplink::",
            "--nocapture",
            "--test-threads=2",
        ],
    );
    let ran = again.env("TMPDIR", directory.path()).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(!said.contains("running 0 tests"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_overlays_a_sprite_has_plain_directories() {
    let world = World::with(|settings| settings.most = Isolation::Copy);
    let facilities = world.host.facilities();
    assert_eq!(
        (facilities.disk, facilities.network),
        (Disk::Copy, Network::None),
        "{facilities:?}"
    );
    let plan = world.plan("alpha");
    let sprite = world.open_plan(plan.clone()).await;
    let script = "echo mine > note; echo mine > /tmp/note; echo mine > /etc/note; cat /etc/hostname; ls /root /srv; test ! -e /etc/shadow";
    assert_eq!(sh(&*sprite, script).await.ok(), "alpha\n/root:\n\n/srv:");
    assert!(
        !sh(&*sprite, "echo x > /usr/note").await.status.success(),
        "the host's system is read-only"
    );
    assert!(!sh(&*sprite, "mount -o remount,bind,rw /usr").await.status.success());
    sprite.close().await;
    // A disk is what is in the directory: kept, and copied for a checkpoint.
    let disk = plan.directory.join("disk");
    assert_eq!(fs::read_to_string(disk.join("home/sprite/note")).unwrap(), "mine\n");
    let sprite = world.open_plan(plan).await;
    assert_eq!(
        sh(&*sprite, "cat note /tmp/note /etc/note").await.ok(),
        "mine\nmine\nmine"
    );
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rul_l_113_a_host_that_keeps_nothing_apart_says_so_and_refuses_policies() {
    let world = World::with(|settings| settings.most = Isolation::None);
    let facilities = world.host.facilities();
    assert!(!facilities.user_namespace && !facilities.mount_namespace && !facilities.pid_namespace);
    assert_eq!(facilities.network, Network::Host);
    assert!(
        facilities
            .missing
            .iter()
            .any(|each| each.contains("nothing is kept apart")),
        "{facilities:?}"
    );
    assert!(matches!(
        world.host.check(&denying()),
        Err(EnclosureError::Unenforceable(_))
    ));
    world.host.check(&Policy::default()).unwrap();
    let mut plan = world.plan("alpha");
    plan.policy = denying();
    assert!(matches!(
        world.host.open(plan).await.err(),
        Some(EnclosureError::Unenforceable(_))
    ));
    let sprite = world.open("alpha").await;
    assert!(matches!(
        sprite.set_policy(denying()).await,
        Err(EnclosureError::Unenforceable(_))
    ));
    sprite.set_policy(Policy::default()).await.unwrap();
    assert_eq!(sh(&*sprite, "pwd").await.ok(), sprite.home());
    let missing = sprite
        .spawner()
        .start(launch(&*sprite, "no-such-program", &[]), "test".to_owned())
        .await;
    assert_eq!(missing.err().unwrap().kind(), std::io::ErrorKind::NotFound);
    // What is left of it ends with it, wherever its group is.
    let started = start(
        &*sprite,
        launch(&*sprite, "sh", &["-c", "setsid sleep 61 >/dev/null 2>&1 & echo $!"]),
    )
    .await;
    let left: i32 = finish(started).await.ok().parse().unwrap();
    tokio::time::timeout(LIMIT, sprite.close()).await.unwrap();
    assert!(!runs(left));
    sprite.closed().await;
    assert!(sprite.root().is_err());
}

fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

const VICTIM: &str = "FOUNTAIN_TEST_VICTIM";

/// In another process: a server that will be killed. Alone, it proves only that a sprite can be opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_for_killing() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let started = start(&*sprite, launch(&*sprite, "sh", &["-c", "setsid sleep 61 & sleep 62"])).await;
    #[expect(
        clippy::disallowed_methods,
        reason = "how the two processes of one test know each other"
    )]
    let is_victim = std::env::var_os(VICTIM).is_some();
    if is_victim {
        println!("leader {}", started.leader);
        std::future::pending::<()>().await;
    }
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_takes_every_process_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ordinary::a_server_for_killing", "--nocapture"])
        .env(VICTIM, "1")
        .env("TMPDIR", directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let leader: i32 = lines
        .find_map(|line| line.unwrap().strip_prefix("leader ").map(|pid| pid.parse().unwrap()))
        .unwrap();
    let namespace = fs::read_link(format!("/proc/{leader}/ns/pid")).unwrap();
    let inside = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let others =
            processes.filter(|entry| fs::read_link(entry.path().join("ns/pid")).is_ok_and(|ns| ns == namespace));
        others.count()
    };
    until("its commands run", || inside() >= 4).await;
    server.kill().unwrap();
    server.wait().unwrap();
    until("everything inside is gone", || inside() == 0).await;
    assert!(!runs(leader));
    // Its control group cannot remove itself; the next server does.
    drop(World::new());
    assert_eq!(
        control_groups(&format!("fountain-{}-", server.id())),
        Vec::<std::path::PathBuf>::new()
    );
}
