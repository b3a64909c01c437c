//! Batches, computing and copying of each accelerator.

use record::{
    AcceleratorRecord, BatchSizes, GpuRecord, Run,
    timeline::{EngineTick, NodeSide, Timeline},
};

use crate::text;

use super::percent;
use crate::{
    draw::{At, Axis, Plot, Scale, Size, Svg, both, rates, seconds},
    html::{Cell, absent, escape, figure, legend, table},
};

/// Sizes that have a bar each; more are put together by factors of two.
const SIZES: usize = 24;
/// Columns over time.
const COLUMNS: usize = 240;

/// Names of groups of sizes, and batches in them.
fn groups(batches: &BatchSizes) -> Vec<(String, u64)> {
    if batches.max() <= SIZES {
        let mut all: Vec<(String, u64)> = (1..=batches.max()).map(|n| (n.to_string(), 0)).collect();
        for (size, n) in batches.iter() {
            if let Some(group) = size.checked_sub(1).and_then(|i| all.get_mut(i)) {
                group.1 += n;
            }
        }
        return all;
    }
    let octaves = batches.max().ilog2() as usize + 1;
    let mut all = vec![0u64; octaves];
    for (size, n) in batches.iter() {
        all[size.max(1).ilog2() as usize] += n;
    }
    let name = |o: usize| match (1usize << o, ((2usize << o) - 1).min(batches.max())) {
        (a, b) if a == b => a.to_string(),
        (a, b) => format!("{a}-{b}"),
    };
    all.into_iter()
        .enumerate()
        .map(|(o, n)| (name(o), n))
        .collect()
}

fn sizes(batches: &BatchSizes, size: Size) -> Svg {
    let groups = groups(batches);
    let mut svg = Svg::new(size.width, 168.0, "batches by size");
    let (top, base) = (34.0, 144.0);
    let most = groups.iter().map(|g| g.1).max().unwrap_or(0).max(1) as f64;
    let wide = size.width / groups.len().max(1) as f64;
    svg.words((0.0, 13.0), At::Start, "t m", "batches, by samples in them");
    let every = (26.0 / wide).ceil().max(1.0) as usize;
    for (i, (name, n)) in groups.iter().enumerate() {
        let x = i as f64 * wide;
        let high = *n as f64 / most * (base - top);
        let title = format!("{name}: {} batches", text::grouped(*n));
        if *n > 0 {
            let place = (x + 1.5, base - high.max(1.0));
            let room = (wide - 3.0).min(64.0);
            let place = (place.0 + (wide - 3.0 - room) / 2.0, place.1);
            svg.titled(place, (room, high.max(1.0)), "fill k-inf", &title);
            if wide > 44.0 {
                let said = text::short(*n);
                let above = (x + wide / 2.0, base - high.max(1.0) - 4.0);
                svg.words(above, At::Middle, "t", &said);
            }
        }
        if i % every == 0 {
            svg.words((x + wide / 2.0, base + 16.0), At::Middle, "t", name);
        }
    }
    svg.line((0.0, base), (size.width, base), "ax");
    svg
}

fn over_time(side: &NodeSide, timeline: &Timeline, workers: u32, size: Size) -> Svg {
    let of_run_s = timeline.tick_ms as f64 / 1000.0;
    let tick_s = match side.tick_ms {
        0 => of_run_s,
        own => own as f64 / 1000.0,
    };
    let each = side.engines.len().div_ceil(COLUMNS).max(1);
    let columns = EngineTick::longer(&side.engines, each);
    let seconds_each = each as f64 * tick_s;
    let own_end = side.begins_s + side.engines.len() as f64 * tick_s;
    let end = (timeline.ticks.len() as f64 * of_run_s).max(own_end);
    let at = |i: usize| side.begins_s + (i as f64 + 0.5) * seconds_each;
    let x = |name| Axis {
        scale: Scale::up_to(end),
        label: seconds,
        name,
    };
    let of = |value: &dyn Fn(&EngineTick) -> f64| -> Vec<(f64, f64)> {
        let columns = columns.iter().enumerate();
        columns.map(|(i, c)| (at(i), value(c))).collect()
    };
    let busy = of(&|c| c.computed_us as f64 / 1e6 / seconds_each);
    let copied = of(&|c| c.copied_us as f64 / 1e6 / seconds_each);
    let top = busy.iter().map(|b| b.1).fold(f64::from(workers), f64::max);
    let y = Axis {
        scale: Scale::up_to(top * 1.12),
        label: rates,
        name: "engine threads computing",
    };
    let mut upper = Plot::new(size, 140.0, "engine threads computing", x(""), y);
    upper.filled(&busy, "fill k-inf soft");
    upper.curve(busy, "ln k-inf");
    if copied.iter().any(|c| c.1 > 0.0) {
        upper.curve(copied, "ln k-post");
    }
    if workers > 0 {
        upper.bound(f64::from(workers), &format!("all {workers}"));
    }
    let mean = |c: &EngineTick| {
        let n: f64 = c.batches.iter().map(|b| b.1 as f64).sum();
        let samples: f64 = c.batches.iter().map(|b| f64::from(b.0) * b.1 as f64).sum();
        // No batch: 0 / 0, which is no number and has no point.
        samples / n
    };
    let means = of(&mean);
    let top = means.iter().map(|m| m.1).filter(|m| m.is_finite());
    let y = Axis {
        scale: Scale::up_to(top.fold(1.0, f64::max) * 1.12),
        label: rates,
        name: "samples in a batch, on average",
    };
    let mut lower = Plot::new(
        size,
        140.0,
        "samples in a batch",
        x("time since the first query"),
        y,
    );
    lower.curve(means, "ln k-wait");
    let mut svg = Svg::new(size.width, 272.0, "computing and batches over time");
    svg.put((0.0, 0.0), &upper.svg);
    svg.put((0.0, 130.0), &lower.svg);
    svg
}

