//! A run over time: latency as a heat map with what happened on it, throughput, samples in flight.

use std::collections::BTreeMap;

use record::{
    Run,
    timeline::{Event, Timeline, bucket_begins},
};

use crate::text;

use crate::{
    draw::{At, Axis, Plot, Scale, Size, Strip, Svg, both, rates, seconds, times},
    html::{Cell, absent, figure, legend, table},
    latency::Latencies,
};

/// Shades of the heat map.
const SHADES: usize = 7;
/// Most events that have a number of their own; more are dots.
const NUMBERED: usize = 40;
/// Most events in the table below.
const LISTED: usize = 60;

/// Some ticks together: what one column of a picture shows.
#[derive(Clone, Debug, Default)]
pub struct Bin {
    pub issued: u64,
    pub completed: u64,
    pub in_flight: u64,
    pub latency: Latencies,
}

/// A timeline in at most so many columns, and the seconds of each.
pub fn bins(timeline: &Timeline, most: usize) -> (f64, Vec<Bin>) {
    let each = timeline.ticks.len().div_ceil(most.max(1)).max(1);
    let groups = timeline.ticks.chunks(each).map(|ticks| {
        let mut bin = Bin::default();
        for t in ticks {
            bin.issued += t.issued;
            bin.completed += t.completed;
            bin.in_flight = bin.in_flight.max(t.in_flight);
            bin.latency.add(&t.latency);
        }
        bin
    });
    (
        timeline.tick_ms as f64 * each as f64 / 1000.0,
        groups.collect(),
    )
}

/// The ends of the time axis.
fn span(timeline: &Timeline) -> Scale {
    let end = timeline.ticks.len() as f64 * timeline.tick_ms as f64 / 1000.0;
    Scale::up_to(end)
}

fn time_axis(timeline: &Timeline, name: &'static str) -> Axis {
    Axis {
        scale: span(timeline),
        label: seconds,
        name,
    }
}

/// The shade of a cell: each about three times as many samples as the one before, over all that
/// occur.
fn shade(count: u64, most: u64) -> usize {
    if most <= 1 {
        return SHADES;
    }
    let share = (count as f64).ln() / (most as f64).ln();
    1 + (share * (SHADES - 1) as f64).round() as usize
}

fn heat(timeline: &Timeline, bound: Option<f64>, size: Size) -> Svg {
    let room = ((size.width - 80.0) / if size.narrow { 3.0 } else { 3.6 }) as usize;
    let (bin_s, bins) = bins(timeline, room);
    let mut ends = (u16::MAX, 0);
    for (bucket, _) in bins.iter().flat_map(|b| b.latency.filled()) {
        ends = (ends.0.min(bucket), ends.1.max(bucket));
    }
    let ends = if ends.0 > ends.1 { (64, 128) } else { ends };
    let us = |bucket: u16| bucket_begins(bucket) as f64 / 1000.0;
    let height = if size.narrow { 220.0 } else { 280.0 };
    let values = [us(ends.0), us(ends.1 + 1)].into_iter().chain(bound);
    let mut plot = Plot::new(
        size,
        height,
        "latency over time",
        time_axis(timeline, ""),
        Axis {
            scale: Scale::over(values),
            label: times,
            name: "latency, issue to completion",
        },
    );
    // Rows of several buckets, where one would be thinner than can be seen.
    let rows = f64::from(ends.1 - ends.0 + 1);
    let (_, top, _, bottom) = plot.area;
    let each = (2.6 * rows / (bottom - top)).ceil().max(1.0) as u16;
    let cells: Vec<BTreeMap<u16, u64>> = bins
        .iter()
        .map(|bin| {
            let mut column = BTreeMap::new();
            for (bucket, n) in bin.latency.filled() {
                *column.entry((bucket - ends.0) / each).or_default() += n;
            }
            column
        })
        .collect();
    let most = cells.iter().flat_map(|c| c.values()).copied().max();
    let most = most.unwrap_or(1);
    let mut strips: BTreeMap<(usize, u64), Vec<Strip>> = BTreeMap::new();
    let last = cells.iter().filter_map(|c| c.keys().next_back()).max();
    for row in 0..=last.copied().unwrap_or(0) {
        let low = plot.y(us(ends.0 + row * each));
        let high = plot.y(us((ends.0 + (row + 1) * each).min(ends.1 + 1)));
        let mut begun: Option<(usize, usize)> = None;
        for i in 0..=cells.len() {
            let here = cells.get(i).and_then(|c| c.get(&row));
            let here = here.map(|n| shade(*n, most));
            if begun.map(|(_, s)| s) == here {
                continue;
            }
            if let Some((from, shade)) = begun {
                let (x, to) = (plot.x(from as f64 * bin_s), plot.x(i as f64 * bin_s));
                // A hair more than its width: no seams between columns.
                let strip = (x, (low + high) / 2.0, to - x + 0.3);
                let thick = ((low - high + 0.3) * 10.0).round() as u64;
                strips.entry((shade, thick)).or_default().push(strip);
            }
            begun = here.map(|s| (i, s));
        }
    }
    for ((shade, thick), strips) in strips {
        let class = format!("h{shade}");
        plot.svg.strips(&strips, thick as f64 / 10.0, &class);
    }
    let middle = |i: usize| (i as f64 + 0.5) * bin_s;
    for (q, class) in [(0.5, "ln q50"), (0.99, "ln q99")] {
        let curve: Vec<_> = bins
            .iter()
            .enumerate()
            .map(|(i, b)| (middle(i), b.latency.quantile_us(q).unwrap_or(f64::NAN)))
            .collect();
        plot.curve(curve, class);
    }
    if let Some(us) = bound {
        plot.bound(us, &format!("LoadGen's bound, {}", text::time_us(us)));
    }
    plot.svg
}

