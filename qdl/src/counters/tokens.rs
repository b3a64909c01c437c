//! Histograms of times and lengths of answers in tokens.

use hdrhistogram::Histogram;
use record::{CountRow, TokenRecord, TokenTime, rate_per_s};

use super::{
    SampleTimes,
    values::{Values, quantiles},
};

/// Bytes of one token in a prompt (with masks, if any) and in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSizes {
    /// Bytes of a prompt's token.
    pub input: u32,
    /// Bytes of an answer's token.
    pub output: u32,
}

/// Numbers of tokens or parts per answer or prompt, with the exact minimum.
#[derive(Clone, Debug)]
struct Lengths {
    values: Values,
    min: u64,
}

impl Lengths {
    fn new() -> Self {
        Lengths {
            values: Values::new(),
            min: u64::MAX,
        }
    }

    fn record(&mut self, value: u64) {
        self.values.record(value, 1);
        self.min = self.min.min(value);
    }

    fn merge(&mut self, other: &Lengths) {
        self.values.merge(&other.values);
        self.min = self.min.min(other.min);
    }

    fn sum(&self) -> u64 {
        u64::try_from(self.values.sum()).unwrap_or(u64::MAX)
    }

    fn row(&self) -> CountRow {
        let (histogram, max) = (self.values.histogram(), self.values.max());
        let [p50, p99] = quantiles(&histogram, [500, 990]);
        CountRow {
            min: if max == 0 { 0 } else { self.min },
            p50: p50.min(max),
            mean: (self.values.mean(histogram.len()) * 1000.0).round() / 1000.0,
            p99: p99.min(max),
            max,
        }
    }
}

/// Times and lengths of answers in tokens. Allocates memory only in `new`.
#[derive(Clone, Debug)]
pub struct TokenHistograms {
    sizes: TokenSizes,
    pub(super) times: [Values; TokenTime::COUNT],
    input: Lengths,
    output: Lengths,
    parts: Lengths,
    /// Answers of several tokens that all came in the first part.
    whole: u64,
}

impl TokenHistograms {
    pub(crate) fn new(sizes: TokenSizes) -> Self {
        TokenHistograms {
            sizes,
            times: [(); TokenTime::COUNT].map(|()| Values::new()),
            input: Lengths::new(),
            output: Lengths::new(),
            parts: Lengths::new(),
            whole: 0,
        }
    }

    pub(crate) fn record(&mut self, t: &SampleTimes) {
        let tokens = self.in_answer(u64::from(t.bytes_in));
        let size = self.sizes.input.max(1);
        self.input.record(u64::from(t.bytes_out / size));
        self.output.record(tokens);
        self.parts.record(u64::from(t.parts));
        let later = tokens.saturating_sub(self.in_answer(u64::from(t.first_bytes)));
        self.whole += u64::from(tokens > 1 && later == 0);
        self.time(TokenTime::Ttft, t.ttft_ns());
        if let Some(ns) = t.tpot_ns(later) {
            self.time(TokenTime::Tpot, ns);
        }
        // After a retry, the first token may have come before the last post.
        if let Some(after) = t.first_ns.checked_sub(t.posted_ns) {
            // The accelerator reports whole microseconds, which may exceed `after` by rounding.
            let theirs = after.min(u64::from(t.first_residence_us) * 1000);
            self.time(TokenTime::FirstAccelerator, theirs);
            self.time(TokenTime::FirstNetwork, after - theirs);
        }
        let us = t.parts_after_us.saturating_sub(t.parts_residence_us);
        self.time(TokenTime::PartNetwork, u64::from(us) * 1000);
    }

    fn time(&mut self, time: TokenTime, ns: u64) {
        self.times[time as usize].record(ns, 1);
    }

