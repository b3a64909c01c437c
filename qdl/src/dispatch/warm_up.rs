//! Warming connections up: before the caller's first sample, samples of every size go over every connection and come back,
//! so that what happens once (pages mapped, windows grown, caches and branch predictors filled, clocks raised) has
//! happened.
//!
//! ```text
//!   cold    the longest sample over each connection          must be answered
//!   sizes   each other size over each connection             \
//!   warm    the longest again, WARM times                     } while the budget lasts
//!   ramp    2, 4, 8 .. at once over all, up to their slots   /
//! ```
//!
//! All but the ramp send one sample at a time, so that a connection's figures are its own; where the budget is gone before
//! every connection had its first, the rest of those go at once. Samples carry [`WARM_UP_ID`] and
//! end in the rail thread: no completer sees them, none goes again by another connection, and a connection that is lost, or
//! does not answer, ends the warm-up with its name.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Dispatcher, Lane, Sample, Shared};
use crate::{
    clock::now_ns, connection::tracker::InFlight, fabric::Broken, response::ResponseHeader,
};

/// Id of the samples that warm up; a caller's own may not have it.
pub const WARM_UP_ID: u64 = u64::MAX;

/// Samples over each connection, one at a time, that its warm latency is the median of.
const WARM: usize = 5;
/// How long a sender waits before it looks again whether there is room.
const AGAIN: Duration = Duration::from_micros(50);

/// What a warm-up is made of.
#[derive(Clone, Debug)]
pub struct WarmUpCfgs {
    /// One sample for each size that is used. Their ids do not matter.
    pub samples: Vec<Sample>,
    /// What may be left out is left out after so long.
    pub budget: Duration,
    /// Without an answer from any connection for so long, while some are due, it has failed.
    pub deadline: Duration,
    /// The connections have carried samples before: those that are down by now are left out.
    pub again: bool,
}

/// How one connection warmed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneWarmUp {
    /// Network time (round trip minus residence) of the very first sample, in nanoseconds.
    pub cold_ns: u64,
    /// The same of later samples of that size, sent one at a time: their median; `None` if the budget was gone.
    pub warm_ns: Option<u64>,
}

/// What a warm-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmUpReport {
    /// Each lane, in order; empty if there was nothing to send.
    pub lanes: Vec<LaneWarmUp>,
    /// Samples answered.
    pub samples: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Sizes that went over every lane, and sizes there are.
    pub sizes: (usize, usize),
    /// Most samples that were sent at once over one lane.
    pub at_once: usize,
}

/// A warm-up that failed. Every variant names the lane.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum WarmUpError {
    /// It was down before its first sample.
    #[error("it is down")]
    Down {
        /// The lane.
        lane: usize,
    },
    /// It was lost.
    #[error("{cause}")]
    Lost {
        /// The lane.
        lane: usize,
        /// Why.
        cause: Broken,
    },
    /// Nothing came back, or there was no room to send.
    #[error("no answer within {after:?}, nor from any other connection (warm_up.deadline_ms)")]
    Silent {
        /// The first lane that owes an answer.
        lane: usize,
        /// How long was waited.
        after: Duration,
    },
}

impl WarmUpError {
    /// The lane that failed.
    pub fn lane(&self) -> usize {
        match self {
            WarmUpError::Down { lane }
            | WarmUpError::Lost { lane, .. }
            | WarmUpError::Silent { lane, .. } => *lane,
        }
    }
}

/// Between who warms up and the rail threads.
#[derive(Debug, Default)]
pub(super) struct WarmUp {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// One sample at a time is on its way.
    alone: bool,
    /// Answers due from each lane.
    due: Vec<u32>,
    /// Network times since the last look.
    answers: Vec<(usize, u64)>,
    answered: u64,
    lost: Option<(usize, Broken)>,
}

impl State {
    fn owes(&self) -> Option<usize> {
        self.due.iter().position(|n| *n > 0)
    }
}

impl WarmUp {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sample could not be posted on `lane` after all.
    pub fn not_posted(&self, lane: usize) {
        self.answer(lane, None);
    }

    /// A lane was lost.
    pub fn lost(&self, lane: usize, cause: &Broken) {
        let mut state = self.lock();
        if state.running {
            state.lost.get_or_insert_with(|| (lane, cause.clone()));
            self.moved.notify_all();
        }
    }

    /// Returns whether it was the only sample on its way.
    fn answer(&self, lane: usize, network_ns: Option<u64>) -> bool {
        let mut state = self.lock();
        if let Some(due) = state.due.get_mut(lane) {
            *due = due.saturating_sub(1);
        }
        if let Some(ns) = network_ns {
            state.answers.push((lane, ns));
            state.answered += 1;
        }
        if state.owes().is_none() {
            self.moved.notify_all();
        }
        state.alone
    }
}

