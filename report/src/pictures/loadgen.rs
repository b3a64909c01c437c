//! LoadGen's result: its rates and latencies, and the values at its limits.

use record::{LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord, RunFolder};

use super::or_dash;
use crate::{
    model::{Cell, Part, absent, figure, paragraph, row, table},
    text::{counted, grouped, percent, rate, time_us},
};

/// Scheduled and completed rates, the percentile of the result, errors and warnings in one line.
pub fn rates(l: &LoadgenRecord) -> String {
    let mut said = Vec::new();
    match (l.scheduled_per_s, l.completed_per_s) {
        (Some(scheduled), Some(completed)) => said.push(format!(
            "{}/s scheduled, {}/s completed ({})",
            rate(scheduled),
            rate(completed),
            percent(completed / scheduled)
        )),
        (None, Some(completed)) => said.push(format!("{}/s completed", rate(completed))),
        _ => {}
    }
    if let (Some(percentile), Some(us)) = (l.percentile, l.percentile_us) {
        let early = l.early_stopping.as_ref();
        let estimate = early.and_then(|early| early.estimate_us).map(time_us);
        let estimate = estimate.map(|us| format!(" ({us} by early stopping's estimate)"));
        let (us, estimate) = (time_us(us), estimate.unwrap_or_default());
        said.push(format!("p{percentile} latency {us}{estimate}"));
        let of_tokens = early.and_then(|early| early.ttft_estimate_us.zip(early.tpot_estimate_us));
        if let Some((ttft, tpot)) = of_tokens {
            let [ttft, tpot] = [ttft, tpot].map(time_us);
            said.push(format!(
                "p{percentile} TTFT {ttft}, TPOT {tpot} by early stopping's estimates"
            ));
        }
    }
    said.extend(
        l.tokens_per_s
            .map(|tokens| format!("{} tokens/s", rate(tokens))),
    );
    if let Some(over) = l.over_limit.filter(|over| *over > 0) {
        said.push(format!("{} over the bound", queries(over)));
    }
    let many = |n: u64, what: &str| match n {
        0 => format!("no {what}s"),
        n => counted(n, what),
    };
    said.extend([many(l.errors, "error"), many(l.warnings, "warning")]);
    said.join(", ")
}

/// LoadGen's warnings, each once with its count.
pub fn warnings(l: &LoadgenRecord) -> Vec<String> {
    let mut said: Vec<(&str, u64)> = Vec::new();
    for message in &l.warning_messages {
        match said.iter_mut().find(|(other, _)| other == message) {
            Some((_, times)) => *times += 1,
            None => said.push((message, 1)),
        }
    }
    let line = |(message, times)| match times {
        1 => format!("LoadGen warned: {message}"),
        n => format!("LoadGen warned: {message} ({n} times)"),
    };
    said.into_iter().map(line).collect()
}

/// `1 query`, `2 queries`.
fn queries(n: u64) -> String {
    format!(
        "{} {}",
        grouped(n),
        if n == 1 { "query" } else { "queries" }
    )
}

pub fn amount(unit: LimitUnit, n: f64) -> String {
    match unit {
        LimitUnit::Us => time_us(n),
        LimitUnit::Queries => queries(n.round() as u64),
        LimitUnit::Samples => counted(n.round() as u64, "sample"),
    }
}

fn limit_row(limit: &LimitRecord) -> Vec<Cell> {
    let bound = if limit.at_most { "at most" } else { "at least" };
    // Early stopping that is met has no number.
    let asked = Some(limit.limit).filter(|n| *n > 0.0);
    let asked = asked.map(|n| format!("{bound} {}", amount(limit.unit, n)));
    let (colour, word) = match limit.met {
        true => ("good", "met"),
        false => ("bad", "NOT MET"),
    };
    let share = limit
        .was
        .filter(|_| limit.limit > 0.0)
        .map(|was| was / limit.limit);
    let drawn = share.unwrap_or(f64::from(u8::from(limit.met)));
    let of_it = or_dash(share.map(percent));
    vec![
        Cell::words(&limit.name),
        Cell::figure(or_dash(limit.was.map(|was| amount(limit.unit, was)))),
        Cell::figure(or_dash(asked)),
        Cell::Bar(vec![(colour, drawn, of_it.clone())]),
        Cell::figure(of_it),
        Cell::words(word),
        Cell::words(&limit.setting),
    ]
}

