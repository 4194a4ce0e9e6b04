//! Quotas, credit, the launch queue and execution limits, out of the environment (lifecycle 9.4).

use std::time::Duration;

use fountain_actors::domain::credit::{CreditSettings, CreditTerms};
use fountain_actors::domain::settings::Settings;
use serde_json::Value;

use super::{ConfigError, Environment};

/// Ceilings of one turn that FOUNTAIN_EXECUTION_LIMITS may hold.
const LIMITS: [&str; 3] = ["wall_time_seconds", "max_model_turns", "max_estimated_cost_usd"];

/// Reads everything of lifecycle 9.4 into `settings`.
///
/// # Errors
/// When a variable cannot be read, or two of them contradict each other.
pub fn read(env: &Environment, settings: &mut Settings) -> Result<(), ConfigError> {
    if let Some(cap) = env.number("SANDBOX_CAP_CEILING")? {
        settings.cap_ceiling = cap;
    }
    if let Some(fleet) = env.number("SANDBOX_FLEET_CEILING")? {
        settings.fleet_ceiling = fleet;
    }
    if let Some(depth) = env.number("SANDBOX_QUEUE_MAX_DEPTH")? {
        settings.queue_max_depth = depth;
    }
    if let Some(wait) = env.number("SANDBOX_QUEUE_MAX_WAIT_SECONDS")? {
        if wait == 0 {
            return Err(ConfigError::Invalid {
                name: "SANDBOX_QUEUE_MAX_WAIT_SECONDS",
                wanted: "1 or more; SANDBOX_QUEUE_MAX_DEPTH=0 switches the queue off",
            });
        }
        settings.queue_max_wait = Duration::from_secs(wait.unsigned_abs());
    }
    settings.execution_limits = execution_limits(env)?;
    // Read although it may not be used, so that a mistake shows at the first start and not when billing is switched on.
    let credits = credits(env, settings.cap_ceiling)?;
    settings.credits = env.flag("CREDITS_ENABLED", false)?.then_some(credits);
    Ok(())
}

fn credits(env: &Environment, ceiling: i64) -> Result<CreditSettings, ConfigError> {
    let number = |name, default| Ok::<_, ConfigError>(env.number(name)?.unwrap_or(default));
    let said = env.number("SANDBOX_CAP_FLOOR")?;
    if said.is_some_and(|floor| floor > ceiling) {
        return Err(ConfigError::Refused(format!(
            "SANDBOX_CAP_FLOOR must not be above SANDBOX_CAP_CEILING, which is {ceiling}"
        )));
    }
    let days = number("CREDIT_OPENING_DAYS", 14)?;
    let days = u32::try_from(days).ok().filter(|days| (1..=3650).contains(days));
    let days = days.ok_or(ConfigError::Invalid {
        name: "CREDIT_OPENING_DAYS",
        wanted: "between 1 and 3650",
    })?;
    match env.get("PROVIDER_COST_BASIS") {
        None | Some("active" | "turn") => {}
        Some(_) => {
            return Err(ConfigError::Invalid {
                name: "PROVIDER_COST_BASIS",
                wanted: "active or turn",
            });
        }
    }
    Ok(CreditSettings {
        terms: CreditTerms {
            reserve_cents: number("SANDBOX_RESERVE_CENTS", 200)?,
            floor: said.unwrap_or(2).min(ceiling),
        },
        opening_cents: number("CREDIT_OPENING_CENTS", 500)?,
        opening_lasts: Duration::from_secs(u64::from(days) * 24 * 60 * 60),
        turn_hour_cents: number("CREDIT_TURN_HOUR_CENTS", 25)?,
        packs_cents: packs(env)?,
    })
}

fn packs(env: &Environment) -> Result<Vec<i64>, ConfigError> {
    let text = env.get("CREDIT_PACKS_CENTS").unwrap_or("1000,2500,10000");
    let packs = text
        .split(',')
        .map(|pack| pack.trim().parse::<i64>().ok().filter(|cents| *cents > 0));
    packs.collect::<Option<_>>().ok_or(ConfigError::Invalid {
        name: "CREDIT_PACKS_CENTS",
        wanted: "a list of whole cents such as 1000,2500",
    })
}

