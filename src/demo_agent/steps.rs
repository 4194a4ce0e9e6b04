//! What a prompt asks the demo agent to do: one step a line.

use std::time::Duration;

/// Milliseconds between the words of `slow`, unless it says otherwise.
const WORD_PAUSE_MS: u64 = 200;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// `run: <command>`
    Run(String),
    /// `write <path>: <text>`
    Write { path: String, text: String },
    /// `ask: <title>`
    Ask(String),
    /// `think <text>`
    Think(String),
    /// `plan`
    Plan,
    /// `slow <n> [<ms>]`
    Slow { words: u64, pause: Duration },
    /// `flood <bytes>`
    Flood(u64),
    /// `recall`: how many prompts this session had before.
    Recall,
    /// `crash`: dies by SIGABRT.
    Crash,
    /// `exit <code>`
    Exit(i32),
    /// `garbage`: lines that are no protocol.
    Garbage,
    /// `stderr: <text>`
    Stderr(String),
    /// `hang`: does nothing until it is cancelled.
    Hang,
    /// `split`: from here on lines leave in odd pieces.
    Split,
    /// Anything else.
    Unknown,
}

/// Reads a prompt. A prompt without a step asks for the explanation; so does, once, any line that is no step.
pub(super) fn read(prompt: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = prompt
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(step)
        .collect();
    let mut explained = false;
    steps.retain(|step| *step != Step::Unknown || !std::mem::replace(&mut explained, true));
    if steps.is_empty() {
        steps.push(Step::Unknown);
    }
    steps
}

fn step(line: &str) -> Step {
    known(line).unwrap_or(Step::Unknown)
}

fn known(line: &str) -> Option<Step> {
    let (verb, rest) = line
        .split_once(|c: char| c == ':' || c.is_whitespace())
        .unwrap_or((line, ""));
    let rest = rest.trim();
    let colon = line.as_bytes().get(verb.len()) == Some(&b':');
    match (verb, colon, rest.is_empty()) {
        ("run", true, false) => Some(Step::Run(rest.to_owned())),
        ("ask", true, false) => Some(Step::Ask(rest.to_owned())),
        ("stderr", true, false) => Some(Step::Stderr(rest.to_owned())),
        ("think", _, false) => Some(Step::Think(rest.to_owned())),
        ("write", false, false) => {
            let (path, text) = rest.split_once(':')?;
            let text = text.strip_prefix(' ').unwrap_or(text);
            (!path.trim().is_empty()).then(|| Step::Write {
                path: path.trim().to_owned(),
                text: text.to_owned(),
            })
        }
        ("slow", false, false) => {
            let mut numbers = rest.split_whitespace().map(str::parse::<u64>);
            let words = numbers.next()?.ok()?;
            let pause = numbers.next().unwrap_or(Ok(WORD_PAUSE_MS)).ok()?;
            numbers.next().is_none().then_some(Step::Slow {
                words,
                pause: Duration::from_millis(pause),
            })
        }
        ("flood", false, false) => rest.parse().ok().map(Step::Flood),
        ("exit", false, false) => rest
            .parse()
            .ok()
            .filter(|code| (0..=255).contains(code))
            .map(Step::Exit),
        ("plan", false, true) => Some(Step::Plan),
        ("recall", false, true) => Some(Step::Recall),
        ("crash", false, true) => Some(Step::Crash),
        ("garbage", false, true) => Some(Step::Garbage),
        ("hang", false, true) => Some(Step::Hang),
        ("split", false, true) => Some(Step::Split),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_read_from_its_line() {
        let slow = |words, ms| Step::Slow {
            words,
            pause: Duration::from_millis(ms),
        };
        for (line, expected) in [
            ("run: echo a: b", Step::Run("echo a: b".into())),
            (
                "write a/b.txt: x: y",
                Step::Write {
                    path: "a/b.txt".into(),
                    text: "x: y".into(),
                },
            ),
            (
                "write empty:",
                Step::Write {
                    path: "empty".into(),
                    text: String::new(),
                },
            ),
            ("ask: May I?", Step::Ask("May I?".into())),
            ("think hard", Step::Think("hard".into())),
            ("think: hard", Step::Think("hard".into())),
            (" plan ", Step::Plan),
            ("slow 3", slow(3, 200)),
            ("slow 3 10", slow(3, 10)),
            ("flood 1000", Step::Flood(1000)),
            ("exit 3", Step::Exit(3)),
            ("crash", Step::Crash),
            ("stderr: oops", Step::Stderr("oops".into())),
        ] {
            assert_eq!(read(line), [expected], "{line}");
        }
    }

    #[test]
    fn what_is_no_step_is_explained_once() {
        for line in [
            "",
            "hello there",
            "run",
            "run:",
            "slow x",
            "slow 1 2 3",
            "exit 300",
            "write x",
            "plan b",
            "Ünïcode",
        ] {
            assert_eq!(read(line), [Step::Unknown], "{line}");
        }
        assert_eq!(read("what\nplan\nwho\n"), [Step::Unknown, Step::Plan]);
    }
}
