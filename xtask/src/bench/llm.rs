//! `bench llm`: a language model's server behind the library, and behind a SUT as others write it.
//!
//! ```text
//!  ours     LoadGen, frontend --TCP--> accelerator, engine http --HTTP--> pretended server
//!  Python   LoadGen, sut.py   -----------------------------------HTTP--> pretended server
//! ```
//!
//! The server pretends: a first token after so long, the others at a pace, each an event of its
//! own, whatever the load; so what differs is what the ways to it cost. Both ways have the same
//! cores, LoadGen, seeds, prompts' lengths and limits, and take turns.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::{
    idle::cpu_s,
    pair::{Nodes, Pair, median, write},
};
use crate::process::{self, Running};

/// Requests a second.
const RATES: [u32; 4] = [50, 100, 200, 400];
/// Turns of each.
const TURNS: usize = 3;
/// Length of one.
const SECONDS: u32 = 10;
const PROMPT: u32 = 128;
const TOKENS: u32 = 64;
/// Samples of the data set.
const COUNT: u32 = 1024;
const PATIENCE: Duration = Duration::from_secs(120);
/// What the Python SUT imports, from PyPI.
const PACKAGES: [&str; 4] = ["mlcommons-loadgen", "aiohttp", "uvloop", "orjson"];

/// What one run came to.
#[derive(Clone, Copy)]
struct Came {
    samples_per_s: f64,
    tokens_per_s: f64,
    ttft_p99_ms: f64,
    tpot_p99_ms: f64,
    /// Processor time of all programs on the way, the server's left out.
    cpu_us_per_token: f64,
}

/// Prints the table and writes `target/bench/llm.json`.
///
/// # Errors
/// A program cannot be built or ended early.
pub fn run(root: &Path) -> Result<()> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "qdl-bench"]);
    let status = process::run("cargo build", &mut build, PATIENCE * 30)?;
    ensure!(status.success(), "cargo build: {status}");
    let python = python(root)?;
    let mut server = Command::new(process::target(root).join("release/qdl-bench"));
    server.args(["llm-server", "--first-ms", "5", "--step-ms", "2"]);
    let mut server = Running::start("server", server.stdout(Stdio::piped()))?;
    let mut line = String::new();
    let stdout = server.stdout().context("the server has no output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    let url = format!("http://{}", line.trim());
    let engine = format!(
        "{{kind: http, http: {{url: \"{url}\", dialect: vllm, model: m, vocab: 32000, \
         ignore_eos: true, max_tokens: {TOKENS}}}}}"
    );
    let model = format!(
        "{{name: pretended, inputs: [{{name: ids, dtype: i32, shape: [{PROMPT}], ragged: true}}], \
         output: {{name: tokens, dtype: i32, shape: [{TOKENS}], ragged: true}}}}"
    );
    let pair = Pair::start(
        root,
        &Nodes {
            name: "llm",
            accelerator_model: &model,
            frontend: &format!(
                "model: {model}\ndataset: {{kind: tokens, count: {COUNT}, min_len: {PROMPT}, \
                 vocab: 32000}}\n"
            ),
            engine: &engine,
            connections: 2,
        },
    )?;
    println!(
        "\n{:>7}  {:<7} {:>10} {:>10} {:>13} {:>13} {:>14}",
        "asked/s", "way", "samples/s", "tokens/s", "TTFT p99 ms", "TPOT p99 ms", "CPU us a token"
    );
    let mut rows = Vec::new();
    for rate in RATES {
        let mut came: [Vec<Came>; 2] = Default::default();
        for _ in 0..TURNS {
            came[0].push(ours(&pair, rate)?);
            came[1].push(theirs(root, &python, &url, rate)?);
        }
        for (way, came) in ["ours", "Python"].into_iter().zip(&came) {
            let of = |f: fn(&Came) -> f64| median(&mut came.iter().map(f).collect::<Vec<_>>());
            let row = Came {
                samples_per_s: of(|c| c.samples_per_s),
                tokens_per_s: of(|c| c.tokens_per_s),
                ttft_p99_ms: of(|c| c.ttft_p99_ms),
                tpot_p99_ms: of(|c| c.tpot_p99_ms),
                cpu_us_per_token: of(|c| c.cpu_us_per_token),
            };
            println!(
                "{rate:>7}  {way:<7} {:>10.1} {:>10.0} {:>13.2} {:>13.2} {:>14.1}",
                row.samples_per_s,
                row.tokens_per_s,
                row.ttft_p99_ms,
                row.tpot_p99_ms,
                row.cpu_us_per_token
            );
            rows.push(json!({
                "asked_per_s": rate, "way": way, "samples_per_s": row.samples_per_s,
                "tokens_per_s": row.tokens_per_s, "ttft_p99_ms": row.ttft_p99_ms,
                "tpot_p99_ms": row.tpot_p99_ms, "cpu_us_per_token": row.cpu_us_per_token,
            }));
        }
    }
    println!(
        "Prompts of {PROMPT} ids, answers of {TOKENS}; the server: 5 ms to the first token, 2 ms \
         to each other.\nMedians of {TURNS} turns of {SECONDS} s."
    );
    server.end();
    write(root, "llm", &rows)
}

