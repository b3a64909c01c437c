//! The accelerator's server: it takes arrivals, and sends responses back.
//!
//! ```text
//!   NIC thread: Rx::poll --> Arrival --> Service (the batcher) --> engine --> respond_all
//!                                                                                 |
//!   frontend  <------------------- Tx::flush <------- the connection's send token <-----+
//! ```
//!
//! An [`Arrival`] borrows a slot of its connection. The engine reads the sample in that slot, and
//! writes the response into the memory that the fabric sends. An engine that produces an answer
//! step by step passes final bytes to [`Origin::part`] and writes on behind them.
//!
//! A service that answers each sample with the sum of its bytes:
//!
//! ```
//! use qdl::serve::{Arrival, Finished, Sent, Service, respond_all};
//!
//! struct Sums;
//!
//! impl Service for Sums {
//!     fn arrived(&self, arrivals: &mut Vec<Arrival>) {
//!         let answered = arrivals.drain(..).map(|mut arrival| {
//!             let sum: u64 = arrival.input().iter().map(|byte| u64::from(*byte)).sum();
//!             arrival.output()[..8].copy_from_slice(&sum.to_le_bytes());
//!             let finished = Finished {
//!                 ticket: arrival.ticket(),
//!                 len: 8,
//!                 queue_us: 0,
//!                 compute_us: 0,
//!                 sent: Sent::default(),
//!             };
//!             (arrival, finished)
//!         });
//!         respond_all(answered, &mut Vec::new());
//!     }
//! }
//! # use std::sync::{Arc, Mutex};
//! # use qdl::{dispatch, testkit::rig::{Over, Rig, RigCfgs}};
//! # struct Keeper(Arc<Mutex<Vec<Vec<u8>>>>);
//! # impl dispatch::Completer for Keeper {
//! #     fn complete(&mut self, all: &mut dyn ExactSizeIterator<Item = dispatch::Response<'_>>) {
//! #         self.0.lock().unwrap().extend(all.map(|r| r.payload.to_vec()));
//! #     }
//! # }
//! # impl dispatch::Owner for Keeper {
//! #     fn complete_empty(&self, _: &[dispatch::Sample]) {}
//! #     fn event(&self, _: dispatch::DispatchEvent) {}
//! # }
//! # let answers = Arc::default();
//! # let service: Arc<dyn Service> = Arc::new(Sums);
//! # let keeper = || -> Box<dyn dispatch::Completer> { Box::new(Keeper(Arc::clone(&answers))) };
//! # let owner = Arc::new(Keeper(Arc::clone(&answers)));
//! # let rig = Rig::new(RigCfgs::new(1, 8), &service, keeper, owner);
//! # rig.connect_all(Over::Memory);
//! # rig.issue(5..6);
//! # rig.drain();
//! # let sum: u64 = rig.input(5).iter().map(|byte| u64::from(*byte)).sum();
//! # assert_eq!(*answers.lock().unwrap(), [sum.to_le_bytes()]);
//! ```

mod answers;
mod arrival;
mod connection;
mod nic;
mod prepare;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use crossbeam_queue::SegQueue;
use fabric::{Broken, FabricCounts, Link};
use nic::{Command, ServeNic};
use prepare::Preparer;
use record::NicUse;

use crate::connection::{
    self as threads, CrewPlan, MakeWork, NicThread, NicThreadCfgs, NicThreadHandle, Placed,
};

pub use arrival::{Arrival, Finished, Origin, Part, Sent, Service, respond_all};
pub use connection::{ServeConnection, ServeConnectionCfgs};
pub use prepare::Preparing;

/// A lost connection, as reported to the server's owner.
#[derive(Clone, Debug)]
pub struct ConnectionLost {
    /// Session of the connection.
    pub session: u64,
    /// The frontend's index of the connection.
    pub connection: u16,
    /// Epoch of the connection.
    pub epoch: u32,
    /// Cause of the loss.
    pub cause: Broken,
}

/// Callback for a lost connection, on a NIC thread; must return quickly. The connection's local
/// side is destroyed by then, but batches may still read its slots.
pub type OnConnectionLost = dyn Fn(ConnectionLost) + Send + Sync;

pub(crate) type Which = dyn Fn(&ServeConnectionCfgs) -> bool + Send + Sync;

#[derive(Debug, Default)]
pub(crate) struct NicCounts {
    connections: AtomicUsize,
    arrived: AtomicU64,
    received: Mutex<FabricCounts>,
}

/// Totals of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeCounts {
    /// Samples that arrived.
    pub arrived: u64,
    /// Counts of the receiving halves of connections that have ended.
    pub received: FabricCounts,
    /// Wake-ups of NIC threads by other threads.
    pub wakeups: u64,
    /// Sleeps of NIC threads.
    pub sleeps: u64,
}

/// The accelerator's server: its NIC threads and their connections.
pub struct Server {
    handles: Vec<NicThreadHandle>,
    inboxes: Vec<Arc<SegQueue<Command>>>,
    preparers: Vec<Preparer>,
    counts: Vec<Arc<NicCounts>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    crew: CrewPlan,
}

