//! The command line of `qdl tune`.

use std::path::PathBuf;

use clap::{
    Parser,
    builder::{PossibleValuesParser, TypedValueParser},
};
use loadgen_bridge::Scenario;

use frontend::cli::{SCENARIOS, key_value};

/// Finds the highest rate at which runs are VALID, with many short runs of `frontend`, then tries
/// other values of some keys of the configuration.
///
/// The rate is queries per second in Server. In Offline it is the lowest expected samples per
/// second that make a run long enough. Keep the accelerators running.
///
/// The same command continues an interrupted session. docs/tune.md explains the result.
#[derive(Clone, Debug, Parser)]
pub struct TuneArgs {
    /// Configuration of the frontend, a YAML file; `tune` does not change it
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,

    /// LoadGen's scenario: how queries arrive [default: loadgen.scenario of the configuration]
    #[arg(long, value_name = "SCENARIO", value_parser = with_a_rate())]
    pub scenario: Option<Scenario>,

    /// Run each trial without a network, with the engine in the frontend's process
    #[arg(long)]
    pub local: bool,

    /// Folder for the journal, the result and the run folders
    #[arg(short, long, value_name = "DIR", default_value = "results/tune")]
    pub output: PathBuf,

    /// Time budget for all trials and the full run, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 30.0)]
    pub budget_min: f64,

    /// Minimum duration of each trial, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub seconds: f64,

    /// Duration of the full run at the end, in seconds; 0 skips it [default: ten times --seconds]
    #[arg(long, value_name = "SECONDS")]
    pub full_s: Option<f64>,

    /// First rate to try [default: the rate in the configuration; without one 100 in Server, 1000
    /// in Offline]
    #[arg(long, value_name = "RATE")]
    pub from: Option<f64>,

    /// Lowest rate to try [default: --from divided by 1000]
    #[arg(long, value_name = "RATE")]
    pub least: Option<f64>,

    /// Highest rate to try [default: --from times 1000000]
    #[arg(long, value_name = "RATE")]
    pub most: Option<f64>,

    /// Largest gap between the result and a rate that fails, in percent. A key's new value must
    /// raise the rate by at least as much
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    pub within: f64,

    /// Minimum number of queries in each trial [default: in Server the minimum of LoadGen's early
    /// stopping, 459]
    #[arg(long, value_name = "N")]
    pub samples: Option<u64>,

    /// Which keys of the configuration to try
    #[arg(long, value_name = "KEYS", default_value = "auto")]
    pub knobs: Knobs,

    /// Key of the configuration and values to try, for example nics[].slots=16,64,256; repeatable
    #[arg(long = "knob", value_name = "KEY=A,B", value_parser = key_value)]
    pub knob: Vec<(String, String)>,

    /// LoadGen's user.conf, for every trial
    #[arg(long, value_name = "FILE")]
    pub user_conf: Option<PathBuf>,

    /// Set a field of LoadGen's settings in every trial, as --set of `frontend` does; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,

    /// Time to warm up connections before each trial, in milliseconds; 0 skips the warm-up
    /// [default: warm_up.budget_ms of the configuration]
    #[arg(long, value_name = "MS", conflicts_with = "local")]
    pub warm_up_ms: Option<u64>,

    /// The program `frontend` that runs the trials, to tune another build [default: the one beside
    /// this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// Seed of LoadGen's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

fn with_a_rate() -> impl TypedValueParser<Value = Scenario> {
    let [server, offline, ..] = SCENARIOS;
    PossibleValuesParser::new([server.1, offline.1]).try_map(|given| {
        let named = SCENARIOS.iter().find(|(_, name, _)| *name == given);
        named.map(|(scenario, ..)| *scenario).ok_or("unknown")
    })
}

/// The keys whose values are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Knobs {
    /// No key
    None,
    /// The built-in list and the keys of --knob. The list is nics[].slots, nics[].connections (with
    /// a device: nics[].queue_pairs) and nic_threads; with --local it is engine.max_batch
    Auto,
    /// Only the keys of --knob
    Listed,
}

impl TuneArgs {
    /// Returns the flags that every trial gets unchanged.
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
