//! The faults: each has a name, the rules that it breaks, and a plant.

use std::os::unix::ffi::OsStrExt;

use record::FileRecord;
use serde::Deserialize;
use serde_json::{Value, json};

use super::sound::Sound;
use crate::{
    layout::Division,
    round::{Round, newest},
};

/// How to plant a fault. Paths are those of [`Sound::at`].
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Plant {
    Remove(String),
    Write(String, String),
    Replace(String, String, String),
    /// Sets a field of a JSON file, by its path.
    Set(String, String, Value),
    Unset(String, String),
    /// Adds a line to a run's detailed log.
    Add(String, String),
    /// Sets values in a run's detailed log.
    Log(Vec<(String, String, Value)>),
    UserConf(String),
    /// Replaces a text of a configuration in all runs of a scenario.
    Config(String, String, String, String),
    /// Replaces TEST06's log of answers in a scenario, and its record.
    Answers(String, Vec<String>),
    /// Removes a key from a run's detailed log.
    Drop(String, String),
    None(()),
    Rename(String, String),
    /// Puts a pipe in a file's place.
    Pipe(String),
    /// Gives a test the round's way for answers that are not deterministic, TEST01's.
    Baseline(String),
    /// Several plants, in order.
    All(Vec<Plant>),
    #[serde(skip)]
    Code(fn(&mut Sound)),
}

#[derive(Deserialize)]
pub struct Fault {
    #[serde(rename = "fault")]
    pub name: String,
    pub breaks: Vec<String>,
    #[serde(default)]
    pub division: Division,
    /// Text of a finding.
    #[serde(default)]
    pub says: String,
    #[serde(flatten)]
    plant: Plant,
}

impl Fault {
    pub fn plant(&self, s: &mut Sound) {
        self.plant.plant(s);
    }
}

impl Plant {
    fn plant(&self, s: &mut Sound) {
        match self {
            Plant::Remove(path) => s.remove(path),
            Plant::Write(path, text) => s.write(path, text),
            Plant::Replace(path, from, to) => s.replace(path, from, to),
            Plant::Set(path, field, value) => s.json(path, field, Some(value.clone())),
            Plant::Unset(path, field) => s.json(path, field, None),
            Plant::Add(run, line) => s.add(run, line),
            Plant::Log(values) => values
                .iter()
                .for_each(|(run, key, v)| s.log(run, key, Some(v))),
            Plant::UserConf(text) => user_conf(s, text),
            Plant::Config(scenario, file, from, to) => s.config(scenario, file, from, to),
            Plant::Answers(scenario, lines) => answers(s, scenario, lines),
            Plant::Drop(run, key) => s.log(run, key, None),
            Plant::None(()) => {}
            Plant::Rename(from, to) => s.rename(from, to),
            Plant::Pipe(path) => s.pipe(path),
            Plant::Baseline(test) => {
                let baseline = s.round.tests["TEST01"].baseline.clone();
                s.round.tests.get_mut(&**test).expect("a test").baseline = baseline;
            }
            Plant::All(plants) => plants.iter().for_each(|plant| plant.plant(s)),
            Plant::Code(plant) => plant(s),
        }
    }
}

/// A run of each kind, and the folder of its logs.
const RUNS: [[&str; 2]; 3] = [
    ["Offline/performance", "performance/run_1"],
    ["Offline/accuracy", "accuracy"],
    ["Interactive/TEST06", "TEST06/performance/run_1"],
];

