//! `fountain reaper --dry-run`: every verdict of the reaper with its evidence and how old that is (issue 4, Deliver 3).
//!
//! Opens the database and lists the configured providers; it writes nothing and takes no lease, so it may run beside a
//! server. The passes themselves run in the server and are not started from here. Runners are connected to a server and
//! not to this command, so their listings are no part of its answer.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use fountain_actors::domain::Moment;
use fountain_actors::domain::settings::Settings;
use fountain_actors::passes::reaper::{Finding, Plan, plan};
use fountain_actors::ports::bus::InProcessBus;
use fountain_actors::ports::clock::Clock;
use fountain_actors::ports::meter::NoMeter;
use fountain_actors::ports::presence::NoRunners;
use fountain_actors::ports::{AdapterSet, World};
use fountain_provider_sprites::SpritesAdapter;
use serde_json::{Value, json};

use super::{Context, DatabaseArgs, Exit, render, serve};
use crate::config;
use crate::server::{self, SystemClock, SystemRng};
use crate::telemetry::Metrics;

#[derive(Debug, Args)]
pub struct ReaperArgs {
    /// Say what would be done. Required: the reaper itself runs in the server, seven minutes past every hour.
    #[arg(long, required = true)]
    dry_run: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub async fn reaper(context: Context, args: ReaperArgs) -> anyhow::Result<Exit> {
    let ReaperArgs { dry_run, database } = args;
    debug_assert!(dry_run, "clap requires the flag");
    let base = if database.data_dir.is_some() {
        super::dev::settings()
    } else {
        Settings::default()
    };
    let (database, key) = serve::database(&context, &database)?;
    let store = server::open_store(&database, &key, &Arc::new(Metrics::default()))?;
    if let Some(name) = store.pending_migrations().await?.first() {
        anyhow::bail!("migration {name} is pending; run `fountain migrate` first");
    }
    let mut adapters = AdapterSet::default();
    if let Some(sprites) = config::sprites(&context.env)? {
        adapters = adapters.with(Arc::new(SpritesAdapter::new(sprites)));
    }
    let world = World {
        store: Arc::new(store),
        adapters: Arc::new(adapters),
        bus: Arc::new(InProcessBus::default()),
        clock: Arc::new(SystemClock),
        rng: Arc::new(SystemRng),
        meter: Arc::new(NoMeter),
        runners: Arc::new(NoRunners::default()),
        settings: Arc::new(config::settings(&context.env, base)?),
        holder: "dry-run".into(),
    };
    let plan = plan(&world).await?;
    show(&context, &plan, SystemClock.now());
    Ok(Exit::Ok)
}

fn show(context: &Context, plan: &Plan, now: Moment) {
    if context.json {
        return render::json(&as_json(plan, now));
    }
    if plan.findings.is_empty() {
        render::line("nothing to do");
    } else {
        let rows: Vec<Value> = plan.findings.iter().map(|finding| row(finding, now)).collect();
        let columns = [
            ("VERDICT", "verdict"),
            ("PART", "part"),
            ("PROVIDER", "provider"),
            ("NAME", "name"),
            ("EVIDENCE", "evidence"),
            ("AGE", "age"),
        ];
        render::table(&rows, &columns);
    }
    let shown = plan.findings.iter().filter(|finding| finding.machine.is_none()).count() as u64;
    if plan.untracked > shown {
        render::line(&format!("{} more machines without a row", plan.untracked - shown));
    }
    for (provider, why) in &plan.no_listing {
        render::line(&format!(
            "no listing of {provider}: {why}; nothing would be deleted from it"
        ));
    }
}

fn row(finding: &Finding, now: Moment) -> Value {
    let age = finding.age(now);
    json!({
        "part": finding.part,
        "verdict": finding.verdict,
        "provider": finding.provider.as_str(),
        "name": finding.name,
        "sandbox_id": finding.machine,
        "evidence": finding.evidence,
        "evidence_at": finding.as_of.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        "evidence_age_seconds": age.as_secs(),
        "age": in_words(age),
    })
}

fn as_json(plan: &Plan, now: Moment) -> Value {
    let findings: Vec<Value> = plan
        .findings
        .iter()
        .map(|finding| {
            let mut row = row(finding, now);
            if let Some(fields) = row.as_object_mut() {
                fields.remove("age");
            }
            row
        })
        .collect();
    let no_listing: Vec<Value> = plan
        .no_listing
        .iter()
        .map(|(provider, why)| json!({"provider": provider.as_str(), "reason": why}))
        .collect();
    json!({
        "findings": findings,
        "no_listing": no_listing,
        "listed": plan.listed,
        "untracked": plan.untracked,
    })
}

/// The two largest units of a duration.
fn in_words(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_said_in_its_two_largest_units() {
        let said = |seconds| in_words(Duration::from_secs(seconds));
        assert_eq!(said(0), "0s");
        assert_eq!(said(61), "1m 1s");
        assert_eq!(said(7_260), "2h 1m");
        assert_eq!(said(90_000), "1d 1h");
    }
}
