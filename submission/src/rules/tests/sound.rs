//! A correct tree to plant faults into: llama3.1-8b, Offline and Interactive.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use record::{CacheState, Manifest, Mode, NodeRecord, PrefixCache, Summary};
use serde_json::Value;

use crate::{
    build::{self, BuiltTree, FoundRun, Material},
    describe::{Node, form::Form},
    layout::{self, Division, Name, RunKind, Tree},
    manifest::{self, sha256_of_file},
    round::{Round, newest},
};

const MODEL: &str = "llama3.1-8b";
/// Replaces the official audit.config: the same keys with other text.
const AUDIT: &str = "*.*.mode = 2\n*.*.accuracy_log_sampling_target = 100\n*.*.min_duration = 0\n";

/// The nodes' configurations; `MODEL` stands for the model's name in user.conf.
pub const FRONTEND: &str = include_str!("frontend.yaml");
pub const ACCELERATOR: &str = include_str!("accelerator.yaml");

pub fn off() -> PrefixCache {
    PrefixCache {
        state: CacheState::Off,
        how: "as the server says".to_owned(),
    }
}

pub struct Sound {
    folder: tempfile::TempDir,
    pub round: Round,
    pub tree: Tree,
}

impl Sound {
    /// A copy of the built tree.
    pub fn new(division: Division) -> Self {
        static BUILT: [OnceLock<(tempfile::TempDir, Round)>; 3] = [const { OnceLock::new() }; 3];
        let (built, round) = BUILT[division as usize].get_or_init(|| make(division));
        let folder = tempfile::tempdir().expect("a folder");
        for part in ["checker", "tree"] {
            copy_all(&built.path().join(part), &folder.path().join(part));
        }
        Sound {
            tree: Tree::new(&folder.path().join("tree"), division, &name("org")),
            round: round.clone(),
            folder,
        }
    }

    pub fn findings(&self) -> Vec<crate::rules::RuleFinding> {
        crate::rules::check(&self.tree, &self.round, Some(&self.checker()))
    }

    pub fn checker(&self) -> PathBuf {
        self.folder.path().join("checker")
    }

    pub fn at(&self, path: &str) -> PathBuf {
        let path = path.replace("RESULTS", "results/sys/llama3.1-8b");
        let path = path.replace("RUNS", "documentation/runs/sys/llama3.1-8b");
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

    pub fn write(&self, path: &str, text: &str) {
        put(&self.at(path), text);
    }

    pub fn replace(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.at(path)).expect(path);
        assert!(text.contains(from), "{path} has no {from:?}: {text}");
        self.write(path, &text.replace(from, to));
    }

