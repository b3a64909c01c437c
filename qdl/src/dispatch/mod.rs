//! The frontend's dispatcher: it takes samples, and calls back with responses.
//!
//! ```text
//!   issue(samples) --> the ring of a connection with a free slot, chosen by the arbiter: the
//!                  |   issuing thread posts it, or the NIC thread does
//!                  \-> no slot, or more bursts than connections: the backlog, from which NIC
//!                      threads post when slots come free
//! ```
//!
//! * this file: the dispatcher, its connections and its counts
//! * `posting`: from `issue` to a connection's writes
//! * `nic`: the work of a NIC thread
//! * `answers`: from an arrival to its completion, its record or its retry
//! * `connection`, `backlog`, `link`, `progress`: the parts that these share
//! * `health`, `slots`, `warm_up`: a policy by health, `slots: auto`, the warm-up samples
//!
//! All connections share one backlog. A sample is bound to a connection only once that has a slot.
//! So a slow accelerator delays no others' samples, and no sample waits for a lost connection.
//!
//! Every issued sample is completed exactly once: with its response, possibly after a retry on a
//! second connection, or empty after [`Dispatcher::abort`]. The completer gets the parts of a
//! response as they arrive. After a retry the parts begin again at offset 0. The first token is
//! reported once; the retry's first token must equal it.

mod answers;
mod api;
mod backlog;
mod connection;
mod health;
mod link;
#[cfg(feature = "testkit")]
mod look;
mod nic;
mod posting;
mod progress;
mod slots;
mod warm_up;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use tokio::time::{Instant, sleep};

pub use crate::connection::tracker::{First, Sample, Tries};
pub use api::{
    Completer, Contradiction, DispatchCfgs, DispatchCounts, DispatchError, DispatchEvent,
    DispatchNic, Owner, Part, RefusedSample, Response,
};
pub use connection::ConnectionCfgs;
pub use health::NicDown;
#[cfg(feature = "testkit")]
pub use look::Look;
pub use warm_up::{ConnectionWarmUp, WARM_UP_ID, WarmUpReport};
pub(crate) use warm_up::{WarmUpCfgs, WarmUpError};

use crate::{
    connection::{
        self as threads, CrewPlan, EchoCfgs, MakeWork, NicThread, NicThreadHandle, Placed,
    },
    model::Lengths,
    rails::{Arbiter, RailArbiter, RailId, RailReport, Score},
};
use fabric::{
    Broken, Endpoint, Link, Region,
    sync::{AtomicBool, AtomicU64 as ModelledU64},
};
use record::{ConnectionRecord, NicUse, timeline::ConnectionTick};

use backlog::Backlog;
use connection::Connection;
use health::Health;
use nic::{Command, FrontendNic};
use slots::SlotLimits;
use warm_up::WarmUp;

/// Number of the next dispatcher of this process, from 1.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Shared {
    /// Tells dispatchers apart, also where a new one lies at the address of an earlier one.
    number: u64,
    connections: Box<[Connection]>,
    sources: Vec<Arc<Region>>,
    staged_from: Option<Arc<Region>>,
    backlog: Backlog,
    backlog_len: CachePadded<ModelledU64>,
    backlog_max: AtomicU64,
    backlogged: AtomicU64,
    handed_over: CachePadded<AtomicU64>,
    arbiter: Arbiter,
    /// Set once the peers have described their connections, under a policy by health.
    health: OnceLock<Health>,
    /// Limits of `slots: auto`; set before the first sample.
    limits: OnceLock<SlotLimits>,
    /// Per peer: the connection that got the last burst.
    last_of_peer: Box<[CachePadded<AtomicUsize>]>,
    owner: Arc<dyn Owner>,
    aborted: AtomicBool,
    issued: CachePadded<AtomicU64>,
    /// Issue time of the first sample, on [`fabric::clock`]; 0 before the first sample.
    first_ns: AtomicU64,
    completed: Box<[CachePadded<AtomicU64>]>,
    /// Parts passed to the completer, without last parts, by share.
    parts: Box<[CachePadded<AtomicU64>]>,
    token_bytes: u32,
    answers: Option<Lengths>,
    completed_empty: AtomicU64,
    /// Signs of the accelerators' work: heartbeats whose progress grew, answers to warm-up samples
    /// and their parts.
    steps: AtomicU64,
    again: AtomicU64,
    /// Number of first, second and third refusals of a sample.
    refused: [AtomicU64; 3],
    /// Samples refused three times, kept until the run is aborted.
    spent: Mutex<Vec<Sample>>,
    connections_lost: AtomicU64,
    echo: EchoCfgs,
    nic_threads: OnceLock<Vec<NicThreadHandle>>,
    warm_up: WarmUp,
    /// Largest burst that the issuing thread posts, in payload bytes.
    post_up_to: u64,
    /// Time for which a thread issues to the same connection, unless a burst is full earlier.
    stay_ns: u64,
    one_by_one: bool,
}

