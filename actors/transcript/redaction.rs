//! Secrets never reach a row: every registered value is replaced inside a line before it is stored (lifecycle 6.6,
//! RUL-53).
//!
//! One registry per conversation, in memory only. A value is looked for as it is and as it stands inside a JSON
//! string; the longest match at a place wins, and what is replaced is gone for good. A value shorter than
//! [`SHORTEST`] is not registered: replacing every `1` or `true` would destroy the transcript and protect nothing.
//! Values that cross from one row into the next are the carry's work, which is not here.
//!
//! The search is one pass over the text with a window of the last eight bytes, the least that a value has: a small
//! filter says whether any value begins like this, a map says which. Its cost depends on the text and hardly on the
//! number of values, and adding one is cheap. (An alternation in `regex` was tried: building it took seconds for a few
//! hundred long values, on an arbiter.)

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// What stands in place of a secret.
pub const PLACEHOLDER: &str = "[REDACTED]";

/// Shortest value that is registered, in bytes (lifecycle 6.6).
pub const SHORTEST: usize = 8;

/// The secrets of one conversation. Grows until the server stops; a rotated value is still one.
#[derive(Default)]
pub struct Redactor {
    /// Every form of every value under its first eight bytes, longest first.
    by_head: HashMap<u64, Vec<String>>,
    filter: Filter,
}

/// Which heads may begin a value: 4096 bits, no false negatives.
struct Filter([u64; 64]);

impl Default for Filter {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Filter {
    /// Word and bit of a head, mixed so that similar values spread.
    fn place(head: u64) -> (usize, u64) {
        let mixed = head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        ((mixed >> 6) as usize, 1 << (mixed & 63))
    }

    fn insert(&mut self, head: u64) {
        let (word, bit) = Self::place(head);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    fn may_have(&self, head: u64) -> bool {
        let (word, bit) = Self::place(head);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Redactor({} forms)",
            self.by_head.values().map(Vec::len).sum::<usize>()
        )
    }
}

impl Redactor {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers values; too short and known ones change nothing.
    pub fn add<'a>(&mut self, values: impl IntoIterator<Item = &'a str>) {
        for form in values
            .into_iter()
            .filter(|value| value.len() >= SHORTEST)
            .flat_map(forms)
        {
            let Some(head) = form.as_bytes().first_chunk().map(|head| u64::from_be_bytes(*head)) else {
                continue;
            };
            let known = self.by_head.entry(head).or_default();
            if !known.contains(&form) {
                known.push(form);
                known.sort_by_key(|form| std::cmp::Reverse(form.len()));
                self.filter.insert(head);
            }
        }
    }

