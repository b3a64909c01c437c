//! The pictures of a run that goes on, in an element of HTML.

use crate::text;
use hdrhistogram::Histogram;
use record::{
    ConnectionRecord, Evidence, LoadgenView, Run, RunRecord, Summary, timeline::bucket_begins,
};

use super::{SoFar, State};
use crate::{
    draw::{Size, both},
    html::{Cell, absent, escape, figure, table},
    page::{section, two},
    pictures::{connections, course, limits, percentiles, threads},
};

/// Most connections and NIC threads that have a row.
const MOST: usize = 64;

fn tiles(of: &SoFar) -> String {
    let mut tiles: Vec<(&str, String)> = vec![("samples/s now", text::rate(of.rate))];
    tiles.push(("samples/s on the whole", text::rate(of.mean_rate())));
    if let Some(asked) = of.target_qps {
        tiles.push(("samples/s asked for", text::rate(asked)));
    }
    if let Some(tokens) = of.token_rate {
        tiles.push(("tokens/s now", text::rate(tokens)));
    }
    if let Some(us) = of.ttft_us {
        tiles.push(("p99 to the first token", text::time_us(us)));
    }
    let [p50, p99, p999] = of.quantiles_us([0.5, 0.99, 0.999]);
    for (name, us) in [
        ("p50 so far", p50),
        ("p99 so far", p99),
        ("p99.9 so far", p999),
    ] {
        tiles.extend(us.map(|us| (name, text::time_us(us))));
    }
    tiles.push(("samples done", text::grouped(of.completed)));
    tiles.push(("in flight", text::grouped(of.in_flight())));
    tiles.push(("since the first query", format!("{:.0} s", of.elapsed_s)));
    tiles
        .into_iter()
        .map(|(name, value)| {
            let value = escape(&value);
            format!("<li><small>{name}</small><strong>{value}</strong></li>")
        })
        .collect()
}

fn head(of: &SoFar) -> String {
    let (good, word, said) = of.verdict();
    let class = match good {
        Some(true) => "good",
        Some(false) => "bad",
        None => "",
    };
    let over = match of.fabric.as_str() {
        "" => String::new(),
        "local" => ", in one process, without a network".to_owned(),
        fabric => format!(", over {fabric}"),
    };
    format!(
        "<h1>{}</h1><p class=\"sub\">{}{}</p><div class=\"verdict {class}\"><b>{}</b>\
         <span>{}</span></div>{}<ul class=\"tiles\">{}</ul>",
        escape(&of.title),
        escape(&of.node),
        escape(&over),
        escape(&word),
        escape(&said),
        page(of),
        tiles(of)
    )
}

/// Where the page of a run that is over lies.
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

/// All latencies as one histogram: those of a bucket as if they lay evenly in it.
fn histogram(of: &SoFar) -> Option<Histogram<u64>> {
    const PARTS: u64 = 8;
    let mut all = Histogram::new(2).ok()?;
    for (bucket, n) in of.latencies().filled() {
        let (from, to) = (bucket_begins(bucket), bucket_begins(bucket + 1));
        for part in 0..PARTS {
            let share = n * (part + 1) / PARTS - n * part / PARTS;
            let ns = from + (to - from) * (2 * part + 1) / (2 * PARTS);
            all.record_n(ns, share).ok()?;
        }
    }
    (!all.is_empty()).then_some(all)
}

fn latency(of: &SoFar) -> String {
    let Some(all) = histogram(of) else {
        return absent("No tick of the run is over yet.");
    };
    let bound = of.bound_us();
    let bound = bound.map(|us| (us, format!("LoadGen's bound, {}", text::time_us(us))));
    let curves = [("k-all", "issue to completion".to_owned(), &all)];
    figure(
        "percentiles",
        "Latency at each percentile, so far",
        &percentiles::both_parts(&curves, bound.as_ref()),
        "From `issue_query` to the completion, within 6 %. LoadGen counts from when a query was \
         scheduled, which is a little more where it issues late; stages and its own word come with \
         the run's end.",
    )
}

