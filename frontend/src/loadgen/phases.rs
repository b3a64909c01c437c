//! Detects LoadGen's phases, and keeps histograms for each phase.
//!
//! LoadGen does not announce a phase, but its calls reveal it. It issues a series of queries, calls
//! `FlushQueries` and waits for all samples. After a performance result (a performance run, or one
//! step of find-peak) it asks for the SUT's name. After one set of an accuracy run it unloads the
//! samples:
//!
//! ```text
//! load  issue..  flush  (wait)  unload                 a set of samples in accuracy mode
//! load  issue..  flush  (wait)  Name  unload           performance; find-peak's first rates
//!       issue..  flush  (wait)  Name                   find-peak's search between two rates
//! ```
//!
//! A sample belongs to the series in which it is issued; a flush is the border between two series.
//! A NIC thread reads the time of the latest border once per burst, and compares it with each
//! sample's issue time. At the first sample issued after the border the thread hands its histograms
//! over and takes prepared empty ones.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use fabric::os::lock;
use loadgen_bridge::{Phase, PhaseKind as Logged, TestMode};
use qdl::counters::Histograms;
use record::{PhaseKind, PhaseRecord};

/// Time spent in calls to LoadGen, over the timed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTime {
    /// Sum over the samples of the duration of the sample's call, in nanoseconds.
    pub ns: u64,
    /// Number of samples in timed calls.
    pub samples: u64,
}

impl CallTime {
    /// Adds a call of `ns` nanoseconds that completed `samples` samples.
    pub fn add_call(&mut self, ns: u64, samples: usize) {
        let samples = samples as u64;
        self.ns = self.ns.saturating_add(ns.saturating_mul(samples));
        self.samples += samples;
    }

    /// Returns the mean call time of a sample in microseconds; 0 without timed calls.
    pub fn mean_us(&self) -> f64 {
        self.ns as f64 / self.samples.max(1) as f64 / 1000.0
    }

    fn add(&mut self, other: CallTime) {
        self.ns = self.ns.saturating_add(other.ns);
        self.samples += other.samples;
    }
}

/// Records of one NIC thread in one series of queries.
#[derive(Debug)]
pub struct Share {
    /// Time of the border before the series; 0 for the first series.
    pub series_ns: u64,
    pub histograms: Histograms,
    /// Time at which the thread's first sample was issued, on [`fabric::clock`].
    pub first_ns: u64,
    pub last_ns: u64,
    /// Time spent in calls to LoadGen for the thread's samples.
    pub call_time: CallTime,
}

/// Merged records of all NIC threads in one phase.
#[derive(Debug)]
pub struct PhaseShare {
    kind: SeriesKind,
    pub share: Share,
}

/// Kind of a series, derived from LoadGen's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeriesKind {
    /// One set of an accuracy run.
    Accuracy,
    /// A performance run, or a step of find-peak.
    Measured,
    /// A series that did not end.
    Open,
}

/// All series so far, and the records of the phases to which the series belong.
#[derive(Debug)]
struct SeriesBook {
    /// Time of the border before each series, and the index of the series' phase once known.
    series: Vec<(u64, Option<usize>)>,
    /// The kind of each phase, and the merged records of its series.
    phases: Vec<(SeriesKind, Option<Share>)>,
}

/// Histograms in transit from and to NIC threads.
#[derive(Debug, Default)]
struct Exchange {
    handed: Vec<Share>,
    spare: Vec<Histograms>,
}

/// Detects the phases and collects the records of all NIC threads.
#[derive(Debug)]
pub struct Phases {
    latest_ns: AtomicU64,
    /// True while LoadGen waits for the samples of a series.
    waits: AtomicBool,
    book: Mutex<SeriesBook>,
    exchange: Mutex<Exchange>,
    threads: usize,
    empty: Histograms,
}

impl Phases {
    /// Creates the phases for `threads` recording threads, each with a copy of `empty`.
    pub fn new(threads: usize, empty: Histograms) -> Self {
        Phases {
            latest_ns: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            book: Mutex::new(SeriesBook {
                series: vec![(0, None)],
                phases: Vec::new(),
            }),
            exchange: Mutex::default(),
            threads,
            empty,
        }
    }

