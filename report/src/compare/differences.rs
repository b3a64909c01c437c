//! Each figure of a group beside the first group's, and whether they differ by more than noise.

use record::{Run, RunRecord, Stage};

use crate::text;

use super::{
    bootstrap::{Draw, draws, interval, means, why_none},
    groups::Group,
};

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// Samples per second.
    Rate,
    /// LoadGen's own, which alone counts.
    Theirs(Theirs),
    /// A quantile of the time from issue to completion.
    Quantile(f64),
}

/// A figure of LoadGen's, from the time for which a query was scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Theirs {
    /// The 90th percentile of latency, SingleStream's result.
    P90,
    /// The 99th percentile of latency.
    P99,
    /// The 99th percentile of the time to the first token.
    Ttft,
    /// The 99th percentile of the time of each further token.
    Tpot,
}

impl Theirs {
    fn of(self, run: &Run) -> Option<f64> {
        let r = run.summary.run.loadgen.as_ref()?;
        let us = match self {
            Theirs::P90 => r.latency?.p90_us,
            Theirs::P99 => r.latency?.p99_us,
            Theirs::Ttft => r.ttft?.p99_us,
            Theirs::Tpot => r.tpot?.p99_us,
        };
        (us > 0.0).then_some(us)
    }

    /// Of each run of a group, where all have it.
    fn of_all(self, group: &Group<'_>) -> Option<Vec<f64>> {
        group.runs.iter().map(|r| self.of(r)).collect()
    }
}

/// What is compared, in the order of the picture.
pub const FIGURES: [Figure; 9] = [
    Figure::Rate,
    Figure::Theirs(Theirs::P90),
    Figure::Theirs(Theirs::P99),
    Figure::Theirs(Theirs::Ttft),
    Figure::Theirs(Theirs::Tpot),
    Figure::Quantile(0.5),
    Figure::Quantile(0.9),
    Figure::Quantile(0.99),
    Figure::Quantile(0.999),
];

impl Figure {
    /// What it is called.
    pub fn name(self) -> String {
        match self {
            Figure::Rate => "samples/s".to_owned(),
            Figure::Theirs(Theirs::P90) => "LoadGen's p90".to_owned(),
            Figure::Theirs(Theirs::P99) => "LoadGen's p99".to_owned(),
            Figure::Theirs(Theirs::Ttft) => "p99 TTFT".to_owned(),
            Figure::Theirs(Theirs::Tpot) => "p99 TPOT".to_owned(),
            Figure::Quantile(q) => format!("p{}", (q * 1e5).round() / 1e3),
        }
    }

    fn drawn(self, draw: &Draw) -> f64 {
        match self {
            Figure::Rate => draw.per_s,
            Figure::Quantile(q) => draw.quantile_us(q),
            Figure::Theirs(_) => f64::NAN,
        }
    }

    /// The figure of a group, in samples per second or microseconds.
    fn of(self, group: &Group<'_>) -> Option<f64> {
        match self {
            Figure::Rate => Some(group.mean(|r| r.summary.run.per_s)),
            Figure::Theirs(theirs) => {
                let all = theirs.of_all(group)?;
                Some(all.iter().sum::<f64>() / all.len().max(1) as f64)
            }
            Figure::Quantile(q) => match group.total() {
                Some(all) => Some(all.value_at_quantile(q) as f64 / 1000.0),
                None => Some(group.mean(|r| of_table(r, q))),
            },
        }
        .filter(|v| *v > 0.0)
    }

    /// In words.
    pub fn said(self, value: f64) -> String {
        match self {
            Figure::Rate => format!("{} samples/s", text::rate(value)),
            Figure::Theirs(_) | Figure::Quantile(_) => text::time_us(value),
        }
    }

    /// More of it is better.
    fn more_is_better(self) -> bool {
        self == Figure::Rate
    }

    /// Those that a scenario is about: LoadGen's, by which it judges, then ours, whose noise is
    /// known. Offline has the rate alone.
    fn that_matter(run: &RunRecord) -> &'static [Figure] {
        let tokens = run.loadgen.as_ref().is_some_and(|l| l.ttft.is_some());
        match run.scenario.as_str() {
            "Offline" => &[Figure::Rate],
            "SingleStream" => &[Figure::Theirs(Theirs::P90), Figure::Quantile(0.9)],
            _ if tokens => &[Figure::Theirs(Theirs::Ttft), Figure::Theirs(Theirs::Tpot)],
            _ => &[Figure::Theirs(Theirs::P99), Figure::Quantile(0.99)],
        }
    }
}

