//! The pictures of each accelerator: batches, computing and copying.

use record::{
    AcceleratorRecord, BatchSizes, GpuRecord, NodeRole, RunFolder,
    timeline::{EngineTick, NodeSide, Timeline},
};

use super::{course::Axis, or_dash};
use crate::{
    chart::{Chart, Style, Unit},
    model::{Cell, Part, absent, figure, row, table},
    text::{bytes, grouped, percent, three, time_us},
};

fn sizes(batches: &BatchSizes) -> Part {
    let each = batches.iter().map(|(size, n)| (size as f64, n as f64));
    let (x, counts): (Vec<f64>, Vec<f64>) = each.unzip();
    let title = "Batches, by samples in them";
    let mut chart = Chart::new(title, Style::Bars, (Unit::Count, Unit::Count), x);
    chart.line("batches", Some("inf"), counts);
    Part::Chart(chart)
}

/// Charts over time: engine threads at work, and samples in a batch.
fn over_time(side: &NodeSide, timeline: &Timeline, workers: u32) -> Vec<Part> {
    let axis = Axis::of_node(side, timeline, side.engines.len());
    let columns = EngineTick::longer(&side.engines, axis.each);
    let units = (Unit::Seconds, Unit::Count);
    let at_work = |us: u64| us as f64 / 1e6 / axis.each_s;
    let title = "Engine threads computing";
    let mut threads = Chart::new(title, Style::Lines, units, axis.x.clone());
    let computing = columns.iter().map(|c| at_work(c.computed_us));
    threads.line("computing", Some("inf"), computing);
    if columns.iter().any(|c| c.copied_us > 0) {
        let copied = columns.iter().map(|c| at_work(c.copied_us));
        threads.line("of that, copying", Some("post"), copied);
    }
    threads.bound((workers > 0).then_some(f64::from(workers)), "all of them");
    let mean = |c: &EngineTick| {
        let n: f64 = c.batches.iter().map(|b| b.1 as f64).sum();
        let samples: f64 = c.batches.iter().map(|b| f64::from(b.0) * b.1 as f64).sum();
        // Without a batch the mean is 0 / 0 = NaN, a gap.
        samples / n
    };
    let title = "Samples in a batch, on average";
    let mut batches = Chart::new(title, Style::Lines, units, axis.x.clone());
    batches.line("samples", Some("wait"), columns.iter().map(mean));
    let threads = (!threads.is_zero()).then_some(threads);
    threads
        .into_iter()
        .chain([batches])
        .map(Part::Chart)
        .collect()
}

fn gpus(a: &AcceleratorRecord, seconds: f64) -> Option<Part> {
    let of = |g: &GpuRecord| {
        let n = g.batches.batches().max(1) as f64;
        let each = |us: u64| time_us(us as f64 / n);
        let figures = [
            grouped(g.batches.batches()),
            three(g.batches.mean()),
            three(g.copies_in as f64 / n),
            each(g.copy_in_us),
            each(g.compute_us),
            each(g.copy_out_us),
            bytes(g.bytes_in),
            percent(g.compute_us as f64 / 1e6 / seconds.max(1e-9)),
            percent(g.graphs as f64 / n),
            percent(g.in_place as f64 / n),
        ];
        row(Cell::words(format!("{} {}", g.index, g.name)), figures)
    };
    let heading = "GPU|batches|mean size|copies in, each|copy in, each|compute, each|\
        copy out, each|bytes in|compute, of the run|as graphs|in place";
    (!a.gpus.is_empty()).then(|| table(heading, a.gpus.iter().map(of).collect()))
}

/// Up to when the counts of a lost accelerator are complete: its last heartbeat.
fn as_of(a: &AcceleratorRecord) -> Option<String> {
    let last = a.lost_sessions.iter().rev().find_map(|s| s.as_of_s);
    a.lost_sessions.last()?;
    Some(match (a.samples, last) {
        (Some(_), Some(s)) => format!("without what its lost session did after {s:.1} s"),
        (Some(_), None) => "without a session lost before the first query".to_owned(),
        (None, Some(s)) => format!("as of {s:.1} s"),
        (None, None) => "as of before the first query".to_owned(),
    })
}

/// What each accelerator answered, in which batches. Counts include the warm-up.
fn answered(all: &[AcceleratorRecord]) -> Part {
    let of = |a: &AcceleratorRecord| {
        let used = &a.used.engine;
        let time = f64::from(used.workers) * a.used.clock_us as f64;
        let lost = a.lost_sessions.iter();
        let arrived = a.arrived.into_iter().chain(lost.clone().map(|s| s.arrived));
        let lost: u64 = lost.map(|s| s.batches).sum();
        let batches = a.batches.batches().saturating_add(lost);
        let is_whole = lost == 0 && batches > 0;
        let figures = [
            grouped(a.connections as u64),
            or_dash(arrived.reduce(u64::saturating_add).map(grouped)),
            or_dash(a.answered().map(grouped)),
            grouped(batches),
            or_dash(is_whole.then(|| three(a.batches.mean()))),
            or_dash(is_whole.then(|| grouped(a.batches.max() as u64))),
            or_dash((time > 0.0).then(|| percent(used.busy_us as f64 / time))),
        ];
        let engine = match a.role {
            NodeRole::Both => a.engine.clone(),
            role => format!("{}, {role}", a.engine),
        };
        let cells = [Cell::words(&engine)].into_iter();
        let cells = cells.chain(figures.map(Cell::Figure));
        let remark = a.lost.as_ref().map(|why| format!("lost: {why}"));
        let remark = [remark, as_of(a)].into_iter().flatten().collect::<Vec<_>>();
        let cells = cells.chain([Cell::words(remark.join("; "))]);
        [Cell::words(&a.node)].into_iter().chain(cells).collect()
    };
    let heading = "accelerator|engine|connections|arrived|answered|batches|mean size|max size|\
        engine busy|";
    table(heading, all.iter().map(of).collect())
}

fn one(run: &RunFolder, a: &AcceleratorRecord) -> Vec<Part> {
    let mut charts = vec![sizes(&a.batches)];
    let timeline = run.timeline.as_ref();
    let side = timeline.and_then(|t| t.nodes.iter().find(|n| n.node == a.node));
    if let (Some(t), Some(side)) = (timeline, side) {
        charts.extend(over_time(side, t, a.used.engine.workers));
    }
    let batching = (!a.batching.is_empty()).then(|| absent(&a.batching));
    let mut parts = vec![Part::Title(a.node.clone()), Part::Group("charts", charts)];
    parts.extend(
        batching
            .into_iter()
            .chain(gpus(a, run.summary.run.duration_s)),
    );
    parts
}

pub fn picture(run: &RunFolder) -> Part {
    let accelerators = &run.summary.run.system.accelerators;
    if accelerators.is_empty() {
        return absent("No accelerator told of itself.");
    }
    let each = accelerators.iter().flat_map(|a| one(run, a));
    let parts = [answered(accelerators)].into_iter().chain(each).collect();
    figure(
        "engines",
        "Accelerators: batches and computing",
        parts,
        "As each accelerator told it over the control connection at the run's end, with the \
         warm-up's samples. An engine that computes all the time is the limit; one that does not \
         waits for samples.",
    )
}
