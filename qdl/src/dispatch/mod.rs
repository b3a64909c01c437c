//! The frontend's side of the library: give it samples, it calls back with responses.
//!
//! ```text
//!   issue(samples) --> a connection with a free slot, chosen by the arbiter: posted here and now
//!                  \-> they come closer together than that takes: a connection's queue, for its
//!                  |   NIC thread to post (`lane`)
//!                  \-> no slot, or more than a burst: the backlog, which every connection draws
//!                      from as slots come free and NIC threads come by
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

mod allowance;
mod answers;
mod api;
mod backlog;
mod completing;
mod end;
mod health;
mod lane;
mod need;
mod nic;
mod readings;
mod requests;
mod rows;
mod warm_up;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;

pub use crate::{
    connection::tracker::{First, Sample},
    stats::SampleTimes,
};
pub use api::{
    Completer, Contradiction, DispatchCfgs, DispatchCounts, DispatchError, DispatchEvent,
    DispatchNic, Owner, Part, Response,
};
pub use end::ConnectionCfgs;
pub use health::NicDown;
pub use warm_up::{ConnectionWarmUp, WARM_UP_ID, WarmUpCfgs, WarmUpError, WarmUpReport};

use crate::{
    clock::now_ns,
    connection::{
        self, CrewPlan, DoorbellWait, EchoCfgs, MakeWork, NicThreadHandle, Posted, PostingCosts,
        Ringer,
    },
    fabric::{Broken, Endpoint, Link, Region},
    rails::{Arbiter, RailArbiter, RailId, RailReport, Score},
};

use end::Connection;
use health::Health;
use need::ByNeed;
use nic::{Command, FrontendNic};
use requests::Requests;
use rows::Rows;
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
    /// Set once the peers have said what their engines need, where slots are `auto`.
    need: OnceLock<ByNeed>,
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
    completed_empty: AtomicU64,
    again: AtomicU64,
    connections_lost: AtomicU64,
    echo: EchoCfgs,
    /// The thread of each share.
    nic_threads: OnceLock<Vec<NicThreadHandle>>,
    warm_up: WarmUp,
    /// What posting costs here; where nobody said who posts, it is decided by that.
    costs: PostingCosts,
    by_cost: bool,
}

