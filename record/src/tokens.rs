//! Answers in tokens: when the first came and the others after it, how many, in how many parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StageRow;

/// A time that only answers in tokens have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenTime {
    /// LoadGen issued the sample -> the NIC thread saw its first token.
    Ttft,
    /// From the first token to the last, for each token after the first:
    /// (latency - TTFT) / (n - 1).
    Tpot,
    /// What the accelerator says that the first token took it, from the prompt's arrival to the
    /// part's posting: the engine's own time to the first token, and what waited for it.
    FirstAccelerator,
    /// The network's share of the time to the first token: from posting to the first token, without
    /// the accelerator's. With it and `issue -> post` it adds up to TTFT.
    FirstNetwork,
    /// The same of each part, on average over a sample's parts.
    PartNetwork,
}

impl TokenTime {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// All of them, in the order of the table.
    pub const ALL: [TokenTime; TokenTime::COUNT] = [
        TokenTime::Ttft,
        TokenTime::Tpot,
        TokenTime::FirstAccelerator,
        TokenTime::FirstNetwork,
        TokenTime::PartNetwork,
    ];

    /// Its key in JSON, the tag in logs and part of file names.
    pub fn key(self) -> &'static str {
        match self {
            TokenTime::Ttft => "ttft",
            TokenTime::Tpot => "tpot",
            TokenTime::FirstAccelerator => "first_accelerator",
            TokenTime::FirstNetwork => "first_network",
            TokenTime::PartNetwork => "part_network",
        }
    }

    /// What the table calls it.
    pub fn label(self) -> &'static str {
        match self {
            TokenTime::Ttft => "TTFT",
            TokenTime::Tpot => "TPOT",
            TokenTime::FirstAccelerator => "accelerator, first token",
            TokenTime::FirstNetwork => "network, first token",
            TokenTime::PartNetwork => "network, each part",
        }
    }
}

/// How many there were in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountRow {
    /// Fewest, exact.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// Mean, exact.
    pub mean: f64,
    /// 99th percentile.
    pub p99: u64,
    /// Most, exact.
    pub max: u64,
}

/// A run whose answers are tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRecord {
    /// When tokens left the accelerator: `none`, `first` or `all`.
    pub stream: String,
    /// Tokens of all answers, as the engines counted them.
    pub tokens: u64,
    /// Tokens per second: LoadGen's figure where it gives one.
    pub per_s: f64,
    /// Times, in JSON under their keys ([`TokenTime::key`]).
    pub times: BTreeMap<TokenTime, StageRow>,
    /// Which percentile LoadGen bounds, in percent, where the scenario has bounds.
    pub limit_percentile: Option<f64>,
    /// LoadGen's bound on that percentile of TTFT.
    pub ttft_limit_us: Option<f64>,
    /// The same of TPOT.
    pub tpot_limit_us: Option<f64>,
    /// Tokens of prompts.
    pub input: CountRow,
    /// Tokens of answers.
    pub output: CountRow,
    /// Parts in which answers came.
    pub parts: CountRow,
    /// Answers of several tokens that came in one part although somebody waited for their first
    /// token: their TPOT is 0, and LoadGen's TPOT means nothing.
    pub whole: u64,
    /// Parts of the answers that others followed, by what each answer says of itself.
    pub parts_before_last: u64,
    /// Such parts that were handed over, those of samples that were sent again included.
    pub parts_taken: u64,
    /// First tokens reported to LoadGen; `None` in Offline, where it asks for none.
    pub first_tokens: Option<u64>,
    /// Answers that were no two tokens, which LoadGen takes for errors.
    pub too_short: u64,
    /// Samples that were sent again and had another first token than the one reported.
    pub contradicted: u64,
    /// The first of either, in words.
    pub faults: Vec<String>,
}

impl TokenRecord {
    /// Times that LoadGen bounds: name, p99 and bound, in microseconds.
    pub fn bounded(&self) -> Vec<(&'static str, f64, f64)> {
        let of = |time: TokenTime, bound: Option<f64>| {
            Some((time.label(), self.times.get(&time)?.p99_us, bound?))
        };
        let both = [
            of(TokenTime::Ttft, self.ttft_limit_us),
            of(TokenTime::Tpot, self.tpot_limit_us),
        ];
        both.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_serde() {
        for time in TokenTime::ALL {
            let json = serde_json::to_string(&time).expect("a string");
            assert_eq!(json, format!("\"{}\"", time.key()));
        }
    }
}