/// A Python with what the SUT imports, beside the one of the setup.
fn python(root: &Path) -> Result<PathBuf> {
    let folder = root.join(".deps/python-sut");
    let python = folder.join("bin/python");
    if !python.exists() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(&folder);
        let status = process::run("python3 -m venv", &mut venv, PATIENCE)?;
        ensure!(status.success(), "python3 -m venv: {status}");
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet"]).args(PACKAGES);
    let status = process::run("pip install", &mut pip, PATIENCE * 5)?;
    ensure!(status.success(), "pip install: {status}");
    Ok(python)
}

fn ours(pair: &Pair, rate: u32) -> Result<Came> {
    let (rate, seconds) = (rate.to_string(), SECONDS.to_string());
    let mut arguments = vec!["--scenario", "server", "--target-qps", &rate];
    arguments.extend(["--duration-s", &seconds]);
    for setting in [
        "use_token_latencies=1",
        "ttft_latency=2000",
        "tpot_latency=100",
        "min_query_count=1",
    ] {
        arguments.extend(["--set", setting]);
    }
    let far = pair.accelerator();
    let before = cpu_s(far)?;
    let near = cpu_until_end(&mut pair.begin(&arguments)?)?;
    let cpu = near + cpu_s(far)? - before;
    figures(&pair.output(), cpu)
}

fn theirs(root: &Path, python: &Path, url: &str, rate: u32) -> Result<Came> {
    let out = root.join("target/bench/llm/python");
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let mut command = Command::new(python);
    command
        .arg(root.join("bench/python/sut.py"))
        .args(["--url", url, "--qps", &rate.to_string()])
        .args(["--seconds", &SECONDS.to_string()])
        .args(["--count", &COUNT.to_string()])
        .args(["--prompt", &PROMPT.to_string()])
        .args(["--tokens", &TOKENS.to_string(), "--out"])
        .arg(&out)
        .stdout(Stdio::null());
    let cpu = cpu_until_end(&mut Running::start("sut.py", &mut command)?)?;
    figures(&out, cpu)
}

/// Processor time of a program, looked at until it ends.
fn cpu_until_end(running: &mut Running) -> Result<f64> {
    let until = Instant::now() + PATIENCE;
    let mut cpu = 0.0;
    loop {
        if let Ok(now) = cpu_s(running.id()) {
            cpu = now.max(cpu);
        }
        match running.ended()? {
            Some(status) if matches!(status.code(), Some(0 | 1)) => return Ok(cpu),
            Some(status) => bail!("a run ended with {status}"),
            None if Instant::now() > until => bail!("a run did not end in {PATIENCE:?}"),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// From LoadGen's own summary, which both ways have.
fn figures(folder: &Path, cpu_s: f64) -> Result<Came> {
    let path = folder.join("mlperf_log_summary.txt");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let figure = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|l| {
            let (key, value) = l.split_once(':')?;
            (key.trim() == name).then(|| value.trim().parse().ok())?
        });
        line.with_context(|| format!("{}: no line `{name}`", path.display()))
    };
    let tokens_per_s = figure("Completed tokens per second")?;
    let samples_per_s = figure("Completed samples per second")?;
    let tokens = tokens_per_s * f64::from(SECONDS);
    Ok(Came {
        samples_per_s,
        tokens_per_s,
        ttft_p99_ms: figure("99.00 percentile first token latency (ns)")? / 1e6,
        tpot_p99_ms: figure("99.00 percentile time to output token (ns)")? / 1e6,
        cpu_us_per_token: cpu_s * 1e6 / tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_loadgen_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "Completed samples per second    : 17.92\n\
                    Completed tokens per second: 579.51\n\
                    99.00 percentile first token latency (ns)   : 111312330\n\
                    99.00 percentile time to output token (ns)   : 2007821\n";
        fs::write(folder.path().join("mlperf_log_summary.txt"), text).expect("written");
        let came = figures(folder.path(), 0.5).expect("all there");
        assert!((came.ttft_p99_ms - 111.312_33).abs() < 1e-9);
        assert!((came.cpu_us_per_token - 0.5e6 / 5795.1).abs() < 1e-9);
        let bare = tempfile::tempdir().expect("a folder");
        assert!(figures(bare.path(), 0.5).is_err());
    }
}
