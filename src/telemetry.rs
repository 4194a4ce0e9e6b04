//! Traces and metrics: the subscriber, every metric with its name and help, and the private listener that serves them.
//!
//! Names are lifecycle 10.1's with `_` for `.` (RUL-65). Labels come from closed vocabularies, and every known value
//! stands at zero from the start. Nothing here ever sees a prompt, an output or a secret.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use fountain_actors::domain::conversation::ConversationStatus;
use fountain_actors::domain::event::{Stage, StageState};
use fountain_actors::domain::machine::{MachineStatus, Provider};
use fountain_actors::ports::Meter;
use fountain_actors::ports::meter::Measure;
use fountain_actors::ports::store::machines::Census;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing_subscriber::EnvFilter;

/// Upper bounds in milliseconds: from a warm append to a half-hour build.
const MILLISECONDS: [f64; 16] = [
    1.0,
    2.5,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    15_000.0,
    60_000.0,
    300_000.0,
    1_800_000.0,
];

/// Installs the subscriber. Logs go to standard error, so that standard output stays the program's own.
pub fn init(filter: Option<&str>, json: bool) {
    let filter = filter
        .and_then(|filter| EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| EnvFilter::new("info,actix_server=warn,actix_web=warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // A second call finds a subscriber in place: tests of commands do that, and keep the first one.
    let _ = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.compact().try_init()
    };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnLabels {
    runtime: &'static str,
    status: &'static str,
    provider: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuntimeLabels {
    runtime: &'static str,
    provider: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabels {
    provider: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UntrackedLabels {
    provider: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
    method: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    op: &'static str,
    outcome: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(MILLISECONDS)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Every metric of the process.
pub struct Metrics {
    registry: Registry,
    stages: Family<StageLabels, Counter>,
    fresh_provision: Histogram,
    provision_step: Family<StepLabels, Histogram>,
    reattach: Histogram,
    deadline_exceeded: Counter,
    turn_completed: Family<TurnLabels, Histogram>,
    first_output: Family<RuntimeLabels, Histogram>,
    suspended: Counter,
    reclaimed: Counter,
    teardown_reconciled: Counter,
    teardown_refused: Counter,
    rehydrate_candidates: Gauge,
    rehydrate_started: Gauge,
    output_capped: Counter,
    reaper_released: Counter,
    reaper_parked: Counter,
    reaper_expired: Counter,
    reaper_refused: Counter,
    untracked: Family<UntrackedLabels, Gauge>,
    conversations: Family<StatusLabels, Gauge>,
    machines: Family<StatusLabels, Gauge>,
    machines_by_provider: Family<ProviderLabels, Gauge>,
    runners_online: Gauge,
    requests: Family<RouteLabels, Histogram>,
    queries: Family<OperationLabels, Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            stages: Family::default(),
            fresh_provision: histogram(),
            provision_step: Family::new_with_constructor(histogram),
            reattach: histogram(),
            deadline_exceeded: Counter::default(),
            turn_completed: Family::new_with_constructor(histogram),
            first_output: Family::new_with_constructor(histogram),
            suspended: Counter::default(),
            reclaimed: Counter::default(),
            teardown_reconciled: Counter::default(),
            teardown_refused: Counter::default(),
            rehydrate_candidates: Gauge::default(),
            rehydrate_started: Gauge::default(),
            output_capped: Counter::default(),
            reaper_released: Counter::default(),
            reaper_parked: Counter::default(),
            reaper_expired: Counter::default(),
            reaper_refused: Counter::default(),
            untracked: Family::default(),
            conversations: Family::default(),
            machines: Family::default(),
            machines_by_provider: Family::default(),
            runners_online: Gauge::default(),
            requests: Family::new_with_constructor(histogram),
            queries: Family::new_with_constructor(histogram),
        };
        metrics.register();
        for provider in Provider::ALL.iter().filter(|provider| **provider != Provider::Fake) {
            let labels = UntrackedLabels {
                provider: provider.as_str(),
            };
            let _ = metrics.untracked.get_or_create(&labels);
        }
        metrics.set_census(&Census::default());
        for stage in Stage::ALL {
            for state in StageState::ALL {
                let _ = metrics.stages.get_or_create(&StageLabels {
                    stage: stage.as_str(),
                    status: state.as_str(),
                });
            }
        }
        metrics
    }
}

impl Metrics {
    /// Names and help texts, in one place.
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("fountain_stage_count", "Stage events published", self.stages.clone());
        r.register(
            "fountain_fresh_provision_stop_duration",
            "Build of a machine, ms",
            self.fresh_provision.clone(),
        );
        r.register(
            "fountain_provision_step_stop_duration",
            "One step of a build, ms",
            self.provision_step.clone(),
        );
        r.register(
            "fountain_reattach_stop_duration",
            "Taking a running turn back, ms",
            self.reattach.clone(),
        );
        r.register(
            "fountain_provision_deadline_exceeded_count",
            "Builds that reached the ceiling",
            self.deadline_exceeded.clone(),
        );
        r.register(
            "fountain_turn_completed_duration_ms",
            "Turns from admission to end, ms",
            self.turn_completed.clone(),
        );
        r.register(
            "fountain_turn_first_output_elapsed_ms",
            "Turns from admission to the first durable output, ms",
            self.first_output.clone(),
        );
        r.register(
            "fountain_sandbox_suspended_count",
            "Machines parked",
            self.suspended.clone(),
        );
        r.register(
            "fountain_sandbox_reclaimed_count",
            "Machines reclaimed",
            self.reclaimed.clone(),
        );
        r.register(
            "fountain_reaper_teardowns_reconciled",
            "Deletes that the teardown pass finished; each is a defect of the path that left it",
            self.teardown_reconciled.clone(),
        );
        r.register(
            "fountain_reaper_teardowns_refused",
            "Deletes still not confirmed",
            self.teardown_refused.clone(),
        );
        r.register(
            "fountain_reaper_run_released",
            "Stuck builds that the reaper released",
            self.reaper_released.clone(),
        );
        r.register(
            "fountain_reaper_run_parked",
            "Machines that the reaper parked",
            self.reaper_parked.clone(),
        );
        r.register(
            "fountain_reaper_run_expired",
            "Machines past a bound that the reaper reclaimed",
            self.reaper_expired.clone(),
        );
        r.register(
            "fountain_reaper_run_refused",
            "Machines that refused the reaper",
            self.reaper_refused.clone(),
        );
        r.register(
            "fountain_reaper_untracked_count",
            "Machines at a provider that no row explains",
            self.untracked.clone(),
        );
        r.register(
            "fountain_rehydrate_stop_candidates",
            "Turns found open at boot",
            self.rehydrate_candidates.clone(),
        );
        r.register(
            "fountain_rehydrate_stop_started",
            "Servers started for them",
            self.rehydrate_started.clone(),
        );
        r.register(
            "fountain_log_output_capped_count",
            "Conversations that reached their output budget",
            self.output_capped.clone(),
        );
        r.register(
            "fountain_conversations_count",
            "Conversations by status",
            self.conversations.clone(),
        );
        r.register("fountain_sandboxes_count", "Machines by status", self.machines.clone());
        r.register(
            "fountain_sandboxes_by_provider_count",
            "Machines by provider and status",
            self.machines_by_provider.clone(),
        );
        r.register(
            "fountain_runners_online",
            "Runners connected to this replica",
            self.runners_online.clone(),
        );
        r.register(
            "fountain_http_request_duration_ms",
            "HTTP requests by route pattern, ms",
            self.requests.clone(),
        );
        r.register(
            "fountain_store_query_duration_ms",
            "Store verbs, ms",
            self.queries.clone(),
        );
    }

    /// One HTTP request. `route` is the pattern, never the path.
    pub fn request(&self, route: &str, method: &str, status: u16, took: Duration) {
        let labels = RouteLabels {
            route: route.to_owned(),
            method: method.to_owned(),
            status,
        };
        self.requests.get_or_create(&labels).observe(ms(took));
    }

    /// One store verb.
    pub fn query(&self, op: &'static str, took: Duration, ok: bool) {
        let outcome = if ok { "ok" } else { "error" };
        self.queries
            .get_or_create(&OperationLabels { op, outcome })
            .observe(ms(took));
    }

    pub fn set_runners_online(&self, count: usize) {
        self.runners_online.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Levels, counted from the rows every ten seconds.
    pub fn set_census(&self, census: &Census) {
        for status in ConversationStatus::ALL {
            let count = census
                .conversations
                .iter()
                .filter(|(s, _)| s == status)
                .map(|(_, n)| n)
                .sum();
            self.conversations
                .get_or_create(&StatusLabels {
                    status: status.as_str(),
                })
                .set(count);
        }
        for status in MachineStatus::ALL {
            let of_status = || census.machines.iter().filter(|(_, s, _)| s == status);
            self.machines
                .get_or_create(&StatusLabels {
                    status: status.as_str(),
                })
                .set(of_status().map(|(_, _, n)| n).sum());
            for provider in Provider::ALL.iter().filter(|provider| **provider != Provider::Fake) {
                let count = of_status().filter(|(p, _, _)| p == provider).map(|(_, _, n)| n).sum();
                let labels = ProviderLabels {
                    provider: provider.as_str(),
                    status: status.as_str(),
                };
                self.machines_by_provider.get_or_create(&labels).set(count);
            }
        }
    }

    /// The text exposition.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String fails only when a metric's own Display does.
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            tracing::error!("the metrics could not be rendered");
        }
        text
    }
}

impl Meter for Metrics {
    fn record(&self, measure: Measure) {
        match measure {
            Measure::Stage { stage, state } => {
                self.stages
                    .get_or_create(&StageLabels {
                        stage: stage.as_str(),
                        status: state.as_str(),
                    })
                    .inc();
            }
            Measure::FreshProvision(took) => self.fresh_provision.observe(ms(took)),
            Measure::ProvisionStep { step, took } => {
                self.provision_step
                    .get_or_create(&StepLabels { step })
                    .observe(ms(took));
            }
            Measure::Reattach(took) => self.reattach.observe(ms(took)),
            Measure::ProvisionDeadlineExceeded => drop(self.deadline_exceeded.inc()),
            Measure::TurnCompleted {
                runtime,
                status,
                provider,
                took,
            } => self
                .turn_completed
                .get_or_create(&TurnLabels {
                    runtime: runtime.as_str(),
                    status: status.as_str(),
                    provider: provider.as_str(),
                })
                .observe(ms(took)),
            Measure::FirstOutput {
                runtime,
                provider,
                took,
            } => self
                .first_output
                .get_or_create(&RuntimeLabels {
                    runtime: runtime.as_str(),
                    provider: provider.as_str(),
                })
                .observe(ms(took)),
            Measure::MachineSuspended => drop(self.suspended.inc()),
            Measure::MachineReclaimed => drop(self.reclaimed.inc()),
            Measure::TeardownReconciled => drop(self.teardown_reconciled.inc()),
            Measure::TeardownRefused => drop(self.teardown_refused.inc()),
            Measure::Rehydrated { candidates, started } => {
                self.rehydrate_candidates
                    .set(i64::try_from(candidates).unwrap_or(i64::MAX));
                self.rehydrate_started.set(i64::try_from(started).unwrap_or(i64::MAX));
            }
            Measure::OutputCapped => drop(self.output_capped.inc()),
            Measure::Reaped {
                released,
                parked,
                expired,
                refused,
            } => {
                self.reaper_released.inc_by(released);
                self.reaper_parked.inc_by(parked);
                self.reaper_expired.inc_by(expired);
                self.reaper_refused.inc_by(refused);
            }
            Measure::Untracked { provider, count } => {
                let labels = UntrackedLabels {
                    provider: provider.as_str(),
                };
                let level = i64::try_from(count).unwrap_or(i64::MAX);
                self.untracked.get_or_create(&labels).set(level);
            }
        }
    }
}

/// The private listener: `/metrics` and `/health`, on every address, for the scraper alone (RUL-17).
///
/// # Errors
/// When the port cannot be bound.
pub fn listener(metrics: Arc<Metrics>, port: u16) -> std::io::Result<actix_web::dev::Server> {
    let server = HttpServer::new(move || {
        let metrics = Arc::clone(&metrics);
        App::new()
            .route(
                "/metrics",
                web::get().to(move || {
                    let text = metrics.render();
                    async move {
                        HttpResponse::Ok()
                            .content_type("application/openmetrics-text; version=1.0.0; charset=utf-8")
                            .body(text)
                    }
                }),
            )
            .route(
                "/health",
                web::get().to(|| async { HttpResponse::Ok().json(serde_json::json!({"status": "ok"})) }),
            )
    })
    .workers(1)
    .disable_signals()
    .bind(("0.0.0.0", port))?;
    Ok(server.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_label_value_stands_at_zero_from_the_start() {
        let text = Metrics::default().render();
        for line in [
            r#"fountain_conversations_count{status="idle"} 0"#,
            r#"fountain_sandboxes_by_provider_count{provider="runner",status="ready"} 0"#,
            r#"fountain_stage_count_total{stage="turn",status="failed"} 0"#,
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!text.contains("fake"));
    }

    #[test]
    fn a_measure_is_counted_under_its_labels() {
        let metrics = Metrics::default();
        metrics.record(Measure::Stage {
            stage: Stage::Turn,
            state: StageState::Done,
        });
        metrics.query("machine.claim", Duration::from_millis(3), true);
        let text = metrics.render();
        assert!(text.contains(r#"fountain_stage_count_total{stage="turn",status="done"} 1"#));
        assert!(text.contains(r#"op="machine.claim""#));
    }
}