    /// Adds the samples of another thread.
    pub(crate) fn merge(&mut self, other: &TokenHistograms) {
        for (mine, theirs) in self.times.iter_mut().zip(&other.times) {
            mine.merge(theirs);
        }
        self.input.merge(&other.input);
        self.output.merge(&other.output);
        self.parts.merge(&other.parts);
        self.whole += other.whole;
    }

    pub(crate) fn in_answer(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.sizes.output.max(1))
    }

    /// Returns the number of tokens of all answers.
    pub fn tokens(&self) -> u64 {
        self.output.sum()
    }

    /// Returns the number of parts of all answers, without last parts.
    pub(crate) fn parts_before_last(&self) -> u64 {
        self.parts.sum().saturating_sub(self.parts.values.count())
    }

    /// Returns the histogram of `time`, in nanoseconds.
    pub(crate) fn histogram(&self, time: TokenTime) -> Histogram<u64> {
        self.times[time as usize].histogram()
    }

    /// Returns an upper estimate of a quantile of `time` so far, in ns. Allocates nothing.
    pub(crate) fn quantile_ns(&self, time: TokenTime, quantile: f64) -> u64 {
        let values = &self.times[time as usize];
        values.quantile(quantile, values.count())
    }

    /// Returns the record of a run of `duration_s` seconds, without the frontend's own counts.
    /// Includes times of the first token only if `first` is true: LoadGen measures first tokens.
    pub fn record_of(&self, duration_s: f64, first: bool) -> TokenRecord {
        let shown = |time: &&TokenTime| first || **time == TokenTime::PartNetwork;
        let row = |time: &TokenTime| {
            let values = &self.times[*time as usize];
            (*time, values.row(&values.histogram()))
        };
        TokenRecord {
            tokens: self.tokens(),
            per_s: rate_per_s(self.tokens(), duration_s),
            times: TokenTime::ALL.iter().filter(shown).map(row).collect(),
            input: self.input.row(),
            output: self.output.row(),
            parts: self.parts.row(),
            whole: if first { self.whole } else { 0 },
            parts_before_last: self.parts_before_last(),
            ..TokenRecord::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: TokenSizes = TokenSizes {
        input: 4,
        output: 4,
    };

    /// Issue at 1 us, post at 3, first token at 103 with 80 us on the accelerator, the last of 11
    /// tokens at 603: 50 us per token.
    fn sample() -> SampleTimes {
        SampleTimes {
            issued_ns: 1_000,
            posted_ns: 3_000,
            first_ns: 103_000,
            seen_ns: 603_000,
            completed_ns: 604_000,
            first_residence_us: 80,
            first_bytes: 4,
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
        // TTFT is the wait before the post plus the accelerator's and the network's time.
        let waited = (sample().posted_ns - sample().issued_ns) as f64 / 1000.0;
        assert_eq!(
            waited + mean(TokenTime::FirstAccelerator) + mean(TokenTime::FirstNetwork),
            mean(TokenTime::Ttft)
        );
        assert_eq!(mean(TokenTime::PartNetwork), 15.0);
        assert_eq!((r.tokens, r.per_s), (11, 22.0));
        assert_eq!((r.input.max, r.output.min, r.parts.p50), (7, 11, 2));
        assert_eq!(r.parts_before_last, 1);
        // The latency is TTFT plus TPOT times the tokens after the first.
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
    fn a_time_per_token_leaves_out_the_tokens_of_the_first_event() {
        let mut h = TokenHistograms::new(SIZES);
        h.record(&SampleTimes {
            first_bytes: 24,
            ..sample()
        });
        assert_eq!(
            h.record_of(1.0, true).times[&TokenTime::Tpot].mean_us,
            100.0
        );
    }

    #[test]
    fn whole_answers_are_reported_where_first_tokens_count() {
        let mut h = TokenHistograms::new(SIZES);
        // An empty last part brings no token.
        for (first_bytes, bytes_in, parts) in [(4, 44, 2), (44, 44, 2), (4, 4, 1), (8, 8, 1)] {
            h.record(&SampleTimes {
                first_bytes,
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
}