fn of_table(run: &Run, q: f64) -> f64 {
    let row = run.summary.run.stages.get(Stage::Total).copied();
    let row = row.unwrap_or_default();
    match q {
        q if q <= 0.5 => row.p50_us,
        q if q <= 0.9 => row.p90_us,
        q if q <= 0.99 => row.p99_us,
        _ => row.p999_us,
    }
}

/// One figure of one group beside the first group's.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Which figure.
    pub figure: Figure,
    /// The first group's, and this one's.
    pub values: (f64, f64),
    /// How many times the first group's this one's is.
    pub ratio: f64,
    /// Between what that lies with 95 %, where the runs kept timelines.
    pub interval: Option<(f64, f64)>,
}

impl Difference {
    /// Whether it is more than noise; `None` where nothing says what noise is.
    pub fn is_real(&self) -> Option<bool> {
        let (low, high) = self.interval?;
        Some(low > 1.0 || high < 1.0)
    }
}

/// A group beside the first one.
#[derive(Clone, Debug)]
pub struct Found {
    /// The first group's name, and this one's.
    pub names: (String, String),
    /// This one's colour.
    pub class: &'static str,
    /// What differs.
    pub all: Vec<Difference>,
    /// Why there are no intervals, where there are none.
    pub without: &'static str,
    /// What else was asked of this one, so that neither is better.
    asked_other: Option<&'static str>,
    matter: &'static [Figure],
    /// The least number of runs in either.
    runs: usize,
}

/// A ratio as a change: `12 % more`.
pub fn change(ratio: f64, figure: Figure) -> String {
    let (more, less) = match figure {
        Figure::Rate => ("more", "less"),
        Figure::Theirs(_) | Figure::Quantile(_) => ("longer", "shorter"),
    };
    match ratio {
        r if (r - 1.0).abs() < 0.0005 => "the same".to_owned(),
        r if r >= 2.0 => format!(
            "{} times as {}",
            text::three(r),
            if more == "more" { "many" } else { "long" }
        ),
        r => {
            let percent = (r - 1.0) * 100.0;
            let decimals = if percent.abs() < 9.95 { 1 } else { 0 };
            let word = if percent >= 0.0 { more } else { less };
            format!("{:.decimals$} % {word}", percent.abs())
        }
    }
}

fn beside(first: &Group<'_>, other: &Group<'_>, at: usize) -> Found {
    let drawn = draws(&first.runs, 0).zip(draws(&other.runs, at as u64 + 1));
    let one = |figure: Figure| {
        let values = (figure.of(first)?, figure.of(other)?);
        let ratio = values.1 / values.0;
        let ratios: Option<Vec<f64>> = match figure {
            Figure::Theirs(theirs) => {
                let drawn = means(&theirs.of_all(first)?, 0);
                let drawn = drawn.zip(means(&theirs.of_all(other)?, at as u64 + 1));
                drawn.map(|(a, b)| a.iter().zip(b).map(|(a, b)| b / a).collect())
            }
            _ => drawn.as_ref().map(|(a, b)| {
                let ratio = |(a, b)| figure.drawn(b) / figure.drawn(a);
                a.iter().zip(b).map(ratio).collect()
            }),
        };
        let interval = ratios.and_then(|ratios| {
            let (low, middle, high) = interval(ratios)?;
            // Buckets are coarser than the histograms: their width is about the exact ratio.
            Some((ratio * low / middle, ratio * high / middle))
        });
        Some(Difference {
            figure,
            values,
            ratio,
            interval,
        })
    };
    Found {
        names: (first.name.clone(), other.name.clone()),
        class: other.class,
        without: why_none(&[&first.runs[..], &other.runs[..]].concat()),
        asked_other: other.asked_other(first),
        all: FIGURES.into_iter().filter_map(one).collect(),
        matter: Figure::that_matter(&first.runs[0].summary.run),
        runs: first.runs.len().min(other.runs.len()),
    }
}

