//! Plants one fault at a time into a planned run that would count.

use std::collections::BTreeSet;

use record::NodeRecord;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::{
    layout::Name,
    round::newest,
    rules::tests::sound::{ACCELERATOR, FRONTEND, off},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    fault: String,
    breaks: BTreeSet<String>,
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

fn node(name: &str, boot: &str) -> NodeRecord {
    NodeRecord {
        node: name.to_owned(),
        host: name.to_owned(),
        boot: Some(boot.to_owned()),
        commit: Some("4f4f4f4f4f4f".to_owned()),
        dirty: Some(false),
        program: Some("ab".repeat(32)),
        ..NodeRecord::default()
    }
}

impl Fault {
    /// The planned run with this fault.
    fn plant(&self, round: &Round) -> PlannedRun {
        let seeds = round
            .seeds
            .named()
            .map(|(name, seed)| (name.to_owned(), json!(seed)));
        let mut fields = Map::from_iter(seeds);
        let sound = json!({
            "min_duration_ms": 600_000, "max_duration_ms": 0, "min_query_count": 13368,
            "accuracy_sample_count_override": 0, "performance_issue_unique": false,
            "performance_issue_same": false, "sample_concatenate_permutation": true,
            "use_token_latencies": true, "server_ttft_latency": 500_000_000,
            "server_tpot_latency": 30_000_000, "server_target_latency_percentile": 0.99,
        });
        fields.extend(sound.as_object().cloned().unwrap_or_default());
        fields.extend(self.set.clone());
        let sources = fields
            .keys()
            .map(|name| (name.clone(), "user.conf:2".to_owned()));
        let manifest = Manifest {
            model: "llama3_1-8b-interactive".to_owned(),
            scenario: "Server".to_owned(),
            fabric: "tcp".to_owned(),
            frontend: node("lg", "1"),
            accelerators: vec![node("acc-a", "2"), node("acc-b", "3")],
            prefix_caches: [("acc-a".to_owned(), off())].into(),
            ..Manifest::default()
        };
        let mut manifest = serde_json::to_value(manifest).expect("JSON");
        for (path, value) in &self.record {
            *manifest.pointer_mut(path).expect(path) = value.clone();
        }
        let manifest: Manifest = serde_json::from_value(manifest).expect("a record");
        let mut configs = RunConfigs::default();
        let replaced = |text: &str, [from, to]: &[String; 2]| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        };
        let text = replaced(FRONTEND, &self.frontend).replace("MODEL", &manifest.model);
        configs.read(None, &text).expect("sound");
        let text = replaced(ACCELERATOR, &self.accelerator);
        let own = Name::new("acc-a").expect("a name");
        configs.read(Some(&own), &text).expect("sound");
        PlannedRun {
            sources: sources.collect(),
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

#[test]
fn every_fault_is_refused_and_named_and_what_counts_is_not() {
    let round = Round::find(newest()).expect("built in");
    let faults: Vec<Fault> = crate::error::yaml(include_str!("faults.yaml")).expect("faults");
    let mut wrong = Vec::new();
    for fault in &faults {
        let refusals = check(&round, &fault.plant(&round));
        let found: BTreeSet<_> = refusals.iter().map(|r| r.rule.id.to_owned()).collect();
        if found != fault.breaks {
            wrong.push(format!(
                "{}: {refusals:?}, not {:?}",
                fault.fault, fault.breaks
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_refusal_names_the_source_of_the_value() {
    let round = Round::find(newest()).expect("built in");
    let fault = "{fault: 599 s, breaks: [], set: {min_duration_ms: 599000}}";
    let fault: Fault = crate::error::yaml(fault).expect("a fault");
    let refusals = check(&round, &fault.plant(&round));
    let expected = "min_duration_ms is 599000 (user.conf:2), the round's 600000";
    assert_eq!(refusals[0].what, expected);
}
