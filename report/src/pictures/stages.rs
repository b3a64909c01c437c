//! Means of the stages, and that they add up to LoadGen's.

use record::{Run, Stage};

use crate::text;

use super::{SCHEDULED, colour, percent};
use crate::{
    draw::{At, Size, Svg, both},
    html::{Cell, absent, figure, table},
};

/// What is known of the way from LoadGen to LoadGen, in microseconds on average.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Means {
    /// Before `issue_query`, where it is known.
    pub scheduled: Option<f64>,
    /// Of [`Stage::PARTS`].
    pub parts: [f64; 6],
    /// What the call that completes samples takes: in `completion`, and behind LoadGen's clock.
    pub told: f64,
    /// LoadGen's own mean, where it gives one.
    pub loadgen: Option<f64>,
}

impl Means {
    /// Of a run.
    pub fn of(run: &Run) -> Means {
        let r = &run.summary.run;
        let mean = |stage| r.stages.get(stage).map_or(0.0, |row| row.mean_us);
        let loadgen = r.loadgen.as_ref();
        let scheduled = run.figure("/loadgen/scheduled_to_issue/mean_us");
        let told = run.figure("/loadgen/scheduled_to_issue/told_us");
        Means {
            // Older runs have no more than the difference itself.
            scheduled: scheduled.or(loadgen.and_then(|l| l.late_mean_us)),
            parts: Stage::PARTS.map(mean),
            told: told.unwrap_or(0.0),
            loadgen: loadgen.and_then(|l| Some(l.latency.as_ref()?.mean_us)),
        }
    }

    /// All stages together, up to where LoadGen's clock stops.
    pub fn sum(&self) -> f64 {
        self.parts.iter().sum::<f64>() + self.scheduled.unwrap_or(0.0) - self.told
    }

    /// By how much the sum differs from LoadGen's mean, of that.
    pub fn off(&self) -> Option<f64> {
        let theirs = self.loadgen.filter(|us| *us > 0.0)?;
        self.scheduled?;
        Some(self.sum() / theirs - 1.0)
    }

    /// Class, name and microseconds of each stage there is.
    pub fn all(&self) -> Vec<(&'static str, &'static str, f64)> {
        let first = self
            .scheduled
            .map(|us| (SCHEDULED, "scheduled -> issue", us));
        let parts = Stage::PARTS.iter().zip(self.parts);
        let parts = parts.map(|(s, us)| (colour(*s), s.label(), us));
        first.into_iter().chain(parts).collect()
    }
}

/// One bar of all stages, as long as they take.
pub fn bar(
    svg: &mut Svg,
    at: (f64, f64),
    size: (f64, f64),
    stages: &[(&str, &str, f64)],
    top: f64,
) {
    let mut x = at.0;
    for (class, name, us) in stages {
        let wide = (us.max(0.0) / top.max(1e-9)) * size.0;
        let title = format!("{name}: {}", text::time_us(*us));
        svg.titled((x, at.1), (wide, size.1), &format!("fill {class}"), &title);
        if wide > 34.0 {
            let share = percent(us / stages.iter().map(|s| s.2.max(0.0)).sum::<f64>().max(1e-9));
            let place = (x + wide / 2.0, at.1 + size.1 / 2.0 + 4.0);
            svg.words(place, At::Middle, "t on", &share);
        }
        x += wide;
    }
}

fn draw(means: &Means, size: Size) -> Svg {
    let stages = means.all();
    let top: f64 = stages.iter().map(|s| s.2.max(0.0)).sum();
    let mut svg = Svg::new(size.width, 30.0, "mean time of each stage");
    bar(&mut svg, (0.0, 2.0), (size.width, 26.0), &stages, top);
    svg
}

/// The picture, with its table.
pub fn picture(run: &Run) -> String {
    let means = Means::of(run);
    if run.summary.run.stages.count() == 0 {
        return absent("No sample was answered: there are no stages.");
    }
    let whole: f64 = means.all().iter().map(|s| s.2.max(0.0)).sum();
    let row = |name: Cell, us: f64, share: String| {
        vec![
            name,
            Cell::figure(text::time_us(us.abs())),
            Cell::figure(share),
        ]
    };
    let mut rows: Vec<Vec<Cell>> = means
        .all()
        .into_iter()
        .map(|(class, name, us)| {
            let name = Cell::Raw(format!(
                "<i class=\"{class}\"></i>{}",
                crate::html::escape(name)
            ));
            row(name, us, percent(us / whole.max(1e-9)))
        })
        .collect();
    if means.told > 0.0 {
        let name = Cell::words("less: the call itself, behind LoadGen's clock");
        rows.push(row(name, means.told, String::new()));
    }
    let note = match means.off() {
        Some(off) => {
            let all = Cell::words("all of them");
            rows.push(row(all, means.sum(), String::new()));
            let theirs = means.loadgen.unwrap_or_default();
            let differ = format!("{:+.2} %", off * 100.0);
            rows.push(row(Cell::words("LoadGen's mean latency"), theirs, differ));
            let how = if run.figure("/loadgen/scheduled_to_issue/mean_us").is_some() {
                "LoadGen's clock stops as `QuerySamplesComplete` begins, so that call is taken off."
            } else {
                "`scheduled -> issue` is LoadGen's mean less ours here: this run did not measure it."
            };
            format!("Means add up, percentiles do not. {how}")
        }
        None => "LoadGen gives no mean of samples to compare with.".to_owned(),
    };
    let picture = both(Size::HALF, |size| draw(&means, size));
    let table = table(&["stage", "mean", "share"], &rows);
    let title = "Where a sample's time goes, on average";
    figure("stages", title, &format!("{picture}{table}"), &note)
}
