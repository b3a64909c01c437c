//! The picture of the stages of the slowest thousandth of samples.

use std::collections::BTreeMap;

use record::{RunFolder, Stage, timeline::SlowSample};

use super::{
    colour,
    stages::{self, named},
};
use crate::{
    chart::{Chart, Style, Unit},
    model::{Cell, Part, absent, figure, row, table},
    text::{percent, time_us},
};

const STAGES: usize = Stage::PARTS.len();

/// Nanoseconds of each stage of a sample, in the order of [`Stage::PARTS`].
fn parts(s: &SlowSample) -> [u64; STAGES] {
    [
        s.failed_attempts_ns,
        s.prefill_ns,
        s.issue_to_post_ns,
        s.network_ns,
        s.queue_ns,
        s.compute_ns,
        s.completion_ns,
    ]
}

/// Mean of each stage over these samples, in microseconds.
fn means(samples: &[SlowSample]) -> [f64; STAGES] {
    let mut sums = [0.0; STAGES];
    for s in samples {
        for (sum, ns) in sums.iter_mut().zip(parts(s)) {
            *sum += ns as f64 / 1000.0;
        }
    }
    sums.map(|us| us / samples.len().max(1) as f64)
}

/// A stacked bar of stages for each sample, the slowest first.
fn chart(samples: &[SlowSample]) -> Chart {
    let x = (1..=samples.len()).map(|i| i as f64).collect();
    let title = "Time of each of them, the slowest first";
    let mut chart = Chart::new(title, Style::Bars, (Unit::Count, Unit::Us), x);
    for (i, stage) in Stage::PARTS.into_iter().enumerate() {
        let us = samples.iter().map(|s| parts(s)[i] as f64 / 1000.0);
        chart.line(stage.label(), Some(colour(stage)), us);
    }
    chart
}

/// What most of the slowest samples have in common, in sentences; empty for fewer than 5.
fn common(run: &RunFolder, samples: &[SlowSample]) -> Vec<String> {
    let mut said = Vec::new();
    let n = samples.len();
    if n < 5 {
        return said;
    }
    let connections = &run.summary.run.system.connections;
    let mut by: BTreeMap<u32, usize> = BTreeMap::new();
    for s in samples {
        *by.entry(s.connection).or_default() += 1;
    }
    if let Some((at, count)) = by.into_iter().max_by_key(|(_, count)| *count)
        && connections.len() > 1
        && let Some(c) = connections.get(at as usize)
    {
        let all: u64 = connections.iter().map(|c| c.samples).sum();
        let slow = count as f64 / n as f64;
        let fair = c.samples as f64 / all.max(1) as f64;
        if slow > 0.5 && slow > 1.5 * fair {
            let part = match count == n {
                true => "All".to_owned(),
                false => percent(slow),
            };
            said.push(format!(
                "{part} of them went over `{}`, which carried {} of all samples.",
                c.name,
                percent(fair)
            ));
        }
    }
    let mut at: Vec<f64> = samples.iter().map(|s| s.at_s).collect();
    at.sort_by(f64::total_cmp);
    let duration = run.summary.run.duration_s;
    let half = n.div_ceil(2);
    let tightest = (0..=n - half).map(|i| (at[i], at[i + half - 1]));
    let tightest = tightest.min_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    if let Some((from, to)) = tightest
        && to - from < 0.1 * duration
    {
        said.push(format!(
            "Half of them were completed between {from:.2} s and {to:.2} s of {duration:.1} s."
        ));
    }
    said
}

pub fn picture(run: &RunFolder) -> Part {
    let slow = run.timeline.as_ref().map(|t| &t.slowest[..]);
    let Some(slow) = slow.filter(|s| !s.is_empty()) else {
        return absent(
            "The slowest samples were not kept in this run: where their time went is not known.",
        );
    };
    let rows: Vec<Vec<Cell>> = named(means(slow))
        .zip(named(stages::parts(run)))
        .map(|((colour, name, slow), (.., all))| {
            row(Cell::key(colour, name), [slow, all].map(time_us))
        })
        .collect();
    let table = table("on average|the slowest|all samples", rows);
    let said = common(run, slow).join(" ");
    let title = format!("Where the time of the slowest {} samples went", slow.len());
    figure(
        "slowest",
        title,
        vec![table, Part::Chart(chart(slow))],
        said,
    )
}
