//! The picture of each stage at each percentile, on HdrHistogram's axis.

use hdrhistogram::Histogram;
use record::{RunFolder, Stage, TokenTime};

use super::colour;
use crate::{
    chart::{Chart, Style, Unit},
    html::{absent, figure, key, row, table},
    latency::Latencies,
    text,
};

const PER_NINE: u32 = 24;
/// Minimum drawn time in microseconds: a logarithmic axis has no 0.
const LEAST_US: f64 = 0.1;

/// A line: colour, name, number of samples, and microseconds at a quantile.
pub struct Curve<'a> {
    colour: &'static str,
    name: String,
    samples: u64,
    us: Box<dyn Fn(f64) -> f64 + 'a>,
}

impl<'a> Curve<'a> {
    pub fn of(colour: &'static str, name: &str, histogram: &'a Histogram<u64>) -> Curve<'a> {
        let us = |q| histogram.value_at_quantile(q) as f64 / 1000.0;
        Curve {
            colour,
            name: name.to_owned(),
            samples: histogram.len(),
            us: Box::new(us),
        }
    }

    pub fn of_buckets(colour: &'static str, name: &str, latencies: &'a Latencies) -> Curve<'a> {
        let us = |q| latencies.quantile_us(q).unwrap_or(0.0);
        Curve {
            colour,
            name: name.to_owned(),
            samples: latencies.total,
            us: Box::new(us),
        }
    }
}

/// The lines, each up to its last sample, and a table of their percentiles.
pub fn chart(curves: &[Curve<'_>], bound_us: Option<f64>) -> String {
    let most = curves.iter().map(|c| c.samples).max().unwrap_or(0).max(20);
    let last = (most as f64).log10();
    let steps = (last * f64::from(PER_NINE)).ceil() as u32;
    let x = (0..=steps).map(|i| f64::from(i) / f64::from(PER_NINE));
    let x: Vec<f64> = x.collect();
    let mut chart = Chart::new("", Style::Log, (Unit::Nines, Unit::Us), x.clone());
    let quantiles = [0.5, 0.9, 0.99, 0.999];
    let mut rows = Vec::new();
    for curve in curves {
        let Curve {
            colour, name, us, ..
        } = curve;
        let last = (curve.samples.max(1) as f64).log10();
        let value = |nines: &f64| match *nines {
            nines if nines > last => f64::NAN,
            nines => us(1.0 - 10f64.powf(-nines)).max(LEAST_US),
        };
        // Skip a stage without samples, which would stretch the axis.
        if us(1.0) > 0.0 {
            chart.line(name, Some(colour), x.iter().map(value));
        }
        let figures = quantiles.map(|q| text::time_us(us(q)));
        rows.push(row(key(colour, name), figures));
    }
    chart.bound(bound_us, "LoadGen's bound");
    let heading = ["", "p50", "p90", "p99", "p99.9"];
    format!("{}{}", chart.html(), table(&heading, &rows))
}

pub fn picture(run: &RunFolder) -> String {
    let stages = [Stage::Total].into_iter().chain(Stage::PARTS);
    let curves: Vec<Curve<'_>> = stages
        .filter_map(|s| Some(Curve::of(colour(s), s.label(), run.histogram(s)?)))
        .collect();
    if curves.is_empty() {
        return absent("There are no histograms: `latency.hlog` is not in the folder.");
    }
    figure(
        "percentiles",
        "Each stage at each percentile",
        &chart(&curves, run.bound_us()),
        "Each nine takes as much room as the one before it (HdrHistogram's axis). Percentiles of \
         stages do not add up: a sample that is slow in one stage need not be slow in another.",
    )
}

/// The picture of token times; empty if answers are not tokens.
pub fn tokens(run: &RunFolder) -> String {
    let colours = ["net", "inf", "wait", "post", "comp"];
    let curves: Vec<Curve<'_>> = TokenTime::ALL
        .into_iter()
        .zip(colours)
        .filter_map(|(t, colour)| {
            let histogram = run.histograms.get(t.key()).filter(|h| !h.is_empty())?;
            Some(Curve::of(colour, t.label(), histogram))
        })
        .collect();
    if curves.is_empty() {
        return String::new();
    }
    let note = "By our clock, from the issue on. LoadGen's TTFT begins at the scheduled time, and its \
                TPOT divides by all tokens after the first: a first event of several makes it \
                shorter. Its verdict is about its own times.";
    figure("tokens", "Times of tokens", &chart(&curves, None), note)
}
