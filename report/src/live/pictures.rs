//! The pictures of a run in progress, as HTML.

use record::{
    ConnectionRecord, FabricCounts, LoadgenRecord, PathUse, RunFolder, RunRecord, Summary,
    timeline::ConnectionTick,
};

use super::{SoFar, State};
use crate::{
    html::{self, escape},
    model::{Part, absent, figure},
    page::head::{Tile, banner, over},
    pictures::{
        connections, course, loadgen,
        percentiles::{self, Curve},
        threads,
    },
    text,
};

fn tiles(of: &SoFar) -> Vec<Tile> {
    let [p50, p99, p999] = of.quantiles_us([0.5, 0.99, 0.999]);
    let tiles = [
        ("samples/s now", Some(text::rate(of.rate))),
        ("samples/s on the whole", Some(text::rate(of.mean_rate()))),
        ("samples/s asked for", of.target_qps.map(text::rate)),
        ("tokens/s now", of.token_rate.map(text::rate)),
        ("p99 to the first token", of.ttft_us.map(text::time_us)),
        ("p50 so far", p50.map(text::time_us)),
        ("p99 so far", p99.map(text::time_us)),
        ("p99.9 so far", p999.map(text::time_us)),
        ("samples done", Some(text::grouped(of.completed))),
        ("in flight", Some(text::grouped(of.in_flight()))),
        (
            "since the first query",
            Some(format!("{:.0} s", of.elapsed_s)),
        ),
    ];
    let tiles = tiles.into_iter();
    tiles
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

fn head(of: &SoFar) -> String {
    let (good, word, why) = of.verdict();
    let class = match good {
        Some(true) => "good",
        Some(false) => "bad",
        None => "",
    };
    let sub = escape(&format!("{} {}", of.node, over(&of.fabric)));
    let banner = banner(&of.title, &sub, (class, &word, &why), &tiles(of));
    format!("{banner}{}", page(of))
}

/// A line of HTML that names an ended run's page; empty while the run goes on.
fn page(of: &SoFar) -> String {
    let State::Over(over) = &of.state else {
        return String::new();
    };
    match &over.page {
        Some(path) => format!(
            "<p id=\"over\">The run is over. Its page is <code>{}</code>.</p>",
            escape(&path.to_string_lossy())
        ),
        None => "<p id=\"over\">The run is over, and left no page.</p>".to_owned(),
    }
}

fn latency(of: &SoFar) -> Part {
    let all = of.latencies();
    let curves = [Curve::of_buckets("all", "issue to completion", &all)];
    figure(
        "percentiles",
        "Latency at each percentile, so far",
        percentiles::with_table(&curves, of.bound_us()),
        "From `issue_query` to the completion, within 6 %. LoadGen counts from when a query was \
         scheduled, which is a little more where it issues late; stages and its own word come with \
         the run's end.",
    )
}

/// A connection's counts so far, in the record of a finished run. The round trip is the latest
/// reading, and the maximum in flight is over the ends of ticks.
fn connection(of: &SoFar, at: usize, name: &str, reading: &ConnectionTick) -> ConnectionRecord {
    let ticks = of.timeline.ticks.iter();
    let in_flight = ticks.filter_map(|t| Some(t.connections.get(at)?.in_flight));
    let bytes = |bytes| FabricCounts {
        bytes,
        ..FabricCounts::default()
    };
    ConnectionRecord {
        name: name.to_owned(),
        samples: reading.samples,
        in_flight_max: in_flight.max().unwrap_or(0),
        tx: bytes(reading.bytes_out),
        rx: bytes(reading.bytes_in),
        path: PathUse {
            looks: u64::from(reading.rtt_us.is_some()),
            rtt_us: reading.rtt_us.unwrap_or(0),
            retransmits: reading.retransmits,
            ..PathUse::default()
        },
        ..ConnectionRecord::default()
    }
}

fn as_run(of: &SoFar) -> RunFolder {
    let mut summary = Summary {
        node: of.node.clone(),
        run: RunRecord {
            samples: of.completed,
            duration_s: of.elapsed_s,
            loadgen: Some(LoadgenRecord {
                limits: of.limits.clone(),
                ..LoadgenRecord::default()
            }),
            ..RunRecord::default()
        },
        ..Summary::default()
    };
    let readings = of.connections.iter().enumerate();
    summary.run.system.connections = readings
        .map(|(i, (name, reading))| connection(of, i, name, reading))
        .collect();
    RunFolder::of("", &summary, Some(of.timeline.clone()))
}

/// The whole state of the run as HTML, for a page with [`STYLE`](crate::STYLE) and
/// [`script`](crate::script): a header, and a `section` for each part.
pub fn so_far(of: &SoFar) -> String {
    let run = as_run(of);
    let sections = match of.timeline.ticks.len() {
        0 => html::html(&[absent("No tick of the run is over yet.")]),
        _ => html::sections(&[
            ("Over time", vec![course::picture(&run)]),
            (
                "Limits and latency",
                vec![loadgen::picture(&run), latency(of)],
            ),
            ("The network", vec![connections::picture(&run)]),
            ("The processors of this node", vec![threads::picture(&run)]),
        ]),
    };
    format!(
        "<header class=\"top\">{}</header><main>{sections}</main>",
        head(of)
    )
}
