//! Real processes and real files: the journal, the input queue, the verdict, the group, the leftovers.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use nix::{sys::signal, unistd::Pid};

use super::{journal::Delay, *};

const PATIENCE: Duration = Duration::from_secs(30);

struct Place {
    directory: tempfile::TempDir,
    ledger: Arc<Ledger>,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (ledger, killed) = Ledger::open(&directory.path().join("traces")).unwrap();
        assert_eq!(killed, 0);
        Self { directory, ledger }
    }

    fn traces(&self) -> PathBuf {
        self.directory.path().join("traces")
    }

    fn files(&self, extension: &str) -> usize {
        let entries = fs::read_dir(self.traces()).unwrap();
        entries
            .filter(|entry| {
                entry
                    .as_ref()
                    .unwrap()
                    .path()
                    .extension()
                    .is_some_and(|e| e == extension)
            })
            .count()
    }

    async fn sh(&self, id: &str, script: &str) -> Arc<Session> {
        self.start(id, script, Stdin::Null, MEMORY_LIMIT).await
    }

    async fn start(&self, id: &str, script: &str, stdin: Stdin, memory: usize) -> Arc<Session> {
        let launch = launch(self.directory.path(), script, stdin);
        Session::start_with_memory(&local(), id.to_owned(), script.to_owned(), launch, &self.ledger, memory)
            .await
            .unwrap()
    }
}

fn local() -> Arc<dyn Spawner> {
    Arc::new(Local)
}

fn launch(cwd: &Path, script: &str, stdin: Stdin) -> Launch {
    Launch {
        program: PathBuf::from("/bin/sh"),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        cwd: cwd.to_owned(),
        stdin,
        stderr: Stderr::Journal,
        leftovers: Leftovers::SESSION,
        terminal: None,
    }
}

async fn ending(session: &Arc<Session>) -> Exit {
    tokio::time::timeout(PATIENCE, session.ending())
        .await
        .expect("the session goes on")
}

/// Everything from here to the end: standard output, standard error, code.
async fn rest(reader: &mut Reader) -> (Vec<u8>, Vec<u8>, i32) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match tokio::time::timeout(PATIENCE, reader.next())
            .await
            .expect("nothing comes")
            .unwrap()
        {
            Event::Output {
                stream: Stream::Stdout,
                data,
            } => stdout.extend_from_slice(&data),
            Event::Output {
                stream: Stream::Stderr,
                data,
            } => stderr.extend_from_slice(&data),
            Event::Exit(exit) => return (stdout, stderr, exit.code),
        }
    }
}

async fn until_output(session: &Session) {
    tokio::time::timeout(PATIENCE, session.growing_beyond(0))
        .await
        .expect("no output");
}

async fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !look() {
        assert!(tokio::time::Instant::now() < limit, "{what} did not become true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pid_in(path: &Path) -> Pid {
    Pid::from_raw(fs::read_to_string(path).unwrap().trim().parse().unwrap())
}

fn is_running(pid: Pid) -> bool {
    let listed = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .unwrap();
    let state = String::from_utf8(listed.stdout).unwrap();
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

#[actix::test]
async fn a_journal_beyond_its_memory_replays_from_byte_zero_and_leaves_no_file() {
    let place = Place::new();
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo last >&2; exit 7";
    let session = place.start("s-1", script, Stdin::Null, 10_000).await;
    assert_eq!(ending(&session).await, Exit::whole(7));
    let expected: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    for _ in 0..2 {
        let (stdout, stderr, code) = rest(&mut session.reader()).await;
        assert!(stdout == expected.as_bytes());
        assert_eq!((stderr.as_slice(), code), (b"last\n".as_slice(), 7));
    }
    let tail = session.tail();
    assert_eq!((tail.stdout, tail.stderr), (expected.len() as u64, 5));
    assert_eq!(place.files("journal"), 1);
    drop(session);
    eventually("the spill file is gone", || place.files("journal") == 0).await;
}

#[actix::test]
async fn positions_mean_the_same_in_memory_and_in_the_file() {
    let place = Place::new();
    let (mut recorder, journal) = Journal::create(place.traces().join("s-1.journal"), 64);
    let mut positions = Vec::new();
    for n in 0..50_u8 {
        positions.push(journal.tail().end);
        let stream = if n % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
        assert_eq!(recorder.append(stream, &[n; 7]).await, Delay::None);
    }
    recorder.finish(Exit::whole(0)).await;
    for (n, position) in (0..50_u8).zip(positions) {
        let mut reader = Reader::at(Arc::clone(&journal), position);
        let stream = if n % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
        assert_eq!(
            reader.next().await.unwrap(),
            Event::Output {
                stream,
                data: Bytes::from(vec![n; 7])
            }
        );
    }
}

#[actix::test]
async fn a_large_finished_journal_leaves_memory_and_reads_the_same() {
    let place = Place::new();
    let path = place.traces().join("s-1.journal");
    let (mut recorder, journal) = Journal::create(path.clone(), MEMORY_LIMIT);
    let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 253) as u8).collect();
    recorder.append(Stream::Stdout, &content).await;
    assert!(!path.exists());
    // A reader that is half-way when the bytes move.
    let mut half_way = Reader::new(Arc::clone(&journal));
    let Event::Output { data: first, .. } = half_way.next().await.unwrap() else {
        panic!("no output")
    };
    recorder.finish(Exit::whole(0)).await;
    assert!(path.exists());
    assert!(rest(&mut Reader::new(Arc::clone(&journal))).await.0 == content);
    assert!([first.to_vec(), rest(&mut half_way).await.0].concat() == content);
}

