//! Correct trees to plant faults into.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use machine::Node;
use record::{Manifest, Mode, Summary};
use serde_json::Value;

use crate::{
    build::{self, BuiltTree, FoundRun, Material},
    describe::form::Form,
    layout::{self, Division, Name, RunKind, Tree},
    manifest::{self, sha256_of_file},
    round::{Round, newest},
    rules::{self, RuleFinding},
};

/// Replaces the official audit.config: the same keys with other text.
const AUDIT: &str = "*.*.mode = 2\n*.*.accuracy_log_sampling_target = 100\n*.*.min_duration = 0\n";
/// Number of answers in an accuracy run.
const ANSWERS: usize = 13368;

/// The nodes' configurations; `MODEL` stands for the model's name in user.conf.
pub const FRONTEND: &str = include_str!("frontend.yaml");
pub const ACCELERATOR: &str = include_str!("accelerator.yaml");

/// A model whose trees are made.
pub struct Case {
    pub model: &'static str,
    /// Its scenarios, with its names in user.conf.
    scenarios: [(&'static str, &'static str); 2],
    pub test: &'static str,
    /// What the accuracy script prints, and what the test's verifier writes.
    scores: &'static str,
    verdict: &'static str,
    /// The bytes of a sample's answer, in hexadecimal digits.
    answer: fn(usize) -> String,
}

/// By the names of the tables' `model`.
static CASES: [(&str, Case); 3] = [
    ("llama3.1-8b", LLAMA),
    ("dlrm-v3", DLRM),
    ("dlrm-v3, late", DLRM_LATE),
];

pub const LLAMA: Case = Case {
    model: "llama3.1-8b",
    scenarios: [
        ("Offline", "llama3_1-8b"),
        ("Interactive", "llama3_1-8b-interactive"),
    ],
    test: "TEST06",
    scores: "{'rouge1': '38.9', 'rouge2': '16.0', 'rougeL': '24.6', 'rougeLsum': '36.0', 'gen_len': 8167644}\n",
    verdict: "First token check pass: True\nEOS check pass: True\nSample length check pass: True\n\
              TEST06 verification complete\n",
    answer: |_| "0700000008000000".to_owned(),
};

const DLRM: Case = Case {
    model: "dlrm-v3",
    scenarios: [("Offline", "dlrm-v3"), ("Server", "dlrm-v3")],
    test: "TEST08",
    scores: "metric/lifetime_ne/rating: 0.8669\nmetric/lifetime_accuracy/rating: 0.6966\n\
             metric/lifetime_gauc/rating: 0.7867\n",
    verdict: "TEST PASS\n",
    answer: |n| of_time(n / 1000),
};

/// The last timestamps come first.
const DLRM_LATE: Case = Case {
    answer: |n| of_time(13 - n / 1000),
    ..DLRM
};

/// An answer of DLRM-v3: the timestamp, the query's number and a prediction, f32 each.
fn of_time(timestamp: usize) -> String {
    let all = [timestamp as f32, 7.0, 0.5].map(|n| format!("{:08x}", n.to_bits().swap_bytes()));
    all.concat()
}

pub struct Sound {
    folder: tempfile::TempDir,
    case: &'static Case,
    pub round: Round,
    pub tree: Tree,
    /// Findings of the runs, before the tree was built.
    of_runs: Vec<RuleFinding>,
}

/// A built tree, its round, and the findings of its runs.
type Built = (tempfile::TempDir, Round, Vec<RuleFinding>);

impl Sound {
    /// A copy of the built tree of a case.
    pub fn new(case: &str, division: Division) -> Self {
        static BUILT: [OnceLock<Built>; 9] = [const { OnceLock::new() }; 9];
        let at = CASES
            .iter()
            .position(|(name, _)| *name == case)
            .expect(case);
        let case = &CASES[at].1;
        let built = BUILT[3 * at + division as usize].get_or_init(|| make(case, division));
        let folder = tempfile::tempdir().expect("a folder");
        for part in ["checker", "tree"] {
            copy_all(&built.0.path().join(part), &folder.path().join(part));
        }
        Sound {
            tree: Tree::new(&folder.path().join("tree"), division, &name("org")),
            round: built.1.clone(),
            of_runs: built.2.clone(),
            case,
            folder,
        }
    }

