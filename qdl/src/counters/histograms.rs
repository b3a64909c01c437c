//! Latency histograms by stage, with exact sums and maxima.

use hdrhistogram::Histogram;

use record::{Stage, StageRow, StageTable, TokenTime};

use super::{Octaves, SampleTimes, TokenHistograms, TokenLimits, TokenSizes, values::Values};

/// Times of samples by stage, from 1 ns to 1 h with 3 significant figures.
///
/// Allocates about 2 MiB when it is created; recording allocates nothing. Exact sums and maxima
/// beside the counts make means exact and additive.
#[derive(Clone, Debug)]
pub struct Histograms {
    stages: [Values; Stage::COUNT],
    count: u64,
    uneven: u64,
    limits: Option<TokenLimits>,
    /// Samples within the limits, and the tokens of their answers.
    good: [u64; 2],
    /// Token histograms; `None` if answers are not tokens.
    tokens: Option<Box<TokenHistograms>>,
}

impl Default for Histograms {
    fn default() -> Self {
        Histograms::new()
    }
}

impl Histograms {
    /// Creates empty histograms.
    pub fn new() -> Self {
        Histograms {
            stages: [(); Stage::COUNT].map(|()| Values::new()),
            count: 0,
            uneven: 0,
            limits: None,
            good: [0; 2],
            tokens: None,
        }
    }

    /// Creates empty histograms for answers in tokens.
    pub fn of_tokens(sizes: TokenSizes) -> Self {
        Histograms {
            tokens: Some(Box::new(TokenHistograms::new(sizes))),
            ..Histograms::new()
        }
    }

    /// Counts the samples within `limits` too.
    #[must_use]
    pub fn limited(mut self, limits: Option<TokenLimits>) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the samples within the limits and their tokens; `None` without limits.
    pub fn good(&self) -> Option<[u64; 2]> {
        self.limits.map(|_| self.good)
    }

    /// Returns the token histograms; `None` if answers are not tokens.
    pub fn tokens(&self) -> Option<&TokenHistograms> {
        self.tokens.as_deref()
    }

    /// Records one sample.
    pub fn record(&mut self, times: &SampleTimes) {
        self.record_alike(times, 1);
    }

    pub(crate) fn record_alike(&mut self, times: &SampleTimes, n: u64) {
        let (ns, adds_up) = times.split();
        self.count += n;
        for (i, (values, ns)) in self.stages.iter_mut().zip(ns).enumerate() {
            // Few samples fail. Reading the stage adds the zeros of the samples that did not.
            if ns == 0 && Stage::ALL[i].is_rare() {
                continue;
            }
            values.record(ns, n);
        }
        self.uneven += if adds_up { 0 } else { n };
        if let Some(limits) = self.limits {
            let tokens = self.tokens();
            let tokens = tokens.map_or(0, |t| t.in_answer(u64::from(times.bytes_in)));
            if limits.hold(times, tokens) {
                self.good[0] += n;
                self.good[1] += n * tokens;
            }
        }
        if let Some(tokens) = &mut self.tokens {
            (0..n).for_each(|_| tokens.record(times));
        }
    }