#[actix::test]
async fn chunks_are_cut_to_their_limit() {
    let place = Place::new();
    let (mut recorder, journal) = Journal::create(place.traces().join("s-1.journal"), MEMORY_LIMIT);
    recorder.append(Stream::Stdout, &vec![1; 2 * CHUNK + 1]).await;
    let mut reader = Reader::new(journal);
    for expected in [CHUNK, CHUNK, 1] {
        let Event::Output { data, .. } = reader.next().await.unwrap() else {
            panic!("no output")
        };
        assert_eq!(data.len(), expected);
    }
}

#[actix::test]
async fn a_disk_that_refuses_stops_the_process_and_loses_nothing() {
    let place = Place::new();
    let traces = place.traces();
    let away = traces.with_extension("away");
    fs::rename(&traces, &away).unwrap();
    let script = "echo first; while ! [ -e go ]; do sleep 0.01; done; head -c 3000000 /dev/zero; touch through";
    let session = place.start("s-1", script, Stdin::Null, 1000).await;
    // The first line fits into memory; a pipe holds far less than the rest, so the process cannot get through.
    until_output(&session).await;
    fs::write(place.directory.path().join("go"), "").unwrap();
    let blocked = tokio::time::timeout(Duration::from_millis(600), session.ending());
    blocked.await.expect_err("it ended although the disk refuses");
    assert!(session.tail().end <= 1000, "{:?}", session.tail());
    assert!(!place.directory.path().join("through").exists());
    fs::rename(&away, &traces).unwrap();
    let (stdout, _, code) = rest(&mut session.reader()).await;
    let zeros = stdout.strip_prefix(b"first\n").unwrap();
    assert_eq!(
        (zeros.len(), zeros.iter().all(|byte| *byte == 0), code),
        (3_000_000, true, 0)
    );
}

#[actix::test]
async fn rul_43_a_reader_that_does_not_read_stalls_nobody() {
    let place = Place::new();
    let session = place
        .start("s-1", "head -c 3000000 /dev/zero", Stdin::Null, 100_000)
        .await;
    let mut slow = session.reader();
    assert!(matches!(slow.next().await.unwrap(), Event::Output { .. }));
    assert_eq!(ending(&session).await.code, 0);
    let begun = slow.position();
    assert!(begun <= session.tail().end);
    assert!(rest(&mut slow).await.0.len() < 3_000_000);
    assert_eq!(rest(&mut session.reader()).await.0.len(), 3_000_000);
}

#[actix::test]
async fn a_reader_that_is_given_up_while_it_waits_loses_nothing() {
    let place = Place::new();
    let session = place.start("s-1", "cat", Stdin::Pipe, 64).await;
    let mut reader = session.reader();
    let mut heard = Vec::new();
    for n in 0..100_u8 {
        session.write(Bytes::from(vec![n; 10])).await.unwrap();
        // Polled once and dropped, again and again, until the event is there.
        let event = loop {
            tokio::select! {
                biased;
                event = reader.next() => break event.unwrap(),
                () = tokio::task::yield_now() => {}
            }
        };
        let Event::Output { data, .. } = event else {
            panic!("ended")
        };
        heard.extend_from_slice(&data);
    }
    session.close_stdin().await.unwrap();
    heard.extend(rest(&mut reader).await.0);
    let expected: Vec<u8> = (0..100_u8).flat_map(|n| [n; 10]).collect();
    assert_eq!(heard, expected);
}

