//! The recorder of a NIC thread's samples.

use std::{
    array::from_fn,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::LatencyTicks;
use crate::counters::{Histograms, Live, Octaves, SampleTimes, live::TIMES};
use record::{Stage, TokenTime};

/// Minimum time between computations of a p99, each of which takes microseconds of the NIC thread.
const P99_EVERY_NS: u64 = 250_000_000;

type Observer = Box<dyn FnMut(&SampleTimes, u64) + Send>;

/// Histograms and counts of the samples of one share of a NIC. One thread at a time uses a
/// recorder. It allocates memory only in its constructors.
pub struct Recorder {
    histograms: Histograms,
    first_ns: u64,
    last_ns: u64,
    observer: Option<Observer>,
    completed: u64,
    bytes_out: u64,
    bytes_in: u64,
    parts: u64,
    moving: u64,
    ticks: LatencyTicks,
    live: Arc<Live>,
    share: usize,
    p99_due_ns: u64,
    p99_of: u64,
    /// Times of the exchanged histograms, and the index of the time to publish next.
    exchanged: [Octaves; TIMES],
    next_time: usize,
}

impl Recorder {
    /// Creates a recorder for a share of `live`; an unknown index publishes nothing.
    pub fn new(live: Arc<Live>, share: usize) -> Self {
        Recorder::with(live, share, Histograms::new())
    }

    /// Creates a recorder that records into `histograms`.
    pub fn with(live: Arc<Live>, share: usize, histograms: Histograms) -> Self {
        Recorder {
            histograms,
            first_ns: u64::MAX,
            last_ns: 0,
            observer: None,
            completed: 0,
            bytes_out: 0,
            bytes_in: 0,
            parts: 0,
            moving: 0,
            ticks: LatencyTicks::default(),
            live,
            share,
            p99_due_ns: 0,
            p99_of: 0,
            exchanged: Default::default(),
            next_time: 0,
        }
    }

    /// Passes times and number of each burst of alike samples to `observer` too.
    #[must_use]
    pub fn observed(mut self, observer: impl FnMut(&SampleTimes, u64) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Counts `n` parts other than last parts, and publishes `moving` of these at once as progress.
    /// `moving` excludes parts of samples that were sent again.
    pub fn parts(&mut self, n: u64, moving: u64) {
        self.parts += n;
        self.moving += moving;
        self.live
            .show(self.share, |s| s.parts.store(self.moving, Relaxed));
    }

    /// Returns the number of parts counted.
    pub fn parts_taken(&self) -> u64 {
        self.parts
    }

    /// Records one completed sample.
    pub fn record(&mut self, times: &SampleTimes) {
        self.record_alike(times, 1);
    }

    /// Records `n` completed samples with identical times, at the cost of one sample.
    pub(crate) fn record_alike(&mut self, times: &SampleTimes, n: u64) {
        self.histograms.record_alike(times, n);
        self.ticks.record(times, n, &self.live, self.share);
        self.completed += n;
        self.bytes_out += n * u64::from(times.bytes_out);
        self.bytes_in += n * u64::from(times.bytes_in);
        self.first_ns = self.first_ns.min(times.issued_ns);
        self.last_ns = self.last_ns.max(times.completed_ns);
        if let Some(observer) = &mut self.observer {
            observer(times, n);
        }
    }

    /// Issue time of the first sample since the last [exchange](Self::exchange); else `u64::MAX`.
    pub fn first_ns(&self) -> u64 {
        self.first_ns
    }

    /// Completion time of the last sample; 0 without samples.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Publishes the figures in [`Live`]; call this once per burst. Computes the p99 at most four
    /// times a second, and only after new samples.
    pub fn show(&mut self, now_ns: u64) {
        self.live.show(self.share, |s| {
            s.completed.store(self.completed, Relaxed);
            s.bytes_out.store(self.bytes_out, Relaxed);
            s.bytes_in.store(self.bytes_in, Relaxed);
            s.tokens.store(self.tokens(), Relaxed);
        });
        if now_ns >= self.p99_due_ns && self.completed > self.p99_of {
            self.p99_due_ns = now_ns.saturating_add(P99_EVERY_NS);
            self.p99_of = self.completed;
            let p99 = self.histograms.quantile_ns(Stage::RoundTrip, 0.99);
            let tokens = self.histograms.tokens();
            let ttft = tokens.map(|tokens| tokens.quantile_ns(TokenTime::Ttft, 0.99));
            self.live.show(self.share, |s| {
                s.p99_round_trip_ns.store(p99, Relaxed);
                ttft.into_iter()
                    .for_each(|ns| s.p99_ttft_ns.store(ns, Relaxed));
            });
            if self.live.times_wanted.load(Relaxed) {
                // One at a turn: a time costs about as much as a p99.
                self.show_time(self.next_time);
                self.next_time = (self.next_time + 1) % TIMES;
            }
        }
    }

    /// Tokens in all answers, of all series: an exchange of the histograms keeps the bytes.
    pub fn tokens(&self) -> u64 {
        let tokens = self.histograms.tokens();
        tokens.map_or(0, |tokens| tokens.in_answer(self.bytes_in))
    }

    /// Publishes a time by octave and returns it, since the recorder began.
    fn show_time(&self, index: usize) -> Octaves {
        let mut now = self.exchanged[index];
        now.add(&self.histograms.octaves(index));
        self.live.show_time(self.share, index, &now);
        now
    }

    /// Returns the number of samples recorded.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns the payload bytes of the samples' requests.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out
    }

    /// Returns the payload bytes of the samples' responses.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    /// Takes the latencies by tick, at the end of the run, and publishes all times.
    pub fn take_ticks(&mut self) -> LatencyTicks {
        for index in 0..TIMES {
            self.show_time(index);
        }
        std::mem::take(&mut self.ticks)
    }

    /// Replaces the histograms and returns the old ones. The counts stay.
    pub fn exchange(&mut self, histograms: Histograms) -> Histograms {
        self.first_ns = u64::MAX;
        self.exchanged = from_fn(|index| self.show_time(index));
        std::mem::replace(&mut self.histograms, histograms)
    }

    /// Returns the histograms at the end of the run.
    pub fn into_histograms(self) -> Histograms {
        self.histograms
    }

    #[cfg(test)]
    pub(crate) fn merge<'a>(recorders: impl IntoIterator<Item = &'a Recorder>) -> Histograms {
        let mut all = Histograms::new();
        for recorder in recorders {
            all.merge(&recorder.histograms);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{TokenHistograms, TokenSizes};
    use record::Figures;

    fn sample(round_trip_ns: u64) -> SampleTimes {
        SampleTimes {
            seen_ns: round_trip_ns,
            completed_ns: round_trip_ns,
            bytes_out: 100,
            bytes_in: 8,
            ..SampleTimes::default()
        }
    }

    #[test]
    fn figures_are_the_sum_over_nic_threads_and_the_highest_p99() {
        let live = Arc::new(Live::new(2));
        let mut a = Recorder::new(live.clone(), 0);
        let mut b = Recorder::new(live.clone(), 1);
        for _ in 0..10 {
            a.record(&sample(1_000));
            b.record(&sample(50_000));
        }
        assert_eq!(
            live.figures(),
            Figures::default(),
            "nothing before it is shown"
        );
        a.show(1);
        b.show(1);
        assert_eq!(
            live.figures(),
            Figures {
                completed: 20,
                bytes_out: 2_000,
                bytes_in: 160,
                p99_round_trip_ns: 50_000,
                ..Figures::default()
            }
        );
        assert_eq!(Recorder::merge([&a, &b]).count(), 20);
    }

    #[test]
    fn published_times_are_those_of_the_histograms_of_all_series_and_shares() {
        let live = Arc::new(Live::new(2));
        let (mut all, mut a) = (Histograms::new(), Recorder::new(live.clone(), 0));
        let mut b = Recorder::new(live.clone(), 1);
        assert_eq!(live.times(), [], "no sample");
        for ns in [0, 4_095, 4_096, 70_000, u64::from(u32::MAX) << 10] {
            for recorder in [&mut a, &mut b] {
                recorder.record(&sample(ns));
                all.record(&sample(ns));
            }
            a.exchange(Histograms::new());
        }
        [a, b].iter_mut().for_each(|r| drop(r.take_ticks()));
        let times = live.times();
        assert_eq!(times.len(), Stage::COUNT);
        for (index, ((key, octaves), (of, histogram))) in times.iter().zip(all.all()).enumerate() {
            assert_eq!((*key, *octaves), (of, all.octaves(index)));
            let mut below = 0;
            for (bound_ns, n) in octaves.counts() {
                below += n;
                assert_eq!(below, histogram.count_between(0, bound_ns - 1), "{key}");
            }
            assert_eq!(below, histogram.len(), "{key}");
        }
    }

    #[test]
    fn a_p99_is_shown_when_it_is_due() {
        let live = Arc::new(Live::new(1));
        let mut r = Recorder::new(live.clone(), 0);
        let p99 = || live.figures().p99_round_trip_ns;
        r.record(&sample(1_000));
        r.show(10);
        assert_eq!(p99(), 1_000);
        r.record(&sample(9_000));
        r.show(10 + P99_EVERY_NS - 1);
        assert_eq!((p99(), live.figures().completed), (1_000, 2));
        r.show(10 + P99_EVERY_NS);
        assert_eq!(p99(), 9_000);
    }

    #[test]
    fn parts_show_at_once_and_tokens_with_the_rest() {
        let live = Arc::new(Live::new(1));
        let sizes = TokenSizes {
            input: 4,
            output: 4,
        };
        let mut r = Recorder::with(live.clone(), 0, Histograms::of_tokens(sizes));
        r.parts(3, 2);
        assert_eq!((live.figures().parts, r.parts_taken()), (2, 3));
        r.record(&SampleTimes {
            first_ns: 700,
            parts: 4,
            bytes_in: 400,
            ..sample(9_000)
        });
        assert_eq!(live.figures().tokens, 0);
        r.show(1);
        let figures = live.figures();
        assert_eq!((figures.tokens, figures.p99_ttft_ns), (100, 700));
        let merged = Recorder::merge([&r]);
        assert_eq!(merged.tokens().map(TokenHistograms::tokens), Some(100));
        // A new series of queries begins with empty histograms.
        r.exchange(Histograms::of_tokens(sizes));
        r.show(2);
        assert_eq!(live.figures().tokens, 100);
    }

    #[test]
    fn a_nic_thread_without_a_place_shows_nothing() {
        let live = Arc::new(Live::new(1));
        let mut r = Recorder::new(live.clone(), 7);
        r.record(&sample(5));
        r.show(1);
        assert_eq!(live.figures(), Figures::default());
        assert_eq!(r.completed(), 1);
    }
}
