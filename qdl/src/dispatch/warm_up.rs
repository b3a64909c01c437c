//! Warm-up of connections: before the caller's first sample, samples of every size cross every
//! connection. This pays one-time costs: page mapping, window growth, cold caches and branch
//! predictors, low clock rates.
//!
//! ```text
//!   cold    the longest sample over each connection          must be answered
//!   sizes   each other size over each connection             \
//!   warm    the longest sample again, WARM times              } while the budget lasts
//!   ramp    2, 4, 8 .. at once over all, up to their slots   /
//! ```
//!
//! All phases but the ramp send one sample at a time, so that each figure belongs to one
//! connection. If the budget ends during *cold*, the remaining first samples are sent at once. So
//! the warm-up takes the budget and about two answers, whatever the number of connections.
//!
//! Life is progress: an answer, a part of one, or a step of an engine that a heartbeat reports
//! extends the deadline. Samples of token engines carry a limit of two tokens.
//! Warm-up samples carry [`WARM_UP_ID`] and end in the NIC thread: no completer sees them, and none
//! is sent again. If a connection is lost or silent, the warm-up ends with an error that names it.
//!
//! With prefill and decode nodes, samples go through pairs of them instead, one at a time.
//!
//! The warm-up leaves out connections to an accelerator whose server is away while another takes
//! samples. If none does, it waits for one.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{Attempt, Connection, DispatchState, Dispatcher, Sample};
use crate::{connection::tracker::InFlight, response::ResponseHeader};
use fabric::os::lock;
use fabric::{Broken, clock::now_ns};
use record::{NodeRole, WarmUpRecord};

/// Id of warm-up samples; callers must not use it.
pub const WARM_UP_ID: u64 = u64::MAX;

/// Samples per connection, one at a time, whose median is the warm latency.
const WARM: usize = 5;
/// Refusals without an answer between them after which the warm-up fails.
const REFUSED: u32 = 3;
/// Pause of the sending task before it checks again for room: a tick of its timers.
const AGAIN: Duration = Duration::from_millis(1);
/// Longest time between two looks for steps of engines.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct WarmUpCfgs {
    /// One sample of each size in use; the warm-up ignores the ids.
    pub samples: Vec<Sample>,
    /// Time after which optional phases are skipped.
    pub budget: Duration,
    /// The warm-up fails if answers are due, and no accelerator works for this time.
    pub deadline: Duration,
    /// A repeated warm-up: connections that are down are skipped.
    pub is_repeated: bool,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub(crate) enum WarmUpError {
    #[error("it is down")]
    Down { connection: usize },
    #[error("{cause}")]
    Lost { connection: usize, cause: Broken },
    /// No answer came, or the connection had no room to send.
    #[error(
        "no answer within {after:?}, nor from any other connection, and no accelerator has made a \
         token or run a batch (warm_up.deadline_ms)"
    )]
    Silent {
        /// Index of the first connection that owes an answer.
        connection: usize,
        after: Duration,
    },
}

impl WarmUpError {
    /// Whether the connection is lost.
    pub(crate) fn is_loss(&self) -> bool {
        !matches!(self, WarmUpError::Silent { .. })
    }

    pub(crate) fn connection(&self) -> usize {
        match self {
            WarmUpError::Down { connection }
            | WarmUpError::Lost { connection, .. }
            | WarmUpError::Silent { connection, .. } => *connection,
        }
    }
}

/// State shared by the warming task and the NIC threads.
#[derive(Debug, Default)]
pub(super) struct WarmUp {
    state: Mutex<State>,
    moved: Notify,
    /// Samples put into rings in all warm-ups, without those that were not posted or lost.
    sent: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Only one sample is in flight.
    alone: bool,
    due: Vec<u32>,
    /// Connection and network time (ns) of each answer since the warming task last read the list.
    answers: Vec<(usize, u64)>,
    answered: u64,
    /// Refusals since the last answer, counted for samples sent alone or before the first answer.
    refused: u32,
    lost: Option<(usize, Broken)>,
}

