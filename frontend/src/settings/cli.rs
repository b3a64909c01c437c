//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{
    Parser,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use frontend_config::Verify;
use loadgen_bridge::{Scenario, TestMode};
use program::cli::Screen;

use crate::loadgen::exit::HELP;

const LIVE_ADDRESS: &str = "127.0.0.1:9417";

/// Runs LoadGen on this node, the frontend, and sends its samples to accelerators over the network.
///
/// `qdl init --model M.onnx --samples FILE` writes configurations for your own model, and `qdl
/// topology --yaml` writes one for this machine's NICs. `qdl tune` finds the highest rate at which
/// runs are VALID, `qdl report` compares runs, and `qdl submit` builds a submission.
///
/// Each run writes a run folder: LoadGen's logs, summary.json, latency histograms, and the page
/// report.html.
#[derive(Clone, Debug, Parser)]
#[command(name = "frontend", after_help = HELP, max_term_width = 100)]
pub struct Args {
    /// Configuration of the frontend, a YAML file, for example configs/demo/frontend.yaml
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,

    /// Folder that relative paths in the configuration start from [default: the configuration's
    /// folder]
    #[arg(long, value_name = "DIR", hide = true)]
    pub relative_to: Option<PathBuf>,

    /// Open everything that the run needs except the accelerators, print the planned run and its
    /// resources, and end before any sample is sent. With --local, also open the engine and its
    /// model
    #[arg(long)]
    pub check: bool,

    /// LoadGen's scenario: how queries arrive [default: loadgen.scenario of the configuration]
    #[arg(long, value_parser = one_of(SCENARIOS), value_name = "SCENARIO")]
    pub scenario: Option<Scenario>,

    /// LoadGen's mode: what the run measures [default: performance, unless user.conf sets it]
    #[arg(long, value_parser = one_of(MODES), value_name = "MODE")]
    pub mode: Option<TestMode>,

    /// Run LoadGen, the data set and the engine in this process, without a network: the baseline
    /// for the cost of the network
    #[arg(long)]
    pub local: bool,

    /// Run folder, for logs, summary.json, histograms and report.html [default: a new folder
    /// DATE-TIME-SCENARIO in loadgen.output_dir of the configuration, else in results/]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Replace the finished run in the folder of --output. If the new run does not finish, the old
    /// run stays and the new one goes to the subfolder unfinished-run
    #[arg(long)]
    pub force: bool,

    /// Server: target rate in queries per second, one sample each; with --mode find-peak, the first
    /// rate of the search. Offline: expected samples per second, which set the size of the one
    /// query. SingleStream and MultiStream: expected queries per second, which set how many queries
    /// LoadGen prepares; LoadGen issues each query when the previous one is complete
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub target_qps: Option<f64>,

    /// Minimum duration of the run, in seconds (LoadGen's min_duration). Server, SingleStream and
    /// MultiStream: LoadGen issues queries for this time. Offline: the one query is sized to last
    /// this time at --target-qps; if samples complete faster, the run is INVALID; with 0, --samples
    /// alone sets the size
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub duration_s: Option<f64>,

    /// Minimum number of queries (LoadGen's min_query_count): one sample each in Server and
    /// SingleStream, several samples each in MultiStream. Offline: minimum number of samples in the
    /// one query
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub samples: Option<u64>,

    /// LoadGen's user.conf: settings by model and scenario [default: loadgen.user_conf of the
    /// configuration]
    #[arg(long, value_name = "FILE")]
    pub user_conf: Option<PathBuf>,

    /// LoadGen's audit.config, which overrides all other settings [default: loadgen.audit_config of
    /// the configuration, else none]
    #[arg(long, value_name = "FILE")]
    pub audit_config: Option<PathBuf>,

    /// Run a compliance test of the round, for example TEST06, with its official audit.config: the
    /// file for all models, else the file for the configured model. --checker names the checkout;
    /// nothing is downloaded
    #[arg(long, value_name = "TEST", conflicts_with = "audit_config")]
    pub compliance: Option<String>,

    /// Checkout of mlcommons/inference, for --compliance [default: $QDL_MLPERF_CHECKOUT]
    #[arg(long, value_name = "DIR")]
    pub checker: Option<PathBuf>,

    /// Before the run, check the rules of this round (docs/rules.md) and refuse a run that breaks
    /// one; the error names the rule. ROUND is a name in configs/rounds or the path of a .yaml file
    #[arg(long, value_name = "ROUND")]
    pub submission: Option<String>,

    /// Set a field of LoadGen's TestSettings, or enable_trace, for example --set
    /// min_duration_ms=1000. Overrides all other settings except those of audit.config; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,

    /// Compare each response with the value computed from its sample. The accelerators must run the
    /// engine of this name, `digest` or `tokens` [default: verify of the configuration]
    #[arg(long, value_parser = one_of(CHECKS), value_name = "HOW")]
    pub verify: Option<Verify>,

    /// Time to wait for an accelerator that is not there yet, in milliseconds, at most 3600000
    /// [default: deadlines.connect_ms of the configuration]
    // At most one hour, like the configuration key.
    #[arg(long, value_name = "MS", conflicts_with = "local",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub connect_ms: Option<u64>,

    /// Time to warm up connections before LoadGen starts its clock, in milliseconds; 0 skips the
    /// warm-up [default: warm_up.budget_ms of the configuration]
    // At most one hour, like the configuration key.
    #[arg(long, value_name = "MS", conflicts_with = "local",
          value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub warm_up_ms: Option<u64>,

