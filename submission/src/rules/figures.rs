//! Compares LoadGen's figures and dates with each other, and summary.json with the log.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use ::record::{Mode, SUMMARY, Summary};

use super::{run::RunCheck, *};
use crate::error;

const DAY_S: f64 = 86_400.0;
/// Maximum relative difference of a rate in summary.json from the log's.
const RATE: f64 = 0.01;

/// Seconds since 1970 of `2025-07-31T21:31:59Z` or `07-31-2025 21:31:59.296`.
fn seconds(text: &str) -> Option<f64> {
    let (date, clock) = text.split_once(['T', ' '])?;
    let day: Vec<i64> = date.split('-').filter_map(|n| n.parse().ok()).collect();
    let (year, month, day) = match day[..] {
        [year, month, day] if year > 31 => (year, month, day),
        [month, day, year] => (year, month, day),
        _ => return None,
    };
    let clock = clock
        .split_once(['Z', '+'])
        .map_or(clock, |(clock, _)| clock);
    let clock: Vec<f64> = clock.split(':').filter_map(|n| n.parse().ok()).collect();
    let [hours, minutes, s] = clock[..] else {
        return None;
    };
    // Years from March: leap days are at the end of one.
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some((days - 719_469) as f64 * DAY_S + hours * 3600.0 + minutes * 60.0 + s)
}

impl RunCheck<'_> {
    /// Checks that the results of a run that is over agree with each other.
    pub(crate) fn figures(&mut self) {
        let Some(detail) = self.detail.filter(|_| *self.kind != RunKind::Accuracy) else {
            return;
        };
        let count = detail.whole("result_query_count");
        let least = detail
            .whole("effective_min_query_count")
            .filter(|_| !self.round.is_one_query(self.scenario))
            .filter(|_| detail.text("result_validity") == "VALID");
        if self.is_measured() || count.is_some() {
            let (count, least) = (count.unwrap_or(0), least.unwrap_or(1).max(1));
            if count < least {
                let what = format!("result_query_count is {count}, at least {least} are needed");
                self.say(RUN_FIGURES, what);
            }
        }
        // Latencies by what they are of, then by percentile: the minimum is 0, the maximum 100.
        let mut all: BTreeMap<String, Vec<(f64, f64, &str)>> = BTreeMap::new();
        for (key, value) in detail.results() {
            let percentile = |word: &str| match word {
                "min" => Some(0.0),
                "max" => Some(100.0),
                word => word.parse().ok(),
            };
            let (at, of): (Vec<&str>, Vec<&str>) =
                key.split('_').partition(|word| percentile(word).is_some());
            if let ([at], Ok(value)) = (&at[..], value.parse()) {
                let of = of.join(" ").replace(" percentile", "");
                let at = percentile(at).unwrap_or(0.0);
                all.entry(of).or_default().push((at, value, key));
            }
        }
        for figures in all.values_mut() {
            figures.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let Some([low, high]) = figures.windows(2).find(|pair| pair[0].1 > pair[1].1) {
                let what = format!("{} is {}, above {}, {}", low.2, low.1, high.2, high.1);
                self.say(RUN_FIGURES, what);
            }
        }
        let mut rates = detail.results().filter(|(key, _)| key.contains("_per_sec"));
        if let Some((key, rate)) = rates.find(|(_, rate)| !rate.parse().is_ok_and(|r: f64| r > 0.0))
        {
            self.say(RUN_FIGURES, format!("{key} is {rate}"));
        }
        let time = |key: &str| seconds(detail.get(key)?);
        let lasted = time("power_end")
            .zip(time("power_begin"))
            .map(|(end, begin)| end - begin);
        let least = detail.number("effective_min_duration_ms").unwrap_or(0.0) / 1e3;
        if self.is_measured() && lasted.is_none_or(|lasted| lasted < least) {
            let lasted = lasted.map_or("nothing".to_owned(), |s| format!("{s:.1} s"));
            let what = format!("it lasted {lasted} by power_begin and power_end, not {least} s");
            self.say(RUN_DURATION, what);
        }
    }
}

