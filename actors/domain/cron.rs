//! Cron expressions: five fields, UTC, and when they fire next (http-api 4.8; RUL-L-59).
//!
//! Written here and not taken from a crate: the usual one reads six or seven fields with other weekday numbers and joins
//! the two day fields with "and", where crontab says "or" as soon as both are restricted.

use chrono::{Datelike, Timelike};

use crate::domain::Moment;

/// How far ahead a firing is looked for, in days: the 29th of February comes at least every eight years.
const HORIZON_DAYS: i64 = 8 * 366;

/// A parsed expression. Equal sets fire at equal times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    /// Bit n: fires at n.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    /// Bit 0 is Sunday.
    weekdays: u64,
    /// Both day fields are restricted: either of them is enough.
    either_day: bool,
}

/// Why an expression cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    #[error("must have five fields: minute, hour, day of month, month, day of week")]
    Fields,
    #[error("has a {0} that cannot be read")]
    Field(&'static str),
    #[error("must be a time; @reboot is none")]
    Reboot,
    #[error("is not one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually")]
    Nickname,
    #[error("never fires")]
    Never,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// What one field may hold.
struct Range {
    name: &'static str,
    low: u32,
    high: u32,
    words: &'static [&'static str],
}

impl Range {
    fn value(&self, text: &str) -> Option<u32> {
        let word = text.to_ascii_lowercase();
        if let Some(at) = self.words.iter().position(|known| *known == word) {
            return u32::try_from(at).ok().map(|at| at + self.low);
        }
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|_| digits)?;
        (self.low..=self.high).contains(&value).then_some(value)
    }

    /// One field: a list of `*`, `a`, `a-b`, each with `/step`.
    fn parse(&self, field: &str) -> Result<u64, CronError> {
        let wrong = CronError::Field(self.name);
        let mut set = 0u64;
        for part in field.split(',') {
            let (span, step) = match part.split_once('/') {
                Some((span, step)) => (span, Some(step)),
                None => (part, None),
            };
            let step: usize = match step {
                None => 1,
                Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                    text.parse().ok().filter(|step| *step > 0).ok_or(wrong)?
                }
                Some(_) => return Err(wrong),
            };
            let (from, to) = match (span, span.split_once('-')) {
                ("*", _) => (self.low, self.high),
                (_, Some((from, to))) => (self.value(from).ok_or(wrong)?, self.value(to).ok_or(wrong)?),
                (one, None) => {
                    let from = self.value(one).ok_or(wrong)?;
                    // `5/15` means from 5 on, as crontabs in the wild use it.
                    (from, if part.contains('/') { self.high } else { from })
                }
            };
            if from > to {
                return Err(wrong);
            }
            for value in (from..=to).step_by(step) {
                set |= 1 << value;
            }
        }
        Ok(set)
    }
}

