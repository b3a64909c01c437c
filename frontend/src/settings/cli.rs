//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use accelerator::cli::Screen;
use clap::{Parser, ValueEnum};
use loadgen_bridge::TestMode;

use crate::{live, run::exit::HELP};

/// Runs LoadGen against the accelerators of a configuration, over the network.
///
/// `qdl init --model M.onnx --samples FILE` writes a configuration for a model of your own, and
/// `qdl topology --yaml` one for this machine's NICs; both run as they are. `qdl tune` finds the
/// highest rate at which runs are VALID, `qdl report` puts runs beside each other, `qdl submit`
/// makes a submission of them.
///
/// The logs of LoadGen, summary.json, latency histograms and the run's page, report.html, come to
/// lie in the output folder.
#[derive(Clone, Debug, Parser)]
#[command(name = "frontend", after_help = HELP, max_term_width = 100)]
pub struct Args {
    /// The node's YAML file; configs/ holds working ones
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,

    /// The folder that paths in the configuration are relative to [default: the file's own]
    #[arg(long, value_name = "DIR", hide = true)]
    pub relative_to: Option<PathBuf>,

    /// Open everything the run needs but the accelerators, print what would run and what it takes,
    /// and end: nothing is sent, nothing is measured. With --local the engine and its model are
    /// opened too
    #[arg(long)]
    pub check: bool,

    /// How queries arrive [default: loadgen.scenario of the configuration]
    #[arg(long, value_enum, value_name = "SCENARIO")]
    pub scenario: Option<Scenario>,

    /// What is measured [default: performance, unless user.conf says otherwise]
    #[arg(long, value_enum, value_name = "MODE")]
    pub mode: Option<Mode>,

    /// No network: LoadGen, data set and engine in this one
    /// process, the yardstick for what the network costs
    #[arg(long)]
    pub local: bool,

    /// The folder for logs, summary.json, histograms and the page [default: a new one,
    /// DATE-TIME-SCENARIO, in loadgen.output_dir of the configuration, else in results/]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Replace the finished run that lies in the folder of --output. A run that does not come to
    /// its end replaces none: it then lies in unfinished-run in that folder
    #[arg(long)]
    pub force: bool,

    /// Server: queries per second, of one sample each (with --mode find-peak the rate that the
    /// search begins at). Offline: samples per second to expect, from which the size of the one
    /// query follows. SingleStream and MultiStream: queries per second to expect, from which
    /// follows how many LoadGen makes beforehand; it issues the next when one is answered, whatever
    /// the rate
    #[arg(long, value_name = "Q", allow_negative_numbers = true)]
    pub target_qps: Option<f64>,

    /// The shortest that the run may be, in seconds (LoadGen's min_duration). Server, SingleStream,
    /// MultiStream: queries are issued for so long. Offline is one query, which LoadGen makes
    /// beforehand so large that it fills this time at --target-qps: where samples go faster than
    /// that, the run is INVALID; 0 leaves its size to --samples
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub duration_s: Option<f64>,

    /// The fewest queries of the run (LoadGen's min_query_count): one sample each in Server and
    /// SingleStream, several in MultiStream; in Offline the fewest samples of its one query
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub samples: Option<u64>,

    /// LoadGen's user.conf [default: loadgen.user_conf of the configuration]
    #[arg(long, value_name = "FILE")]
    pub user_conf: Option<PathBuf>,

    /// LoadGen's audit.config [default: loadgen.audit_config
    /// of the configuration; else none is read]
    #[arg(long, value_name = "FILE")]
    pub audit_config: Option<PathBuf>,

    /// A compliance test of the round, as in TEST06: runs with its official audit.config, the one
    /// for all models or the configured model's, from the checkout that --checker names. Nothing is
    /// fetched
    #[arg(long, value_name = "TEST", conflicts_with = "audit_config")]
    pub compliance: Option<String>,

    /// A checkout of mlcommons/inference, for --compliance [default: $QDL_MLPERF_CHECKOUT]
    #[arg(long, value_name = "DIR")]
    pub checker: Option<PathBuf>,

    /// Refuse, with the rule's name, whatever would not count in this round's submission, before
    /// anything is measured (docs/rules.md); `v6.1`, or a file that ends in .yaml
    #[arg(long, value_name = "ROUND")]
    pub submission: Option<String>,

    /// Any field of LoadGen's TestSettings or LogSettings,
    /// by its name; goes before everything else; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,

    /// Compare each response with what the engine `digest`, or `tokens`, makes of its own sample;
    /// accelerators run that engine [default: verify of the configuration]
    #[arg(long, value_enum, value_name = "HOW")]
    pub verify: Option<Verify>,