/// The frontend's dispatcher.
pub struct Dispatcher {
    shared: Arc<Shared>,
    handles: Vec<NicThreadHandle>,
    inboxes: Vec<Arc<SegQueue<Command>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    crew: CrewPlan,
    send_depth: usize,
    is_stopped: AtomicBool,
}

impl Dispatcher {
    /// Maps the response slots and starts the NIC threads, with all connections down. `shares` has
    /// one entry per share of [`DispatchCfgs::crew`], or one per NIC without a plan.
    ///
    /// # Errors
    /// [`DispatchError`].
    pub fn new(
        cfgs: DispatchCfgs,
        shares: Vec<DispatchNic>,
        owner: Arc<dyn Owner>,
    ) -> Result<Self, DispatchError> {
        let (dispatcher, threads) = Dispatcher::assemble(cfgs, shares, owner)?;
        *dispatcher.threads() = threads::start(threads)?;
        Ok(dispatcher)
    }

    /// As [`Dispatcher::new`], but returns the NIC threads in place of starting them.
    ///
    /// # Errors
    /// [`DispatchError`].
    pub fn assemble(
        cfgs: DispatchCfgs,
        shares: Vec<DispatchNic>,
        owner: Arc<dyn Owner>,
    ) -> Result<(Self, Vec<NicThread>), DispatchError> {
        let staged = cfgs.staged_from.is_some();
        let crew = cfgs.crew.unwrap_or_else(|| CrewPlan::each(shares.len()));
        let mut shared_out = crew.share_out();
        let connections = cfgs
            .connections
            .iter()
            .enumerate()
            .map(|(i, l)| {
                let share = shared_out.next(l.nic_index);
                Connection::new(
                    (i, share),
                    *l,
                    shares.get(share).map_or(&[], |s| &s.cfgs.near.nodes),
                    staged,
                    cfgs.policy.is_by_health(),
                    cfgs.stream,
                )
            })
            .collect::<Result<Box<[_]>, _>>()?;
        let peers = connections.iter().map(|c| c.cfgs.peer + 1).max();
        let shared = Arc::new(Shared {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            // With a last burst on another peer's connection, a peer would seem loaded.
            last_of_peer: (0..peers.unwrap_or(0))
                .map(|peer| connections.iter().position(|c| c.cfgs.peer == peer))
                .map(|first| CachePadded::new(AtomicUsize::new(first.unwrap_or(0))))
                .collect(),
            connections,
            sources: cfgs.sources,
            staged_from: cfgs.staged_from,
            backlog: Backlog::default(),
            backlog_len: CachePadded::default(),
            backlog_max: AtomicU64::new(0),
            backlogged: AtomicU64::new(0),
            handed_over: CachePadded::default(),
            arbiter: Arbiter::new(cfgs.policy),
            health: OnceLock::new(),
            limits: OnceLock::new(),
            owner,
            aborted: AtomicBool::new(false),
            issued: CachePadded::default(),
            first_ns: AtomicU64::new(0),
            completed: shares.iter().map(|_| CachePadded::default()).collect(),
            parts: shares.iter().map(|_| CachePadded::default()).collect(),
            token_bytes: cfgs.token_bytes.clamp(1, 8),
            answers: cfgs.answers,
            completed_empty: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            again: AtomicU64::new(0),
            refused: Default::default(),
            spent: Mutex::default(),
            connections_lost: AtomicU64::new(0),
            echo: cfgs.echo,
            nic_threads: OnceLock::new(),
            warm_up: WarmUp::default(),
            post_up_to: cfgs.post_up_to,
            stay_ns: cfgs.stay_ns,
            one_by_one: cfgs.one_by_one,
        });
        let mut inboxes = Vec::new();
        let mut works = Vec::new();
        for (index, r) in shares.into_iter().enumerate() {
            let inbox = Arc::new(SegQueue::new());
            let (s, i) = (shared.clone(), inbox.clone());
            let make: MakeWork = Box::new(move |handle| {
                Box::new(FrontendNic::new(index, s, i, r.completer, &handle))
            });
            works.push((r.cfgs, make));
            inboxes.push(inbox);
        }
        let (handles, threads) = threads::make_crew(works, &crew)?;
        let _ = shared.nic_threads.set(handles.clone());
        let dispatcher = Dispatcher {
            shared,
            handles,
            inboxes,
            threads: Mutex::default(),
            crew,
            send_depth: cfgs.send_depth,
            is_stopped: AtomicBool::new(false),
        };
        Ok((dispatcher, threads))
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint for a new link of a connection. The peer must have the same number of slots.
    pub fn endpoint(&self, connection: usize) -> Endpoint {
        self.shared.connections[connection].endpoint(&self.shared.sources, self.send_depth)
    }

    /// Settings of a connection.
    pub fn connection(&self, connection: usize) -> ConnectionCfgs {
        self.shared.connections[connection].cfgs
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.len()
    }

    /// Brings a connection up with a link of a new epoch. Its slots must be out of quarantine.
    /// Drops the link after [`Dispatcher::stop`], because no NIC thread would.
    pub fn attach(&self, connection: usize, epoch: u32, link: Link) {
        if self.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        self.command(
            connection,
            Command::Attach {
                connection,
                epoch,
                link,
            },
        );
    }

    /// Takes a connection down, if `epoch` is up, as if the fabric had reported `cause`.
    pub fn give_up(&self, connection: usize, epoch: u32, cause: Broken) {
        self.command(
            connection,
            Command::GiveUp {
                connection,
                epoch,
                cause,
            },
        );
    }

    /// Takes down every connection of a NIC whose link is down.
    pub(crate) fn give_up_nic(&self, nic_index: usize, cause: &Broken) {
        for share in self.crew.shares_of(nic_index) {
            self.inboxes[share].push(Command::GiveUpAll(cause.clone()));
            self.handles[share].wake();
        }
    }

    fn command(&self, connection: usize, command: Command) {
        let share = self.shared.connections[connection].share;
        self.inboxes[share].push(command);
        self.handles[share].wake();
    }

    /// Switches to a policy by health; before this call, the number of outstanding samples decides.
    /// Measurements are folded into scores every `tick_ns`. `nic_down` returns whether a NIC is
    /// down. Only the first call has an effect.
    pub fn choose_by_health(&self, arbiter: RailArbiter, tick_ns: u64, nic_down: Box<NicDown>) {
        let peers = 1 + self
            .shared
            .connections
            .iter()
            .map(|c| c.cfgs.peer)
            .max()
            .unwrap_or(0);
        let _ = self
            .shared
            .health
            .set(Health::new(arbiter, peers, tick_ns, nic_down));
        for inbox in &self.inboxes {
            inbox.push(Command::Health);
        }
        self.handles.iter().for_each(NicThreadHandle::wake);
    }

    /// Records whether the control session with a peer is lost. The arbiter uses this to locate the
    /// fault of a lost rail.
    pub(crate) fn control_session(&self, peer: usize, lost: bool) {
        if let Some(h) = self.shared.health.get() {
            h.control(peer, lost);
        }
    }

    /// Records the scores of a peer's interior and of its rails, from a heartbeat.
    pub(crate) fn put_scores(
        &self,
        peer: usize,
        interior: Score,
        rails: impl IntoIterator<Item = (RailId, Score)>,
    ) {
        if let Some(h) = self.shared.health.get() {
            h.arbiter.set_peers_scores(peer, interior, rails);
        }
    }

    /// Report on each rail to a peer; empty unless the policy is by health.
    pub(crate) fn rail_report(&self, peer: usize) -> Vec<RailReport> {
        let health = self.shared.health.get();
        health.map_or_else(Vec::new, |h| h.arbiter.report(peer))
    }

    /// Aborts the run: takes all connections down and completes all outstanding samples empty.
    pub fn abort(&self, cause: &str) {
        self.shared.aborted.store(true, Ordering::SeqCst);
        for inbox in &self.inboxes {
            inbox.push(Command::GiveUpAll(Broken::GivenUp(cause.to_owned())));
        }
        self.handles.iter().for_each(NicThreadHandle::wake);
        self.shared.empty_backlog();
    }

    /// Waits until no sample is outstanding. Returns false if samples remain after `deadline`.
    pub(crate) async fn drain(&self, deadline: Duration) -> bool {
        let end = Instant::now() + deadline;
        while self.outstanding() > 0 {
            if Instant::now() >= end {
                return false;
            }
            sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Placement of each NIC's threads and of its connections' memory.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        NicThreadHandle::placed_by_nic(&self.handles, &self.crew)
    }

    /// NUMA nodes of the samples' memory, as the kernel reports them.
    pub(crate) fn sample_nodes(&self) -> BTreeSet<u32> {
        let s = &*self.shared;
        let regions = s.sources.iter().chain(&s.staged_from);
        regions.flat_map(|r| r.nodes()).collect()
    }

    pub(crate) fn nic_threads(&self) -> usize {
        self.crew.threads()
    }

    /// The posting rule: the largest burst that the issuing thread posts, in payload bytes, and
    /// whether each sample has its own doorbell.
    pub(crate) fn posting_rule(&self) -> (u64, bool) {
        (self.shared.post_up_to, self.shared.one_by_one)
    }

    /// Number of connections that are up.
    pub fn connections_up(&self) -> usize {
        let up = |l: &&Connection| l.up.load(Ordering::Relaxed);
        self.shared.connections.iter().filter(up).count()
    }

    /// Whether a connection to an accelerator is up.
    pub(crate) fn is_up(&self, peer: usize) -> bool {
        let mut all = self.shared.connections.iter();
        all.any(|c| c.cfgs.peer == peer && c.up.load(Ordering::Relaxed))
    }

    /// Issue time of the first sample on [`fabric::clock`], warm-up samples excluded.
    pub(crate) fn first_issued_ns(&self) -> Option<u64> {
        match self.shared.first_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    /// Samples issued and not completed.
    pub fn outstanding(&self) -> u64 {
        let c = self.counts();
        c.issued - c.completed - c.completed_empty
    }

    /// Records that an accelerator's engines have worked: a sign of life, also without answers.
    pub(crate) fn note_work(&self) {
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Signs of work noted so far ([`Self::note_work`]), which extend the deadlines of answers.
    pub fn steps(&self) -> u64 {
        self.shared.steps.load(Ordering::Relaxed)
    }

    /// Parts passed to the completer, without last parts.
    pub(crate) fn parts(&self) -> u64 {
        let parts = self.shared.parts.iter();
        parts.map(|p| p.load(Ordering::Relaxed)).sum()
    }

    /// Totals so far.
    pub fn counts(&self) -> DispatchCounts {
        let s = &*self.shared;
        let (wakeups, sleeps) = NicThreadHandle::waits(&self.handles);
        let completed_empty = s.completed_empty.load(Ordering::Acquire);
        let completed = s.completed.iter().map(|c| c.load(Ordering::Acquire)).sum();
        DispatchCounts {
            completed,
            completed_empty,
            parts: self.parts(),
            // Load `issued` after the completed counts, so that it is never less than their sum.
            issued: s.issued.load(Ordering::Acquire),
            again: s.again.load(Ordering::Relaxed),
            refused: [0, 1, 2].map(|i| s.refused[i].load(Ordering::Relaxed)),
            posted: s
                .connections
                .iter()
                .map(Connection::posted_for_callers)
                .sum(),
            connections_lost: s.connections_lost.load(Ordering::Relaxed),
            backlog_max: s.backlog_max.load(Ordering::Relaxed),
            backlogged: s.backlogged.load(Ordering::Relaxed),
            handed_over: s.handed_over.load(Ordering::Relaxed),
            wakeups,
            sleeps,
        }
    }

    /// Busy time and sleeps of the NIC threads so far.
    pub(crate) fn nic_use(&self) -> NicUse {
        NicThreadHandle::uses(&self.handles)
    }

    /// Counts of each connection, final once the dispatcher has been stopped. The caller adds the
    /// names of the connections and the causes of their losses.
    pub fn connection_records(&self) -> Vec<ConnectionRecord> {
        self.shared
            .connections
            .iter()
            .map(Connection::totals)
            .collect()
    }

    /// Live figures of each connection, without rail scores. Reading them slows no other thread.
    pub(crate) fn readings(&self) -> Vec<ConnectionTick> {
        self.shared
            .connections
            .iter()
            .map(Connection::reading)
            .collect()
    }

    /// Samples copied into registered memory before they were sent (`qsl: staged`), and their
    /// bytes. [`Self::counts`] excludes both, because this call waits for the send tokens.
    pub(crate) fn staged(&self) -> (u64, u64) {
        let sent = self.shared.connections.iter().map(|c| c.send.counts());
        sent.fold((0, 0), |(n, bytes), c| {
            (n + c.staged, bytes + c.staged_bytes)
        })
    }

    /// Stops the NIC threads and takes every connection down. Detaches a thread that does not end
    /// within the time limit, because a callback does not return.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        for inbox in &self.inboxes {
            inbox.push(Command::Stop);
        }
        self.handles.iter().for_each(NicThreadHandle::wake);
        let threads = std::mem::take(&mut *self.threads());
        threads::join_all(threads, threads::ENDING);
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Handle of each share's thread.
    fn handles(&self) -> &[NicThreadHandle] {
        self.nic_threads.get().map_or(&[], Vec::as_slice)
    }

    /// Wakes every NIC thread: any of them may post a lost connection's samples.
    fn wake_all(&self) {
        self.handles().iter().for_each(NicThreadHandle::wake);
    }

    fn complete_empty(&self, samples: &[Sample]) {
        self.owner.complete_empty(samples);
        self.completed_empty
            .fetch_add(samples.len() as u64, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
