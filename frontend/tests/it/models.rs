//! The models of the round in `configs/`: full-size samples and answers over the network, in
//! smaller numbers. The frontend verifies each byte of each answer.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::common::{Running, TestFolder, accelerator, free_ports, repository, words};
use serde_json::Value;

/// Limit for a run with hundreds of megabytes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Deadlines for debug builds that process gigabytes on busy machines.
const PATIENT: &str =
    "deadlines: {connect_ms: 60000, echo_timeout_ms: 40000, heartbeat_timeout_ms: 40000, ";

/// A pair of configurations, with fewer samples than the round has: folder, suffix of the files'
/// names, number of samples, seed of their sizes, and minimum total bytes of samples and answers.
/// Each sample is sent once.
type Case = (&'static str, &'static str, usize, &'static str, u64, u64);

#[rustfmt::skip]
const CASES: [Case; 12] = [
    // Two small volumes and the largest: 100,139,008 voxels of four bytes.
    ("vision/3d-unet", "", 3, "661", 400_556_032, 100_139_008),
    ("speech/whisper", "", 6, "1", 6 * 896_000, 6 * 478),
    ("graph/rgat", "", 4000, "1", 32_000, 32_000),
    ("recommendation/dlrm-v3", "", 12, "1", 12 * 338_432, 12 * 8200),
    ("video/wan-2.2", "", 2, "1", 6, 447_897_600),
    ("multimodal/qwen3-vl", "", 300, "1", 300 * 4096, 300 * 16),
    ("rag/e2e-rag-qna", "", 500, "1", 500 * 64, 500 * 256),
    ("rag/e2e-rag-db", "", 12, "1", 12 * 16_384, 96),
    ("llm/llama3.1-8b", "-digest", 400, "1", 1600, 3200),
    ("llm/llama2-70b", "-digest", 400, "1", 1600, 3200),
    ("llm/gpt-oss-120b", "-digest", 200, "1", 800, 1600),
    ("llm/deepseek-r1", "-digest", 200, "1", 800, 1600),
];

/// Writes the configuration with ports of this test.
fn rewritten(place: &TestFolder, case: &Case, side: &str, control: u16) -> PathBuf {
    let (folder, suffix, count, ..) = case;
    let name = format!("{side}{suffix}.yaml");
    let file = repository().join("configs").join(folder).join(&name);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut lines = Vec::new();
    for line in text.lines() {
        let (indent, key) = line.split_at(line.len() - line.trim_start().len());
        lines.push(match key.split(':').next().unwrap_or_default() {
            "control" => format!("control: {{listen: \"127.0.0.1:{control}\"}}"),
            "- control" => format!("{indent}- control: 127.0.0.1:{control}"),
            "- listen" => format!("{indent}- listen: 127.0.0.1:0"),
            "count" => format!("{indent}count: {count}"),
            "dataset" => fewer(line, *count),
            "performance_sample_count" | "deadlines" => String::new(),
            _ => line.to_owned(),
        });
    }
    lines.push(match side {
        "frontend" => {
            format!("warm_up: {{deadline_ms: 60000}}\n{PATIENT}lost_ms: 50000, watchdog_s: 200}}\n")
        }
        _ => format!("{PATIENT}drain_ms: 30000}}\n"),
    });
    place.write(&name, lines.join("\n"))
}

/// Replaces the number of samples in a one-line data set.
fn fewer(line: &str, count: usize) -> String {
    match line.split_once("count: ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}count: {count}{rest}")
        }
        None => line.to_owned(),
    }
}

fn carried(case: &Case) {
    let (folder, _, count, seed, sent, answered) = *case;
    let place = TestFolder::new();
    let [control] = free_ports();
    let _accelerator = accelerator(&place, &rewritten(&place, case, "accelerator", control));
    let config = rewritten(&place, case, "frontend", control);
    let arguments = format!(
        "--scenario offline --mode performance --samples {count} --seed {seed} \
         --set min_duration=0 --set sample_concatenate_permutation=1"
    );
    let command = place.frontend(&config, "out", &words(&arguments));
    Running::start(&place, "frontend", command)
        .end_within(PATIENCE)
        .with_code(0);
    let s = place.summary("out");
    let count = Value::from(count);
    assert_eq!((&s["valid"], &s["samples"]), (&Value::from(true), &count));
    assert_eq!(s["verified"]["compared"], count, "{folder}");
    for fault in ["mismatches", "duplicates", "lost"] {
        assert_eq!(s["verified"][fault], 0, "{folder}");
    }
    let moved = |key: &str| {
        let each = s["connections"].as_array().expect("a list").iter();
        each.map(|c| c[key]["bytes"].as_u64().expect("bytes"))
            .sum::<u64>()
    };
    assert!(moved("tx") >= sent, "{folder}: {}", moved("tx"));
    let received = moved("rx");
    assert!(received >= answered, "{folder}: {received}");
}

macro_rules! each {
    ($($name:ident: $folder:literal,)*) => {$(
        #[test]
        fn $name() {
            carried(CASES.iter().find(|c| c.0 == $folder).expect("a case"));
        }
    )*};
}

each! {
    volumes_of_hundreds_of_megabytes: "vision/3d-unet",
    half_minutes_of_audio: "speech/whisper",
    ids_of_nodes: "graph/rgat",
    requests_with_histories: "recommendation/dlrm-v3",
    answers_that_are_videos: "video/wan-2.2",
    messages_with_pictures: "multimodal/qwen3-vl",
    questions: "rag/e2e-rag-qna",
    pages: "rag/e2e-rag-db",
    prompts_of_llama_3_1: "llm/llama3.1-8b",
    prompts_of_llama_2: "llm/llama2-70b",
    prompts_of_gpt_oss: "llm/gpt-oss-120b",
    prompts_of_deepseek: "llm/deepseek-r1",
}

/// Checks that the tests above cover every configuration in `configs/` with `verify: digest`.
#[test]
fn no_model_is_left_out() {
    let configs = repository().join("configs");
    let mut found = Vec::new();
    let below = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries.map(|e| e.expect("an entry").path()).collect()
    };
    for family in below(&configs).iter().filter(|p| p.is_dir()) {
        for folder in below(family).iter().filter(|p| p.is_dir()) {
            let verified = |file: &PathBuf| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("frontend")
                    && name.ends_with(".yaml")
                    && fs::read_to_string(file).is_ok_and(|t| t.contains("\nverify: digest"))
            };
            if below(folder).iter().any(verified) {
                let name = folder.strip_prefix(&configs).expect("below it");
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    let mut cases: Vec<_> = CASES.iter().map(|c| c.0).collect();
    cases.sort_unstable();
    assert_eq!(found, cases);
}