impl Shared {
    /// An answer to a warm-up's sample; its slot is free again.
    pub(super) fn warmed(&self, lane: &Lane, f: &InFlight, header: &ResponseHeader) {
        let residence = u64::from(header.queue_us) + u64::from(header.compute_us);
        let round_trip = now_ns().saturating_sub(f.posted_ns);
        let network = round_trip.saturating_sub(residence * 1000);
        lane.warmed.fetch_add(1, Ordering::Relaxed);
        let alone = self.warm_up.answer(lane.index, Some(network));
        if alone && let Some(h) = self.health.get() {
            h.arbiter.unloaded(lane.index, f.sample.len, network);
        }
    }
}

impl Dispatcher {
    /// Warms every lane up. Nobody may issue meanwhile, and nothing may be outstanding.
    ///
    /// # Errors
    /// [`WarmUpError`] names the lane that failed.
    pub fn warm_up(&self, cfgs: &WarmUpCfgs) -> Result<WarmUpReport, WarmUpError> {
        if cfgs.samples.is_empty() {
            return Ok(WarmUpReport::default());
        }
        let lanes = self.lanes();
        *self.shared.warm_up.lock() = State {
            running: true,
            due: vec![0; lanes],
            ..State::default()
        };
        let counts = |l: &Lane| l.send.counts();
        let before: Vec<_> = self.shared.lanes.iter().map(counts).collect();
        let report = Round::new(self, cfgs).run();
        self.shared.warm_up.lock().running = false;
        for (lane, before) in self.shared.lanes.iter().zip(before) {
            // All but the fabric's own.
            lane.send.set_counts(before);
        }
        report
    }
}

/// A warm-up under way.
struct Round<'a> {
    shared: &'a Shared,
    cfgs: &'a WarmUpCfgs,
    /// Longest first.
    samples: Vec<Sample>,
    /// Those that are warmed up.
    lanes: Vec<usize>,
    began: Instant,
    report: WarmUpReport,
}

impl<'a> Round<'a> {
    fn new(dispatcher: &'a Dispatcher, cfgs: &'a WarmUpCfgs) -> Self {
        let mut samples = cfgs.samples.clone();
        samples.sort_by_key(|s| std::cmp::Reverse(s.len));
        samples.iter_mut().for_each(|s| s.id = WARM_UP_ID);
        let shared = &*dispatcher.shared;
        let wanted = |l: &&Lane| !cfgs.again || l.up.load(Ordering::SeqCst);
        Round {
            shared,
            cfgs,
            samples,
            lanes: shared
                .lanes
                .iter()
                .filter(wanted)
                .map(|l| l.index)
                .collect(),
            began: Instant::now(),
            report: WarmUpReport::default(),
        }
    }

    fn in_budget(&self) -> bool {
        self.began.elapsed() < self.cfgs.budget
    }

    fn run(mut self) -> Result<WarmUpReport, WarmUpError> {
        self.cold()?;
        self.sizes()?;
        self.warm()?;
        self.ramp()?;
        self.report.samples = self.shared.warm_up.lock().answered;
        self.report.took_ns = self.began.elapsed().as_nanos() as u64;
        Ok(self.report)
    }

    /// The longest sample over each lane, for the first time.
    fn cold(&mut self) -> Result<(), WarmUpError> {
        // A lane that is left out has nothing to wait for.
        let mut first: Vec<Option<u64>> = vec![Some(0); self.shared.lanes.len()];
        self.lanes.iter().for_each(|l| first[*l] = None);
        let mut since = Instant::now();
        while let Some(lane) = first.iter().position(Option::is_none) {
            let answers = if self.in_budget() {
                self.one(lane, self.samples[0])?.map(|ns| (lane, ns))
            } else {
                let missing = (0..first.len()).filter(|l| first[*l].is_none());
                for lane in missing {
                    self.send(lane, [self.samples[0]].into())?;
                }
                self.wait()?;
                None
            };
            let rest = std::mem::take(&mut self.shared.warm_up.lock().answers);
            let mut came = false;
            for (lane, ns) in answers.into_iter().chain(rest) {
                first[lane].get_or_insert(ns);
                came = true;
            }
            if came {
                since = Instant::now();
            } else if since.elapsed() >= self.cfgs.deadline {
                let after = self.cfgs.deadline;
                return Err(WarmUpError::Silent { lane, after });
            } else {
                // It could not be posted: there was less room than it seemed.
                std::thread::sleep(AGAIN);
            }
        }
        self.report.at_once = 1;
        self.report.sizes = (1, self.samples.len());
        self.report.lanes = first
            .into_iter()
            .map(|cold| LaneWarmUp {
                cold_ns: cold.unwrap_or_default(),
                warm_ns: None,
            })
            .collect();
        Ok(())
    }

