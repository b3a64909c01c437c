//! Formats LoadGen's part of the summary: its result, its limits, and the phases of a run.

use record::{
    LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord, PhaseKind, PhaseRecord, RunRecord,
};

use super::{
    numbers::{self as text, Table},
    settings,
    stages::stages,
    summary::{RED, Screen, YELLOW},
};

/// Maximum number of phases in the text, which omits earlier ones; the JSON has all phases.
const MOST_PHASES: usize = 40;
/// Least ratio of completed to scheduled rate at which a peak counts as sustained.
const KEEPS_UP: f64 = 0.95;

impl Screen {
    /// Adds LoadGen's mode if it is not the requested one, and the peak rate that LoadGen found.
    pub(super) fn ran(&mut self, run: &RunRecord) {
        let Some(l) = &run.loadgen else { return };
        if let Some(asked) = &l.asked_mode {
            let line = format!(
                "LoadGen ran {}, though {asked} was asked for: audit.config goes before everything",
                l.mode
            );
            self.fact("mode", &line, Some(YELLOW));
        }
        let steps = run.phases.iter().filter(|p| p.kind == PhaseKind::Step);
        let kept = steps.clone().filter(|p| p.kept == Some(true)).count();
        let steps = steps.count();
        match l.peak_qps {
            Some(qps) => {
                let bound = l.limits.iter().find(|limit| limit.at_most);
                let bound = bound.map_or_else(
                    || "its bound kept".to_owned(),
                    |b| format!("{} within {}", b.name, amount(b.unit, b.limit)),
                );
                let line = format!(
                    "{} queries/s: by LoadGen's word the highest with {bound}; {kept} of {steps} \
                     steps kept that",
                    asked_rate(qps)
                );
                self.fact("peak", &line, None);
                self.peak_that_does_not_last(l);
            }
            None if steps > 0 && kept == 0 => {
                let line = "none: the first rate was too high; give a lower --target-qps";
                self.fact("peak", line, Some(RED));
            }
            None => {}
        }
    }

    /// Warns that the peak is not sustained: its steps were too short to show the queue's growth.
    fn peak_that_does_not_last(&mut self, l: &LoadgenRecord) {
        let (Some(scheduled), Some(completed)) = (l.scheduled_per_s, l.completed_per_s) else {
            return;
        };
        if completed < scheduled * KEEPS_UP {
            let line = format!(
                "not sustained: {}/s of the {}/s scheduled were completed; its steps were too \
                 short for the bound on latency to show it: give a longer --duration-s",
                text::rate(completed),
                text::rate(scheduled)
            );
            self.fact("", &line, Some(YELLOW));
        }
    }

    /// Adds LoadGen's rates, latencies, and limits with the measured values.
    pub(super) fn loadgen(&mut self, l: &LoadgenRecord) {
        self.fact("LoadGen", &rates(l), None);
        self.warnings(l);
        // Offline has one query, and a latency for each of its samples.
        let mut limits = l.limits.iter();
        let samples = limits.find(|limit| limit.unit == LimitUnit::Samples);
        let samples = samples.and_then(|limit| limit.was).map(|n| n as u64);
        let (counted, count) = match samples {
            Some(n) if l.scenario == "Offline" => ("samples", Some(n)),
            _ => ("queries", l.queries),
        };
        let rows = [
            ("latency, as scheduled", &l.latency),
            ("TTFT, as scheduled", &l.ttft),
            ("TPOT", &l.tpot),
        ];
        let heading = ["LoadGen's own", "p50", "p90", "p99", "p99.9", "max", "mean"];
        let mut table = Table::new(&[&heading[..], &[counted]].concat());
        for (name, row) in rows {
            let Some(row) = row else { continue };
            let mut cells = vec![name.to_owned()];
            cells.extend(times(row));
            cells.push(count.map_or_else(String::new, text::grouped));
            table.row(cells);
        }
        if l.latency.is_some() {
            self.block(&table.text());
        }
        match l.late_mean_us {
            // `total` ends after LoadGen's latency, so the mean delay is at least `late`.
            Some(late) if late > 0.0 => self.plain(&format!(
                "Samples were issued {} or more after their scheduled time on average: LoadGen \
                 counts that.",
                text::time_us(late)
            )),
            Some(less) if less < 0.0 => self.note(&format!(
                "LoadGen's mean is {} below that of total: its time of a sample ends as \
                 QuerySamplesComplete begins, total as it returns.",
                text::time_us(-less)
            )),
            _ => {}
        }
        self.limits(l);
    }

