//! The picture of connections and rails: their traffic, and what delayed it.

use record::{
    ConnectionRecord, RailRecord, RunFolder, RunRecord,
    timeline::{ConnectionTick, Timeline},
};

use super::{
    course::{Axis, more, tick_s},
    or_dash,
};
use crate::{
    chart::{Chart, Style, Unit},
    model::{Cell, Part, figure, paragraph, row, table},
    text::{self, Page, counted, grouped, percent, time_us},
};
use view::node::{TRAFFIC, traffic};

/// Maximum number of connections with lines and rows; the page's data has all of them.
const MOST: usize = 64;

/// A chart of one quantity, unless it is 0 throughout: a line for each connection, with the mean of
/// each column of ticks.
fn chart(
    title: &str,
    unit: Unit,
    (timeline, connections): (&Timeline, &[ConnectionRecord]),
    of: impl Fn(&ConnectionTick) -> Option<f64>,
) -> Option<Part> {
    let axis = Axis::of(timeline);
    let columns = timeline.ticks.chunks(axis.each);
    let mut chart = Chart::new(title, Style::Lines, (Unit::Seconds, unit), axis.x);
    for (i, c) in connections.iter().take(MOST).enumerate() {
        let values = columns.clone().map(|ticks| {
            let values = ticks.iter().filter_map(|t| of(t.connections.get(i)?));
            let (n, sum) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
            // 0 / 0 is NaN, a gap.
            sum / n
        });
        chart.line(&c.name, None, values);
    }
    (!chart.is_zero()).then_some(Part::Chart(chart))
}

/// Charts over time with a line for each connection.
fn over_time(timeline: &Timeline, connections: &[ConnectionRecord]) -> Part {
    let per_s = 1.0 / tick_s(timeline);
    let of = (timeline, connections);
    let us = |us: u64| us as f64;
    let charts = [
        chart("Samples per second", Unit::Count, of, |c| {
            Some(c.samples as f64 * per_s)
        }),
        chart("In flight", Unit::Count, of, |c| Some(c.in_flight as f64)),
        chart("Score of the rail", Unit::Share, of, |c| c.score),
        chart("Round trip", Unit::Us, of, |c| c.rtt_us.map(us)),
        chart("Segments sent again, each second", Unit::Count, of, |c| {
            Some(c.retransmits as f64 * per_s)
        }),
        chart("Window full", Unit::Share, of, |c| {
            Some(us(c.window_limited_us) * per_s / 1e6)
        }),
    ];
    Part::Group("charts", charts.into_iter().flatten().collect())
}

/// Figures of each connection over the whole run; their sum, without what adds up to nothing.
fn in_total(run: &RunRecord) -> [Part; 2] {
    let seconds = run.duration_s.max(1e-9);
    let unless = |absent: bool, text: String| or_dash((!absent).then_some(text));
    let total = run.total();
    let connections = &run.system.connections;
    let all = connections
        .iter()
        .take(MOST)
        .map(|c| (format!("`{}`", c.name), c));
    let sum = (connections.len() > 1).then(|| (format!("all {}", connections.len()), &total));
    let all: Vec<(String, &ConnectionRecord)> = all.chain(sum).collect();
    let figures = |(name, c): &(String, &ConnectionRecord)| {
        let path = &c.path;
        let full = percent(path.rwnd_limited_us as f64 / path.looked_us as f64);
        let is_sum = std::ptr::eq(*c, &total);
        let figures = [
            grouped(c.samples),
            text::bytes(c.tx.bytes),
            text::bytes(c.rx.bytes),
            text::bit_rate(c.tx.bytes as f64 * 8.0 / seconds / 1e9),
            // Connections peak at different times, so a sum of their maxima means nothing.
            unless(is_sum, grouped(c.in_flight_max)),
            unless(c.slots == 0, grouped(c.slots)),
            unless(path.looks == 0, time_us(path.mean_rtt_us())),
            grouped(path.retransmits),
            unless(path.looked_us == 0, full),
            unless(c.lost.is_empty(), counted(c.lost.len() as u64, "time")),
        ];
        row(Cell::words(name), figures)
    };
    let calls = |(name, c): &(String, &ConnectionRecord)| {
        row(
            Cell::words(name),
            traffic(&c.tx, &c.rx, c.wakeups, c.blocked),
        )
    };
    let heading = "connection|samples|bytes out|bytes in|rate out|in flight|slots|round trip|\
        sent again|window full|lost";
    [
        table(heading, all.iter().map(figures).collect()),
        table(
            &format!("connection|{TRAFFIC}"),
            all.iter().map(calls).collect(),
        ),
    ]
}

