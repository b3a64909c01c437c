//! Submissions from short, small runs of the round's models: form, node descriptions, patches that
//! lengthen the runs, and `submit`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{ProgramEnd, Running, TestFolder, accelerator, free_ports, run};

/// The model's folder in a submission tree.
const MODEL: &str = "llama3.1-8b";
/// Each scenario: its name in a tree, its flag, and the model's name in user.conf.
const SCENARIOS: [(&str, &str, &str); 2] = [
    ("Offline", "offline", "llama3_1-8b"),
    ("Interactive", "server", "llama3_1-8b-interactive"),
];
/// The kinds of runs of each scenario.
const KINDS: [&str; 3] = ["performance", "accuracy", TEST];
/// The model's compliance test, with settings for use without a checkout.
const TEST: &str = "TEST06";
const AUDIT: &str = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
    *.*.accuracy_log_sampling_target = 100\n*.*.min_query_count = 100\n*.*.min_duration = 0\n\
    *.*.sample_concatenate_permutation = 0\n";
/// Output of the model's accuracy script.
const SCORES: &str = "{'rouge1': '38.9', 'rouge2': '16.0', 'rougeL': '24.6', \
    'rougeLsum': '36.0', 'gen_len': 8167644}\n";
const USER_CONF: &str =
    "llama3_1-8b.Offline.target_qps = 20\nllama3_1-8b-interactive.Server.target_qps = 2000\n";
/// Tiny prompts and answers, in the round's number.
const TENSORS: &str = "model: {name: llama3.1-8b, \
    inputs: [{name: prompt, dtype: i32, shape: [16], ragged: true}], \
    output: {name: tokens, dtype: i32, shape: [8], ragged: true}}\n";

/// A key in the configurations of both nodes. No file of a run or of a tree has it.
pub const KEY: &str = "hf_QdLqDlQdLqDlQdLq";

/// Number of files below `folder`, and those that contain `secret`.
pub fn files_with(folder: &Path, secret: &str) -> (usize, Vec<PathBuf>) {
    let (mut count, mut found) = (0, Vec::new());
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            let (more, below) = files_with(&path, secret);
            count += more;
            found.extend(below);
            continue;
        }
        count += 1;
        let bytes = fs::read(&path).expect("readable");
        if bytes.windows(secret.len()).any(|w| w == secret.as_bytes()) {
            found.push(path);
        }
    }
    (count, found)
}

pub fn accelerator_yaml(control: &str, listen: &str) -> String {
    format!(
        "# HF_TOKEN={KEY}\nnode: acc-a\ncontrol: {{listen: \"{control}\"}}\n{TENSORS}\
         nics: [{{listen: \"{listen}\"}}]\n\
         engine: {{kind: tokens, tokens: {{min_tokens: 3, max_tokens: 8, sequences: 256}}}}\n"
    )
}

pub fn frontend_yaml(control: &str, address: &str, model: &str) -> String {
    format!(
        "# HF_TOKEN={KEY}\nnode: lg\n{TENSORS}dataset: {{kind: random, count: 13368, \
         min_bytes: 64, max_bytes: 64, distribution: fixed}}\n\
         accelerators: [{{control: \"{control}\"}}]\n\
         nics: [{{address: {address}, connections: 2}}]\n\
         loadgen: {{model: {model}, user_conf: user.conf}}\n"
    )
}

/// A configuration of these runs as one of two machines, with the model and its data set.
fn real(yaml: &str) -> String {
    let line = |line: &str| match line.split_once(": ").map_or(line, |(key, _)| key) {
        "engine" => "engine: {kind: http, http: {url: \"http://127.0.0.1:8000\", dialect: vllm, \
                     temperature: 0, max_tokens: 128}}"
            .to_owned(),
        "dataset" => "dataset: {kind: tokens, samples: own.tokens}".to_owned(),
        "model" => line.replace("shape: [8]", "shape: [128]"),
        "control" | "accelerators" => {
            let (head, tail) = line.split_once("127.0.0.1:").expect("an address");
            let tail = tail.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{head}10.0.0.1:7400{tail}")
        }
        _ => line.replace("127.0.0.1", "10.0.0.1"),
    };
    yaml.lines().map(|one| line(one) + "\n").collect()
}

