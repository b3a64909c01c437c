//! Reads a run's token figures from LoadGen's detailed log.

use std::path::Path;

use anyhow::{Context, Result};
use loadgen_log::{DETAIL, Detail};
use serde::Serialize;

/// Two percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// A run in `llm.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// LoadGen's name of the scenario.
    pub scenario: String,
    /// LoadGen's verdict.
    pub valid: bool,
    /// Number of completed samples.
    pub samples: u64,
    /// Number of tokens in their answers.
    pub tokens: u64,
    /// Tokens per second, over LoadGen's duration.
    pub tokens_per_s: f64,
    /// Time to the first token; `None` in Offline, where LoadGen does not measure it.
    pub ttft_us: Option<Percentiles>,
    /// Time per token after the first; `None` in Offline.
    pub tpot_us: Option<Percentiles>,
    /// Time to the whole answer.
    pub latency_us: Percentiles,
}

/// Reads the detailed log in a run's folder.
pub fn read(folder: &Path) -> Result<Run> {
    let path = folder.join(DETAIL);
    let of = || path.display().to_string();
    of_log(&Detail::open(&path).with_context(of)?).with_context(of)
}

fn of_log(log: &Detail) -> Result<Run> {
    let number = |key: &str| {
        let value = log.number(key);
        value.with_context(|| format!("LoadGen has not logged {key}"))
    };
    let word = |key: &str| {
        let value = log.get(key);
        value.with_context(|| format!("LoadGen has not logged {key}"))
    };
    let both = |before: &str, behind: &str| -> Result<Percentiles> {
        let one = |p: &str| Ok::<_, anyhow::Error>(number(&format!("{before}{p}{behind}"))? / 1e3);
        Ok(Percentiles {
            p50: one("50.00")?,
            p99: one("99.00")?,
        })
    };
    let scenario = word("effective_scenario")?;
    let queries = number("result_query_count")?;
    let offline = scenario.eq_ignore_ascii_case("offline");
    // LoadGen logs rates instead of the number of tokens.
    let (samples, tokens, tokens_per_s) = if offline {
        let seconds = number("result_max_latency_ns")? / 1e9;
        let per_s = number("result_tokens_per_second")?;
        let samples = number("result_samples_per_second")? * seconds;
        (samples, per_s * seconds, per_s)
    } else {
        let per_ns = number("result_token_throughput")?;
        let tokens = per_ns * number("result_mean_latency_ns")? * queries;
        (
            queries,
            tokens,
            number("result_completed_tokens_per_second")?,
        )
    };
    let measured = |before, behind| (!offline).then(|| both(before, behind)).transpose();
    Ok(Run {
        scenario: scenario.to_owned(),
        valid: word("result_validity")? == "VALID",
        samples: samples.round() as u64,
        tokens: tokens.round() as u64,
        tokens_per_s,
        ttft_us: measured("result_first_token_", "_percentile_latency_ns")?,
        tpot_us: measured("result_time_per_output_token_", "_percentile_ns")?,
        latency_us: both("result_", "_percentile_latency_ns")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(of: &[(&str, &str)]) -> Result<Run> {
        let line = |(key, value): &(&str, &str)| {
            format!(":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 1.5}}\n")
        };
        let text: String = of.iter().map(line).collect();
        of_log(&Detail::read(text.as_bytes())?)
    }

    const SERVER: [(&str, &str); 12] = [
        ("effective_scenario", "\"Server\""),
        ("result_validity", "\"VALID\""),
        ("result_query_count", "64"),
        ("result_token_throughput", "0.00000002"),
        ("result_mean_latency_ns", "500000000"),
        ("result_completed_tokens_per_second", "31.5"),
        ("result_first_token_50.00_percentile_latency_ns", "90500"),
        ("result_first_token_99.00_percentile_latency_ns", "200000"),
        ("result_time_per_output_token_50.00_percentile_ns", "30000"),
        ("result_time_per_output_token_99.00_percentile_ns", "40000"),
        ("result_50.00_percentile_latency_ns", "600000"),
        ("result_99.00_percentile_latency_ns", "900000"),
    ];

    #[test]
    fn a_server_run_is_read_from_loadgens_own_names() {
        let run = parse(&SERVER).unwrap();
        assert_eq!((run.samples, run.tokens, run.valid), (64, 640, true));
        let ttft = run.ttft_us.unwrap();
        assert_eq!((ttft.p50, ttft.p99), (90.5, 200.0));
        assert_eq!(run.tpot_us.unwrap().p99, 40.0);
        assert_eq!(run.latency_us.p50, 600.0);
    }

    #[test]
    fn offline_has_no_first_tokens() {
        let run = parse(&[
            ("effective_scenario", "\"Offline\""),
            ("result_validity", "\"INVALID\""),
            ("result_query_count", "1"),
            ("result_max_latency_ns", "20000000000"),
            ("result_samples_per_second", "12.4"),
            ("result_tokens_per_second", "150.05"),
            ("result_50.00_percentile_latency_ns", "1000"),
            ("result_99.00_percentile_latency_ns", "2000"),
        ])
        .unwrap();
        assert_eq!((run.samples, run.tokens, run.valid), (248, 3001, false));
        assert_eq!((run.ttft_us, run.tpot_us), (None, None));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = parse(&SERVER[..11]).unwrap_err().to_string();
        assert!(
            error.contains("result_99.00_percentile_latency_ns"),
            "{error}"
        );
    }
}
