//! Groups repetitions of one setting, and finds the settings that differ between groups.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;
use record::{RunFolder, Stage};

use crate::{pictures::settings::joined, text::json_name};

/// Settings that may differ between repetitions: seeds, and output paths.
const PER_RUN: &[&str] = &[
    "qsl_rng_seed",
    "sample_index_rng_seed",
    "schedule_rng_seed",
    "accuracy_log_rng_seed",
    "outdir",
    "output_dir",
    "prefix",
    "suffix",
    "prefix_with_datetime",
    "loadgen.output_dir",
];

/// The target rate of Server; unused in other scenarios.
const RATE: &str = "server_target_qps";

const COLOURS: [&str; 6] = ["r0", "r1", "r2", "r3", "r4", "r5"];

pub struct SettingGroup<'a> {
    /// The group's letter, and the name of its first run: `A server`.
    pub name: String,
    /// The group's colour, a variable of the style sheet.
    pub colour: &'static str,
    pub runs: Vec<&'a RunFolder>,
    settings: BTreeMap<String, String>,
}

fn settings(run: &RunFolder) -> BTreeMap<String, String> {
    let r = &run.summary.run;
    let mut all = BTreeMap::new();
    // Effective settings override the configuration, so add them later.
    all.extend(run.configuration("frontend.yaml"));
    for (i, a) in r.system.accelerators.iter().enumerate() {
        let keys = run.configuration(&format!("accelerator-{}.yaml", a.node));
        let keys = keys.into_iter();
        all.extend(keys.map(|(key, value)| (format!("accelerators[{i}] {key}"), value)));
    }
    let mut put = |name: &str, value: String| {
        if !value.is_empty() {
            all.insert(name.to_owned(), value);
        }
    };
    let in_force = r.settings.iter().filter(|s| !s.idle);
    for s in in_force.filter(|s| !PER_RUN.contains(&s.name.as_str())) {
        put(&s.name, s.given.value.clone());
    }
    put("scenario", r.scenario.clone());
    put("mode", json_name(r.mode));
    put("fabric", r.fabric.clone());
    let accelerators = &r.system.accelerators;
    put("accelerators", accelerators.len().to_string());
    for (i, a) in accelerators.iter().enumerate() {
        put(&format!("accelerators[{i}] engine"), a.engine.clone());
        let content = a.content.as_ref().map(ToString::to_string);
        put(
            &format!("accelerators[{i}] model"),
            content.unwrap_or_default(),
        );
    }
    let own = r.system.facts.iter().map(|f| ("frontend".to_owned(), f));
    let others = accelerators.iter().enumerate();
    let others =
        others.filter_map(|(i, a)| Some((format!("accelerators[{i}]"), a.facts.as_ref()?)));
    for (who, facts) in own.chain(others) {
        let commit = facts.commit.clone().unwrap_or_default();
        let dirty = if facts.dirty == Some(true) {
            " and changes"
        } else {
            ""
        };
        put(&format!("{who} commit"), format!("{commit}{dirty}"));
        let program = facts.program.iter().flat_map(|p| p.chars().take(12));
        put(&format!("{who} program"), program.collect());
        put(&format!("{who} host"), facts.host.clone());
    }
    all
}

/// Groups the runs by their settings, in the order of first appearance.
pub fn of(runs: &[RunFolder]) -> Vec<SettingGroup<'_>> {
    let mut groups: Vec<SettingGroup<'_>> = Vec::new();
    for run in runs {
        let settings = settings(run);
        if let Some(group) = groups.iter_mut().find(|g| g.settings == settings) {
            group.runs.push(run);
            continue;
        }
        let at = groups.len();
        let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or(0));
        groups.push(SettingGroup {
            name: format!("{letter} {}", run.name),
            colour: COLOURS[at % COLOURS.len()],
            runs: vec![run],
            settings,
        });
    }
    for group in groups.iter_mut().filter(|g| g.runs.len() > 1) {
        group.name = format!("{} x {}", group.name, group.runs.len());
    }
    groups
}

/// Names of the settings that differ, with each group's value.
pub fn differing(groups: &[&SettingGroup<'_>]) -> Vec<(String, Vec<String>)> {
    let names: BTreeSet<&String> = groups.iter().flat_map(|g| g.settings.keys()).collect();
    let values = |name: &&String| -> Vec<String> {
        let value = |g: &&SettingGroup<'_>| g.settings.get(*name).cloned();
        let values = groups.iter().map(value);
        values
            .map(|v| v.unwrap_or_else(|| "-".to_owned()))
            .collect()
    };
    let all = names.iter().map(|name| (name.as_str(), values(name)));
    let differ = all.filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]));
    joined(differ, |a, b| a == b)
}

impl SettingGroup<'_> {
    /// How this group's scenario or load differs from that of `first`, in words; `None` if not.
    pub fn asked_other(&self, first: &SettingGroup<'_>) -> Option<&'static str> {
        let of = |g: &SettingGroup<'_>, key: &str| g.settings.get(key).cloned();
        let same = |key| of(self, key) == of(first, key);
        if !same("scenario") {
            return Some("in another scenario");
        }
        let rate = |g: &SettingGroup<'_>| of(g, RATE).and_then(|text| text.parse::<f64>().ok());
        match (rate(self), rate(first)) {
            _ if same(RATE) => None,
            (Some(own), Some(was)) if own > was => Some("at a higher load"),
            (Some(own), Some(was)) if own < was => Some("at a lower load"),
            (Some(_), Some(_)) => None,
            _ => Some("at another load"),
        }
    }

    /// The histograms of the stage `total`, merged over all runs; `None` if no run has one.
    pub fn total(&self) -> Option<Histogram<u64>> {
        let mut all = self.runs.iter().filter_map(|r| r.histogram(Stage::Total));
        let mut sum = all.next()?.clone();
        for more in all {
            sum.add(more).ok()?;
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use record::{SettingRecord, Summary};

    use super::*;

    fn run(name: &str, settings: &[(&str, &str)]) -> RunFolder {
        let mut summary = Summary::default();
        for (name, value) in settings {
            let mut setting = SettingRecord::default();
            (*name).clone_into(&mut setting.name);
            (*value).clone_into(&mut setting.given.value);
            summary.run.settings.push(setting);
        }
        RunFolder::of(name, &summary, None)
    }

    #[test]
    fn a_group_that_was_asked_for_another_rate_is_said_to_have_another_load() {
        let runs = ["100", "200", "100.0"].map(|qps| run(qps, &[(RATE, qps)]));
        let groups = of(&runs);
        let load = |own: usize, first: usize| groups[own].asked_other(&groups[first]);
        assert_eq!(load(1, 0), Some("at a higher load"));
        assert_eq!(load(0, 1), Some("at a lower load"));
        assert_eq!(load(2, 0), None);
    }

    #[test]
    fn runs_that_differ_in_seeds_alone_are_repetitions() {
        let seed = "schedule_rng_seed";
        let runs = [("one", "50", "1"), ("two", "0", "1"), ("three", "50", "2")];
        let runs = runs.map(|(name, spin, n)| run(name, &[("spin_us", spin), (seed, n)]));
        let groups = of(&runs);
        let names: Vec<&str> = groups.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["A one x 2", "B two"]);
        let expected = ("spin_us".to_owned(), vec!["50".to_owned(), "0".to_owned()]);
        let both: Vec<_> = groups.iter().collect();
        assert_eq!(differing(&both), [expected]);
    }
}
