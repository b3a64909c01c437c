//! Runs as rows: seconds and kept samples.

use crate::common::{RunShape, run};
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

#[test]
fn a_row_is_a_second_and_all_rows_are_the_timeline() {
    // 11 s and a half.
    let run = made("one", 115);
    let text = csv(std::slice::from_ref(&run)).expect("rows");
    let lines = text.split_terminator("\r\n");
    let table: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let columns = "run,time_s,length_s,issued_samples,completed_samples,";
    assert!(text.starts_with(columns), "{:?}", table[0]);
    assert_eq!(table[0].last(), Some(&"acc-01_samples"));
    assert!(!text.contains("tokens"), "the run has none");
    assert_eq!(table.len(), 1 + 12);
    assert_eq!(table[2][..3], ["one", "1.0", "1.0"]);
    assert_eq!(table[12][..3], ["one", "11.0", "0.5"]);
    let count = |text: &str| text.parse::<u64>().expect("a count");
    let sum = |column: usize| table[1..].iter().map(|row| count(row[column])).sum::<u64>();
    let ticks = run.timeline.expect("a timeline").ticks;
    let completed: u64 = ticks.iter().map(|t| t.completed).sum();
    assert_eq!([sum(4), sum(table[0].len() - 1)], [completed; 2]);
}

#[test]
fn runs_share_a_heading_and_a_run_without_a_column_leaves_it_empty() {
    let mut second = made("with, \"tokens\"", 10);
    second.summary.run.tokens = Some(record::TokenRecord {
        events: Some(record::CountRow {
            mean: 3.719,
            p99: 5,
            ..record::CountRow::default()
        }),
        ..record::TokenRecord::default()
    });
    second.timeline.as_mut().expect("a timeline").ticks[0].tokens = 7;
    let text = csv(&[made("one", 10), second]).expect("rows");
    let lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 3);
    let columns = ",completed_tokens,tokens_per_event_mean,tokens_per_event_p99,p50_us,";
    assert!(lines[0].contains(columns));
    assert!(lines[1].starts_with("one,0.0,1.0,1200,1200,") && lines[1].contains(",,"));
    assert!(
        lines[2].starts_with("\"with, \"\"tokens\"\"\",0.0,") && lines[2].contains(",7,3.719,5,")
    );
}

#[test]
fn a_line_of_json_is_a_second_or_a_kept_sample_with_its_stages() {
    let run = made("one", 20);
    let slowest = run.timeline.clone().expect("a timeline").slowest;
    let text = json_lines(&[run]).expect("lines");
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("JSON");
    let of = |kind: &'static str| lines.iter().filter(move |l| l["kind"] == kind);
    assert_eq!(of("second").count(), 2);
    assert_eq!(of("sample").count(), slowest.len());
    for (line, sample) in of("sample").zip(slowest) {
        let stages = "failed_attempts issue_to_post network queue compute completion".split(' ');
        let stages = stages.map(|stage| line[format!("{stage}_ns")].as_u64().expect("a stage"));
        assert_eq!(stages.sum::<u64>(), sample.total_ns);
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
