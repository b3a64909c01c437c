//! The largest models of the round in `configs/`: full-size samples and answers over the network,
//! in smaller numbers. The frontend verifies each byte of each answer.

use std::{fs, path::PathBuf, time::Duration};

use crate::common::{Running, TestFolder, accelerator, free_ports, repository, words};
use serde_json::Value;

/// Limit for a run with hundreds of megabytes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Deadlines for debug builds that process gigabytes on busy machines.
const PATIENT: &str =
    "deadlines: {connect_ms: 60000, echo_timeout_ms: 40000, heartbeat_timeout_ms: 40000, ";

/// A pair of configurations, with fewer samples than the round has. Each sample is sent once.
struct Case {
    folder: &'static str,
    count: usize,
    /// Seed of the samples' sizes.
    seed: &'static str,
    /// Minimum bytes of all samples.
    sent: u64,
    /// Minimum bytes of all answers.
    answered: u64,
}

/// Writes the configuration with ports of this test.
fn rewritten(place: &TestFolder, case: &Case, side: &str, control: u16) -> PathBuf {
    let count = case.count;
    let name = format!("{side}.yaml");
    let file = repository().join("configs").join(case.folder).join(&name);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut lines = Vec::new();
    for line in text.lines() {
        let (indent, key) = line.split_at(line.len() - line.trim_start().len());
        lines.push(match key.split(':').next().unwrap_or_default() {
            "control" => format!("control: {{listen: \"127.0.0.1:{control}\"}}"),
            "- control" => format!("{indent}- control: 127.0.0.1:{control}"),
            "- listen" => format!("{indent}- listen: 127.0.0.1:0"),
            "count" => format!("{indent}count: {count}"),
            "dataset" => fewer(line, count),
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
    let Case {
        folder,
        count,
        seed,
        sent,
        answered,
    } = *case;
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

/// Two small volumes and the largest: 100,139,008 voxels of four bytes.
#[test]
fn volumes_of_hundreds_of_megabytes() {
    carried(&Case {
        folder: "vision/3d-unet",
        count: 3,
        seed: "661",
        sent: 400_556_032,
        answered: 100_139_008,
    });
}

#[test]
fn answers_that_are_videos() {
    carried(&Case {
        folder: "video/wan-2.2",
        count: 2,
        seed: "1",
        sent: 6,
        answered: 447_897_600,
    });
}