impl State {
    fn owes(&self) -> Option<usize> {
        self.due.iter().position(|n| *n > 0)
    }
}

impl WarmUp {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Calls `f` unless no warm-up runs, which cannot end meanwhile.
    pub(super) fn while_running<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        let state = self.lock();
        state.running.then(f)
    }

    pub(crate) fn not_posted(&self, connection: usize) {
        self.lost_one();
        self.not_answered(connection);
    }

    /// Records the end of a sample whose connection is at no fault.
    pub(crate) fn not_answered(&self, connection: usize) {
        self.answer(connection, None);
    }

    /// Records that a sample was lost with its connection.
    pub(crate) fn lost_one(&self) {
        self.sent.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, connection: usize, cause: &Broken) {
        let mut state = self.lock();
        if state.running {
            state
                .lost
                .get_or_insert_with(|| (connection, cause.clone()));
            self.moved.notify_one();
        }
    }

    /// Records a refusal like a failed post; too many in a row count as a lost connection.
    pub(crate) fn refused(&self, connection: usize, words: String) {
        let refused = {
            let mut state = self.lock();
            // Of many samples sent at once, an accelerator may refuse some without a fault.
            state.refused += u32::from(state.alone || state.answered == 0);
            state.refused
        };
        if refused >= REFUSED {
            self.lost(connection, &Broken::GivenUp(words));
        }
        self.answer(connection, None);
    }

    /// Records an answer (`None`: a failed sample). Returns whether the sample was alone in flight.
    fn answer(&self, connection: usize, network_ns: Option<u64>) -> bool {
        let mut state = self.lock();
        if let Some(due) = state.due.get_mut(connection) {
            *due = due.saturating_sub(1);
        }
        if let Some(ns) = network_ns {
            state.answers.push((connection, ns));
            state.answered += 1;
            state.refused = 0;
        }
        if state.owes().is_none() {
            self.moved.notify_one();
        }
        state.alone
    }
}

impl DispatchState {
    /// Records the answer to a warm-up sample, whose slot is free again.
    pub(super) fn warmed(&self, connection: &Connection, f: &InFlight, header: &ResponseHeader) {
        let residence = u64::from(header.queue_us) + u64::from(header.compute_us);
        let round_trip = now_ns().saturating_sub(f.posted_ns);
        let network = round_trip.saturating_sub(residence * 1000);
        connection.warmed.fetch_add(1, Ordering::Relaxed);
        self.receiving.steps.fetch_add(1, Ordering::Relaxed);
        let alone = self.warm_up.answer(connection.index, Some(network));
        if alone {
            self.choice
                .observe_unloaded(connection.index, f.sample.len, network);
        }
    }
}

impl Dispatcher {
    /// Samples of all warm-ups that were sent and not lost: as many as the connections count.
    pub(crate) fn warm_up_samples(&self) -> u64 {
        self.shared.warm_up.sent.load(Ordering::Relaxed)
    }

    /// Warms every connection up. No sample may be outstanding or be issued meanwhile. Each
    /// connection's record has the times of its samples.
    ///
    /// # Errors
    /// [`WarmUpError`] names the connection that failed.
    pub(crate) async fn warm_up(&self, cfgs: &WarmUpCfgs) -> Result<WarmUpRecord, WarmUpError> {
        if cfgs.samples.is_empty() {
            return Ok(WarmUpRecord::default());
        }
        let connections = self.connections();
        *self.shared.warm_up.lock() = State {
            running: true,
            due: vec![0; connections],
            ..State::default()
        };
        let counts = |l: &Connection| l.send.counts();
        let before: Vec<_> = self.shared.connections.iter().map(counts).collect();
        let report = WarmUpRound::new(self, cfgs).run().await;
        self.shared.warm_up.lock().running = false;
        self.shared.end_handle(WARM_UP_ID);
        for (connection, before) in self.shared.connections.iter().zip(before) {
            // Discards the warm-up's counts, but not the fabric's.
            connection.send.set_counts(before);
            // A peer's echo may have come while `set_counts` held the token: post the reply.
            self.shared.post_waiting(connection);
        }
        report
    }
}

