//! Groups of runs over one another.

use record::{Run, Stage};

use crate::text;

use super::{
    differences::{Found, change},
    groups::Group,
};
use crate::{
    draw::{At, Axis, Plot, Scale, Size, Svg, both, rates, seconds, times},
    html::{absent, figure, legend},
    pictures::{
        SCHEDULED, colour, course,
        percentiles::{self, Curve, stage_legend},
        stages::{Means, bar},
    },
};

/// Changes that are marked on the axis, in percent.
const MARKS: [f64; 15] = [
    -90.0, -75.0, -50.0, -25.0, -10.0, -5.0, -2.0, 0.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 300.0,
];

fn row_height(size: Size) -> f64 {
    if size.narrow { 46.0 } else { 28.0 }
}

/// A point with its interval for each figure of each group.
fn forest(found: &[Found], size: Size) -> Svg {
    let rows: usize = found.iter().map(|f| f.all.len() + 1).sum();
    let each = row_height(size);
    let mut svg = Svg::new(
        size.width,
        rows as f64 * each + 30.0,
        "differences with their intervals",
    );
    let (left, right) = match size.narrow {
        true => (6.0, size.width - 6.0),
        false => (110.0, size.width - 400.0),
    };
    let ends = found.iter().flat_map(|f| &f.all).flat_map(|d| {
        let (low, high) = d.interval.unwrap_or((d.ratio, d.ratio));
        [d.ratio, low, high].map(|r| r.max(0.02).ln().abs())
    });
    let reach = ends.fold(0.05, f64::max) * 1.1;
    let x = |ratio: f64| {
        let share = (ratio.max(0.02).ln() / reach + 1.0) / 2.0;
        left + share.clamp(0.0, 1.0) * (right - left)
    };
    let bottom = svg.height - 24.0;
    let mut free = f64::NEG_INFINITY;
    for mark in MARKS {
        let ratio: f64 = 1.0 + mark / 100.0;
        if ratio.ln().abs() > reach {
            continue;
        }
        let at = x(ratio);
        svg.line(
            (at, 0.0),
            (at, bottom),
            if mark == 0.0 { "ax" } else { "g" },
        );
        let label = format!("{mark:+.0} %");
        let half = crate::draw::width_of(&label, 12.0) / 2.0;
        if at - half > free {
            let middle = at.clamp(half, size.width - half);
            svg.words(
                (middle, bottom + 16.0),
                At::Middle,
                "t",
                if mark == 0.0 { "0" } else { &label },
            );
            free = at + half + 8.0;
        }
    }
    let mut y = 0.0;
    for f in found {
        svg.dot((6.0, y + 15.0), 5.0, &format!("fill {}", f.class));
        let head = format!("{} against {}", f.names.1, f.names.0);
        svg.words((18.0, y + 19.5), At::Start, "t b halo", &head);
        y += each;
        for d in &f.all {
            let middle = if size.narrow {
                y + 30.0
            } else {
                y + each / 2.0
            };
            let words = if size.narrow { y + 14.0 } else { middle + 4.0 };
            let name_x = if size.narrow { 0.0 } else { 18.0 };
            svg.words((name_x, words), At::Start, "t halo", &d.figure.name());
            if let Some((low, high)) = d.interval {
                let class = format!("ln {}", f.class);
                svg.line((x(low), middle), (x(high), middle), &class);
                for end in [low, high] {
                    svg.line((x(end), middle - 4.0), (x(end), middle + 4.0), &class);
                }
            }
            svg.dot((x(d.ratio), middle), 4.5, &format!("fill {}", f.class));
            let values = format!(
                "{} to {}",
                d.figure.said(d.values.0),
                d.figure.said(d.values.1)
            );
            let noise = match d.is_real() {
                Some(true) => "",
                Some(false) => ", noise",
                None => "",
            };
            let said = format!("{}{noise}", change(d.ratio, d.figure));
            if size.narrow {
                svg.words((size.width, words), At::End, "t halo", &said);
            } else {
                svg.words((right + 18.0, words), At::Start, "t b", &said);
                svg.words((size.width, words), At::End, "t m", &values);
            }
            y += each;
        }
    }
    svg
}

/// The differences.
pub fn differences(found: &[Found]) -> String {
    if found.iter().all(|f| f.all.is_empty()) {
        return String::new();
    }
    let kept = found
        .iter()
        .any(|f| f.all.iter().any(|d| d.interval.is_some()));
    let without = format!("There are no intervals: {}.", found[0].without);
    let note = if kept {
        "Bars are 95 % intervals of a bootstrap over blocks of ticks, and over runs where a setting was \
         repeated. A bar across the upright line is noise."
    } else {
        &without
    };
    figure(
        "differences",
        "Differences",
        &both(Size::FULL, |size| forest(found, size)),
        note,
    )
}

