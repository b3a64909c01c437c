//! Formats times of stages and of tokens as tables.

use record::{CountRow, ScheduledToIssue, Stage, StageRow, StageTable, TokenRecord};

use super::numbers::{self as text, Table};
use crate::html::columns;

/// Explanation below the table of stages.
const NOTE: &str = "Means add up: stages up to completion make the total. Percentiles do not. \
Network is the round trip\nwithout the time spent on the accelerator: out and back together.";

/// Explanation of the row "scheduled -> issue", below the table.
fn before(s: &ScheduledToIssue) -> String {
    format!(
        "scheduled -> issue and those make LoadGen's mean, but for the {} that \
         QuerySamplesComplete\ntakes: LoadGen's clock stops as it begins. < is a bound: LoadGen does \
         not say when each was due.\n",
        text::time_us(s.told_us)
    )
}

/// Formats the table of stages with its explanation. `scheduled` adds the row from LoadGen's
/// scheduled time to the issue.
pub(super) fn stages(stages: &StageTable, scheduled: Option<&ScheduledToIssue>) -> String {
    let heading = "stage|p50|p90|p99|p99.9|max|mean|samples";
    let mut table = Table::new(&columns(heading));
    if let Some(s) = scheduled {
        let mut row = vec!["scheduled -> issue".to_owned()];
        let bounds = [s.p50_at_most_us, s.p90_at_most_us, s.p99_at_most_us];
        let bounds = bounds.into_iter();
        let bounds = bounds.chain([s.p999_at_most_us, s.max_at_most_us]);
        row.extend(bounds.map(|us| match us > 0.0 {
            true => format!("<{}", text::time_us(us)),
            // A bound of 0 means that no bound is known.
            false => "-".to_owned(),
        }));
        row.push(text::time_us(s.mean_us));
        row.push(text::grouped(s.count));
        table.row(row);
    }
    // Show the stage of failed attempts only if an attempt failed.
    let shown = |(stage, r): &(&Stage, &StageRow)| **stage != Stage::Failed || r.max_us > 0.0;
    for (stage, r) in stages.iter().filter(shown) {
        let mut row = vec![stage.label().to_owned()];
        row.extend(times(r));
        row.push(text::grouped(r.count));
        table.row(row);
    }
    let bounds = match scheduled {
        Some(s) => before(s),
        None => String::new(),
    };
    format!("{}{NOTE}\n{bounds}", table.text())
}

fn times(r: &StageRow) -> [String; 6] {
    [r.p50_us, r.p90_us, r.p99_us, r.p999_us, r.max_us, r.mean_us].map(text::time_us)
}

/// Formats the table of token times. `None` without token times.
pub(super) fn tokens(tokens: &TokenRecord) -> Option<String> {
    if tokens.times.is_empty() {
        return None;
    }
    let mut table = Table::new(&columns("tokens, our clock|p50|p90|p99|p99.9|max|mean"));
    for (time, r) in tokens.times.iter().filter(|(_, r)| r.count > 0) {
        let mut row = vec![time.label().to_owned()];
        row.extend(times(r));
        table.row(row);
    }
    Some(table.text())
}

/// Labelled facts on tokens, prompts and answers.
pub(super) fn token_facts(tokens: &TokenRecord) -> Vec<(&'static str, String)> {
    let (n, per_s) = (text::grouped(tokens.tokens), text::rate(tokens.per_s));
    let (stream, parts) = (&tokens.stream, text::three(tokens.parts.mean));
    let rate = format!("{n} answered: {per_s}/s; stream {stream}, {parts} parts an answer");
    let mut facts = vec![
        ("tokens", rate),
        ("prompts", count(&tokens.input)),
        ("answers", count(&tokens.output)),
    ];
    facts.extend(
        tokens
            .events
            .map(|row| ("events", format!("{} tokens", count(&row)))),
    );
    facts
}

fn count(row: &CountRow) -> String {
    let [min, max, p50, p99] = [row.min, row.max, row.p50, row.p99].map(text::grouped);
    let mean = text::three(row.mean);
    format!("{min} to {max}, mean {mean}, p50 {p50}, p99 {p99}")
}

#[cfg(test)]
mod tests {
    use qdl::{
        counters::{Histograms, SampleTimes},
        testkit::assert_has,
    };

    use super::*;

    fn histograms() -> Histograms {
        let mut h = Histograms::new();
        for i in 1..=1000u64 {
            h.record(&SampleTimes {
                issued_ns: 0,
                posted_ns: 900,
                seen_ns: 900 + 250_000 + i * 1000,
                completed_ns: 900 + 250_000 + i * 1000 + 1500,
                queue_us: i as u32,
                compute_us: 200,
                bytes_out: 64,
                bytes_in: 4,
                ..SampleTimes::default()
            });
        }
        h
    }

    #[test]
    fn what_lies_before_the_issue_stands_above_with_its_bounds() {
        let scheduled = ScheduledToIssue {
            mean_us: 42.0,
            told_us: 1.25,
            p50_at_most_us: 84.0,
            p99_at_most_us: 4_200.0,
            count: 1000,
            ..ScheduledToIssue::default()
        };
        let text = stages(&histograms().table(), Some(&scheduled));
        let lines: Vec<_> = text.lines().collect();
        let cells: Vec<_> = lines[1].split("  ").filter(|c| !c.is_empty()).collect();
        let cells: Vec<_> = cells.iter().map(|c| c.trim()).collect();
        assert_eq!(cells[..2], ["scheduled -> issue", "<84.0 us"]);
        assert_eq!(cells[3], "<4.20 ms");
        assert_eq!(cells[6..], ["42.0 us", "1,000"]);
        assert!(lines[2].starts_with("issue -> post"));
        assert_has(&text, &["the 1.25 us that QuerySamplesComplete"]);
        assert!(lines.iter().all(|l| l.len() <= 100), "{text}");
    }
}