    pub fn findings(&self) -> Vec<RuleFinding> {
        let mut found = rules::check(&self.tree, &self.round, Some(&self.checker()));
        found.extend(self.of_runs.clone());
        found
    }

    pub fn checker(&self) -> PathBuf {
        self.folder.path().join("checker")
    }

    pub fn at(&self, path: &str) -> PathBuf {
        let model = self.case.model;
        let path = path.replace("RESULTS", &format!("results/sys/{model}"));
        let path = path.replace("RUNS", &format!("documentation/runs/sys/{model}"));
        let path = path.replace("PAGES", "documentation/sys");
        self.tree.own().join(path)
    }

    pub fn remove(&self, path: &str) {
        let path = self.at(path);
        let gone = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        gone.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    pub fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        put(&self.at(path), bytes);
    }

    pub fn replace(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.at(path)).expect(path);
        assert!(text.contains(from), "{path} has no {from:?}: {text}");
        self.write(path, text.replace(from, to));
    }

    /// Sets a value in a detailed log, or removes its key. summary.json follows the log, so that
    /// the log's fault is the only one.
    pub fn log(&self, run: &str, key: &str, value: Option<&Value>) {
        let of_summary = match (key, value) {
            ("sut_name", Some(name)) => Some(("name", name.clone())),
            ("result_validity", Some(word)) => Some(("valid", (word == "VALID").into())),
            _ => None,
        };
        if let Some((field, value)) = of_summary {
            let path = format!("RUNS/{}/{}", run_of(run), ::record::SUMMARY);
            self.json(&path, field, Some(value));
        }
        let new = value.map_or(String::new(), |value| line(key, value) + "\n");
        let key = format!("\"key\": \"{key}\"");
        self.edit_log(run, |text| {
            let (lines, others) = text.split_once(&key).expect(&key);
            let before = lines.rfind('\n').map_or(0, |at| at + 1);
            let (_, after) = others.split_once('\n').expect("a line");
            lines[..before].to_owned() + &new + after
        });
    }

    pub fn add(&self, run: &str, line: &str) {
        self.edit_log(run, |text| text + line + "\n");
    }

    /// Edits a detailed log, and updates the manifest's hash to keep this the only fault.
    fn edit_log(&self, run: &str, edit: impl FnOnce(String) -> String) {
        let path = self.at(&format!("RESULTS/{run}/{}", loadgen_log::DETAIL));
        let text = edit(fs::read_to_string(&path).expect(run));
        put(&path, text);
        let field = format!("logs/{}", loadgen_log::DETAIL);
        self.record(run_of(run).as_str(), &field, hash(&path).into());
    }

    pub fn record(&self, run: &str, field: &str, value: Value) {
        self.json(&format!("RUNS/{run}/run.json"), field, Some(value));
    }

    /// Sets the field at a path in a JSON file; `None` removes it.
    pub fn json(&self, path: &str, field: &str, value: Option<Value>) {
        let path = self.at(path);
        let mut all: Value = crate::error::read_json(&path).expect("JSON");
        let field = format!("/{field}");
        let (above, name) = field.rsplit_once('/').expect("a slash");
        let fields = all.pointer_mut(above).and_then(Value::as_object_mut);
        let fields = fields.expect(name);
        match value {
            Some(value) => fields.insert(name.to_owned(), value),
            None => fields.remove(name),
        };
        put_json(&path, &all);
    }

    /// Replaces a text of a file in a run, or in all runs of a scenario, and its hashes.
    pub fn config(&self, of: &str, file: &str, from: &str, to: &str) {
        let all = ["performance", "accuracy", self.case.test].map(|kind| format!("{of}/{kind}"));
        let one = [of.to_owned()];
        for run in if of.contains('/') { &one[..] } else { &all } {
            let path = format!("RUNS/{run}/{file}");
            self.replace(&path, from, to);
            let hash = hash(&self.at(&path));
            self.record(run, &format!("files/{file}/sha256"), hash.into());
        }
    }

    pub fn rename(&self, from: &str, to: &str) {
        let (from, to) = (self.at(from), self.at(to));
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        fs::rename(from, to).expect("renamed");
    }
}

/// `Offline/performance` of `Offline/performance/run_1`.
fn run_of(logs: &str) -> String {
    let parts: Vec<&str> = logs.split('/').take(2).collect();
    parts.join("/")
}

