//! Times and counts of answers in tokens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{StageRow, stages::table};

/// A time that only answers in tokens have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenTime {
    /// Issue -> NIC thread reads the first token: time to first token.
    Ttft,
    /// Time per token after the first event's: from the first event to the last, divided by the
    /// tokens after the first event's. LoadGen's TPOT divides by the tokens after the first; both
    /// are equal if the first event holds one token.
    Tpot,
    /// The accelerator's time to the first token, as it reports: from the prompt's arrival to the
    /// post of the first part, including waits.
    FirstAccelerator,
    /// Network share of TTFT: from the post to the first token, minus the accelerator's time. TTFT
    /// is the sum of `issue -> post`, the accelerator's time and this network share.
    FirstNetwork,
    /// Network share of each part, as the mean over a sample's parts.
    PartNetwork,
}

table! { TokenTime:
    Ttft "ttft" "TTFT, as issued"
    Tpot "tpot" "TPOT after 1st event"
    FirstAccelerator "first_accelerator" "accelerator, first token"
    FirstNetwork "first_network" "network, first token"
    PartNetwork "part_network" "network, each part"
}

/// Distribution of a count per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountRow {
    /// Minimum, exact.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// Mean, exact.
    pub mean: f64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum, exact.
    pub max: u64,
}

/// Token figures of a run whose answers are tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRecord {
    /// Tokens sent before the answer's end: `none`, `first` or `all`.
    pub stream: String,
    /// Tokens of all answers, as the engines count them.
    pub tokens: u64,
    /// Tokens per second: LoadGen's figure if it reports one, else of the whole run.
    pub per_s: f64,
    /// Times, in JSON under their keys ([`TokenTime::key`]).
    pub times: BTreeMap<TokenTime, StageRow>,
    /// Tokens of each prompt.
    pub input: CountRow,
    /// Tokens of each answer.
    pub output: CountRow,
    /// Parts of each answer.
    pub parts: CountRow,
    /// Tokens of each event that brought tokens to the accelerators, as their engines count;
    /// `None` if no engine reports events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<CountRow>,
    /// Answers whose tokens, two or more, all came with the first, although LoadGen expected a
    /// first token. LoadGen's TPOT of such an answer is about 0 and means nothing.
    pub whole: u64,
    /// Parts before each answer's last part, as the answers report.
    pub parts_before_last: u64,
    /// Parts received before an answer's last part, including parts of samples sent again.
    pub parts_taken: u64,
    /// First tokens reported to LoadGen; `None` in Offline, which has no first tokens.
    pub first_tokens: Option<u64>,
    /// Answers of fewer than two tokens, which LoadGen counts as errors.
    pub too_short: u64,
    /// Samples sent again whose first token differs from the one reported to LoadGen.
    pub contradicted: u64,
    /// Descriptions of the first answers counted in `too_short` or `contradicted`.
    pub faults: Vec<String>,
}
