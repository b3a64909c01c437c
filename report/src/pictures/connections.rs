//! The picture of connections and rails: their traffic, and what delayed it.

use record::{
    ConnectionRecord, RailRecord, RunFolder,
    timeline::{ConnectionTick, Timeline},
};

use super::{
    course::{Axis, tick_s},
    percent,
};
use crate::{
    chart::{Chart, Style, Unit, beside},
    html::{Cell, columns, figure, paragraph, row, table},
    text,
};

/// Maximum number of connections with lines and rows; the page's data has all of them.
const MOST: usize = 64;

/// A chart of one quantity: a line for each connection, with the mean of each column of ticks.
fn chart(
    title: &str,
    unit: Unit,
    (timeline, connections): (&Timeline, &[ConnectionRecord]),
    of: impl Fn(&ConnectionTick) -> Option<f64>,
) -> String {
    let axis = Axis::of(timeline);
    let columns = timeline.ticks.chunks(axis.each);
    let mut chart = Chart::new(title, Style::Lines, (Unit::Seconds, unit), axis.x);
    for (i, c) in connections.iter().take(MOST).enumerate() {
        let values: Vec<f64> = columns
            .clone()
            .map(|ticks| {
                let values = ticks.iter().filter_map(|t| of(t.connections.get(i)?));
                let (n, sum) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
                // 0 / 0 is NaN, a gap.
                sum / n
            })
            .collect();
        chart.line(&c.name, None, values);
    }
    match chart.is_zero() {
        true => String::new(),
        false => chart.html(),
    }
}

/// Charts over time with a line for each connection, if there is a timeline.
fn over_time(run: &RunFolder, connections: &[ConnectionRecord]) -> String {
    let Some(timeline) = &run.timeline else {
        return String::new();
    };
    let per_s = 1.0 / tick_s(timeline);
    let of = (timeline, connections);
    let us = |us: u64| us as f64;
    beside(&[
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
    ])
}

/// Figures of each connection over the whole run.
fn in_total(run: &RunFolder, connections: &[ConnectionRecord]) -> String {
    let seconds = run.summary.run.duration_s.max(1e-9);
    let heading = "in total|samples|sent|received|rate|most in flight|slots|round trip|sent again|\
        window full|lost";
    let of = |c: &ConnectionRecord| {
        let unless = |absent: bool, text: String| match absent {
            true => "-".to_owned(),
            false => text,
        };
        let path = &c.path;
        let rtt = text::time_us(path.mean_rtt_us());
        let full = percent(path.rwnd_limited_us as f64 / path.looked_us as f64);
        let figures = [
            text::grouped(c.samples),
            text::bytes(c.tx.bytes),
            text::bytes(c.rx.bytes),
            text::bit_rate(c.tx.bytes as f64 * 8.0 / seconds / 1e9),
            text::grouped(c.in_flight_max),
            unless(c.slots == 0, text::grouped(c.slots)),
            unless(path.looks == 0, rtt),
            text::grouped(path.retransmits),
            unless(path.looked_us == 0, full),
            unless(c.lost.is_empty(), format!("{} x", c.lost.len())),
        ];
        row(Cell::words(format!("`{}`", c.name)), figures)
    };
    let rows: Vec<Vec<Cell>> = connections.iter().take(MOST).map(of).collect();
    table(&columns(heading), &rows)
}

fn rails(rails: &[RailRecord]) -> String {
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
            Cell::figure(text::grouped(r.samples)),
            Cell::figure(text::bytes(r.bytes)),
            Cell::figure(text::grouped(r.probes)),
            Cell::words(format!("{before}{}", changes.join("; "))),
        ]
    };
    let rows: Vec<_> = rails.iter().map(row).collect();
    let heading = "rail|at the end|score|samples|bytes|probes|changes";
    table(&columns(heading), &rows)
}

pub fn picture(run: &RunFolder) -> String {
    let system = &run.summary.run.system;
    if system.connections.is_empty() {
        return paragraph("This run had no network: LoadGen and the engine were in one process.");
    }
    let mut html = over_time(run, &system.connections);
    html.push_str(&in_total(run, &system.connections));
    let more = system.connections.len().saturating_sub(MOST);
    if more > 0 {
        html.push_str(&paragraph(&format!("and {more} more, in the data below.")));
    }
    if !system.rails.is_empty() {
        html.push_str("<h4>Rails, chosen by health</h4>");
        html.push_str(&rails(&system.rails));
    }
    let note = "A line is a connection. Round trip, segments sent again and a full window are the \
        fabric's own figures, without batcher and engine: where they are large it is the network.";
    figure("connections", "Connections and rails", &html, note)
}
