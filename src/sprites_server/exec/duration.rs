//! Durations as the clients write them: `0s`, `10s`, `1000ms`, `1m30s`, `1.5s`, or whole seconds without a unit.

use std::time::Duration;

/// Longer is refused: no timer means that much, and sums with the clock must not overflow.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Not a duration, a negative one, or one of more than ten years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a duration is a number with a unit (ms, s, m, h) or whole seconds")]
pub struct DurationError;

/// Reads a duration.
///
/// # Errors
/// [`DurationError`] for anything else.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if let Ok(seconds) = text.parse::<u64>() {
        return within(Duration::from_secs(seconds));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(DurationError);
    }
    while !rest.is_empty() {
        let number_ends = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or(DurationError)?;
        let (number, after) = rest.split_at(number_ends);
        let unit_ends = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_ends);
        let part = part(number, nanos_of(unit).ok_or(DurationError)?)?;
        total = total.checked_add(part).ok_or(DurationError)?;
        rest = after;
    }
    within(total)
}

fn part(number: &str, unit_nanos: u64) -> Result<Duration, DurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError);
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| DurationError)?
    };
    let mut nanos = u128::from(whole) * u128::from(unit_nanos);
    let mut digit_is_worth = u128::from(unit_nanos);
    for digit in fraction.chars() {
        digit_is_worth /= 10;
        nanos += u128::from(digit.to_digit(10).ok_or(DurationError)?) * digit_is_worth;
    }
    let nanos = u64::try_from(nanos).map_err(|_| DurationError)?;
    Ok(Duration::from_nanos(nanos))
}

fn nanos_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn within(duration: Duration) -> Result<Duration, DurationError> {
    if duration > LONGEST {
        Err(DurationError)
    } else {
        Ok(duration)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_forms_that_clients_send() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("10", 10_000),
            ("10s", 10_000),
            ("1000ms", 1_000),
            ("1m30s", 90_000),
            ("1h0m0s", 3_600_000),
            ("1.5s", 1_500),
            (".5s", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1s",
            "-1",
            "1x",
            "1.2.3s",
            ".s",
            "1s2",
            "99999999999h",
            "18446744073709551615",
            " 1s",
            "1e3s",
        ] {
            assert_eq!(parse(text), Err(DurationError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in ".*") {
            if let Ok(read) = parse(&text) {
                prop_assert!(read <= LONGEST);
            }
        }

        #[test]
        fn milliseconds_mean_what_they_say(ms in 0_u64..1_000_000_000) {
            prop_assert_eq!(parse(&format!("{ms}ms")), Ok(Duration::from_millis(ms)));
            prop_assert_eq!(parse(&format!("{}s{}ms", ms / 1000, ms % 1000)), Ok(Duration::from_millis(ms)));
        }
    }
}
