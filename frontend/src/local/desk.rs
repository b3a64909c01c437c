//! The slots of a local run, the samples in them, and those that wait for one.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use accelerator::pipelines::Pipelines;
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use qdl::{
    clock::now_ns,
    connection::{
        token::Driven,
        tracker::{InFlight, Tracker},
    },
    dispatch::{Completer, Response, Sample, SampleTimes},
    fabric::{Grants, Imm, Region, RegionError},
    serve::{Arrival, Finished, Origin, Service},
    stats::{AcceleratorRecord, BatchSizes, Ledger},
};

use crate::{
    backend::Counts,
    completer::{Completers, LoadgenCompleter},
};

/// Arrivals handed to the pipeline at a time.
const BURST: usize = 256;
/// How long the engine may take to end its last batches.
const STOP: Duration = Duration::from_secs(5);
/// The same after an abort, when nobody waits for them.
const STOP_ABORTED: Duration = Duration::from_millis(200);

/// Bytes from one output slot to the next: outputs written by different threads share no cache line.
pub(super) fn stride(output: usize) -> usize {
    output.max(1).next_multiple_of(64)
}

/// An answer on its way to LoadGen.
struct Seen {
    slot: u16,
    in_flight: InFlight,
    finished: Finished,
}

/// What one thread needs to complete samples.
struct Cell {
    completer: LoadgenCompleter,
    seen: Vec<Seen>,
}

/// The slots, the samples in them and those that wait for one.
pub(super) struct Desk {
    me: Weak<Desk>,
    pub(super) pipelines: Pipelines,
    inputs: Arc<Region>,
    outputs: Region,
    stride: usize,
    capacity: u32,
    grants: Arc<Grants>,
    tracker: Tracker,
    backlog: SegQueue<Sample>,
    backlog_len: CachePadded<AtomicU64>,
    backlog_max: AtomicU64,
    /// Whoever has this hands arrivals to the pipeline.
    pump: Driven<Vec<Arrival>>,
    /// As many as threads can answer at the same time: one of them is always free. Empty after [`Desk::finish`].
    cells: Box<[CachePadded<Mutex<Option<Cell>>>]>,
    completers: Completers,
    aborted: AtomicBool,
    issued: CachePadded<AtomicU64>,
    completed: CachePadded<AtomicU64>,
    emptied: AtomicU64,
    late: AtomicU64,
    posted: AtomicU64,
}

impl Desk {
    pub(super) fn new(
        pipelines: Pipelines,
        inputs: Arc<Region>,
        slots: usize,
        output: usize,
        cells: Vec<LoadgenCompleter>,
        completers: Completers,
    ) -> Result<Arc<Self>, RegionError> {
        let stride = stride(output);
        let outputs = Region::new(slots * stride)?;
        outputs.prefault();
        let grants = Arc::new(Grants::new(slots));
        let cell = |completer| {
            CachePadded::new(Mutex::new(Some(Cell {
                completer,
                seen: Vec::with_capacity(BURST),
            })))
        };
        Ok(Arc::new_cyclic(|me| Desk {
            me: me.clone(),
            pipelines,
            inputs,
            outputs,
            stride,
            capacity: u32::try_from(output).unwrap_or(u32::MAX),
            tracker: Tracker::new(grants.clone()),
            grants,
            backlog: SegQueue::new(),
            backlog_len: CachePadded::default(),
            backlog_max: AtomicU64::new(0),
            pump: Driven::new(Vec::with_capacity(BURST)),
            cells: cells.into_iter().map(cell).collect(),
            completers,
            aborted: AtomicBool::new(false),
            issued: CachePadded::default(),
            completed: CachePadded::default(),
            emptied: AtomicU64::new(0),
            late: AtomicU64::new(0),
            posted: AtomicU64::new(0),
        }))
    }

    pub(super) fn issue(&self, samples: &[Sample]) {
        self.issued
            .fetch_add(samples.len() as u64, Ordering::Relaxed);
        if self.aborted.load(Ordering::SeqCst) {
            return self.complete_empty(samples);
        }
        let mut left = samples.iter().copied();
        if self.backlog_len.load(Ordering::SeqCst) == 0 {
            self.pump(|| left.next());
        }
        if left.len() > 0 {
            self.push(left);
            self.pump(|| None);
        }
        if self.aborted.load(Ordering::SeqCst) {
            self.empty_backlog();
        }
    }