fn distance(of: &SoFar) -> String {
    if of.limits.is_empty() {
        return absent("LoadGen has no limit for this run.");
    }
    figure(
        "limits",
        "Distance to each of LoadGen's limits, so far",
        &both(Size::HALF, |size| limits::draw(&of.limits, size)),
        "The upright line is the limit; a bar is as long as what the run has come to.",
    )
}

fn network(of: &SoFar, run: &Run) -> String {
    let mut html = String::new();
    let seconds = of.elapsed_s.max(1e-9);
    let rate = |bytes: u64| text::bit_rate(bytes as f64 * 8.0 / seconds / 1e9);
    if !of.connections.is_empty() {
        html = connections::over_time(run, &run.summary.run.system.connections);
        let row = |(name, c): &(String, record::timeline::ConnectionTick)| {
            vec![
                Cell::words(format!("`{name}`")),
                Cell::figure(text::grouped(c.samples)),
                Cell::figure(text::bytes(c.bytes_out)),
                Cell::figure(text::bytes(c.bytes_in)),
                Cell::figure(rate(c.bytes_out)),
                Cell::figure(text::grouped(c.in_flight)),
                Cell::figure(
                    c.rtt_us
                        .map_or("-".to_owned(), |us| text::time_us(us as f64)),
                ),
                Cell::figure(text::grouped(c.retransmits)),
            ]
        };
        let rows: Vec<_> = of.connections.iter().take(MOST).map(row).collect();
        let heading = [
            "so far",
            "samples",
            "sent",
            "received",
            "rate",
            "in flight",
            "round trip",
            "sent again",
        ];
        html.push_str(&table(&heading, &rows));
    }
    let row = |(name, f): &(String, record::Figures)| {
        let p99 = match f.p99_round_trip_ns {
            0 => "-".to_owned(),
            ns => text::time_us(ns as f64 / 1000.0),
        };
        vec![
            Cell::words(format!("`{name}`")),
            Cell::figure(text::grouped(f.completed)),
            Cell::figure(format!("{}/s", text::rate(f.completed as f64 / seconds))),
            Cell::figure(text::bytes(f.bytes_out)),
            Cell::figure(text::bytes(f.bytes_in)),
            Cell::figure(rate(f.bytes_out)),
            Cell::figure(p99),
        ]
    };
    let rows: Vec<_> = of.nics.iter().take(MOST).map(row).collect();
    let heading = [
        "in all",
        "samples",
        "rate",
        "sent",
        "received",
        "sent, rate",
        "p99 round trip",
    ];
    html.push_str(&table(&heading, &rows));
    let note = "Curves of a column share one scale. Rates are means since the first query.";
    figure("connections", "Connections and NIC threads", &html, note)
}

/// What the pictures of a run that is over take.
fn as_run(of: &SoFar) -> Run {
    let mut summary = Summary {
        node: of.node.clone(),
        run: RunRecord {
            samples: of.completed,
            duration_s: of.elapsed_s,
            evidence: Evidence {
                loadgen: Some(LoadgenView {
                    bound_us: of.bound_us(),
                    ..LoadgenView::default()
                }),
                ..Evidence::default()
            },
            ..RunRecord::default()
        },
        ..Summary::default()
    };
    let named = of.connections.iter().map(|(name, _)| ConnectionRecord {
        name: name.clone(),
        ..ConnectionRecord::default()
    });
    summary.run.system.connections = named.collect();
    Run::of("", &summary, Some(of.timeline.clone()))
}

/// Everything that is known of the run, as elements of HTML that stand on a page with
/// [`style`](crate::style): a header, and a `section` for each part.
pub fn so_far(of: &SoFar) -> String {
    let run = as_run(of);
    let course = match of.timeline.ticks.len() {
        0 => absent("No tick of the run is over yet."),
        _ => course::picture(&run),
    };
    let threads = match of.timeline.nodes.iter().all(|n| n.threads.is_empty()) {
        true => absent("No thread was looked at yet."),
        false => threads::picture(&run),
    };
    [
        format!("<header class=\"top\">{}</header><main>", head(of)),
        section("Over time", &course),
        section("Limits and latency", &two(&distance(of), &latency(of))),
        section("The network", &network(of, &run)),
        section("The processors of this node", &threads),
        "</main>".to_owned(),
    ]
    .concat()
}
