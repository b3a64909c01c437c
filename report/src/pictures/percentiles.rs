//! The picture of each stage at each percentile, on HdrHistogram's axis.

use hdrhistogram::Histogram;
use record::{RunFolder, Stage, TokenTime};

use super::{colour, stages};
use crate::{
    chart::{Chart, Style, Unit},
    latency::Latencies,
    model::{Cell, Part, figure, paragraph, row, table},
    text::{counted, time_us},
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
        Curve {
            colour,
            name: name.to_owned(),
            samples: histogram.len(),
            us: Box::new(|q| histogram.value_at_quantile(q) as f64 / 1000.0),
        }
    }

    pub fn of_buckets(colour: &'static str, name: &str, latencies: &'a Latencies) -> Curve<'a> {
        Curve {
            colour,
            name: name.to_owned(),
            samples: latencies.total,
            us: Box::new(|q| latencies.quantile_us(q).unwrap_or(0.0)),
        }
    }
}

/// The lines, each up to its last sample.
fn chart(curves: &[Curve<'_>], bound_us: Option<f64>) -> Part {
    let most = curves.iter().map(|c| c.samples).max().unwrap_or(0).max(20);
    let steps = ((most as f64).log10() * f64::from(PER_NINE)).ceil() as u32;
    let x = (0..=steps).map(|i| f64::from(i) / f64::from(PER_NINE));
    let x: Vec<f64> = x.collect();
    let mut chart = Chart::new("", Style::Log, (Unit::Nines, Unit::Us), x.clone());
    // Skip a stage without samples, which would stretch the axis.
    for curve in curves.iter().filter(|curve| (curve.us)(1.0) > 0.0) {
        let last = (curve.samples.max(1) as f64).log10();
        let value = |nines: &f64| match *nines {
            nines if nines > last => f64::NAN,
            nines => (curve.us)(1.0 - 10f64.powf(-nines)).max(LEAST_US),
        };
        chart.line(&curve.name, Some(curve.colour), x.iter().map(value));
    }
    chart.bound(bound_us, "LoadGen's bound");
    Part::Chart(chart)
}

/// The lines, and a table of their percentiles.
pub fn with_table(curves: &[Curve<'_>], bound_us: Option<f64>) -> Vec<Part> {
    let of = |curve: &Curve<'_>| {
        let figures = [0.5, 0.9, 0.99, 0.999].map(|q| time_us((curve.us)(q)));
        row(Cell::key(curve.colour, &curve.name), figures)
    };
    let rows = curves.iter().map(of).collect();
    vec![chart(curves, bound_us), table("|p50|p90|p99|p99.9", rows)]
}

pub fn picture(run: &RunFolder) -> Part {
    let shown = [Stage::Total].into_iter().chain(Stage::PARTS);
    let curve = |s: Stage| Some(Curve::of(colour(s), s.label(), run.histogram(s)?));
    let curves: Vec<Curve<'_>> = shown.filter_map(curve).collect();
    let r = &run.summary.run;
    let scheduled = r
        .loadgen
        .as_ref()
        .and_then(|l| l.scheduled_to_issue.as_ref());
    let mut parts = vec![
        chart(&curves, run.bound_us()),
        stages::table_of(&r.stages, scheduled),
    ];
    if r.uneven > 0 {
        let n = counted(r.uneven, "sample");
        parts.push(paragraph(format!(
            "{n}: the accelerator's time came out longer than the round trip, so that their \
             network time counts as 0."
        )));
    }
    figure(
        "percentiles",
        "Each stage at each percentile",
        parts,
        "Each nine takes as much room as the one before it (HdrHistogram's axis). Network is the \
         round trip without the accelerator's time: out and back together. `<` is a bound: \
         LoadGen does not say when each sample was due. Means add up; percentiles do not: a \
         sample that is slow in one stage need not be slow in another.",
    )
}

/// The picture of token times; `None` if answers are not tokens.
pub fn tokens(run: &RunFolder) -> Option<Part> {
    let tokens = run
        .summary
        .run
        .tokens
        .as_ref()
        .filter(|t| !t.times.is_empty())?;
    let colours = ["net", "inf", "wait", "post", "comp"];
    let colours = || TokenTime::ALL.into_iter().zip(colours);
    let curve = |(t, colour): (TokenTime, &'static str)| {
        let histogram = run.histograms.get(t.key()).filter(|h| !h.is_empty())?;
        Some(Curve::of(colour, t.label(), histogram))
    };
    let curves: Vec<Curve<'_>> = colours().filter_map(curve).collect();
    let of = |(t, colour): (TokenTime, &'static str)| {
        let r = tokens.times.get(&t).filter(|r| r.count > 0)?;
        Some(row(Cell::key(colour, t.label()), stages::times(r)))
    };
    let rows = colours().filter_map(of).collect();
    let heading = "tokens, our clock|p50|p90|p99|p99.9|max|mean";
    let note = "By our clock, from the issue on. LoadGen's TTFT begins at the scheduled time, and \
                its TPOT divides by all tokens after the first: a first event of several makes it \
                shorter. Its verdict is about its own times.";
    let parts = vec![chart(&curves, None), table(heading, rows)];
    Some(figure("tokens", "Times of tokens", parts, note))
}
