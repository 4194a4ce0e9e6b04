//! Tokens of a turn, read from the answer to `session/prompt`, and only from there (runtimes 13).

use serde_json::Value;

use crate::domain::turn::Usage;

/// Reads the usage of a prompt result: `usage`, else gemini's quota, else flat keys in `_meta`. `None`: not reported.
#[must_use]
pub fn of_result(result: &Value) -> Option<Usage> {
    let meta = result.get("_meta");
    let usage = result.get("usage");
    let quota = meta.and_then(|meta| meta.pointer("/quota/token_count"));
    read(
        usage,
        ["inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens"],
    )
    .or_else(|| read(quota, ["input_tokens", "output_tokens", "", ""]))
    .or_else(|| read(meta, ["inputTokens", "outputTokens", "", ""]))
}

fn read(from: Option<&Value>, keys: [&str; 4]) -> Option<Usage> {
    let from = from?;
    let [input, output, cache_read, cache_write] = keys.map(|key| from.get(key).and_then(count));
    if input.is_none() && output.is_none() {
        return None;
    }
    Some(Usage {
        input: input.unwrap_or(0),
        output: output.unwrap_or(0),
        cache_read,
        cache_write,
    })
}

/// Integers, floats (cut) and numeric strings count; what is negative or anything else was not reported.
fn count(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number
            .as_i64()
            .filter(|count| *count >= 0)
            .or_else(|| number.as_f64().and_then(whole)),
        Value::String(text) => {
            let text = text.trim();
            text.parse()
                .ok()
                .filter(|count| *count >= 0)
                .or_else(|| text.parse().ok().and_then(whole))
        }
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "whole part of a number below 2^53")]
fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (0.0..EXACT).contains(&number).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(result: Value) -> Option<(i64, i64, Option<i64>, Option<i64>)> {
        of_result(&result).map(|usage| (usage.input, usage.output, usage.cache_read, usage.cache_write))
    }

    #[test]
    fn the_first_source_that_reports_something_counts() {
        let both = json!({"usage": {"inputTokens": 3, "outputTokens": 4, "cachedReadTokens": 1, "cachedWriteTokens": 2},
            "_meta": {"quota": {"token_count": {"input_tokens": 9, "output_tokens": 9}}}});
        assert_eq!(parts(both), Some((3, 4, Some(1), Some(2))));
        let gemini =
            json!({"usage": null, "_meta": {"quota": {"token_count": {"input_tokens": 9, "output_tokens": 8}}}});
        assert_eq!(parts(gemini), Some((9, 8, None, None)));
        assert_eq!(parts(json!({"_meta": {"inputTokens": 5}})), Some((5, 0, None, None)));
    }

    #[test]
    fn what_was_not_reported_is_not_zero() {
        assert_eq!(parts(json!({"usage": null})), None);
        assert_eq!(parts(json!({})), None);
        assert_eq!(parts(json!({"usage": {"inputTokens": -1, "outputTokens": true}})), None);
        assert_eq!(
            parts(json!({"usage": {"inputTokens": 0, "outputTokens": 0}})),
            Some((0, 0, None, None))
        );
    }

    #[test]
    fn floats_are_cut_and_numeric_strings_count() {
        let odd = json!({"usage": {"inputTokens": 3.9, "outputTokens": " 12 ", "cachedReadTokens": "x", "cachedWriteTokens": -2}});
        assert_eq!(parts(odd), Some((3, 12, None, None)));
        assert_eq!(
            parts(json!({"usage": {"inputTokens": "7.5", "outputTokens": 1e300}})),
            Some((7, 0, None, None))
        );
    }
}
