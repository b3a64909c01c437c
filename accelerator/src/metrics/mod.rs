//! `GET /metrics` of both programs: figures as OpenMetrics, or in Prometheus's older text format if
//! the reader does not accept OpenMetrics.
//!
//! A program reads [`Figures`] from its counters at each scrape; samples cost nothing more.
//! [`Figures::families`] is the one table of names, help texts and labels.

mod endpoint;

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, header};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use qdl::counters::Octaves;
use record::BatchSizes;

use crate::{
    cli::version,
    web::{Answer, respond},
};

pub use endpoint::{Endpoint, EndpointError};

/// Path of the figures.
pub const PATH: &str = "/metrics";
/// Media type of OpenMetrics, in requests and answers.
const OPENMETRICS: &str = "application/openmetrics-text";
/// Content types of OpenMetrics and of the older format.
const TYPES: [&str; 2] = [
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "text/plain; version=0.0.4; charset=utf-8",
];
/// Prefix of all names.
const PREFIX: &str = "qdl";
/// Octaves with a bound of their own: from 4 us to 9 s. Shorter times share the first bound.
const BOUNDS: std::ops::RangeInclusive<usize> = 2..=23;
/// Number of bounds of batch sizes: the powers of 2 from 1 to 65,536.
const SIZES: u32 = 17;

/// Values by the word of their label.
pub type ByLabel<T> = BTreeMap<&'static str, T>;

/// Figures of one program, read from its counters. Counts only grow. An empty figure is left out.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Name of the program.
    pub program: &'static str,
    /// Name of the node.
    pub node: String,
    /// Name of the engine; on a frontend, of all engines.
    pub engine: String,
    /// Samples answered.
    pub samples: u64,
    /// Tokens of all answers, if the engine counts tokens.
    pub tokens: Option<u64>,
    /// Samples in flight.
    pub in_flight: u64,
    /// Batches by size.
    pub batches: Option<BatchSizes>,
    /// Seconds that all workers spent in batches.
    pub busy_s: Option<f64>,
    /// Failures by kind.
    pub failures: ByLabel<u64>,
    /// Connections by state.
    pub connections: ByLabel<u64>,
    /// Payload bytes of answered samples by direction.
    pub bytes: ByLabel<u64>,
    /// Times of samples by stage.
    pub stages: Vec<(&'static str, Octaves)>,
}