fn throughput(timeline: &Timeline, size: Size) -> Svg {
    let room = if size.narrow { 150 } else { 300 };
    let (bin_s, bins) = bins(timeline, room);
    let rate = |n: u64| n as f64 / bin_s.max(1e-9);
    let end = timeline.ticks.len() as f64 * timeline.tick_ms as f64 / 1000.0;
    let top = bins.iter().map(|b| rate(b.completed.max(b.issued)));
    let top = top.fold(0.0, f64::max);
    let mut plot = Plot::new(
        size,
        150.0,
        "throughput over time",
        time_axis(timeline, ""),
        Axis {
            scale: Scale::up_to(top * 1.08),
            label: rates,
            name: "samples per second",
        },
    );
    let middle = |i: usize| ((i as f64 + 0.5) * bin_s).min(end);
    let of = |value: fn(&Bin) -> u64| -> Vec<(f64, f64)> {
        let bins = bins.iter().enumerate();
        bins.map(|(i, b)| (middle(i), rate(value(b)))).collect()
    };
    plot.filled(&of(|b| b.completed), "fill k-net soft");
    plot.curve(of(|b| b.completed), "ln k-net");
    plot.curve(of(|b| b.issued), "ln thin k-all dash");
    plot.svg
}

fn in_flight(timeline: &Timeline, slots: u64, size: Size) -> Svg {
    let room = if size.narrow { 150 } else { 300 };
    let (bin_s, bins) = bins(timeline, room);
    let top = bins.iter().map(|b| b.in_flight).max().unwrap_or(0);
    let near = slots > 0 && slots <= top.saturating_mul(2);
    let top = if near { top.max(slots) } else { top };
    let mut plot = Plot::new(
        size,
        130.0,
        "samples in flight over time",
        time_axis(timeline, "time since the first query"),
        Axis {
            scale: Scale::up_to(top as f64 * 1.15),
            label: rates,
            name: "samples in flight",
        },
    );
    let bins = bins.iter().enumerate();
    let end = timeline.ticks.len() as f64 * timeline.tick_ms as f64 / 1000.0;
    let points: Vec<_> = bins
        .map(|(i, b)| (((i as f64 + 0.5) * bin_s).min(end), b.in_flight as f64))
        .collect();
    plot.filled(&points, "fill k-wait soft");
    plot.curve(points, "ln k-wait");
    if near {
        plot.bound(slots as f64, &format!("all {} slots", text::grouped(slots)));
    }
    plot.svg
}

/// The class of a kind of event.
fn class(kind: &str) -> &'static str {
    match kind {
        "lost" | "watchdog" => "bad",
        "back" => "good",
        "sent_again" => "k-post",
        "rail" | "probe" => "k-wait",
        _ => "k-all",
    }
}

/// A lane of marks above the areas, and a line down through them.
fn events(svg: &mut Svg, timeline: &Timeline, area: (f64, f64), lane: f64, bottom: f64) {
    let numbered = timeline.events.len() <= NUMBERED;
    let scale = span(timeline);
    // The last end of what stands in each of three rows.
    let mut rows = [f64::NEG_INFINITY; 3];
    for (i, event) in timeline.events.iter().enumerate() {
        let x = area.0 + scale.at(event.at_s).clamp(0.0, 1.0) * (area.1 - area.0);
        let row = (0..3).find(|r| rows[*r] + 1.0 < x - 8.0).unwrap_or(2);
        rows[row] = x + 8.0;
        let y = lane + 9.0 + row as f64 * 18.0;
        let class = class(&event.kind);
        svg.line((x, y), (x, bottom), &format!("event {class}"));
        if numbered {
            svg.dot((x, y), 8.5, &format!("fill {class}"));
            svg.words((x, y + 3.8), At::Middle, "n on", &(i + 1).to_string());
        } else {
            svg.dot((x, y), 3.5, &format!("fill {class}"));
        }
    }
}

