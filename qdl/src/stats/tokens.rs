//! Answers in tokens: when the first came and the others after it, how many, in how many parts.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{
    SampleTimes, StageRow,
    histograms::{quantiles, timer},
    text::{self, Table},
};
use fabric::wire::Stream;

/// Longest prompt or answer told apart, in tokens, and most parts.
const LONGEST: u64 = 1 << 28;
const DIGITS: u8 = 3;

/// Bytes of one token of a prompt, its mask and the like included, and of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSizes {
    /// Of a prompt.
    pub input: u32,
    /// Of an answer.
    pub output: u32,
}

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

/// Values with an exact sum, least and greatest.
#[derive(Clone, Debug)]
struct Values {
    histogram: Histogram<u64>,
    sum: u128,
    min: u64,
    max: u64,
}

impl Values {
    fn over(histogram: Histogram<u64>) -> Self {
        Values {
            histogram,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    fn counts() -> Self {
        let mut h = Histogram::new_with_bounds(1, LONGEST, DIGITS)
            .expect("1 to 2^28 at 3 figures is a valid range");
        h.auto(false);
        Values::over(h)
    }

    fn record(&mut self, value: u64) {
        self.histogram.saturating_record(value);
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn merge(&mut self, other: &Values) {
        self.histogram
            .add(&other.histogram)
            .expect("all have the same bounds");
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn mean(&self) -> f64 {
        match self.histogram.len() {
            0 => 0.0,
            n => self.sum as f64 / n as f64,
        }
    }

    fn time_row(&self) -> StageRow {
        let [p50, p90, p99, p999] = quantiles(&self.histogram, [500, 900, 990, 999]);
        let us = |ns: u64| ns.min(self.max) as f64 / 1000.0;
        StageRow {
            p50_us: us(p50),
            p90_us: us(p90),
            p99_us: us(p99),
            p999_us: us(p999),
            max_us: us(self.max),
            mean_us: self.mean().round() / 1000.0,
            count: self.histogram.len(),
        }
    }

    fn count_row(&self) -> CountRow {
        let [p50, p99] = quantiles(&self.histogram, [500, 990]);
        CountRow {
            min: if self.max == 0 { 0 } else { self.min },
            p50: p50.min(self.max),
            mean: (self.mean() * 1000.0).round() / 1000.0,
            p99: p99.min(self.max),
            max: self.max,
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

impl CountRow {
    fn text(&self) -> String {
        format!(
            "{} to {}, mean {}, p50 {}, p99 {}",
            text::grouped(self.min),
            text::grouped(self.max),
            text::three(self.mean),
            text::grouped(self.p50),
            text::grouped(self.p99)
        )
    }
}

/// Times and lengths of answers in tokens. All memory is taken when it is made.
#[derive(Clone, Debug)]
pub struct TokenHistograms {
    sizes: TokenSizes,
    times: [Values; TokenTime::COUNT],
    input: Values,
    output: Values,
    parts: Values,
    /// Answers of several tokens that came in one part.
    whole: u64,
}

impl TokenHistograms {
    /// Empty ones.
    pub fn new(sizes: TokenSizes) -> Self {
        TokenHistograms {
            sizes,
            times: [(); TokenTime::COUNT].map(|()| Values::over(timer())),
            input: Values::counts(),
            output: Values::counts(),
            parts: Values::counts(),
            whole: 0,
        }
    }

    /// Counts one sample in.
    pub fn record(&mut self, t: &SampleTimes) {
        let of = |bytes: u32, size: u32| u64::from(bytes / size.max(1));
        let tokens = of(t.bytes_in, self.sizes.output);
        self.input.record(of(t.bytes_out, self.sizes.input));
        self.output.record(tokens);
        self.parts.record(u64::from(t.parts));
        self.whole += u64::from(tokens > 1 && t.parts <= 1);
        self.time(TokenTime::Ttft, t.first_ns.saturating_sub(t.issued_ns));
        if let Some(later) = tokens.checked_sub(1).filter(|n| *n > 0) {
            let ns = t.seen_ns.saturating_sub(t.first_ns) / later;
            self.time(TokenTime::Tpot, ns);
        }
        // A sample that was sent again may have had its first token before.
        if let Some(after) = t.first_ns.checked_sub(t.posted_ns) {
            // Whole microseconds, perhaps rounded up past the little that there was.
            let theirs = after.min(u64::from(t.first_residence_us) * 1000);
            self.time(TokenTime::FirstAccelerator, theirs);
            self.time(TokenTime::FirstNetwork, after - theirs);
        }
        let us = t.parts_after_us.saturating_sub(t.parts_residence_us);
        self.time(TokenTime::PartNetwork, u64::from(us) * 1000);
    }

    fn time(&mut self, time: TokenTime, ns: u64) {
        self.times[time as usize].record(ns);
    }

    /// Counts another thread's samples in.
    pub fn merge(&mut self, other: &TokenHistograms) {
        for (mine, theirs) in self.times.iter_mut().zip(&other.times) {
            mine.merge(theirs);
        }
        self.input.merge(&other.input);
        self.output.merge(&other.output);
        self.parts.merge(&other.parts);
        self.whole += other.whole;
    }

    /// Tokens of all answers.
    pub fn tokens(&self) -> u64 {
        u64::try_from(self.output.sum).unwrap_or(u64::MAX)
    }

    /// Parts of all answers that others followed.
    pub fn parts_before_last(&self) -> u64 {
        let all = u64::try_from(self.parts.sum).unwrap_or(u64::MAX);
        all.saturating_sub(self.parts.histogram.len())
    }

    /// The histogram of one time, in nanoseconds.
    pub fn histogram(&self, time: TokenTime) -> &Histogram<u64> {
        &self.times[time as usize].histogram
    }

    /// An upper estimate of a time's quantile so far, in nanoseconds; allocates nothing.
    pub fn quantile_ns(&self, time: TokenTime, quantile: f64) -> u64 {
        let values = &self.times[time as usize];
        values.histogram.value_at_quantile(quantile).min(values.max)
    }

    /// The record of a run that took `duration_s`; what a frontend counts beside is its own to put
    /// in. Times of the first token stand in it where `first` says that somebody waited for one.
    pub fn record_of(&self, duration_s: f64, first: bool) -> TokenRecord {
        let shown = |time: &&TokenTime| first || **time == TokenTime::PartNetwork;
        let row = |time: &TokenTime| (*time, self.times[*time as usize].time_row());
        TokenRecord {
            tokens: self.tokens(),
            per_s: match duration_s > 0.0 {
                true => (self.tokens() as f64 / duration_s * 1000.0).round() / 1000.0,
                false => 0.0,
            },
            times: TokenTime::ALL.iter().filter(shown).map(row).collect(),
            input: self.input.count_row(),
            output: self.output.count_row(),
            parts: self.parts.count_row(),
            whole: if first { self.whole } else { 0 },
            parts_before_last: self.parts_before_last(),
            ..TokenRecord::default()
        }
    }
}

/// A run whose answers are tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRecord {
    /// When tokens left the accelerator.
    pub stream: Stream,
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
    pub(super) fn bounded(&self) -> Vec<(&'static str, f64, f64)> {
        let of = |time: TokenTime, bound: Option<f64>| {
            Some((time.label(), self.times.get(&time)?.p99_us, bound?))
        };
        let both = [
            of(TokenTime::Ttft, self.ttft_limit_us),
            of(TokenTime::Tpot, self.tpot_limit_us),
        ];
        both.into_iter().flatten().collect()
    }

    /// Aligned columns: times beside LoadGen's bounds on them.
    pub(super) fn table(&self) -> Option<String> {
        if self.times.is_empty() {
            return None;
        }
        let limit = self.limit_percentile.map(|p| format!("p{p} limit"));
        let limit = limit.unwrap_or_default();
        let mut table = Table::new(&[
            "tokens", "p50", "p90", "p99", "p99.9", "max", "mean", &limit,
        ]);
        for (time, r) in &self.times {
            let times = [r.p50_us, r.p90_us, r.p99_us, r.p999_us, r.max_us, r.mean_us];
            let mut row = vec![time.label().to_owned()];
            row.extend(times.iter().map(|&us| text::time_us(us)));
            let limit = match time {
                TokenTime::Ttft => self.ttft_limit_us,
                TokenTime::Tpot => self.tpot_limit_us,
                _ => None,
            };
            row.push(limit.map_or_else(String::new, text::time_us));
            table.row(row);
        }
        Some(table.text())
    }

    /// Labels and what they stand for.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let rate = format!(
            "{} answered: {}/s; stream {}, {} parts an answer",
            text::grouped(self.tokens),
            text::rate(self.per_s),
            self.stream,
            text::three(self.parts.mean)
        );
        let mut facts = vec![
            ("tokens", rate),
            ("prompts", self.input.text()),
            ("answers", self.output.text()),
        ];
        if self.whole > 0 {
            let whole = format!(
                "WARNING: answers of several tokens that came whole in one part: {}. Their TPOT \
                 is 0, and LoadGen's TPOT means nothing; look at how the server streams",
                text::grouped(self.whole)
            );
            facts.push(("TPOT", whole));
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: TokenSizes = TokenSizes {
        input: 4,
        output: 4,
    };

    /// Issued at 1 us, posted at 3, first token at 103 of which 80 were the accelerator's, the last
    /// of 11 at 603: 50 us a token.
    fn sample() -> SampleTimes {
        SampleTimes {
            issued_ns: 1_000,
            posted_ns: 3_000,
            first_ns: 103_000,
            seen_ns: 603_000,
            completed_ns: 604_000,
            first_residence_us: 80,
            parts: 2,
            parts_after_us: 350,
            parts_residence_us: 335,
            bytes_out: 28,
            bytes_in: 44,
            ..SampleTimes::default()
        }
    }

    #[test]
    fn times_of_tokens_are_what_loadgen_makes_of_them() {
        let mut h = TokenHistograms::new(SIZES);
        h.record(&sample());
        let r = h.record_of(0.5, true);
        let mean = |t| r.times[&t].mean_us;
        assert_eq!(mean(TokenTime::Ttft), 102.0);
        assert_eq!(mean(TokenTime::Tpot), 50.0);
        assert_eq!(mean(TokenTime::FirstAccelerator), 80.0);
        assert_eq!(mean(TokenTime::FirstNetwork), 20.0);
        // What waited here, the accelerator's and the network's are the time to the first token.
        let waited = (sample().posted_ns - sample().issued_ns) as f64 / 1000.0;
        assert_eq!(
            waited + mean(TokenTime::FirstAccelerator) + mean(TokenTime::FirstNetwork),
            mean(TokenTime::Ttft)
        );
        assert_eq!(mean(TokenTime::PartNetwork), 15.0);
        assert_eq!((r.tokens, r.per_s), (11, 22.0));
        assert_eq!((r.input.max, r.output.min, r.parts.p50), (7, 11, 2));
        assert_eq!(r.parts_before_last, 1);
        // TPOT times the tokens after the first, and TTFT, are the latency.
        let latency = (sample().seen_ns - sample().issued_ns) as f64 / 1000.0;
        assert_eq!(
            mean(TokenTime::Ttft) + 10.0 * mean(TokenTime::Tpot),
            latency
        );
    }

    #[test]
    fn one_token_has_no_time_per_token() {
        let mut h = TokenHistograms::new(SIZES);
        for bytes_in in [0, 3, 4] {
            h.record(&SampleTimes {
                bytes_in,
                ..sample()
            });
        }
        let r = h.record_of(1.0, true);
        assert_eq!(r.times[&TokenTime::Tpot].count, 0);
        assert_eq!(r.times[&TokenTime::Ttft].count, 3);
        assert_eq!((r.tokens, r.output.min, r.output.max), (1, 0, 1));
    }

    #[test]
    fn whole_answers_are_said_where_somebody_waits_for_first_tokens() {
        let mut h = TokenHistograms::new(SIZES);
        for (parts, bytes_in) in [(2, 44), (1, 44), (1, 4), (1, 8)] {
            h.record(&SampleTimes {
                parts,
                bytes_in,
                ..sample()
            });
        }
        let mut both = h.clone();
        both.merge(&h);
        for (h, first, whole) in [(&h, true, 2), (&both, true, 4), (&h, false, 0)] {
            let record = h.record_of(1.0, first);
            assert_eq!(record.whole, whole);
            let facts = record.facts();
            let said = facts
                .iter()
                .any(|(_, text)| text.contains("TPOT means nothing"));
            assert_eq!(said, whole > 0, "{facts:?}");
        }
    }

    #[test]
    fn a_first_token_from_before_the_sample_went_again_says_nothing_of_the_network() {
        let mut h = TokenHistograms::new(SIZES);
        h.record(&SampleTimes {
            posted_ns: 200_000,
            ..sample()
        });
        let r = h.record_of(1.0, true);
        assert_eq!(r.times[&TokenTime::FirstNetwork].count, 0);
        assert_eq!(r.times[&TokenTime::Ttft].mean_us, 102.0);
    }

    #[test]
    fn merged_is_recorded_together_and_offline_shows_no_first_tokens() {
        let (mut a, mut b) = (TokenHistograms::new(SIZES), TokenHistograms::new(SIZES));
        a.record(&sample());
        b.record(&SampleTimes {
            bytes_in: 8,
            ..sample()
        });
        a.merge(&b);
        let r = a.record_of(1.0, false);
        assert_eq!((r.tokens, r.output.min, r.output.max), (13, 2, 11));
        assert_eq!(Vec::from_iter(r.times.keys()), [&TokenTime::PartNetwork]);
        let empty = TokenHistograms::new(SIZES).record_of(0.0, true);
        assert_eq!((empty.tokens, empty.output.min), (0, 0));
    }

    #[test]
    fn keys_are_those_of_serde() {
        for time in TokenTime::ALL {
            let json = serde_json::to_string(&time).expect("a string");
            assert_eq!(json, format!("\"{}\"", time.key()));
        }
    }
}