#[actix::test]
async fn a_recorder_that_dies_ends_its_journal() {
    let place = Place::new();
    let (mut recorder, journal) = Journal::create(place.traces().join("s-1.journal"), MEMORY_LIMIT);
    recorder.append(Stream::Stdout, b"half").await;
    let mut reader = Reader::new(journal);
    let reading = rest(&mut reader);
    drop(recorder);
    assert_eq!(reading.await, (b"half".to_vec(), Vec::new(), 1));
}

#[actix::test]
async fn a_megabyte_of_input_with_every_byte_value_comes_back() {
    let place = Place::new();
    let session = place.start("s-1", "cat", Stdin::Pipe, 100_000).await;
    let content: Vec<u8> = (0..1024 * 1024_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    assert!((0..=255).all(|byte| content.contains(&byte)));
    let writing = session.write(Bytes::from(content.clone()));
    // Queued after it and therefore done after it.
    let closing = session.close_stdin();
    let mut reader = session.reader();
    let (written, closed, (stdout, _, code)) = tokio::join!(writing, closing, rest(&mut reader));
    written.unwrap();
    closed.unwrap();
    assert!(stdout == content);
    assert_eq!(code, 0);
    assert!(matches!(
        session.write(Bytes::from_static(b"x")).await,
        Err(StdinError::Exited)
    ));
    session.close_stdin().await.unwrap();
}

#[actix::test]
async fn input_after_its_end_or_without_a_pipe_is_refused_with_the_reason() {
    let place = Place::new();
    let session = place.start("s-1", "exec sleep 600", Stdin::Pipe, MEMORY_LIMIT).await;
    session.close_stdin().await.unwrap();
    session.close_stdin().await.unwrap();
    assert!(matches!(
        session.write(Bytes::from_static(b"x")).await,
        Err(StdinError::NotOpen)
    ));
    let deaf = place.sh("s-2", "exec sleep 600").await;
    assert!(matches!(
        deaf.write(Bytes::from_static(b"x")).await,
        Err(StdinError::NotOpen)
    ));
    // One that closes its end and lives on.
    let closed = place
        .start(
            "s-3",
            "exec <&-; echo closed; exec sleep 600",
            Stdin::Pipe,
            MEMORY_LIMIT,
        )
        .await;
    until_output(&closed).await;
    assert!(matches!(
        closed.write(Bytes::from_static(b"x")).await,
        Err(StdinError::Broken(_))
    ));
    for session in [session, deaf, closed] {
        assert!(session.stop(Duration::ZERO).await);
    }
}

#[actix::test]
async fn p45_and_rul_46a_a_child_that_holds_the_pipe_does_not_hold_the_exit() {
    let place = Place::new();
    let session = place.sh("s-1", "sleep 600 & echo $! > child; echo out; exit 3").await;
    assert_eq!(
        ending(&session).await,
        Exit {
            code: 3,
            output_ended: false,
            lost: false
        }
    );
    assert_eq!(rest(&mut session.reader()).await.0, b"out\n");
    let child = pid_in(&place.directory.path().join("child"));
    assert!(is_running(child));
    assert!(session.stop(Duration::from_secs(5)).await);
    assert!(!is_running(child));
    // What it said first stands.
    assert_eq!(session.exit().unwrap().code, 3);
}

#[actix::test]
async fn p46_stopping_ends_the_whole_group() {
    let place = Place::new();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 1; done' & \
                  while ! [ -s child ]; do sleep 0.01; done; echo up; while :; do sleep 1; done";
    let session = place.sh("s-1", script).await;
    until_output(&session).await;
    let child = pid_in(&place.directory.path().join("child"));
    assert!(session.stop(Duration::from_millis(100)).await);
    assert!(!is_running(child) && !is_running(Pid::from_raw(session.group().unwrap().id())));
    assert_eq!(session.exit().unwrap().code, STOPPED);
    assert!(session.stop(Duration::from_secs(60)).await);
}

#[actix::test]
async fn rul_46_the_verdict_is_the_processes_own() {
    let place = Place::new();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 255", 255),
        ("kill -SEGV $$", 139),
        ("kill -9 $$", 137),
        ("kill $$", 143),
    ] {
        assert_eq!(ending(&place.sh("s-1", script).await).await.code, code, "{script}");
    }
    // Stopped by us and yet ended by itself.
    let session = place
        .sh("s-1", "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done")
        .await;
    until_output(&session).await;
    session.stop(PATIENCE).await;
    assert_eq!(session.exit().unwrap().code, 0);
}

