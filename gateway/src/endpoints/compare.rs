//! A client's result and a gateway's beside each other: counts, times, and whose time it is.

use std::{fmt::Write as _, path::PathBuf};

use super::client::{ClientResult, Series};
use crate::{
    run_file::{Answers, GatewayRun},
    totals::Percentiles,
};

/// From this share of a time on, the client limits what is measured.
const LARGE_SHARE: f64 = 0.1;

/// Arguments of `qdl endpoints compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareArgs {
    /// Folder that the gateway wrote with --output
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The client's report folder, or its performance/result_summary.json
    #[arg(value_name = "CLIENT")]
    client: PathBuf,
}

/// Prints the comparison. Returns whether both sides agree, and no stream was cut.
///
/// # Errors
/// A file cannot be read; the text names it.
pub fn command(args: &CompareArgs) -> Result<bool, String> {
    let run = GatewayRun::read(&args.run)?;
    let client = ClientResult::read(&args.client)?;
    let compared = Comparison::of(&client, &run);
    print!("{}", compared.text);
    Ok(compared.findings == 0)
}

/// A comparison's text, and the number of findings in it.
struct Comparison {
    text: String,
    findings: usize,
}

/// A line of the table, in the unit of its name.
struct Line {
    name: String,
    sides: [Option<f64>; 2],
    digits: usize,
}

impl Comparison {
    fn of(client: &ClientResult, run: &GatewayRun) -> Self {
        let mut out = Comparison {
            text: String::new(),
            findings: 0,
        };
        out.put(&format!(
            "{:28} {:>14} {:>14} {:>14}",
            "", "client", "gateway", "difference"
        ));
        for line in counts(client, run).iter().chain(&times(client, run)) {
            out.line(line);
        }
        for line in rates(client, run) {
            out.line(&line);
        }
        out.put("");
        out.put(match client.legacy_loadgen_window_duration_ns {
            Some(_) => {
                "The legacy LoadGen window counts: the client's qps and tps are over first issue to \
                 the end of the sample issued last (Poisson, as Inference reads them)."
            }
            None => {
                "The whole run counts: the client's qps and tps are over it (fixed concurrency, as \
                 Endpoints reads them)."
            }
        });
        out.whose_time(client, run);
        out.findings(client, run);
        out
    }

    fn put(&mut self, line: &str) {
        self.text += line.trim_end();
        self.text.push('\n');
    }

    fn line(&mut self, line: &Line) {
        let digits = line.digits;
        let shown = |value: Option<f64>| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        let [client, gateway] = line.sides;
        let more = client
            .zip(gateway)
            .map(|(client, gateway)| client - gateway);
        let more = more.map_or("-".to_owned(), |more| format!("{more:+.digits$}"));
        let (client, gateway) = (shown(client), shown(gateway));
        self.put(&format!(
            "{:28} {client:>14} {gateway:>14} {more:>14}",
            line.name
        ));
    }

    fn finding(&mut self, text: &str) {
        self.findings += 1;
        self.put(&format!("! {text}"));
    }

