//! `GET /metrics` of both programs: figures as OpenMetrics, or in Prometheus's older text format if
//! the reader does not accept OpenMetrics.
//!
//! A program reads its counters into [`Figures`] at each scrape; samples cost nothing more.

mod endpoint;

use std::fmt;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, header};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text},
    metrics::MetricType::{self, Counter, Gauge, Histogram, Info},
    registry::Registry,
};
use qdl::counters::Octaves;
use record::BatchSizes;

use crate::{
    cli::version,
    web::{Answer, respond},
};

pub use endpoint::Endpoint;

/// Path of the figures.
pub const PATH: &str = "/metrics";
const OPENMETRICS: &str = "application/openmetrics-text";
/// Longest time with a bucket of its own: 9 s.
const LONGEST_NS: u64 = 1 << 33;
/// Number of bounds of batch sizes: the powers of 2 from 1 to 65,536.
const SIZES: u32 = 17;

/// Figures with one name.
#[allow(missing_docs, reason = "the table has the help texts")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Node,
    Samples,
    InFlight,
    Tokens,
    Batches,
    Busy,
    Stages,
    Payload,
    Failures,
    Connections,
}

/// Type, name, label or `""`, and help text of each family.
#[rustfmt::skip]
const TABLE: [(Family, MetricType, &str, &str, &str); 10] = [
    (Family::Node, Info, "node", "", "The node."),
    (Family::Samples, Counter, "samples", "", "Samples answered."),
    (Family::InFlight, Gauge, "in_flight_samples", "", "Samples without an answer so far."),
    (Family::Tokens, Counter, "tokens", "", "Tokens of all answers."),
    (Family::Batches, Histogram, "batch_samples", "", "Batches by number of samples."),
    (Family::Busy, Counter, "engine_busy_seconds", "", "Time in batches, over all workers."),
    (Family::Stages, Histogram, "stage_seconds", "stage", "Times of samples by stage."),
    (Family::Payload, Counter, "payload_bytes", "direction", "Payload of answered samples."),
    (Family::Failures, Counter, "failures", "kind", "Refusals, losses, repeated dispatches."),
    (Family::Connections, Gauge, "connections", "state", "Data connections."),
];

