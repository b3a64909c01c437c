//! Each stage at each percentile, on HdrHistogram's axis.

use crate::text;
use hdrhistogram::Histogram;
use record::{Run, Stage, TokenTime};

use super::{colour, percent};
use crate::{
    draw::{At, Axis, Plot, Scale, Size, Svg, both, times, width_of},
    html::{absent, figure, legend},
};

/// Points of a curve for each halving of the distance to 100 %.
const POINTS: u32 = 6;

/// A curve: its class, its name, its histogram.
pub type Curve<'a> = (&'a str, String, &'a Histogram<u64>);

/// Quantiles and microseconds. HdrHistogram goes on to where one sample is left.
pub fn points(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let last = 1.0 - 1.0 / (histogram.len().max(2) as f64);
    let mut points: Vec<(f64, f64)> = histogram
        .iter_quantiles(POINTS)
        .map(|step| {
            let quantile = step.quantile_iterated_to().min(last);
            (quantile, step.value_iterated_to().max(1) as f64 / 1000.0)
        })
        .collect();
    // Steps closer together than the picture shows, in a stage of a few values.
    points.dedup_by(|b, a| b == a);
    points
}

fn us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile).max(1) as f64 / 1000.0
}

/// The curves over one another.
pub fn draw(curves: &[Curve<'_>], bound: Option<&(f64, String)>, size: Size) -> Svg {
    let count = curves.iter().map(|c| c.2.len()).max().unwrap_or(0);
    let ends = curves.iter().flat_map(|c| [us(c.2, 0.0), us(c.2, 1.0)]);
    let ends = ends.chain(bound.map(|b| b.0)).map(|v| v.max(0.1));
    let mut plot = Plot::new(
        size,
        if size.narrow { 300.0 } else { 350.0 },
        "latency at each percentile",
        Axis {
            scale: Scale::of_samples(count),
            label: times,
            name: "percentile",
        },
        Axis {
            scale: Scale::over(ends),
            label: times,
            name: "time",
        },
    );
    if let Some((value, word)) = bound {
        plot.bound(*value, word);
    }
    for (class, _, histogram) in curves {
        plot.curve(points(histogram), &format!("ln {class}"));
    }
    plot.svg
}

/// What is read off a picture with a pointer, and needed without: p50, p99 and p99.9 of each curve.
pub fn key(curves: &[Curve<'_>], size: Size) -> Svg {
    let names = curves.iter().map(|c| width_of(&c.1, 12.5));
    let first = names.fold(60.0, f64::max) + 26.0;
    let columns = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
    // A hand is too narrow for four of them.
    let columns = columns.into_iter().filter(|c| !size.narrow || c.0 != "p90");
    let columns: Vec<(&str, f64)> = columns.collect();
    let step = ((size.width - first) / columns.len() as f64).min(92.0);
    let each = 18.0;
    let height = (curves.len() as f64 + 1.0) * each + 4.0;
    let mut svg = Svg::new(size.width, height, "p50, p90, p99 and p99.9 of each curve");
    for (c, (name, _)) in columns.iter().enumerate() {
        let x = first + step * (c as f64 + 1.0);
        svg.words((x, 12.0), At::End, "t m", name);
    }
    for (i, (class, name, histogram)) in curves.iter().enumerate() {
        let y = (i as f64 + 1.0) * each + 12.0;
        svg.rounded((0.0, y - 9.0), (14.0, 9.0), 2.0, &format!("fill {class}"));
        svg.words((20.0, y), At::Start, "t", name);
        for (c, (_, q)) in columns.iter().enumerate() {
            let x = first + step * (c as f64 + 1.0);
            let said = text::time_us(us(histogram, *q));
            svg.words((x, y), At::End, "t", &said);
        }
    }
    svg
}

/// Curves, and what is read off them.
pub fn both_parts(curves: &[Curve<'_>], bound: Option<&(f64, String)>) -> String {
    let above = both(Size::HALF, |size| draw(curves, bound, size));
    format!("{above}{}", both(Size::HALF, |size| key(curves, size)))
}

/// The picture of the stages.
pub fn picture(run: &Run) -> String {
    let stages = [Stage::Total].into_iter().chain(Stage::PARTS);
    let curves: Vec<Curve<'_>> = stages
        .filter_map(|s| Some((colour(s), s.label().to_owned(), run.histogram(s)?)))
        .collect();
    if curves.is_empty() {
        return absent("There are no histograms: `latency.hlog` is not in the folder.");
    }
    let bound = run.bound_us();
    let bound = bound.map(|us| (us, format!("LoadGen's bound, {}", text::time_us(us))));
    figure(
        "percentiles",
        "Each stage at each percentile",
        &both_parts(&curves, bound.as_ref()),
        "Each nine takes as much room as the one before it (HdrHistogram's axis). Percentiles of \
         stages do not add up: a sample that is slow in one stage need not be slow in another.",
    )
}

/// The picture of times of tokens, where answers are tokens.
pub fn tokens(run: &Run) -> String {
    let classes = ["k-net", "k-inf", "k-wait", "k-post", "k-comp"];
    let curves: Vec<Curve<'_>> = TokenTime::ALL
        .into_iter()
        .zip(classes)
        .filter_map(|(t, class)| {
            let histogram = run.histograms.get(t.key()).filter(|h| !h.is_empty())?;
            Some((class, t.label().to_owned(), histogram))
        })
        .collect();
    if curves.is_empty() {
        return String::new();
    }
    let record = run.summary.run.tokens.as_ref();
    let at = record.and_then(|t| t.limit_percentile);
    let bounds = at.zip(record.and_then(|t| Some((t.ttft_limit_us?, t.tpot_limit_us?))));
    let note = match bounds {
        Some((p, (ttft, tpot))) => format!(
            "At the {} LoadGen allows {} to the first token and {} for each after it.",
            percent(p / 100.0),
            text::time_us(ttft),
            text::time_us(tpot)
        ),
        None => "LoadGen puts no bound on these here.".to_owned(),
    };
    figure(
        "tokens",
        "Times of tokens",
        &both_parts(&curves, None),
        &note,
    )
}

/// Names of colours, for pictures that have no table of their own.
pub fn stage_legend(scheduled: bool) -> String {
    let mut entries = Vec::new();
    if scheduled {
        entries.push((super::SCHEDULED, "scheduled -> issue"));
    }
    entries.extend(Stage::PARTS.iter().map(|s| (colour(*s), s.label())));
    legend(&entries)
}