    /// Every other size over each lane.
    fn sizes(&mut self) -> Result<(), WarmUpError> {
        for i in 1..self.samples.len() {
            for lane in self.lanes.clone() {
                if !self.in_budget() {
                    return Ok(());
                }
                self.one(lane, self.samples[i])?;
            }
            self.report.sizes.0 += 1;
        }
        Ok(())
    }

    /// The longest again, for the figures.
    fn warm(&mut self) -> Result<(), WarmUpError> {
        for lane in self.lanes.clone() {
            let mut times = Vec::with_capacity(WARM);
            for _ in 0..WARM {
                if !self.in_budget() {
                    return Ok(());
                }
                times.extend(self.one(lane, self.samples[0])?);
            }
            times.sort_unstable();
            self.report.lanes[lane].warm_ns = times.get(times.len() / 2).copied();
        }
        Ok(())
    }

    /// More and more at once. A round takes about twice as long as the one before it, if it takes longer at all.
    fn ramp(&mut self) -> Result<(), WarmUpError> {
        let slots = |l: &usize| self.shared.lanes[*l].cfgs.slots;
        let most = self.lanes.iter().map(slots).max().unwrap_or(1);
        let mut last = Duration::ZERO;
        let mut at_once = 1;
        while at_once < most && self.began.elapsed() + 2 * last <= self.cfgs.budget {
            at_once = (2 * at_once).min(most);
            let began = Instant::now();
            for &lane in &self.lanes {
                let n = at_once.min(self.shared.lanes[lane].cfgs.slots);
                let samples = self.samples.iter().cycle().take(n);
                self.send(lane, samples.copied().collect())?;
            }
            self.wait()?;
            self.shared.warm_up.lock().answers.clear();
            last = began.elapsed();
            self.report.at_once = at_once;
        }
        Ok(())
    }

    /// One sample, and nothing else on its way. `None` if it could not be posted.
    fn one(&self, lane: usize, sample: Sample) -> Result<Option<u64>, WarmUpError> {
        self.shared.warm_up.lock().alone = true;
        self.send(lane, [sample].into())?;
        self.wait()?;
        let mut state = self.shared.warm_up.lock();
        state.alone = false;
        let answers = std::mem::take(&mut state.answers);
        Ok(answers.first().map(|(_, ns)| *ns))
    }

    /// Posts samples on a lane, as it has room.
    fn send(&self, lane: usize, mut samples: VecDeque<Sample>) -> Result<(), WarmUpError> {
        let to = &self.shared.lanes[lane];
        let (mut since, mut seen) = (Instant::now(), (samples.len(), 0));
        while !samples.is_empty() {
            if !to.up.load(Ordering::SeqCst) {
                return Err(self.failed(WarmUpError::Down { lane }));
            }
            // Whoever has the token meanwhile does not know of these.
            let done = self.shared.drive(to, false, || {
                let mut sample = samples.pop_front()?;
                sample.issued_ns = now_ns();
                self.shared.warm_up.lock().due[lane] += 1;
                Some(sample)
            });
            if let Some(cause) = done.broken {
                return Err(self.failed(WarmUpError::Lost { lane, cause }));
            }
            if samples.is_empty() {
                break;
            }
            let after = self.cfgs.deadline;
            let now = (samples.len(), self.shared.warm_up.lock().answered);
            if now != seen {
                (since, seen) = (Instant::now(), now);
            }
            if since.elapsed() >= after {
                return Err(self.failed(WarmUpError::Silent { lane, after }));
            }
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }

    /// Why it failed: a lane that was lost comes before one that is found down because of it.
    fn failed(&self, otherwise: WarmUpError) -> WarmUpError {
        match self.shared.warm_up.lock().lost.take() {
            Some((lane, cause)) => WarmUpError::Lost { lane, cause },
            None => otherwise,
        }
    }

    /// Waits until every answer is there.
    fn wait(&self) -> Result<(), WarmUpError> {
        let warm_up = &self.shared.warm_up;
        let mut state = warm_up.lock();
        let (mut answered, mut since) = (state.answered, Instant::now());
        loop {
            if let Some((lane, cause)) = state.lost.take() {
                return Err(WarmUpError::Lost { lane, cause });
            }
            let Some(lane) = state.owes() else {
                return Ok(());
            };
            if state.answered != answered {
                (answered, since) = (state.answered, Instant::now());
            }
            let after = self.cfgs.deadline;
            let Some(left) = after.checked_sub(since.elapsed()) else {
                return Err(WarmUpError::Silent { lane, after });
            };
            state = warm_up
                .moved
                .wait_timeout(state, left.max(Duration::from_millis(1)))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
