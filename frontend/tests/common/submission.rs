//! Submissions from short, small runs of the round's models: form, node descriptions, patches that
//! lengthen the runs, and `submit`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{ProgramEnd, Running, TestFolder, accelerator, free_ports, run};

/// A model of the round, with its names and counts but tiny samples.
pub struct Case {
    /// The model's folder in a submission tree.
    pub folder: &'static str,
    /// Each scenario: its name in a tree, its flag, and the model's name in user.conf.
    pub scenarios: &'static [(&'static str, &'static str, &'static str)],
    pub samples: u64,
    /// Range of tokens per answer, for the engine `tokens`; `None` means the engine `digest`.
    pub tokens: Option<(u32, u32)>,
    /// A compliance test that checks the length of answers, and the range of tokens that it
    /// requires. Other runs use short answers to save time.
    pub long: Option<(&'static str, (u32, u32))>,
    /// Compliance tests: name, path of the official settings in a checkout, and settings with the
    /// same keys for use without a checkout.
    pub tests: &'static [(&'static str, &'static str, &'static str)],
    /// Output of the model's accuracy script.
    pub scores: &'static str,
    pub user_conf: &'static str,
}

/// llama3.1-8b, in Offline and Interactive.
pub const LLAMA: Case = Case {
    folder: "llama3.1-8b",
    scenarios: &[
        ("Offline", "offline", "llama3_1-8b"),
        ("Interactive", "server", "llama3_1-8b-interactive"),
    ],
    samples: 13368,
    tokens: Some((3, 8)),
    long: None,
    tests: &[("TEST06", "TEST06", TEST06)],
    scores: "{'rouge1': '38.9', 'rouge2': '16.0', 'rougeL': '24.6', 'rougeLsum': '36.0', 'gen_len': 8167644}\n",
    user_conf: "llama3_1-8b.Offline.target_qps = 20\nllama3_1-8b-interactive.Server.target_qps = 2000\n",
};

pub const TEST06: &str = "*.*.mode = 2\n*.*.accuracy_log_rng_seed = 720381539243781796\n\
                          *.*.accuracy_log_sampling_target = 100\n*.*.min_query_count = 100\n*.*.min_duration = 0\n\
                          *.*.sample_concatenate_permutation = 0\n";

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

/// An accelerator with a simulated model, and the files that a frontend needs.
pub struct Rig {
    pub place: TestFolder,
    pub case: &'static Case,
    port: u16,
    /// The same accelerator with the length of answers in `Case::long`, and its port.
    long: Option<(u16, Running)>,
    pub accelerator: Running,
}

impl Case {
    fn model(&self) -> String {
        let tensors = match self.long.map(|(_, tokens)| tokens).or(self.tokens) {
            Some((_, most)) => format!(
                "inputs: [{{name: prompt, dtype: i32, shape: [16], ragged: true}}], \
                 output: {{name: tokens, dtype: i32, shape: [{most}], ragged: true}}"
            ),
            None => "inputs: [{name: sample, dtype: u8, shape: [64]}], \
                     output: {name: digest, dtype: u8, shape: [8]}"
                .to_owned(),
        };
        format!("model: {{name: {}, {tensors}}}\n", self.folder)
    }

    pub fn accelerator_yaml(&self, control: &str, listen: &str) -> String {
        self.accelerator_of(self.tokens, control, listen)
    }

    fn accelerator_of(&self, tokens: Option<(u32, u32)>, control: &str, listen: &str) -> String {
        let engine = match tokens {
            Some((least, most)) => format!(
                "{{kind: tokens, tokens: {{min_tokens: {least}, max_tokens: {most}, sequences: 256}}}}"
            ),
            None => "{kind: digest}".to_owned(),
        };
        format!(
            "# HF_TOKEN={KEY}\nnode: acc-a\ncontrol: {{listen: \"{control}\"}}\n{}nics: [{{listen: \"{listen}\"}}]\n\
             engine: {engine}\n",
            self.model()
        )
    }