impl Cron {
    /// Reads an expression.
    ///
    /// # Errors
    /// [`CronError`], whose sentence goes to the client.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let text = text.trim();
        let text = match text.strip_prefix('@') {
            Some(nickname) => match nickname.to_ascii_lowercase().as_str() {
                "hourly" => "0 * * * *",
                "daily" | "midnight" => "0 0 * * *",
                "weekly" => "0 0 * * 0",
                "monthly" => "0 0 1 * *",
                "yearly" | "annually" => "0 0 1 1 *",
                "reboot" => return Err(CronError::Reboot),
                _ => return Err(CronError::Nickname),
            },
            None => text,
        };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(CronError::Fields);
        };
        let range = |name, low, high, words| Range { name, low, high, words };
        let mut weekdays = range("day of week", 0, 7, &WEEKDAYS).parse(weekday)?;
        if weekdays & (1 << 7) != 0 {
            weekdays |= 1; // 7 is Sunday, too
        }
        let cron = Self {
            minutes: range("minute", 0, 59, &[]).parse(minute)?,
            hours: range("hour", 0, 23, &[]).parse(hour)?,
            days: range("day of month", 1, 31, &[]).parse(day)?,
            months: range("month", 1, 12, &MONTHS).parse(month)?,
            weekdays: weekdays & 0x7f,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        };
        // The 30th of February is no date: better said now than a schedule that waits for ever.
        cron.next_after(Moment::UNIX_EPOCH).ok_or(CronError::Never)?;
        Ok(cron)
    }

    fn fires_on(&self, date: chrono::NaiveDate) -> bool {
        let has = |set: u64, value: u32| set & (1 << value) != 0;
        let by_date = has(self.days, date.day());
        let by_weekday = has(self.weekdays, date.weekday().num_days_from_sunday());
        let on_day = if self.either_day {
            by_date || by_weekday
        } else {
            by_date && by_weekday
        };
        has(self.months, date.month()) && on_day
    }

    /// The first firing strictly after `moment`, at second 0. None past the horizon, or at the end of time.
    pub fn next_after(&self, moment: Moment) -> Option<Moment> {
        let first = moment.naive_utc().checked_add_signed(chrono::TimeDelta::minutes(1))?;
        let mut date = first.date();
        // Hours and minutes from which the first day is looked through.
        let mut from = (first.hour(), first.minute());
        for _ in 0..HORIZON_DAYS {
            if self.fires_on(date) {
                for hour in (from.0..24).filter(|hour| self.hours & (1 << hour) != 0) {
                    let start = if hour == from.0 { from.1 } else { 0 };
                    if let Some(minute) = (start..60).find(|minute| self.minutes & (1 << minute) != 0) {
                        return Some(date.and_hms_opt(hour, minute, 0)?.and_utc());
                    }
                }
            }
            date = date.succ_opt()?;
            from = (0, 0);
        }
        None
    }

    /// The last firing in `after < firing <= until`. Looks at one firing at a time: keep the span short.
    pub fn last_between(&self, after: Moment, until: Moment) -> Option<Moment> {
        let mut last = None;
        let mut next = self.next_after(after);
        while let Some(firing) = next.filter(|firing| *firing <= until) {
            last = Some(firing);
            next = self.next_after(firing);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Moment {
        text.parse().unwrap()
    }

    /// The next `count` firings after a Thursday.
    fn firings(cron: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(cron).unwrap();
        let mut moment = at("2026-01-01T10:20:30Z");
        (0..count)
            .map(|_| {
                moment = cron.next_after(moment).unwrap();
                moment.format("%m-%d %H:%M").to_string()
            })
            .collect()
    }

    #[test]
    fn steps_lists_ranges_and_names() {
        assert_eq!(
            firings("*/20 * * * *", 3),
            ["01-01 10:40", "01-01 11:00", "01-01 11:20"]
        );
        assert_eq!(
            firings("0 9,17 * * *", 3),
            ["01-01 17:00", "01-02 09:00", "01-02 17:00"]
        );
        assert_eq!(
            firings("30 8 * * mon-fri", 3),
            ["01-02 08:30", "01-05 08:30", "01-06 08:30"]
        );
        assert_eq!(firings("0 0 1 FEB-mar *", 2), ["02-01 00:00", "03-01 00:00"]);
        assert_eq!(firings("5/30 10 * * *", 2), ["01-01 10:35", "01-02 10:05"]);
        assert_eq!(firings("0 0 * * 7", 1), firings("0 0 * * 0", 1));
    }

    #[test]
    fn the_minute_that_is_running_is_over() {
        let every = Cron::parse("* * * * *").unwrap();
        assert_eq!(
            every.next_after(at("2026-01-01T10:20:00Z")),
            Some(at("2026-01-01T10:21:00Z"))
        );
        assert_eq!(
            every.next_after(at("2026-12-31T23:59:59Z")),
            Some(at("2027-01-01T00:00:00Z"))
        );
    }

    #[test]
    fn two_restricted_day_fields_are_joined_with_or() {
        assert_eq!(
            firings("0 0 13 * fri", 3),
            ["01-02 00:00", "01-09 00:00", "01-13 00:00"]
        );
        assert_eq!(firings("0 0 */2 * fri", 1), ["01-09 00:00"], "a star restricts nothing");
    }

    #[test]
    fn leap_days_are_waited_for() {
        let leap = Cron::parse("0 0 29 2 *").unwrap();
        assert_eq!(
            leap.next_after(at("2026-01-01T00:00:00Z")),
            Some(at("2028-02-29T00:00:00Z"))
        );
        assert_eq!(Cron::parse("0 0 30 2 *"), Err(CronError::Never));
    }

    #[test]
    fn nicknames_but_no_reboot() {
        assert_eq!(Cron::parse("@daily"), Cron::parse("0 0 * * *"));
        assert_eq!(Cron::parse("@Weekly"), Cron::parse("0 0 * * 0"));
        assert_eq!(Cron::parse("@reboot"), Err(CronError::Reboot));
        assert_eq!(Cron::parse("@often"), Err(CronError::Nickname));
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for wrong in ["", "* * * *", "* * * * * *", "0 0 0 * *"] {
            assert!(Cron::parse(wrong).is_err(), "{wrong}");
        }
        for wrong in [
            "60 * * * *",
            "-1 * * * *",
            "1-",
            "*/0 * * * *",
            "a * * * *",
            "5-3 * * * *",
            "+5 * * * *",
            "1,,2 * * * *",
        ] {
            assert!(Cron::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rul_l_59_the_last_missed_firing_is_found() {
        let hourly = Cron::parse("@hourly").unwrap();
        let last = hourly.last_between(at("2026-01-01T00:30:00Z"), at("2026-01-01T05:10:00Z"));
        assert_eq!(last, Some(at("2026-01-01T05:00:00Z")));
        assert_eq!(
            hourly.last_between(at("2026-01-01T00:30:00Z"), at("2026-01-01T00:50:00Z")),
            None
        );
    }
}