fn draw(run: &Run, timeline: &Timeline, size: Size) -> Svg {
    let heat = heat(timeline, run.bound_us(), size);
    let slots = run.summary.run.total().slots;
    let (rate, flight) = (throughput(timeline, size), in_flight(timeline, slots, size));
    let lane = if timeline.events.is_empty() {
        0.0
    } else {
        58.0
    };
    let heights = [lane, heat.height, rate.height - 12.0, flight.height];
    let mut svg = Svg::new(
        size.width,
        heights.iter().sum(),
        "latency, throughput and samples in flight over time, with what happened",
    );
    svg.put((0.0, lane), &heat);
    svg.put((0.0, lane + heights[1]), &rate);
    svg.put((0.0, lane + heights[1] + heights[2]), &flight);
    let area = (crate::draw::margin(size), size.width - 12.0);
    let bottom = svg.height - 36.0;
    events(&mut svg, timeline, area, 0.0, bottom);
    svg
}

fn listed(events: &[Event]) -> String {
    if events.is_empty() {
        return String::new();
    }
    let row = |(i, e): (usize, &Event)| {
        vec![
            Cell::Raw(format!("<b class=\"no {}\">{}</b>", class(&e.kind), i + 1)),
            Cell::figure(format!("{:.2} s", e.at_s)),
            Cell::words(e.kind.replace('_', " ")),
            Cell::words(&e.text),
        ]
    };
    let rows: Vec<_> = events.iter().enumerate().take(LISTED).map(row).collect();
    let more = events.len().saturating_sub(LISTED);
    let more = match more {
        0 => String::new(),
        n => format!(
            "<p>and {} more, in the data below.</p>",
            text::grouped(n as u64)
        ),
    };
    format!("{}{more}", table(&["", "when", "what", "in words"], &rows))
}

/// Throughput alone, of a run that kept no more.
fn seconds_alone(run: &Run) -> String {
    let per_second = &run.summary.run.throughput.per_second;
    if per_second.len() < 2 {
        return absent("The run kept nothing over time, and was too short for its throughput.");
    }
    let ticks = per_second.iter().map(|n| record::timeline::Tick {
        completed: *n,
        issued: *n,
        ..Default::default()
    });
    let timeline = Timeline {
        tick_ms: 1000,
        ticks: ticks.collect(),
        ..Timeline::default()
    };
    let picture = both(Size::FULL, |size| throughput(&timeline, size));
    figure(
        "course",
        "Throughput over time",
        &picture,
        "Samples completed in each second. `timeline.json` is not there: nothing else is known over time.",
    )
}

/// The picture.
pub fn picture(run: &Run) -> String {
    let Some(timeline) = run.timeline.as_ref().filter(|t| !t.ticks.is_empty()) else {
        return seconds_alone(run);
    };
    let picture = both(Size::FULL, |size| draw(run, timeline, size));
    let keys = legend(&[
        ("h1", "few samples"),
        ("h3", ""),
        ("h5", ""),
        ("h7", "many"),
        ("q50", "p50"),
        ("q99", "p99"),
        ("k-net", "completed"),
        ("k-all", "issued"),
    ]);
    let list = listed(&timeline.events);
    figure(
        "course",
        "The run over time",
        &format!("{keys}{picture}{list}"),
        "A cell is darker the more samples took that long at that time; its buckets are an eighth of \
         a factor of two wide. Numbers are what happened.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_go_from_one_sample_to_the_most() {
        assert_eq!((shade(1, 1000), shade(1000, 1000)), (1, SHADES));
        assert_eq!(shade(1, 1), SHADES);
        let all: Vec<usize> = [1, 3, 10, 30, 100, 300, 1000]
            .iter()
            .map(|n| shade(*n, 1000))
            .collect();
        assert!(all.windows(2).all(|w| w[0] <= w[1]), "{all:?}");
    }

    #[test]
    fn columns_hold_every_tick() {
        let tick = record::timeline::Tick {
            issued: 2,
            completed: 1,
            latency: vec![(100, 1)],
            ..Default::default()
        };
        let timeline = Timeline {
            tick_ms: 100,
            ticks: vec![tick; 601],
            ..Timeline::default()
        };
        let (seconds, bins) = bins(&timeline, 200);
        assert!(bins.len() <= 200 && (seconds - 0.4).abs() < 1e-9);
        assert_eq!(bins.iter().map(|b| b.completed).sum::<u64>(), 601);
        assert_eq!(bins.iter().map(|b| b.latency.total()).sum::<u64>(), 601);
    }
}
