//! The pictures of each accelerator: batches, computing and copying.

use record::{
    AcceleratorRecord, BatchSizes, GpuRecord, RunFolder,
    timeline::{EngineTick, NodeSide, Timeline},
};

use super::{course::Axis, percent};
use crate::{
    chart::{Chart, Style, Unit, beside},
    html::{Cell, absent, columns, escape, figure, paragraph, row, table},
    text,
};

fn sizes(batches: &BatchSizes) -> String {
    let each = batches.iter().map(|(size, n)| (size as f64, n as f64));
    let (x, counts): (Vec<f64>, Vec<f64>) = each.unzip();
    let title = "Batches, by samples in them";
    let mut chart = Chart::new(title, Style::Bars, (Unit::Count, Unit::Count), x);
    chart.line("batches", Some("inf"), counts);
    chart.html()
}

/// Charts over time: engine threads at work, and samples in a batch.
fn over_time(side: &NodeSide, timeline: &Timeline, workers: u32) -> [String; 2] {
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
    let threads = match threads.is_zero() {
        true => String::new(),
        false => threads.html(),
    };
    [threads, batches.html()]
}

fn gpus(gpus: &[GpuRecord], seconds: f64) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let of = |g: &GpuRecord| {
        let n = g.batches.batches().max(1) as f64;
        let each = |us: u64| text::time_us(us as f64 / n);
        let figures = [
            text::grouped(g.batches.batches()),
            text::three(g.batches.mean()),
            each(g.copy_in_us),
            each(g.compute_us),
            each(g.copy_out_us),
            text::bytes(g.bytes_in),
            percent(g.compute_us as f64 / 1e6 / seconds.max(1e-9)),
            percent(g.graphs as f64 / n),
            percent(g.in_place as f64 / n),
        ];
        row(Cell::words(format!("{} {}", g.index, g.name)), figures)
    };
    let rows: Vec<_> = gpus.iter().map(of).collect();
    let heading = "GPU|batches|mean size|copy in, each|compute, each|copy out, each|bytes in|\
        compute, of the run|as graphs|in place";
    format!("<h5>GPUs</h5>{}", table(&columns(heading), &rows))
}

fn words(a: &AcceleratorRecord) -> String {
    let n = |v: Option<u64>| v.map_or_else(|| "?".to_owned(), text::grouped);
    let used = &a.used.engine;
    let share = match (used.workers, a.used.clock_us) {
        (0, _) | (_, 0) => String::new(),
        (workers, clock) => {
            let share = percent(used.busy_us as f64 / (f64::from(workers) * clock as f64));
            format!("; its engine threads ({workers}) computed {share} of the time")
        }
    };
    let mean = text::three(a.batches.mean());
    let in_batches = match a.batches.batches() {
        // The engine batches by itself.
        0 => String::new(),
        1 => format!(" in one batch of {mean} on average"),
        b => format!(" in {} batches of {mean} on average", text::grouped(b)),
    };
    let lost = match &a.lost {
        Some(why) => format!("; lost: {why}"),
        None => String::new(),
    };
    format!(
        "Engine `{}`, {}: {} samples arrived, {} answered{in_batches}{share}{lost}.",
        a.engine,
        text::counted(a.connections as u64, "connection"),
        n(a.arrived),
        n(a.samples),
    )
}

fn one(run: &RunFolder, a: &AcceleratorRecord) -> String {
    let mut html = format!("<h4>{}</h4>{}", escape(&a.node), paragraph(&words(a)));
    let mut charts = vec![sizes(&a.batches)];
    let timeline = run.timeline.as_ref();
    let side = timeline.and_then(|t| t.nodes.iter().find(|n| n.node == a.node));
    if let (Some(t), Some(side)) = (timeline, side) {
        charts.extend(over_time(side, t, a.used.engine.workers));
    }
    html.push_str(&beside(&charts));
    html.push_str(&gpus(&a.gpus, run.summary.run.duration_s));
    html
}

pub fn picture(run: &RunFolder) -> String {
    let accelerators = &run.summary.run.system.accelerators;
    if accelerators.is_empty() {
        return absent("No accelerator told of itself.");
    }
    let all: String = accelerators.iter().map(|a| one(run, a)).collect();
    figure(
        "engines",
        "Accelerators: batches and computing",
        &all,
        "As each accelerator told it over the control connection at the run's end. An engine that \
         computes all the time is the limit; one that does not waits for samples.",
    )
}
