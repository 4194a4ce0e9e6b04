//! Commands on a terminal of the enclosure.

use std::os::unix::process::ExitStatusExt;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::inside::{LIMIT, World, finish, launch, on_terminal, sh, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_the_commands_own_and_has_its_size() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let script = "tty; stty size; ps -o pgid=,sid=,pid= -p $$ | tr -s ' '; echo to-error >&2; test -t 0 -a -t 1 -a -t 2 && echo all";
    let said = finish(start(&*sprite, on_terminal(&*sprite, script, 31, 97)).await)
        .await
        .ok();
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    assert_eq!(lines[0], "/dev/pts/0");
    assert_eq!(lines[1], "31 97");
    let numbers: Vec<_> = lines[2].split(' ').collect();
    assert_eq!(
        (numbers[0], numbers[1]),
        (numbers[2], numbers[2]),
        "leads its group and its session"
    );
    assert_eq!(&lines[3..], ["to-error", "all"]);
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_takes_input_and_is_resized() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let script = "trap 'stty size; exit 3' WINCH; echo ready; read line; echo got $line; while :; do sleep 0.01; done";
    let mut started = start(&*sprite, on_terminal(&*sprite, script, 24, 80)).await;
    let (mut input, mut output) = (started.stdin.take().unwrap(), started.stdout.take().unwrap());
    let mut seen = String::new();
    let talk = async {
        let mut step = 0;
        let mut buffer = [0; 512];
        loop {
            let length = output.read(&mut buffer).await.unwrap_or(0);
            if length == 0 {
                return seen;
            }
            seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
            if step == 0 && seen.contains("ready") {
                input.write_all(b"words\n").await.unwrap();
                step = 1;
            }
            if step == 1 && seen.contains("got words") {
                let size = rustix::termios::Winsize {
                    ws_row: 50,
                    ws_col: 132,
                    ws_xpixel: 0,
                    ws_ypixel: 0,
                };
                rustix::termios::tcsetwinsize(started.terminal.as_ref().unwrap(), size).unwrap();
                step = 2;
            }
        }
    };
    let seen = tokio::time::timeout(LIMIT, talk).await.unwrap();
    assert!(seen.contains("50 132"), "{seen:?}");
    assert_eq!(started.exit.await.unwrap().code(), Some(3));
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_signal_is_blocked_or_ignored() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    // The first 28: the C library has signals of its own further up.
    let script = "sed -n 's/^Sig[BI][lg][kn].*\\(.......\\)$/\\1/p' /proc/self/status; seq 1 9999999 | head -1";
    let expected = "0000000\n0000000\n1";
    assert_eq!(sh(&*sprite, script).await.ok(), expected);
    let said = finish(start(&*sprite, on_terminal(&*sprite, script, 24, 80)).await)
        .await
        .ok();
    assert_eq!(said.replace('\r', ""), expected);
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_of_a_terminal_arrives_whole() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let started = start(&*sprite, on_terminal(&*sprite, "stty -opost; seq 1 50000", 24, 80)).await;
    let said = finish(started).await.ok();
    assert_eq!(said.lines().count(), 50000);
    assert!(said.ends_with("50000"));
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_from_the_keyboard_reaches_the_command() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    let mut started = start(&*sprite, on_terminal(&*sprite, "echo ready; exec sleep 60", 24, 80)).await;
    let mut output = started.stdout.take().unwrap();
    output.read_exact(&mut [0; 5]).await.unwrap();
    started.stdin.as_mut().unwrap().write_all(b"\x03").await.unwrap();
    let status = tokio::time::timeout(LIMIT, started.exit).await.unwrap().unwrap();
    assert_eq!(status.signal(), Some(2), "{status:?}");
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_command_that_cannot_be_run_says_so() {
    let world = World::new();
    let sprite = world.open("alpha").await;
    sh(&*sprite, "echo '#!/nowhere' > broken; chmod +x broken").await.ok();
    for program in ["no-such-program", "./broken"] {
        let mut command = launch(&*sprite, program, &[]);
        command.terminal = on_terminal(&*sprite, "", 24, 80).terminal;
        let error = sprite
            .spawner()
            .start(command, "test".to_owned())
            .await
            .err()
            .expect(program);
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{program}: {error}");
    }
    sprite.close().await;
}