/// Faults planted for each field, run or file.
fn families() -> Vec<Fault> {
    let round = Round::find(newest()).expect("built in");
    let mut all = Vec::new();
    let mut add = |name: String, breaks: &[&str], plant: Plant| {
        all.push(Fault {
            name,
            breaks: breaks.iter().map(|rule| (*rule).to_owned()).collect(),
            division: Division::default(),
            says: String::new(),
            plant,
        });
    };
    let system = &round.system;
    let own_rule = |field: &String| match field.as_str() {
        "division" => Some("system.division"),
        "submitter" => Some("system.submitter"),
        "system_type" => Some("system.type"),
        "status" => Some("system.status"),
        "is_network" => Some("system.is-network"),
        _ => None,
    };
    let json = || "systems/sys.json".to_owned();
    for field in system.fields.iter().chain(&system.network) {
        let own = own_rule(field);
        let breaks: Vec<_> = std::iter::once("system.field").chain(own).collect();
        let unset = Plant::Unset(json(), field.clone());
        add(format!("no {field}"), &breaks, unset);
    }
    for field in system.filled.iter().chain(&system.network) {
        let number = system.numbers.contains(field).then_some("system.number");
        let own = own_rule(field).or(number);
        let breaks: Vec<_> = std::iter::once("system.empty").chain(own).collect();
        let empty = Plant::Set(json(), field.clone(), json!(" "));
        add(format!("{field} of a blank"), &breaks, empty);
    }
    for (key, rule) in [
        ("effective_min_duration_ms", "run.duration"),
        ("effective_performance_sample_count", "run.loaded"),
        ("effective_qsl_rng_seed", "run.seeds"),
        ("effective_scenario", "run.scenario"),
        ("effective_test_mode", "run.mode"),
        ("effective_target_latency_percentile", "run.percentile"),
        ("effective_sample_concatenate_permutation", "run.traversal"),
        ("requested_use_token_latencies", "run.tokens"),
        ("requested_server_ttft_latency", "run.limits"),
        (
            "result_time_per_output_token_99.00_percentile_ns",
            "run.latency",
        ),
        ("result_validity", "run.valid"),
        ("early_stopping_met", "run.early-stopping"),
        ("loadgen_version", "run.loadgen"),
        ("loadgen_file_sha1", "run.loadgen"),
    ] {
        let plant = Plant::Drop("Interactive/performance/run_1".to_owned(), key.to_owned());
        add(format!("a log without {key}"), &[rule], plant);
    }
    for [run, logs] in RUNS {
        let (scenario, kind) = run.split_once('/').expect("two parts");
        let folder = format!("RESULTS/{scenario}/{logs}");
        let record = format!("RUNS/{run}/run.json");
        let at = |file: &str| format!("RUNS/{run}/{file}");
        for log in [loadgen_log::SUMMARY, loadgen_log::DETAIL] {
            let plant = Plant::Remove(format!("{folder}/{log}"));
            add(format!("no {log} of {run}"), &["run.log"], plant);
            let plant = Plant::Unset(record.clone(), format!("logs/{log}"));
            add(format!("no hash of {log} of {run}"), &["record.log"], plant);
        }
        let plant = Plant::Remove(record.clone());
        add(format!("no record of {run}"), &["record.missing"], plant);
        for file in [
            "user.conf",
            "frontend.yaml",
            "accelerator-acc-a.yaml",
            "node-lg.json",
            "node-acc-a.json",
        ] {
            let plant = Plant::Write(at(file), "# another\n".to_owned());
            add(format!("another {file} of {run}"), &["record.files"], plant);
        }
        for (field, value, rules) in [
            ("accelerators/0/dirty", Value::Null, "record.clean"),
            ("frontend/dirty", Value::Null, "record.clean"),
            ("frontend/commit", Value::Null, "record.build"),
            ("frontend/program", json!("cd"), "record.build"),
            ("accelerators/0/program", json!("cd"), "record.build"),
            ("accelerators", json!([]), "record.network record.yaml"),
            ("connections", json!(0), "record.network"),
            ("fabric", json!("nvlink"), "record.network record.summary"),
            ("logs", json!({}), "record.log"),
            ("exit", json!(3), "record.exit record.summary"),
            ("files", json!({}), "record.user-conf record.yaml"),
        ] {
            let breaks: Vec<_> = rules.split(' ').collect();
            let plant = Plant::Set(record.clone(), field.to_owned(), value.clone());
            add(format!("{field} is {value} in {run}"), &breaks, plant);
        }
        if kind != "accuracy" {
            for (key, _) in round.seeds.named() {
                let (log, key) = (format!("{scenario}/{logs}"), format!("effective_{key}"));
                let name = format!("another {key} in {run}");
                add(name, &["run.seeds"], Plant::Log(vec![(log, key, json!(1))]));
            }
        }
    }
    all
}