    /// Adds the samples of another thread.
    pub fn merge(&mut self, other: &Histograms) {
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            mine.merge(theirs);
        }
        self.count += other.count;
        self.uneven += other.uneven;
        self.limits = self.limits.or(other.limits);
        for (mine, theirs) in self.good.iter_mut().zip(other.good) {
            *mine += theirs;
        }
        match (&mut self.tokens, &other.tokens) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            (None, Some(theirs)) => self.tokens = Some(theirs.clone()),
            (_, None) => {}
        }
    }

    /// Returns the number of samples recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the samples whose stages do not add up to their total ([`SampleTimes::split`]).
    pub fn uneven(&self) -> u64 {
        self.uneven
    }

    /// Builds the histogram of one stage from the samples recorded so far, in nanoseconds.
    pub fn stage(&self, stage: Stage) -> Histogram<u64> {
        let mut histogram = self.stages[stage as usize].histogram();
        if stage.is_rare() {
            let _ = histogram.record_n(0, self.count.saturating_sub(histogram.len()));
        }
        histogram
    }

    /// Returns an upper estimate of a stage's quantile so far (`0.99` for p99), in nanoseconds.
    pub(crate) fn quantile_ns(&self, stage: Stage, quantile: f64) -> u64 {
        self.stages[stage as usize].quantile(quantile, self.count)
    }

    /// Returns the time of this index in [`Histograms::all`] by octave; nothing for other indexes.
    pub(crate) fn octaves(&self, index: usize) -> Octaves {
        let tokens = self.tokens().into_iter().flat_map(|t| &t.times);
        let values = self.stages.iter().chain(tokens).nth(index);
        let mut octaves = values.map(Values::octaves).unwrap_or_default();
        if Stage::ALL.get(index).is_some_and(|stage| stage.is_rare()) {
            octaves.0[0] += self.count.saturating_sub(self.stages[index].count());
        }
        octaves
    }

    /// Returns every histogram of times with its key.
    pub fn all(&self) -> Vec<(&'static str, Histogram<u64>)> {
        let stages = Stage::ALL.iter().map(|s| (s.key(), self.stage(*s)));
        let tokens = self.tokens().into_iter();
        let tokens =
            tokens.flat_map(|t| TokenTime::ALL.map(|time| (time.key(), t.histogram(time))));
        stages.chain(tokens).collect()
    }

    /// Returns a row of figures for each stage.
    pub fn table(&self) -> StageTable {
        StageTable::new(Stage::ALL.iter().map(|&s| (s, self.row(s))))
    }

    fn row(&self, stage: Stage) -> StageRow {
        self.stages[stage as usize].row(&self.stage(stage))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::counters::values::LONGEST_NS;

    /// A sample whose total is `ns` and whose other stages are 0.
    fn total(ns: u64) -> SampleTimes {
        SampleTimes {
            completed_ns: ns,
            ..SampleTimes::default()
        }
    }

    fn times() -> impl Strategy<Value = Vec<u64>> {
        // From nanoseconds to an hour, each magnitude equally likely.
        let one = (0u32..42, any::<u64>()).prop_map(|(bits, x)| (x % (2 << bits)).min(LONGEST_NS));
        prop::collection::vec(one, 1..1200)
    }

    fn close(found_us: f64, exact_ns: u64) -> bool {
        let (found, exact) = ((found_us * 1000.0).round() as u64, exact_ns);
        found >= exact && found <= exact + exact / 1000 + 1
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn percentiles_are_those_of_the_sorted_times(mut ns in times()) {
            let mut h = Histograms::new();
            ns.iter().for_each(|&t| h.record(&total(t)));
            ns.sort_unstable();
            let row = h.row(Stage::Total);
            let rank = |thousandths: usize| ns[(ns.len() * thousandths).div_ceil(1000) - 1];
            for (found, thousandths) in
                [(row.p50_us, 500), (row.p90_us, 900), (row.p99_us, 990), (row.p999_us, 999)]
            {
                prop_assert!(close(found, rank(thousandths)), "{thousandths}: {found} us, {} ns", rank(thousandths));
            }
            prop_assert_eq!(row.max_us, ns[ns.len() - 1] as f64 / 1000.0);
            let mean = ns.iter().map(|&t| u128::from(t)).sum::<u128>() as f64 / ns.len() as f64;
            prop_assert!((row.mean_us * 1000.0 - mean).abs() <= 0.51 + mean * 1e-12);
            prop_assert_eq!(row.count, ns.len() as u64);
        }

        /// Recording n identical samples at once equals recording them one by one.
        #[test]
        fn samples_alike_count_as_one_by_one(ns in times(), n in 0u64..200) {
            let (mut at_once, mut apart) = (Histograms::new(), Histograms::new());
            for &t in ns.iter().take(20) {
                at_once.record_alike(&total(t), n);
                (0..n).for_each(|_| apart.record(&total(t)));
            }
            prop_assert_eq!((at_once.count, at_once.uneven), (apart.count, apart.uneven));
            if n > 0 {
                prop_assert_eq!(at_once.table(), apart.table());
            }
        }

        /// The buckets and quantiles equal those of an hdrhistogram.
        #[test]
        fn a_stage_is_what_an_hdrhistogram_would_have_recorded(ns in times(), q in 0.0f64..1.0) {
            let (mut h, mut theirs) = (Histograms::new(), Values::new().histogram());
            for &t in &ns {
                h.record(&total(t));
                theirs.saturating_record(t);
            }
            prop_assert_eq!(&h.stage(Stage::Total), &theirs);
            let exact = theirs.value_at_quantile(q).min(ns.iter().copied().max().unwrap_or(0));
            let next = theirs.value_at_quantile((q + 1e-9).min(1.0));
            let found = h.quantile_ns(Stage::Total, q);
            prop_assert!(exact <= found && found <= next, "{exact} {found} {next}");
        }

        #[test]
        fn merged_is_the_same_as_recorded_together(a in times(), b in times()) {
            let (mut apart, mut other, mut together) =
                (Histograms::new(), Histograms::new(), Histograms::new());
            for &t in &a { apart.record(&total(t)); together.record(&total(t)); }
            for &t in &b { other.record(&total(t)); together.record(&total(t)); }
            apart.merge(&other);
            prop_assert_eq!(apart.table(), together.table());
            prop_assert_eq!(apart.uneven(), together.uneven());
            prop_assert_eq!(apart.count(), (a.len() + b.len()) as u64);
        }
    }

    #[test]
    fn a_sample_at_both_limits_is_good_and_one_beyond_any_is_not() {
        let answer = |first_ns, seen_ns, bytes_in| SampleTimes {
            issued_ns: 10,
            first_ns,
            seen_ns,
            completed_ns: seen_ns + 5,
            bytes_in,
            ..SampleTimes::default()
        };
        // Three tokens: 100 ns to the first, 50 ns to each of two further ones.
        let at = answer(110, 210, 12);
        let (input, output) = (4, 4);
        let sizes = TokenSizes { input, output };
        let (ttft_ns, tpot_ns) = (100, 50);
        let limits = TokenLimits { ttft_ns, tpot_ns };
        let mut h = Histograms::of_tokens(sizes).limited(Some(limits));
        h.record(&at);
        for late in [
            answer(111, 210, 12),
            answer(110, 212, 12),
            answer(110, 110, 4),
        ] {
            h.record(&late);
        }
        assert_eq!((h.good(), h.count()), (Some([1, 3]), 4));
        let mut all = Histograms::of_tokens(sizes);
        assert_eq!(all.good(), None);
        all.merge(&h);
        all.merge(&h);
        assert_eq!(all.good(), Some([2, 6]));
    }

    #[test]
    fn more_than_an_hour_still_shows() {
        let mut h = Histograms::new();
        h.record(&total(2 * LONGEST_NS));
        let row = h.row(Stage::Total);
        assert_eq!(row.max_us, 7_200_000_000.0);
        assert!(close(row.p50_us, LONGEST_NS));
        assert_eq!(row.mean_us, 7_200_000_000.0);
    }

    #[test]
    fn nothing_recorded_is_all_zero() {
        assert_eq!(Histograms::new().row(Stage::Network), StageRow::default());
    }
}
