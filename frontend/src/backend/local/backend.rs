//! The slots of a local run, their samples, and the backlog.
//!
//! This backend does not use the dispatcher, whose NIC threads complete samples: here the thread
//! that ran a batch completes the batch's samples.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_queue::{ArrayQueue, SegQueue};
use crossbeam_utils::CachePadded;
use engines::pipelines::Pipelines;
use fabric::os::lock;
use fabric::{Grants, Imm, Region, RegionError, clock::now_ns, wire::Stream};
use qdl::{
    connection::{
        token::SendToken,
        tracker::{InFlight, Tracker},
    },
    dispatch::{
        self, Attempt, Completer, Contradiction, FirstToken, RefusedSample, Response, Sample,
    },
    run::{OnRefusal, Refusals, node_facts},
    serve::{Arrival, Finished, Origin, OutputPart, Service},
    wire::Standing,
};
use record::{AcceleratorRecord, EngineInfo, Ledger, NodeUse, QueueCounts, SystemRecord};

use super::part_times::PartTimes;
use crate::{
    backend::Backend,
    loadgen::completer::{Completers, LoadgenCompleter},
    loadgen::exit::{ExitCode, Verdict},
};

/// Maximum number of arrivals per call to the pipeline.
const BURST: usize = 256;
/// Time limit for the engine's last batches.
const STOP: Duration = Duration::from_secs(5);
/// Time limit for the engine's last batches after an abort.
const STOP_ABORTED: Duration = Duration::from_millis(200);
/// Time limit for the threads that are completing samples.
const COMPLETING: Duration = Duration::from_secs(1);

/// Bytes from one output slot to the next: slots share no cache line.
pub(super) fn stride(output: usize) -> usize {
    output.max(1).next_multiple_of(64)
}

/// The first token of an answer, little-endian.
fn token(answer: &[u8]) -> Option<u64> {
    let token = answer.first_chunk::<4>()?;
    Some(u64::from(u32::from_le_bytes(*token)))
}

/// Per-thread state for completing samples.
struct CompleterCell {
    completer: LoadgenCompleter,
    seen: Vec<(InFlight, Finished)>,
}

pub(super) struct LocalParts {
    pub node: String,
    pub model: String,
    pub info: EngineInfo,
    pub pipelines: Pipelines,
    pub inputs: Arc<Region>,
    pub slots: usize,
    pub output: usize,
    /// The tokens of an answer to deliver before the answer's end.
    pub stream: Stream,
    pub completers: Completers,
    pub threads: usize,
    pub verdict: Verdict,
}

/// Passes LoadGen's samples directly to the pipelines of this process.
pub struct LocalBackend {
    me: Weak<LocalBackend>,
    parts: LocalParts,
    outputs: Region,
    stride: usize,
    capacity: u32,
    grants: Arc<Grants>,
    tracker: Tracker,
    part_times: PartTimes,
    backlog: SegQueue<Attempt>,
    /// The thread that holds this token hands arrivals to the pipeline.
    pump: SendToken<Vec<Arrival>>,
    /// One cell for each thread that can answer. Empty after the run.
    cells: ArrayQueue<Box<CompleterCell>>,
    aborted: AtomicBool,
    counts: LocalCounts,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct LocalCounts {
    issued: CachePadded<AtomicU64>,
    completed: CachePadded<AtomicU64>,
    emptied: AtomicU64,
    late: AtomicU64,
    posted: AtomicU64,
    backlog_max: AtomicU64,
    backlogged: AtomicU64,
    handed_over: AtomicU64,
    /// Numbers of first, of second and of third refusals of a sample.
    refused: [AtomicU64; 3],
}

impl LocalBackend {
    pub(super) fn new(parts: LocalParts) -> Result<Arc<Self>, RegionError> {
        let stride = stride(parts.output);
        let outputs = Region::new(parts.slots * stride)?;
        outputs.prefault();
        let grants = Arc::new(Grants::new(parts.slots));
        let cells = ArrayQueue::new(parts.threads.max(1));
        for i in 0..parts.threads {
            let completer = parts.completers.make(i);
            let seen = Vec::with_capacity(BURST);
            let _ = cells.push(Box::new(CompleterCell { completer, seen }));
        }
        Ok(Arc::new_cyclic(|me| LocalBackend {
            me: me.clone(),
            capacity: u32::try_from(parts.output).unwrap_or(u32::MAX),
            part_times: PartTimes::new(parts.slots),
            parts,
            outputs,
            stride,
            tracker: Tracker::new(grants.clone()),
            grants,
            backlog: SegQueue::new(),
            pump: SendToken::new(Vec::with_capacity(BURST)),
            cells,
            aborted: AtomicBool::new(false),
            counts: LocalCounts::default(),
            refusals: Mutex::default(),
        }))
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        lock(&self.refusals)
    }

