//! The frontend's side of the library: give it samples, it calls back with responses.
//!
//! ```text
//!   issue(samples) --> the ring of a connection with a free slot, chosen by the arbiter: the
//!                  |   issuing thread posts it, or the NIC thread does (`posting`)
//!                  \-> no slot, or more bursts than connections: the backlog, from which NIC
//!                      threads post as slots come free
//! ```
//!
//! The backlog is one for all connections, not one for each: a sample is
//! bound to a connection only when it has a slot, so a slow accelerator
//! holds up nobody else's samples and a lost connection has none waiting.
//!
//! Every sample issued is completed exactly once: with its response, after having been sent again
//! if its connection was lost, or empty once the dispatcher was told to [`Dispatcher::abort`]. What
//! comes of a response before its end is handed over as it comes; where the sample is sent again
//! that begins anew, but its first token is reported once, and compared when it comes again.

mod answers;
mod api;
mod backlog;
mod completing;
mod end;
mod health;
mod nic;
mod posting;
mod readings;
mod refused;
mod requests;
mod rows;
mod slots;
mod warm_up;

use std::{
    iter,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;

pub use crate::{
    connection::tracker::{First, Sample, Tries},
    counters::SampleTimes,
};
pub use api::{
    Completer, Contradiction, DispatchCfgs, DispatchCounts, DispatchError, DispatchEvent,
    DispatchNic, Owner, Part, RefusedSample, Response,
};
pub use end::ConnectionCfgs;
pub use health::NicDown;
pub use warm_up::{ConnectionWarmUp, WARM_UP_ID, WarmUpCfgs, WarmUpError, WarmUpReport};

use crate::{
    clock::now_ns,
    connection::{self, CrewPlan, EchoCfgs, MakeWork, NicThreadHandle, Posted},
    fabric::{Broken, Endpoint, Link, Region},
    model::Lengths,
    rails::{Arbiter, RailArbiter, RailId, RailReport, Score},
};

use end::Connection;
use health::Health;
use nic::{Command, FrontendNic};
use requests::Requests;
use rows::Rows;
use slots::Limits;
use warm_up::WarmUp;

pub(crate) struct Shared {
    connections: Box<[Connection]>,
    sources: Vec<Arc<Region>>,
    staged_from: Option<Arc<Region>>,
    backlog: Rows,
    backlog_len: CachePadded<AtomicU64>,
    backlog_max: AtomicU64,
    backlogged: AtomicU64,
    handed_over: CachePadded<AtomicU64>,
    arbiter: Arbiter,
    /// Set once the peers have said what their connections lead to, under a policy by health.
    health: OnceLock<Health>,
    /// Set before the first sample, where slots are `auto`.
    limits: OnceLock<Limits>,
    /// The connection that had the last burst, of those to each peer.
    last_of_peer: Box<[CachePadded<AtomicUsize>]>,
    owner: Arc<dyn Owner>,
    aborted: AtomicBool,
    issued: CachePadded<AtomicU64>,
    /// Clock at the first sample; 0 before.
    first_ns: AtomicU64,
    /// Samples completed, by share.
    completed: Box<[CachePadded<AtomicU64>]>,
    /// Parts handed over that others follow, by share.
    parts: Box<[CachePadded<AtomicU64>]>,
    token_bytes: u32,
    answers: Option<Lengths>,
    completed_empty: AtomicU64,
    again: AtomicU64,
    /// Refusals: first, second and third of a sample.
    refused: [AtomicU64; 3],
    /// Samples that were refused three times, until the run is given up.
    spent: Mutex<Vec<Sample>>,
    connections_lost: AtomicU64,
    echo: EchoCfgs,
    /// The thread of each share.
    nic_threads: OnceLock<Vec<NicThreadHandle>>,
    warm_up: WarmUp,
    /// Largest burst that the issuing thread posts, in payload bytes.
    post_up_to: u64,
    /// How long a thread issues to the same connection, unless a burst is full before.
    stay_ns: u64,
    /// One doorbell for each sample.
    one_by_one: bool,
}

/// See the module.
pub struct Dispatcher {
    shared: Arc<Shared>,
    handles: Vec<NicThreadHandle>,
    inboxes: Vec<Arc<SegQueue<Command>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    crew: CrewPlan,
    send_depth: usize,
}

impl Dispatcher {
    /// Maps the response slots and starts the NIC threads. All connections are down. `shares` are
    /// those of the plan, or one for each NIC where there is none.
    ///
    /// # Errors
    /// [`DispatchError`].
    pub fn new(
        cfgs: DispatchCfgs,
        shares: Vec<DispatchNic>,
        owner: Arc<dyn Owner>,
    ) -> Result<Self, DispatchError> {
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
                    cfgs.policy.by_health().is_some(),
                    cfgs.stream,
                )
            })
            .collect::<Result<Box<[_]>, _>>()?;
        let peers = connections.iter().map(|c| c.cfgs.peer + 1).max();
        let shared = Arc::new(Shared {
            last_of_peer: (0..peers.unwrap_or(0))
                .map(|_| CachePadded::default())
                .collect(),
            connections,
            sources: cfgs.sources,
            staged_from: cfgs.staged_from,
            backlog: Rows::default(),
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
        // Dropped where a thread cannot be started, it ends those before it.
        let mut dispatcher = Dispatcher {
            shared,
            handles: Vec::new(),
            inboxes: Vec::new(),
            threads: Mutex::default(),
            crew,
            send_depth: cfgs.send_depth,
        };
        let mut works = Vec::new();
        for (index, r) in shares.into_iter().enumerate() {
            let inbox = Arc::new(SegQueue::new());
            let (s, i) = (dispatcher.shared.clone(), inbox.clone());
            let make: MakeWork<FrontendNic> =
                Box::new(move |handle| FrontendNic::new(index, s, i, r.completer, &handle));
            works.push((r.cfgs, make));
            dispatcher.inboxes.push(inbox);
        }
        let (handles, threads) = connection::spawn_crew(works, &dispatcher.crew)?;
        dispatcher.handles = handles;
        *dispatcher.threads() = threads;
        let _ = dispatcher
            .shared
            .nic_threads
            .set(dispatcher.handles.clone());
        Ok(dispatcher)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a connection's link is to be made with. The peer's side must have as many slots.
    pub fn endpoint(&self, connection: usize) -> Endpoint {
        self.shared.connections[connection].endpoint(&self.shared.sources, self.send_depth)
    }

    /// Configuration of a connection.
    pub fn connection(&self, connection: usize) -> ConnectionCfgs {
        self.shared.connections[connection].cfgs
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.len()
    }

    /// Puts a connection up: a fresh link of a new epoch. Its memory must be out of quarantine.
    pub fn attach(&self, connection: usize, epoch: u32, link: Link) {
        self.command(
            connection,
            Command::Attach {
                connection,
                epoch,
                link,
            },
        );
    }

    /// Gives up this epoch of a connection, as if the fabric had reported it broken.
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

    /// Gives up every connection that is up on a NIC: its link is down.
    pub fn give_up_nic(&self, nic_index: usize, cause: &Broken) {
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

    /// From now on rails are chosen by health; before it, by what is outstanding. `tick_ns` is how
    /// often scores are folded; `nic_down` says of a NIC whether it is down. The first
    /// call counts.
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

    /// The control session with a peer is lost, or there is one
    /// again: whose fault the loss of a rail is depends on it.
    pub fn control_session(&self, peer: usize, lost: bool) {
        if let Some(h) = self.shared.health.get() {
            h.control(peer, lost);
        }
    }

    /// What a peer's heartbeat says of its interior and of the rails.
    pub fn told(
        &self,
        peer: usize,
        interior: Score,
        rails: impl IntoIterator<Item = (RailId, Score)>,
    ) {
        if let Some(h) = self.shared.health.get() {
            h.arbiter.told(peer, interior, rails);
        }
    }

    /// What there is to say about each rail to a peer; nothing unless rails are chosen by health.
    pub fn rail_report(&self, peer: usize) -> Vec<RailReport> {
        let health = self.shared.health.get();
        health.map_or_else(Vec::new, |h| h.arbiter.report(peer))
    }

    /// Ends it: every connection is given up, and what is
    /// outstanding and what still comes is completed empty.
    pub fn abort(&self, cause: &str) {
        self.shared.aborted.store(true, Ordering::SeqCst);
        for inbox in &self.inboxes {
            inbox.push(Command::GiveUpAll(Broken::GivenUp(cause.to_owned())));
        }
        self.handles.iter().for_each(NicThreadHandle::wake);
        self.shared.empty_backlog();
    }

    /// Waits until nothing is outstanding; false if that takes longer than `deadline`.
    pub fn drain(&self, deadline: Duration) -> bool {
        let end = now_ns().saturating_add(deadline.as_nanos() as u64);
        while self.outstanding() > 0 {
            if now_ns() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Stops the NIC threads and takes every connection down. A thread that does not end, because
    /// what it calls does not return, is left to itself after a while.
    pub fn stop(&self) {
        for inbox in &self.inboxes {
            inbox.push(Command::Stop);
        }
        self.handles.iter().for_each(NicThreadHandle::wake);
        let threads = std::mem::take(&mut *self.threads());
        connection::join_all(threads, connection::ENDING);
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The thread of each share; none while the first of them are being started.
    fn handles(&self) -> &[NicThreadHandle] {
        self.nic_threads.get().map_or(&[], Vec::as_slice)
    }

    /// Wakes every NIC thread: a lost connection's samples may go by any of them.
    fn wake_all(&self) {
        self.handles().iter().for_each(NicThreadHandle::wake);
    }

    /// Posts a connection's ring and (but by health) the backlog, or leaves both to the owner of
    /// its token.
    fn drive(&self, connection: &Connection) -> Posted {
        self.drive_with(connection, iter::empty())
    }

    /// The same, `direct` before all else: what is left of it is the caller's.
    fn drive_with(
        &self,
        connection: &Connection,
        direct: impl ExactSizeIterator<Item = Sample>,
    ) -> Posted {
        let mut requests = Requests::new(self, connection, direct);
        let done = connection.send.drive(&mut requests);
        if done.broken.is_some() {
            // The NIC thread takes the connection down, even if nothing comes over it any more.
            let thread = self.handles().get(connection.share);
            thread.inspect(|t| t.wake());
        }
        done
    }

    fn complete_empty(&self, samples: &[Sample]) {
        self.owner.complete_empty(samples);
        self.completed_empty
            .fetch_add(samples.len() as u64, Ordering::Release);
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests;