/// Checks the dates of a result's runs.
pub(super) fn dates(check: &mut TreeCheck<'_>, runs: &[CheckedRun]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0.0, |since| since.as_secs_f64());
    let days = check.round.days_apart as f64;
    let mut first: Option<f64> = None;
    for (run, detail) in runs.iter().filter_map(|r| Some((r, r.detail.as_ref()?))) {
        let time = |key: &str| seconds(detail.get(key)?);
        let date = detail.text("test_datetime");
        let what = match seconds(&date) {
            None => format!("it says no date: test_datetime {date:?}"),
            Some(at) if at > now + DAY_S => format!("{date} is in the future"),
            Some(at) if time("loadgen_git_commit_date").is_some_and(|built| at < built) => {
                format!("{date} is before the commit of its LoadGen")
            }
            Some(at) if time("power_begin").is_some_and(|began| (began - at).abs() > DAY_S) => {
                format!("{date} is of another day than power_begin")
            }
            Some(at) => {
                let apart = (at - *first.get_or_insert(at)).abs() / DAY_S;
                if apart <= days {
                    continue;
                }
                format!("{date} is {apart:.0} days from the result's first run, at most {days}")
            }
        };
        check.say(RUN_DATE, &run.logs.join(loadgen_log::DETAIL), what);
    }
}

/// Compares LoadGen's summary and summary.json with the log and the record.
pub(super) fn summaries(check: &mut TreeCheck<'_>, scenario: &str, run: &CheckedRun) {
    let detail = run.detail.as_ref();
    let verdict = detail.and_then(|d| d.get("result_validity"));
    let logs = run.logs.join(loadgen_log::SUMMARY);
    let text = error::read(&logs).unwrap_or_default();
    let says = text
        .lines()
        .find_map(|line| line.strip_prefix("Result is : "));
    let what = match text.matches("MLPerf Results Summary").count() {
        _ if text.contains('\0') => "it has a NUL",
        2.. => "it has the summaries of several runs",
        _ if says.is_some_and(|says| Some(says.trim()) != verdict) => {
            "its verdict is not that of the detailed log"
        }
        _ => "",
    };
    if !what.is_empty() {
        check.say(RUN_LOG, &logs, what);
    }
    let Some(manifest) = &run.manifest else {
        return;
    };
    let at = run.kept.join(SUMMARY);
    let summary: Summary = match error::read_json(&at) {
        Ok(summary) => summary,
        Err(error) => return check.say(RECORD_SUMMARY, &at, error.to_string()),
    };
    let ran = &summary.run;
    for line in &ran.would_not_count {
        let id = line.split(':').next().unwrap_or_default();
        let rule = ALL.iter().find(|rule| rule.id == id);
        let what = format!("the run says that it would not count: {line}");
        check.say(rule.unwrap_or(&RECORD_SUMMARY), &at, what);
    }
    let row = check.round.scenarios.get(scenario);
    let row = row.filter(|row| row.rate.is_some() && run.kind == RunKind::Performance);
    let rate = row.and_then(|row| row.rate(detail?));
    let mode = match run.kind {
        RunKind::Accuracy => Mode::Accuracy,
        _ => Mode::Performance,
    };
    let exit = manifest.exit.unwrap_or(ran.exit.code);
    let is_test = matches!(run.kind, RunKind::Test(_));
    // A compliance test that sets its own length has no verdict.
    let is_verdict = |word: &str| match ran.valid {
        Some(own) => own == (word == "VALID"),
        None => is_test && exit == 0,
    };
    let is_name = |d: &Detail| summary.name == d.text("sut_name");
    let near = |rate: f64| (ran.per_s - rate).abs() <= RATE * rate.abs();
    for (is_same, what) in [
        (ran.scenario == manifest.scenario, "scenario"),
        (ran.fabric == manifest.fabric, "fabric"),
        (summary.node == manifest.frontend.node, "node"),
        (detail.is_none_or(is_name), "name of the SUT"),
        (ran.exit.code == exit, "exit code"),
        ([mode, Mode::Submission].contains(&ran.mode), "mode"),
        (verdict.is_none_or(is_verdict), "verdict"),
        (rate.is_none_or(near), "rate"),
    ] {
        if !is_same {
            let what = format!("its {what} is not that of the log and run.json");
            check.say(RECORD_SUMMARY, &at, what);
        }
    }
    if let Some(first) = ran.mismatches.first() {
        check.say(RECORD_SUMMARY, &at, format!("counts do not agree: {first}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_loadgen_writes_them() {
        let day = 20_300.0 * DAY_S;
        assert_eq!(seconds("2025-07-31T00:00:01Z"), Some(day + 1.0));
        assert_eq!(seconds("2025-07-31T00:00:01+01:00"), Some(day + 1.0));
        assert_eq!(seconds("07-31-2025 00:01:00.250"), Some(day + 60.25));
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(seconds("2024-03-01T00:00:00Z"), Some(19_783.0 * DAY_S));
        assert_eq!(seconds("yesterday"), None);
    }
}