    fn aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    fn next_waiting(&self) -> Option<Attempt> {
        // On an empty backlog `is_empty` is cheaper than `pop`.
        (!self.backlog.is_empty()).then(|| self.backlog.pop())?
    }

    /// Fills free slots from `direct` and then from the backlog, unless another thread fills them.
    ///
    /// An engine that answers inline re-enters through `respond`: the inner call does not get the
    /// token, and the outer call looks again.
    fn pump(&self, mut direct: impl FnMut() -> Option<Attempt>) {
        let mut claim = self.pump.claim();
        while let Some(mut arrivals) = claim.next() {
            loop {
                let now = now_ns();
                while arrivals.len() < BURST && !self.aborted() {
                    let Some(slot) = self.tracker.reserve() else {
                        break;
                    };
                    let Some(attempt) = direct().or_else(|| self.next_waiting()) else {
                        self.tracker.release(slot);
                        break;
                    };
                    match self.arrival(slot, &attempt, now) {
                        Some(arrival) => arrivals.push(arrival),
                        // Unreachable: the sample lies outside the QSL's memory, or the slot is out
                        // of range.
                        None => {
                            self.tracker.release(slot);
                            let sample = attempt.sample;
                            let cause = format!("sample {} lies in no memory", sample.index);
                            self.parts.verdict.fail(ExitCode::Lost, cause);
                            self.complete_empty(&[sample]);
                        }
                    }
                }
                if arrivals.is_empty() {
                    break;
                }
                self.counts
                    .posted
                    .fetch_add(arrivals.len() as u64, Ordering::Relaxed);
                self.parts.pipelines.arrived(&mut arrivals);
            }
        }
    }

    fn arrival(&self, slot: u16, attempt: &Attempt, now: u64) -> Option<Arrival> {
        let sample = &attempt.sample;
        let len = sample.len as usize;
        let input = self.parts.inputs.at(sample.offset, len).ok()?;
        let at = usize::from(slot) * self.stride;
        let output = self.outputs.at(at, self.capacity as usize).ok()?;
        let me = self.me.upgrade()?;
        let ticket = self.tracker.begin(slot, attempt, now)?.bits().into();
        // SAFETY: the parts hold the QSL's region, which LoadGen changes only while no sample is
        // outstanding. The output is this arrival's alone until its response or `finish` releases
        // the slot; `finish` comes after the last arrival.
        Some(unsafe { Arrival::new(input, sample.len, output, self.capacity, ticket, now, me) })
    }

    /// Takes an unused cell; `None` after the run.
    fn cell(&self) -> Option<Box<CompleterCell>> {
        loop {
            let cell = self.cells.pop();
            if cell.is_some() || self.aborted() {
                return cell;
            }
            // More threads answer than configured: wait for a cell.
            thread::yield_now();
        }
    }

