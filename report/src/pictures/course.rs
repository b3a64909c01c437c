//! The picture of a run over time: latency, throughput and samples in flight, with events.

use record::{
    RunFolder, ThroughputReport,
    timeline::{Event, NodeSide, Timeline},
};

use crate::{
    chart::{Chart, POINTS, Style, Unit},
    latency::Latencies,
    model::{Cell, Part, absent, figure, paragraph, table},
    text,
};

/// Maximum number of events with a mark; more would hide the lines.
const MARKED: usize = 40;
/// Maximum number of rows in the table of events.
const LISTED: usize = 60;

/// Adjacent ticks that form one value of a line.
#[derive(Clone, Debug, Default)]
pub struct TickColumn {
    ticks: f64,
    issued: u64,
    completed: u64,
    tokens: u64,
    in_flight: u64,
    latency: Latencies,
}

impl TickColumn {
    /// Mean number of samples completed in a tick of this column.
    pub fn completed(&self) -> f64 {
        self.completed as f64 / self.ticks
    }

    /// A quantile of latency in microseconds; NaN if no sample completed.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.quantile_us(quantile).unwrap_or(f64::NAN)
    }
}

/// The columns of an x axis over time.
pub struct Axis {
    pub each: usize,
    /// Duration of a column, in seconds.
    pub each_s: f64,
    /// The middle of each column, in seconds since the first query.
    pub x: Vec<f64>,
}

impl Axis {
    fn new(ticks: usize, tick_ms: u64, begins_s: f64) -> Axis {
        let each = ticks.div_ceil(POINTS).max(1);
        let each_s = each as f64 * tick_ms.max(1) as f64 / 1000.0;
        let columns = ticks.div_ceil(each);
        let x = (0..columns).map(|i| begins_s + (i as f64 + 0.5) * each_s);
        Axis {
            each,
            each_s,
            x: x.collect(),
        }
    }

    pub fn of(timeline: &Timeline) -> Axis {
        Axis::new(timeline.ticks.len(), timeline.tick_ms, 0.0)
    }

    /// The columns of `ticks` ticks on a node's own clock.
    pub fn of_node(side: &NodeSide, timeline: &Timeline, ticks: usize) -> Axis {
        let tick_ms = match side.tick_ms {
            0 => timeline.tick_ms,
            own => own,
        };
        Axis::new(ticks, tick_ms, side.begins_s)
    }
}

pub fn tick_s(timeline: &Timeline) -> f64 {
    timeline.tick_ms.max(1) as f64 / 1000.0
}

/// A timeline in columns of `each_s` seconds; `each_s` must be at least a tick.
pub fn columns(timeline: &Timeline, each_s: f64) -> Vec<TickColumn> {
    let mut columns: Vec<TickColumn> = Vec::new();
    for (i, tick) in timeline.ticks.iter().enumerate() {
        let at = ((i as f64 + 0.5) * tick_s(timeline) / each_s) as usize;
        columns.resize_with(columns.len().max(at + 1), TickColumn::default);
        let column = &mut columns[at];
        column.ticks += 1.0;
        column.issued += tick.issued;
        column.completed += tick.completed;
        column.tokens += tick.tokens;
        column.in_flight = column.in_flight.max(tick.in_flight);
        column.latency.add(&tick.latency);
    }
    columns
}

fn colour(kind: &str) -> &'static str {
    match kind {
        "lost" | "watchdog" => "bad",
        "back" => "good",
        "sent_again" => "post",
        "rail" | "probe" => "wait",
        _ => "all",
    }
}

fn listed(events: &[Event]) -> Vec<Part> {
    if events.is_empty() {
        return Vec::new();
    }
    let row = |(i, e): (usize, &Event)| {
        vec![
            Cell::words((i + 1).to_string()),
            Cell::figure(format!("{:.2} s", e.at_s)),
            Cell::words(e.kind.replace('_', " ")),
            Cell::words(&e.text),
        ]
    };
    let rows: Vec<_> = events.iter().enumerate().take(LISTED).map(row).collect();
    let mut parts = vec![table("|when|what|in words", rows)];
    if let Some(n @ 1..) = events.len().checked_sub(LISTED) {
        parts.push(more(n));
    }
    parts
}

/// Says that a table is cut.
pub fn more(n: usize) -> Part {
    paragraph(format!(
        "and {} more, in the page's data.",
        text::grouped(n as u64)
    ))
}

/// The rates of full seconds in a sentence; empty for a run without one. A steady state means
/// nothing in fewer than five seconds, or over several phases.
fn throughput(t: &ThroughputReport, phases: usize) -> Option<Part> {
    let rate = |per_s: f64| format!("{}/s", text::rate(per_s));
    let mean = rate(t.mean_per_s);
    let mut said = format!("mean {mean}, slowest second {}", rate(t.min_per_s? as f64));
    // Explain a mean below the minimum: the last second is incomplete.
    if t.mean_per_s < t.min_per_s? as f64 {
        let part = text::time_us((t.duration_s - t.per_second.len() as f64) * 1e6);
        said += &format!(" (the last {part} had {})", text::counted(t.rest, "sample"));
    }
    if let (Some(steady), Some(first), 5.., 0..=1) = (
        t.steady_per_s,
        t.first_over_steady,
        t.per_second.len(),
        phases,
    ) {
        said += &format!(
            ", steady {}, first second {first:.2} of steady",
            rate(steady)
        );
    }
    Some(paragraph(format!("Throughput: {said}.")))
}

