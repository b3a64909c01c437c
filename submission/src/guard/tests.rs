//! Tests each refusal of the guard with one fault in otherwise valid settings or nodes.

use std::collections::BTreeSet;

use record::CacheState;
use serde_json::json;

use super::*;

struct Rig {
    round: Round,
    settings: RunSettings,
    nodes: RunNodes,
}

fn node(name: &str, boot: &str) -> NodeRecord {
    NodeRecord {
        node: name.to_owned(),
        host: name.to_owned(),
        boot: Some(boot.to_owned()),
        commit: Some("4".repeat(40)),
        dirty: Some(false),
        program: Some("ab".repeat(32)),
        ..NodeRecord::default()
    }
}

fn cache(state: CacheState) -> PrefixCache {
    PrefixCache {
        state,
        how: "the server says so".to_owned(),
    }
}

impl Rig {
    fn sound() -> Self {
        let round = Round::find("v6.1").expect("built in");
        let mut fields = Map::new();
        for (name, seed) in round.seeds.named() {
            fields.insert(name.to_owned(), seed.into());
        }
        for (name, value) in [
            ("min_duration_ms", json!(600_000)),
            ("max_duration_ms", json!(0)),
            ("min_query_count", json!(13368)),
            ("accuracy_sample_count_override", json!(0)),
            ("performance_issue_unique", json!(false)),
            ("performance_issue_same", json!(false)),
            ("sample_concatenate_permutation", json!(true)),
            ("use_token_latencies", json!(true)),
            ("server_ttft_latency", json!(500_000_000)),
            ("server_tpot_latency", json!(30_000_000)),
            ("server_target_latency_percentile", json!(0.99)),
        ] {
            fields.insert(name.to_owned(), value);
        }
        let origin = |name: &String| (name.clone(), "mlperf.conf".to_owned());
        let mut from: BTreeMap<_, _> = fields.keys().map(origin).collect();
        from.insert("server_target_qps".to_owned(), "user.conf:1".to_owned());
        let mut frontend = node("front", "1");
        frontend.program = Some("cd".repeat(32));
        Rig {
            round,
            settings: RunSettings {
                model: "llama3_1-8b-interactive".to_owned(),
                scenario: "Server",
                mode: "PerformanceOnly",
                fields,
                from,
                user_conf: Some("user.conf".to_owned()),
                loaded: 13368,
                total: 13368,
                local: false,
                staged: false,
                compressed: false,
            },
            nodes: RunNodes {
                frontend,
                accelerators: vec![node("acc-a", "2"), node("acc-b", "3")],
                fabric: Vec::new(),
                uncounted: Vec::new(),
                caches: [("acc-a".to_owned(), cache(CacheState::Off))].into(),
            },
        }
    }

    fn set(&mut self, field: &str, value: Value, from: &str) {
        self.settings.fields.insert(field.to_owned(), value);
        self.settings.from.insert(field.to_owned(), from.to_owned());
    }

    fn refusals(&self) -> Vec<Refusal> {
        let mut all = check_settings(&self.round, &self.settings);
        all.extend(check_nodes(&self.round, &self.settings.model, &self.nodes));
        all
    }
}