fn limits(l: &LoadgenRecord) -> Part {
    let early = l.early_stopping.as_ref().map(|early| LimitRecord {
        name: "early stopping".to_owned(),
        setting: "min_query_count".to_owned(),
        unit: LimitUnit::Queries,
        limit: early.needs.filter(|_| !early.met).map_or(0.0, |n| n as f64),
        was: early.queries.map(|n| n as f64),
        at_most: false,
        met: early.met,
    });
    let rows = l.limits.iter().chain(&early).map(limit_row).collect();
    table("limit|measured|required||of the limit||setting", rows)
}

/// LoadGen's latencies. Offline has one query, and a latency for each of its samples.
fn latencies(l: &LoadgenRecord) -> Part {
    let samples = l
        .limits
        .iter()
        .find(|limit| limit.unit == LimitUnit::Samples);
    let samples = samples.and_then(|limit| limit.was).map(|n| n as u64);
    let (of, count) = match samples {
        Some(n) if l.scenario == "Offline" => ("samples", Some(n)),
        _ => ("queries", l.queries),
    };
    let of_row = |(name, times): (&str, Option<LoadgenLatency>)| {
        let t = times?;
        let times = [t.p50_us, t.p90_us, t.p99_us, t.p999_us, t.max_us, t.mean_us];
        let count = [or_dash(count.map(grouped))];
        Some(row(
            Cell::words(name),
            times.map(time_us).into_iter().chain(count),
        ))
    };
    let rows = [
        ("latency, as scheduled", l.latency),
        ("TTFT, as scheduled", l.ttft),
        ("TPOT", l.tpot),
    ];
    let rows = rows.into_iter().filter_map(of_row).collect();
    table(
        &format!("LoadGen's own|p50|p90|p99|p99.9|max|mean|{of}"),
        rows,
    )
}

/// Where LoadGen's latency differs from the stage `total`.
fn ends(l: &LoadgenRecord) -> Option<String> {
    match l.late_mean_us {
        // `total` ends after LoadGen's latency, so the mean delay is at least `late`.
        Some(late) if late > 0.0 => Some(format!(
            "Samples were issued {} or more after their scheduled time on average: LoadGen counts \
             that.",
            time_us(late)
        )),
        Some(less) if less < 0.0 => Some(format!(
            "LoadGen's mean is {} below that of total: its time of a sample ends as \
             QuerySamplesComplete begins, total as it returns. It issues the next query of a \
             stream while that call still runs, so totals overlap.",
            time_us(-less)
        )),
        _ => None,
    }
}

