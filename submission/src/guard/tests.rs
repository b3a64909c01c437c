//! Plants one fault at a time into a planned run that would count.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::*;
use crate::{
    round::newest,
    rules::tests::sound::{ACCELERATOR, FRONTEND, name},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    fault: String,
    breaks: BTreeSet<String>,
    /// Text of a refusal.
    #[serde(default)]
    says: String,
    /// Fields of LoadGen's settings.
    #[serde(default)]
    set: Map<String, Value>,
    /// Fields of the record, by path.
    #[serde(default)]
    record: BTreeMap<String, Value>,
    mode: Option<String>,
    loaded: Option<u64>,
    total: Option<u64>,
    user_conf: Option<bool>,
    /// A text of a configuration, and its replacement.
    #[serde(default)]
    frontend: [String; 2],
    #[serde(default)]
    accelerator: [String; 2],
}

impl Fault {
    /// The planned run with this fault.
    fn plant(&self, round: &Round) -> PlannedRun {
        let mut fields: Map<String, Value> = crate::error::yaml(SETTINGS).expect("settings");
        let seeds = round.seeds.iter();
        fields.extend(seeds.map(|(name, seed)| (name.clone(), (*seed).into())));
        fields.extend(self.set.clone());
        let record = include_str!("../rules/tests/run.json").replace("SCENARIO", "Server");
        let record = record.replace("CONF", "llama3_1-8b-interactive");
        let mut record: Value = serde_json::from_str(&record).expect("JSON");
        let mut second = record["accelerators"][0].clone();
        (second["node"], second["boot"]) = ("acc-b".into(), "b3".into());
        record["accelerators"]
            .as_array_mut()
            .expect("nodes")
            .push(second);
        for (path, value) in &self.record {
            let (above, field) = path.rsplit_once('/').expect("a path");
            record.pointer_mut(above).expect(path)[field] = value.clone();
        }
        let manifest: Manifest = serde_json::from_value(record).expect("a record");
        let mut configs = RunConfigs::default();
        let replaced = |text: &str, [from, to]: &[String; 2]| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        };
        let text = replaced(FRONTEND, &self.frontend).replace("MODEL", &manifest.model);
        configs.read(None, &text).expect("sound");
        let text = replaced(ACCELERATOR, &self.accelerator);
        configs.read(Some(&name("acc-a")), &text).expect("sound");
        let from = |name: &String| (name.clone(), "user.conf:2".to_owned());
        PlannedRun {
            sources: fields.keys().map(from).collect(),
            manifest,
            configs,
            mode: self.mode.clone().unwrap_or("PerformanceOnly".to_owned()),
            fields,
            has_user_conf: self.user_conf.unwrap_or(true),
            loaded: self.loaded.unwrap_or(13368),
            total: self.total.unwrap_or(13368),
        }
    }
}

const SETTINGS: &str = "{min_duration_ms: 600000, max_duration_ms: 0, min_query_count: 13368, \
    accuracy_sample_count_override: 0, performance_issue_unique: false, \
    performance_issue_same: false, sample_concatenate_permutation: true, \
    use_token_latencies: true, server_ttft_latency: 500000000, server_tpot_latency: 30000000, \
    server_target_latency_percentile: 0.99}";

#[test]
fn every_fault_is_refused_and_named_and_what_counts_is_not() {
    let round = Round::find(newest()).expect("built in");
    let faults: Vec<Fault> = crate::error::yaml(include_str!("faults.yaml")).expect("faults");
    let mut wrong = Vec::new();
    for fault in &faults {
        let refusals = check(&round, &fault.plant(&round));
        let found: BTreeSet<_> = refusals.iter().map(|r| r.rule.id.to_owned()).collect();
        let is_said = fault.says.is_empty() || refusals.iter().any(|r| r.what == fault.says);
        if found != fault.breaks || !is_said {
            wrong.push(format!(
                "{}: {refusals:?}, not {:?}",
                fault.fault, fault.breaks
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
