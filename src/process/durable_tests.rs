//! Journals that survive the server, their bound, and terminals.

use std::{io::Write, time::SystemTime};

use nix::sys::signal::Signal;

use super::*;

const BOUND: Bound = Bound {
    bytes: 100_000,
    patience: Duration::from_millis(200),
};

fn ledger(directory: &Path) -> Arc<Ledger> {
    Ledger::open_durable(directory, BOUND).unwrap().0
}

async fn run(ledger: &Arc<Ledger>, id: &str, launch: Launch) -> Arc<Session> {
    Session::start(&local(), id.to_owned(), "shown".to_owned(), launch, ledger)
        .await
        .unwrap()
}

fn in_terminal(cwd: &Path, script: &str) -> Launch {
    Launch {
        terminal: Some(WindowSize { rows: 24, cols: 80 }),
        ..launch(cwd, script, Stdin::Pipe)
    }
}

#[actix::test]
async fn rul_l_112_a_finished_session_is_found_again_with_its_output_and_code() {
    let place = tempfile::tempdir().unwrap();
    let first = ledger(place.path());
    let session = run(
        &first,
        "s-1",
        launch(place.path(), "echo out; echo err >&2; exit 9", Stdin::Null),
    )
    .await;
    ending(&session).await;
    let created = session.created_at();
    drop((session, first));
    let again = ledger(place.path());
    let found = Session::recover(&again).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].id(), found[0].command(), found[0].has_terminal()),
        ("s-1", "shown", false)
    );
    assert_eq!(
        (found[0].cwd(), found[0].created_at()),
        (place.path().to_str().unwrap(), created)
    );
    assert_eq!(found[0].exit().unwrap().verdict(), Some(9));
    assert_eq!(
        rest(&mut found[0].reader()).await,
        (b"out\n".to_vec(), b"err\n".to_vec(), 9)
    );
}

#[actix::test]
async fn rul_l_112_a_session_without_a_recorded_end_replays_and_has_no_verdict() {
    let place = tempfile::tempdir().unwrap();
    let first = ledger(place.path());
    let session = run(
        &first,
        "s-1",
        launch(place.path(), "echo one; exec sleep 600", Stdin::Null),
    )
    .await;
    until_output(&session).await;
    // What a killed server leaves: the same files, the last record cut in two.
    let after = tempfile::tempdir().unwrap();
    for name in ["s-1.json", "s-1.journal"] {
        fs::copy(place.path().join(name), after.path().join(name)).unwrap();
    }
    let mut file = fs::File::options()
        .append(true)
        .open(after.path().join("s-1.journal"))
        .unwrap();
    file.write_all(&[1, 200, 0, 0, 0, b'x', b'y']).unwrap();
    let again = ledger(after.path());
    let found = Session::recover(&again).unwrap();
    let exit = found[0].exit().unwrap();
    assert!(exit.lost);
    assert_eq!(exit.verdict(), None);
    assert_eq!(rest(&mut found[0].reader()).await.0, b"one\n");
    assert_eq!(file.metadata().unwrap().len(), 5 + 4);
    assert!(session.stop(Duration::ZERO).await);
}

#[actix::test]
async fn rul_l_112_every_byte_is_in_the_file_before_a_reader_hears_of_it() {
    let place = tempfile::tempdir().unwrap();
    let (mut recorder, journal) = Journal::create_durable(place.path().join("s-1.journal"), BOUND);
    for n in 1..=20_u64 {
        assert_eq!(recorder.append(Stream::Stdout, b"abc").await, Delay::None);
        assert_eq!(fs::metadata(place.path().join("s-1.journal")).unwrap().len(), n * 8);
        assert_eq!(journal.tail().stdout, n * 3);
    }
}

#[actix::test]
async fn rul_l_114_at_its_bound_a_journal_keeps_what_it_took_and_the_process_is_ended_without_a_verdict() {
    let place = tempfile::tempdir().unwrap();
    let ledger = ledger(place.path());
    let script = "i=0; while :; do echo $i; i=$((i+1)); done";
    let session = run(&ledger, "s-1", launch(place.path(), script, Stdin::Null)).await;
    let exit = ending(&session).await;
    assert_eq!(exit.verdict(), None);
    let (stdout, ..) = rest(&mut session.reader()).await;
    let expected: String = (0..100_000).map(|i| format!("{i}\n")).collect();
    assert!(expected.as_bytes().starts_with(&stdout));
    assert!(stdout.len() > 50_000, "{}", stdout.len());
    let size = fs::metadata(place.path().join("s-1.journal")).unwrap().len();
    assert!(size <= BOUND.bytes, "{size}");
    let group = session.group().unwrap().clone();
    assert!(group.stop(Duration::ZERO).await);
}