    fn push(&self, samples: impl Iterator<Item = Sample>) {
        for s in samples {
            // Counted first, so that the length is never less than what can be popped.
            self.backlog_len.fetch_add(1, Ordering::SeqCst);
            self.backlog.push(s);
        }
        let len = self.backlog_len.load(Ordering::Relaxed);
        self.backlog_max.fetch_max(len, Ordering::Relaxed);
    }

    fn pop(&self) -> Option<Sample> {
        if self.backlog_len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let sample = self.backlog.pop()?;
        self.backlog_len.fetch_sub(1, Ordering::SeqCst);
        Some(sample)
    }

    /// Fills free slots from `direct` and then from the backlog, unless somebody else does.
    ///
    /// An engine that answers inline comes back here from within, by way of `respond`: it does not get the token, and
    /// the owner looks again.
    fn pump(&self, mut direct: impl FnMut() -> Option<Sample>) {
        self.pump.drive(|arrivals| {
            loop {
                let now = now_ns();
                while arrivals.len() < BURST && !self.aborted.load(Ordering::SeqCst) {
                    let Some(slot) = self.tracker.reserve() else {
                        break;
                    };
                    let Some(sample) = direct().or_else(|| self.pop()) else {
                        self.tracker.release(slot);
                        break;
                    };
                    match self.arrival(slot, &sample, now) {
                        Some(arrival) => arrivals.push(arrival),
                        // A place outside the QSL's memory, or a slot that is not ours: neither can be.
                        None => self.complete_empty(&[sample]),
                    }
                }
                if arrivals.is_empty() {
                    return;
                }
                self.posted
                    .fetch_add(arrivals.len() as u64, Ordering::Relaxed);
                self.pipelines.arrived(arrivals);
            }
        });
    }

    fn arrival(&self, slot: u16, sample: &Sample, now: u64) -> Option<Arrival> {
        let input = self.inputs.at(sample.offset, sample.len as usize).ok();
        let at = usize::from(slot) * self.stride;
        let output = self.outputs.at(at, self.capacity as usize).ok();
        let (Some(input), Some(output), Some(me)) = (input, output, self.me.upgrade()) else {
            self.tracker.release(slot);
            return None;
        };
        let Some(imm) = self.tracker.begin(slot, sample, now) else {
            self.tracker.release(slot);
            return None;
        };
        let ticket = u64::from(imm.use_count()) << 16 | u64::from(slot);
        // SAFETY: the input lies in the QSL's region, which the desk holds, and which LoadGen changes only when no sample
        // is outstanding. The output is the slot's, which is this arrival's alone until its response releases the
        // slot; `finish`, which releases slots without a response, lets no arrival be made afterwards.
        Some(unsafe { Arrival::new(input, sample.len, output, self.capacity, ticket, now, me) })
    }