    /// Milliseconds that an accelerator that is still loading is waited for
    /// [default: deadlines.connect_ms of the configuration]
    // At most one hour, like the configuration key.
    #[arg(long, value_name = "MS", conflicts_with = "local",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub connect_ms: Option<u64>,

    /// Milliseconds for warming connections up before LoadGen's clock; 0: not at all
    /// [default: warm_up.budget_ms of the configuration]
    // At most one hour, like the configuration key.
    #[arg(long, value_name = "MS", conflicts_with = "local",
          value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub warm_up_ms: Option<u64>,

    /// Seed of a random data set [default: dataset.seed of the
    /// configuration]. LoadGen's own seeds are set with --set
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Show the run while it goes on, as a page at this address, which a browser on this machine
    /// opens; at any other address the page has a
    /// key of its own, which `live.url` in the run's folder holds
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1,
          default_missing_value = live::DEFAULT, value_parser = live::address)]
    pub live: Option<SocketAddr>,

    /// Print the summary as JSON on standard output, and nothing else there; with --check what
    /// would run
    #[arg(long)]
    pub json: bool,

    /// What is shown
    #[command(flatten)]
    pub screen: Screen,
}

/// LoadGen's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Single samples at Poisson-distributed times
    Server,
    /// All samples at once
    Offline,
    /// One sample after the other
    SingleStream,
    /// Several samples at a time (8), one such query after the other
    MultiStream,
}

impl From<Scenario> for loadgen_bridge::Scenario {
    fn from(s: Scenario) -> Self {
        match s {
            Scenario::Server => loadgen_bridge::Scenario::Server,
            Scenario::Offline => loadgen_bridge::Scenario::Offline,
            Scenario::SingleStream => loadgen_bridge::Scenario::SingleStream,
            Scenario::MultiStream => loadgen_bridge::Scenario::MultiStream,
        }
    }
}

/// LoadGen's modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The scenario's traffic, measured
    Performance,
    /// Every sample once; with labels, the share of right answers
    Accuracy,
    /// Accuracy, then performance
    Submission,
    /// The highest valid rate, looked for from --target-qps on; Server alone has it
    FindPeak,
}

impl From<Mode> for TestMode {
    fn from(m: Mode) -> Self {
        match m {
            Mode::Performance => TestMode::PerformanceOnly,
            Mode::Accuracy => TestMode::AccuracyOnly,
            Mode::Submission => TestMode::SubmissionRun,
            Mode::FindPeak => TestMode::FindPeakPerformance,
        }
    }
}

/// Whether responses are compared with their samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// They are not
    None,
    /// Each response must be the xxh3-64 of its own sample
    Digest,
    /// Each answer must be the tokens that the engine `tokens` makes of its own sample
    Tokens,
}

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
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

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_explains_every_flag() {
        let command = Args::command();
        command.clone().debug_assert();
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{} has no help", arg.get_id());
        }
    }

    #[test]
    fn flags_of_a_rate_say_what_they_are_in_each_scenario() {
        let command = Args::command();
        for flag in ["target_qps", "duration_s", "samples"] {
            let arg = command.get_arguments().find(|a| a.get_id() == flag);
            let help = arg.and_then(|a| a.get_help()).map(ToString::to_string);
            let help = help.expect("a flag with help");
            for scenario in ["Server", "Offline", "SingleStream", "MultiStream"] {
                assert!(help.contains(scenario), "--{flag}, {scenario}: {help}");
            }
        }
    }

    #[test]
    fn everything_at_once() {
        let args = Args::try_parse_from([
            "frontend",
            "--config",
            "f.yaml",
            "--scenario",
            "single-stream",
            "--mode",
            "find-peak",
            "--local",
            "--output",
            "out",
            "--target-qps",
            "2e3",
            "--duration-s",
            "1.5",
            "--samples",
            "100",
            "--user-conf",
            "u",
            "--audit-config",
            "a",
            "--set",
            "a=1",
            "--set",
            "b = x=y",
            "--verify",
            "digest",
            "--seed",
            "7",
            "--live",
            "-vv",
        ])
        .expect("all of these exist");
        assert_eq!(args.scenario, Some(Scenario::SingleStream));
        assert_eq!(args.mode, Some(Mode::FindPeak));
        assert_eq!((args.target_qps, args.screen.verbose), (Some(2000.0), 2));
        assert_eq!(args.live, live::address(live::DEFAULT).ok());
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
}
