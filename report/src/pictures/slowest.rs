//! Where the time of the slowest thousandth went.

use std::collections::BTreeMap;

use record::{Run, Stage, timeline::SlowSample};

use crate::text;

use super::{colour, percent, percentiles::stage_legend, stages::bar};
use crate::{
    draw::{At, Axis, Box4, Plot, Scale, Size, Svg, both, margin, rates, times},
    html::{absent, figure},
};

/// Nanoseconds of each stage of a sample, in the order of [`Stage::PARTS`].
fn parts(s: &SlowSample) -> [u64; 6] {
    [
        s.failed_ns,
        s.post_ns,
        s.network_ns,
        s.wait_ns,
        s.inference_ns,
        s.completion_ns,
    ]
}

/// Mean microseconds of each stage of these samples.
pub fn means(samples: &[SlowSample]) -> [f64; 6] {
    let mut sums = [0.0; 6];
    for s in samples {
        for (sum, ns) in sums.iter_mut().zip(parts(s)) {
            *sum += ns as f64 / 1000.0;
        }
    }
    sums.map(|us| us / samples.len().max(1) as f64)
}

fn named(means: [f64; 6]) -> Vec<(&'static str, &'static str, f64)> {
    let stages = Stage::PARTS.iter().zip(means);
    stages.map(|(s, us)| (colour(*s), s.label(), us)).collect()
}

/// Each sample a column, the slowest first.
fn columns(samples: &[SlowSample], size: Size) -> Svg {
    let top = samples.iter().map(|s| s.total_ns).max().unwrap_or(1) as f64 / 1000.0;
    let mut plot = Plot::new(
        size,
        230.0,
        "the slowest samples, stage by stage",
        Axis {
            scale: Scale::Linear(0.0, samples.len() as f64),
            label: rates,
            name: "samples, the slowest first",
        },
        Axis {
            scale: Scale::up_to(top),
            label: times,
            name: "time of a sample",
        },
    );
    let (left, _, right, bottom) = plot.area;
    let wide = (right - left) / samples.len() as f64;
    let gap = if wide > 5.0 { 1.0 } else { 0.0 };
    let mut boxes: BTreeMap<usize, Vec<Box4>> = BTreeMap::new();
    for (i, sample) in samples.iter().enumerate() {
        let x = left + i as f64 * wide;
        let mut below = 0.0;
        for (stage, ns) in parts(sample).into_iter().enumerate() {
            let (from, to) = (plot.y(below), plot.y(below + ns as f64 / 1000.0));
            below += ns as f64 / 1000.0;
            if from - to > 0.15 {
                let place = ((x, to.min(bottom)), (wide - gap, from - to));
                boxes.entry(stage).or_default().push(place);
            }
        }
    }
    for (stage, boxes) in boxes {
        let class = colour(Stage::PARTS[stage]);
        plot.svg.boxes(&boxes, &format!("fill {class}"));
    }
    plot.svg
}

/// The mean of these beside the mean of all samples, each as a bar of its own length.
fn beside(slow: [f64; 6], all: [f64; 6], size: Size) -> Svg {
    let sum = |m: &[f64; 6]| m.iter().sum::<f64>();
    let mut svg = Svg::new(
        size.width,
        84.0,
        "mean of the slowest beside the mean of all",
    );
    let left = if size.narrow { 0.0 } else { margin(size) };
    let right = size.width - if size.narrow { 0.0 } else { 12.0 };
    for (i, (name, means)) in [("the slowest", slow), ("all samples", all)]
        .iter()
        .enumerate()
    {
        let y = i as f64 * 42.0;
        let said = format!("{name}, on average {}", text::time_us(sum(means)));
        svg.words((left, y + 12.0), At::Start, "t", &said);
        bar(
            &mut svg,
            (left, y + 17.0),
            (right - left, 18.0),
            &named(*means),
            sum(means),
        );
    }
    svg
}

/// What most of them have in common, in words.
pub fn common(run: &Run, samples: &[SlowSample]) -> Vec<String> {
    let mut said = Vec::new();
    let n = samples.len();
    if n < 5 {
        return said;
    }
    let slow = means(samples);
    let whole: f64 = slow.iter().sum();
    if let Some((stage, us)) = Stage::PARTS
        .iter()
        .zip(slow)
        .max_by(|a, b| a.1.total_cmp(&b.1))
    {
        let share = percent(us / whole.max(1e-9));
        let name = stage.label();
        said.push(format!(
            "{share} of the time of the slowest {n} is `{name}`."
        ));
    }
    let connections = &run.summary.run.system.connections;
    let mut by: BTreeMap<u32, usize> = BTreeMap::new();
    samples
        .iter()
        .for_each(|s| *by.entry(s.connection).or_default() += 1);
    if let Some((at, count)) = by.into_iter().max_by_key(|(_, count)| *count)
        && connections.len() > 1
        && let Some(c) = connections.get(at as usize)
    {
        let all: u64 = connections.iter().map(|c| c.samples).sum();
        let (slow, fair) = (
            count as f64 / n as f64,
            c.samples as f64 / all.max(1) as f64,
        );
        if slow > 0.5 && slow > 1.5 * fair {
            let part = match count == n {
                true => "All".to_owned(),
                false => percent(slow),
            };
            said.push(format!(
                "{part} of them went over `{}`, which carried {} of all samples.",
                c.name,
                percent(fair)
            ));
        }
    }
    let mut at: Vec<f64> = samples.iter().map(|s| s.at_s).collect();
    at.sort_by(f64::total_cmp);
    let duration = run.summary.run.duration_s;
    let half = n.div_ceil(2);
    let tightest = (0..=n - half)
        .map(|i| (at[i], at[i + half - 1]))
        .min_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    if let Some((from, to)) = tightest
        && to - from < 0.1 * duration
    {
        said.push(format!(
            "Half of them were completed between {from:.2} s and {to:.2} s of {duration:.1} s."
        ));
    }
    said
}

/// The picture.
pub fn picture(run: &Run) -> String {
    let slow = run.timeline.as_ref().map(|t| &t.slowest[..]);
    let Some(slow) = slow.filter(|s| !s.is_empty()) else {
        return absent(
            "The slowest samples were not kept in this run: where their time went is not known.",
        );
    };
    let all = Stage::PARTS.map(|s| run.summary.run.stages.get(s).map_or(0.0, |r| r.mean_us));
    let bars = both(Size::FULL, |size| beside(means(slow), all, size));
    let columns = both(Size::FULL, |size| columns(slow, size));
    let said = common(run, slow).join(" ");
    let note = format!("{said} Each column is one sample, kept whole while the run went on.");
    let picture = format!("{}{bars}{columns}", stage_legend(false));
    let title = format!("Where the time of the slowest {} samples went", slow.len());
    figure("slowest", &title, &picture, &note)
}