/// The values at LoadGen's limits, and LoadGen's own latencies if it is over.
pub fn picture(run: &RunFolder) -> Part {
    let Some(l) = &run.summary.run.loadgen else {
        return absent("LoadGen came to no result: there is no limit to compare with.");
    };
    let mut parts = match l.limits.is_empty() {
        true => vec![absent(
            "LoadGen judged nothing: there is no limit to compare with.",
        )],
        false => vec![limits(l)],
    };
    if l.latency.is_some() {
        parts.push(latencies(l));
        parts.extend(ends(l).map(paragraph));
    }
    let early = l.early_stopping.iter().map(|early| early.text.clone());
    let warnings: Vec<String> = warnings(l).into_iter().chain(early).collect();
    if !warnings.is_empty() {
        parts.push(Part::List(warnings));
    }
    let title = "Distance to each of LoadGen's limits";
    figure("limits", title, parts, "A full bar is the limit.")
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;
    use record::{RunRecord, Summary};
    use serde_json::{Value, json};

    use super::*;
    use crate::terminal;

    fn text(result: Value) -> String {
        let summary = Summary {
            run: RunRecord {
                loadgen: Some(serde_json::from_value(result).expect("LoadGen's result")),
                ..RunRecord::default()
            },
            ..Summary::default()
        };
        terminal::parts(&[picture(&RunFolder::of("", &summary, None))])
    }

    #[test]
    fn loadgens_result_looks_like_this() {
        let latency = json!({"mean_us": 9_000.0, "p50_us": 8_000.0, "p90_us": 15_000.0,
            "p99_us": 19_000.0, "p999_us": 19_500.0, "max_us": 21_000.0});
        let (allocated, failed) = ("Logging allocation detected", "CAS failed.");
        let result = json!({
            "scenario": "Server", "mode": "PerformanceOnly", "valid": false, "queries": 1_480,
            "over_limit": 351, "scheduled_per_s": 798.0, "completed_per_s": 475.0,
            "latency": latency, "late_mean_us": 41.0, "limits": [
                {"name": "p99 latency", "setting": "a_setting", "unit": "us", "limit": 10_000.0,
                 "was": 19_000.0, "at_most": true, "met": false},
                {"name": "duration", "setting": "a_setting", "unit": "us", "limit": 600_000.0,
                 "met": true},
                {"name": "queries", "setting": "a_setting", "unit": "queries", "limit": 100.0,
                 "was": 1_480.0, "met": true},
            ],
            "early_stopping": {"met": false, "queries": 1_480, "needs": 39_688, "text": "Too few."},
            "errors": 1, "warnings": 3, "warning_messages": [allocated, failed, allocated],
        });
        let expected = "
Distance to each of LoadGen's limits
limit                measured                 required  of the limit           setting
p99 latency           19.0 ms          at most 10.0 ms         190 %  NOT MET  a_setting
duration                    -          at least 600 ms             -  met      a_setting
queries         1,480 queries     at least 100 queries    14.8 times  met      a_setting
early stopping  1,480 queries  at least 39,688 queries        3.73 %  NOT MET  min_query_count
LoadGen's own              p50      p90      p99    p99.9      max     mean  queries
latency, as scheduled  8.00 ms  15.0 ms  19.0 ms  19.5 ms  21.0 ms  9.00 ms    1,480
Samples were issued 41.0 us or more after their scheduled time on average: LoadGen counts that.
- LoadGen warned: Logging allocation detected (2 times)
- LoadGen warned: CAS failed.
- Too few.
";
        assert_eq!(text(result.clone()), expected);
        let line = "798/s scheduled, 475/s completed (59.5 %), 351 queries over the bound, 1 \
                    error, 3 warnings";
        let result: LoadgenRecord = serde_json::from_value(result).expect("LoadGen's result");
        assert_eq!(rates(&result), line);
    }

    #[test]
    fn the_percentile_of_a_stream_is_its_result_and_offlines_latencies_are_of_samples() {
        let line = |early: Value| {
            let result = json!({"percentile": 90.0, "percentile_us": 2_120.0,
                                "early_stopping": early});
            rates(&serde_json::from_value(result).expect("LoadGen's result"))
        };
        let said = line(json!({"estimate_us": 2_140.0}));
        assert!(said.starts_with("p90 latency 2.12 ms (2.14 ms by early stopping's estimate), no"));
        // With tokens, the estimates are not of the latency.
        let said = line(json!({"ttft_estimate_us": 8_540.0, "tpot_estimate_us": 310.0}));
        assert_has(
            &said,
            &["p90 TTFT 8.54 ms, TPOT 310 us by early stopping's estimates"],
        );
        let text = text(json!({
            "scenario": "Offline", "queries": 1, "latency": {"max_us": 21_000.0},
            "late_mean_us": -30.5,
            "limits": [{"name": "samples", "unit": "samples", "limit": 100.0, "was": 660.0}],
        }));
        let below = "LoadGen's mean is 30.5 us below that of total";
        assert_has(&text, &["mean  samples\n", "     660\n", below]);
    }
}