#[derive(Debug)]
enum Value {
    Info(Vec<(&'static str, String)>),
    Number(f64),
    /// Upper bound and count of each bucket, and the sum of all values.
    Buckets(Vec<(f64, u64)>, f64),
}

/// Figures of a program at one scrape: each with the word of its family's label.
#[derive(Debug)]
pub struct Figures(Vec<(Family, &'static str, Value)>);

impl Figures {
    /// Begins the figures of a program on this node; on a frontend, `engine` names all engines.
    pub fn new(program: &str, node: &str, engine: &str) -> Self {
        let labels = [("node", node), ("program", program), ("engine", engine)];
        let labels = labels.into_iter().chain([("version", version())]);
        let labels = labels.map(|(label, value)| (label, value.to_owned()));
        Figures(vec![(Family::Node, "", Value::Info(labels.collect()))])
    }

    /// Adds a counter or a gauge of a family without a label.
    pub fn add(&mut self, family: Family, number: f64) {
        self.0.push((family, "", Value::Number(number)));
    }

    /// Adds counters or gauges by the word of the family's label.
    pub fn add_each<const N: usize>(&mut self, family: Family, numbers: [(&'static str, u64); N]) {
        let number = |(word, n)| (family, word, Value::Number(n as f64));
        self.0.extend(numbers.map(number));
    }

    /// Adds the batches by size.
    pub fn add_batches(&mut self, batches: &BatchSizes) {
        let bounds = (0..SIZES).map(|i| f64::from(1 << i));
        let mut buckets: Vec<_> = bounds.chain([f64::INFINITY]).map(|b| (b, 0)).collect();
        for (size, n) in batches.iter() {
            let at = size.max(1).next_power_of_two().ilog2();
            buckets[at.min(SIZES) as usize].1 += n;
        }
        let value = Value::Buckets(buckets, batches.samples() as f64);
        self.0.push((Family::Batches, "", value));
    }

    /// Adds the times of a stage.
    pub fn add_times(&mut self, stage: &'static str, times: &Octaves) {
        let (short, long): (Vec<_>, Vec<_>) =
            times.counts().partition(|(bound, _)| *bound <= LONGEST_NS);
        let short = short.into_iter().map(|(bound, n)| (bound as f64 / 1e9, n));
        let long = (f64::INFINITY, long.iter().map(|(_, n)| n).sum());
        let value = Value::Buckets(short.chain([long]).collect(), times.sum_ns() as f64 / 1e9);
        self.0.push((Family::Stages, stage, value));
    }

    /// Returns the figures as text, in OpenMetrics or in the older format.
    fn text(self, openmetrics: bool) -> String {
        let mut registry = Registry::with_prefix("qdl");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a `String` succeeds.
        let _ = match openmetrics {
            true => text::encode(&mut text, &registry),
            false => prometheus_text::encode(&mut text, &registry),
        };
        text
    }

    /// Returns the figures in the format that the request accepts.
    pub fn answer<B>(self, request: &Request<B>) -> Answer {
        let accepted = request.headers().get(header::ACCEPT);
        let accepted = accepted.and_then(|value| value.to_str().ok());
        let openmetrics = accepted.is_some_and(|types| types.contains(OPENMETRICS));
        let kind = match openmetrics {
            true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            false => "text/plain; version=0.0.4; charset=utf-8",
        };
        let body = Full::new(Bytes::from(self.text(openmetrics)));
        respond(StatusCode::OK, kind, body)
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (family, kind, name, label, help) in TABLE {
            let mut values = self.0.iter().filter(|(of, ..)| *of == family).peekable();
            if values.peek().is_none() {
                continue;
            }
            let mut all = encoder.encode_descriptor(name, help, None, kind)?;
            for (_, word, value) in values {
                let labels = &[(label, *word)][usize::from(label.is_empty())..];
                let mut metric = all.encode_family(&labels)?;
                match value {
                    Value::Info(labels) => metric.encode_info(labels),
                    Value::Number(n) if kind == Gauge => metric.encode_gauge(n),
                    Value::Number(n) => metric.encode_counter::<NoLabelSet, f64, f64>(n, None),
                    Value::Buckets(buckets, sum) => {
                        let count = buckets.iter().map(|(_, n)| n).sum();
                        metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
                    }
                }?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names in a text that begin with the prefix.
    fn names(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        words.filter(|w| w.starts_with("qdl_")).collect()
    }

    #[test]
    fn the_dashboard_and_the_page_name_each_family_and_no_other() {
        let mut all = Figures::new("accelerator", "a", "x \"y\"");
        for (family, kind, ..) in TABLE {
            if matches!(kind, Counter | Gauge) {
                all.add_each(family, [("up", (1 << 53) - 1)]);
            }
        }
        all.add_batches(&BatchSizes::from_counts(&[0, 5, 0, 2, 1]));
        all.add_times("total", &Octaves::default());
        let text = all.text(true);
        for line in [
            "engine=\"x \\\"y\\\"\"",
            "qdl_samples_total 9007199254740991",
            "qdl_batch_samples_sum 15.0\nqdl_batch_samples_count 8\n",
            "qdl_batch_samples_bucket{le=\"2.0\"} 5\nqdl_batch_samples_bucket{le=\"4.0\"} 8\n",
            "# TYPE qdl_stage_seconds histogram\n",
            "qdl_stage_seconds_bucket{le=\"8.589934592\",stage=\"total\"} 0\n",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
        let samples: Vec<_> = text.lines().filter(|l| !l.starts_with('#')).collect();
        let samples = samples.join("\n");
        let read = |file: &str| {
            let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
        };
        let (page, dashboard) = (read("docs/report.md"), read("configs/grafana.json"));
        serde_json::from_str::<serde_json::Value>(&dashboard).expect("JSON");
        let families = TABLE.map(|(_, _, name, ..)| format!("qdl_{name}"));
        for (named, alone) in [(names(&page), true), (names(&dashboard), false)] {
            // A query needs a sample of a histogram, not the family's name alone.
            let known = |name: &&&str| {
                names(&samples).contains(**name) || alone && families.iter().any(|f| f == **name)
            };
            let unknown: Vec<_> = named.iter().filter(|name| !known(name)).collect();
            assert!(unknown.is_empty(), "no such family: {unknown:?}");
            let is_named = |f: &&String| named.iter().any(|name| name.starts_with(f.as_str()));
            let missing: Vec<_> = families.iter().filter(|f| !is_named(f)).collect();
            assert!(missing.is_empty(), "not named: {missing:?}");
        }
    }
}