struct WarmUpRound<'a> {
    shared: &'a DispatchState,
    cfgs: &'a WarmUpCfgs,
    /// One sample per size, longest first.
    samples: Vec<Sample>,
    connections: Vec<usize>,
    began: Instant,
    report: WarmUpRecord,
}

impl<'a> WarmUpRound<'a> {
    fn new(dispatcher: &'a Dispatcher, cfgs: &'a WarmUpCfgs) -> Self {
        let mut samples = cfgs.samples.clone();
        samples.sort_by_key(|s| std::cmp::Reverse(s.len));
        samples.iter_mut().for_each(|s| s.id = WARM_UP_ID);
        let shared = &*dispatcher.shared;
        let wanted = |l: &&Connection| !cfgs.is_repeated || l.up.load(Ordering::SeqCst);
        WarmUpRound {
            shared,
            cfgs,
            samples,
            connections: shared
                .connections
                .iter()
                .filter(wanted)
                .map(|l| l.index)
                .collect(),
            began: Instant::now(),
            report: WarmUpRecord::default(),
        }
    }

    fn in_budget(&self) -> bool {
        self.began.elapsed() < self.cfgs.budget
    }

    async fn run(mut self) -> Result<WarmUpRecord, WarmUpError> {
        let mut all = self.shared.connections.iter();
        if all.all(|c| c.cfgs.role == NodeRole::Both) {
            self.cold().await?;
            self.sizes().await?;
            self.warm().await?;
            self.ramp().await?;
        } else {
            self.pairs().await?;
        }
        self.report.samples = self.shared.warm_up.lock().answered;
        self.report.took_ms = self.began.elapsed().as_nanos() as f64 / 1e6;
        Ok(self.report)
    }

    fn with_role(&self, role: NodeRole) -> Vec<usize> {
        let all = self.connections.iter().copied();
        let has_role = |c: &usize| self.shared.connections[*c].cfgs.role == role;
        all.filter(has_role).collect()
    }

    /// Sends the longest sample through a prefill and a decode connection in turn: over each
    /// connection, and through each pair of nodes, which then know each other's KV caches. No
    /// sample stays at a prefill node, which would keep its KV cache.
    async fn pairs(&mut self) -> Result<(), WarmUpError> {
        let prefill = self.with_role(NodeRole::Prefill);
        let mut decode = BTreeMap::<usize, Vec<usize>>::new();
        for c in self.with_role(NodeRole::Decode) {
            let peer = self.shared.connections[c].cfgs.peer;
            decode.entry(peer).or_default().push(c);
        }
        let longest = decode.values().map(Vec::len).max().unwrap_or(0);
        let turns = match prefill.len() {
            0 => 0,
            n => longest.max(n),
        };
        let mut pairs = Vec::new();
        for turn in 0..turns {
            let from = prefill[turn % prefill.len()];
            pairs.extend(decode.values().map(|d| [from, d[turn % d.len()]]));
        }
        let (mut times, sample) = (BTreeMap::<usize, Vec<u64>>::new(), self.samples[0]);
        for (n, pair) in pairs.repeat(1 + WARM).into_iter().enumerate() {
            if n >= pairs.len() && !self.in_budget() {
                break;
            }
            self.shared.end_handle(WARM_UP_ID);
            for connection in pair {
                let ns = self.one(connection, sample).await?;
                times.entry(connection).or_default().extend(ns);
            }
        }
        self.report.connections = times.len();
        self.report.at_once = 1;
        (self.report.sizes, self.report.of_sizes) = (1, self.samples.len());
        for (connection, mut times) in times {
            let record = &mut self.shared.connections[connection].figures().record;
            if let [first, later @ ..] = &mut times[..] {
                record.cold_us.get_or_insert(first.div_ceil(1000));
                later.sort_unstable();
                let median = later.get(later.len() / 2);
                record.warm_us = record.warm_us.or(median.map(|ns| ns.div_ceil(1000)));
            }
        }
        Ok(())
    }