#[actix::test]
async fn rul_l_114_a_journal_that_cannot_be_written_ends_its_session_without_a_verdict() {
    let place = tempfile::tempdir().unwrap();
    let ledger = ledger(place.path());
    // A directory where the journal should be.
    fs::create_dir(place.path().join("s-1.journal")).unwrap();
    let session = run(
        &ledger,
        "s-1",
        launch(place.path(), "echo a; exec sleep 600", Stdin::Null),
    )
    .await;
    assert_eq!(ending(&session).await.verdict(), None);
    assert_eq!(session.tail().output(), 0);
}

#[actix::test]
async fn rul_l_112_old_sessions_go_with_their_files() {
    let place = tempfile::tempdir().unwrap();
    let ledger = ledger(place.path());
    let registry = Registry::new(100);
    let local = local();
    let launch = launch(place.path(), "echo a", Stdin::Null);
    let starting = Session::start(&local, "s-1".to_owned(), String::new(), launch, &ledger);
    let session = registry.start("a", starting).await.unwrap();
    ending(&session).await;
    let (day, ended) = (Duration::from_secs(86_400), session.ended_at().unwrap());
    registry.forget_older(day, ended + day);
    assert_eq!(registry.of("a").len(), 1);
    drop(session);
    registry.forget_older(day, ended + day + Duration::from_secs(1));
    assert!(registry.of("a").is_empty());
    for name in ["s-1.journal", "s-1.json"] {
        eventually(name, || !place.path().join(name).exists()).await;
    }
    registry.forget_older(day, SystemTime::now());
}

#[actix::test]
async fn a_reader_of_a_large_file_holds_little_of_it() {
    let place = tempfile::tempdir().unwrap();
    let bound = Bound {
        bytes: 1 << 30,
        ..BOUND
    };
    let (mut recorder, journal) = Journal::create_durable(place.path().join("s-1.journal"), bound);
    let block: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    for _ in 0..25 {
        recorder.append(Stream::Stdout, &block).await;
    }
    recorder.finish(Exit::whole(0)).await;
    let mut reader = Reader::new(journal);
    let (mut total, mut most) = (0, 0);
    while let Event::Output { data, .. } = reader.next().await.unwrap() {
        let at = total % block.len();
        assert!(data == block[at..at + data.len()]);
        total += data.len();
        most = most.max(reader.held());
    }
    assert_eq!(total, 100_000_000);
    assert!(most <= 8 * (CHUNK + 5), "{most}");
}

#[actix::test]
async fn a_command_in_a_terminal_sees_it_and_its_size() {
    let place = Place::new();
    let launch = in_terminal(
        place.directory.path(),
        "test -t 0 && test -t 1 && test -t 2 && stty size; tty >/dev/tty; exit 3",
    );
    let session = run(&place.ledger, "s-1", launch).await;
    let (stdout, stderr, code) = rest(&mut session.reader()).await;
    let said = String::from_utf8(stdout).unwrap();
    assert!(said.starts_with("24 80\r\n/dev/"), "{said:?}");
    assert_eq!((stderr.len(), code), (0, 3));
    assert!(session.has_terminal());
}

#[actix::test]
async fn a_terminal_is_resized_and_takes_control_characters() {
    let place = Place::new();
    let script = "stty -echo; trap 'stty size' WINCH; trap 'exit 5' INT; echo ready; while :; do read line && echo got $line; done";
    let session = run(&place.ledger, "s-1", in_terminal(place.directory.path(), script)).await;
    let mut reader = session.reader();
    let mut heard = Vec::new();
    until(&mut reader, &mut heard, b"ready").await;
    session.close_stdin().await.unwrap();
    session.write(Bytes::from_static(b"hello\n")).await.unwrap();
    until(&mut reader, &mut heard, b"got hello").await;
    session.resize(WindowSize { rows: 30, cols: 100 }).unwrap();
    session.write(Bytes::from_static(b"\n")).await.unwrap();
    until(&mut reader, &mut heard, b"30 100").await;
    session.write(Bytes::from_static(b"\x03\n")).await.unwrap();
    assert_eq!(ending(&session).await.verdict(), Some(5));
    session.resize(WindowSize { rows: 1, cols: 1 }).unwrap();
}

async fn until(reader: &mut Reader, heard: &mut Vec<u8>, wanted: &[u8]) {
    while !heard.windows(wanted.len()).any(|window| window == wanted) {
        let event = tokio::time::timeout(PATIENCE, reader.next())
            .await
            .expect("nothing comes")
            .unwrap();
        let Event::Output { data, .. } = event else {
            panic!("it ended: {}", String::from_utf8_lossy(heard))
        };
        heard.extend_from_slice(&data);
    }
}

#[actix::test]
async fn a_signal_reaches_the_group() {
    let place = Place::new();
    let session = place
        .sh("s-1", "trap 'exit 44' USR1; echo ready; while :; do sleep 0.05; done")
        .await;
    until_output(&session).await;
    session.signal(Signal::SIGUSR1);
    assert_eq!(ending(&session).await.verdict(), Some(44));
    session.signal(Signal::SIGUSR1);
}
