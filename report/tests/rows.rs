//! Runs as rows: seconds and kept samples.

mod common;

use common::{RunShape, run};
use record::RunFolder;
use report::{csv, json_lines};
use serde_json::Value;

fn made(name: &'static str, ticks: usize) -> RunFolder {
    run(&RunShape {
        name,
        ticks,
        ..RunShape::default()
    })
}

/// The fields of lines without quotation marks.
fn table(csv: &str) -> Vec<Vec<&str>> {
    let lines = csv.split_terminator("\r\n");
    lines.map(|line| line.split(',').collect()).collect()
}

fn sum(table: &[Vec<&str>], column: &str) -> u64 {
    let at = table[0].iter().position(|name| *name == column);
    let at = at.unwrap_or_else(|| panic!("no column {column}"));
    let values = table[1..].iter().map(|row| row[at].parse::<u64>());
    values.sum::<Result<u64, _>>().expect("counts")
}

#[test]
fn a_row_is_a_second_and_all_rows_are_the_timeline() {
    // 11 s and a half.
    let run = made("one", 115);
    let timeline = run.timeline.clone().expect("a timeline");
    let text = csv(std::slice::from_ref(&run)).expect("rows");
    let table = table(&text);
    assert_eq!(table.len(), 1 + 12);
    assert!(table.iter().all(|row| row.len() == table[0].len()));
    let at = |row: usize| (table[row][1], table[row][2]);
    assert_eq!(at(0), ("time_s", "length_s"));
    assert_eq!((at(1), at(2)), (("0.0", "1.0"), ("1.0", "1.0")));
    assert_eq!(at(12), ("11.0", "0.5"));
    let completed: u64 = timeline.ticks.iter().map(|t| t.completed).sum();
    assert_eq!(sum(&table, "completed_samples"), completed);
    assert_eq!(sum(&table, "acc-01_samples"), completed);
    // The run has no tokens.
    assert!(!text.contains("tokens"));
}

#[test]
fn runs_share_a_heading_and_a_run_without_a_column_leaves_it_empty() {
    let mut second = made("with, \"tokens\"", 10);
    second.summary.run.tokens = Some(record::TokenRecord::default());
    second.timeline.as_mut().expect("a timeline").ticks[0].tokens = 7;
    let text = csv(&[made("one", 10), second]).expect("rows");
    let lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].contains(",in_flight_samples,completed_tokens,p50_us,"));
    assert!(lines[1].starts_with("one,0.0,1.0,1200,1200,") && lines[1].contains(",,"));
    assert!(lines[2].starts_with("\"with, \"\"tokens\"\"\",0.0,") && lines[2].contains(",7,"));
}

#[test]
fn a_line_of_json_is_a_second_or_a_kept_sample_with_its_stages() {
    let run = made("one", 20);
    let slowest = run.timeline.clone().expect("a timeline").slowest;
    let text = json_lines(&[run]).expect("lines");
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("JSON");
    let of = |kind: &str| {
        lines
            .iter()
            .filter(|l| l["kind"] == kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("second").len(), 2);
    let samples = of("sample");
    assert_eq!(samples.len(), slowest.len());
    for (line, sample) in samples.iter().zip(slowest) {
        let stages = [
            "failed",
            "post",
            "network",
            "wait",
            "inference",
            "completion",
        ];
        let stages = stages.map(|stage| line[format!("{stage}_ns")].as_u64().expect("a stage"));
        assert_eq!(stages.iter().sum::<u64>(), sample.total_ns);
        assert_eq!(line["run"], "one");
        assert_eq!(line["connection"], format!("acc-01/{}", sample.connection));
    }
}

#[test]
fn a_run_without_a_timeline_is_named() {
    let mut run = made("bare", 10);
    run.timeline = None;
    let errors = [csv(std::slice::from_ref(&run)), json_lines(&[run])];
    for error in errors.map(|e| e.expect_err("no rows").to_string()) {
        assert!(error.starts_with("bare/timeline.json: ") && !error.contains('\n'));
    }
}