/// A value at one scrape.
#[derive(Debug)]
enum Value {
    /// Labels.
    Info(Vec<(&'static str, String)>),
    Counter(f64),
    Gauge(u64),
    /// Upper bound and count of each bucket, and the sum of all values.
    Histogram(Vec<(f64, u64)>, f64),
}

/// Row of the table: name without prefix and suffix, unit, label or `""`, help text, and the value
/// of each word of the label.
type Family = (
    &'static str,
    Option<Unit>,
    &'static str,
    &'static str,
    Vec<(&'static str, Value)>,
);

/// Sums the octaves outside of [`BOUNDS`] into the first bucket and the last.
fn times(octaves: &Octaves) -> Value {
    let bound = |i| (Octaves::end_ns(i) as f64 / 1e9, 0);
    let mut buckets: Vec<_> = BOUNDS.map(bound).chain([(f64::INFINITY, 0)]).collect();
    for (i, n) in octaves.counts.iter().enumerate() {
        let at = i.saturating_sub(*BOUNDS.start()).min(buckets.len() - 1);
        buckets[at].1 += n;
    }
    Value::Histogram(buckets, octaves.sum_ns as f64 / 1e9)
}

fn sizes(batches: &BatchSizes) -> Value {
    let bounds = (0..SIZES).map(|i| f64::from(1 << i));
    let mut buckets: Vec<_> = bounds.chain([f64::INFINITY]).map(|b| (b, 0)).collect();
    for (size, n) in batches.iter() {
        let at = size.max(1).next_power_of_two().ilog2() as usize;
        buckets[at.min(SIZES as usize)].1 += n;
    }
    Value::Histogram(buckets, batches.samples() as f64)
}

impl Figures {
    fn families(&self) -> Vec<Family> {
        let count = |n: Option<u64>| {
            n.map(|n| ("", Value::Counter(n as f64)))
                .into_iter()
                .collect()
        };
        let counts = |all: &ByLabel<u64>| {
            let all = all.iter();
            all.map(|(word, n)| (*word, Value::Counter(*n as f64)))
                .collect()
        };
        let node = vec![
            ("node", self.node.clone()),
            ("program", self.program.to_owned()),
            ("engine", self.engine.clone()),
            ("version", version().to_owned()),
        ];
        let gauges = self
            .connections
            .iter()
            .map(|(word, n)| (*word, Value::Gauge(*n)));
        let batches = self.batches.iter().map(|b| ("", sizes(b)));
        let busy = self.busy_s.iter().map(|s| ("", Value::Counter(*s)));
        let stages = self
            .stages
            .iter()
            .map(|(word, octaves)| (*word, times(octaves)));
        vec![
            ("node", None, "", "The node.", vec![("", Value::Info(node))]),
            (
                "samples",
                None,
                "",
                "Samples answered.",
                count(Some(self.samples)),
            ),
            (
                "tokens",
                None,
                "",
                "Tokens of all answers.",
                count(self.tokens),
            ),
            (
                "in_flight_samples",
                None,
                "",
                "Samples issued or arrived, and not answered.",
                vec![("", Value::Gauge(self.in_flight))],
            ),
            (
                "batch_samples",
                None,
                "",
                "Batches by their number of samples.",
                batches.collect(),
            ),
            (
                "engine_busy",
                Some(Unit::Seconds),
                "",
                "Time in batches, summed over the workers.",
                busy.collect(),
            ),
            (
                "stage",
                Some(Unit::Seconds),
                "stage",
                "Times of samples by stage of the summary.",
                stages.collect(),
            ),
            (
                "payload",
                Some(Unit::Bytes),
                "direction",
                "Payload of the answered samples.",
                counts(&self.bytes),
            ),
            (
                "failures",
                None,
                "kind",
                "Refusals, repeated dispatches, losses and undelivered answers.",
                counts(&self.failures),
            ),
            (
                "connections",
                None,
                "state",
                "Data connections.",
                gauges.collect(),
            ),
        ]
    }

    /// Returns the figures as text, in OpenMetrics or in the older format.
    fn text(self, openmetrics: bool) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a `String` succeeds.
        let _ = match openmetrics {
            true => text::encode(&mut text, &registry),
            false => prometheus_text::encode(&mut text, &registry),
        };
        text
    }
}

/// Returns the figures in the format that the request accepts.
pub fn answer<B>(request: &Request<B>, figures: Figures) -> Answer {
    let accepted = request.headers().get(header::ACCEPT);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    let openmetrics = accepted.is_some_and(|types| types.contains(OPENMETRICS));
    let body = Full::new(Bytes::from(figures.text(openmetrics)));
    respond(StatusCode::OK, TYPES[usize::from(!openmetrics)], body)
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, unit, label, help, values) in self.families() {
            let kind = match values.first() {
                None => continue,
                Some((_, Value::Info(_))) => MetricType::Info,
                Some((_, Value::Counter(_))) => MetricType::Counter,
                Some((_, Value::Gauge(_))) => MetricType::Gauge,
                Some((_, Value::Histogram(..))) => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (word, value) in &values {
                let labels = &[(label, *word)][usize::from(label.is_empty())..];
                value.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, mut metric: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Value::Info(labels) => metric.encode_info(labels),
            Value::Counter(n) => metric.encode_counter::<NoLabelSet, f64, f64>(n, None),
            Value::Gauge(n) => metric.encode_gauge(n),
            Value::Histogram(buckets, sum) => {
                let count = buckets.iter().map(|(_, n)| n).sum();
                metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