    /// Returns the latest border: samples issued at or after it belong to the latest series. A
    /// thread that holds a sample's answer sees the border before that sample's issue.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns.load(Relaxed)
    }

    /// Records that all queries of a series are issued.
    pub fn flushed(&self, now_ns: u64) {
        lock(&self.book).series.push((now_ns, None));
        self.latest_ns.store(now_ns, Relaxed);
        self.waits.store(true, Relaxed);
    }

    /// True from a flush until LoadGen asks for the name or unloads: it waits or processes answers.
    pub fn are_waited_for(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// Records that LoadGen asks for the SUT's name: the series just flushed was measured.
    pub fn named(&self) {
        self.waits.store(false, Relaxed);
        let mut book = lock(&self.book);
        book.judge(SeriesKind::Measured);
        // Find-peak goes on without a load, so prepare here. A performance run ends here.
        let goes_on = book.phases.len() > 1;
        drop(book);
        if goes_on {
            self.prepare();
        }
    }

    /// Records that LoadGen unloads samples: if LoadGen has not asked for the name since the flush,
    /// the flushed series was a set of an accuracy run.
    pub fn unloaded(&self) {
        self.waits.store(false, Relaxed);
        lock(&self.book).judge(SeriesKind::Accuracy);
    }

    /// Makes the empty histograms for the next border. Call this between two series, where no time
    /// is measured.
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

    /// Takes a thread's records of a finished series, and gives the thread empty histograms.
    pub fn exchange(&self, share: impl FnOnce(Histograms) -> Share) {
        let mut exchange = lock(&self.exchange);
        // The spares suffice, unless a thread takes two of them.
        let empty = exchange.spare.pop().unwrap_or_else(|| self.empty());
        exchange.handed.push(share(empty));
    }

    pub fn total(&self, phases: &[PhaseShare]) -> Histograms {
        let mut total = self.empty.clone();
        let each = phases.iter().map(|phase| &phase.share.histograms);
        each.for_each(|histograms| total.merge(histograms));
        total
    }

    /// Returns empty histograms of the run's kind.
    pub fn empty(&self) -> Histograms {
        self.empty.clone()
    }

    /// Merges the handed-in records into their phases.
    fn gather(&self) {
        let handed = mem::take(&mut lock(&self.exchange).handed);
        let mut book = lock(&self.book);
        handed.into_iter().for_each(|share| book.add(share));
    }

    /// Returns all phases with a sample; `left` holds the threads' last records. Call this last.
    pub fn end(&self, left: impl IntoIterator<Item = Share>) -> Vec<PhaseShare> {
        self.gather();
        let mut book = lock(&self.book);
        left.into_iter().for_each(|share| book.add(share));
        let phases = mem::take(&mut book.phases).into_iter();
        let some =
            |(kind, share): (_, Option<Share>)| share.map(|share| PhaseShare { kind, share });
        phases.filter_map(some).collect()
    }
}

impl SeriesBook {
    /// Sets the kind of the series flushed last, unless the kind is known.
    fn judge(&mut self, kind: SeriesKind) {
        let Some(last) = self.series.len().checked_sub(2) else {
            return;
        };
        if self.series[last].1.is_none() {
            self.series[last].1 = Some(self.phase(kind));
        }
    }

    /// Returns the index of the phase for a new series: accuracy sets in a row share a phase.
    fn phase(&mut self, kind: SeriesKind) -> usize {
        let last = self.phases.last().map(|(kind, _)| *kind);
        if kind != SeriesKind::Accuracy || last != Some(kind) {
            self.phases.push((kind, None));
        }
        self.phases.len() - 1
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
            // An aborted series: LoadGen did not flush it, or did not wait for its samples.
            None => {
                let phase = self.phase(SeriesKind::Open);
                self.series[at].1 = Some(phase);
                phase
            }
        };
        match &mut self.phases[phase].1 {
            Some(all) => {
                all.histograms.merge(&share.histograms);
                all.first_ns = all.first_ns.min(share.first_ns);
                all.last_ns = all.last_ns.max(share.last_ns);
                all.call_time.add(share.call_time);
            }
            none => *none = Some(share),
        }
    }
}

/// Returns name and start of each phase; the start is the issue time of the phase's first sample.
pub fn starts(phases: &[PhaseShare], logged: &[Phase], mode: TestMode) -> Vec<(String, u64)> {
    let names = records(phases, logged, mode).into_iter().map(|r| r.name);
    names.zip(phases.iter().map(|p| p.share.first_ns)).collect()
}