    /// Explains where `completion` and `total` differ from LoadGen's latency, in scenarios whose
    /// result is LoadGen's latency.
    pub(super) fn ends(&mut self, run: &RunRecord) {
        if matches!(run.scenario.as_str(), "SingleStream" | "MultiStream") {
            self.note(
                "LoadGen's time of a sample ends as QuerySamplesComplete begins; it issues the \
                 next query while that call still runs. completion and total end as it returns: \
                 totals overlap, and LoadGen's latency is the answer to how long one sample \
                 takes.",
            );
        }
    }

    /// Adds LoadGen's warnings, each once with its count.
    fn warnings(&mut self, l: &LoadgenRecord) {
        let mut said: Vec<(&str, u64)> = Vec::new();
        for message in &l.warning_messages {
            match said.iter_mut().find(|(other, _)| other == message) {
                Some((_, times)) => *times += 1,
                None => said.push((message, 1)),
            }
        }
        for (message, times) in said {
            let times = match times {
                1 => String::new(),
                n => format!(" ({n} times)"),
            };
            let line = format!("LoadGen warned: {message}{times}");
            self.fact("", &line, Some(YELLOW));
        }
    }

    fn limits(&mut self, l: &LoadgenRecord) {
        if l.limits.is_empty() {
            return;
        }
        let heading = ["limit", "asked for", "was", "of it", "", "set by"];
        let mut table = Table::new(&heading).left();
        let word = |met| if met { "met" } else { "NOT MET" }.to_owned();
        for limit in &l.limits {
            let was = limit.was.map(|was| amount(limit.unit, was));
            table.row(vec![
                limit.name.clone(),
                asked(limit),
                was.unwrap_or("-".to_owned()),
                share(limit.was, limit.limit),
                word(limit.met),
                limit.setting.clone(),
            ]);
        }
        if let Some(early) = &l.early_stopping {
            let queries = |n: u64| amount(LimitUnit::Queries, n as f64);
            let was = early.queries.map(|n| n as f64);
            let needs = early.needs.filter(|_| !early.met);
            let asked = needs.map(|n| format!("at least {}", queries(n)));
            let part = needs.map(|n| share(was, n as f64));
            table.row(vec![
                "early stopping".to_owned(),
                asked.unwrap_or("enough queries".to_owned()),
                early.queries.map(queries).unwrap_or("-".to_owned()),
                part.unwrap_or("-".to_owned()),
                word(early.met),
                "min_query_count".to_owned(),
            ]);
        }
        self.out.push('\n');
        self.block(&table.text());
    }

    /// Adds a row per phase, and their sum.
    pub(super) fn phases(&mut self, run: &RunRecord) {
        let steps = run.phases.iter().any(|p| p.kind == PhaseKind::Step);
        let columns = ["samples", "took", "done/s", "p50", "p99", "p99.9", "max"];
        let heading = match steps {
            true => [&["step", "asked/s"], &columns[..], &["bound"]].concat(),
            false => [&["phase"], &columns[..]].concat(),
        };
        let mut table = Table::new(&heading);
        let skipped = run.phases.len().saturating_sub(MOST_PHASES);
        for p in &run.phases[skipped..] {
            table.row(phase(p, steps));
        }
        let samples: u64 = run.phases.iter().map(|p| p.samples).sum();
        let mut all = vec![format!("all {}", run.phases.len()), text::short(samples)];
        if steps {
            all.insert(1, String::new());
        }
        table.row(all);
        self.block(&table.text());
        if skipped > 0 {
            self.plain(&format!("The first {skipped} are in summary.json."));
        }
        self.plain("Times are ours, from the issue of a sample to its completion.");
        if steps {
            self.note(
                "bound is LoadGen's word. It counts from the time for which a sample was \
                 scheduled, so it may call a step exceeded whose times here are within the \
                 bound: samples were issued late. It logs its percentile for the peak alone.",
            );
        }
    }

    /// Adds the stages of each phase; of find-peak only those of the peak.
    pub(super) fn stages_of_phases(&mut self, run: &RunRecord) {
        let peak = run.loadgen.as_ref().and_then(|l| l.peak_qps);
        for p in &run.phases {
            let near = |asked: f64| peak.is_some_and(|peak| (asked - peak).abs() < 1e-5);
            let is_peak = p.asked_per_s.is_some_and(near) && p.kept == Some(true);
            if p.kind == PhaseKind::Step && !is_peak {
                continue;
            }
            let peak = if is_peak { ", the peak" } else { "" };
            self.out.push('\n');
            self.fact("stages of", &format!("{}{peak}", p.name), None);
            self.block(&stages(&p.stages, None));
        }
    }