    /// Says how much of a time is the client's own.
    fn whose_time(&mut self, client: &ClientResult, run: &GatewayRun) {
        let mut largest: f64 = 0.0;
        let mut text = String::new();
        for (name, series, own) in series(client, run) {
            for (percentile, own_ns) in [(50.0, own.p50), (99.0, own.p99)] {
                let Some(seen) = at(series, percentile).filter(|_| own_ns > 0) else {
                    continue;
                };
                let (beyond_ns, share) =
                    (seen - own_ns as f64, 1.0 - own_ns as f64 / seen.max(1.0));
                largest = largest.max(share);
                let (ms, percent) = (beyond_ns / 1e6, 100.0 * share);
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "  {name} p{percentile:.0}: {ms:.2} ms, {percent:.1} %"
                );
            }
        }
        if text.is_empty() {
            return self.put("Neither side has times to compare.");
        }
        self.put("Client and HTTP, beyond the gateway's last look at each token:");
        self.text += &text;
        self.put(match largest > LARGE_SHARE {
            true => {
                "The client is a bottleneck here: give it more workers or cores, or measure at a \
                 lower concurrency."
            }
            false => "The client is no bottleneck.",
        });
    }

    fn findings(&mut self, client: &ClientResult, run: &GatewayRun) {
        let (cut, good) = (client.cut_streams(), client.good());
        if cut > 0 {
            self.finding(&format!(
                "{cut} of {good} completed samples have no finish_reason: their streams were cut, \
                 and the client counts them as completed. The gateway counts {} diverged answers \
                 and {} stalled clients.",
                run.diverged, run.stalled_clients
            ));
        }
        if client.n_samples_failed > 0 {
            self.finding(&format!(
                "{} samples failed: the client counts them as completed too, and Endpoints' check \
                 refuses the point.",
                client.n_samples_failed
            ));
        }
        if !client.complete {
            self.finding("the client's run is not complete.");
        }
        let own = run.requests.completed;
        if own > good {
            self.put(&format!(
                "The gateway completed {} more requests: a warm-up, an accuracy run, or another \
                 client. Start a gateway with a new --output for each point.",
                own - good
            ));
        } else if own < good {
            self.finding(&format!(
                "the gateway completed {} requests less than the client has: is this its run? \
                 ({} left by their client, {} records dropped)",
                good - own,
                run.requests.left,
                run.dropped_records
            ));
        }
    }
}

fn at(series: &Option<Series>, percentile: f64) -> Option<f64> {
    series.as_ref().and_then(|series| series.at(percentile))
}

fn counts(client: &ClientResult, run: &GatewayRun) -> [Line; 4] {
    let Answers {
        status_200,
        status_429,
        status_4xx,
        status_5xx,
    } = run.answers;
    let failed = status_429 + status_4xx + status_5xx;
    let line = |name: &str, client: Option<f64>, gateway: u64| Line {
        name: name.to_owned(),
        sides: [client, Some(gateway as f64)],
        digits: 0,
    };
    let of = |count: u64| Some(count as f64);
    [
        line(
            "requests issued",
            of(client.n_samples_issued),
            status_200 + failed,
        ),
        line(
            "requests completed",
            of(client.n_samples_completed),
            run.requests.completed,
        ),
        line(
            "requests failed",
            of(client.n_samples_failed),
            failed + run.diverged,
        ),
        line(
            "tokens of the answers",
            client.tokens(),
            run.requests.tokens,
        ),
    ]
}

/// The times that both sides have.
fn series<'a>(
    client: &'a ClientResult,
    run: &GatewayRun,
) -> [(&'static str, &'a Option<Series>, Percentiles); 2] {
    [
        ("TTFT", &client.ttft, run.requests.ttft_ns),
        ("latency", &client.latency, run.requests.latency_ns),
    ]
}

fn times(client: &ClientResult, run: &GatewayRun) -> Vec<Line> {
    let mut lines = Vec::new();
    for (name, series, own) in series(client, run) {
        let Percentiles { p50, p90, p99, .. } = own;
        for (percentile, own_ns) in [(50.0, p50), (90.0, p90), (99.0, p99)] {
            let own = (own_ns > 0).then_some(own_ns as f64 / 1e6);
            lines.push(Line {
                name: format!("{name} p{percentile:.0}, ms"),
                sides: [at(series, percentile).map(|ns| ns / 1e6), own],
                digits: 2,
            });
        }
    }
    lines
}