type Fault = (&'static str, &'static [&'static str], fn(&mut Rig));

const FAULTS: &[Fault] = &[
    ("no user.conf", &["guard.user-conf"], |r| {
        r.settings.user_conf = None
    }),
    ("a model of our own", &["guard.model"], |r| {
        r.settings.model = "digits".to_owned()
    }),
    ("resnet", &["guard.model"], |r| {
        r.settings.model = "resnet50".to_owned()
    }),
    ("a scenario that it has not", &["guard.scenario"], |r| {
        r.settings.scenario = "MultiStream"
    }),
    ("find-peak", &["guard.mode", "guard.data"], |r| {
        r.settings.mode = "FindPeakPerformance";
        r.settings.total = 20;
    }),
    (
        "a seed of one's own",
        &["guard.seeds", "guard.override"],
        |r| r.set("qsl_rng_seed", json!(7), "--set"),
    ),
    ("a seed at its default", &["guard.seeds"], |r| {
        r.set("schedule_rng_seed", json!(0), "default")
    }),
    ("599 s in user.conf", &["guard.duration"], |r| {
        r.set("min_duration_ms", json!(599_000), "user.conf:2")
    }),
    (
        "--set min_duration_ms",
        &["guard.duration", "guard.override"],
        |r| {
            r.set("min_duration_ms", json!(1000), "--set");
        },
    ),
    ("a longer run by --duration-s", &["guard.override"], |r| {
        r.set("min_duration_ms", json!(700_000), "--duration-s");
    }),
    ("a run that must end early", &["guard.duration"], |r| {
        r.set("max_duration_ms", json!(5000), "user.conf:2")
    }),
    ("a part of the samples", &["guard.counts"], |r| {
        r.settings.loaded = 1000
    }),
    ("a short Offline query", &["guard.counts"], |r| {
        r.settings.model = "llama3_1-8b".to_owned();
        r.settings.scenario = "Offline";
        r.set("min_query_count", json!(100), "user.conf:3");
    }),
    ("a part of the data set", &["guard.data"], |r| {
        r.settings.mode = "AccuracyOnly";
        r.settings.total = 1000;
        r.settings.loaded = 13368;
    }),
    ("Server's limits in Interactive", &["guard.limits"], |r| {
        r.set(
            "server_ttft_latency",
            json!(2_000_000_000_u64),
            "mlperf.conf",
        );
    }),
    ("the 90th percentile", &["guard.limits"], |r| {
        r.set(
            "server_target_latency_percentile",
            json!(0.9),
            "user.conf:4",
        );
    }),
    ("each sample once", &["guard.traversal"], |r| {
        r.set("performance_issue_unique", json!(true), "user.conf:4")
    }),
    ("samples not equally often", &["guard.traversal"], |r| {
        r.set("sample_concatenate_permutation", json!(0), "user.conf:4");
    }),
    ("tokens not measured", &["guard.tokens"], |r| {
        r.set("use_token_latencies", json!(false), "user.conf:4")
    }),
    ("an engine that does not count", &["guard.tokens"], |r| {
        r.nodes.uncounted = vec!["acc-a".to_owned()]
    }),
    ("a setting in the YAML", &["guard.override"], |r| {
        r.set("min_query_count", json!(13368), "front.yaml:9");
    }),
    ("--local", &["guard.local"], |r| r.settings.local = true),
    ("staged samples", &["guard.staged"], |r| {
        r.settings.staged = true
    }),
    ("compressed prompts", &["guard.compression"], |r| {
        r.settings.compressed = true
    }),
    ("loopback", &["guard.fabric"], |r| {
        r.nodes.fabric = vec!["loopback".to_owned()]
    }),
    ("a prefix cache", &["guard.prefix-cache"], |r| {
        r.nodes
            .caches
            .insert("acc-b".to_owned(), cache(CacheState::On));
    }),
    ("a server that does not say", &["guard.prefix-cache"], |r| {
        let unknown = cache(CacheState::Unknown);
        r.nodes.caches.insert("acc-b".to_owned(), unknown);
    }),
    ("one host", &["guard.machines"], |r| {
        r.nodes.accelerators[1].boot = Some("1".to_owned())
    }),
    ("a host that does not say", &["guard.machines"], |r| {
        r.nodes.accelerators[1].boot = None
    }),
    ("another commit", &["guard.build"], |r| {
        r.nodes.accelerators[1].commit = Some("5".repeat(40))
    }),
    ("another program", &["guard.build"], |r| {
        r.nodes.accelerators[1].program = Some("00".repeat(32))
    }),
    (
        "a build that does not say its commit",
        &["guard.build"],
        |r| r.nodes.frontend.commit = None,
    ),
    ("a changed source", &["guard.clean"], |r| {
        r.nodes.accelerators[0].dirty = Some(true)
    }),
    ("a source not known to be clean", &["guard.clean"], |r| {
        r.nodes.accelerators[0].dirty = None
    }),
];

#[test]
fn what_counts_is_not_refused() {
    assert_eq!(Rig::sound().refusals(), []);
    // The submitter may set the target from any source.
    let mut rig = Rig::sound();
    rig.set("server_target_qps", json!(70.0), "--set");
    assert_eq!(rig.refusals(), []);
}

#[test]
fn every_fault_is_refused_and_named_and_every_guard_has_one() {
    let mut wrong = Vec::new();
    for (name, wanted, spoil) in FAULTS {
        let mut rig = Rig::sound();
        spoil(&mut rig);
        let found: BTreeSet<_> = rig.refusals().iter().map(|r| r.rule.id).collect();
        if found != wanted.iter().copied().collect() {
            wrong.push(format!("{name}: {found:?}, not {wanted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let known: BTreeSet<_> = FAULTS.iter().flat_map(|(_, rules, _)| *rules).collect();
    let idle = ALL.iter().filter(|r| !known.contains(&r.id));
    assert_eq!(idle.map(|r| r.id).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_refusal_names_the_source_of_the_value() {
    let mut rig = Rig::sound();
    rig.set("min_duration_ms", json!(599_000), "user.conf:2");
    let said = &rig.refusals()[0].what;
    let expected = "min_duration_ms is 599000 (user.conf:2), the round's 600000";
    assert_eq!(said, expected);
}
