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
//! * `nic`: the frontend's end in a NIC thread
//! * `responses`: from an arrival to its completion, its record or its retry
//! * `choice`: the policy that chooses connections
//! * `connection`, `backlog`, `link`, `progress`: the parts that these share
//! * `cancel`: samples that the caller does not want any more
//! * `prefill`: samples that go from a prefill node to a decode node
//! * `slots`, `warm_up`: `slots: auto`, the warm-up samples
//!
//! *Enqueue* puts a sample into a ring, *requeue* moves one that was not posted to the backlog, and
//! *retry* sends one again after a failed attempt.
//!
//! All connections share one backlog. A sample is bound to a connection only once that has a slot.
//! So a slow accelerator delays no others' samples, and no sample waits for a lost connection.
//!
//! Every issued sample is completed exactly once: with its response, possibly after a retry on a
//! second connection, or empty after [`Dispatcher::abort`] or [`Dispatcher::cancel`]. The completer
//! gets the parts of a response as they arrive. After a retry the parts begin again at offset 0.
//! The first token is reported once; the retry's first token must equal it.

mod api;
mod backlog;
mod cancel;
mod choice;
mod connection;
mod link;
#[cfg(feature = "testkit")]
mod look;
mod nic;
mod posting;
mod prefill;
mod progress;
mod responses;
mod slots;
mod warm_up;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_utils::CachePadded;
use tokio::time::{Instant, sleep};

pub(crate) use crate::connection::tracker::Tries;
pub use crate::connection::tracker::{Attempt, FirstToken, Sample};
pub(crate) use api::DispatchError;
pub use api::{
    Completer, ConnectionCfgs, Contradiction, DispatchCfgs, DispatchEvent, DispatchNic,
    KeptResponse, Owner, RefusedSample, Response, ResponsePart,
};
pub use warm_up::WARM_UP_ID;
pub(crate) use warm_up::{WarmUpCfgs, WarmUpError};

use crate::{
    connection::{
        CrewPlan, EchoCfgs, NicThread, NicThreadHandle, Placed,
        share::{Crew, MakeEnd, NicCommand},
    },
    model::Lengths,
};
use fabric::{Broken, Endpoint, Link, sync::AtomicBool, wire::Stream};
use record::{
    ConnectionRecord, Ledger, NicUse, NicWaits, PostingRule, QueueCounts, timeline::ConnectionTick,
};

use backlog::Backlog;
use cancel::Cancels;
use choice::Choice;
use connection::{Connection, Payloads};
use link::Attachment;
use nic::FrontendEnd;
use prefill::Handles;
use slots::SlotLimits;
use warm_up::WarmUp;

/// Backlogs of new samples, and of prefilled ones, which wait for a decode node.
const NEW: usize = 0;
const PREFILLED: usize = 1;

/// Number of the next dispatcher of this process, from 1.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// State of a dispatcher, by the threads that use it. Each part takes calls from any thread, but a
/// record of a slot is read by the connection's NIC thread alone.
///
/// ```text
///   issuing thread   issuing -> choice -> a connection's ring -> post, or wake its NIC thread
///                                     \-> no room: backlog
///   NIC thread       connection -> receiving -> owner, completer -> choice -> backlog -> post
///   the run          ends, warm_up, limits
/// ```
pub(crate) struct DispatchState {
    connections: Box<[Connection]>,
    payloads: Payloads,
    issuing: Issuing,
    choice: Choice,
    /// By [`NEW`] and [`PREFILLED`].
    backlogs: [Backlog; 2],
    cancels: Cancels,
    handles: Handles,
    receiving: Receiving,
    ends: Ends,
    /// Limits of `slots: auto`; set before the first sample.
    limits: OnceLock<SlotLimits>,
    owner: Arc<dyn Owner>,
    /// Per share: its thread.
    nic_threads: OnceLock<Vec<NicThreadHandle>>,
    warm_up: WarmUp,
}

/// The rule and the counts of issuing threads.
struct Issuing {
    /// Tells dispatchers apart, also where a new one lies at the address of an earlier one.
    number: u64,
    /// Largest burst that the issuing thread posts, in payload bytes.
    post_up_to: u64,
    /// Time for which a thread issues to the same connection, unless a burst is full earlier.
    affinity_ns: u64,
    one_by_one: bool,
    issued: CachePadded<AtomicU64>,
    /// Issue time of the first sample, on [`fabric::clock`]; 0 before the first sample.
    first_ns: AtomicU64,
    handed_over: CachePadded<AtomicU64>,
}

