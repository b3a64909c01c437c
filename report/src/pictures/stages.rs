//! The picture of the stages' means, and of their sum beside LoadGen's mean.

use record::{RunFolder, Stage};

use super::{SCHEDULED, colour, percent};
use crate::{
    html::{Cell, absent, bar, figure, key, row, table},
    text,
};

/// A stage: its colour, its name, and its mean in microseconds.
pub type StageMean = (&'static str, &'static str, f64);

/// Mean of each stage, in microseconds.
pub fn parts(run: &RunFolder) -> [f64; 6] {
    Stage::PARTS.map(|s| run.summary.run.stages.get(s).map_or(0.0, |row| row.mean_us))
}

/// Means of the time from LoadGen's schedule to completion, in microseconds.
#[derive(Clone, Debug)]
pub struct Means {
    /// Each stage; `scheduled -> issue` first, if known.
    pub stages: Vec<StageMean>,
    /// Mean of the call that completes samples: part of `completion`, after LoadGen's clock stops.
    call: f64,
    /// LoadGen's own mean, if it reports one.
    loadgen: Option<f64>,
    /// Whether the run measured `scheduled -> issue`.
    measured: bool,
}

impl Means {
    pub fn of(run: &RunFolder) -> Means {
        let loadgen = run.summary.run.loadgen.as_ref();
        let measured = run.figure("/loadgen/scheduled_to_issue/mean_us");
        // Runs of earlier versions have only LoadGen's mean minus the mean of `total`.
        let scheduled = measured.or(loadgen.and_then(|l| l.late_mean_us));
        let first = scheduled.map(|us| (SCHEDULED, "scheduled -> issue", us));
        Means {
            stages: first.into_iter().chain(named(parts(run))).collect(),
            call: run
                .figure("/loadgen/scheduled_to_issue/told_us")
                .unwrap_or(0.0),
            loadgen: loadgen.and_then(|l| Some(l.latency.as_ref()?.mean_us)),
            measured: measured.is_some(),
        }
    }

    /// The stages' sum up to where LoadGen's clock stops, LoadGen's mean, and the sum's relative
    /// difference from LoadGen's mean.
    fn compared(&self) -> Option<(f64, f64, f64)> {
        let theirs = self.loadgen.filter(|us| *us > 0.0)?;
        let (first, ..) = self.stages.first()?;
        let sum = self.stages.iter().map(|s| s.2).sum::<f64>() - self.call;
        (*first == SCHEDULED).then_some((sum, theirs, sum / theirs - 1.0))
    }
}

pub fn named(parts: [f64; 6]) -> impl Iterator<Item = StageMean> {
    let stages = Stage::PARTS.into_iter().zip(parts);
    stages.map(|(s, us)| (colour(s), s.label(), us))
}

/// A bar of stages, in which the whole bar means `top_us`.
pub fn stage_bar(stages: &[StageMean], top_us: f64) -> String {
    let parts: Vec<_> = stages
        .iter()
        .map(|(colour, name, us)| {
            let title = format!("{name}: {}", text::time_us(*us));
            (*colour, us / top_us.max(1e-9), title)
        })
        .collect();
    bar(&parts)
}

pub fn sum(stages: &[StageMean]) -> f64 {
    stages.iter().map(|s| s.2.max(0.0)).sum()
}

pub fn picture(run: &RunFolder) -> String {
    if run.summary.run.stages.count() == 0 {
        return absent("No sample was answered: there are no stages.");
    }
    let means = Means::of(run);
    let whole = sum(&means.stages);
    let row = |name: Cell, us: f64, share: String| row(name, [text::time_us(us.abs()), share]);
    let stages = means.stages.iter();
    let mut rows: Vec<Vec<Cell>> = stages
        .map(|(colour, name, us)| row(key(colour, name), *us, percent(us / whole.max(1e-9))))
        .collect();
    if means.call > 0.0 {
        let name = Cell::words("less: the call itself, behind LoadGen's clock");
        rows.push(row(name, means.call, String::new()));
    }
    let note = match means.compared() {
        Some((sum, theirs, off)) => {
            rows.push(row(Cell::words("all of them"), sum, String::new()));
            let differ = format!("{:+.2} %", off * 100.0);
            rows.push(row(Cell::words("LoadGen's mean latency"), theirs, differ));
            let how = match means.measured {
                true => {
                    "LoadGen's clock stops as `QuerySamplesComplete` begins, so that call is taken \
                     off."
                }
                false => {
                    "`scheduled -> issue` is LoadGen's mean less ours here: this run did not \
                     measure it."
                }
            };
            format!("Means add up, percentiles do not. {how}")
        }
        None => "LoadGen gives no mean of samples to compare with.".to_owned(),
    };
    let table = table(&["stage", "mean", "share"], &rows);
    let bar = stage_bar(&means.stages, whole);
    let title = "Where a sample's time goes, on average";
    figure("stages", title, &format!("{bar}{table}"), &note)
}
