//! Runs as rows for other programs: CSV, and JSON lines.
//!
//! A row is a second, or a tick of the timeline if that is longer. Times begin at the first query.

use std::{collections::BTreeMap, path::Path};

use record::{
    FileError, RunFolder, TIMELINE,
    timeline::{ConnectionTick, SlowSample, Tick, Timeline},
};
use serde_json::{Map, Value, json};

use crate::latency::Latencies;

/// Names and values of a row, in order.
type Row = Vec<(String, Value)>;

/// Ticks that form a row: as many as fit into a second, at least one.
fn each(timeline: &Timeline) -> usize {
    let each = 1_000 / timeline.tick_ms.max(1);
    usize::try_from(each).map_or(1, |n| n.max(1))
}

/// The accelerators, with the indexes of their connections; empty if the timeline does not have
/// every connection.
fn accelerators(run: &RunFolder, timeline: &Timeline) -> BTreeMap<String, Vec<usize>> {
    let connections = &run.summary.run.system.connections;
    let kept = timeline.ticks.first().map_or(0, |t| t.connections.len());
    let mut all: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, c) in connections.iter().enumerate() {
        let node = c
            .name
            .rsplit_once('/')
            .map_or(&c.name[..], |(node, _)| node);
        all.entry(node.to_owned()).or_default().push(i);
    }
    all.retain(|_, _| kept == connections.len());
    all
}

fn seconds(run: &RunFolder, timeline: &Timeline) -> Vec<Row> {
    let accelerators = accelerators(run, timeline);
    let tokens = run.summary.run.tokens.is_some();
    let each = each(timeline);
    let rows = timeline.ticks.chunks(each).enumerate();
    rows.map(|(i, ticks)| {
        let mut latencies = Latencies::default();
        ticks.iter().for_each(|t| latencies.add(&t.latency));
        let rounded = |us: f64| (us * 1000.0).round() / 1000.0;
        let us = |q| latencies.quantile_us(q).map(rounded);
        // Milliseconds are whole, so that binary fractions do not show.
        let ms = |ticks: usize| (ticks as u64 * timeline.tick_ms) as f64 / 1000.0;
        let sum = |of: fn(&Tick) -> u64| ticks.iter().map(of).sum::<u64>();
        let mut row: Row = Vec::new();
        let mut put = |name: &str, value: Value| row.push((name.to_owned(), value));
        put("run", json!(run.name));
        put("time_s", json!(ms(i * each)));
        put("length_s", json!(ms(ticks.len())));
        put("issued_samples", json!(sum(|t| t.issued)));
        put("completed_samples", json!(sum(|t| t.completed)));
        let in_flight = ticks.last().map(|t| t.in_flight);
        put("in_flight_samples", json!(in_flight));
        if tokens {
            put("completed_tokens", json!(sum(|t| t.tokens)));
        }
        for (name, q) in [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99)] {
            put(name, json!(us(q)));
        }
        for (node, connections) in &accelerators {
            let own = |t: &'_ Tick| -> Vec<ConnectionTick> {
                connections
                    .iter()
                    .filter_map(|i| t.connections.get(*i))
                    .copied()
                    .collect()
            };
            let own: Vec<ConnectionTick> = ticks.iter().flat_map(own).collect();
            let sum = |of: fn(&ConnectionTick) -> u64| own.iter().map(of).sum::<u64>();
            put(&format!("{node}_samples"), json!(sum(|c| c.samples)));
            put(&format!("{node}_bytes_out"), json!(sum(|c| c.bytes_out)));
            put(&format!("{node}_bytes_in"), json!(sum(|c| c.bytes_in)));
        }
        row
    })
    .collect()
}

/// The slowest samples, which the timeline keeps, with their stages.
fn samples(run: &RunFolder, timeline: &Timeline) -> Vec<Row> {
    let connections = &run.summary.run.system.connections;
    let row = |sample: &SlowSample| {
        let fields = serde_json::to_value(sample).unwrap_or_default();
        let mut fields = fields.as_object().map_or_else(Map::new, Map::clone);
        let connection = connections.get(sample.connection as usize);
        fields.insert("connection".to_owned(), json!(connection.map(|c| &c.name)));
        let run = ("run".to_owned(), json!(run.name));
        [run].into_iter().chain(fields).collect()
    };
    timeline.slowest.iter().map(row).collect()
}

/// The timelines of the runs.
fn timelines(runs: &[RunFolder]) -> Result<Vec<(&RunFolder, &Timeline)>, FileError> {
    let one = |run| {
        let RunFolder { name, timeline, .. }: &RunFolder = run;
        let why = "the run kept nothing over time; name a run that has this file";
        let missing = || FileError::content(&Path::new(name).join(TIMELINE))(why);
        Ok((run, timeline.as_ref().ok_or_else(missing)?))
    };
    runs.iter().map(one).collect()
}

/// A field of CSV (RFC 4180).
fn field(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// A row for each second of each run, under one heading; a run without a column leaves it empty.
///
/// # Errors
/// A run has no timeline.
pub fn csv(runs: &[RunFolder]) -> Result<String, FileError> {
    let timelines = timelines(runs)?.into_iter();
    let rows: Vec<Row> = timelines.flat_map(|(run, t)| seconds(run, t)).collect();
    let mut heading: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !heading.contains(&name.as_str()) {
            heading.push(name);
        }
    }
    let line = |fields: Vec<String>| fields.join(",") + "\r\n";
    let mut text = line(heading.iter().map(|name| field(&json!(name))).collect());
    for row in &rows {
        let value = |name: &&str| row.iter().find(|(own, _)| own == name);
        let value = |name: &&str| value(name).map_or_else(String::new, |(_, v)| field(v));
        text += &line(heading.iter().map(value).collect());
    }
    Ok(text)
}

/// A line for each second of each run (`"kind": "second"`), then one for each kept sample.
///
/// # Errors
/// A run has no timeline.
pub fn json_lines(runs: &[RunFolder]) -> Result<String, FileError> {
    let timelines = timelines(runs)?;
    let kinds: [(&str, fn(&RunFolder, &Timeline) -> Vec<Row>); 2] =
        [("second", seconds), ("sample", samples)];
    let mut text = String::new();
    for (kind, rows) in kinds {
        for row in timelines.iter().flat_map(|(run, t)| rows(run, t)) {
            let kind = ("kind".to_owned(), json!(kind));
            let fields = [kind].into_iter().chain(row);
            let fields = fields.map(|(name, value)| format!("{}:{value}", json!(name)));
            text += &format!("{{{}}}\n", fields.collect::<Vec<_>>().join(","));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_quoted_as_in_rfc_4180() {
        let fields = [
            (json!("plain"), "plain"),
            (json!("a, b"), "\"a, b\""),
            (json!("say \"x\""), "\"say \"\"x\"\"\""),
            (json!("two\r\nlines"), "\"two\r\nlines\""),
            (json!(1.5), "1.5"),
            (Value::Null, ""),
        ];
        for (value, expected) in fields {
            assert_eq!(field(&value), expected);
        }
    }
}