    /// The text without any registered value. Borrowed when there was none.
    #[must_use]
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::new();
        let mut kept = 0;
        while let Some((from, to)) = self.find(text, kept) {
            out.push_str(text.get(kept..from).unwrap_or_default());
            out.push_str(PLACEHOLDER);
            kept = to;
        }
        if kept == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(text.get(kept..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// The first value at or after `start`. Its ends are ends of characters: a value is whole text, and no character
    /// of UTF-8 begins inside another.
    fn find(&self, text: &str, start: usize) -> Option<(usize, usize)> {
        if self.by_head.is_empty() {
            return None;
        }
        let mut window = 0_u64;
        for (at, byte) in text.as_bytes().iter().enumerate().skip(start) {
            window = (window << 8) | u64::from(*byte);
            let seen = at + 1 - start;
            if seen < SHORTEST || !self.filter.may_have(window) {
                continue;
            }
            let from = at + 1 - SHORTEST;
            let rest = text.get(from..).unwrap_or_default();
            let value = self
                .by_head
                .get(&window)
                .into_iter()
                .flatten()
                .find(|value| rest.starts_with(value.as_str()));
            if let Some(value) = value {
                return Some((from, from + value.len()));
            }
        }
        None
    }

    /// Everything that happens to text on its way into a row: secrets out, then NUL replaced. In that order, because
    /// a value with a NUL in it would no longer be recognised.
    #[must_use]
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.redact(text) {
            Cow::Borrowed(text) => without_nul(text),
            Cow::Owned(text) => Cow::Owned(without_nul(&text).into_owned()),
        }
    }
}

/// A value as it is, and the ways in which it stands inside a JSON string: as serde and JavaScript escape it, with the
/// solidus escaped, and with everything beyond ASCII escaped, as Python does.
fn forms(value: &str) -> BTreeSet<String> {
    let quoted = serde_json::Value::from(value).to_string();
    let escaped = quoted
        .get(1..quoted.len().saturating_sub(1))
        .unwrap_or_default()
        .to_owned();
    let solidus = escaped.replace('/', "\\/");
    let ascii = |upper: bool| {
        let unit = |unit: &u16| {
            if upper {
                format!("\\u{unit:04X}")
            } else {
                format!("\\u{unit:04x}")
            }
        };
        let encode = |c: char| -> String {
            if c.is_ascii() {
                c.to_string()
            } else {
                c.encode_utf16(&mut [0; 2]).iter().map(unit).collect()
            }
        };
        escaped.chars().map(encode).collect::<String>()
    };
    BTreeSet::from([ascii(false), ascii(true), solidus, escaped, value.to_owned()])
}

/// NUL as U+FFFD: PostgreSQL text cannot hold it, and one such row would fail a whole group commit (RUL-20).
#[must_use]
pub fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &[&str]) -> Redactor {
        let mut redactor = Redactor::new();
        redactor.add(values.iter().copied());
        redactor
    }

    #[test]
    fn a_registered_value_is_replaced_wherever_it_stands() {
        let redactor = with(&["hunter2-hunter2"]);
        assert_eq!(
            redactor.redact("a hunter2-hunter2, hunter2-hunter2"),
            "a [REDACTED], [REDACTED]"
        );
        assert!(matches!(redactor.redact("nothing here"), Cow::Borrowed(_)));
        assert_eq!(Redactor::new().redact("hunter2-hunter2"), "hunter2-hunter2");
    }

    #[test]
    fn short_values_are_left_alone_and_eight_bytes_are_enough() {
        let redactor = with(&["1234567", "", "12345678"]);
        assert_eq!(redactor.redact("1234567 12345678"), "1234567 [REDACTED]");
    }

    #[test]
    fn the_longest_value_wins_at_one_place() {
        let redactor = with(&["abcdefgh", "abcdefghijkl", "xxabcdefgh"]);
        assert_eq!(redactor.redact("abcdefghijkl"), "[REDACTED]");
        assert_eq!(redactor.redact("abcdefghij"), "[REDACTED]ij");
    }

    #[test]
    fn json_escaped_forms_are_found() {
        let secret = "line one\nit's \"quoted\" \\ ünïcode/slash 😀";
        let redactor = with(&[secret]);
        let value = serde_json::Value::from(secret).to_string();
        assert_eq!(redactor.redact(&value), "\"[REDACTED]\"");
        assert_eq!(redactor.redact(secret), PLACEHOLDER);
        assert_eq!(redactor.redact(&value.replace('/', "\\/")), "\"[REDACTED]\"");
        let python = value
            .replace('ü', "\\u00fc")
            .replace('ï', "\\u00ef")
            .replace('😀', "\\ud83d\\ude00");
        assert_eq!(redactor.redact(&python), "\"[REDACTED]\"");
    }

    #[test]
    fn values_are_literals_and_the_placeholder_too() {
        let redactor = with(&["a.c+d$1(*)", "$0$1$2$3"]);
        assert_eq!(
            redactor.redact("a.c+d$1(*) abc+d$1(*) $0$1$2$3"),
            "[REDACTED] abc+d$1(*) [REDACTED]"
        );
    }

    #[test]
    fn what_was_added_is_never_forgotten() {
        let mut redactor = with(&["first-secret"]);
        redactor.add(["second-secret"]);
        redactor.add(["second-secret", "x"]);
        assert_eq!(redactor.redact("first-secret second-secret"), "[REDACTED] [REDACTED]");
    }

    #[test]
    fn rul_20_nul_is_replaced_after_the_secrets() {
        let redactor = with(&["secret\0value"]);
        assert_eq!(redactor.clean("a\0b secret\0value"), "a\u{fffd}b [REDACTED]");
        assert!(matches!(redactor.clean("plain"), Cow::Borrowed("plain")));
        assert_eq!(without_nul("\0"), "\u{fffd}");
    }

    #[test]
    fn debug_shows_no_value() {
        assert!(!format!("{:?}", with(&["hunter2-hunter2"])).contains("hunter2"));
    }

    #[test]
    fn five_hundred_large_secrets_are_found() {
        let values: Vec<String> = (0..500).map(|n| format!("{n:04}-").repeat(400)).collect();
        let redactor = with(&values.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(redactor.redact(&values[321]), PLACEHOLDER);
    }

    proptest::proptest! {
        #[test]
        fn no_registered_value_survives(
            values in proptest::collection::vec("[ab\"é\\\\]{4,12}", 1..6),
            text in "[ab\"é\\\\]{0,80}",
        ) {
            let redactor = with(&values.iter().map(String::as_str).collect::<Vec<_>>());
            let clean = redactor.redact(&text).into_owned();
            for value in values.iter().filter(|value| value.len() >= SHORTEST) {
                proptest::prop_assert!(!clean.contains(value.as_str()), "{value:?} in {clean:?}");
            }
            proptest::prop_assert_eq!(redactor.redact(&clean), clean.as_str());
        }
    }
}