/// Mean stages of each group, on one scale.
fn stages(groups: &[Group<'_>], size: Size) -> Svg {
    let means: Vec<Vec<(&str, &str, f64)>> = groups
        .iter()
        .map(|g| {
            let known = g.runs.iter().all(|r| Means::of(r).scheduled.is_some());
            let first = known.then(|| {
                let mean = g.mean(|r| Means::of(r).scheduled.unwrap_or(0.0).max(0.0));
                (SCHEDULED, "scheduled -> issue", mean)
            });
            let parts = Stage::PARTS.iter().map(|s| {
                let of = |r: &Run| r.summary.run.stages.get(*s).map_or(0.0, |row| row.mean_us);
                (colour(*s), s.label(), g.mean(of))
            });
            first.into_iter().chain(parts).collect()
        })
        .collect();
    let sum = |m: &Vec<(&str, &str, f64)>| m.iter().map(|s| s.2).sum::<f64>();
    let top = means.iter().map(sum).fold(0.0, f64::max);
    let mut svg = Svg::new(
        size.width,
        groups.len() as f64 * 46.0,
        "mean stages of each group",
    );
    for (i, (group, means)) in groups.iter().zip(&means).enumerate() {
        let y = i as f64 * 46.0;
        svg.words((0.0, y + 13.0), At::Start, "t b", &group.name);
        svg.words(
            (size.width, y + 13.0),
            At::End,
            "t",
            &text::time_us(sum(means)),
        );
        bar(&mut svg, (0.0, y + 18.0), (size.width, 20.0), means, top);
    }
    svg
}

/// Percentiles and stages.
pub fn latency(groups: &[Group<'_>]) -> String {
    let totals: Vec<_> = groups.iter().map(Group::total).collect();
    let curves: Vec<Curve<'_>> = groups
        .iter()
        .zip(&totals)
        .filter_map(|(g, t)| Some((g.class, g.name.clone(), t.as_ref()?)))
        .collect();
    let left = if curves.is_empty() {
        absent("There are no histograms: `latency.hlog` is in none of the folders.")
    } else {
        let bound = groups[0].runs[0].bound_us();
        let bound = bound.map(|us| (us, format!("LoadGen's bound, {}", text::time_us(us))));
        let picture = both(Size::HALF, |size| {
            percentiles::draw(&curves, bound.as_ref(), size)
        });
        let key = both(Size::HALF, |size| percentiles::key(&curves, size));
        let note = "From issue to completion, repetitions together.";
        figure(
            "percentiles",
            "Each percentile",
            &format!("{picture}{key}"),
            note,
        )
    };
    let right = format!(
        "{}{}",
        stage_legend(true),
        both(Size::HALF, |size| stages(groups, size))
    );
    let right = figure(
        "stages",
        "Where the time goes, on average",
        &right,
        "One scale for all.",
    );
    format!("<div class=\"two\"><div>{left}</div><div>{right}</div></div>")
}

/// One curve over time of each run.
fn course(
    groups: &[Group<'_>],
    size: Size,
    name: &'static str,
    log: bool,
    of: impl Fn(&course::Bin, f64) -> f64,
) -> Svg {
    let mut curves = Vec::new();
    let mut end: f64 = 0.0;
    for group in groups {
        for timeline in group.runs.iter().filter_map(|r| r.timeline.as_ref()) {
            let (bin_s, bins) = course::bins(timeline, 120);
            end = end.max(bins.len() as f64 * bin_s);
            let bins = bins.iter().enumerate();
            let points: Vec<_> = bins
                .map(|(i, b)| ((i as f64 + 0.5) * bin_s, of(b, bin_s)))
                .collect();
            curves.push((group.class, points));
        }
    }
    let values = curves.iter().flat_map(|c| c.1.iter().map(|p| p.1));
    let scale = if log {
        Scale::over(values)
    } else {
        Scale::up_to(values.filter(|v| v.is_finite()).fold(0.0, f64::max) * 1.08)
    };
    let mut plot = Plot::new(
        size,
        220.0,
        name,
        Axis {
            scale: Scale::up_to(end),
            label: seconds,
            name: "time since the first query",
        },
        Axis {
            scale,
            label: if log { times } else { rates },
            name,
        },
    );
    for (class, points) in curves {
        plot.curve(points, &format!("ln {class}"));
    }
    plot.svg
}

/// Throughput and p99 over time.
pub fn over_time(groups: &[Group<'_>]) -> String {
    let kept = groups.iter().flat_map(|g| &g.runs);
    if !kept.clone().any(|r| r.timeline.is_some()) {
        return absent("None of these runs kept a timeline.");
    }
    let entries: Vec<(&str, &str)> = groups.iter().map(|g| (g.class, g.name.as_str())).collect();
    let rate = |bin: &course::Bin, s: f64| bin.completed as f64 / s.max(1e-9);
    let p99 = |bin: &course::Bin, _: f64| bin.latency.quantile_us(0.99).unwrap_or(f64::NAN);
    let left = both(Size::HALF, |s| {
        course(groups, s, "samples per second", false, rate)
    });
    let right = both(Size::HALF, |s| {
        course(groups, s, "p99 at that time", true, p99)
    });
    let left = figure(
        "rate",
        "Throughput",
        &format!("{}{left}", legend(&entries)),
        "A curve for each run.",
    );
    let right = figure(
        "p99",
        "p99 over time",
        &format!("{}{right}", legend(&entries)),
        "A curve for each run.",
    );
    format!("<div class=\"two\"><div>{left}</div><div>{right}</div></div>")
}