    /// Closes the grants of finished samples and completes the samples.
    fn answer(&self, cell: &mut CompleterCell, finished: &[Finished]) {
        let CompleterCell { completer, seen } = cell;
        let now = now_ns();
        for f in finished {
            let imm = Imm::from_bits(f.ticket as u32);
            let taken = self.grants.take(imm).is_ok();
            match self.tracker.arrived(imm.slot()).filter(|_| taken) {
                Some(in_flight) => seen.push((in_flight, *f)),
                // The sample was swept after an abort.
                None => {
                    self.counts.late.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let slot = |f: &Finished| Imm::from_bits(f.ticket as u32).slot();
        let response = |(in_flight, f): &(InFlight, Finished)| {
            let at = usize::from(slot(f)) * self.stride;
            let len = f.len.min(self.capacity) as usize;
            // SAFETY: the engine has finished with the slot, which is released only below.
            let payload = unsafe { self.outputs.bytes(at, len) };
            Response {
                id: in_flight.sample.id,
                index: in_flight.sample.index,
                connection: 0,
                payload: payload.unwrap_or_default(),
                whole: f.sent.parts == 0 && in_flight.history.first_token.is_none(),
            }
        };
        let again = |(tried, f): &&(InFlight, Finished)| {
            tried.history.first_token.is_some() && f.sent.parts == 0
        };
        for seen in seen.iter().filter(again) {
            let token = token(response(seen).payload);
            let other = Contradiction::of(&seen.0, token, 0);
            other
                .into_iter()
                .for_each(|what| completer.contradicted(what));
        }
        completer.complete(&mut seen.iter().map(response));
        let done = now_ns();
        self.counts
            .completed
            .fetch_add(seen.len() as u64, Ordering::Release);
        for (in_flight, f) in seen.drain(..) {
            // Read the times before the slot is free for another answer.
            let times = self.part_times.times(slot(&f), &in_flight, &f, [now, done]);
            self.tracker.release(slot(&f));
            if let Some(recorder) = completer.recorder(times.issued_ns) {
                recorder.record(&times);
            }
        }
        completer.tick(done);
    }

    /// Hands a part to the completer. The sample stays in flight meanwhile: the sweep waits for
    /// every cell, and the caller holds one.
    fn hand_over(&self, cell: &mut CompleterCell, part: &OutputPart) {
        let slot = Imm::from_bits(part.ticket as u32).slot();
        let Some(in_flight) = self.tracker.arrived(slot) else {
            return;
        };
        let (from, to) = (part.from as usize, part.to.min(self.capacity) as usize);
        let at = usize::from(slot) * self.stride + from;
        // SAFETY: the engine has written these bytes and writes only behind them.
        let payload = unsafe { self.outputs.bytes(at, to.saturating_sub(from)) };
        let begins = self.part_times.record(slot, &in_flight, part, now_ns());
        let payload = payload.unwrap_or_default();
        let first = begins && in_flight.history.first_token.is_none();
        let begun_with = token(payload).filter(|_| begins);
        if let Some(what) =
            begun_with.and_then(|token| Contradiction::of(&in_flight, Some(token), 0))
        {
            cell.completer.contradicted(what);
        }
        if let Some(token) = begun_with.filter(|_| first) {
            self.tracker
                .set_first_token(slot, FirstToken::new(token, now_ns()));
        }
        let part = dispatch::ResponsePart {
            id: in_flight.sample.id,
            index: in_flight.sample.index,
            offset: part.from,
            payload,
            has_first_token: first,
            losses: in_flight.history.tries.losses,
        };
        cell.completer.parts(&mut std::iter::once(part));
    }

    /// Takes every cell, which stops all completions. Leaves out a cell that a thread still holds
    /// after [`COMPLETING`].
    // The queue holds boxes.
    #[allow(clippy::vec_box)]
    fn take_cells(&self) -> Vec<Box<CompleterCell>> {
        let began = Instant::now();
        let mut cells = Vec::new();
        while cells.len() < self.parts.threads && began.elapsed() < COMPLETING {
            match self.cells.pop() {
                Some(cell) => cells.push(cell),
                None => thread::yield_now(),
            }
        }
        cells
    }

    fn complete_empty(&self, samples: &[Sample]) {
        self.parts.completers.complete_empty(samples);
        self.counts
            .emptied
            .fetch_add(samples.len() as u64, Ordering::Release);
    }

    fn empty_backlog(&self) {
        while let Some(attempt) = self.next_waiting() {
            self.complete_empty(&[attempt.sample]);
        }
    }
}

impl Backend for LocalBackend {
    fn issue(&self, samples: &[Sample]) {
        self.counts
            .issued
            .fetch_add(samples.len() as u64, Ordering::Relaxed);
        if self.aborted() {
            return self.complete_empty(samples);
        }
        let mut left = samples.iter().copied().map(Attempt::from);
        if self.backlog.is_empty() {
            self.pump(|| left.next());
        }
        if left.len() > 0 {
            // Count as the dispatcher does: samples with a free slot are left to the pumping
            // thread.
            let (n, before) = (left.len(), self.backlog.len());
            let free = self.parts.slots.saturating_sub(self.tracker.in_flight());
            let handed_over = free.saturating_sub(before).min(n);
            left.for_each(|s| self.backlog.push(s));
            let add = |to: &AtomicU64, n: usize| to.fetch_add(n as u64, Ordering::Relaxed);
            add(&self.counts.handed_over, handed_over);
            add(&self.counts.backlogged, n - handed_over);
            let waiting = (before + n).saturating_sub(free) as u64;
            self.counts
                .backlog_max
                .fetch_max(waiting, Ordering::Relaxed);
            self.pump(|| None);
        }
        if self.aborted() {
            self.empty_backlog();
        }
    }

    fn name(&self) -> (String, Option<Duration>) {
        let LocalParts { node, model, .. } = &self.parts;
        let engine = self.parts.pipelines.engine().name();
        let name = format!("Local SUT (no network): {node}, model {model}, engine {engine}");
        (name, None)
    }

    fn engines(&self) -> Vec<(String, EngineInfo)> {
        vec![(self.parts.node.clone(), self.parts.info.clone())]
    }

    fn connections(&self) -> Vec<String> {
        vec![self.parts.node.clone()]
    }

    fn figures(&self) -> (Ledger, [u64; 2]) {
        let ledger = Ledger {
            answered: self.completed(),
            emptied: self.counts.emptied.load(Ordering::Acquire),
            // Read `issued` after the samples that are done.
            issued: self.counts.issued.load(Ordering::Acquire),
            posted: self.counts.posted.load(Ordering::Relaxed),
            responses: self.completed(),
            refused: [0, 1, 2].map(|i| self.counts.refused[i].load(Ordering::Relaxed)),
            ..Ledger::default()
        };
        (ledger, [0; 2])
    }

    fn waits_for_server(&self) -> bool {
        matches!(self.parts.pipelines.standing(), Standing::Away(_))
    }

    fn outstanding(&self) -> u64 {
        let done = self.completed() + self.counts.emptied.load(Ordering::Acquire);
        // Read `issued` last: completed samples were issued before.
        self.counts
            .issued
            .load(Ordering::Acquire)
            .saturating_sub(done)
    }

    fn completed(&self) -> u64 {
        self.counts.completed.load(Ordering::Acquire)
    }

    fn steps(&self) -> u64 {
        let counters = self.parts.pipelines.counters();
        counters.batches + counters.made
    }

    /// Stops issuing to the engine. Answers that the engine still gives count as late.
    fn abort(&self, _cause: &str) {
        self.aborted.store(true, Ordering::SeqCst);
        self.empty_backlog();
    }

    fn finish(&self) -> SystemRecord {
        let patience = if self.aborted() { STOP_ABORTED } else { STOP };
        let pipelines = &self.parts.pipelines;
        // Complete the backlog empty; samples in slots still run. After a good run none is left.
        self.abort("");
        // Wait for a thread that is making an arrival.
        self.pump.exclusive(|_| ());
        let stopped = pipelines.stop(patience);
        self.empty_backlog();
        // Take the cells before the sweep, so that no thread hands a swept sample's part over.
        let cells = self.take_cells();
        self.tracker.sweep(|f| self.complete_empty(&[f.sample]));
        // Dropping a completer delivers its records.
        drop(cells);
        let counters = pipelines.counters();
        SystemRecord {
            ledger: self.figures().0,
            accelerators: vec![AcceleratorRecord {
                node: self.parts.node.clone(),
                engine: pipelines.engine().name().to_owned(),
                content: self.parts.info.content.clone(),
                samples: Some(counters.samples),
                dropped_late: self.counts.late.load(Ordering::Relaxed),
                batches: counters.batch_sizes,
                gpus: pipelines.gpus(),
                used: NodeUse {
                    engine: pipelines.used(),
                    ..NodeUse::default()
                },
                ..AcceleratorRecord::default()
            }],
            refusals: self.refusals().records().to_vec(),
            queued: QueueCounts {
                backlog_max: self.counts.backlog_max.load(Ordering::Relaxed),
                backlogged: self.counts.backlogged.load(Ordering::Relaxed),
                handed_over: self.counts.handed_over.load(Ordering::Relaxed),
            },
            facts: Some(node_facts(&[])),
            notes: stopped.err().iter().map(ToString::to_string).collect(),
            ..SystemRecord::default()
        }
    }
}

impl Origin for LocalBackend {
    fn respond(&self, finished: &[Finished]) {
        if let Some(mut cell) = self.cell() {
            self.answer(&mut cell, finished);
            // The queue has room for every cell.
            let _ = self.cells.push(cell);
        }
        self.pump(|| None);
    }

    fn parts(&self, parts: &[OutputPart]) {
        if let Some(mut cell) = self.cell() {
            parts.iter().for_each(|p| self.hand_over(&mut cell, p));
            let _ = self.cells.push(cell);
        }
    }

    fn stream(&self) -> Stream {
        self.parts.stream
    }

    fn refuse(&self, ticket: u64, why: &str) {
        let imm = Imm::from_bits(ticket as u32);
        let slot = imm.slot();
        let taken = self.grants.take(imm).is_ok();
        let Some(in_flight) = self.tracker.arrived(slot).filter(|_| taken) else {
            self.counts.late.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut attempt = in_flight.attempt();
        let sample = attempt.sample;
        let after_ns = now_ns().saturating_sub(sample.issued_ns);
        let before = attempt.history.tries.refused(after_ns);
        self.counts.refused[before].fetch_add(1, Ordering::Relaxed);
        self.tracker.release(slot);
        let refused = RefusedSample {
            connection: 0,
            epoch: 0,
            imm,
            index: Some(sample.index),
            tries: attempt.history.tries,
            reason: why.to_owned(),
            is_cut: false,
            is_away: false,
            is_completed: false,
        };
        let todo = self.refusals().add(&self.parts.node, 0, &refused);
        match todo {
            OnRefusal::Count => {}
            OnRefusal::Note(line) => tracing::warn!("{line}"),
            OnRefusal::End(words) | OnRefusal::EndSoon(words) => {
                self.parts.verdict.fail(ExitCode::Lost, words);
                self.complete_empty(&[sample]);
                return self.pump(|| None);
            }
        }
        self.backlog.push(attempt);
        self.pump(|| None);
        if self.aborted() {
            self.empty_backlog();
        }
    }
}
