//! Deadlines of a node: every wait has a deadline. Time budget of the warm-up of connections.

use std::time::Duration;

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::rules::{ConfigSide, Findings, MAX_MS, within, within_some};

/// Maximum of the watchdog in seconds: one day.
const MAX_S: u64 = 86_400;

/// Milliseconds per step of a handshake: the default without `connect_ms`, and the maximum.
const STEP_MS: (u64, u64) = (5_000, 30_000);

/// Keys that only a frontend has.
const FRONTEND_KEYS: &[&str] = &["echo_interval_ms", "lost_ms", "name_ms", "watchdog_s"];

with_defaults! {
/// Deadlines, in milliseconds unless the key's name has another unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct Deadlines {
    /// Frontend: maximum wait for an accelerator whose name has no address yet, or that takes no
    /// connections yet; default 60000. Both nodes: limit of each step of a handshake, at most
    /// 30000; default 5000.
    #[garde(custom(within_some(1..=MAX_MS)))]
    pub connect_ms: Option<u64>,
    /// Frontend: after this time without any connection, the frontend aborts the test, and ends
    /// within the same time; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub lost_ms: u64 = 5000,
    /// Frontend: the frontend sends an echo request on a data connection that was quiet for this
    /// long; default 250. The echo checks both directions.
    #[garde(custom(within(1..=MAX_MS)))]
    pub echo_interval_ms: u64 = 250,
    /// A data connection is lost if it leaves an echo unanswered for this long, or if a TCP peer
    /// acknowledges nothing for this long; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub echo_timeout_ms: u64 = 2000,
    /// Interval between heartbeats on the control plane; default 500.
    #[garde(custom(within(1..=MAX_MS)))]
    pub heartbeat_interval_ms: u64 = 500,
    /// A peer without a heartbeat for this long is gone; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub heartbeat_timeout_ms: u64 = 2000,
    /// Frontend: limit for the answer to `name`; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub name_ms: u64 = 2000,
    /// Frontend: limit for the good-bye at the end of a run. Accelerator: limit for batches to end
    /// and connections to close after a session. Default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub drain_ms: u64 = 5000,
    /// Frontend, in seconds: the frontend aborts the test after this long with outstanding samples
    /// and no answer, token or batch, or with all samples answered and LoadGen idle; default 60.
    /// Raise it above the time of the longest batch.
    #[garde(custom(within(1..=MAX_S)))]
    pub watchdog_s: u64 = 60,
}
}

impl Deadlines {
    durations! {
        lost from_millis lost_ms;
        echo_interval from_millis echo_interval_ms;
        echo_timeout from_millis echo_timeout_ms;
        heartbeat_interval from_millis heartbeat_interval_ms;
        heartbeat_timeout from_millis heartbeat_timeout_ms;
        name from_millis name_ms;
        drain from_millis drain_ms;
    }

    /// Returns the maximum wait of a frontend for an accelerator that is not there.
    pub fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms.unwrap_or(60_000))
    }

    /// Returns the limit of each step that establishes a session or connection.
    pub fn step(&self) -> Duration {
        let (default, most) = STEP_MS;
        Duration::from_millis(self.connect_ms.unwrap_or(default).min(most))
    }

    pub(super) fn check(&self, side: ConfigSide, out: &mut Findings<'_>) {
        let mut less = |short: (&str, u64), long: (&str, u64)| {
            if short.1 >= long.1 {
                out.add(
                    format!("deadlines.{}", short.0),
                    format!(
                        "{} is {}, no shorter than {}, {}",
                        short.0, short.1, long.0, long.1
                    ),
                    format!("set {} below {}", short.0, long.0),
                );
            }
        };
        let timeout = ("heartbeat_timeout_ms", self.heartbeat_timeout_ms);
        less(
            ("heartbeat_interval_ms", self.heartbeat_interval_ms),
            timeout,
        );
        if side == ConfigSide::Accelerator {
            let document = out.document;
            for key in document.keys("deadlines") {
                if !FRONTEND_KEYS.contains(&key) {
                    continue;
                }
                out.add_key(
                    format!("deadlines.{key}"),
                    format!("an accelerator has no `{key}`"),
                    format!("remove `{key}`; it belongs into the frontend's file"),
                );
            }
            return;
        }
        less(
            ("echo_interval_ms", self.echo_interval_ms),
            ("echo_timeout_ms", self.echo_timeout_ms),
        );
        less(timeout, ("lost_ms", self.lost_ms));
        let (lost, detection) = (
            self.lost_ms,
            self.echo_interval_ms.saturating_add(self.echo_timeout_ms),
        );
        if detection >= lost {
            out.add(
                "deadlines.lost_ms",
                format!(
                    "lost_ms is {lost}, but losing a connection alone takes echo_interval_ms + \
                     echo_timeout_ms = {detection}"
                ),
                format!("set lost_ms above {detection}, or shorten the echo"),
            );
        }
        let watchdog = self.watchdog_s;
        if watchdog.saturating_mul(1000) <= lost {
            out.add(
                "deadlines.watchdog_s",
                format!("watchdog_s is {watchdog} s, no longer than lost_ms, {lost} ms"),
                "set watchdog_s above lost_ms, so that a lost peer is reported as one",
            );
        }
    }
}

with_defaults! {
/// Settings of the warm-up, which runs after LoadGen loads its samples and before LoadGen issues
/// the first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpConfig {
    /// Time budget in milliseconds. When it is spent, the warm-up sends only the mandatory sample
    /// over each connection. 0: connections begin the run cold. Default 1000.
    #[garde(custom(within(0..=MAX_MS)))]
    pub budget_ms: u64 = 1000,
    /// Deadline in milliseconds: if no connection gets an answer to a warm-up sample for this long,
    /// and no accelerator reports a token or batch, the run ends; default 10,000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub deadline_ms: u64 = 10_000,
}
}

impl WarmUpConfig {
    pub(crate) fn is_on(&self) -> bool {
        self.budget_ms > 0
    }

    durations! {
        budget from_millis budget_ms;
        deadline from_millis deadline_ms;
    }
}
