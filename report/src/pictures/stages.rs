//! The stages of a sample: their times, their means, and their sum beside LoadGen's mean.

use record::{RunFolder, ScheduledToIssue, Stage, StageRow, StageTable};

use super::{SCHEDULED, colour};
use crate::{
    model::{BarPart, Cell, Part, absent, figure, row, table},
    text::{grouped, percent, time_us},
};

/// A stage: its colour, its name, and its mean in microseconds.
pub type StageMean = (&'static str, &'static str, f64);

/// Percentiles, maximum and mean of a row.
pub fn times(r: &StageRow) -> [String; 6] {
    [r.p50_us, r.p90_us, r.p99_us, r.p999_us, r.max_us, r.mean_us].map(time_us)
}

/// Times of each stage. `scheduled` adds the row from LoadGen's scheduled time to the issue, whose
/// percentiles are upper bounds.
pub fn table_of(stages: &StageTable, scheduled: Option<&ScheduledToIssue>) -> Part {
    let before = scheduled.map(|s| {
        let bounds = [s.p50_at_most_us, s.p90_at_most_us, s.p99_at_most_us];
        let bounds = bounds
            .into_iter()
            .chain([s.p999_at_most_us, s.max_at_most_us]);
        let bounds = bounds.map(|us| match us > 0.0 {
            true => format!("<{}", time_us(us)),
            // A bound of 0 means that no bound is known.
            false => "-".to_owned(),
        });
        let figures = bounds.chain([time_us(s.mean_us), grouped(s.count)]);
        row(Cell::key(SCHEDULED, "scheduled to issue"), figures)
    });
    let shown = |(stage, r): &(&Stage, &StageRow)| !stage.is_rare() || r.max_us > 0.0;
    let each = stages.iter().filter(shown).map(|(stage, r)| {
        let figures = times(r).into_iter().chain([grouped(r.count)]);
        row(Cell::key(colour(*stage), stage.label()), figures)
    });
    let heading = "stage|p50|p90|p99|p99.9|max|mean|samples";
    table(heading, before.into_iter().chain(each).collect())
}

/// Mean of each stage, in microseconds.
pub fn parts(run: &RunFolder) -> [f64; Stage::PARTS.len()] {
    Stage::PARTS.map(|s| run.summary.run.stages.get(s).map_or(0.0, |row| row.mean_us))
}

/// Means of the time from LoadGen's schedule to completion, in microseconds.
#[derive(Clone, Debug)]
pub struct Means {
    /// Each stage; `scheduled to issue` first, if known.
    pub stages: Vec<StageMean>,
    /// Mean of the call that completes samples: part of `completion`, after LoadGen's clock stops.
    call: f64,
    /// LoadGen's own mean, if it reports one.
    loadgen: Option<f64>,
}

impl Means {
    pub fn of(run: &RunFolder) -> Means {
        let loadgen = run.summary.run.loadgen.as_ref();
        let scheduled = loadgen.and_then(|l| l.scheduled_to_issue);
        // Runs of earlier versions have only LoadGen's mean minus the mean of `total`.
        let mean = scheduled
            .map(|s| s.mean_us)
            .or(loadgen.and_then(|l| l.late_mean_us));
        let first = mean.map(|us| (SCHEDULED, "scheduled to issue", us));
        Means {
            stages: first.into_iter().chain(named(parts(run))).collect(),
            call: scheduled.map_or(0.0, |s| s.told_us),
            loadgen: loadgen.and_then(|l| Some(l.latency.as_ref()?.mean_us)),
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

pub fn named(parts: [f64; Stage::PARTS.len()]) -> impl Iterator<Item = StageMean> {
    let stages = Stage::PARTS.into_iter().zip(parts);
    stages.map(|(s, us)| (colour(s), s.label(), us))
}

/// The parts of a bar of stages, in which the whole bar means `top_us`.
pub fn bar(stages: &[StageMean], top_us: f64) -> Vec<BarPart> {
    let part = |(colour, name, us): &StageMean| {
        (
            *colour,
            us / top_us.max(1e-9),
            format!("{name}: {}", time_us(*us)),
        )
    };
    stages.iter().map(part).collect()
}

pub fn sum(stages: &[StageMean]) -> f64 {
    stages.iter().map(|s| s.2.max(0.0)).sum()
}

pub fn picture(run: &RunFolder) -> Part {
    if run.summary.run.stages.count() == 0 {
        return absent("No sample was answered: there are no stages.");
    }
    let means = Means::of(run);
    let whole = sum(&means.stages);
    let row = |name: Cell, us: f64, share: String| row(name, [time_us(us.abs()), share]);
    let stages = means.stages.iter();
    let mut rows: Vec<Vec<Cell>> = stages
        .map(|(colour, name, us)| row(Cell::key(colour, *name), *us, percent(us / whole)))
        .collect();
    if means.call > 0.0 {
        let name = Cell::words("minus the completing call, after LoadGen's clock");
        rows.push(row(name, means.call, String::new()));
    }
    let note = match means.compared() {
        Some((sum, theirs, off)) => {
            rows.push(row(Cell::words("sum"), sum, String::new()));
            let differ = format!("{:+.2} %", off * 100.0);
            rows.push(row(Cell::words("LoadGen's mean latency"), theirs, differ));
            "Means add up, percentiles do not. LoadGen's clock stops as `QuerySamplesComplete` \
             begins, so that call is taken off."
        }
        None => "LoadGen gives no mean of samples to compare with.",
    };
    let parts = vec![
        Part::Bar(bar(&means.stages, whole)),
        table("stage|mean|share", rows),
    ];
    figure(
        "stages",
        "Where a sample's time goes, on average",
        parts,
        note,
    )
}
