//! Tokens of a turn, read from the answer to `session/prompt`, and only from there (runtimes 13).

use serde::Serialize;
use serde_json::Value;

/// What a turn used, as its agent claims. Absent is not zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens read.
    pub input: u64,
    /// Tokens written.
    pub output: u64,
    /// Tokens taken from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<u64>,
    /// Tokens put into a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    /// The adapter's own claim about how it counted, passed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Value>,
}

/// Reads the usage of a prompt result: `usage`, else gemini's quota, else flat keys in `_meta`. `None`: not reported.
#[must_use]
pub fn of_result(result: &Value) -> Option<Usage> {
    let meta = result.get("_meta");
    let usage = result.get("usage");
    let quota = meta.and_then(|meta| meta.pointer("/quota/token_count"));
    let accounting = usage
        .and_then(|usage| usage.get("accounting"))
        .or_else(|| meta.and_then(|meta| meta.get("accounting")))
        .filter(|claim| is_accounting(claim))
        .cloned();
    let found = read(
        usage,
        ["inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens"],
    )
    .or_else(|| read(quota, ["input_tokens", "output_tokens", "", ""]))
    .or_else(|| read(meta, ["inputTokens", "outputTokens", "", ""]))?;
    Some(Usage { accounting, ..found })
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
        accounting: None,
    })
}

/// Integers, floats (cut) and numeric strings count; what is negative or anything else was not reported.
fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(whole)),
        Value::String(text) => {
            let text = text.trim();
            text.parse().ok().or_else(|| text.parse().ok().and_then(whole))
        }
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked: not negative, below 2^53"
)]
fn whole(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number >= 0.0 && number < EXACT).then_some(number as u64)
}

fn is_accounting(claim: &Value) -> bool {
    claim.get("source").is_some_and(Value::is_string)
        && matches!(
            claim.get("completeness").and_then(Value::as_str),
            Some("reported" | "partial")
        )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(result: Value) -> Option<(u64, u64, Option<u64>, Option<u64>)> {
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

    #[test]
    fn an_accounting_claim_is_passed_through_whole() {
        let claim = json!({"source": "adapter", "version": 1, "scope": "turn", "completeness": "partial"});
        let usage = of_result(&json!({"usage": {"inputTokens": 1, "accounting": claim}})).unwrap();
        assert_eq!(
            serde_json::to_value(usage).unwrap(),
            json!({"input": 1, "output": 0, "accounting": claim})
        );
        let odd = of_result(&json!({"usage": {"inputTokens": 1, "accounting": {"source": 1}}})).unwrap();
        assert_eq!(odd.accounting, None);
    }
}