    /// Sends the longest sample over each connection, for the first time.
    async fn cold(&mut self) -> Result<(), WarmUpError> {
        let mut is_warm = vec![false; self.shared.connections.len()];
        let mut silence = Silence::default();
        loop {
            let takes = |c: &usize| !self.shared.is_away(*c);
            let all = self.connections.iter().copied();
            let missing: Vec<_> = all.filter(|c| !is_warm[*c]).collect();
            let Some(connection) = missing.iter().copied().find(takes) else {
                if missing.is_empty() || self.connections.iter().any(takes) {
                    break;
                }
                self.wait().await?;
                sleep(LOOK).await;
                silence = Silence::default();
                continue;
            };
            let answers = if self.in_budget() {
                self.one(connection, self.samples[0])
                    .await?
                    .map(|ns| (connection, ns))
            } else {
                for connection in missing {
                    self.send(connection, std::iter::once(self.samples[0]))
                        .await?;
                }
                self.wait().await?;
                None
            };
            let rest = std::mem::take(&mut self.shared.warm_up.lock().answers);
            let mut came = false;
            for (connection, ns) in answers.into_iter().chain(rest) {
                is_warm[connection] = true;
                let record = &mut self.shared.connections[connection].figures().record;
                record.cold_us.get_or_insert(ns.div_ceil(1000));
                came = true;
            }
            if !came && !self.shared.is_away(connection) {
                // The sample could not be posted: the connection had less room than expected.
                self.time_left(&mut silence, connection)?;
                sleep(AGAIN).await;
            }
        }
        self.report.at_once = 1;
        (self.report.sizes, self.report.of_sizes) = (1, self.samples.len());
        self.report.connections = is_warm.into_iter().filter(|warm| *warm).count();
        Ok(())
    }

    async fn sizes(&mut self) -> Result<(), WarmUpError> {
        for i in 1..self.samples.len() {
            for connection in self.connections.clone() {
                if !self.in_budget() {
                    return Ok(());
                }
                self.one(connection, self.samples[i]).await?;
            }
            self.report.sizes += 1;
        }
        Ok(())
    }

    /// Sends the longest sample again, for the figures.
    async fn warm(&mut self) -> Result<(), WarmUpError> {
        for connection in self.connections.clone() {
            let mut times = Vec::with_capacity(WARM);
            for _ in 0..WARM {
                if !self.in_budget() {
                    return Ok(());
                }
                times.extend(self.one(connection, self.samples[0]).await?);
            }
            times.sort_unstable();
            if let Some(ns) = times.get(times.len() / 2) {
                let record = &mut self.shared.connections[connection].figures().record;
                record.warm_us.get_or_insert(ns.div_ceil(1000));
            }
        }
        Ok(())
    }

    /// Sends more and more samples at once. A round takes about twice the time of the round before.
    async fn ramp(&mut self) -> Result<(), WarmUpError> {
        let slots = |l: &usize| self.shared.connections[*l].tracker.allowance();
        let most = self.connections.iter().map(slots).max().unwrap_or(1);
        let mut last = Duration::ZERO;
        let mut at_once = 1;
        while at_once < most && self.began.elapsed() + 2 * last <= self.cfgs.budget {
            at_once = (2 * at_once).min(most);
            let began = Instant::now();
            for &connection in &self.connections {
                let n = at_once.min(slots(&connection));
                let samples = self.samples.iter().cycle().take(n);
                self.send(connection, samples.copied()).await?;
            }
            self.wait().await?;
            self.shared.warm_up.lock().answers.clear();
            last = began.elapsed();
            self.report.at_once = at_once;
        }
        Ok(())
    }

