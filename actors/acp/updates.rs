//! `session/update` notifications: what is stored, what is metadata, what is neither (runtimes 10.2, 11, 12.3).

use std::collections::BTreeMap;

use serde_json::Value;

use super::report::{LineKind, Report};
use crate::domain::event::ByteRange;

/// Longest title of a conversation, in characters (http-api 4.4).
const TITLE_CHARS: usize = 120;

/// Origins of a background cycle: a `usage_update` that names one ends an autonomous turn.
const CYCLE_ORIGINS: [&str; 5] = [
    "task-notification",
    "peer",
    "coordinator",
    "observer",
    "observer-activity",
];

/// What an update says besides being a line.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Reports that accompany the line.
    pub notes: Vec<Report>,
    /// `None`: the line is not output (labels).
    pub line: Option<LineKind>,
}

/// Reads the parameters of a `session/update`.
pub(super) fn read(params: &Value, range: ByteRange) -> Reading {
    let update = params.get("update").unwrap_or(&Value::Null);
    let mut reading = Reading {
        notes: Vec::new(),
        line: Some(LineKind::Work),
    };
    match update.get("sessionUpdate").and_then(Value::as_str) {
        Some("_fountain/labels") => {
            reading.line = None;
            reading
                .notes
                .extend(labels(update).map(|labels| Report::Labels { labels, range }));
        }
        Some("session_info_update") => {
            reading.line = Some(LineKind::Metadata);
            reading
                .notes
                .extend(title(update).map(|title| Report::Title { title, range }));
        }
        Some("config_option_update") => {
            reading.line = Some(LineKind::Metadata);
            let options = update.get("configOptions").and_then(Value::as_array);
            reading.notes.extend(options.map(|options| Report::ConfigOptions {
                options: options.clone(),
            }));
        }
        Some("usage_update") => {
            reading.line = Some(LineKind::Metadata);
            reading
                .notes
                .extend(cycle_end(update, params).map(|kind| Report::CycleEnd { kind, range }));
        }
        Some("available_commands_update" | "current_mode_update") => reading.line = Some(LineKind::Metadata),
        _ => {}
    }
    reading
}

fn labels(update: &Value) -> Option<BTreeMap<String, String>> {
    let labels = update.get("labels")?.as_object()?;
    Some(
        labels
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    )
}

/// Absent: unchanged. Null: cleared.
fn title(update: &Value) -> Option<Option<String>> {
    match update.get("title")? {
        Value::Null => Some(None),
        Value::String(title) => Some(Some(title.clone())),
        _ => None,
    }
}

fn cycle_end(update: &Value, params: &Value) -> Option<String> {
    let origin = |from: &Value| {
        from.get("_meta")?
            .get("_claude/origin")?
            .get("kind")?
            .as_str()
            .map(str::to_owned)
    };
    origin(update)
        .or_else(|| origin(params))
        .filter(|kind| CYCLE_ORIGINS.contains(&kind.as_str()))
}

/// A title as it is stored: white space collapsed, at most 120 characters. `None`: blank, so it clears. Redact first:
/// a secret that is cut in half can no longer be recognised.
#[must_use]
pub fn tidy_title(title: &str) -> Option<String> {
    let joined = title.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut: String = joined.chars().take(TITLE_CHARS).collect();
    let cut = cut.trim_end();
    (!cut.is_empty()).then(|| cut.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RANGE: ByteRange = ByteRange { from: 1, to: 9 };

    fn of(update: Value) -> Reading {
        read(&json!({"sessionId": "s", "update": update}), RANGE)
    }

    #[test]
    fn labels_are_applied_and_never_shown() {
        let reading = of(json!({"sessionUpdate": "_fountain/labels", "labels": {"a": "b", "n": 1}}));
        assert_eq!(reading.line, None);
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        assert_eq!(reading.notes, [Report::Labels { labels, range: RANGE }]);
    }

    #[test]
    fn r_85_metadata_is_told_from_work() {
        for name in [
            "session_info_update",
            "available_commands_update",
            "current_mode_update",
            "usage_update",
        ] {
            assert_eq!(
                of(json!({"sessionUpdate": name})).line,
                Some(LineKind::Metadata),
                "{name}"
            );
        }
        for name in ["agent_message_chunk", "tool_call", "plan", "something_new"] {
            assert_eq!(of(json!({"sessionUpdate": name})).line, Some(LineKind::Work), "{name}");
        }
    }

    #[test]
    fn a_title_is_unchanged_when_absent_and_cleared_when_null() {
        assert_eq!(of(json!({"sessionUpdate": "session_info_update"})).notes, []);
        let cleared = of(json!({"sessionUpdate": "session_info_update", "title": null})).notes;
        assert_eq!(
            cleared,
            [Report::Title {
                title: None,
                range: RANGE
            }]
        );
        assert_eq!(tidy_title(" a \n\t b "), Some("a b".into()));
        assert_eq!(tidy_title(" \n"), None);
        assert_eq!(tidy_title(&"é".repeat(200)).unwrap().chars().count(), 120);
    }

    #[test]
    fn a_cycle_ends_only_for_the_origins_of_background_work() {
        let with = |kind| json!({"sessionUpdate": "usage_update", "_meta": {"_claude/origin": {"kind": kind}}});
        assert_eq!(
            of(with("peer")).notes,
            [Report::CycleEnd {
                kind: "peer".into(),
                range: RANGE
            }]
        );
        assert_eq!(of(with("human")).notes, []);
        let on_params =
            json!({"update": {"sessionUpdate": "usage_update"}, "_meta": {"_claude/origin": {"kind": "observer"}}});
        assert_eq!(
            read(&on_params, RANGE).notes,
            [Report::CycleEnd {
                kind: "observer".into(),
                range: RANGE
            }]
        );
    }
}
