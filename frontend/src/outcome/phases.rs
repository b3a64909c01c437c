//! The phases of a run as this side sees them, so that each has histograms of its own.
//!
//! LoadGen says nothing when a phase begins, but it passes by here. It issues a series of queries,
//! calls `FlushQueries`, waits for all of their samples, and then either asks for the SUT's name,
//! because it has a performance result (of a performance run, or of one step of find-peak), or it
//! unloads the samples, because they were one set of an accuracy run:
//!
//! ```text
//! load  issue..  flush  (wait)  unload                 a set of samples in accuracy mode
//! load  issue..  flush  (wait)  Name  unload           performance; find-peak's first rates
//!       issue..  flush  (wait)  Name                   find-peak's search between two rates
//! ```
//!
//! So a sample belongs to the series in which it was issued, and the flush is the border. A NIC
//! thread compares a sample's time of issue with the latest border, as read once for a burst; at
//! the first sample beyond it, it hands its histograms over and takes empty ones, which the thread
//! that flushes has made beforehand.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use loadgen_bridge::{Phase, PhaseKind as Said, TestMode};
use qdl::counters::{Histograms, TokenSizes};
use record::{PhaseKind, PhaseRecord};

/// What telling LoadGen of answers took, of some of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Nanoseconds of a call for each sample that it told of.
    pub ns: u64,
    /// Those samples.
    pub samples: u64,
}

impl Told {
    /// A call that took so long and told of so many samples.
    pub fn call(&mut self, ns: u64, samples: usize) {
        let samples = samples as u64;
        self.ns = self.ns.saturating_add(ns.saturating_mul(samples));
        self.samples += samples;
    }

    /// The mean of a sample's call in microseconds; 0 where none was timed.
    pub fn mean_us(&self) -> f64 {
        self.ns as f64 / self.samples.max(1) as f64 / 1000.0
    }

    fn add(&mut self, other: Told) {
        self.ns = self.ns.saturating_add(other.ns);
        self.samples += other.samples;
    }
}

/// What one NIC thread recorded in one series of queries.
#[derive(Debug)]
pub struct Share {
    /// The border before the series; 0 for the first.
    pub series_ns: u64,
    /// Times of its samples.
    pub histograms: Histograms,
    /// When its first sample was issued, on [`fabric::clock`].
    pub first_ns: u64,
    /// When its last one was completed.
    pub last_ns: u64,
    /// What telling LoadGen of them took.
    pub told: Told,
}

/// What all NIC threads recorded in one phase.
#[derive(Debug)]
pub struct Gathered {
    /// Accuracy, or something that is measured.
    kind: Kind,
    /// Times of its samples.
    pub histograms: Histograms,
    first_ns: u64,
    last_ns: u64,
    /// What telling LoadGen of them took.
    pub told: Told,
}

/// What LoadGen's way says of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One set of an accuracy run.
    Accuracy,
    /// A performance run, or a step of find-peak.
    Measured,
    /// It was not brought to its end.
    Open,
}

/// The series so far, and what was recorded in them.
#[derive(Debug)]
struct Book {
    /// The border before each series, and its phase once that is known.
    series: Vec<(u64, Option<usize>)>,
    /// The kind of each phase.
    kinds: Vec<Kind>,
    /// What was handed in, by phase.
    gathered: Vec<Option<Gathered>>,
}

/// Histograms on their way to and from NIC threads.
#[derive(Debug, Default)]
struct Exchange {
    handed: Vec<Share>,
    spare: Vec<Histograms>,
}

/// See the module.
#[derive(Debug)]
pub struct Phases {
    /// The latest border.
    latest_ns: AtomicU64,
    /// LoadGen waits for the samples of a series.
    waits: AtomicBool,
    book: Mutex<Book>,
    exchange: Mutex<Exchange>,
    threads: usize,
    tokens: Option<TokenSizes>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Phases {
    /// For so many threads that record; `tokens` where answers are tokens of these sizes.
    pub fn new(threads: usize, tokens: Option<TokenSizes>) -> Self {
        Phases {
            latest_ns: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            book: Mutex::new(Book {
                series: vec![(0, None)],
                kinds: Vec::new(),
                gathered: Vec::new(),
            }),
            exchange: Mutex::default(),
            threads,
            tokens,
        }
    }

    /// The latest border: what was issued at or after it is of the latest series. Whoever holds a
    /// sample's answer sees the border that the sample was issued behind.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns.load(Relaxed)
    }

    /// All queries of a series were issued.
    pub fn flushed(&self, now_ns: u64) {
        lock(&self.book).series.push((now_ns, None));
        self.latest_ns.store(now_ns, Relaxed);
        self.waits.store(true, Relaxed);
    }

