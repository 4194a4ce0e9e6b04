//! Every number that the domain waits, counts or bounds with (lifecycle 9.2, 9.4, 9.8).
//!
//! The defaults are the product's; tests change single fields. `src/config.rs` fills what the environment may set.

use std::time::Duration;

use crate::domain::credit::CreditSettings;
use crate::domain::machine::Provider;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn minutes(n: u64) -> Duration {
    seconds(60 * n)
}

const fn days(n: u64) -> Duration {
    minutes(24 * 60 * n)
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider of machines whose agent names none.
    pub default_provider: Provider,
    pub runners_enabled: bool,
    /// Given to machines as `FOUNTAIN_BASE_URL`.
    pub public_url: String,
    /// Environment checkpoints are taken after cold builds, where the provider can.
    pub checkpoint_creation: bool,
    /// None: never parked for idleness.
    pub idle_timeout: Option<Duration>,
    /// None: no ceiling.
    pub max_lifetime: Option<Duration>,
    pub cap_ceiling: i64,
    pub fleet_ceiling: i64,
    /// None: credits are switched off (CREDITS_ENABLED).
    pub credits: Option<CreditSettings>,
    /// The operator set ceilings for single turns. Nothing enforces them yet, so no launch and no prompt is taken then
    /// (lifecycle 2.8).
    pub execution_limits: bool,
    /// Requests of one account that may wait for a slot; 0: none may.
    pub queue_max_depth: i64,
    /// How long a request waits at most.
    pub queue_max_wait: Duration,
    /// After which a claim on a request counts as its owner's death (lifecycle 2.7).
    pub queue_claim_timeout: Duration,

    /// Lease lengths, and how they are renewed and waited for (lifecycle 3.3).
    pub lease_ttl: Duration,
    pub park_lease_ttl: Duration,
    pub renewal_divisor: u32,
    pub guard_headroom: Duration,
    pub busy_wait: Duration,
    pub busy_poll: Duration,
    pub owner_idle_stop: Duration,

    /// How long a request may be kept waiting: wake and terminate (RUL-1), a build (RUL-6).
    pub wake_wait: Duration,
    pub build_wait: Duration,
    pub reset_wait: Duration,
    /// A probe after an unknown answer (RUL-L-4).
    pub probe_timeout: Duration,

    pub provision_ceiling: Duration,
    pub pending_turn_limit: Duration,
    pub woken_grace: Duration,
    pub teardown_grace: Duration,
    pub conversation_tick: Duration,
    pub sweep_interval: Duration,
    pub adoption_interval: Duration,

    /// Passes (lifecycle 7, 9.8): how often, how old, how many. Test-only, as everything without a variable.
    pub pass_lease_ttl: Duration,
    pub settle_interval: Duration,
    pub permission_sweep_interval: Duration,
    pub stuck_turn_interval: Duration,
    /// A running turn without a server is stuck this long after its start, when it was quiet for `stuck_turn_quiet`.
    pub stuck_turn_age: Duration,
    pub stuck_turn_quiet: Duration,
    pub stuck_turn_batch: usize,
    /// The hourly reaper runs at this minute of the hour, UTC.
    pub reaper_minute: u32,
    pub stuck_build_age: Duration,
    /// Provider deletes in one run of the reaper; leftovers get at least the floor.
    pub reaper_deletes: usize,
    pub leftover_floor: usize,
    /// Owners that the reaper and the settle pass ask in one run, and the sweep for each kind of row.
    pub owner_attempts: i64,
    pub sweep_attempts: i64,
    /// A listing older than this is thrown away (RUL-L-51).
    pub listing_lifetime: Duration,
    /// Rests after an attempt in vain: of deletes, and of everything else by the number of attempts (RUL-L-55).
    pub delete_rest: Duration,
    pub other_rests: [Duration; 5],
    /// Retention runs at this hour and minute, UTC, in batches of so many rows.
    pub retention_at: (u32, u32),
    pub retention_batch: i64,
    pub keep_log_events: Duration,
    pub keep_audit_events: Duration,
    pub keep_usage_events: Duration,
    pub keep_revoked_keys: Duration,
    pub keep_operations: Duration,
    pub keep_deletion_receipts: Duration,

    pub handshake_timeout: Duration,
    pub permission_timeout: Duration,
    pub reconnect_window: Duration,
    pub reconnect_hard_limit: Duration,
    pub reconnect_retry: Duration,
    /// After an interrupt, before the process is terminated (RUL-47).
    pub stop_grace: Duration,
    pub autonomous_quiet: Duration,

    /// Durable output per conversation, in bytes; 0: no budget.
    pub output_budget: i64,
    /// Unsaved output of one connection before it is closed (RUL-43).
    pub unsaved_limit: usize,
    pub callback_key_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_provider: Provider::Sprites,
            runners_enabled: true,
            public_url: "http://127.0.0.1:4000".into(),
            checkpoint_creation: false,
            idle_timeout: Some(seconds(60 * 60)),
            max_lifetime: None,
            cap_ceiling: 20,
            fleet_ceiling: 20,
            credits: None,
            execution_limits: false,
            queue_max_depth: 10,
            queue_max_wait: seconds(60 * 60),
            queue_claim_timeout: seconds(300),
            lease_ttl: seconds(60),
            park_lease_ttl: seconds(120),
            renewal_divisor: 3,
            guard_headroom: seconds(10),
            busy_wait: seconds(5),
            busy_poll: Duration::from_millis(250),
            owner_idle_stop: seconds(60),
            wake_wait: seconds(20),
            build_wait: seconds(20),
            reset_wait: seconds(20),
            probe_timeout: seconds(10),
            provision_ceiling: seconds(30 * 60),
            pending_turn_limit: seconds(60 * 60),
            woken_grace: seconds(15 * 60),
            teardown_grace: seconds(15 * 60),
            conversation_tick: seconds(60),
            sweep_interval: seconds(5 * 60),
            adoption_interval: seconds(10),
            pass_lease_ttl: seconds(60),
            settle_interval: seconds(60),
            permission_sweep_interval: seconds(60),
            stuck_turn_interval: minutes(5),
            stuck_turn_age: minutes(30),
            stuck_turn_quiet: minutes(15),
            stuck_turn_batch: 25,
            reaper_minute: 7,
            stuck_build_age: minutes(60),
            reaper_deletes: 25,
            leftover_floor: 5,
            owner_attempts: 100,
            sweep_attempts: 100,
            listing_lifetime: minutes(10),
            delete_rest: minutes(5),
            other_rests: [minutes(1), minutes(2), minutes(5), minutes(15), minutes(60)],
            retention_at: (4, 23),
            retention_batch: 500,
            keep_log_events: days(90),
            keep_audit_events: days(365),
            keep_usage_events: days(400),
            keep_revoked_keys: days(30),
            keep_operations: days(90),
            keep_deletion_receipts: days(400),
            handshake_timeout: seconds(120),
            permission_timeout: seconds(300),
            reconnect_window: seconds(120),
            reconnect_hard_limit: seconds(600),
            reconnect_retry: seconds(1),
            stop_grace: seconds(10),
            autonomous_quiet: seconds(600),
            output_budget: 50_000_000,
            unsaved_limit: 64 * 1024 * 1024,
            callback_key_ttl: seconds(7 * 24 * 60 * 60),
        }
    }
}

impl Settings {
    /// The rests of RUL-L-55, as the store's verb takes them.
    pub fn rests(&self) -> crate::ports::store::passes::Rests {
        crate::ports::store::passes::Rests {
            deletes: self.delete_rest,
            others: self.other_rests.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in lifecycle 3.3 that keeps waits inside leases and leases inside calls.
    #[test]
    fn the_bounds_of_lifecycle_3_3_hold() {
        let s = Settings::default();
        assert!(s.busy_wait < s.wake_wait && s.wake_wait < seconds(30));
        assert!(s.wake_wait < s.lease_ttl);
        assert!(seconds(60) < s.park_lease_ttl);
        assert!(s.guard_headroom < s.lease_ttl / s.renewal_divisor);
        assert!(s.permission_timeout < s.idle_timeout.unwrap());
    }
}
