//! The command line of `qdl tune`.

use std::path::PathBuf;

use clap::{
    Parser, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::settings::cli::{Scenario, key_value};

/// Finds the highest rate at which runs are VALID by many short runs of `frontend`, then tries
/// other values of some keys.
///
/// Server: queries per second. MultiStream: samples per query within --bound-ms. Offline: the
/// least expected samples per second that make a run long enough. The accelerators must stay up.
///
/// The same flags go on with an interrupted session. docs/tune.md explains the result.
#[derive(Clone, Debug, Parser)]
pub struct TuneArgs {
    /// The node's YAML file; it is not changed
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,

    /// How queries arrive [default: loadgen.scenario of the configuration]
    #[arg(long, value_name = "SCENARIO", value_parser = with_a_rate())]
    pub scenario: Option<Scenario>,

    /// Trials without a network, with the engine in the same process
    #[arg(long)]
    pub local: bool,

    /// Folder of the journal, the result and the runs
    #[arg(
        short,
        long,
        alias = "session",
        value_name = "DIR",
        default_value = "results/tune"
    )]
    pub output: PathBuf,

    /// Minutes of all trials; the full run's are among them once a rate is certified
    #[arg(long, value_name = "MIN", default_value_t = 30.0)]
    pub budget_min: f64,

    /// Seconds of each trial, at least
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,

    /// Seconds of the full run at the end; 0: none [default: ten times a trial's]
    #[arg(long, value_name = "S")]
    pub full_s: Option<f64>,

    /// The first rate [default: that of the configuration]
    #[arg(long, value_name = "Q")]
    pub from: Option<f64>,

    /// The lowest rate to try [default: a thousandth of --from]
    #[arg(long, value_name = "Q")]
    pub least: Option<f64>,

    /// The highest rate to try [default: a million times --from]
    #[arg(long, value_name = "Q")]
    pub most: Option<f64>,

    /// The gap in percent between the result and a rate that fails; a value that raises the rate
    /// by less is not kept
    #[arg(long, value_name = "%", default_value_t = 3.0)]
    pub within: f64,

    /// MultiStream: the bound on the 99th percentile of a query's latency, in milliseconds
    #[arg(long, value_name = "MS")]
    pub bound_ms: Option<f64>,

    /// The fewest queries of a trial [default: the fewest that LoadGen's early stopping takes]
    #[arg(long, value_name = "N")]
    pub samples: Option<u64>,

    /// Keys whose values are tried: `none`, `auto` (slots, connections, nic_threads, with --local
    /// max_batch; and those of --knob), or `listed` (those of --knob)
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub knobs: Knobs,

    /// A key and its values to try; repeatable: nics[].slots=16,64,256
    #[arg(long = "knob", value_name = "KEY=A,B", value_parser = key_value)]
    pub knob: Vec<(String, String)>,

    /// LoadGen's user.conf, for every trial
    #[arg(long, value_name = "FILE")]
    pub user_conf: Option<PathBuf>,

    /// Any field of LoadGen's, for every trial; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,

    /// Milliseconds for warming connections up before each trial
    /// [default: warm_up.budget_ms of the configuration]
    #[arg(long, value_name = "MS", conflicts_with = "local")]
    pub warm_up_ms: Option<u64>,

    /// The frontend that runs the trials, to tune another build [default: the one beside this
    /// program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// The seed of LoadGen's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The scenarios that have a rate.
fn with_a_rate() -> impl TypedValueParser<Value = Scenario> {
    let names = ["server", "offline", "multi-stream"];
    PossibleValuesParser::new(names).try_map(|name| Scenario::from_str(&name, false))
}

/// The keys whose values are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Knobs {
    /// None
    None,
    /// The built-in list, and those of --knob
    Auto,
    /// Those of --knob
    Listed,
}

impl TuneArgs {
    /// The flags that every trial gets unchanged.
    pub fn passed_on(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.local {
            words.push("--local".to_owned());
        }
        if let Some(file) = &self.user_conf {
            words.extend(["--user-conf".to_owned(), file.display().to_string()]);
        }
        if let Some(ms) = self.warm_up_ms {
            words.extend(["--warm-up-ms".to_owned(), ms.to_string()]);
        }
        for (key, value) in &self.set {
            words.extend(["--set".to_owned(), format!("{key}={value}")]);
        }
        words
    }
}
