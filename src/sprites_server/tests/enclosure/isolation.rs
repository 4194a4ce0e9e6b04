//! What a command sees of the host and of other sprites: nothing but the system's own files.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use fountain_sprites::enclosure::{Disk, Enclosures, Network};

use crate::inside::{World, finish, launch, sh, start};

#[tokio::test(flavor = "multi_thread")]
async fn this_host_can_keep_sprites_apart() {
    let world = World::new();
    let facilities = world.host.facilities();
    eprintln!("{facilities:?}");
    assert!(
        facilities.user_namespace && facilities.mount_namespace && facilities.pid_namespace,
        "{facilities:?}"
    );
    assert_eq!(facilities.disk, Disk::Overlay, "{facilities:?}");
    assert_eq!(facilities.network, Network::None, "no uplink was given");
    let left: Vec<_> = fs::read_dir(world.directory.path().join("server"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "the probe leaves the base and nothing else: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_in_its_own_home_under_its_own_name() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let said = sh(
        &*sprite,
        "id -u; hostname; pwd; echo $HOME; ls -A; echo $FOUNTAIN_SESSION; getent hosts alpha",
    )
    .await
    .ok();
    assert_eq!(
        said,
        "0\nalpha\n/home/sprite\n/home/sprite\ntest\n127.0.0.1       localhost alpha"
    );
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_sees_no_process_of_the_host_and_reaches_none() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let processes = sh(&*sprite, "echo /proc/[0-9]*").await.ok();
    assert_eq!(
        processes.split(' ').count(),
        2,
        "the first process and the shell: {processes}"
    );
    let outside = std::process::id();
    assert!(!sh(&*sprite, &format!("kill -0 {outside}")).await.status.success());
    // Everything that it can signal is inside: the host goes on.
    let mut victim = tokio::process::Command::new("sleep")
        .arg("60")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    sh(&*sprite, "kill -9 -1").await;
    assert_eq!(victim.try_wait().unwrap(), None);
    assert_eq!(sh(&*sprite, "echo alive").await.ok(), "alive");
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_sees_no_file_of_the_host_and_none_of_another_sprite() {
    let world = World::new();
    let secret = world.directory.path().join("secret");
    fs::write(&secret, "of the host").unwrap();
    let (alpha, beta) = (world.open("alpha").await, world.open("beta").await);
    sh(
        &*alpha,
        "echo mine > $HOME/note; echo mine > /tmp/note; echo mine > /usr/note; chmod 600 $HOME/note",
    )
    .await
    .ok();
    for hidden in [
        &secret,
        world.directory.path(),
        &Path::new("/root").join(".profile"),
        Path::new("/home/sprite/note"),
    ] {
        let said = sh(&*beta, &format!("test -e {}", hidden.display())).await;
        assert!(!said.status.success(), "{} is seen", hidden.display());
    }
    let own = "cat /tmp/note /usr/note; ls -A /root /home /srv /mnt /run /tmp";
    let said = sh(&*beta, own).await;
    assert_eq!(
        said.stdout.replace('\n', ""),
        "/home:sprite/mnt:/root:/run:/srv:/tmp:",
        "{said:?}"
    );
    for name in ["note", "lost+found"] {
        assert!(
            !sh(&*beta, &format!("find / -xdev -name {name} | grep ."))
                .await
                .status
                .success()
        );
    }
    alpha.close().await;
    beta.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_may_not_read_in_etc_is_not_there() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let mut hidden = 0;
    for entry in fs::read_dir("/etc").unwrap().flatten() {
        use std::os::unix::fs::MetadataExt;
        let meta = entry.metadata().unwrap();
        if !meta.is_symlink() && meta.mode() & 0o004 == 0 {
            hidden += 1;
            let said = sh(&*sprite, &format!("test -e '{}'", entry.path().display())).await;
            assert!(!said.status.success(), "{} is seen", entry.path().display());
        }
    }
    if hidden == 0 {
        eprintln!("NOT TESTED: everybody may read all of /etc on this host");
    }
    assert_eq!(sh(&*sprite, "head -c5 /etc/passwd").await.ok(), "root:");
    assert_eq!(
        sh(&*sprite, "stat -c %a /etc; echo x > /etc/passwd; cat /etc/passwd")
            .await
            .ok(),
        "755\nx"
    );
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_system_can_be_changed_inside_and_stays_as_it_is_outside() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let script =
        "set -e; echo changed > /etc/passwd; rm /usr/bin/env; mkdir /usr/new /opt/new; echo x > /var/lib/dpkg/new
        cat /etc/passwd; test ! -e /usr/bin/env; chown 1000:1000 /usr/new; stat -c %u /usr/new";
    if nix_is_root() {
        assert_eq!(sh(&*sprite, script).await.ok(), "changed\n1000");
    } else {
        eprintln!("NOT TESTED: only root can give a sprite a system that it can change");
    }
    assert!(fs::read_to_string("/etc/passwd").unwrap().starts_with("root:"));
    assert!(Path::new("/usr/bin/env").exists());
    for new in ["/usr/new", "/opt/new", "/var/lib/dpkg/new"] {
        assert!(!Path::new(new).exists(), "{new}");
    }
    sprite.close().await;
}

fn nix_is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_cannot_be_changed_from_inside() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let null = fs::metadata("/dev/null").unwrap();
    for attempt in [
        "echo h > /proc/sys/kernel/hostname",
        "echo 1 > /proc/sys/vm/drop_caches",
        "umount /proc/sys",
        "umount -l /proc/sys",
        "mount -o remount,rw /proc/sys",
        "mount -o remount,bind,rw /proc/sys",
        "mount --bind /proc /mnt",
        "mount -t proc proc /mnt",
        "unshare -Urmpf mount -t proc proc /mnt",
        "mount -o remount,bind,rw /.fountain/fountain",
        "echo x >> /.fountain/fountain",
        "mount -o remount,bind,rw /sys",
        "mknod /tmp/disk b 254 0",
        "mknod /tmp/mem c 1 1",
        "chmod 0 /dev/null",
        "chown 1 /dev/null",
        "umount /dev/null",
        "cat /proc/1/environ",
        "ls -l /proc/1/fd/",
        "readlink /proc/1/exe",
        "ls /proc/1/root",
        "hostname other",
        "mount -t cgroup2 none /mnt",
        "mount -t cgroup -o pids none /mnt",
        "unshare -C true",
        "unshare -mC mount -t cgroup2 none /mnt",
        "unshare -mC mount -t cgroup -o pids none /mnt",
        "unshare -UrmC mount -t cgroup2 none /mnt",
        "unshare -n mount -t sysfs none /mnt",
        "unshare -Urmn mount -t sysfs none /mnt",
        "ip link set lo down",
    ] {
        let said = sh(&*sprite, attempt).await;
        assert!(!said.status.success(), "{attempt}: {said:?}");
    }
    for silent in ["sysrq-trigger", "kcore", "kmsg", "keys"] {
        let said = sh(
            &*sprite,
            &format!("echo ? > /proc/{silent}; head -c1 /proc/{silent} | wc -c"),
        )
        .await;
        assert_eq!(said.stdout.trim(), "0", "{silent}: {said:?}");
    }
    let after = fs::metadata("/dev/null").unwrap();
    assert_eq!(null.permissions(), after.permissions());
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_a_terminal_has_none_of_the_servers() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let said = sh(&*sprite, "ps -o tty= -p $$; exec 3<>/dev/tty").await;
    assert!(!said.status.success() && said.stdout.trim() == "?", "{said:?}");
    let session = sh(&*sprite, "cut -d' ' -f6 /proc/self/stat").await.ok();
    assert_eq!(session, "0", "its session began outside, with the outer process");
    let started = start(&*sprite, launch(&*sprite, "sleep", &["60"])).await;
    let own = nix::unistd::getsid(None).unwrap();
    assert_ne!(nix::unistd::getsid(Some(started.leader)).unwrap(), own);
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_loopback_is_another() {
    let world = World::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let sprite = world.open("alpha").await;
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let said = finish(start(&*sprite, launch(&*sprite, "bash", &["-c", &connect])).await).await;
    assert!(!said.status.success() && said.stderr.contains("refused"), "{said:?}");
    assert_eq!(sh(&*sprite, "ls /sys/class/net").await.ok(), "lo");
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_as_seen_from_outside_does_not_lead_out() {
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    let world = World::new();
    let secret = world.directory.path().join("secret");
    fs::write(&secret, "of the host").unwrap();
    let sprite = world.open("alpha").await;
    let up = "../".repeat(40);
    let script = format!(
        "echo mine > note; ln -s {0} absolute; ln -s {up}{0} relative; ln -s {up}home/sprite/note fine; ln -s /proc/1/root magic",
        secret.display()
    );
    sh(&*sprite, &script).await.ok();
    let root = sprite.root().unwrap();
    let open = |path: &str| openat2(&root, path, OFlags::RDONLY, Mode::empty(), ResolveFlags::IN_ROOT);
    for path in ["home/sprite/absolute", "home/sprite/relative", secret.to_str().unwrap()] {
        assert!(open(path).is_err(), "{path} leads out");
    }
    for path in ["home/sprite/fine", "/home/sprite/note", "../../home/sprite/note"] {
        let file = fs::File::from(open(path).unwrap());
        assert_eq!(
            std::io::read_to_string(file).unwrap(),
            "mine\n",
            "{path} ({})",
            root.as_raw_fd()
        );
    }
    sprite.close().await;
    assert!(sprite.root().is_err());
}