/// Whether ceilings are set. They are judged although nothing enforces them yet: a launch is refused then, and a mistake
/// in them would show only once something does.
fn execution_limits(env: &Environment) -> Result<bool, ConfigError> {
    env.flag("FOUNTAIN_EXECUTION_DEADLINE_WORKER", true)?;
    if env.number("FOUNTAIN_EXECUTION_DEADLINE_INTERVAL_MS")? == Some(0) {
        return Err(ConfigError::Invalid {
            name: "FOUNTAIN_EXECUTION_DEADLINE_INTERVAL_MS",
            wanted: "1 or more",
        });
    }
    let Some(text) = env.get("FOUNTAIN_EXECUTION_LIMITS") else {
        return Ok(false);
    };
    let wrong = ConfigError::Invalid {
        name: "FOUNTAIN_EXECUTION_LIMITS",
        wanted: "a JSON object with any of wall_time_seconds, max_model_turns, max_estimated_cost_usd, each above 0",
    };
    let Ok(Value::Object(limits)) = serde_json::from_str(text) else {
        return Err(wrong);
    };
    let is_good = |(name, value): (&String, &Value)| {
        let is_whole = name != "max_estimated_cost_usd";
        LIMITS.contains(&name.as_str())
            && value.as_f64().is_some_and(|limit| limit > 0.0)
            && (!is_whole || value.as_u64().is_some())
    };
    if !limits.iter().all(is_good) {
        return Err(wrong);
    }
    Ok(!limits.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(pairs: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        read(&Environment::of(pairs), &mut settings).map(|()| settings)
    }

    #[test]
    fn the_defaults_of_lifecycle_9_4() {
        let plain = read_of(&[]).unwrap();
        assert_eq!((plain.cap_ceiling, plain.fleet_ceiling), (20, 20));
        assert_eq!(
            (plain.queue_max_depth, plain.queue_max_wait),
            (10, Duration::from_secs(3600))
        );
        assert!(plain.credits.is_none() && !plain.execution_limits);
        let billed = read_of(&[("CREDITS_ENABLED", "true")]).unwrap().credits.unwrap();
        assert_eq!(
            billed,
            CreditSettings {
                terms: CreditTerms {
                    reserve_cents: 200,
                    floor: 2
                },
                opening_cents: 500,
                opening_lasts: Duration::from_secs(14 * 24 * 60 * 60),
                turn_hour_cents: 25,
                packs_cents: vec![1000, 2500, 10000],
            }
        );
    }

    #[test]
    fn every_refusal_names_its_variable() {
        for (name, value) in [
            ("CREDITS_ENABLED", "perhaps"),
            ("SANDBOX_RESERVE_CENTS", "-1"),
            ("SANDBOX_CAP_FLOOR", "21"),
            ("SANDBOX_FLEET_CEILING", "many"),
            ("SANDBOX_QUEUE_MAX_DEPTH", "-1"),
            ("SANDBOX_QUEUE_MAX_WAIT_SECONDS", "0"),
            ("CREDIT_OPENING_DAYS", "0"),
            ("CREDIT_OPENING_CENTS", "five"),
            ("CREDIT_TURN_HOUR_CENTS", "0.5"),
            ("CREDIT_PACKS_CENTS", "1000,,5"),
            ("PROVIDER_COST_BASIS", "moon"),
            ("FOUNTAIN_EXECUTION_LIMITS", "[]"),
            ("FOUNTAIN_EXECUTION_LIMITS", r#"{"wall_time_seconds":0}"#),
            ("FOUNTAIN_EXECUTION_LIMITS", r#"{"max_model_turns":1.5}"#),
            ("FOUNTAIN_EXECUTION_LIMITS", r#"{"other":1}"#),
            ("FOUNTAIN_EXECUTION_DEADLINE_WORKER", "2"),
            ("FOUNTAIN_EXECUTION_DEADLINE_INTERVAL_MS", "0"),
        ] {
            let message = read_of(&[(name, value)]).unwrap_err().to_string();
            assert!(message.contains(name), "{name}={value}: {message}");
        }
    }

    #[test]
    fn a_low_ceiling_lowers_the_floor_that_nobody_set() {
        let one = read_of(&[("SANDBOX_CAP_CEILING", "1"), ("CREDITS_ENABLED", "1")]).unwrap();
        assert_eq!(one.credits.unwrap().terms.floor, 1);
    }

    #[test]
    fn ceilings_that_nothing_enforces_are_noticed_and_empty_ones_are_none() {
        let set = read_of(&[(
            "FOUNTAIN_EXECUTION_LIMITS",
            r#"{"wall_time_seconds":60,"max_estimated_cost_usd":0.5}"#,
        )]);
        assert!(set.unwrap().execution_limits);
        let none = read_of(&[("FOUNTAIN_EXECUTION_LIMITS", "{}")]).unwrap();
        assert!(!none.execution_limits);
    }
}