/// See the module.
pub struct Dispatcher {
    shared: Arc<Shared>,
    handles: Vec<NicThreadHandle>,
    inboxes: Vec<Arc<SegQueue<Command>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    crew: CrewPlan,
    issue_post_up_to: Option<usize>,
    issue_burst: usize,
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
                    cfgs.doorbell_wait,
                    cfgs.stream,
                )
            })
            .collect::<Result<Box<[_]>, _>>()?;
        let shared = Arc::new(Shared {
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
            need: OnceLock::new(),
            owner,
            aborted: AtomicBool::new(false),
            issued: CachePadded::default(),
            first_ns: AtomicU64::new(0),
            completed: shares.iter().map(|_| CachePadded::default()).collect(),
            parts: shares.iter().map(|_| CachePadded::default()).collect(),
            token_bytes: cfgs.token_bytes.clamp(1, 8),
            completed_empty: AtomicU64::new(0),
            again: AtomicU64::new(0),
            connections_lost: AtomicU64::new(0),
            echo: cfgs.echo,
            nic_threads: OnceLock::new(),
            warm_up: WarmUp::default(),
            costs: PostingCosts::here(),
            by_cost: cfgs.issue_post_up_to.is_none() && cfgs.doorbell_wait == DoorbellWait::ByCost,
        });
        // Dropped where a thread cannot be started, it ends those before it.
        let mut dispatcher = Dispatcher {
            shared,
            handles: Vec::new(),
            inboxes: Vec::new(),
            threads: Mutex::default(),
            crew,
            issue_post_up_to: cfgs.issue_post_up_to,
            issue_burst: cfgs.issue_burst,
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

    /// Sends samples. Returns at once; each is completed exactly once: from a NIC thread, or from
    /// whichever thread empties the backlog once the run was given up.
    ///
    /// Nothing here sleeps, nothing locks (but by health, where each choice takes the peer's lock),
    /// and nothing allocates for small samples unless every connection is full or its sending half
    /// taken. Large ones go to the backlog, which has a lock and grows by rows.
    pub fn issue(&self, samples: &[Sample]) {
        let s = &*self.shared;
        if s.issued.fetch_add(samples.len() as u64, Ordering::Relaxed) == 0 {
            s.first_ns.store(now_ns().max(1), Ordering::Relaxed);
        }
        let few = samples.len() <= self.issue_burst;
        let mut small = few && self.posts_here(samples);
        if let Some(health) = s.health.get() {
            s.issue_by_health(health, samples, small);
            if s.aborted.load(Ordering::SeqCst) {
                s.empty_backlog();
            }
            return;
        }
        let mut last = 0;
        let mut left = samples;
        if let Some(first) = left.first().filter(|_| s.by_cost && few && !small)
            && !s.has_backlog()
        {
            match s.leave(left, first.issued_ns) {
                Some(given) => left = &left[given..],
                None => small = true,
            }
        }
        let mut left = left.iter();
        if small && !s.has_backlog() {
            while left.len() > 0 {
                let Some(connection) = s
                    .arbiter
                    .pick(s.connections.len(), |i| s.connections[i].load())
                else {
                    break;
                };
                let before = left.len();
                last = connection;
                let bytes = Some(left.as_slice().iter().map(|s| u64::from(s.len)).sum());
                s.drive(&s.connections[connection], bytes, left.by_ref().copied());
                if left.len() == before {
                    break;
                }
            }
        }
        if left.len() > 0 {
            s.leave_to_others(left.copied());
            // Slots may have come free between the look and the push, with nobody left to notice.
            fence(Ordering::SeqCst);
            if small || (s.by_cost && few) {
                s.drive_all(last);
            } else {
                s.wake_all();
            }
        }
        if s.aborted.load(Ordering::SeqCst) {
            s.empty_backlog();
        }
    }

    /// Whether the thread that issues these samples posts them itself, as far as there are slots:
    /// as somebody has said, or because they come so far apart that it has the time.
    fn posts_here(&self, samples: &[Sample]) -> bool {
        let s = &*self.shared;
        match (self.issue_post_up_to, samples.first()) {
            (Some(up_to), _) => samples.iter().all(|s| s.len as usize <= up_to),
            (None, Some(first)) if s.by_cost => {
                let bytes = samples.iter().map(|s| u64::from(s.len)).sum();
                Ringer::has_time(first.issued_ns, bytes)
            }
            // Doorbells are rung as somebody has said: what is not to be copied is posted here.
            (None, _) => samples
                .iter()
                .all(|sample| s.costs.write_ns(u64::from(sample.len)) <= 2 * s.costs.call_ns),
        }
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

    /// Posts `direct`, what was given to this connection and (but by health) the backlog on a
    /// connection, or leaves it to the owner of its token. For a caller who issues so many bytes,
    /// the doorbell may be left to its NIC thread as somebody has said; by cost, what it took is
    /// noted.
    fn drive(
        &self,
        connection: &Connection,
        for_caller: Option<u64>,
        direct: impl ExactSizeIterator<Item = Sample>,
    ) -> Posted {
        let now = for_caller.map_or(0, |_| now_ns());
        let mut requests = Requests::new(self, connection, direct, now);
        let thread = || self.handles().get(connection.share);
        let send = &connection.send;
        let done = match for_caller {
            Some(_) if !self.by_cost => send.drive_for_caller(now, thread(), &mut requests),
            _ => send.drive(&mut requests),
        };
        if done.rang {
            if let Some(bytes) = for_caller.filter(|b| *b > 0 && self.by_cost) {
                Ringer::rang(now, now_ns(), bytes, DoorbellWait::ByCost);
            }
        }
        if done.broken.is_some() {
            // It takes the connection down, even if nothing comes over it any more.
            thread().inspect(|t| t.wake());
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