    /// Sets a value in a detailed log, or removes its key.
    /// summary.json follows the log, so that the log's fault is the only one.
    pub fn log(&self, run: &str, key: &str, value: Option<&Value>) {
        let of_summary = match (key, value) {
            ("sut_name", Some(name)) => Some(("name", name.clone())),
            ("result_validity", Some(word)) => Some(("valid", (word == "VALID").into())),
            _ => None,
        };
        if let Some((field, value)) = of_summary {
            let run: Vec<&str> = run.split('/').take(2).collect();
            let path = format!("RUNS/{}/{}", run.join("/"), ::record::SUMMARY);
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
        put(&path, &text);
        let hash = sha256_of_file(&path).expect("a hash");
        let parts: Vec<&str> = run.split('/').take(2).collect();
        self.record(&parts.join("/"), |manifest| {
            manifest.logs.insert(loadgen_log::DETAIL.to_owned(), hash);
        });
    }

    pub fn record(&self, run: &str, change: impl FnOnce(&mut Manifest)) {
        let folder = self.at(&format!("RUNS/{run}"));
        let mut manifest = manifest::read(&folder).expect("read").expect("a record");
        change(&mut manifest);
        put_json(&folder.join(::record::MANIFEST), &manifest);
    }

    /// Puts a pipe in a file's place.
    pub fn pipe(&self, path: &str) {
        self.remove(path);
        let made = std::process::Command::new("mkfifo")
            .arg(self.at(path))
            .status();
        assert!(made.is_ok_and(|status| status.success()), "{path}");
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

    /// Replaces a text of a configuration in all runs of a scenario, and its hashes.
    pub fn config(&self, scenario: &str, file: &str, from: &str, to: &str) {
        for kind in ["performance", "accuracy", "TEST06"] {
            let run = format!("{scenario}/{kind}");
            self.replace(&format!("RUNS/{run}/{file}"), from, to);
            let hash = sha256_of_file(&self.at(&format!("RUNS/{run}/{file}"))).expect("a hash");
            self.record(&run, |manifest| {
                manifest.files.get_mut(file).expect("it").sha256 = hash;
            });
        }
    }

    pub fn rename(&self, from: &str, to: &str) {
        let (from, to) = (self.at(from), self.at(to));
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        fs::rename(from, to).expect("renamed");
    }
}

/// Writes the runs and builds the tree from them.
fn make(division: Division) -> (tempfile::TempDir, Round) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut round = Round::find(newest()).expect("built in");
    round.loadgen.files = fabric::os::sha256_of(b"0a /loadgen.cc");
    let found = measured(folder.path(), &round);
    let form = form();
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
    let found = crate::rules::check_runs(&material, &built.tree);
    assert!(found.is_empty(), "{found:#?}");
    as_the_scripts_do(&built);
    (folder, round)
}

/// Writes the runs, and a replacement for a checkout of mlcommons/inference, below a folder.
pub fn measured(folder: &Path, round: &Round) -> Vec<FoundRun> {
    let audit = folder.join("checker/compliance/TEST06/audit.config");
    put(&audit, AUDIT);
    let mut runs = Vec::new();
    for scenario in ["Offline", "Interactive"] {
        for kind in ["performance", "accuracy", "TEST06"] {
            let run = folder.join("runs").join(scenario).join(kind);
            write_run(&run, scenario, kind, &audit);
            runs.push(run);
        }
    }
    let checker = folder.join("checker");
    let (found, notes) = build::find(&runs, round, &[MODEL], Some(&checker)).expect("runs");
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
    put(path, &serde_json::to_string_pretty(value).expect("JSON"));
}

fn put(path: &Path, text: &str) {
    let _ = fs::remove_file(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

fn line(key: &str, value: impl Display) -> String {
    format!(
        ":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 0.1, \"metadata\": {{\"is_error\": false}}}}"
    )
}

/// LoadGen's log of an answer's tokens.
pub const TOKENS: &str = ", \"token_data\" : \"07000000\", \"token_count\" : 2";

/// LoadGen's log of an answer with two tokens.
pub fn answer(sample: usize, more: &str) -> String {
    format!(
        "{{ \"seq_id\" : {sample}, \"qsl_idx\" : {sample}, \"data\" : \"0700000008000000\"{more} }}"
    )
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Writes a run's folder as a frontend does.
fn write_run(folder: &Path, scenario: &str, kind: &str, audit: &Path) {
    let interactive = scenario == "Interactive";
    let loadgen = if interactive { "Server" } else { scenario };
    let mode = match kind {
        "accuracy" => "AccuracyOnly",
        _ => "PerformanceOnly",
    };
    let test = kind == "TEST06";
    let (samples, percentile) = if interactive { (1, 0.99) } else { (13368, 0.9) };
    let (duration, sampled) = if test { (0, 100) } else { (600_000, 0) };
    let even = !test;
    let mut log = format!(
        r#"test_datetime "2025-09-01T10:00:00Z"
power_begin "09-01-2025 10:00:01.000"
power_end "09-01-2025 10:10:31.000"
loadgen_version "6.0.17 @ d6147c7eb7"
loadgen_git_status_message ""
loadgen_file_sha1 {{ "/loadgen.cc": "0a" }}
sut_name "Network SUT: acc-a (http)"
qsl_reported_total_count 13368
requested_use_token_latencies true
effective_scenario "{loadgen}"
effective_test_mode "{mode}"
effective_samples_per_query {samples}
effective_target_latency_percentile {percentile}
effective_min_duration_ms {duration}
effective_min_sample_count 13368
effective_qsl_rng_seed 2085463073848966840
effective_sample_index_rng_seed 2747215439041700203
effective_schedule_rng_seed 16159082839903944936
effective_accuracy_log_sampling_target {sampled}
effective_performance_issue_unique false
effective_performance_issue_same false
effective_performance_sample_count 13368
effective_accuracy_sample_count 13368
effective_sample_concatenate_permutation {even}
effective_min_query_count 13368
effective_target_latency_ns 10000000000
result_query_count 13368
result_min_latency_ns 700000
result_mean_latency_ns 1000000
result_50.00_percentile_latency_ns 900000
result_99.00_percentile_latency_ns 1000000
result_scheduled_samples_per_sec 120.5
result_completed_samples_per_sec 120.5
result_completed_tokens_per_second 241.0
result_tokens_per_second 241.0
"#
    );
    if interactive {
        log += "requested_server_ttft_latency 500000000\nrequested_server_tpot_latency 30000000\n\
                result_first_token_99.00_percentile_latency_ns 300000000\n\
                result_time_per_output_token_99.00_percentile_ns 20000000\n";
    }
    if kind != "accuracy" {
        log +=
            "result_validity \"VALID\"\nearly_stopping_met true\nresult_samples_per_second 120.5\n";
    }
    let lines = log.lines().filter_map(|l| l.split_once(' '));
    let text: Vec<_> = lines.map(|(key, value)| line(key, value)).collect();
    put(&folder.join(loadgen_log::DETAIL), &(text.join("\n") + "\n"));
    let summary = folder.join(loadgen_log::SUMMARY);
    put(&summary, "MLPerf Results Summary\n");
    let answers: Vec<_> = match kind {
        "performance" => Vec::new(),
        "accuracy" => (0..13368).map(|n| answer(n, "")).collect(),
        _ => (0..100).map(|n| answer(n, TOKENS)).collect(),
    };
    let answers = format!("[\n{}\n]\n", answers.join(",\n"));
    let answers = answers.replace("[\n\n]", "[\n]");
    put(&folder.join(loadgen_log::ACCURACY), &answers);
    if kind == "accuracy" {
        let scores = "{'rouge1': '38.9', 'rouge2': '16.0', 'rougeL': '24.6', 'rougeLsum': '36.0', 'gen_len': 8167644}\n";
        put(&folder.join("accuracy.txt"), scores);
    }
    let conf = folder.with_file_name("user.conf");
    let targets = "llama3_1-8b.Offline.target_qps = 120\n\
                   llama3_1-8b-interactive.Server.target_qps = 20\n";
    put(&conf, targets);
    let yaml = folder.with_file_name("frontend.yaml");
    let model = if interactive { "-interactive" } else { "" };
    put(
        &yaml,
        &FRONTEND.replace("MODEL", &format!("llama3_1-8b{model}")),
    );
    let node = |node: &str, boot: &str| NodeRecord {
        node: node.to_owned(),
        host: node.to_owned(),
        boot: Some(boot.to_owned()),
        version: "0.1.0".to_owned(),
        commit: Some("4f".repeat(20)),
        dirty: Some(false),
        program: Some("ab".repeat(32)),
        ..NodeRecord::default()
    };
    let command = ["frontend", "--config", "frontend.yaml"];
    let record = Manifest {
        command: command.map(str::to_owned).to_vec(),
        model: format!("llama3_1-8b{model}"),
        scenario: loadgen.to_owned(),
        fabric: "tcp".to_owned(),
        connections: 8,
        frontend: node("lg", "b1"),
        accelerators: vec![node("acc-a", "b2")],
        prefix_caches: [("acc-a".to_owned(), off())].into(),
        ..Manifest::default()
    };
    let mut summary = Summary {
        node: "lg".to_owned(),
        name: "Network SUT: acc-a (http)".to_owned(),
        ..Summary::default()
    };
    summary.run.scenario = loadgen.to_owned();
    summary.run.fabric = "tcp".to_owned();
    summary.run.per_s = 120.5;
    if kind == "accuracy" {
        summary.run.mode = Mode::Accuracy;
    } else {
        summary.run.valid = Some(true);
    }
    put_json(&folder.join(::record::SUMMARY), &summary);
    let mut files = vec![
        (manifest::USER_CONF, conf.as_path()),
        (manifest::FRONTEND_YAML, yaml.as_path()),
    ];
    if test {
        files.push((manifest::AUDIT_CONFIG, audit));
    }
    let mut told = vec![(
        manifest::accelerator_yaml(&name("acc-a")),
        ACCELERATOR.to_owned(),
    )];
    for (role, node) in [("frontend", "lg"), ("accelerator", "acc-a")] {
        let said = serde_json::to_string(&describe_node(role, node)).expect("JSON");
        told.push((manifest::node_json(&name(node)), said));
    }
    let begun = manifest::begin(record, folder, &files, &told).expect("begun");
    manifest::end(begun, folder, 0, "valid").expect("ended");
}

/// Writes the output of truncation and of TEST06's verifier.
fn as_the_scripts_do(built: &BuiltTree) {
    for place in built.from.keys() {
        let scenario = built.tree.scenario(place);
        let accuracy = layout::run_folder(&scenario, &RunKind::Accuracy);
        let log = accuracy.join(loadgen_log::ACCURACY);
        let hash = sha256_of_file(&log).expect("a hash");
        fs::write(&log, manifest::cut(&log).expect("cut")).expect("written");
        let text = accuracy.join("accuracy.txt");
        let scores = fs::read_to_string(&text).expect("scores");
        put(&text, &format!("{scores}\nhash={hash}\n"));
        let test = scenario.join("TEST06");
        let is_offline = &*place.scenario == "Offline";
        let first = if is_offline { "Skipped" } else { "True" };
        let words = format!(
            "First token check pass: {first}\nEOS check pass: True\nSample length check pass: True\n\
             TEST06 verification complete\n"
        );
        put(&test.join("verify_accuracy.txt"), &words);
        let from = built.from[place][&RunKind::Test(name("TEST06"))].join(loadgen_log::ACCURACY);
        crate::error::copy(&from, &test.join("accuracy").join(loadgen_log::ACCURACY))
            .expect("kept");
    }
}

pub fn form() -> Form {
    let mut text = crate::describe::form::blank(&[]);
    for (field, answer) in [
        ("submitter", "org"),
        ("system", "sys"),
        ("status", "available"),
        ("quantization", "none"),
        ("  system_name", "Two nodes"),
        ("  framework", "vLLM 0.9.1"),
        ("  cooling", "air"),
        ("  host_networking_topology", "N/A"),
        ("  accelerator_interconnect", "NVLink"),
        ("  accelerator_memory_configuration", "HBM3"),
    ] {
        text = text.replace(&format!("\n{field}: \"\""), &format!("\n{field}: {answer}"));
    }
    let models = "models:\n  llama3.1-8b: {input_data_types: int32, retraining: \"no\", \
                  starting_weights_filename: model.safetensors, weight_data_types: fp8, weight_transformations: quantized}\n";
    text = text.replace("models:\n", models);
    let form: Form = crate::error::yaml(&text).expect("a form");
    assert_eq!(form.empty(), []);
    form
}

fn describe_node(role: &str, name: &str) -> Node {
    let is_frontend = role == "frontend";
    let address = if is_frontend { "10.0.0.1" } else { "10.0.0.2" };
    let text = include_str!("node.json").replace("NAME", name);
    let text = text.replace("ROLE", role).replace("ADDRESS", address);
    serde_json::from_str(&text).expect("a node")
}