impl Server {
    /// Starts one NIC thread for each entry of `nics`. All threads pass arrivals to `service`.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn new(
        nics: Vec<NicThreadCfgs>,
        service: &Arc<dyn Service>,
        lost: &Arc<OnConnectionLost>,
    ) -> io::Result<Self> {
        let each = CrewPlan::each(nics.len());
        Server::with_crew(nics, &each, service, lost)
    }

    /// Starts NIC threads by the plan; `shares` has one entry per share.
    ///
    /// # Errors
    /// No thread or descriptor is left, or the plan does not fit `shares`.
    pub(crate) fn with_crew(
        shares: Vec<NicThreadCfgs>,
        crew: &CrewPlan,
        service: &Arc<dyn Service>,
        lost: &Arc<OnConnectionLost>,
    ) -> io::Result<Self> {
        let (server, threads, preparing) = Server::assemble(shares, crew, service, lost)?;
        // On an error below, dropping `server` ends the threads that have started.
        *server.threads() = threads::start(threads)?;
        for (preparer, preparing) in server.preparers.iter().zip(preparing) {
            preparer.start(preparing)?;
        }
        Ok(server)
    }

    /// As [`Server::with_crew`], but returns the NIC threads and their companions in place of
    /// starting them.
    ///
    /// # Errors
    /// No descriptor is left, or the plan does not fit `shares`.
    pub fn assemble(
        shares: Vec<NicThreadCfgs>,
        crew: &CrewPlan,
        service: &Arc<dyn Service>,
        lost: &Arc<OnConnectionLost>,
    ) -> io::Result<(Self, Vec<NicThread>, Vec<Preparing>)> {
        let (mut inboxes, mut counts) = (Vec::new(), Vec::new());
        let (mut works, mut all_cfgs) = (Vec::new(), Vec::new());
        for cfgs in shares {
            let inbox = Arc::new(SegQueue::new());
            let of_nic = Arc::new(NicCounts::default());
            let (i, c) = (inbox.clone(), of_nic.clone());
            let (s, l) = (service.clone(), lost.clone());
            let make: MakeWork = Box::new(move |_| Box::new(ServeNic::new(i, s, l, c)));
            all_cfgs.push(cfgs.clone());
            works.push((cfgs, make));
            inboxes.push(inbox);
            counts.push(of_nic);
        }
        let (handles, threads) = threads::make_crew(works, crew)?;
        let shares = all_cfgs.iter().zip(&inboxes).zip(&handles);
        let (preparers, preparing) = shares
            .map(|((cfgs, inbox), handle)| {
                Preparer::new(cfgs, service.clone(), inbox.clone(), handle.clone())
            })
            .unzip();
        let server = Server {
            handles,
            inboxes,
            preparers,
            counts,
            threads: Mutex::default(),
            crew: crew.clone(),
        };
        Ok((server, threads, preparing))
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Placement of each NIC's threads and of its connections' memory.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        NicThreadHandle::placed_by_nic(&self.handles, &self.crew)
    }

    /// Serves a connection on a NIC. A separate thread prepares the connection's slots first, so
    /// that the NIC's other connections do not wait.
    pub fn attach(&self, nic_index: usize, connection: Arc<ServeConnection>, link: Link) {
        // Choose the share with the fewest connections.
        let has = |share: &usize| self.counts[*share].connections.load(Ordering::Relaxed);
        let shares = self.crew.shares_of(nic_index);
        let Some(share) = shares.min_by_key(has) else {
            return;
        };
        let counts = &self.counts[share];
        counts.connections.fetch_add(1, Ordering::Relaxed);
        connection.polled_by(&self.handles[share]);
        self.preparers[share].pass(Command::Attach { connection, link });
    }

    /// Takes down every connection that `which` selects, as if the fabric had reported it broken.
    pub fn give_up(
        &self,
        which: impl Fn(&ServeConnectionCfgs) -> bool + Send + Sync + 'static,
        cause: &Broken,
    ) {
        let which: Arc<Which> = Arc::new(which);
        for share in 0..self.inboxes.len() {
            let give_up = || Command::GiveUp {
                which: which.clone(),
                cause: cause.clone(),
            };
            self.command(share, give_up());
            // Also take down connections that are still in preparation.
            self.preparers[share].pass(give_up());
        }
    }

    fn command(&self, share: usize, command: Command) {
        self.inboxes[share].push(command);
        self.handles[share].wake();
    }

    /// Totals so far.
    pub fn counts(&self) -> ServeCounts {
        let mut total = ServeCounts::default();
        for c in &self.counts {
            total.arrived += c.arrived.load(Ordering::Relaxed);
            let received = c.received.lock().unwrap_or_else(PoisonError::into_inner);
            total.received.add(&received);
        }
        (total.wakeups, total.sleeps) = NicThreadHandle::waits(&self.handles);
        total
    }

    /// Busy time and sleeps of the NIC threads so far.
    pub(crate) fn nic_use(&self) -> NicUse {
        NicThreadHandle::uses(&self.handles)
    }

    /// Stops the NIC threads and takes every connection down. Detaches threads beyond the limit.
    pub fn stop(&self) {
        // Stop the preparers first, so that no NIC thread gets a connection after the stop.
        let preparers = self.preparers.iter().filter_map(Preparer::stop);
        threads::join_all(preparers.collect(), threads::ENDING);
        for share in 0..self.inboxes.len() {
            self.command(share, Command::Stop);
        }
        let threads = std::mem::take(&mut *self.threads());
        threads::join_all(threads, threads::ENDING);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