    /// Adds the settings that are not defaults, and notes on settings without effect.
    pub(super) fn settings(&mut self, run: &RunRecord) {
        let table = settings::settings(&run.settings);
        if let Some(table) = &table {
            self.block(table);
            self.plain("All others are defaults; summary.json has every one.");
        }
        for note in &run.setting_notes {
            self.fact("note", note, Some(YELLOW));
        }
        if table.is_some() || !run.setting_notes.is_empty() {
            self.out.push('\n');
        }
    }
}

/// Formats scheduled and completed rates, errors and warnings in one line.
fn rates(l: &LoadgenRecord) -> String {
    let mut said = Vec::new();
    match (l.scheduled_per_s, l.completed_per_s) {
        (Some(scheduled), Some(completed)) => said.push(format!(
            "{}/s scheduled, {}/s completed ({})",
            text::rate(scheduled),
            text::rate(completed),
            share(Some(completed), scheduled)
        )),
        (None, Some(completed)) => said.push(format!("{}/s completed", text::rate(completed))),
        _ => {}
    }
    if let (Some(percentile), Some(us)) = (l.percentile, l.percentile_us) {
        let early = l.early_stopping.as_ref();
        let estimate = early.and_then(|early| early.estimate_us).map(text::time_us);
        let estimate = estimate.map(|us| format!(" ({us} by early stopping's estimate)"));
        let (us, estimate) = (text::time_us(us), estimate.unwrap_or_default());
        said.push(format!("p{percentile} latency {us}{estimate}"));
        let of_tokens = early.and_then(|early| early.ttft_estimate_us.zip(early.tpot_estimate_us));
        if let Some((ttft, tpot)) = of_tokens {
            let [ttft, tpot] = [ttft, tpot].map(text::time_us);
            said.push(format!(
                "p{percentile} TTFT {ttft}, TPOT {tpot} by early stopping's estimates"
            ));
        }
    }
    if let Some(tokens) = l.tokens_per_s {
        said.push(format!("{} tokens/s", text::rate(tokens)));
    }
    if let Some(over) = l.over_limit.filter(|over| *over > 0) {
        said.push(format!("{} queries over the bound", text::grouped(over)));
    }
    let many = |n: u64, what: &str| match n {
        0 => format!("no {what}s"),
        n => text::counted(n, what),
    };
    said.push(many(l.errors, "error"));
    said.push(many(l.warnings, "warning"));
    said.join(", ")
}

fn times(row: &LoadgenLatency) -> Vec<String> {
    let percentiles = [row.p50_us, row.p90_us, row.p99_us, row.p999_us];
    let all = percentiles.into_iter().chain([row.max_us, row.mean_us]);
    all.map(text::time_us).collect()
}

fn amount(unit: LimitUnit, n: f64) -> String {
    let unit = match unit {
        LimitUnit::Us => return text::time_us(n),
        LimitUnit::Queries => "queries",
        LimitUnit::Samples => "samples",
    };
    format!("{} {unit}", text::grouped(n.round() as u64))
}

fn asked(limit: &LimitRecord) -> String {
    let word = if limit.at_most { "at most" } else { "at least" };
    format!("{word} {}", amount(limit.unit, limit.limit))
}

/// Formats `was` as a percentage of `limit`.
fn share(was: Option<f64>, limit: f64) -> String {
    match was {
        Some(was) if limit > 0.0 => match was / limit * 100.0 {
            tiny if tiny > 0.0 && tiny < 0.01 => "< 0.01 %".to_owned(),
            percent => format!("{} %", text::rate(percent)),
        },
        _ => "-".to_owned(),
    }
}

/// Formats a rate that LoadGen chose, with all its decimals: two steps may differ in the last.
fn asked_rate(rate: f64) -> String {
    match rate.fract() {
        0.0 => text::rate(rate),
        _ => rate.to_string(),
    }
}

fn phase(p: &PhaseRecord, steps: bool) -> Vec<String> {
    let total = p.total();
    let mut row = vec![p.name.strip_prefix("step ").unwrap_or(&p.name).to_owned()];
    if steps {
        row.push(p.asked_per_s.map_or_else(String::new, asked_rate));
    }
    row.extend([
        text::short(p.samples),
        text::time_us(p.duration_s * 1e6),
        text::rate(p.per_s),
        text::time_us(total.p50_us),
        text::time_us(total.p99_us),
        text::time_us(total.p999_us),
        text::time_us(total.max_us),
    ]);
    let word = p.kept.map(|kept| if kept { "kept" } else { "exceeded" });
    row.extend(word.map(str::to_owned));
    row
}

#[cfg(test)]
#[path = "loadgen_tests.rs"]
mod tests;
