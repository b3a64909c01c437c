//! What each thread had done and used at some moments: on NIC threads at every tick, on issue
//! threads now and then.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError},
};

use frontend::{completer::LoadgenCompleter, sut::Sut};
use loadgen_bridge::{QuerySample, SystemUnderTest};
use qdl::{
    clock::now_ns,
    dispatch::{Completer, Contradiction, Part, Response, SampleTimes},
};
use serde::{Deserialize, Serialize};

use super::cpu;

/// Room for readings from the start, so that none of them allocates: a run takes seconds, and a NIC
/// thread ticks 40 times in one.
const ROOM: usize = 16_384;
/// Queries of one thread between two of its readings.
const EVERY: u64 = 4096;

/// One moment of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// When, on [`qdl::clock`].
    pub at_ns: u64,
    /// Samples so far.
    pub samples: u64,
    /// CPU time so far.
    pub cpu_ns: u64,
    /// Allocations so far.
    pub allocations: u64,
}

impl Reading {
    fn now(samples: u64) -> Self {
        Reading {
            at_ns: now_ns(),
            samples,
            cpu_ns: cpu::thread_ns(),
            allocations: alloc_count::of_thread(),
        }
    }
}

/// What a thread did between two of its readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Between {
    /// Samples.
    pub samples: u64,
    /// Of those, a second.
    pub per_s: f64,
    /// Share of one core that it had.
    pub busy: f64,
    /// CPU time for each sample, waiting for work included.
    pub ns: f64,
    /// Allocations.
    pub allocations: u64,
}

impl Between {
    /// Of readings in their order: from the first after `from_ns` to the last before `to_ns`, or
    /// all of them where that leaves none. Nothing where it did nothing.
    pub fn of(readings: &[Reading], from_ns: u64, to_ns: u64) -> Self {
        let within = |r: &&Reading| (from_ns..=to_ns).contains(&r.at_ns);
        let mut some = readings.iter().filter(within);
        let (first, last) = (some.next(), some.next_back());
        let (a, b) = match (first, last) {
            (Some(a), Some(b)) if b.samples > a.samples => (*a, *b),
            _ => (
                Reading::default(),
                readings.last().copied().unwrap_or_default(),
            ),
        };
        let (samples, took) = (b.samples - a.samples, (b.at_ns - a.at_ns).max(1));
        let cpu = b.cpu_ns - a.cpu_ns;
        Between {
            samples,
            per_s: samples as f64 * 1e9 / took as f64,
            busy: cpu as f64 / took as f64,
            ns: cpu as f64 / samples.max(1) as f64,
            allocations: b.allocations - a.allocations,
        }
    }
}

impl Between {
    /// What several threads did together, for each of their samples.
    pub fn all(threads: &[Self], what: impl Fn(&Self) -> f64) -> f64 {
        let samples: u64 = threads.iter().map(|b| b.samples).sum();
        threads.iter().map(what).sum::<f64>() / samples.max(1) as f64
    }

    /// Their CPU time for each sample.
    pub fn cpu_ns(threads: &[Self]) -> f64 {
        Self::all(threads, |b| b.ns * b.samples as f64)
    }
}

/// Readings of threads that have ended, or will not be read again.
pub type Kept = Arc<Mutex<Vec<Vec<Reading>>>>;

/// Adds a thread's.
fn keep(kept: &Kept, readings: Vec<Reading>) {
    let mut all = kept.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(readings);
}

/// The frontend's completer, read at every tick of its thread.
pub struct Completing {
    completer: LoadgenCompleter,
    samples: u64,
    readings: Vec<Reading>,
    kept: Kept,
}

impl Completing {
    /// Over the frontend's own.
    pub fn new(completer: LoadgenCompleter, kept: Kept) -> Self {
        Completing {
            completer,
            samples: 0,
            readings: Vec::with_capacity(ROOM),
            kept,
        }
    }
}

impl Completer for Completing {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        self.samples += responses.len() as u64;
        self.completer.complete(responses);
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        self.completer.parts(parts);
    }

    fn contradicted(&mut self, what: Contradiction) {
        self.completer.contradicted(what);
    }

    fn record(&mut self, times: &SampleTimes, alike: u64) {
        self.completer.record(times, alike);
    }

    fn tick(&mut self, now_ns: u64) {
        self.completer.tick(now_ns);
        if self.readings.len() < ROOM {
            self.readings.push(Reading::now(self.samples));
        }
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        keep(&self.kept, std::mem::take(&mut self.readings));
    }
}

/// Of the thread that issues.
struct Mine {
    queries: u64,
    samples: u64,
    readings: Vec<Reading>,
    kept: Option<Kept>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            keep(&kept, std::mem::take(&mut self.readings));
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const {
        RefCell::new(Mine { queries: 0, samples: 0, readings: Vec::new(), kept: None })
    };
}

/// The frontend's SUT, whose threads are read now and then.
pub struct Issuing {
    sut: Arc<Sut>,
    kept: Kept,
}

impl Issuing {
    /// Over the frontend's own.
    pub fn new(sut: Arc<Sut>, kept: Kept) -> Self {
        Issuing { sut, kept }
    }
}

impl SystemUnderTest for Issuing {
    fn name(&self) -> String {
        self.sut.name()
    }

    fn issue_query(&self, samples: &[QuerySample]) {
        MINE.with_borrow_mut(|mine| {
            if mine.kept.is_none() {
                mine.kept = Some(self.kept.clone());
                mine.readings.reserve(ROOM);
                mine.readings.push(Reading::now(0));
            }
            self.sut.issue_query(samples);
            mine.queries += 1;
            mine.samples += samples.len() as u64;
            let due = mine.queries.is_multiple_of(EVERY) || samples.len() > 64;
            if due && mine.readings.len() < ROOM {
                mine.readings.push(Reading::now(mine.samples));
            }
        });
    }

    fn flush_queries(&self) {
        self.sut.flush_queries();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ns: u64, samples: u64, cpu_ns: u64) -> Reading {
        Reading {
            at_ns,
            samples,
            cpu_ns,
            allocations: 0,
        }
    }

    #[test]
    fn what_counts_lies_between_the_two_moments() {
        let all = [
            reading(100, 0, 50),
            reading(200, 10, 120),
            reading(300, 30, 220),
            reading(400, 30, 230),
        ];
        let b = Between::of(&all, 150, 350);
        assert_eq!((b.samples, b.ns), (20, 5.0));
        assert!((b.busy - 1.0).abs() < 1e-9);
        assert_eq!(Between::of(&all, 1000, 2000).samples, 30, "all there is");
        assert_eq!(Between::of(&[], 0, 1).samples, 0);
    }
}