fn gpus(gpus: &[GpuRecord], seconds: f64) -> String {
    if gpus.is_empty() {
        return String::new();
    }
    let row = |g: &GpuRecord| {
        let n = g.batches.batches().max(1) as f64;
        let each = |us: u64| text::time_us(us as f64 / n);
        vec![
            Cell::words(format!("{} {}", g.index, g.name)),
            Cell::figure(text::grouped(g.batches.batches())),
            Cell::figure(text::three(g.batches.mean())),
            Cell::figure(each(g.copy_in_us)),
            Cell::figure(each(g.compute_us)),
            Cell::figure(each(g.copy_out_us)),
            Cell::figure(text::bytes(g.bytes_in)),
            Cell::figure(percent(g.compute_us as f64 / 1e6 / seconds.max(1e-9))),
            Cell::figure(percent(g.graphs as f64 / n)),
            Cell::figure(percent(g.in_place as f64 / n)),
        ]
    };
    let rows: Vec<_> = gpus.iter().map(row).collect();
    let heading = [
        "GPU",
        "batches",
        "mean size",
        "copy in, each",
        "compute, each",
        "copy out, each",
        "bytes in",
        "compute, of the run",
        "as graphs",
        "in place",
    ];
    format!("<h5>GPUs</h5>{}", table(&heading, &rows))
}

fn words(a: &AcceleratorRecord) -> String {
    let n = |v: Option<u64>| v.map_or_else(|| "?".to_owned(), text::grouped);
    let used = &a.used.engine;
    let share = match (used.workers, a.used.clock_us) {
        (0, _) | (_, 0) => String::new(),
        (workers, clock) => {
            let share = used.busy_us as f64 / (f64::from(workers) * clock as f64);
            format!(
                "; its engine threads ({workers}) computed {} of the time",
                percent(share)
            )
        }
    };
    let lost = match &a.lost {
        Some(why) => format!("; lost: {why}"),
        None => String::new(),
    };
    format!(
        "Engine `{}`, {}: {} samples arrived, {} answered in {} of {} on average{share}{lost}.",
        a.engine,
        text::counted(a.connections as u64, "connection"),
        n(a.arrived),
        n(a.samples),
        match a.batches.batches() {
            1 => "one batch".to_owned(),
            b => format!("{} batches", text::grouped(b)),
        },
        text::three(a.batches.mean())
    )
}

fn one(run: &Run, a: &AcceleratorRecord) -> String {
    let mut html = format!(
        "<h4>{}</h4>{}",
        escape(&a.node),
        crate::html::paragraph(&words(a))
    );
    let mut parts = Vec::new();
    if a.batches.batches() > 0 {
        parts.push(both(Size::HALF, |size| sizes(&a.batches, size)));
    }
    let timeline = run.timeline.as_ref();
    let side = timeline.and_then(|t| t.nodes.iter().find(|n| n.node == a.node));
    if let (Some(t), Some(side)) = (timeline, side.filter(|s| s.engines.len() > 1)) {
        let workers = a.used.engine.workers;
        let mut over_time = both(Size::HALF, |size| over_time(side, t, workers, size));
        if side.engines.iter().any(|e| e.copied_us > 0) {
            over_time.push_str(&legend(&[
                ("k-inf", "computing"),
                ("k-post", "of that, copying"),
            ]));
        }
        parts.push(over_time);
    }
    let parts = parts
        .iter()
        .map(|p| format!("<div class=\"part\">{p}</div>"));
    let parts: String = parts.collect();
    html.push_str(&format!("<div class=\"parts\">{parts}</div>"));
    html.push_str(&gpus(&a.gpus, run.summary.run.duration_s));
    html
}

/// The picture.
pub fn picture(run: &Run) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_sizes_have_a_bar_each_and_many_are_put_together() {
        let mut few = BatchSizes::new(64);
        [1, 1, 4].iter().for_each(|n| few.record(*n));
        let named: Vec<_> = groups(&few);
        let expected = [("1", 2), ("2", 0), ("3", 0), ("4", 1)].map(|(n, c)| (n.to_owned(), c));
        assert_eq!(named, expected);
        let mut many = BatchSizes::new(64);
        [1, 3, 40, 50].iter().for_each(|n| many.record(*n));
        let names: Vec<String> = groups(&many)
            .into_iter()
            .map(|g| format!("{} x{}", g.0, g.1))
            .collect();
        assert_eq!(
            names,
            [
                "1 x1", "2-3 x1", "4-7 x0", "8-15 x0", "16-31 x0", "32-50 x2"
            ]
        );
    }
}