    /// Sends one sample alone and returns its network time, or `None` if it could not be posted.
    async fn one(&self, connection: usize, sample: Sample) -> Result<Option<u64>, WarmUpError> {
        self.shared.warm_up.lock().alone = true;
        self.send(connection, std::iter::once(sample)).await?;
        self.wait().await?;
        let mut state = self.shared.warm_up.lock();
        state.alone = false;
        let answers = std::mem::take(&mut state.answers);
        Ok(answers.first().map(|(_, ns)| *ns))
    }

    /// Puts samples into a connection's ring as the ring has room, and posts the ring. Sends none
    /// to an accelerator whose server is away.
    async fn send(
        &self,
        connection: usize,
        samples: impl Iterator<Item = Sample>,
    ) -> Result<(), WarmUpError> {
        let to = &self.shared.connections[connection];
        let mut silence = Silence::default();
        // A warm-up that has failed leaves no sample in the ring.
        let fail = |error| {
            self.shared.requeue_ring(to);
            Err(self.failed(error))
        };
        for mut sample in samples.take_while(|_| !self.shared.is_away(connection)) {
            sample.issued_ns = now_ns();
            self.shared.warm_up.lock().due[connection] += 1;
            while to.ring.push(Attempt::from(sample)).is_err() {
                self.shared.post_waiting(to);
                if self.shared.is_away(connection) {
                    self.shared.warm_up.not_answered(connection);
                    return Ok(());
                }
                if let Err(error) = self.time_left(&mut silence, connection) {
                    return fail(error);
                }
                if !to.up.load(Ordering::SeqCst) {
                    return fail(WarmUpError::Down { connection });
                }
                sleep(AGAIN).await;
            }
            self.shared.warm_up.sent.fetch_add(1, Ordering::Relaxed);
        }
        // Either this thread sees the connection down, or its NIC thread sees the samples.
        fence(Ordering::SeqCst);
        if !to.up.load(Ordering::SeqCst) {
            return fail(WarmUpError::Down { connection });
        }
        self.shared.post_waiting(to);
        Ok(())
    }

    /// Returns the cause of a lost connection, if one is lost, else `otherwise`.
    fn failed(&self, otherwise: WarmUpError) -> WarmUpError {
        match self.shared.warm_up.lock().lost.take() {
            Some((connection, cause)) => WarmUpError::Lost { connection, cause },
            None => otherwise,
        }
    }

    async fn wait(&self) -> Result<(), WarmUpError> {
        let mut silence = Silence::default();
        while let Some(connection) = self.owes()? {
            let left = self.time_left(&mut silence, connection)?;
            let moved = self.shared.warm_up.moved.notified();
            let _ = timeout(left.clamp(AGAIN, LOOK), moved).await;
        }
        Ok(())
    }

    /// The first connection that owes an answer.
    fn owes(&self) -> Result<Option<usize>, WarmUpError> {
        let mut state = self.shared.warm_up.lock();
        match state.lost.take() {
            Some((connection, cause)) => Err(WarmUpError::Lost { connection, cause }),
            None => Ok(state.owes()),
        }
    }

    /// Time left for the next sign of life, while `connection` owes an answer.
    fn time_left(&self, silence: &mut Silence, connection: usize) -> Result<Duration, WarmUpError> {
        let after = self.cfgs.deadline;
        let signs = self.shared.receiving.steps.load(Ordering::Relaxed);
        let left = after.checked_sub(silence.look(Instant::now(), signs));
        left.ok_or(WarmUpError::Silent { connection, after })
    }
}

/// Signs of life so far, and the time of the last one. The caller passes the clock.
#[derive(Default)]
pub(super) struct Silence(Option<(u64, Instant)>);

impl Silence {
    /// Time since the last sign of life, or since the first look.
    pub(super) fn look(&mut self, now: Instant, signs: u64) -> Duration {
        let since = match self.0 {
            Some((before, since)) if before == signs => since,
            _ => self.0.insert((signs, now)).1,
        };
        now.saturating_duration_since(since)
    }
}