    /// A cell that nobody uses at the moment; there is one, unless more threads answer than were announced.
    fn cell(&self) -> Option<MutexGuard<'_, Option<Cell>>> {
        for cell in &self.cells {
            match cell.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(p)) => return Some(p.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let first = self.cells.first()?;
        Some(first.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes the grants of finished samples and completes them.
    fn answer(&self, cell: &mut Cell, finished: &[Finished]) {
        let Cell { completer, seen } = cell;
        let now = now_ns();
        for f in finished {
            let (slot, use_count) = (f.ticket as u16, (f.ticket >> 16) as u16);
            let taken = self.grants.take(Imm::new(slot, use_count)).is_ok();
            match self.tracker.arrived(slot).filter(|_| taken) {
                Some(in_flight) => seen.push(Seen {
                    slot,
                    in_flight,
                    finished: *f,
                }),
                // Swept after an abort.
                None => {
                    self.late.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let response = |s: &Seen| {
            let at = usize::from(s.slot) * self.stride;
            let len = s.finished.len.min(self.capacity) as usize;
            // SAFETY: the engine is done with the slot, and it is released only below.
            let payload = unsafe { self.outputs.bytes(at, len) };
            Response {
                id: s.in_flight.sample.id,
                index: s.in_flight.sample.index,
                payload: payload.unwrap_or_default(),
            }
        };
        completer.complete(&mut seen.iter().map(response));
        let done = now_ns();
        self.completed
            .fetch_add(seen.len() as u64, Ordering::Release);
        for s in seen.drain(..) {
            self.tracker.release(s.slot);
            let sample = &s.in_flight.sample;
            completer.record(&SampleTimes {
                issued_ns: sample.issued_ns,
                posted_ns: s.in_flight.posted_ns,
                seen_ns: now,
                completed_ns: done,
                queue_us: s.finished.queue_us,
                compute_us: s.finished.compute_us,
                bytes_out: sample.len,
                bytes_in: s.finished.len,
            });
        }
        completer.tick(done);
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    pub(super) fn outstanding(&self) -> u64 {
        let completed = self.completed.load(Ordering::Acquire);
        let emptied = self.emptied.load(Ordering::Acquire);
        // Read last: what is completed was issued before.
        self.issued
            .load(Ordering::Acquire)
            .saturating_sub(completed + emptied)
    }

    fn complete_empty(&self, samples: &[Sample]) {
        self.completers.complete_empty(samples);
        self.emptied
            .fetch_add(samples.len() as u64, Ordering::Release);
    }

    fn empty_backlog(&self) {
        while let Some(sample) = self.pop() {
            self.complete_empty(&[sample]);
        }
    }

    /// From now on nothing more goes to the engine, and nobody waits for what is there: its answers are late.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.empty_backlog();
    }

    pub(super) fn finish(&self, node: &str) -> Counts {
        let mut notes = Vec::new();
        let patience = if self.aborted.load(Ordering::SeqCst) {
            STOP_ABORTED
        } else {
            STOP
        };
        // After a run that ended well nothing is left to abort.
        self.abort();
        // Waits for whoever makes an arrival at this moment.
        self.pump.exclusive(|_| ());
        if let Err(error) = self.pipelines.stop(patience) {
            notes.push(error.to_string());
        }
        self.empty_backlog();
        self.tracker.sweep(|f| self.complete_empty(&[f.sample]));
        for cell in &self.cells {
            // Dropping the completer hands its recorder on.
            cell.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let completed = self.completed.load(Ordering::Acquire);
        let counters = self.pipelines.counters();
        Counts {
            fabric: "local".to_owned(),
            ledger: Ledger {
                issued: self.issued.load(Ordering::Acquire),
                answered: completed,
                emptied: self.emptied.load(Ordering::Acquire),
                posted: self.posted.load(Ordering::Relaxed),
                responses: completed,
                late_dropped: self.late.load(Ordering::Relaxed),
                ..Ledger::default()
            },
            accelerators: vec![AcceleratorRecord {
                node: node.to_owned(),
                engine: self.pipelines.engine().name().to_owned(),
                samples: Some(counters.samples),
                batches: BatchSizes::from_counts(&counters.batch_sizes),
                gpus: self.pipelines.gpus(),
                ..AcceleratorRecord::default()
            }],
            backlog_max: self.backlog_max.load(Ordering::Relaxed),
            notes,
            ..Counts::default()
        }
    }
}

impl Origin for Desk {
    fn respond(&self, finished: &[Finished]) {
        if let Some(mut guard) = self.cell()
            && let Some(cell) = guard.as_mut()
        {
            self.answer(cell, finished);
        }
        self.pump(|| None);
    }
}

#[cfg(test)]
mod tests {
    use accelerator::{
        engine::{Digest, EngineKind, EngineParams},
        pipeline::Options,
    };
    use qdl::{fabric::SourceId, stats::Live};

    use super::*;

    fn params(kind: EngineKind) -> EngineParams {
        EngineParams {
            kind,
            max_batch: 8,
            max_input: 64,
            ..EngineParams::default()
        }
    }

    /// A desk over a digest engine whose answers nobody completes: `samples` must stay empty.
    fn desk(delay_us: u64, slots: usize) -> Arc<Desk> {
        let params = EngineParams {
            delay_us,
            ..params(EngineKind::Digest)
        };
        let engine = Arc::new(Digest::new(&params));
        let options = Options::from(&params);
        let pipelines =
            Pipelines::start(vec![(0, engine)], &options, |e| panic!("{e}")).expect("starts");
        let inputs = Arc::new(Region::new(4096).expect("memory"));
        let completers = Completers::new(Arc::new(Live::new(1)), None, None);
        Desk::new(pipelines, inputs, slots, 8, vec![], completers).expect("memory")
    }

    #[test]
    fn a_place_outside_the_memory_becomes_no_arrival() {
        let desk = desk(0, 4);
        let sample = Sample {
            id: 8,
            index: 0,
            source: SourceId(0),
            offset: 4090,
            len: 64,
            issued_ns: 0,
        };
        let slot = desk.tracker.reserve().expect("free");
        assert!(desk.arrival(slot, &sample, 0).is_none());
        assert_eq!(desk.tracker.in_flight(), 0, "the slot is free again");
    }
}