pub fn hash(path: &Path) -> String {
    sha256_of_file(path).expect("a hash")
}

/// Writes the runs of a case and builds the tree from them.
fn make(case: &Case, division: Division) -> Built {
    let folder = tempfile::tempdir().expect("a folder");
    let files = fabric::os::sha256_of(b"0a /loadgen.cc");
    let model = case.model;
    let n = ANSWERS;
    let round = Round::parse(&format!(
        "{{extends: {}, loadgen: {{files: {files}}}, \
         models: {{{model}: {{samples: {{performance: {n}, accuracy: {n}, offline: {n}}}}}}}}}",
        newest()
    ));
    let round = round.expect("a round");
    let found = measured(folder.path(), &round, case);
    let form = form(model);
    put(&folder.path().join("source/qdl.rs"), "// the QDL\n");
    let nodes = build::nodes(&found).expect("descriptions");
    assert_eq!(nodes.len(), 2, "one of each node");
    let material = Material {
        round: &round,
        division,
        form: &form,
        nodes: &nodes,
        configurations: &BTreeMap::new(),
        source: Some(folder.path().join("source")),
        runs: &found,
    };
    let built = build::build(&material, &folder.path().join("tree")).expect("a tree");
    let found = rules::check_runs(&material, &built.tree);
    as_the_scripts_do(&built, case);
    (folder, round, found)
}

/// Writes the runs, and a replacement for a checkout of mlcommons/inference, below a folder.
pub fn measured(folder: &Path, round: &Round, case: &Case) -> Vec<FoundRun> {
    let audit = folder.join(format!("checker/compliance/{}/audit.config", case.test));
    put(&audit, AUDIT);
    let mut runs = Vec::new();
    for (scenario, conf) in case.scenarios {
        for kind in ["performance", "accuracy", case.test] {
            let run = folder.join("runs").join(scenario).join(kind);
            write_run(&run, case, (scenario, conf), kind, &audit);
            runs.push(run);
        }
    }
    let checker = folder.join("checker");
    let (found, notes) = build::find(&runs, round, &[case.model], Some(&checker)).expect("runs");
    assert!(notes.is_empty(), "{notes:?}");
    found
}

/// Copies a folder with hard links: remove a file before you write it.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for name in layout::files(from) {
        fs::hard_link(from.join(&name), to.join(&name)).expect("linked");
    }
    for name in layout::folders(from) {
        copy_all(&from.join(&name), &to.join(&name));
    }
}

fn put_json(path: &Path, value: &impl serde::Serialize) {
    put(path, serde_json::to_string_pretty(value).expect("JSON"));
}

fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    let _ = fs::remove_file(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, bytes).expect("written");
}

