//! Compares a group's figures with the first group's: does the difference exceed noise?

use record::{LoadgenRecord, RunFolder, RunRecord, Stage, timeline::Tick};

use FigureSource::{Loadgen, Quantile, Rate};

use super::{
    groups::{SettingGroup, differing},
    noise::{BATCHES, batches, interval},
};
use crate::{latency::Latencies, text};

/// A compared figure, in samples per second or microseconds.
#[derive(Clone, Copy, Debug)]
pub struct ComparedFigure {
    pub name: &'static str,
    source: FigureSource,
}

#[derive(Clone, Copy, Debug)]
enum FigureSource {
    /// Samples per second.
    Rate,
    /// LoadGen's figure, which decides its verdict: measured from the scheduled time of a query.
    Loadgen(fn(&LoadgenRecord) -> Option<f64>),
    /// A quantile of the time from issue to completion.
    Quantile(f64),
}

const fn figure(name: &'static str, source: FigureSource) -> ComparedFigure {
    ComparedFigure { name, source }
}

/// Figures of a language model first.
const FIGURES: [ComparedFigure; 9] = [
    figure("p99 TTFT", Loadgen(|l| Some(l.ttft?.p99_us))),
    figure("p99 TPOT", Loadgen(|l| Some(l.tpot?.p99_us))),
    figure("samples/s", Rate),
    figure("LoadGen's p90", Loadgen(|l| Some(l.latency?.p90_us))),
    figure("LoadGen's p99", Loadgen(|l| Some(l.latency?.p99_us))),
    figure("p50", Quantile(0.5)),
    figure("p90", Quantile(0.9)),
    figure("p99", Quantile(0.99)),
    figure("p99.9", Quantile(0.999)),
];

/// Names of a scenario's main figures: LoadGen's, which decide its verdict, then this program's,
/// whose noise is known. Offline has only the rate.
fn that_matter(run: &RunRecord) -> &'static [&'static str] {
    let tokens = run.loadgen.as_ref().is_some_and(|l| l.ttft.is_some());
    match run.scenario.as_str() {
        "Offline" => &["samples/s"],
        "SingleStream" => &["LoadGen's p90", "p90"],
        _ if tokens => &["p99 TTFT", "p99 TPOT"],
        _ => &["LoadGen's p99", "p99"],
    }
}

impl ComparedFigure {
    fn is_rate(self) -> bool {
        matches!(self.source, Rate)
    }

    fn of(self, run: &RunFolder) -> Option<f64> {
        let r = &run.summary.run;
        let value = match self.source {
            Rate => r.per_s,
            Loadgen(of) => of(r.loadgen.as_ref()?)?,
            Quantile(q) => {
                let row = r.stages.get(Stage::Total)?;
                match q {
                    q if q <= 0.5 => row.p50_us,
                    q if q <= 0.9 => row.p90_us,
                    q if q <= 0.99 => row.p99_us,
                    _ => row.p999_us,
                }
            }
        };
        (value > 0.0).then_some(value)
    }

    /// The figure of each run of a group; `None` unless all runs have it.
    fn of_each(self, group: &SettingGroup<'_>) -> Option<Vec<f64>> {
        group.runs.iter().map(|r| self.of(r)).collect()
    }

    /// The figure of a group: from its merged histograms, or the mean of its runs.
    fn of_group(self, group: &SettingGroup<'_>) -> Option<f64> {
        if let (Quantile(q), Some(all)) = (self.source, group.total()) {
            return Some(all.value_at_quantile(q) as f64 / 1000.0).filter(|us| *us > 0.0);
        }
        let each = self.of_each(group)?;
        Some(each.iter().sum::<f64>() / each.len().max(1) as f64)
    }

    /// The figure over neighbouring ticks; NaN for LoadGen's figures.
    fn of_ticks(self, tick_ms: u64, ticks: &[Tick]) -> f64 {
        match self.source {
            Rate => {
                let completed: u64 = ticks.iter().map(|t| t.completed).sum();
                completed as f64 * 1000.0 / (ticks.len() as u64 * tick_ms) as f64
            }
            Quantile(q) => {
                let mut latencies = Latencies::default();
                ticks.iter().for_each(|t| latencies.add(&t.latency));
                latencies.quantile_us(q).unwrap_or(f64::NAN)
            }
            Loadgen(_) => f64::NAN,
        }
    }

    /// The values whose spread is the noise: of each run, or of the batches of a single run.
    fn spread(self, group: &SettingGroup<'_>) -> Option<Vec<f64>> {
        match &group.runs[..] {
            [one] => {
                let tick_ms = one.timeline.as_ref()?.tick_ms.max(1);
                let batches = batches(one)?.into_iter();
                Some(batches.map(|ticks| self.of_ticks(tick_ms, ticks)).collect())
            }
            _ => self.of_each(group),
        }
    }

    pub fn said(self, value: f64) -> String {
        match self.is_rate() {
            true => format!("{} samples/s", text::rate(value)),
            false => text::time_us(value),
        }
    }
}

/// One figure of a group beside the first group's.
#[derive(Clone, Debug)]
pub struct Difference {
    pub figure: ComparedFigure,
    /// The values of the first group and of this group.
    pub values: (f64, f64),
    /// This group's value divided by the first group's.
    pub ratio: f64,
    /// The 95 % interval of the ratio, if the runs suffice for one.
    pub interval: Option<(f64, f64)>,
}

impl Difference {
    /// Whether the difference exceeds noise; `None` without an interval.
    pub fn is_real(&self) -> Option<bool> {
        let (low, high) = self.interval?;
        Some(low > 1.0 || high < 1.0)
    }
}