fn rates(client: &ClientResult, run: &GatewayRun) -> Vec<Line> {
    let own = run.requests.window_ns;
    let windows = [
        ("whole run", client.duration_ns, own.whole),
        (
            "legacy LoadGen window",
            client.legacy_loadgen_window_duration_ns,
            own.legacy_loadgen,
        ),
    ];
    let mut lines = Vec::new();
    for (name, seen, own) in windows {
        let seconds = [seen, Some(own)].map(|ns| ns.filter(|ns| *ns > 0).map(|ns| ns as f64 / 1e9));
        let tokens = [client.tokens(), Some(run.requests.tokens as f64)];
        let rate = |n: usize| tokens[n].zip(seconds[n]).map(|(tokens, s)| tokens / s);
        lines.push(Line {
            name: format!("{name}, s"),
            sides: seconds,
            digits: 2,
        });
        lines.push(Line {
            name: "  tokens/s".to_owned(),
            sides: [rate(0), rate(1)],
            digits: 1,
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MS: u64 = 1_000_000;

    fn run() -> GatewayRun {
        let mut run = GatewayRun::default();
        run.answers.status_200 = 300;
        run.requests.completed = 300;
        run.requests.tokens = 19_200;
        let times = |ms: u64| Percentiles {
            p50: ms * MS,
            p90: ms * MS,
            p99: ms * MS,
            max: ms * MS,
        };
        run.requests.ttft_ns = times(20);
        run.requests.latency_ns = times(300);
        run.requests.window_ns.whole = 10_000 * MS;
        run.requests.window_ns.legacy_loadgen = 8_000 * MS;
        run
    }

    fn client(ttft_ms: u64, stops: u64) -> ClientResult {
        let series = |ms: u64| {
            let ns = ms * MS;
            json!({"total": ns * 300, "percentiles": {"50.0": ns, "90.0": ns, "99": ns}})
        };
        let result = json!({
            "n_samples_issued": 300, "n_samples_completed": 300, "n_samples_failed": 0,
            "duration_ns": 12_000 * MS, "complete": true, "ttft": series(ttft_ms),
            "latency": series(305), "output_sequence_lengths": {"total": 19_200.0},
            "legacy_loadgen_window_duration_ns": null, "tpot": {}, "unknown": [1],
            "finish_reason_counts": {"stop": stops, "length": 100, "other": 0},
        });
        serde_json::from_value(result).expect("a result")
    }

    #[test]
    fn both_sides_agree_and_the_window_that_counts_is_named() {
        let compared = Comparison::of(&client(21, 200), &run());
        assert_eq!(compared.findings, 0, "{}", compared.text);
        let text = compared.text.split_whitespace().collect::<Vec<_>>();
        let text = text.join(" ");
        for words in [
            "TTFT p99, ms 21.00 20.00 +1.00",
            "tokens/s 1600.0 1920.0 -320.0",
            "tokens/s - 2400.0 -",
            "The whole run counts",
            "TTFT p50: 1.00 ms, 4.8 %",
            "no bottleneck",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let poisson = ClientResult {
            legacy_loadgen_window_duration_ns: Some(8_000 * MS),
            ..client(21, 200)
        };
        let text = Comparison::of(&poisson, &run()).text;
        assert!(text.contains("The legacy LoadGen window counts"), "{text}");
    }

    #[test]
    fn a_slow_client_and_cut_streams_are_named() {
        let compared = Comparison::of(&client(40, 192), &run());
        assert_eq!(compared.findings, 1, "{}", compared.text);
        assert!(
            compared.text.contains("is a bottleneck"),
            "{}",
            compared.text
        );
        let cut = "! 8 of 300 completed samples have no finish_reason";
        assert!(compared.text.contains(cut), "{}", compared.text);

        let mut other = run();
        other.requests.completed = 299;
        let text = Comparison::of(&client(21, 200), &other).text;
        assert!(text.contains("1 requests less"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_result_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("result_summary.json");
        std::fs::write(&file, "[").expect("a file");
        for path in [folder.path(), &file] {
            let error = ClientResult::read(path).expect_err("no JSON");
            assert!(error.contains("result_summary.json"), "{error}");
        }
        let error = GatewayRun::read(folder.path()).expect_err("no file");
        assert!(error.contains("gateway.json"), "{error}");
        run().write(folder.path()).expect("writes");
        assert_eq!(GatewayRun::read(folder.path()), Ok(run()));
    }
}
