//! Every number that the domain waits, counts or bounds with (lifecycle 9.2, 9.4, 9.8).
//!
//! The defaults are the product's; tests change single fields. `src/config.rs` fills what the environment may set.

use std::time::Duration;

use crate::domain::machine::Provider;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
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