    /// A configuration of this case as one of two machines, with the model and its data set.
    fn real(&self, yaml: &str, kind: &str) -> String {
        let longest = match self.folder {
            "llama3.1-8b" => 128,
            "llama2-70b-99.9" => 1024,
            "deepseek-r1" => 20_000,
            "gpt-oss-120b" if kind == "accuracy" => 32_768,
            _ => 10_240,
        };
        let temperature = f64::from(u8::from(self.folder == "gpt-oss-120b"));
        let line = |line: &str| {
            let (engine, data) = match self.tokens {
                Some(_) => (
                    format!(
                        "{{kind: http, http: {{url: \"http://127.0.0.1:8000\", dialect: vllm, \
                         temperature: {temperature}, max_tokens: {longest}}}}}"
                    ),
                    "{kind: tokens, samples: own.tokens}",
                ),
                None => ("{kind: onnx}".to_owned(), "{kind: raw, samples: own.bin}"),
            };
            match line.split_once(": ").map_or(line, |(key, _)| key) {
                "engine" => format!("engine: {engine}"),
                "dataset" => format!("dataset: {data}"),
                "model" if self.tokens.is_some() => {
                    let (head, _) = line.rsplit_once("shape: [").expect("a shape");
                    format!("{head}shape: [{longest}], ragged: true}}}}")
                }
                "model" if yaml.contains("\nengine: ") => {
                    line.replace("model: {", "model: {file: own.onnx, ")
                }
                // The run of a test may have had an accelerator of its own.
                "control" | "accelerators" => {
                    let (head, tail) = line.split_once("127.0.0.1:").expect("an address");
                    let tail = tail.trim_start_matches(|c: char| c.is_ascii_digit());
                    format!("{head}10.0.0.1:7400{tail}")
                }
                _ => line.replace("127.0.0.1", "10.0.0.1"),
            }
        };
        yaml.lines().map(|one| line(one) + "\n").collect()
    }

    pub fn frontend_yaml(&self, control: &str, address: &str, model: &str) -> String {
        let samples = self.samples;
        format!(
            "# HF_TOKEN={KEY}\nnode: lg\n{}dataset: {{kind: random, count: {samples}, min_bytes: 64, max_bytes: 64, distribution: fixed}}\n\
             accelerators: [{{control: \"{control}\"}}]\nnics: [{{address: {address}, connections: 2}}]\n\
             loadgen: {{model: {model}, user_conf: user.conf}}\n",
            self.model()
        )
    }
}