/// An accelerator with a simulated llama3.1-8b, and the files that a frontend needs.
pub struct Rig {
    pub place: TestFolder,
    port: u16,
    pub accelerator: Running,
}

impl Rig {
    pub fn new() -> Self {
        let place = TestFolder::new();
        let [port] = free_ports();
        let yaml = accelerator_yaml(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
        let accelerator = accelerator(&place, &place.write("acc-a.yaml", yaml));
        place.write("user.conf", USER_CONF);
        fs::create_dir_all(place.path("source")).expect("made");
        place.write("source/qdl.rs", "// the source\n");
        Rig {
            place,
            port,
            accelerator,
        }
    }

    pub fn config(&self, model: &str, more: &str) -> PathBuf {
        let yaml = frontend_yaml(&format!("127.0.0.1:{}", self.port), "127.0.0.1", model);
        self.place.write(&format!("{model}.yaml"), yaml + more)
    }

    pub fn run(&self, model: &str, out: &str, arguments: &[&str]) -> ProgramEnd {
        let config = self.config(model, "");
        self.place.run(&config, out, arguments)
    }

    pub fn program(&self, words: &[&str]) -> ProgramEnd {
        self.place.qdl(words).end_within(LONG)
    }

    /// Makes all runs, each shorter than the round requires.
    pub fn runs(&self) {
        let audit = self.audit();
        for (scenario, flag, model) in SCENARIOS {
            for kind in KINDS {
                let flags: &[&str] = match kind {
                    "performance" => &["--mode", "performance", "--duration-s", "1"],
                    "accuracy" => &["--mode", "accuracy"],
                    _ => &["--mode", "performance", "--audit-config", &audit],
                };
                let flags = [&["--scenario", flag], flags].concat();
                let config = self.config(model, "");
                let out = format!("runs/{scenario}/{kind}");
                let command = self.place.frontend(&config, &out, &flags);
                let ended = Running::start(&self.place, "frontend", command).end_within(LONG);
                ended.judged();
            }
            let scores = format!("runs/{scenario}/accuracy/accuracy.txt");
            self.place.write(&scores, SCORES);
        }
    }

    /// Returns the path of the test's audit.config: the official one, or ours under its name.
    fn audit(&self) -> String {
        let path = match checkout() {
            Some(checkout) => Path::new(&checkout).join("compliance").join(TEST),
            None => {
                let folder = self.place.path(TEST);
                fs::create_dir_all(&folder).expect("made");
                fs::write(folder.join("audit.config"), AUDIT).expect("written");
                folder
            }
        };
        path.join("audit.config").to_string_lossy().into_owned()
    }

    pub fn form(&self) {
        self.program(&["describe", "--ask", "--output", "form.yaml"])
            .with_code(0);
        let path = self.place.path("form.yaml");
        let mut text = fs::read_to_string(&path).expect("a form");
        for (key, value) in [
            ("submitter", "org"),
            ("system", "sys"),
            ("status", "available"),
            ("quantization", "none"),
        ] {
            text = text.replacen(&format!("\n{key}: \"\""), &format!("\n{key}: {value}"), 1);
        }
        for key in ["host_memory_ecc", "accelerator_memory_ecc"] {
            text = text.replacen(&format!("{key}: \"\""), &format!("{key}: \"yes\""), 1);
        }
        let (head, _) = text.split_once("models:\n").expect("models");
        let fields: String = head
            .lines()
            .map(|line| match line.strip_suffix(": \"\"") {
                // The machines report these fields.
                Some(field)
                    if REPORTED
                        .iter()
                        .any(|f| field.starts_with(&format!("  {f}")))
                        && field != "  network_media" =>
                {
                    format!("{line}\n")
                }
                Some(field) if field.starts_with("  ") => format!("{field}: something/over it\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let text = format!(
            "{fields}models:\n  {MODEL}: {{input_data_types: int32, retraining: \"no\", \
             starting_weights_filename: none, weight_data_types: fp8, \
             weight_transformations: none}}\n"
        );
        fs::write(path, text).expect("written");
    }

    /// Puts descriptions of two machines, neither of which is this one, into the runs' folders.
    pub fn nodes(&self) {
        for (role, node) in [("frontend", "lg"), ("accelerator", "acc-a")] {
            let nic = json!({"name": "eth0", "link_layer": "Ethernet", "model": "a NIC", "driver": "d", "up": true,
                             "speed_mbps": 100_000, "addresses": ["10.0.0.1"]});
            let text = json!({"node": node, "host": node, "role": role, "operating_system": "Linux", "kernel": "6",
                "processors": {"model": "a processor", "sockets": 2, "cores_per_socket": 4, "threads": 16},
                "memory": {"bytes": 1_u64 << 36, "ecc": true, "modules": ["4 x 16384 MB DDR5"]},
                "disks": [{"name": "nvme0n1", "bytes": 1_000_000_000_000_u64}], "nics": [nic]});
            for folder in self.folders() {
                let (path, record) = (format!("node-{node}.json"), folder.join("run.json"));
                let copy = folder.join("files").join(&path);
                fs::write(&copy, text.to_string()).expect("written");
                let mut left = read(&record);
                left["files"][&path]["sha256"] = json!(hash(&copy));
                let of_role = if role == "frontend" {
                    "/frontend"
                } else {
                    "/accelerators/0"
                };
                left.pointer_mut(of_role).expect("a node")["host"] = json!(node);
                fs::write(&record, left.to_string()).expect("written");
            }
        }
    }

    /// The folders of all runs.
    fn folders(&self) -> Vec<PathBuf> {
        let of = |(scenario, ..): &(&str, &str, &str)| {
            KINDS.map(|kind| self.place.path(&format!("runs/{scenario}/{kind}")))
        };
        SCENARIOS.iter().flat_map(of).collect()
    }

    /// Runs `qdl submit` on all runs; with a checkout of mlcommons/inference, its scripts run too.
    pub fn submit(&self, out: &str, more: &[&str]) -> ProgramEnd {
        let (checker, python) = (checkout(), std::env::var("QDL_MLPERF_PYTHON").ok());
        let mut all = vec!["submit", "--runs", "runs", "--output", out];
        all.extend(["--form", "form.yaml", "--src", "source"]);
        all.extend(more);
        if let Some(checker) = &checker {
            all.extend(["--checker", checker]);
        }
        if let Some(python) = &python {
            all.extend(["--python", python]);
        }
        self.program(&all)
    }

    pub fn patch(&self) {
        for (scenario, ..) in SCENARIOS {
            for kind in KINDS {
                let folder = self.place.path(&format!("runs/{scenario}/{kind}"));
                let log = folder.join("mlperf_log_detail.txt");
                let mut text = fs::read_to_string(&log).expect("a log");
                if kind == "performance" {
                    text = long_enough(text);
                }
                fs::write(&log, &text).expect("written");
                let record = folder.join("run.json");
                let mut left: Value = read(&record);
                if text.contains("\"value\": \"VALID\"") {
                    let short = folder.join("mlperf_log_summary.txt");
                    let said = fs::read_to_string(&short).expect("a summary");
                    let said = said.replace("Result is : INVALID", "Result is : VALID");
                    fs::write(&short, said).expect("written");
                    left["logs"]["mlperf_log_summary.txt"] = json!(hash(&short));
                }
                for name in ["frontend.yaml", "accelerator-acc-a.yaml"] {
                    let yaml = folder.join("files").join(name);
                    let text = fs::read_to_string(&yaml).expect("a copy");
                    let real = real(&text);
                    // Addresses beyond loopback need a token or this key.
                    fs::write(&yaml, format!("auth: none\n{real}")).expect("written");
                    left["files"][name]["sha256"] = json!(hash(&yaml));
                }
                let summary = folder.join("summary.json");
                let mut said: Value = read(&summary);
                said["would_not_count"] = json!([]);
                said["exit"]["code"] = json!(0);
                if kind != "accuracy" {
                    said["valid"] = json!(text.contains("\"value\": \"VALID\""));
                }
                if kind == "performance" {
                    said["per_s"] = json!(10.0);
                }
                fs::write(&summary, said.to_string()).expect("written");
                left["logs"]["mlperf_log_detail.txt"] = json!(hash(&log));
                left["fabric_notes"] = json!([]);
                left["overrides"] = json!([]);
                left["prefix_caches"] = json!({"acc-a": {"state": "off", "how": "as started"}});
                let command = left["command"].as_array_mut().expect("words");
                if let Some(at) = command.iter().position(|word| word == "--duration-s") {
                    command.drain(at..at + 2);
                }
                left["exit"] = json!(0);
                for (node, boot) in [("/frontend", "1"), ("/accelerators/0", "2")] {
                    let node = left.pointer_mut(node).expect("a node");
                    node["boot"] = json!(boot);
                    node["commit"] = json!("4f".repeat(20));
                    node["dirty"] = json!(false);
                }
                fs::write(&record, left.to_string()).expect("written");
            }
        }
    }
}

/// Beginnings of the form's fields that machines report.
const REPORTED: [&str; 3] = ["network_", "host_memory", "host_storage"];

/// Limit for a `submit` that runs Python scripts.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// Returns the checkout of mlcommons/inference in `QDL_MLPERF_CHECKOUT`, if any.
pub fn checkout() -> Option<String> {
    let path = std::env::var("QDL_MLPERF_CHECKOUT").ok();
    path.filter(|path| !path.is_empty())
}

pub fn rules(text: &str) -> BTreeSet<String> {
    let lines = text
        .lines()
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    let words = lines.filter_map(|l| l.split_whitespace().next());
    words
        .filter(|w| w.contains('.'))
        .map(str::to_owned)
        .collect()
}

/// Edits a log to that of ten minutes at a constant, sufficient speed.
fn long_enough(mut text: String) -> String {
    let least = |ms: u32| format!("\"effective_min_duration_ms\", \"value\": {ms},");
    text = text.replace(&least(1000), &least(600_000));
    let latency = "1000000";
    for ends in [
        "_percentile_latency_ns",
        "_percentile_ns",
        "_latency_ns",
        "_token_ns",
    ] {
        let keys = text.lines().filter_map(|line| line.split('"').nth(3));
        let is_result = |key: &&str| key.starts_with("result_") && key.ends_with(ends);
        let keys: BTreeSet<String> = keys.filter(is_result).map(str::to_owned).collect();
        for key in keys {
            text = with_value(&text, &key, latency);
        }
    }
    // LoadGen writes the test's date as 2026-11-29T..., that of its power as 11-29-2026.
    let date = text
        .split_once("\"test_datetime\", \"value\": \"")
        .expect("a date")
        .1;
    let (year, day) = (date[..4].to_owned(), date[5..10].to_owned());
    let at = |time: &str| format!("\"{day}-{year} {time}.000\"");
    for (key, value) in [
        ("result_validity", "\"VALID\""),
        ("early_stopping_met", "true"),
        ("power_begin", &*at("00:00:00")),
        ("power_end", &*at("00:10:30")),
        // A rate of full-size samples that the NICs of `Rig::nodes` can carry.
        ("result_samples_per_second", "10.0"),
        ("result_completed_samples_per_sec", "10.0"),
    ] {
        text = with_value(&text, key, value);
    }
    text
}

fn with_value(log: &str, key: &str, value: &str) -> String {
    let lines = log.lines().map(|line| {
        if !line.contains(&format!("\"key\": \"{key}\"")) {
            return line.to_owned();
        }
        let (head, tail) = line.split_once("\"value\": ").expect("a value");
        let (_, tail) = tail.split_once(',').expect("more");
        format!("{head}\"value\": {value},{tail}")
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn hash(path: &Path) -> String {
    submission::manifest::sha256_of_file(path).expect("a hash")
}