#[actix::test]
async fn a_start_that_fails_leaves_nothing() {
    let place = Place::new();
    let mut launch = launch(place.directory.path(), "true", Stdin::Null);
    launch.program = PathBuf::from("/no/such/program");
    let failed = Session::start(&local(), "s-1".to_owned(), String::new(), launch, &place.ledger).await;
    assert_eq!(failed.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(place.files("group"), 0);
}

#[test]
fn programs_are_found_in_the_given_path_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    fs::create_dir_all(first.join("folder")).unwrap();
    fs::create_dir_all(&second).unwrap();
    let file = |path: PathBuf, mode: u32| {
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    file(first.join("plain"), 0o644);
    file(second.join("plain"), 0o755);
    file(second.join("folder"), 0o755);
    let path = std::env::join_paths([PathBuf::new(), first, second.clone()]).unwrap();
    assert_eq!(resolve("plain", Some(&path)).unwrap(), second.join("plain"));
    assert_eq!(resolve("folder", Some(&path)).unwrap(), second.join("folder"));
    assert_eq!(resolve("./any/where", None).unwrap(), Path::new("./any/where"));
    for missing in ["sh", ""] {
        assert!(resolve(missing, Some(&path)).is_err(), "{missing}");
    }
    assert!(resolve("sh", None).is_err());
}

#[actix::test]
async fn rul_46b_the_next_daemon_ends_what_a_killed_one_left() {
    let place = Place::new();
    // The leader lives; and a leader that is gone, whose child lives.
    let alive = place.sh("s-1", "exec sleep 600").await;
    let orphaned = place.sh("s-2", "sleep 600 & echo $! > child; exit 0").await;
    let spilled = place.start("s-3", "head -c 5000 /dev/zero", Stdin::Null, 100).await;
    assert_eq!(ending(&orphaned).await.code, 0);
    assert_eq!(ending(&spilled).await.code, 0);
    let child = pid_in(&place.directory.path().join("child"));
    assert_eq!((place.files("group") >= 2, place.files("journal")), (true, 1));

    // A killed daemon gives the lock back and cleans nothing.
    let Place { directory, ledger } = place;
    drop(ledger);
    let (ledger, killed) = Ledger::open(&directory.path().join("traces")).unwrap();
    assert_eq!(killed, 2);
    assert_eq!(ending(&alive).await.code, 137);
    eventually("the child is gone", || !is_running(child)).await;
    let place = Place { directory, ledger };
    assert_eq!((place.files("group"), place.files("journal")), (0, 0));
}

#[actix::test]
async fn rul_46b_a_stranger_with_a_recorded_number_is_left_alone() {
    let place = Place::new();
    let mut stranger = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = i32::try_from(stranger.id()).unwrap();
    let boot = super::identity::boot();
    let started = super::identity::started(Pid::from_raw(group));
    let records = [
        serde_json::json!({"session": "s-1", "group": group, "started": "1", "boot": boot}),
        serde_json::json!({"session": "s-1", "group": group, "started": null, "boot": boot}),
        serde_json::json!({"session": "s-1", "group": group, "started": started, "boot": "another"}),
        serde_json::json!({"session": "s-1", "group": 1, "started": null, "boot": boot}),
        serde_json::json!({"session": "s-1", "group": 0, "started": null, "boot": boot}),
        serde_json::json!({"session": "s-1", "group": -1, "started": null, "boot": boot}),
        serde_json::json!("not a record"),
    ];
    let traces = place.traces();
    for (n, record) in records.iter().enumerate() {
        fs::write(traces.join(format!("s-{n}.group")), record.to_string()).unwrap();
    }
    drop(place.ledger);
    let (_ledger, killed) = Ledger::open(&traces).unwrap();
    assert_eq!(killed, 0);
    assert!(stranger.try_wait().unwrap().is_none());
    signal::kill(Pid::from_raw(group), signal::SIGKILL).unwrap();
    stranger.wait().unwrap();
}

#[actix::test]
async fn a_ledger_has_one_holder() {
    let place = Place::new();
    assert!(matches!(Ledger::open(&place.traces()), Err(LedgerError::InUse(_))));
    let traces = place.traces();
    drop(place.ledger);
    Ledger::open(&traces).unwrap();
}

#[actix::test]
async fn the_record_of_a_group_goes_with_the_group() {
    let place = Place::new();
    let session = place.start("s-1", "read l", Stdin::Pipe, MEMORY_LIMIT).await;
    assert_eq!(place.files("group"), 1);
    session.close_stdin().await.unwrap();
    ending(&session).await;
    eventually("the record is gone", || place.files("group") == 0).await;
}

async fn registered(place: &Place, registry: &Registry, id: &str, script: &str) -> Arc<Session> {
    let launch = launch(place.directory.path(), script, Stdin::Null);
    let local = local();
    let starting = Session::start(&local, id.to_owned(), script.to_owned(), launch, &place.ledger);
    registry.start("a", starting).await.unwrap()
}

#[actix::test]
async fn a_registry_keeps_a_limited_number_of_finished_sessions() {
    let place = Place::new();
    let registry = Registry::new(2);
    let running = registered(&place, &registry, "s-0", "exec sleep 600").await;
    for n in 1..=4 {
        ending(&registered(&place, &registry, &format!("s-{n}"), "true").await).await;
    }
    let last = registered(&place, &registry, "s-5", "exec sleep 600").await;
    let kept: Vec<_> = registry.of("a").iter().map(|session| session.id().to_owned()).collect();
    assert_eq!(kept, ["s-5", "s-4", "s-3", "s-0"]);
    assert!(registry.get(None, "s-1").is_none() && registry.get(Some("b"), "s-4").is_none());
    registry.stop("a", Duration::ZERO).await;
    assert_eq!(
        (running.exit().unwrap().code, last.exit().unwrap().code),
        (STOPPED, STOPPED)
    );
    registry.forget("a");
    assert!(registry.of("a").is_empty());
}

#[actix::test]
async fn what_a_forgotten_session_left_running_is_still_stopped_with_its_owner() {
    let place = Place::new();
    let registry = Registry::new(0);
    let session = registered(&place, &registry, "s-1", "sleep 600 & echo $! > child; exit 0").await;
    ending(&session).await;
    drop(session);
    let child = pid_in(&place.directory.path().join("child"));
    ending(&registered(&place, &registry, "s-2", "true").await).await;
    registered(&place, &registry, "s-3", "true").await;
    assert!(registry.get(None, "s-1").is_none() && is_running(child));
    registry.stop("a", Duration::from_secs(5)).await;
    assert!(!is_running(child));
}

#[actix::test]
async fn a_command_that_starts_while_its_owner_is_stopped_is_ended() {
    let place = Place::new();
    let registry = Registry::new(2);
    let launch = launch(place.directory.path(), "exec sleep 600", Stdin::Null);
    let mut caught = None;
    let refused = {
        let starting = async {
            let session = Session::start(&local(), "s-1".to_owned(), String::new(), launch, &place.ledger).await?;
            caught = Some(Arc::clone(&session));
            registry.stop("a", Duration::ZERO).await;
            Ok(session)
        };
        registry.start("a", starting).await
    };
    assert!(matches!(refused, Err(StartError::Stopped)));
    assert_eq!(ending(&caught.unwrap()).await.code, STOPPED);
    assert!(registry.of("a").is_empty());
}

#[actix::test]
async fn a_closed_registry_starts_nothing() {
    let place = Place::new();
    let registry = Registry::new(2);
    registry.close(Duration::ZERO).await;
    let launch = launch(place.directory.path(), "exec sleep 600", Stdin::Null);
    let local = local();
    let starting = Session::start(&local, "s-1".to_owned(), String::new(), launch, &place.ledger);
    assert!(matches!(registry.start("a", starting).await, Err(StartError::Stopped)));
    eventually("its record is gone", || place.files("group") == 0).await;
}

#[path = "durable_tests.rs"]
mod durable;
