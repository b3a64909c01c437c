//! The phases of a run, and the stages of each.

use record::{LoadgenRecord, PhaseKind, PhaseRecord, RunFolder};

use super::{loadgen::amount, stages};
use crate::{
    model::{Cell, Part, figure, row, table},
    text::{rate, short, time_us},
};

/// Least ratio of completed to scheduled rate at which a peak counts as sustained.
const KEEPS_UP: f64 = 0.95;

/// Formats a rate that LoadGen chose, with all its decimals: two steps may differ in the last.
fn asked_rate(asked: f64) -> String {
    match asked.fract() {
        0.0 => rate(asked),
        _ => asked.to_string(),
    }
}

/// What find-peak found; `None` for other runs.
pub fn peak(phases: &[PhaseRecord], l: &LoadgenRecord) -> Option<String> {
    let steps = phases.iter().filter(|p| p.kind == PhaseKind::Step);
    let kept = steps.clone().filter(|p| p.kept == Some(true)).count();
    let steps = steps.count();
    let Some(qps) = l.peak_qps else {
        let none = "none: the first rate was too high; give a lower --target-qps";
        return (steps > 0 && kept == 0).then(|| none.to_owned());
    };
    let bound = l.limits.iter().find(|limit| limit.at_most);
    let bound = bound.map(|b| format!("{} within {}", b.name, amount(b.unit, b.limit)));
    let bound = bound.unwrap_or_else(|| "its bound kept".to_owned());
    let qps = asked_rate(qps);
    let rates = l.scheduled_per_s.zip(l.completed_per_s);
    // The steps were too short to show the queue's growth.
    let short = rates.filter(|(scheduled, completed)| *completed < scheduled * KEEPS_UP);
    let short = short.map_or_else(String::new, |(scheduled, completed)| {
        format!(
            "; not sustained: {}/s of the {}/s scheduled were completed, so the steps were too \
             short: give a longer --duration-s",
            rate(completed),
            rate(scheduled)
        )
    });
    Some(format!(
        "{qps} queries/s: by LoadGen's word the highest with {bound}; {kept} of {steps} steps kept \
         that{short}"
    ))
}

fn cells(p: &PhaseRecord, steps: bool) -> Vec<Cell> {
    let total = p.total();
    let name = p.name.strip_prefix("step ").unwrap_or(&p.name);
    let asked = steps.then(|| p.asked_per_s.map_or_else(String::new, asked_rate));
    let times = [total.p50_us, total.p99_us, total.p999_us, total.max_us].map(time_us);
    let figures = [short(p.samples), time_us(p.duration_s * 1e6), rate(p.per_s)];
    let figures = asked.into_iter().chain(figures).chain(times);
    let word = p
        .kept
        .map(|kept| Cell::words(if kept { "kept" } else { "exceeded" }));
    row(Cell::words(name), figures)
        .into_iter()
        .chain(word)
        .collect()
}

/// A row per phase, and the stages of each: of find-peak those of the peak alone.
pub fn picture(run: &RunFolder) -> Part {
    let r = &run.summary.run;
    let steps = r.phases.iter().any(|p| p.kind == PhaseKind::Step);
    let columns = "samples|took|done/s|p50|p99|p99.9|max";
    let heading = match steps {
        true => format!("step|asked/s|{columns}|bound"),
        false => format!("phase|{columns}"),
    };
    let mut rows: Vec<Vec<Cell>> = r.phases.iter().map(|p| cells(p, steps)).collect();
    let all = steps
        .then(String::new)
        .into_iter()
        .chain([short(r.samples)]);
    rows.push(row(Cell::words(format!("all {}", r.phases.len())), all));
    let mut parts = vec![table(&heading, rows)];
    let peak = r.loadgen.as_ref().and_then(|l| l.peak_qps);
    for p in &r.phases {
        let near = |asked: f64| peak.is_some_and(|peak| (asked - peak).abs() < 1e-5);
        let is_peak = p.asked_per_s.is_some_and(near) && p.kept == Some(true);
        if p.kind == PhaseKind::Step && !is_peak {
            continue;
        }
        let peak = if is_peak { ", the peak" } else { "" };
        parts.push(Part::Title(format!("stages of {}{peak}", p.name)));
        parts.push(stages::table_of(&p.stages, None));
    }
    let note = "Times are ours, from the issue of a sample to its completion. bound is LoadGen's \
                word, which counts from the scheduled time: it may call a step exceeded whose \
                times here are within the bound.";
    figure("phases", "The phases", parts, note)
}

#[cfg(test)]
mod tests {
    use qdl::{
        counters::{Histograms, SampleTimes},
        testkit::assert_has,
    };
    use record::{RunRecord, Summary};
    use serde_json::json;

    use super::*;
    use crate::terminal;

    fn phase(name: &str, kind: PhaseKind, samples: u64, step: Option<(f64, bool)>) -> PhaseRecord {
        let mut recorded = Histograms::new();
        (0..samples).for_each(|i| {
            recorded.record(&SampleTimes {
                completed_ns: (i + 1) * 1_000_000,
                ..SampleTimes::default()
            });
        });
        PhaseRecord {
            asked_per_s: step.map(|(qps, _)| qps),
            kept: step.map(|(_, kept)| kept),
            ..PhaseRecord::new(name.to_owned(), kind, recorded.table(), 0.5)
        }
    }

    #[test]
    fn find_peaks_steps_are_its_picture() {
        let step = |n: u64, qps, kept| {
            let name = format!("step {n}");
            phase(&name, PhaseKind::Step, n, Some((qps, kept)))
        };
        let steps = [
            step(1, 100.5, true),
            step(2, 200.0, false),
            step(3, 150.0, true),
        ];
        let l = json!({"peak_qps": 150.0, "scheduled_per_s": 911.0, "completed_per_s": 463.0,
            "limits": [{"name": "p99 latency", "limit": 10_000.0, "at_most": true}]});
        let l: LoadgenRecord = serde_json::from_value(l).expect("LoadGen's result");
        let said = peak(&steps, &l).expect("a peak");
        let found = "150 queries/s: by LoadGen's word the highest with p99 latency within 10.0 ms; \
                     2 of 3 steps kept that; not sustained: 463/s of the 911/s scheduled";
        assert!(said.starts_with(found), "{said}");
        let none = peak(&steps[1..2], &LoadgenRecord::default()).expect("words");
        assert!(
            none.starts_with("none: the first rate was too high"),
            "{none}"
        );
        let summary = Summary {
            run: RunRecord {
                samples: 6,
                phases: steps.to_vec(),
                loadgen: Some(l),
                ..RunRecord::default()
            },
            ..Summary::default()
        };
        let text = terminal::parts(&[picture(&RunFolder::of("", &summary, None))]);
        let expected = "\
step   asked/s  samples    took  done/s      p50      p99    p99.9      max  bound
1        100.5        1  500 ms    2.00  1.00 ms  1.00 ms  1.00 ms  1.00 ms  kept
2          200        2  500 ms    4.00  1.00 ms  2.00 ms  2.00 ms  2.00 ms  exceeded
3          150        3  500 ms    6.00  2.00 ms  3.00 ms  3.00 ms  3.00 ms  kept
all 3                 6
stages of step 3, the peak
";
        assert_has(&text, &[expected]);
    }
}