impl Rig {
    pub fn new(case: &'static Case) -> Self {
        let place = TestFolder::new();
        let [port] = free_ports();
        let yaml = case.accelerator_yaml(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
        let long = case.long.map(|(_, tokens)| {
            let [port] = free_ports();
            let control = format!("127.0.0.1:{port}");
            let yaml = case.accelerator_of(Some(tokens), &control, "127.0.0.1:0");
            let running = accelerator(&place, &place.write("acc-long.yaml", yaml));
            (port, running)
        });
        let accelerator = accelerator(&place, &place.write("acc-a.yaml", yaml));
        place.write("user.conf", case.user_conf);
        fs::create_dir_all(place.path("source")).expect("made");
        place.write("source/qdl.rs", "// the source\n");
        Rig {
            place,
            case,
            port,
            long,
            accelerator,
        }
    }

    pub fn config(&self, model: &str, more: &str) -> PathBuf {
        self.config_at(self.port, model, more)
    }

    fn config_at(&self, port: u16, model: &str, more: &str) -> PathBuf {
        let control = format!("127.0.0.1:{port}");
        let yaml = self.case.frontend_yaml(&control, "127.0.0.1", model);
        self.place.write(&format!("{model}.yaml"), yaml + more)
    }

    pub fn run(&self, model: &str, out: &str, arguments: &[&str]) -> ProgramEnd {
        let config = self.config(model, "");
        self.place.run(&config, out, arguments)
    }

    pub fn program(&self, words: &[&str]) -> ProgramEnd {
        self.place.qdl(words).end_within(LONG)
    }

    /// Makes all runs of the case, each shorter than the round requires.
    pub fn runs(&self) {
        for (scenario, flag, model) in self.case.scenarios {
            let short = ["--mode", "performance", "--duration-s", "1"].map(str::to_owned);
            let mut kinds = vec![
                ("performance", short.to_vec()),
                (
                    "accuracy",
                    ["--mode", "accuracy"].map(str::to_owned).to_vec(),
                ),
            ];
            for (test, at, own) in self.case.tests {
                let mut flags = vec!["--mode".to_owned(), "performance".to_owned()];
                if !own.contains("min_duration") {
                    flags = short.to_vec();
                }
                flags.extend(["--audit-config".to_owned(), self.audit(at, own)]);
                kinds.push((test, flags));
            }
            for (kind, flags) in kinds {
                let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
                let flags = [&["--scenario", flag][..], &flags].concat();
                let long = self
                    .long
                    .as_ref()
                    .filter(|_| self.case.long.is_some_and(|(test, _)| test == kind));
                let port = long.map_or(self.port, |(port, _)| *port);
                let config = self.config_at(port, model, "");
                let out = format!("runs/{scenario}/{kind}");
                let command = self.place.frontend(&config, &out, &flags);
                let ended = Running::start(&self.place, "frontend", command).end_within(LONG);
                assert!(
                    matches!(ended.code, Some(0 | 1)),
                    "{scenario} {kind}: {}",
                    ended.stderr
                );
            }
            let scores = format!("runs/{scenario}/accuracy/accuracy.txt");
            self.place.write(&scores, self.case.scores);
        }
    }

    /// Returns the path of a test's audit.config: the official one, or `own` under the same name.
    fn audit(&self, at: &str, own: &str) -> String {
        let path = match checkout() {
            Some(checkout) => Path::new(&checkout).join("compliance").join(at),
            None => {
                let folder = self.place.path(at);
                fs::create_dir_all(&folder).expect("made");
                fs::write(folder.join("audit.config"), own).expect("written");
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
        // TEST07 runs the accuracy script again; this command prints the script's result.
        let script = "\"echo \\\"'exact_match': 83.2\\\"\"";
        let text = format!(
            "{fields}models:\n  {}: {{input_data_types: int32, retraining: \"no\", starting_weights_filename: none, \
             weight_data_types: fp8, weight_transformations: none}}\naccuracy_scripts: {{gpt-oss-120b: {script}}}\n",
            self.case.folder
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
        let kinds = self.case.tests.iter().map(|(test, ..)| *test);
        let kinds: Vec<_> = ["performance", "accuracy"]
            .into_iter()
            .chain(kinds)
            .collect();
        let of = |scenario: &str, kind: &&str| self.place.path(&format!("runs/{scenario}/{kind}"));
        let scenarios = self.case.scenarios.iter();
        scenarios
            .flat_map(|(scenario, ..)| {
                kinds
                    .iter()
                    .map(|kind| of(scenario, kind))
                    .collect::<Vec<_>>()
            })
            .collect()
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
        for (scenario, ..) in self.case.scenarios {
            let tests = self.case.tests.iter().map(|(test, ..)| *test);
            for kind in ["performance", "accuracy"].into_iter().chain(tests) {
                let folder = self.place.path(&format!("runs/{scenario}/{kind}"));
                let log = folder.join("mlperf_log_detail.txt");
                let mut text = fs::read_to_string(&log).expect("a log");
                // A test without its own duration is as long as a performance run.
                if ["performance", "TEST01"].contains(&kind) {
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
                // Real answers are long enough, so no test needs another configuration.
                for name in ["frontend.yaml", "accelerator-acc-a.yaml"] {
                    let yaml = folder.join("files").join(name);
                    let text = fs::read_to_string(&yaml).expect("a copy");
                    let real = self.case.real(&text, kind);
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
