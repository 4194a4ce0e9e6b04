//! What the commands print: tables, JSON, errors; colours only on a terminal and without `NO_COLOR`.
#![expect(clippy::print_stdout, reason = "this is the one place that writes standard output")]

use std::io::{IsTerminal, Write};

use serde_json::Value;

/// One line of an answer.
pub fn line(text: &str) {
    println!("{text}");
}

/// Text as it comes, at once.
pub fn piece(text: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that went away (a closed pipe) ends the program at its next line anyway.
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// One JSON value on one line.
pub fn json(value: &Value) {
    println!("{value}");
}

/// Progress, on standard error.
pub fn note(text: &str, colour: Colour) {
    eprintln!("{}", paint(text, colour, std::io::stderr().is_terminal()));
}

/// An error with its causes; the last line of what went wrong.
pub fn complain(error: &anyhow::Error) {
    note(&format!("fountain: {error:#}"), Colour::Red);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Plain,
    Dim,
    Red,
    Green,
    Cyan,
}

static PLAIN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Switches colours off for good (`NO_COLOR`).
pub fn without_colours() {
    PLAIN.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// `text` in a colour, where somebody can see it.
pub fn paint(text: &str, colour: Colour, terminal: bool) -> String {
    let code = match colour {
        Colour::Plain => return text.to_owned(),
        Colour::Dim => "2",
        Colour::Red => "31",
        Colour::Green => "32",
        Colour::Cyan => "36",
    };
    if !terminal || PLAIN.load(std::sync::atomic::Ordering::Relaxed) {
        return text.to_owned();
    }
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// A table with these columns (heading, key; a key may be a path such as `sandbox.status`).
pub fn table(rows: &[Value], columns: &[(&str, &str)]) {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|(_, key)| cell(row, key)).collect())
        .collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(n, (heading, _))| {
            cells
                .iter()
                .filter_map(|row| row.get(n))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(heading.len())
        })
        .collect();
    let print = |row: &[String]| {
        let padded: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        println!("{}", padded.join("  ").trim_end());
    };
    print(
        &columns
            .iter()
            .map(|(heading, _)| (*heading).to_owned())
            .collect::<Vec<_>>(),
    );
    for row in &cells {
        print(row);
    }
}

fn cell(row: &Value, key: &str) -> String {
    let mut value = row;
    for part in key.split('.') {
        value = value.get(part).unwrap_or(&Value::Null);
    }
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.replace('\n', " "),
        other => other.to_string(),
    }
}

/// One object, a key a line.
pub fn object(value: &Value) {
    let Some(map) = value.as_object() else {
        return json(value);
    };
    let width = map.keys().map(String::len).max().unwrap_or(0);
    for (key, value) in map {
        match value {
            Value::String(text) => println!("{key:<width$}  {text}"),
            other => println!("{key:<width$}  {other}"),
        }
    }
}
