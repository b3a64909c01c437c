//! How long a node waits for what. Nothing waits for ever.

use std::time::Duration;

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::rules::{Findings, within};

/// Default of [`Deadlines::connect_ms`].
pub const DEFAULT_CONNECT_MS: u64 = 5000;
/// Default of [`Deadlines::lost_ms`].
pub const DEFAULT_LOST_MS: u64 = 5000;
/// Default of [`Deadlines::echo_interval_ms`].
pub const DEFAULT_ECHO_INTERVAL_MS: u64 = 250;
/// Default of [`Deadlines::echo_timeout_ms`].
pub const DEFAULT_ECHO_TIMEOUT_MS: u64 = 2000;
/// Default of [`Deadlines::heartbeat_interval_ms`].
pub const DEFAULT_HEARTBEAT_INTERVAL_MS: u64 = 500;
/// Default of [`Deadlines::heartbeat_timeout_ms`].
pub const DEFAULT_HEARTBEAT_TIMEOUT_MS: u64 = 2000;
/// Default of [`Deadlines::name_ms`].
pub const DEFAULT_NAME_MS: u64 = 2000;
/// Default of [`Deadlines::drain_ms`].
pub const DEFAULT_DRAIN_MS: u64 = 5000;
/// Default of [`Deadlines::watchdog_s`].
pub const DEFAULT_WATCHDOG_S: u64 = 60;

/// Longest deadline in milliseconds: one hour.
const MAX_MS: u64 = 3_600_000;
/// Longest watchdog in seconds: one day.
const MAX_S: u64 = 86_400;

/// Deadlines of a frontend, in milliseconds unless the name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct Deadlines {
    /// From the first attempt to reach an accelerator until it is ready; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub connect_ms: u64,
    /// With no connection left for so long, the test is aborted; default 5000. The frontend ends within it.
    #[garde(custom(within(1..=MAX_MS)))]
    pub lost_ms: u64,
    /// A data connection that was quiet for so long is asked for an echo; default 250.
    #[garde(custom(within(1..=MAX_MS)))]
    pub echo_interval_ms: u64,
    /// One that leaves an echo unanswered for so long is lost; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub echo_timeout_ms: u64,
    /// Time between heartbeats on the control plane; default 500.
    #[garde(custom(within(1..=MAX_MS)))]
    pub heartbeat_interval_ms: u64,
    /// A peer whose heartbeat stays out for so long is gone; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub heartbeat_timeout_ms: u64,
    /// For the answer to `name`; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub name_ms: u64,
    /// For the good-bye at the end of a run; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub drain_ms: u64,
    /// Seconds: with samples outstanding and not one coming back for so long, the test is aborted; default 60.
    #[garde(custom(within(1..=MAX_S)))]
    pub watchdog_s: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            connect_ms: DEFAULT_CONNECT_MS,
            lost_ms: DEFAULT_LOST_MS,
            echo_interval_ms: DEFAULT_ECHO_INTERVAL_MS,
            echo_timeout_ms: DEFAULT_ECHO_TIMEOUT_MS,
            heartbeat_interval_ms: DEFAULT_HEARTBEAT_INTERVAL_MS,
            heartbeat_timeout_ms: DEFAULT_HEARTBEAT_TIMEOUT_MS,
            name_ms: DEFAULT_NAME_MS,
            drain_ms: DEFAULT_DRAIN_MS,
            watchdog_s: DEFAULT_WATCHDOG_S,
        }
    }
}

impl Deadlines {
    /// [`Self::connect_ms`].
    pub fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    /// [`Self::lost_ms`].
    pub fn lost(&self) -> Duration {
        Duration::from_millis(self.lost_ms)
    }

    /// [`Self::name_ms`].
    pub fn name(&self) -> Duration {
        Duration::from_millis(self.name_ms)
    }

    /// [`Self::drain_ms`].
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    /// [`Self::watchdog_s`].
    pub fn watchdog(&self) -> Duration {
        Duration::from_secs(self.watchdog_s)
    }

    /// [`Self::heartbeat_interval_ms`].
    pub fn heartbeat_interval(&self) -> Duration {
        Duration::from_millis(self.heartbeat_interval_ms)
    }

    /// [`Self::heartbeat_timeout_ms`].
    pub fn heartbeat_timeout(&self) -> Duration {
        Duration::from_millis(self.heartbeat_timeout_ms)
    }

    /// [`Self::echo_interval_ms`].
    pub fn echo_interval(&self) -> Duration {
        Duration::from_millis(self.echo_interval_ms)
    }