fn line(key: &str, value: impl Display) -> String {
    format!(
        ":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 0.1, \"metadata\": {{\"is_error\": false}}}}"
    )
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Writes a run's folder as a frontend does.
fn write_run(folder: &Path, case: &Case, of: (&str, &str), kind: &str, audit: &Path) {
    let (scenario, conf) = of;
    let is_offline = scenario == "Offline";
    let loadgen = if is_offline { "Offline" } else { "Server" };
    let (is_accuracy, is_test) = (kind == "accuracy", kind == case.test);
    let either = |which: bool, yes: &str, no: &str| if which { yes } else { no }.to_owned();
    let log = include_str!("detail.txt").replace("SCENARIO", loadgen);
    let log = log.replace(
        "MODE",
        &either(is_accuracy, "AccuracyOnly", "PerformanceOnly"),
    );
    let log = log.replace("SAMPLES", &either(is_offline, "13368", "1"));
    let log = log.replace("PERCENTILE", &either(is_offline, "0.9", "0.99"));
    let log = log.replace("DURATION", &either(is_test, "0", "600000"));
    let log = log.replace("SAMPLED", &either(is_test, "100", "0"));
    let mut log = log.replace("EVEN", &either(is_test, "false", "true"));
    if !is_accuracy {
        log +=
            "result_validity \"VALID\"\nearly_stopping_met true\nresult_samples_per_second 120.5\n";
    }
    let lines = log.lines().filter_map(|l| l.split_once(' '));
    let text: Vec<_> = lines.map(|(key, value)| line(key, value)).collect();
    put(&folder.join(loadgen_log::DETAIL), text.join("\n") + "\n");
    let summary = folder.join(loadgen_log::SUMMARY);
    put(&summary, "MLPerf Results Summary\n");
    let tokens = ", \"token_data\" : \"07000000\", \"token_count\" : 2";
    let answer = |n: usize| {
        let (data, more) = ((case.answer)(n), either(is_test, tokens, ""));
        format!("{{ \"seq_id\" : {n}, \"qsl_idx\" : {n}, \"data\" : \"{data}\"{more} }}")
    };
    let answers: Vec<_> = match kind {
        "performance" => Vec::new(),
        "accuracy" => (0..ANSWERS).map(answer).collect(),
        _ => (0..100).map(answer).collect(),
    };
    let answers = format!("[\n{}\n]\n", answers.join(",\n"));
    let answers = answers.replace("[\n\n]", "[\n]");
    put(&folder.join(loadgen_log::ACCURACY), answers);
    if is_accuracy {
        put(&folder.join("accuracy.txt"), case.scores);
    }
    let user_conf = folder.with_file_name("user.conf");
    let model = case.scenarios[0].1;
    put(
        &user_conf,
        format!("{model}.Offline.target_qps = 120\n{model}.Server.target_qps = 20\n"),
    );
    let yaml = folder.with_file_name("frontend.yaml");
    put(&yaml, FRONTEND.replace("MODEL", conf));
    let record = include_str!("run.json").replace("CONF", conf);
    let record: Manifest =
        serde_json::from_str(&record.replace("SCENARIO", loadgen)).expect("a record");
    let mut summary = Summary {
        node: "lg".to_owned(),
        name: "Network SUT: acc-a (http)".to_owned(),
        ..Summary::default()
    };
    summary.run.scenario = loadgen.to_owned();
    summary.run.fabric = "tcp".to_owned();
    summary.run.per_s = 120.5;
    if is_accuracy {
        summary.run.mode = Mode::Accuracy;
    } else {
        summary.run.valid = Some(true);
    }
    put_json(&folder.join(::record::SUMMARY), &summary);
    let mut files = vec![
        (manifest::USER_CONF, user_conf.as_path()),
        (manifest::FRONTEND_YAML, yaml.as_path()),
    ];
    if is_test {
        files.push((manifest::AUDIT_CONFIG, audit));
    }
    let mut sent = vec![(
        manifest::accelerator_yaml(&name("acc-a")),
        ACCELERATOR.to_owned(),
    )];
    for (role, node, address) in [
        ("frontend", "lg", "10.0.0.1"),
        ("accelerator", "acc-a", "10.0.0.2"),
    ] {
        let said = include_str!("node.json").replace("NAME", node);
        let said = said.replace("ROLE", role).replace("ADDRESS", address);
        let said: Node = serde_json::from_str(&said).expect("a node");
        let said = serde_json::to_string(&said).expect("JSON");
        sent.push((manifest::node_json(&name(node)), said));
    }
    let begun = manifest::begin(record, folder, &files, &sent).expect("begun");
    manifest::end(begun, folder, 0, "valid").expect("ended");
}

/// Writes the output of truncation and of the test's verifier.
fn as_the_scripts_do(built: &BuiltTree, case: &Case) {
    for place in built.from.keys() {
        let scenario = built.tree.scenario(place);
        let accuracy = layout::run_folder(&scenario, &RunKind::Accuracy);
        let log = accuracy.join(loadgen_log::ACCURACY);
        let hash = hash(&log);
        fs::write(&log, manifest::cut(&log).expect("cut")).expect("written");
        put(
            &accuracy.join("accuracy.txt"),
            format!("{}\nhash={hash}\n", case.scores),
        );
        let test = scenario.join(case.test);
        put(&test.join("verify_accuracy.txt"), case.verdict);
        let from = built.from[place][&RunKind::Test(name(case.test))].join(loadgen_log::ACCURACY);
        crate::error::copy(&from, &test.join("accuracy").join(loadgen_log::ACCURACY))
            .expect("kept");
    }
}

pub fn form(model: &str) -> Form {
    let text = include_str!("form.yaml").replace("MODEL", model);
    let form: Form = crate::error::yaml(&text).expect("a form");
    assert_eq!(form.empty(), []);
    form
}