/// A group compared with the first one.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Names of the first group and of this group.
    pub names: (String, String),
    pub colour: &'static str,
    pub all: Vec<Difference>,
    /// The settings that differ, in words.
    settings: String,
    /// How this group's load or scenario differs, so that neither group can be called better.
    asked_other: Option<&'static str>,
    matter: &'static [&'static str],
    /// The smaller number of runs of both groups.
    runs: usize,
}

/// A ratio as a change: `12 % more`.
pub fn change(ratio: f64, figure: ComparedFigure) -> String {
    let (more, less, times) = match figure.is_rate() {
        true => ("more", "less", "many"),
        false => ("longer", "shorter", "long"),
    };
    match ratio {
        r if (r - 1.0).abs() < 0.0005 => "the same".to_owned(),
        r if r >= 2.0 => format!("{} times as {times}", text::three(r)),
        r => {
            let percent = (r - 1.0) * 100.0;
            let decimals = if percent.abs() < 9.95 { 1 } else { 0 };
            let word = if percent >= 0.0 { more } else { less };
            format!("{:.decimals$} % {word}", percent.abs())
        }
    }
}

fn beside(first: &SettingGroup<'_>, other: &SettingGroup<'_>) -> Comparison {
    let one = |figure: ComparedFigure| {
        let values = (figure.of_group(first)?, figure.of_group(other)?);
        let ratio = values.1 / values.0;
        let spreads = figure.spread(first).zip(figure.spread(other));
        Some(Difference {
            figure,
            values,
            ratio,
            interval: spreads.and_then(|(was, is)| interval(ratio, &was, &is)),
        })
    };
    let differing = differing(&[first, other]);
    let mut settings = differing
        .iter()
        .map(|(name, values)| format!("`{name}` {} in place of {}", values[1], values[0]));
    let named: Vec<String> = settings.by_ref().take(2).collect();
    let more = match settings.count() {
        0 => String::new(),
        n => format!(" and {} more", text::counted(n as u64, "setting")),
    };
    Comparison {
        names: (first.name.clone(), other.name.clone()),
        colour: other.colour,
        settings: named.join(", ") + &more,
        asked_other: other.asked_other(first),
        all: FIGURES.into_iter().filter_map(one).collect(),
        matter: that_matter(&first.runs[0].summary.run),
        runs: first.runs.len().min(other.runs.len()),
    }
}

/// Compares every other group with the first.
pub fn all(groups: &[SettingGroup<'_>]) -> Vec<Comparison> {
    let others = groups.iter().skip(1);
    others.map(|other| beside(&groups[0], other)).collect()
}

impl Comparison {
    /// A few plain sentences on the main figures.
    pub fn sentence(&self) -> String {
        let (first, other) = &self.names;
        let found = |name: &&str| self.all.iter().find(|d| d.figure.name == *name);
        let said = self.matter.iter().filter_map(found);
        let said: Vec<String> = said.map(|d| self.of(d)).collect();
        let with = format!("{other} has {}.", self.settings);
        match said.is_empty() {
            true => format!("{with} It has no figure in common with {first}."),
            false => format!("{with} {}", said.join(" ")),
        }
    }

    fn of(&self, d: &Difference) -> String {
        let (first, _) = &self.names;
        let (name, change_) = (d.figure.name, change(d.ratio, d.figure));
        let (was, is) = (d.figure.said(d.values.0), d.figure.said(d.values.1));
        let whose = match d.figure.source {
            Quantile(_) => "From issue to completion, its ",
            _ => "Its ",
        };
        let head = format!("{whose}{name} is {is}, against {was} of {first}: {change_}");
        let Some((low, high)) = d.interval else {
            let why = match d.figure.source {
                Loadgen(_) => "LoadGen has one figure for each run".to_owned(),
                _ => format!("a run has fewer than {BATCHES} ticks on its clock"),
            };
            return format!(
                "{head}. Whether that is more than noise cannot be said: {why}; repeat both."
            );
        };
        let [low, high] = [low, high].map(|ratio| change(ratio, d.figure));
        let between = format!("with 95 % between {low} and {high}");
        let word = match (d.is_real(), self.asked_other) {
            (Some(true), Some(asked)) => &format!("That is more than noise, {asked}"),
            (Some(true), None) if (d.ratio > 1.0) == d.figure.is_rate() => {
                "That is more than noise, and better"
            }
            (Some(true), None) => "That is more than noise, and worse",
            _ => "No difference is shown",
        };
        let runs = match self.runs {
            1 => "; but one run of a setting does not tell how much its repetitions differ",
            _ => "; repetitions are in that",
        };
        format!("{head}, {between}. {word}{runs}.")
    }
}

/// How far repetitions of one setting differ, in a sentence.
pub fn spread(group: &SettingGroup<'_>) -> Vec<String> {
    let figures = FIGURES.into_iter().filter_map(|figure| {
        let values: Vec<f64> = group.runs.iter().filter_map(|r| figure.of(r)).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let (name, differ) = (figure.name, change(high / low, figure));
        let [low, high] = [low, high].map(|value| figure.said(value));
        (values.len() > 1).then(|| format!("{name}: from {low} to {high}, {differ}"))
    });
    let said = figures.collect::<Vec<_>>().join("; ");
    let n = group.runs.len();
    vec![format!("These are {n} repetitions of one setting. {said}.")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_words() {
        let q = figure("p99", Quantile(0.99));
        let rate = figure("samples/s", Rate);
        assert_eq!(change(1.123, q), "12 % longer");
        assert_eq!(change(0.98, rate), "2.0 % less");
        assert_eq!(change(1.0, q), "the same");
        assert_eq!(change(3.4, q), "3.40 times as long");
    }
}