fn charts(run: &RunFolder, timeline: &Timeline) -> Vec<Chart> {
    let axis = Axis::of(timeline);
    let columns = columns(timeline, axis.each_s);
    let chart = |title, style, unit| {
        let mut chart = Chart::new(title, style, (Unit::Seconds, unit), axis.x.clone());
        for (i, e) in timeline.events.iter().enumerate().take(MARKED) {
            chart.mark(e.at_s, (i + 1).to_string(), colour(&e.kind));
        }
        chart
    };
    let title = "Latency, issue to completion";
    let mut latency = chart(title, Style::Log, Unit::Us);
    for (name, q, colour) in [
        ("p50", 0.5, "net"),
        ("p90", 0.9, "inf"),
        ("p99", 0.99, "comp"),
        ("longest", 1.0, "all"),
    ] {
        latency.line(name, Some(colour), columns.iter().map(|c| c.quantile_us(q)));
    }
    latency.bound(run.bound_us(), "LoadGen's bound");
    let mut rate = chart("Samples per second", Style::Lines, Unit::Count);
    let per_s = |n: u64, c: &TickColumn| n as f64 / c.ticks / tick_s(timeline);
    let completed = columns.iter().map(|c| per_s(c.completed, c));
    rate.line("completed", Some("net"), completed);
    rate.line(
        "issued",
        Some("all"),
        columns.iter().map(|c| per_s(c.issued, c)),
    );
    let mut in_flight = chart("Samples in flight", Style::Lines, Unit::Count);
    let values: Vec<f64> = columns.iter().map(|c| c.in_flight as f64).collect();
    let slots = run.summary.run.total().slots as f64;
    let is_near = slots > 0.0 && slots <= 2.0 * values.iter().copied().fold(0.0, f64::max);
    in_flight.line("in flight", Some("wait"), values);
    in_flight.bound(is_near.then_some(slots), "all slots");
    let mut tokens = chart("Tokens per second", Style::Lines, Unit::Count);
    let each = columns.iter().map(|c| per_s(c.tokens, c));
    tokens.line("tokens of completed answers", Some("inf"), each);
    let has_tokens = run.summary.run.tokens.is_some() && !tokens.is_zero();
    let tokens = has_tokens.then_some(tokens).into_iter();
    tokens.chain([latency, rate, in_flight]).collect()
}

pub fn picture(run: &RunFolder) -> Part {
    let Some(timeline) = run.timeline.as_ref().filter(|t| !t.ticks.is_empty()) else {
        return absent("The run kept nothing over time.");
    };
    let mut parts: Vec<Part> = charts(run, timeline).into_iter().map(Part::Chart).collect();
    let r = &run.summary.run;
    parts.extend(throughput(&r.throughput, r.phases.len()));
    parts.extend(listed(&timeline.events));
    let note = "Drag to zoom all charts over time, double-click to go back; a name in the legend \
         hides its line. Numbers are the events in the table.";
    figure("course", "The run over time", parts, note)
}

#[cfg(test)]
mod tests {
    use qdl::{counters::Throughput, testkit::assert_has};
    use record::timeline::Tick;

    use super::*;

    #[test]
    fn columns_hold_every_tick_of_timelines_with_different_ticks() {
        let tick = Tick {
            issued: 2,
            completed: 1,
            latency: vec![(100, 1)],
            ..Tick::default()
        };
        let made = |tick_ms, n| Timeline {
            tick_ms,
            ticks: vec![tick.clone(); n],
            ..Timeline::default()
        };
        let timeline = made(100, 601);
        let each_s = Axis::of(&timeline).each_s;
        assert!((each_s - 0.3).abs() < 1e-9, "{each_s}");
        for timeline in [timeline, made(250, 17)] {
            let columns = columns(&timeline, each_s);
            assert!(columns.len() <= POINTS);
            let completed: u64 = columns.iter().map(|c| c.completed).sum();
            assert_eq!(completed as usize, timeline.ticks.len());
            let latencies: u64 = columns.iter().map(|c| c.latency.total).sum();
            assert_eq!(latencies, completed);
            assert!(columns.iter().all(|c| c.completed() == 1.0));
        }
    }
    #[test]
    fn a_mean_below_the_slowest_second_says_why_and_steady_takes_five_seconds() {
        const SECOND: u64 = 1_000_000_000;
        let said = |t: &Throughput| match throughput(&t.report(), 1) {
            Some(Part::Words(_, text)) => text,
            _ => String::new(),
        };
        let mut t = Throughput::new(0);
        assert_eq!(said(&t), "");
        t.sample(SECOND, 1_708);
        t.sample(SECOND + SECOND / 2, 1_709);
        let mean = "mean 1,139/s, slowest second 1,708/s (the last 500 ms had 1 sample).";
        assert!(said(&t).ends_with(mean), "{}", said(&t));
        (2..=5).for_each(|s| t.sample(s * SECOND, s * 1_800));
        assert_has(&said(&t), &["steady 1,800/s, first second 0.95 of steady."]);
    }
}
