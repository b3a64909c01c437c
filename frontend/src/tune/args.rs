//! The command line of `frontend tune`.

use std::path::PathBuf;

use clap::Parser;

use crate::cli::{Scenario, key_value};

/// Finds the highest rate that is VALID, and the knobs for it, by many short runs of this program.
///
/// Server: queries per second within the bound on latency, or on TTFT and TPOT. MultiStream:
/// samples
/// per query within --bound-ms. Offline: the offline_expected_qps that makes a run long enough and
/// no longer. Accelerators keep running; their own knobs can be turned with --local alone.
///
/// Started again with the same flags it goes on where it ended. docs/tune.md says what it believes
/// and why.
#[derive(Clone, Debug, Parser)]
#[command(name = "frontend tune", max_term_width = 100)]
pub struct TuneArgs {
    /// The node's YAML file; it is not changed
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,

    /// How queries arrive [default: loadgen.scenario of the configuration]
    #[arg(long, value_enum, value_name = "SCENARIO")]
    pub scenario: Option<Scenario>,

    /// Trials without a network, with the engine in the same process
    #[arg(long)]
    pub local: bool,

    /// Folder for the journal, the page and the runs
    #[arg(long, value_name = "DIR", default_value = "results/tune")]
    pub session: PathBuf,

    /// What all of it may take, in minutes
    #[arg(long, value_name = "MIN", default_value_t = 30.0)]
    pub budget_min: f64,

    /// Seconds of each trial
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,

    /// Seconds of the run that confirms; 0: none [default: ten times a trial's]
    #[arg(long, value_name = "S")]
    pub full_s: Option<f64>,

    /// The rate to begin at [default: that of the configuration]
    #[arg(long, value_name = "Q")]
    pub from: Option<f64>,

    /// Nothing is tried below [default: a thousandth of --from]
    #[arg(long, value_name = "Q")]
    pub least: Option<f64>,

    /// Nothing is tried above [default: a thousand times --from]
    #[arg(long, value_name = "Q")]
    pub most: Option<f64>,

    /// How near below the limit the rate is to be, in percent
    #[arg(long, value_name = "%", default_value_t = 3.0)]
    pub within: f64,

    /// MultiStream: the most that the 99th percentile of a query may take, in milliseconds
    #[arg(long, value_name = "MS")]
    pub bound_ms: Option<f64>,

    /// The fewest queries of a trial
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub samples: u64,

    /// Which knobs are turned: `none`, `auto`, or those of --knob alone
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub knobs: Knobs,

    /// A key and the values it may have; repeatable: nics[].slots=16,64,256
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

    /// The frontend whose runs are the trials, to tune another build [default: this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// Of the session's random numbers, and through them of LoadGen's
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Which knobs are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Knobs {
    /// None
    None,
    /// Those that this page knows for the configuration, and those of --knob
    Auto,
    /// Those of --knob
    Listed,
}

impl TuneArgs {
    /// What every trial is told as it is.
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