/// Returns the records of the phases under LoadGen's names. `logged` holds the phases in LoadGen's
/// log; `mode` is the test's mode.
pub fn records(phases: &[PhaseShare], logged: &[Phase], mode: TestMode) -> Vec<PhaseRecord> {
    // LoadGen may have begun a phase without a completed sample if the run was cut short.
    let logged = |i: usize| logged.get(i).map(|p| &p.kind);
    let record = |(i, phase): (usize, &PhaseShare)| {
        let share = &phase.share;
        let seconds = share.last_ns.saturating_sub(share.first_ns) as f64 / 1e9;
        let (name, kind) = match (logged(i), phase.kind, mode) {
            (Some(Logged::Accuracy), ..)
            | (None, SeriesKind::Accuracy, _)
            | (None, SeriesKind::Open, TestMode::AccuracyOnly) => {
                ("accuracy".to_owned(), PhaseKind::Accuracy)
            }
            // A submission begins with accuracy; the kind of a later open series is unknown.
            (None, SeriesKind::Open, TestMode::SubmissionRun) => match i {
                0 => ("accuracy".to_owned(), PhaseKind::Accuracy),
                _ => ("unfinished".to_owned(), PhaseKind::Performance),
            },
            (Some(Logged::Step { .. }), ..) | (None, _, TestMode::FindPeakPerformance) => {
                (format!("step {}", i + 1), PhaseKind::Step)
            }
            _ => ("performance".to_owned(), PhaseKind::Performance),
        };
        let mut record = PhaseRecord::new(name, kind, share.histograms.table(), seconds);
        if let Some(Logged::Step { qps, met }) = logged(i) {
            record.asked_per_s = Some(*qps);
            record.kept = *met;
        }
        record
    };
    phases.iter().enumerate().map(record).collect()
}

#[cfg(test)]
mod tests {
    use qdl::counters::SampleTimes;

    use super::*;

    /// One thread's share of the series behind border `series_ns`, with samples from `first_ns` on.
    fn share(series_ns: u64, samples: u64) -> Share {
        let mut histograms = Histograms::new();
        (0..samples).for_each(|_| histograms.record(&SampleTimes::default()));
        Share {
            series_ns,
            histograms,
            first_ns: series_ns + 5,
            last_ns: series_ns + 1_000_000_005,
            call_time: CallTime::default(),
        }
    }

    fn kinds(phases: &[PhaseShare]) -> Vec<(SeriesKind, u64)> {
        let each = phases.iter();
        each.map(|p| (p.kind, p.share.histograms.count())).collect()
    }

    #[test]
    fn a_submission_run_is_two_phases_however_many_sets_it_loads() {
        let phases = Phases::new(2, Histograms::new());
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
            [(SeriesKind::Accuracy, 15), (SeriesKind::Measured, 8)]
        );
        let records = records(&gathered, &[], TestMode::SubmissionRun);
        let names: Vec<_> = records.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["accuracy", "performance"]);
        assert_eq!((records[1].samples, records[1].per_s), (8, 8.0));
        // The sets were issued one after the other.
        assert!((records[0].duration_s - 1.0).abs() < 1e-6);
    }

    #[test]
    fn each_step_of_find_peak_is_a_phase_though_some_share_their_samples() {
        let phases = Phases::new(1, Histograms::new());
        for (border, unloads) in [(100, true), (200, true), (300, false), (400, true)] {
            phases.flushed(border);
            phases.named();
            if unloads {
                phases.unloaded();
            }
        }
        // A thread without samples of a step hands in late.
        phases.exchange(|_| share(0, 1));
        phases.exchange(|_| share(200, 3));
        let gathered = phases.end([share(300, 4), share(100, 2)]);
        let expected = [1, 2, 3, 4].map(|n| (SeriesKind::Measured, n));
        assert_eq!(kinds(&gathered), expected);
        let step = |qps, met| Phase {
            kind: Logged::Step { qps, met },
            series: 1,
            queries: 1,
            samples: 1,
        };
        let logged = [
            step(10.0, Some(true)),
            step(20.0, Some(false)),
            step(15.0, Some(true)),
            step(17.5, None),
        ];
        let records = records(&gathered, &logged, TestMode::FindPeakPerformance);
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
        let phases = Phases::new(1, Histograms::new());
        let gathered = phases.end([share(0, 3), share(0, 0)]);
        assert_eq!(kinds(&gathered), [(SeriesKind::Open, 3)]);
        let name = |mode| records(&gathered, &[], mode)[0].name.clone();
        assert_eq!(name(TestMode::AccuracyOnly), "accuracy");
        assert_eq!(name(TestMode::SubmissionRun), "accuracy");
        assert_eq!(name(TestMode::PerformanceOnly), "performance");
    }

    #[test]
    fn threads_take_what_was_made_beforehand() {
        let phases = Phases::new(3, Histograms::new());
        phases.prepare();
        assert_eq!(lock(&phases.exchange).spare.len(), 3);
        phases.exchange(|_| share(0, 1));
        assert_eq!(lock(&phases.exchange).spare.len(), 2);
        phases.prepare();
        assert_eq!(lock(&phases.exchange).spare.len(), 3);
        assert_eq!(lock(&phases.exchange).handed.len(), 0);
    }
}