    /// Seed of a generated data set, `random` or `tokens` [default: dataset.seed of the
    /// configuration]. LoadGen's own seeds are fields of --set
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Serve a live page of the run and /metrics at this address; --live without a value means
    /// 127.0.0.1:9417. A loopback address is open to browsers on this machine. Any other address
    /// needs a key: open the URL that the file live.url in the run folder contains
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1,
          default_missing_value = LIVE_ADDRESS, value_parser = address)]
    pub live: Option<SocketAddr>,

    /// Print only the summary, as JSON, on standard output; with --check, the planned run
    #[arg(long)]
    pub json: bool,

    /// Screen options.
    #[command(flatten)]
    pub screen: Screen,
}

/// A value of a flag, with its name and its help.
pub type FlagValue<T> = (T, &'static str, &'static str);

/// LoadGen's scenarios, as flags.
pub const SCENARIOS: [FlagValue<Scenario>; 4] = [
    (
        Scenario::Server,
        "server",
        "Queries of one sample, at Poisson-distributed times",
    ),
    (Scenario::Offline, "offline", "One query of all samples"),
    (
        Scenario::SingleStream,
        "single-stream",
        "Queries of one sample, each after the previous answer",
    ),
    (
        Scenario::MultiStream,
        "multi-stream",
        "Queries of several samples (8), each after the previous answer",
    ),
];

const MODES: [FlagValue<TestMode>; 4] = [
    (
        TestMode::PerformanceOnly,
        "performance",
        "Measure the scenario's traffic",
    ),
    (
        TestMode::AccuracyOnly,
        "accuracy",
        "Send every sample once; with labels, compute the share of correct answers",
    ),
    (
        TestMode::SubmissionRun,
        "submission",
        "First accuracy, then performance",
    ),
    (
        TestMode::FindPeakPerformance,
        "find-peak",
        "Search the highest VALID rate, from --target-qps upwards; only in Server",
    ),
];

/// Checks of each response against its sample.
const CHECKS: [FlagValue<Verify>; 3] = [
    (Verify::None, "none", "No check"),
    (
        Verify::Digest,
        "digest",
        "Each response must be the xxh3-64 hash of its sample",
    ),
    (
        Verify::Tokens,
        "tokens",
        "Each answer must be the tokens that the engine `tokens` computes from its sample",
    ),
];

fn one_of<T, const N: usize>(values: [FlagValue<T>; N]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    let named = values
        .iter()
        .map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(named.collect::<Vec<_>>()).try_map(move |given| {
        let value = values.iter().find(|(_, name, _)| *name == given);
        value.map(|(value, ..)| value.clone()).ok_or("unknown")
    })
}

/// Parses the value of `--live`.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("expected ADDRESS:PORT, as in {LIVE_ADDRESS}, not {text:?}"))
}

/// Parses `KEY=VALUE`.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected KEY=VALUE, as in min_duration_ms=1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use qdl::testkit::assert_has;

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_explains_every_flag_and_rates_by_scenario() {
        let command = Args::command();
        command.clone().debug_assert();
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{} has no help", arg.get_id());
        }
        for flag in ["target_qps", "duration_s", "samples"] {
            let arg = command.get_arguments().find(|a| a.get_id() == flag);
            let help = arg.and_then(|a| a.get_help()).map(ToString::to_string);
            let help = help.expect("a flag with help");
            assert_has(&help, &["Server", "Offline", "SingleStream", "MultiStream"]);
        }
    }

    #[test]
    fn everything_at_once() {
        let words = "frontend --config f.yaml --scenario single-stream --mode find-peak --local \
            --output out --target-qps 2e3 --duration-s 1.5 --samples 100 --user-conf u \
            --audit-config a --set a=1 --verify digest --seed 7 --live -vv --set";
        let words = words.split_whitespace().chain(["b = x=y"]);
        let args = Args::try_parse_from(words).expect("all of these exist");
        assert_eq!(args.scenario, Some(Scenario::SingleStream));
        assert_eq!(args.mode, Some(TestMode::FindPeakPerformance));
        assert_eq!((args.target_qps, args.screen.verbose), (Some(2000.0), 2));
        assert_eq!(args.live, address(LIVE_ADDRESS).ok());
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(args.set, [pair("a", "1"), pair("b", "x=y")]);
    }

    #[test]
    fn a_warm_up_has_the_bounds_of_its_key() {
        let parse = |ms| Args::try_parse_from(["frontend", "-c", "f", "--warm-up-ms", ms]);
        let longest = parse("3600000").expect("an hour");
        assert_eq!(longest.warm_up_ms, Some(3_600_000));
        assert!(parse("3600001").is_err() && parse("-1").is_err());
    }

    #[test]
    fn a_setting_without_a_value_is_refused() {
        assert!(key_value("min_duration_ms").is_err());
        assert!(key_value("=3").is_err());
    }

    #[test]
    fn a_live_page_has_an_address_and_a_port() {
        assert!(address(LIVE_ADDRESS).is_ok_and(|a| a.ip().is_loopback()));
        assert!(address("[::1]:0").is_ok());
        let wrong = address("9417").expect_err("no address");
        assert!(wrong.contains("ADDRESS:PORT"), "{wrong}");
    }
}