pub fn all() -> Vec<Fault> {
    let code = |name: &str, rule: &str, plant| Fault {
        name: name.to_owned(),
        breaks: rule.split_whitespace().map(str::to_owned).collect(),
        division: Division::default(),
        says: String::new(),
        plant: Plant::Code(plant),
    };
    let mut all: Vec<Fault> = Vec::new();
    for text in [
        include_str!("faults.yaml"),
        include_str!("faults_config.yaml"),
        include_str!("faults_log.yaml"),
        include_str!("faults_page.yaml"),
        include_str!("machines.yaml"),
    ] {
        let more: Vec<Fault> = crate::error::yaml(text).expect("faults");
        all.extend(more);
    }
    all.extend([
        code("an unknown scenario", "scenario.known", |s| {
            let server = "| Interactive |";
            s.rename("RESULTS/Interactive", "RESULTS/MultiStream");
            s.rename("RUNS/Interactive", "RUNS/MultiStream");
            s.replace("PAGES/bandwidth.md", server, "| MultiStream |");
            for run in ["performance/run_1", "accuracy", "TEST06/performance/run_1"] {
                let run = format!("MultiStream/{run}");
                s.log(&run, "effective_scenario", Some(&json!("MultiStream")));
            }
            for run in ["performance", "accuracy", "TEST06"] {
                s.record(&format!("MultiStream/{run}"), |manifest| {
                    manifest.scenario = "MultiStream".to_owned();
                });
            }
            for run in ["performance", "accuracy", "TEST06"] {
                let summary = format!("RUNS/MultiStream/{run}/summary.json");
                s.json(&summary, "scenario", Some(json!("MultiStream")));
            }
            // Keep the model complete without this scenario, so that this is the only fault.
            let model = s.round.models.get_mut("llama3.1-8b").expect("it");
            model.one_of.clear();
        }),
        code(
            "a test of a measured run's length, too short",
            "run.duration",
            |s| {
                s.round.tests.get_mut("TEST06").expect("a test").measured = true;
            },
        ),
        code("an accuracy log that is not cut", "accuracy.log", |s| {
            let log = "RESULTS/Offline/accuracy/mlperf_log_accuracy.json";
            s.write(log, &"[]\n".repeat(5000));
        }),
        code("answers that the round asks for", "accuracy.files", |s| {
            let model = s.round.models.get_mut("llama3.1-8b").expect("it");
            model.accuracy_files = vec!["videos/130.mp4".to_owned().try_into().expect("a path")];
        }),
        code(
            "a configuration of an accelerator that differs",
            "record.yaml",
            |s| {
                let yaml = "node: acc-a\n";
                s.write("RUNS/Offline/accuracy/accelerator-acc-a.yaml", yaml);
                s.record("Offline/accuracy", |manifest| {
                    let note = manifest.files.get_mut("accelerator-acc-a.yaml");
                    let note = note.expect("it");
                    note.sha256 = fabric::os::sha256_of(yaml.as_bytes());
                });
            },
        ),
        code("a copy whose name leads out", "record.files", |s| {
            s.record("Offline/accuracy", |manifest| {
                manifest
                    .files
                    .insert("../../../user.conf".to_owned(), FileRecord::default());
            });
        }),
        code("a link", "tree.upload", |s| {
            std::os::unix::fs::symlink("qdl.rs", s.at("src/link.rs")).expect("a link");
        }),
        code("a link to a folder", "tree.upload", |s| {
            std::os::unix::fs::symlink("/", s.at("src/link")).expect("a link");
        }),
        code("a file of 51 MB", "tree.upload", |s| {
            let file = std::fs::File::create(s.at("src/large")).expect("a file");
            file.set_len(51 << 20).expect("sparse");
        }),
        code("a name that is not UTF-8", "tree.upload", |s| {
            let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
            std::fs::write(s.at("src").join(name), "a").expect("written");
        }),
        // Correct trees.
        code("a record without a reason", "", |s| {
            s.record("Offline/accuracy", |manifest| {
                manifest.reason = String::new()
            });
        }),
        code("a command of another name and path", "", |s| {
            for run in ["Offline", "Interactive"] {
                for kind in ["performance", "accuracy", "TEST06"] {
                    s.record(&format!("{run}/{kind}"), |manifest| {
                        manifest.command[0] = "/opt/venv/bin/qdl-run".to_owned();
                    });
                }
                let readme = format!("RESULTS/{run}/README.md");
                s.write(
                    &readme,
                    "```\npython3 -m qdl \\\n  --config \\\n  frontend.yaml\n```\n",
                );
            }
        }),
        code("a picture as PNG", "", |s| {
            s.remove("PAGES/network.svg");
            std::fs::write(s.at("PAGES/network.png"), b"\x89PNG\r\n").expect("written");
        }),
        code("a model of another data type", "", |s| {
            let model = s.round.models.get_mut("llama3.1-8b").expect("it");
            model.input = "anything".to_owned();
        }),
        code("a file of 49 MB", "", |s| {
            let file = std::fs::File::create(s.at("src/large")).expect("a file");
            file.set_len(49 << 20).expect("sparse");
        }),
    ]);
    all.extend(families());
    all
}

fn answers(s: &Sound, scenario: &str, lines: &[String]) {
    let lines = lines.join(",\n");
    let log = loadgen_log::ACCURACY;
    let path = format!("RESULTS/{scenario}/TEST06/accuracy/{log}");
    s.write(&path, &format!("[\n{lines}\n]\n").replace("[\n\n]", "[\n]"));
    let hash = crate::manifest::sha256_of_file(&s.at(&path)).expect("a hash");
    s.record(&format!("{scenario}/TEST06"), |manifest| {
        manifest.logs.insert(loadgen_log::ACCURACY.to_owned(), hash);
    });
}

fn user_conf(s: &Sound, text: &str) {
    s.write("RESULTS/Offline/user.conf", text);
    for run in ["performance", "accuracy", "TEST06"] {
        s.write(&format!("RUNS/Offline/{run}/user.conf"), text);
    }
    let hash = crate::manifest::sha256_of_file(&s.at("RESULTS/Offline/user.conf")).expect("a hash");
    for run in ["performance", "accuracy", "TEST06"] {
        s.record(&format!("Offline/{run}"), |manifest| {
            manifest.files.get_mut("user.conf").expect("it").sha256 = hash.clone();
        });
    }
}
