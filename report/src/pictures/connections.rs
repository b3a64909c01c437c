//! Each connection and each rail: what it carried, and what held it up.

use record::{
    ConnectionRecord, RailRecord, Run,
    timeline::{ConnectionTick, Timeline},
};

use crate::text;

use super::percent;
use crate::{
    draw::{rates, spark},
    html::{Cell, figure, paragraph, table},
};

/// Most connections that have a row with curves; a larger run's others are in the data.
const MOST: usize = 64;

/// A connection over time.
fn ticks(timeline: Option<&Timeline>, at: usize) -> Vec<ConnectionTick> {
    let ticks = timeline.iter().flat_map(|t| &t.ticks);
    ticks
        .map(|t| t.connections.get(at).copied().unwrap_or_default())
        .collect()
}

/// One quantity of all connections over time, with a common top.
struct Curves {
    name: &'static str,
    class: &'static str,
    all: Vec<Vec<f64>>,
    top: f64,
}

impl Curves {
    /// `None` where there is nothing to be seen on any of them.
    fn new(
        name: &'static str,
        class: &'static str,
        all: &[Vec<ConnectionTick>],
        of: impl Fn(&ConnectionTick) -> f64,
    ) -> Option<Curves> {
        let all: Vec<Vec<f64>> = all.iter().map(|c| c.iter().map(&of).collect()).collect();
        let top = all.iter().flatten().copied().fold(0.0, f64::max);
        (top > 0.0).then_some(Curves {
            name,
            class,
            all,
            top,
        })
    }

    fn cell(&self, at: usize) -> Cell {
        let label = format!("{} over time", self.name);
        Cell::Raw(spark(
            &self.all[at],
            self.top,
            &format!("ln {}", self.class),
            &label,
        ))
    }
}

fn curves(timeline: Option<&Timeline>, connections: usize) -> Vec<Curves> {
    let Some(tick_ms) = timeline.filter(|t| t.ticks.len() > 1).map(|t| t.tick_ms) else {
        return Vec::new();
    };
    let all: Vec<_> = (0..connections).map(|i| ticks(timeline, i)).collect();
    let per_s = 1000.0 / tick_ms.max(1) as f64;
    [
        Curves::new("samples/s", "k-net", &all, |c| c.samples as f64 * per_s),
        Curves::new("in flight", "k-wait", &all, |c| c.in_flight as f64),
        Curves::new("score", "k-inf", &all, |c| c.score.unwrap_or(0.0)),
        Curves::new("round trip", "k-post", &all, |c| {
            c.rtt_us.unwrap_or(0) as f64
        }),
        Curves::new("sent again", "k-comp", &all, |c| c.retransmits as f64),
        Curves::new("window full", "k-sched", &all, |c| {
            c.window_limited_us as f64
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Curves of each connection, where there is a timeline.
pub fn over_time(run: &Run, connections: &[ConnectionRecord]) -> String {
    let curves = curves(run.timeline.as_ref(), connections.len());
    if curves.is_empty() {
        return String::new();
    }
    let heads: Vec<String> = curves
        .iter()
        .map(|c| match c.name {
            "score" => "score, to 1".to_owned(),
            "round trip" | "window full" => format!("{}, to {}", c.name, text::time_us(c.top)),
            _ => format!("{}, to {}", c.name, rates(c.top)),
        })
        .collect();
    let mut heading = vec!["over time"];
    heading.extend(heads.iter().map(String::as_str));
    let row = |(i, c): (usize, &ConnectionRecord)| {
        let name = Cell::words(format!("`{}`", c.name));
        let cells = curves.iter().map(|k| k.cell(i));
        [name].into_iter().chain(cells).collect()
    };
    let rows: Vec<Vec<Cell>> = connections.iter().take(MOST).enumerate().map(row).collect();
    table(&heading, &rows)
}

/// Figures of each connection over the whole run.
fn in_total(run: &Run, connections: &[ConnectionRecord]) -> String {
    let seconds = run.summary.run.duration_s.max(1e-9);
    let heading = [
        "in total",
        "samples",
        "sent",
        "received",
        "rate",
        "most in flight",
        "slots",
        "round trip",
        "sent again",
        "window full",
        "lost",
    ];
    let row = |c: &ConnectionRecord| {
        let rtt = match c.path.looks {
            0 => "-".to_owned(),
            _ => text::time_us(c.path.mean_rtt_us()),
        };
        let held = match c.path.looked_us {
            0 => "-".to_owned(),
            us => percent(c.path.rwnd_limited_us as f64 / us as f64),
        };
        let lost = match c.lost.len() {
            0 => "-".to_owned(),
            n => format!("{n} x"),
        };
        let figures = [
            text::grouped(c.samples),
            text::bytes(c.tx.bytes),
            text::bytes(c.rx.bytes),
            text::bit_rate(c.tx.bytes as f64 * 8.0 / seconds / 1e9),
            text::grouped(c.in_flight_max),
            text::grouped(c.slots),
            rtt,
            text::grouped(c.path.retransmits),
            held,
            lost,
        ];
        let name = Cell::words(format!("`{}`", c.name));
        [name]
            .into_iter()
            .chain(figures.map(Cell::figure))
            .collect()
    };
    let rows: Vec<Vec<Cell>> = connections.iter().take(MOST).map(row).collect();
    table(&heading, &rows)
}

fn rails(rails: &[RailRecord]) -> String {
    let row = |r: &RailRecord| {
        let changes: Vec<String> = r
            .changes
            .iter()
            .rev()
            .take(6)
            .rev()
            .map(|c| format!("{:.1} s: {} -> {}", c.at_s, c.from, c.to))
            .collect();
        let more = r.changes.len().saturating_sub(6);
        let before = if more > 0 {
            format!("{more} before; ")
        } else {
            String::new()
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
    let heading = [
        "rail",
        "at the end",
        "score",
        "samples",
        "bytes",
        "probes",
        "changes",
    ];
    table(&heading, &rows)
}

/// The picture.
pub fn picture(run: &Run) -> String {
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
    let note = "Curves of a column share one scale, so that connections compare by eye. Round trip, \
        segments sent again and a full window are the fabric's own word of the way, the batcher and the \
        engine are in none of them: where they are large it is the network.";
    figure("connections", "Connections and rails", &html, note)
}