    /// Whether LoadGen waits for the samples of a series that it has issued all of, or works on
    /// what it has heard of them.
    pub fn are_waited_for(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// LoadGen asks for the SUT's name: a series that was just flushed was measured.
    pub fn named(&self) {
        self.waits.store(false, Relaxed);
        let mut book = lock(&self.book);
        book.judge(Kind::Measured);
        // Find-peak goes on without loading anything. A performance run does not go on.
        let goes_on = book.kinds.len() > 1;
        drop(book);
        if goes_on {
            self.prepare();
        }
    }

    /// LoadGen unloads samples: a series that was just flushed, and not named, was a set of an
    /// accuracy run.
    pub fn unloaded(&self) {
        self.waits.store(false, Relaxed);
        lock(&self.book).judge(Kind::Accuracy);
    }

    /// Makes the empty histograms that threads take at the next border. For the thread between two
    /// series, which nobody's clock runs on.
    pub fn prepare(&self) {
        self.gather();
        let missing = self
            .threads
            .saturating_sub(lock(&self.exchange).spare.len());
        let fresh: Vec<Histograms> = (0..missing).map(|_| self.empty()).collect();
        let mut exchange = lock(&self.exchange);
        exchange.spare.extend(fresh);
        exchange.handed.reserve(self.threads);
    }

    /// Takes what a thread recorded in a series that is over, and gives it empty histograms.
    pub fn exchange(&self, share: impl FnOnce(Histograms) -> Share) {
        let mut exchange = lock(&self.exchange);
        // There are enough, but for a thread that takes a second one.
        let empty = exchange.spare.pop().unwrap_or_else(|| self.empty());
        exchange.handed.push(share(empty));
    }

    /// The histograms of all phases as one.
    pub fn total(&self, gathered: &[Gathered]) -> Histograms {
        let mut total = self.empty();
        gathered.iter().for_each(|g| total.merge(&g.histograms));
        total
    }

    fn empty(&self) -> Histograms {
        match self.tokens {
            Some(sizes) => Histograms::of_tokens(sizes),
            None => Histograms::new(),
        }
    }

    /// Adds up what was handed in.
    fn gather(&self) {
        let handed = mem::take(&mut lock(&self.exchange).handed);
        let mut book = lock(&self.book);
        handed.into_iter().for_each(|share| book.add(share));
    }

    /// All phases with at least one sample, with what the threads still had. Call it at the end.
    pub fn end(&self, left: impl IntoIterator<Item = Share>) -> Vec<Gathered> {
        self.gather();
        let mut book = lock(&self.book);
        left.into_iter().for_each(|share| book.add(share));
        mem::take(&mut book.gathered)
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Book {
    /// Says of the series that was flushed last what it was, unless that is known.
    fn judge(&mut self, kind: Kind) {
        let Some(last) = self.series.len().checked_sub(2) else {
            return;
        };
        if self.series[last].1.is_none() {
            self.series[last].1 = Some(self.phase(kind));
        }
    }

    /// The phase of a series of this kind that follows on all others.
    fn phase(&mut self, kind: Kind) -> usize {
        let goes_on = kind == Kind::Accuracy && self.kinds.last() == Some(&kind);
        if !goes_on {
            self.kinds.push(kind);
            self.gathered.push(None);
        }
        self.kinds.len() - 1
    }

    fn add(&mut self, share: Share) {
        if share.histograms.count() == 0 {
            return;
        }
        let at = self
            .series
            .iter()
            .position(|(ns, _)| *ns == share.series_ns);
        let Some(at) = at else { return };
        let phase = match self.series[at].1 {
            Some(phase) => phase,
            // A series that was given up: nobody flushed it, or nobody waited for it.
            None => {
                let phase = self.phase(Kind::Open);
                self.series[at].1 = Some(phase);
                phase
            }
        };
        match &mut self.gathered[phase] {
            Some(g) => {
                g.histograms.merge(&share.histograms);
                g.first_ns = g.first_ns.min(share.first_ns);
                g.last_ns = g.last_ns.max(share.last_ns);
                g.told.add(share.told);
            }
            none => {
                *none = Some(Gathered {
                    kind: self.kinds[phase],
                    histograms: share.histograms,
                    first_ns: share.first_ns,
                    last_ns: share.last_ns,
                    told: share.told,
                });
            }
        }
    }
}

/// When the first sample of each phase was issued, with its name.
pub fn begun(gathered: &[Gathered], said: &[Phase], mode: TestMode) -> Vec<(String, u64)> {
    let names = records(gathered, said, mode).into_iter().map(|r| r.name);
    names.zip(gathered.iter().map(|g| g.first_ns)).collect()
}

/// The phases on record, under LoadGen's names for them: `said` is what its log has, `mode` what
/// it ran.
pub fn records(gathered: &[Gathered], said: &[Phase], mode: TestMode) -> Vec<PhaseRecord> {
    // Where a run was cut short LoadGen may have begun a phase that no sample came back from.
    let said = |i: usize| said.get(i).map(|p| &p.kind);
    let record = |(i, g): (usize, &Gathered)| {
        let seconds = g.last_ns.saturating_sub(g.first_ns) as f64 / 1e9;
        let (name, kind) = match (said(i), g.kind, mode) {
            (Some(Said::Accuracy), ..)
            | (None, Kind::Accuracy, _)
            | (None, Kind::Open, TestMode::AccuracyOnly) => {
                ("accuracy".to_owned(), PhaseKind::Accuracy)
            }
            // A submission begins with accuracy; what came behind a set of it nobody can tell.
            (None, Kind::Open, TestMode::SubmissionRun) => match i {
                0 => ("accuracy".to_owned(), PhaseKind::Accuracy),
                _ => ("unfinished".to_owned(), PhaseKind::Performance),
            },
            (Some(Said::Step { .. }), ..) | (None, _, TestMode::FindPeakPerformance) => {
                (format!("step {}", i + 1), PhaseKind::Step)
            }
            _ => ("performance".to_owned(), PhaseKind::Performance),
        };
        let mut record = PhaseRecord::new(name, kind, g.histograms.table(), seconds);
        if let Some(Said::Step { qps, met }) = said(i) {
            record.asked_per_s = Some(*qps);
            record.kept = *met;
        }
        record
    };
    gathered.iter().enumerate().map(record).collect()
}

#[cfg(test)]
mod tests {
    use qdl::counters::SampleTimes;

    use super::*;

    /// One thread's share of the series behind `series_ns`: samples from `first_ns` on.
    fn share(series_ns: u64, samples: u64) -> Share {
        let mut histograms = Histograms::new();
        (0..samples).for_each(|_| histograms.record(&SampleTimes::default()));
        Share {
            series_ns,
            histograms,
            first_ns: series_ns + 5,
            last_ns: series_ns + 1_000_000_005,
            told: Told::default(),
        }
    }

    fn kinds(gathered: &[Gathered]) -> Vec<(Kind, u64)> {
        let each = gathered.iter();
        each.map(|g| (g.kind, g.histograms.count())).collect()
    }

    #[test]
    fn a_submission_run_is_two_phases_however_many_sets_it_loads() {
        let phases = Phases::new(2, None);
        phases.named();
        for border in [100, 200, 300] {
            phases.flushed(border);
            phases.unloaded();
            phases.prepare();
            phases.exchange(|_| share(border - 100, 4));
            phases.exchange(|_| share(border - 100, 1));
        }
        phases.flushed(400);
        phases.named();
        phases.unloaded();
        let gathered = phases.end([share(300, 7), share(300, 1)]);
        assert_eq!(
            kinds(&gathered),
            [(Kind::Accuracy, 15), (Kind::Measured, 8)]
        );
        let records = records(&gathered, &[], TestMode::SubmissionRun);
        let names: Vec<_> = records.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["accuracy", "performance"]);
        assert_eq!((records[1].samples, records[1].per_s), (8, 8.0));
        // Its sets were issued one after the other.
        assert!((records[0].duration_s - 1.0).abs() < 1e-6);
    }

    #[test]
    fn each_step_of_find_peak_is_a_phase_though_some_share_their_samples() {
        let phases = Phases::new(1, None);
        for (border, unloads) in [(100, true), (200, true), (300, false), (400, true)] {
            phases.flushed(border);
            phases.named();
            if unloads {
                phases.unloaded();
            }
        }
        // A thread that no sample of a step came to hands in late.
        phases.exchange(|_| share(0, 1));
        phases.exchange(|_| share(200, 3));
        let gathered = phases.end([share(300, 4), share(100, 2)]);
        let expected = [1, 2, 3, 4].map(|n| (Kind::Measured, n));
        assert_eq!(kinds(&gathered), expected);
        let step = |qps, met| Phase {
            kind: Said::Step { qps, met },
            series: 1,
            queries: 1,
            samples: 1,
        };
        let said = [
            step(10.0, Some(true)),
            step(20.0, Some(false)),
            step(15.0, Some(true)),
            step(17.5, None),
        ];
        let records = records(&gathered, &said, TestMode::FindPeakPerformance);
        let shown: Vec<_> = records
            .iter()
            .map(|r| (r.name.as_str(), r.asked_per_s, r.kept, r.samples))
            .collect();
        let expected = [
            ("step 1", Some(10.0), Some(true), 1),
            ("step 2", Some(20.0), Some(false), 2),
            ("step 3", Some(15.0), Some(true), 3),
            ("step 4", Some(17.5), None, 4),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_run_that_is_given_up_keeps_what_it_had() {
        let phases = Phases::new(1, None);
        let gathered = phases.end([share(0, 3), share(0, 0)]);
        assert_eq!(kinds(&gathered), [(Kind::Open, 3)]);
        let name = |mode| records(&gathered, &[], mode)[0].name.clone();
        assert_eq!(name(TestMode::AccuracyOnly), "accuracy");
        assert_eq!(name(TestMode::SubmissionRun), "accuracy");
        assert_eq!(name(TestMode::PerformanceOnly), "performance");
    }

    #[test]
    fn threads_take_what_was_made_beforehand() {
        let phases = Phases::new(3, None);
        phases.prepare();
        assert_eq!(lock(&phases.exchange).spare.len(), 3);
        phases.exchange(|_| share(0, 1));
        assert_eq!(lock(&phases.exchange).spare.len(), 2);
        phases.prepare();
        assert_eq!(lock(&phases.exchange).spare.len(), 3);
        assert_eq!(lock(&phases.exchange).handed.len(), 0);
    }
}