    /// [`Self::echo_timeout_ms`].
    pub fn echo_timeout(&self) -> Duration {
        Duration::from_millis(self.echo_timeout_ms)
    }

    pub(super) fn relations(&self, out: &mut Findings) {
        less(
            out,
            ("echo_interval_ms", self.echo_interval_ms),
            ("echo_timeout_ms", self.echo_timeout_ms),
        );
        less(
            out,
            ("heartbeat_interval_ms", self.heartbeat_interval_ms),
            ("heartbeat_timeout_ms", self.heartbeat_timeout_ms),
        );
        let detection = self.echo_interval_ms.saturating_add(self.echo_timeout_ms);
        if detection >= self.lost_ms {
            out.add(
                "deadlines.lost_ms",
                format!(
                    "lost_ms is {}, but losing a connection alone takes echo_interval_ms + \
                     echo_timeout_ms = {detection}",
                    self.lost_ms
                ),
                format!("set lost_ms above {detection}, or shorten the echo"),
            );
        }
        less(
            out,
            ("heartbeat_timeout_ms", self.heartbeat_timeout_ms),
            ("lost_ms", self.lost_ms),
        );
        if self.watchdog_s.saturating_mul(1000) <= self.lost_ms {
            out.add(
                "deadlines.watchdog_s",
                format!(
                    "watchdog_s is {} s, no longer than lost_ms, {} ms",
                    self.watchdog_s, self.lost_ms
                ),
                "set watchdog_s above lost_ms, so that a lost peer is reported as one",
            );
        }
    }
}

/// Deadlines of an accelerator, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct AcceleratorDeadlines {
    /// From an accepted control connection until the frontend is ready, and for a data connection to name
    /// its session; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub connect_ms: u64,
    /// A data connection that was quiet for so long is asked for an echo; default 250.
    #[garde(custom(within(1..=MAX_MS)))]
    pub echo_interval_ms: u64,
    /// One that leaves an echo unanswered for so long is lost; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub echo_timeout_ms: u64,
    /// Time between heartbeats on the control plane; default 500.
    #[garde(custom(within(1..=MAX_MS)))]
    pub heartbeat_interval_ms: u64,
    /// A frontend whose heartbeat stays out for so long is gone; default 2000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub heartbeat_timeout_ms: u64,
    /// For batches to end and connections to close after a session; default 5000.
    #[garde(custom(within(1..=MAX_MS)))]
    pub drain_ms: u64,
}

impl Default for AcceleratorDeadlines {
    fn default() -> Self {
        AcceleratorDeadlines {
            connect_ms: DEFAULT_CONNECT_MS,
            echo_interval_ms: DEFAULT_ECHO_INTERVAL_MS,
            echo_timeout_ms: DEFAULT_ECHO_TIMEOUT_MS,
            heartbeat_interval_ms: DEFAULT_HEARTBEAT_INTERVAL_MS,
            heartbeat_timeout_ms: DEFAULT_HEARTBEAT_TIMEOUT_MS,
            drain_ms: DEFAULT_DRAIN_MS,
        }
    }
}

impl AcceleratorDeadlines {
    /// [`Self::connect_ms`].
    pub fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    /// [`Self::drain_ms`].
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    /// [`Self::heartbeat_interval_ms`].
    pub fn heartbeat_interval(&self) -> Duration {
        Duration::from_millis(self.heartbeat_interval_ms)
    }

    /// [`Self::heartbeat_timeout_ms`].
    pub fn heartbeat_timeout(&self) -> Duration {
        Duration::from_millis(self.heartbeat_timeout_ms)
    }

    /// [`Self::echo_interval_ms`].
    pub fn echo_interval(&self) -> Duration {
        Duration::from_millis(self.echo_interval_ms)
    }

    /// [`Self::echo_timeout_ms`].
    pub fn echo_timeout(&self) -> Duration {
        Duration::from_millis(self.echo_timeout_ms)
    }

    pub(super) fn relations(&self, out: &mut Findings) {
        less(
            out,
            ("echo_interval_ms", self.echo_interval_ms),
            ("echo_timeout_ms", self.echo_timeout_ms),
        );
        less(
            out,
            ("heartbeat_interval_ms", self.heartbeat_interval_ms),
            ("heartbeat_timeout_ms", self.heartbeat_timeout_ms),
        );
    }
}

fn less(out: &mut Findings, short: (&str, u64), long: (&str, u64)) {
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
}
