//! What an exec, a kill or a duration was read as can be written down plainly and reads as the same again, and nothing
//! that was read can hurt the process it starts.
//!
//! The input is a query; where it has a zero byte, what follows is the body of a kill.
#![no_main]

use std::borrow::Cow;
use std::time::Duration;

use fountain_sprites::exec::query::{ExecQuery, Run};
use fountain_sprites::exec::{Kill, duration};
use libfuzzer_sys::fuzz_target;
use url::form_urlencoded::Serializer;

fuzz_target!(|input: &[u8]| {
    let (query, body) = match input.iter().position(|byte| *byte == 0) {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (input, &[][..]),
    };
    let query = String::from_utf8_lossy(query);
    match ExecQuery::parse(&query) {
        Ok(ExecQuery::Attach(id)) => {
            assert!(!id.is_empty());
            let written = Serializer::new(String::new()).append_pair("id", &id).finish();
            assert_eq!(ExecQuery::parse(&written), Ok(ExecQuery::Attach(id)));
        }
        Ok(ExecQuery::Run(run)) => {
            check(&run);
            assert_eq!(ExecQuery::parse(&write(&run)), Ok(ExecQuery::Run(run)));
        }
        Err(_) => {}
    }
    if let Ok(kill) = Kill::parse(&query, body) {
        let (signal, nanos) = (kill.signal.as_str(), kill.timeout.as_nanos());
        let in_query = format!("signal={signal}&timeout={nanos}ns");
        assert_eq!(Kill::parse(&in_query, body), Ok(kill));
        let in_body = format!(r#"{{"signal":"{signal}","timeout":"{nanos}ns"}}"#);
        assert_eq!(Kill::parse("", in_body.as_bytes()), Ok(kill));
    }
    durations(&query);
});

fn check(run: &Run) {
    assert!(!run.path.is_empty());
    let words = std::iter::once(&run.path).chain(&run.args).chain(&run.dir);
    assert!(words.into_iter().all(|word| !word.contains('\0')));
    for (name, value) in &run.env {
        assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    }
    assert!(run.terminal.is_none_or(|window| window.rows > 0 && window.cols > 0));
    assert!(run.after_disconnect.is_none_or(|limit| !limit.is_zero()));
}

fn write(run: &Run) -> String {
    let mut query = Serializer::new(String::new());
    let mut pair = |name: &str, value: Cow<'_, str>| {
        query.append_pair(name, &value);
    };
    for word in std::iter::once(&run.path).chain(&run.args) {
        pair("cmd", word.into());
    }
    for (name, value) in &run.env {
        pair("env", format!("{name}={value}").into());
    }
    if let Some(dir) = &run.dir {
        pair("dir", dir.into());
    }
    if let Some(window) = run.terminal {
        pair("tty", "true".into());
        pair("rows", window.rows.to_string().into());
        pair("cols", window.cols.to_string().into());
    }
    pair("stdin", run.stdin.to_string().into());
    let limit = run.after_disconnect.unwrap_or_default();
    pair("max_run_after_disconnect", format!("{}ns", limit.as_nanos()).into());
    query.finish()
}

fn durations(text: &str) {
    let Ok(whole) = duration::parse(text) else { return };
    assert_eq!(duration::parse(&format!("{}ns", whole.as_nanos())), Ok(whole));
    let (seconds, nanos) = (whole.as_secs(), whole.subsec_nanos());
    assert_eq!(duration::parse(&format!("{seconds}s{nanos}ns")), Ok(whole));
    assert_eq!(duration::parse(&seconds.to_string()), Ok(Duration::from_secs(seconds)));
    // A duration of several parts is their sum, wherever it is cut. A number without a unit is no part.
    for (at, _) in text.char_indices().skip(1) {
        let (left, right) = text.split_at(at);
        if right.ends_with(|end: char| end.is_ascii_digit()) {
            continue;
        }
        if let (Ok(left), Ok(right)) = (duration::parse(left), duration::parse(right))
            && !text[..at].ends_with(|end: char| end.is_ascii_digit())
        {
            assert_eq!(left + right, whole);
        }
    }
}
