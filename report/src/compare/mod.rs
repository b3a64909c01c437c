//! Compares runs: which settings differ, which results differ, and whether that exceeds noise.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`groups`] | groups repetitions of one setting; finds settings that differ |
//! | [`noise`] | confidence intervals, by batch means |
//! | [`differences`] | each figure of a group beside the first group's, in sentences |
//! | [`charts`] | tables and charts of groups side by side |

mod charts;
mod differences;
mod groups;
mod noise;

use record::{LoadgenLatency, RunFolder, Stage};

use self::groups::SettingGroup;
use crate::{
    causes,
    embedded::record,
    html,
    model::{Cell, Part, absent, boxed, table},
    page::{
        self,
        head::{heading, time, verdict},
    },
    text,
};

fn runs_table(groups: &[SettingGroup<'_>]) -> Part {
    let mut rows = Vec::new();
    let mut all = groups.iter().flat_map(|g| &g.runs);
    let tokens = all.any(|run| run.summary.run.tokens.is_some());
    for group in groups {
        for run in &group.runs {
            let r = &run.summary.run;
            let total = r.stages.get(Stage::Total).copied().unwrap_or_default();
            let loadgen = r.loadgen.as_ref();
            let theirs = |row: Option<LoadgenLatency>| time(row.map(|row| row.p99_us));
            let limit = r.limits.findings.first();
            let limit = limit.map_or("-", |f| causes::name(f.cause));
            let mut row = vec![
                Cell::key(group.colour, &group.name),
                Cell::words(&run.name),
                Cell::words(verdict(r).1),
            ];
            // Of a language model, its own figures come first.
            if tokens {
                row.push(theirs(loadgen.and_then(|l| l.ttft)));
                row.push(theirs(loadgen.and_then(|l| l.tpot)));
                let rate = r.tokens.as_ref().map(|t| text::rate(t.per_s));
                row.push(Cell::figure(rate.unwrap_or_else(|| "-".to_owned())));
            }
            row.extend([
                Cell::figure(text::rate(r.per_s)),
                Cell::figure(text::time_us(total.p50_us)),
                Cell::figure(text::time_us(total.p99_us)),
                theirs(loadgen.and_then(|l| l.latency)),
                Cell::figure(text::grouped(r.samples)),
                Cell::words(limit),
            ]);
            rows.push(row);
        }
    }
    let own = tokens.then_some("|LoadGen's p99 TTFT|p99 TPOT|tokens/s");
    let heading = "|samples/s|p50|p99|LoadGen's p99|samples|limited by";
    let heading = ["|run|LoadGen", own.unwrap_or_default(), heading].concat();
    boxed("The runs", [table(&heading, rows)])
}

fn settings_table(groups: &[SettingGroup<'_>]) -> Part {
    let differing = groups::differing(&groups.iter().collect::<Vec<_>>());
    let names = groups.iter().map(|g| g.name.as_str());
    let heading: Vec<&str> = ["setting"].into_iter().chain(names).collect();
    let row = |(name, values): (String, Vec<String>)| {
        let cells = [format!("`{name}`")].into_iter().chain(values);
        cells.map(Cell::Words).collect()
    };
    let part = match differing.is_empty() {
        true => absent("None: these are repetitions of one setting."),
        false => table(&heading.join("|"), differing.into_iter().map(row).collect()),
    };
    boxed("Settings that differ", [part])
}

/// A line for each run that ended early.
fn warnings(runs: &[RunFolder]) -> Vec<String> {
    let ends = runs.iter().map(|run| (&run.name, &run.summary.run.exit));
    let early = ends.filter(|(_, exit)| exit.code > 1);
    early
        .map(|(name, exit)| format!("`{name}` did not come to its end: {}.", exit.reason))
        .collect()
}

pub fn page(runs: &[RunFolder]) -> String {
    if runs.is_empty() {
        return page::document("No runs", "<h1>No runs</h1>", "");
    }
    let groups = groups::of(runs);
    let found = differences::all(&groups);
    let mut says: Vec<String> = found
        .iter()
        .map(differences::Comparison::sentence)
        .collect();
    if says.is_empty() {
        says = differences::spread(&groups[0]);
    }
    let warnings = match warnings(runs) {
        lines if lines.is_empty() => String::new(),
        lines => html::html(&[Part::Group("box wrong", vec![Part::List(lines)])]),
    };
    let says = says.into_iter().map(|said| Part::Words("says", said));
    let names: Vec<&str> = groups.iter().map(|g| g.name.as_str()).collect();
    let title = names.join(" and ");
    let settings = text::counted(groups.len() as u64, "setting");
    let sub = text::counted(runs.len() as u64, "run") + " of " + &settings;
    let header = heading(&title, &sub);
    let mut differ = vec![Part::Group("box", says.collect())];
    differ.extend(charts::differences(&found));
    let sections = html::sections(&[
        ("Is there a difference?", differ),
        ("Latency", vec![charts::latency(&groups)]),
        ("Over time", vec![charts::over_time(&groups)]),
        (
            "How they were made",
            vec![settings_table(&groups), runs_table(&groups)],
        ),
    ]);
    let records: String = runs.iter().map(record).collect();
    page::document(&title, &header, &(warnings + &sections + &records))
}
