//! Runs as rows for other programs: CSV, and JSON lines.
//!
//! A row is a second, or a tick of the timeline if that is longer. Times begin at the first query.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use record::{
    FileError, RunFolder, TIMELINE,
    timeline::{SlowSample, Tick, Timeline},
};
use serde_json::{Map, Value, json};

use crate::latency::Latencies;

/// The first columns. Those of single accelerators follow, by name.
const COLUMNS: [&str; 12] = [
    "run",
    "time_s",
    "length_s",
    "issued_samples",
    "completed_samples",
    "in_flight_samples",
    "completed_tokens",
    "tokens_per_event_mean",
    "tokens_per_event_p99",
    "p50_us",
    "p90_us",
    "p99_us",
];

/// Fields of JSON by name, or of CSV by column.
type Row = Map<String, Value>;

/// A row of adjacent ticks, the first of index `at`.
fn second(run: &RunFolder, tick_ms: u64, at: usize, ticks: &[Tick]) -> Row {
    let mut latencies = Latencies::default();
    ticks.iter().for_each(|t| latencies.add(&t.latency));
    let us = |q| Some((latencies.quantile_us(q)? * 1000.0).round() / 1000.0);
    // Milliseconds are whole, so that binary fractions do not show.
    let seconds = |ticks: usize| (ticks as u64 * tick_ms) as f64 / 1000.0;
    let sum = |of: fn(&Tick) -> u64| ticks.iter().map(of).sum::<u64>();
    let r = &run.summary.run;
    // Of the whole run: the accelerators count events without their times.
    let events = r.tokens.as_ref().and_then(|t| t.events);
    let values = json!([
        run.name,
        seconds(at),
        seconds(ticks.len()),
        sum(|t| t.issued),
        sum(|t| t.completed),
        ticks.last().map(|t| t.in_flight),
        r.tokens.as_ref().map(|_| sum(|t| t.tokens)),
        events.map(|row| row.mean),
        events.map(|row| row.p99),
        us(0.5),
        us(0.9),
        us(0.99),
    ]);
    let names = COLUMNS.map(str::to_owned).into_iter();
    let mut row: Row = names
        .zip(values.as_array().cloned().unwrap_or_default())
        .collect();
    row.retain(|_, value| !value.is_null());
    let mut each: BTreeMap<String, u64> = BTreeMap::new();
    let connections = &r.system.connections;
    // A timeline has at most 64 connections: part of an accelerator's is no figure.
    let has_all = ticks
        .iter()
        .all(|t| t.connections.len() == connections.len());
    for (i, c) in connections.iter().enumerate().filter(|_| has_all) {
        let node = c.name.split('/').next().unwrap_or_default();
        let sum = each.entry(format!("{node}_samples")).or_default();
        *sum += ticks.iter().map(|t| t.connections[i].samples).sum::<u64>();
    }
    row.extend(each.into_iter().map(|(name, n)| (name, json!(n))));
    row
}

fn seconds(run: &RunFolder, timeline: &Timeline) -> Vec<Row> {
    let tick_ms = timeline.tick_ms;
    let each = usize::try_from(1_000 / tick_ms.max(1)).map_or(1, |n| n.max(1));
    let rows = timeline.ticks.chunks(each).enumerate();
    rows.map(|(i, ticks)| second(run, tick_ms, i * each, ticks))
        .collect()
}

/// The slowest samples, which the timeline keeps, with their stages.
fn samples(run: &RunFolder, timeline: &Timeline) -> Vec<Row> {
    let connections = &run.summary.run.system.connections;
    let row = |sample: &SlowSample| {
        let fields = serde_json::to_value(sample).unwrap_or_default();
        let mut row = fields.as_object().cloned().unwrap_or_default();
        let connection = connections.get(sample.connection as usize);
        row.insert("connection".to_owned(), json!(connection.map(|c| &c.name)));
        row.insert("run".to_owned(), json!(run.name));
        row
    };
    timeline.slowest.iter().map(row).collect()
}

type RowsOf = fn(&RunFolder, &Timeline) -> Vec<Row>;

fn all(runs: &[RunFolder], rows: RowsOf) -> Result<Vec<Row>, FileError> {
    let of = |run: &RunFolder| {
        let why = "the run kept nothing over time; name a run that has this file";
        let missing = || FileError::content(&Path::new(&run.name).join(TIMELINE))(why);
        Ok(rows(run, run.timeline.as_ref().ok_or_else(missing)?))
    };
    let rows: Result<Vec<Vec<Row>>, FileError> = runs.iter().map(of).collect();
    Ok(rows?.concat())
}

/// A field of CSV (RFC 4180).
fn field(value: &Value) -> String {
    let text = match value {
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
    let rows = all(runs, seconds)?;
    let mut heading = COLUMNS.to_vec();
    heading.retain(|name| rows.iter().any(|row| row.contains_key(*name)));
    let names = rows.iter().flatten().map(|(name, _)| name.as_str());
    let others: BTreeSet<&str> = names.filter(|name| !heading.contains(name)).collect();
    heading.extend(others);
    let line = |fields: Vec<String>| fields.join(",") + "\r\n";
    let mut text = line(heading.iter().map(|name| field(&json!(name))).collect());
    for row in &rows {
        let value = |name: &&str| row.get(*name).map_or_else(String::new, field);
        text += &line(heading.iter().map(value).collect());
    }
    Ok(text)
}

/// A line for each second of each run (`"kind": "second"`), then one for each kept sample.
///
/// # Errors
/// A run has no timeline.
pub fn json_lines(runs: &[RunFolder]) -> Result<String, FileError> {
    let mut text = String::new();
    for (kind, rows) in [("second", seconds as RowsOf), ("sample", samples)] {
        for mut row in all(runs, rows)? {
            row.insert("kind".to_owned(), json!(kind));
            text += &format!("{}\n", Value::from(row));
        }
    }
    Ok(text)
}