/// Every group but the first beside the first.
pub fn all(groups: &[Group<'_>]) -> Vec<Found> {
    let others = groups.iter().enumerate().skip(1);
    others
        .map(|(i, other)| beside(&groups[0], other, i))
        .collect()
}

impl Found {
    /// A few plain sentences.
    pub fn sentence(&self) -> String {
        let (first, other) = &self.names;
        let found = |figure: &Figure| self.all.iter().find(|d| d.figure == *figure);
        let said = self.matter.iter().filter_map(found);
        let said: Vec<String> = said.map(|d| self.of(d)).collect();
        match said.is_empty() {
            true => format!("{other} and {first} have no figure in common."),
            false => said.join(" "),
        }
    }

    fn of(&self, d: &Difference) -> String {
        let (first, other) = &self.names;
        let (name, change_) = (d.figure.name(), change(d.ratio, d.figure));
        let (was, is) = (d.figure.said(d.values.0), d.figure.said(d.values.1));
        let head = format!("{other}: {name} is {is}, against {was} of {first}: {change_}");
        let head = match (d.figure, self.matter) {
            (Figure::Quantile(_), [_, ..]) => format!("From issue to completion, {head}"),
            _ => head,
        };
        let Some((low, high)) = d.interval else {
            if let Figure::Theirs(_) = d.figure {
                return format!(
                    "{head}. LoadGen's figure alone counts, and there is one for each run: repeat both \
                     settings to know whether that is more than noise."
                );
            }
            return format!(
                "{head}. Whether that is more than noise cannot be said: {}.",
                self.without
            );
        };
        let between = format!(
            "with 95 % between {} and {}",
            change(low, d.figure),
            change(high, d.figure)
        );
        let word = match (d.is_real(), self.asked_other) {
            (Some(true), Some(asked)) => &format!("That is more than noise, {asked}"),
            (Some(true), None) if (d.ratio > 1.0) == d.figure.more_is_better() => {
                "That is more than noise, and better"
            }
            (Some(true), None) => "That is more than noise, and worse",
            _ => "That is no more than noise",
        };
        let runs = match self.runs {
            1 => "; but one run of a setting does not tell how much its repetitions differ",
            2 | 3 => {
                "; repetitions are in that, though two or three say little of how much they differ"
            }
            _ => "; repetitions are in that",
        };
        format!("{head}, {between}. {word}{runs}.")
    }
}

/// Of repetitions of one setting: how far they lie from each other.
pub fn spread(group: &Group<'_>) -> Vec<String> {
    let figures = FIGURES.into_iter().filter_map(|figure| {
        let of = |run: &&Run| match figure {
            Figure::Rate => run.summary.run.per_s,
            Figure::Theirs(theirs) => theirs.of(run).unwrap_or(0.0),
            Figure::Quantile(q) => of_table(run, q),
        };
        let values: Vec<f64> = group.runs.iter().map(of).filter(|v| *v > 0.0).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        (values.len() > 1).then(|| {
            format!(
                "{}: from {} to {}, {}",
                figure.name(),
                figure.said(low),
                figure.said(high),
                change(high / low, figure)
            )
        })
    });
    let said: Vec<String> = figures.collect();
    let n = group.runs.len();
    vec![format!(
        "These are {n} repetitions of one setting. {}.",
        said.join("; ")
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_words() {
        let q = Figure::Quantile(0.99);
        assert_eq!(q.name(), "p99");
        assert_eq!(Figure::Quantile(0.999).name(), "p99.9");
        assert_eq!(change(1.123, q), "12 % longer");
        assert_eq!(change(0.98, Figure::Rate), "2.0 % less");
        assert_eq!(change(1.0, q), "the same");
        assert_eq!(change(3.4, q), "3.40 times as long");
    }

    #[test]
    fn an_interval_that_holds_one_is_noise() {
        let d = |interval| Difference {
            figure: Figure::Rate,
            values: (1.0, 1.1),
            ratio: 1.1,
            interval,
        };
        assert_eq!(d(Some((0.9, 1.2))).is_real(), Some(false));
        assert_eq!(d(Some((1.01, 1.2))).is_real(), Some(true));
        assert_eq!(d(None).is_real(), None);
    }
}
