//! A discrete-event model of one frontend, D accelerators and the K rails between them, which
//! drives the very `Arbiter` and `RailArbiter` a frontend runs, with a clock of its own.
//!
//! ```text
//! LoadGen -> arbiter -> NIC x out -> one of E links -> NIC (d, x) in -> interior of d -> engine
//! (Poisson)    ^         rate C      rate C/E each      rate C          where the rail is   |
//!              |                     chosen by the                      not the GPU's own   |
//!              |                     flow's hash                                            |
//!              +--------------------- response: a fixed delay <-----------------------------+
//! ```
//!
//! Each box is a queue served in order of arrival, and a sample is stored in one before it goes to
//! the next. Between the two ends of a rail there are E equal links, together as fast as a NIC;
//! each flow (queue pair) keeps to the one its hash names, whatever the load, as ECMP does. With
//! few flows some links get several and others none: that is what many queue pairs to a rail are
//! for. A congested rail's links have a fraction of their rate left from a given moment on.
//!
//! What the model leaves out: packets, losses, and the engines' batches (their time is the same on
//! every rail and is not counted as network time).

mod fabric;
mod report;
mod run;

use qdl::rails::{Policy, RailPolicy};
use serde::Serialize;

use run::run;

pub use report::{Report, congestion_table, entropy_table};

/// Who chooses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SimPolicy {
    /// The arbiter over all connections.
    Plain(Policy),
    /// The arbiter of rails.
    Rails(RailPolicy),
}

impl SimPolicy {
    /// As the tables call it.
    pub fn name(self) -> &'static str {
        match self {
            SimPolicy::Plain(Policy::RoundRobin) => "round_robin",
            SimPolicy::Plain(_) => "least_outstanding",
            SimPolicy::Rails(RailPolicy::Best) => "best",
            SimPolicy::Rails(RailPolicy::HealthBestFit) => "health_best_fit",
            SimPolicy::Rails(RailPolicy::HealthSpray {
                above_only: false, ..
            }) => "health_spray",
            SimPolicy::Rails(RailPolicy::HealthSpray { .. }) => "health_spray, above only",
        }
    }
}

/// One run of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// K.
    pub rails: usize,
    /// D.
    pub nodes: usize,
    /// GPUs in each node; the rails are shared out among them in order.
    pub gpus: usize,
    /// Bytes of a sample.
    pub len: u32,
    /// Rate of a NIC, in bytes per microsecond.
    pub nic_rate: u64,
    /// Samples arrive at this part of what all NICs can carry.
    pub load: f64,
    /// Flows (queue pairs) between the two ends of a rail.
    pub flows: usize,
    /// Links they are hashed onto.
    pub links: usize,
    /// Samples in flight on one rail to one node.
    pub slots: usize,
    /// Rails `0, 1, ..` of which the links are congested.
    pub congested: usize,
    /// What is left of a congested link's rate.
    pub left: f64,
    /// Leaves the congested rails out from the beginning: the yardstick.
    pub without_congested: bool,
    /// When congestion sets in, in microseconds.
    pub congested_us: u64,
    /// How long samples arrive, in microseconds. Latencies count from the half of it on.
    pub duration_us: u64,
    /// Who chooses.
    pub policy: SimPolicy,
    /// Seed of arrivals and hashes.
    pub seed: u64,
}

impl Scenario {
    /// K rails at 10 Gbit/s to four nodes, ImageNet's sample size, 60 % load, 16 flows to a rail,
    /// nothing congested; as long as it takes to see a few hundred thousand samples.
    pub fn new(rails: usize, policy: SimPolicy) -> Self {
        let duration_us = match rails {
            0..32 => 8_000_000,
            32..128 => 1_600_000,
            _ => 800_000,
        };
        Scenario {
            rails,
            nodes: 4,
            gpus: rails.clamp(1, 8),
            len: 150_528,
            nic_rate: 1250,
            load: 0.6,
            flows: 16,
            links: 4,
            slots: 64,
            congested: 0,
            left: 0.1,
            without_congested: false,
            congested_us: duration_us / 4,
            duration_us,
            policy,
            seed: 1,
        }
    }

    /// 5 % of the rails congested, at least one.
    #[must_use]
    pub fn with_congestion(mut self) -> Self {
        self.congested = (self.rails * 5).div_ceil(100);
        self
    }
}

/// What came of a run. Latencies are in microseconds, from a sample's arrival to its response, over
/// the samples that arrived in the second half.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Samples that arrived in the second half.
    pub samples: u64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Mean utilisation of the healthy rails' NICs in the second half.
    pub healthy_utilisation: f64,
    /// Utilisation of the busiest NIC.
    pub highest_utilisation: f64,
    /// Part of the samples of the second half that went by a congested rail.
    pub congested_share: f64,
    /// Part of them that crossed a node's interior.
    pub crossed_share: f64,
    /// Most samples that waited for a connection.
    pub backlog_max: usize,
    /// Rails that were taken out of service, and put back, as often as it happened.
    pub changes: u64,
}