/// The warm-up, and where samples waited or were copied.
fn facts(run: &RunRecord) -> Part {
    let (system, total) = (&run.system, run.total());
    let mut page = Page::default();
    if let Some(w) = &system.warm_up {
        let (samples, took) = (counted(w.samples, "sample"), time_us(w.took_ms * 1e3));
        page.fact("warm-up", format!("{samples} in {took} before the clock"));
        if w.sizes < w.of_sizes {
            let (n, of) = (w.sizes, w.of_sizes);
            let line = format!("{n} of {of} sizes: warm_up.budget_ms was too short for the rest");
            page.fact("warm-up", line);
        }
        let us = |us: Option<u64>| or_dash(us.map(|us| time_us(us as f64)));
        let slowest = [total.cold_us, total.warm_us].map(us).join(", warm ");
        page.fact(
            "warm-up",
            format!("network time of the slowest connection: cold {slowest}"),
        );
    }
    let on = counted(system.connections.len() as u64, "connection");
    let used = grouped(if total.allowed == 0 {
        total.slots
    } else {
        total.allowed
    });
    page.fact(
        "slots",
        format!("{} on {on}, {used} of them in use", grouped(total.slots)),
    );
    let backlog = format!(
        "{} found no free slot, at most {} at once; {} found one, and a NIC thread posted them",
        counted(system.queued.backlogged, "sample"),
        grouped(system.queued.backlog_max),
        grouped(system.queued.handed_over)
    );
    page.fact("backlog", backlog);
    let (staged, bytes) = (
        grouped(system.staged_copies),
        text::bytes(system.staged_bytes),
    );
    page.fact(
        "copies",
        format!("{staged} staged ({bytes}); the fabric's are in the table"),
    );
    if let Some(rule) = system.posting_rule {
        let one_by_one = if rule.one_by_one {
            "; one doorbell a sample"
        } else {
            ""
        };
        let up_to = match rule.up_to_bytes {
            0 => "NIC threads post all bursts".to_owned(),
            bytes => format!(
                "the issuing thread posts bursts of at most {} on idle connections and for NIC \
                 threads that sleep, NIC threads the others",
                text::bytes(bytes)
            ),
        };
        page.fact("posting", up_to + one_by_one);
    }
    let threads = format!(
        "{} slept {}; connections woke them {}, other threads {}",
        counted(system.nic_threads, "NIC thread"),
        counted(system.waits.sleeps, "time"),
        counted(total.wakeups, "time"),
        grouped(system.waits.woken)
    );
    page.fact("threads", threads);
    Part::Facts(page)
}

fn rails(rails: &[RailRecord]) -> Part {
    let row = |r: &RailRecord| {
        let more = r.changes.len().saturating_sub(6);
        let changes = r.changes[more..].iter();
        let changes = changes.map(|c| format!("{:.1} s: {} -> {}", c.at_s, c.from, c.to));
        let changes: Vec<String> = changes.collect();
        let before = match more {
            0 => String::new(),
            n => format!("{n} before; "),
        };
        vec![
            Cell::words(&r.name),
            Cell::words(&r.state),
            Cell::figure(text::three(r.score)),
            Cell::figure(text::three(r.latency)),
            Cell::figure(grouped(r.samples)),
            Cell::figure(text::bytes(r.bytes)),
            Cell::figure(grouped(r.probes)),
            Cell::words(format!("{before}{}", changes.join("; "))),
        ]
    };
    let heading = "rail|at the end|score|latency|samples|bytes|probes|changes";
    table(heading, rails.iter().map(row).collect())
}

pub fn picture(run: &RunFolder) -> Part {
    let system = &run.summary.run.system;
    if system.connections.is_empty() {
        return paragraph("This run had no network: LoadGen and the engine were in one process.");
    }
    let timeline = run.timeline.iter();
    let mut parts: Vec<Part> = timeline
        .map(|t| over_time(t, &system.connections))
        .collect();
    parts.extend(in_total(&run.summary.run));
    if let Some(n @ 1..) = system.connections.len().checked_sub(MOST) {
        parts.push(more(n));
    }
    // A run that goes on has no counts of threads.
    if system.nic_threads > 0 {
        parts.push(facts(&run.summary.run));
    }
    if !system.rails.is_empty() {
        parts.push(Part::Title("Rails, chosen by health".to_owned()));
        parts.push(rails(&system.rails));
    }
    let note = "A line is a connection. Bytes are payloads, with those of the warm-up and those \
        sent again. Round trip, segments sent again and a full window are the fabric's own, \
        without batcher and engine: where they are large it is the network.";
    figure("connections", "Connections and rails", parts, note)
}