/// What NIC threads know of answers, and their counts.
struct Receiving {
    echo: EchoCfgs,
    token_bytes: u32,
    /// The completer wants answers in parts.
    in_parts: bool,
    lengths: Option<Lengths>,
    /// Samples completed with a response, by share.
    completed: Box<[CachePadded<AtomicU64>]>,
    /// Signs of the accelerators' work: heartbeats whose progress grew, answers to warm-up samples
    /// and their parts.
    steps: AtomicU64,
}

/// Samples that did not end with their first answer.
#[derive(Default)]
struct Ends {
    aborted: AtomicBool,
    completed_empty: AtomicU64,
    /// Samples sent again after a loss.
    retries: AtomicU64,
    /// Number of first, second and third refusals of a sample.
    refusals: [AtomicU64; 3],
    /// Samples refused three times, kept until the run is aborted.
    refused_for_good: Mutex<Vec<Sample>>,
    /// Samples cancelled before the loss of their connection: posted, and not sent again.
    lost_cancelled: AtomicU64,
    lost_connections: AtomicU64,
}

/// The frontend's dispatcher.
pub struct Dispatcher {
    shared: Arc<DispatchState>,
    crew: Crew<Attachment>,
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
        dispatcher.crew.start(threads)?;
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
        let each = || CrewPlan::each(shares.len());
        let plan = cfgs.crew.clone().unwrap_or_else(each);
        let mut shared_out = plan.share_out();
        let connections = cfgs.connections.iter().enumerate().map(|(i, c)| {
            let share = shared_out.next(c.nic_index);
            let nodes = shares.get(share).map_or(&[][..], |s| &s.cfgs.near.nodes);
            Connection::new(i, share, nodes, &cfgs)
        });
        let connections = connections.collect::<Result<Box<[_]>, _>>()?;
        let by_share = || shares.iter().map(|_| CachePadded::default()).collect();
        let shared = Arc::new(DispatchState {
            choice: Choice::new(cfgs.policy, cfgs.by_peer, &connections),
            connections,
            payloads: Payloads {
                sources: cfgs.sources,
                staged_from: cfgs.staged_from,
            },
            issuing: Issuing {
                number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
                post_up_to: cfgs.post_up_to,
                affinity_ns: cfgs.affinity_ns,
                one_by_one: cfgs.one_by_one,
                issued: CachePadded::default(),
                first_ns: AtomicU64::new(0),
                handed_over: CachePadded::default(),
            },
            backlogs: Default::default(),
            cancels: Cancels::default(),
            handles: Handles::default(),
            receiving: Receiving {
                echo: cfgs.echo,
                token_bytes: cfgs.token_bytes.clamp(1, 8),
                in_parts: cfgs.stream != Stream::None,
                lengths: cfgs.answers,
                completed: by_share(),
                steps: AtomicU64::new(0),
            },
            ends: Ends::default(),
            limits: OnceLock::new(),
            owner,
            nic_threads: OnceLock::new(),
            warm_up: WarmUp::default(),
        });
        let end = |(share, nic): (usize, DispatchNic)| -> MakeEnd<FrontendEnd> {
            let shared = shared.clone();
            let make = move |handle: &_| FrontendEnd::new(share, shared, nic.completer, handle);
            (nic.cfgs, Box::new(make))
        };
        let ends = shares.into_iter().enumerate().map(end).collect();
        let (crew, threads) = Crew::assemble(plan, ends)?;
        let _ = shared.nic_threads.set(crew.handles.clone());
        let dispatcher = Dispatcher {
            shared,
            crew,
            send_depth: cfgs.send_depth,
            is_stopped: AtomicBool::new(false),
        };
        Ok((dispatcher, threads))
    }

    /// The endpoint for a new link of a connection. The peer must have the same number of slots.
    pub fn endpoint(&self, connection: usize) -> Endpoint {
        self.shared.connections[connection].endpoint(&self.shared.payloads, self.send_depth)
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
        if !self.is_stopped.load(Ordering::SeqCst) {
            let attachment = Attachment { connection, epoch };
            self.send(connection, NicCommand::Attach(attachment, link));
        }
    }

    /// Takes a connection down, if `epoch` is up, as if the fabric had reported `cause`.
    pub fn give_up(&self, connection: usize, epoch: u32, cause: Broken) {
        let attachment = Attachment { connection, epoch };
        let selects = Arc::new(move |a: &Attachment| *a == attachment);
        self.send(connection, NicCommand::GiveUp(selects, cause));
    }

    /// Takes down every connection of a NIC whose link is down.
    pub(crate) fn give_up_nic(&self, nic_index: usize, cause: &Broken) {
        for share in self.crew.plan.shares_of(nic_index) {
            let command = NicCommand::GiveUp(Arc::new(|_: &_| true), cause.clone());
            self.crew.inboxes[share].send(command);
        }
    }

    fn send(&self, connection: usize, command: NicCommand<Attachment>) {
        let share = self.shared.connections[connection].share;
        self.crew.inboxes[share].send(command);
    }

    /// Aborts the run: takes all connections down and completes all outstanding samples empty.
    pub fn abort(&self, cause: &str) {
        self.shared.ends.aborted.store(true, Ordering::SeqCst);
        let cause = Broken::GivenUp(cause.to_owned());
        self.crew.give_up(&(Arc::new(|_: &_| true) as _), &cause);
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
        self.crew.placed()
    }

    /// NUMA nodes of the samples' memory, as the kernel reports them.
    pub(crate) fn sample_nodes(&self) -> BTreeSet<u32> {
        let payloads = &self.shared.payloads;
        let regions = payloads.sources.iter().chain(&payloads.staged_from);
        regions.flat_map(|r| r.nodes()).collect()
    }

    pub(crate) fn nic_threads(&self) -> usize {
        self.crew.plan.threads()
    }

    /// The rule that chooses the thread that posts.
    pub(crate) fn posting_rule(&self) -> PostingRule {
        PostingRule {
            up_to_bytes: self.shared.issuing.post_up_to,
            one_by_one: self.shared.issuing.one_by_one,
        }
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
        match self.shared.issuing.first_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    /// Samples issued and not completed.
    pub fn outstanding(&self) -> u64 {
        let c = self.counts();
        c.issued - c.answered - c.emptied
    }

    /// Records that an accelerator's engines have worked: a sign of life, also without answers.
    pub(crate) fn note_work(&self) {
        self.shared.receiving.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Signs of work noted so far ([`Self::note_work`]), which extend the deadlines of answers.
    pub fn steps(&self) -> u64 {
        self.shared.receiving.steps.load(Ordering::Relaxed)
    }

    /// Counts of samples so far. Every answered sample counts as handed to the caller, whose own
    /// count of `answered` may replace this one.
    pub fn counts(&self) -> Ledger {
        let s = &*self.shared;
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let emptied = s.ends.completed_empty.load(Ordering::Acquire);
        let completed = s.receiving.completed.iter();
        let completed = completed.map(|c| c.load(Ordering::Acquire)).sum();
        Ledger {
            answered: completed,
            responses: completed,
            emptied,
            // Load `issued` after the completed counts, so that it is never less than their sum.
            issued: s.issuing.issued.load(Ordering::Acquire),
            redispatched: read(&s.ends.retries),
            prefilled: read(&s.handles.prefilled),
            refused: s.ends.refusals.each_ref().map(read),
            posted: s
                .connections
                .iter()
                .map(Connection::posted_for_callers)
                .sum(),
            lost_connections: read(&s.ends.lost_connections),
            warmed: self.warm_up_samples(),
        }
    }

    /// Samples so far that were queued at their issue.
    pub(crate) fn queued(&self) -> QueueCounts {
        let s = &*self.shared;
        QueueCounts {
            backlog_max: s.backlogs[NEW].max.load(Ordering::Relaxed),
            backlogged: s.backlogs[NEW].waited.load(Ordering::Relaxed),
            handed_over: s.issuing.handed_over.load(Ordering::Relaxed),
        }
    }

    /// Sleeps of the NIC threads so far.
    pub(crate) fn waits(&self) -> NicWaits {
        self.crew.waits()
    }

    /// Busy time and sleeps of the NIC threads so far.
    pub(crate) fn nic_use(&self) -> NicUse {
        self.crew.uses()
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
        self.crew.stop();
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl DispatchState {
    fn is_aborted(&self) -> bool {
        self.ends.aborted.load(Ordering::SeqCst)
    }

    /// Handle of the thread that polls a connection.
    fn nic_thread(&self, connection: &Connection) -> Option<&NicThreadHandle> {
        self.nic_threads.get()?.get(connection.share)
    }

    fn wake(&self, connection: &Connection) {
        self.nic_thread(connection).inspect(|t| t.wake());
    }

    /// Wakes every NIC thread: any of them may post a lost connection's samples.
    fn wake_all(&self) {
        let threads = self.nic_threads.get().into_iter().flatten();
        threads.for_each(NicThreadHandle::wake);
    }

    /// The backlog of the samples that a connection takes.
    #[inline]
    fn backlog(&self, connection: &Connection) -> &Backlog {
        match connection.takes_new() {
            true => &self.backlogs[NEW],
            false => &self.backlogs[PREFILLED],
        }
    }

    fn complete_empty(&self, samples: &[Sample]) {
        samples.iter().for_each(|sample| self.end_handle(sample.id));
        self.owner.complete_empty(samples);
        let n = samples.len() as u64;
        self.ends.completed_empty.fetch_add(n, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
