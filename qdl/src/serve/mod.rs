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
//! step by step passes final bytes to [`Origin::parts`] and writes on behind them.
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
//! # use qdl::{dispatch, testkit::rig::{Rig, RigCfgs}};
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
//! # rig.connect_all();
//! # rig.issue(5..6);
//! # rig.drain();
//! # let sum: u64 = rig.input(5).iter().map(|byte| u64::from(*byte)).sum();
//! # assert_eq!(*answers.lock().unwrap(), [sum.to_le_bytes()]);
//! ```

mod arrival;
mod connection;
mod nic;
mod prepare;
mod response_queue;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use fabric::{Broken, Link};
use nic::AcceleratorEnd;
use prepare::Preparer;
use record::{NicUse, NicWaits};

use crate::connection::{
    CrewPlan, ENDING, NicThread, NicThreadCfgs, Placed, join_all,
    share::{Crew, MakeEnd, NicCommand, Selects},
};

pub use arrival::{Arrival, Finished, Origin, OutputPart, Sent, Service, respond_all};
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

#[derive(Debug, Default)]
pub(crate) struct NicCounts {
    connections: AtomicUsize,
    arrived: AtomicU64,
}

/// The accelerator's server: its NIC threads and their connections.
pub struct Server {
    crew: Crew<Arc<ServeConnection>>,
    preparers: Vec<Preparer>,
    counts: Vec<Arc<NicCounts>>,
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
        server.crew.start(threads)?;
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
        let counts: Vec<Arc<NicCounts>> = shares.iter().map(|_| Arc::default()).collect();
        let end = |(cfgs, counts): (&NicThreadCfgs, &Arc<NicCounts>)| -> MakeEnd<AcceleratorEnd> {
            let (service, lost, counts) = (service.clone(), lost.clone(), counts.clone());
            let make = |_: &_| AcceleratorEnd::new(service, lost, counts);
            (cfgs.clone(), Box::new(make))
        };
        let ends = shares.iter().zip(&counts).map(end).collect();
        let (crew, threads) = Crew::assemble(crew.clone(), ends)?;
        let shares = shares.into_iter().zip(&crew.inboxes);
        let (preparers, preparing) = shares
            .map(|(cfgs, inbox)| Preparer::new(cfgs, service.clone(), inbox.clone()))
            .unzip();
        let server = Server {
            crew,
            preparers,
            counts,
        };
        Ok((server, threads, preparing))
    }

    /// Placement of each NIC's threads and of its connections' memory.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        self.crew.placed()
    }

    /// Serves a connection on a NIC. A separate thread prepares the connection's slots first, so
    /// that the NIC's other connections do not wait.
    pub fn attach(&self, nic_index: usize, connection: Arc<ServeConnection>, link: Link) {
        // Choose the share with the fewest connections.
        let has = |share: &usize| self.counts[*share].connections.load(Ordering::Relaxed);
        let shares = self.crew.plan.shares_of(nic_index);
        let Some(share) = shares.min_by_key(has) else {
            return;
        };
        let counts = &self.counts[share];
        counts.connections.fetch_add(1, Ordering::Relaxed);
        connection.polled_by(&self.crew.inboxes[share].thread);
        self.preparers[share].pass(NicCommand::Attach(connection, link));
    }

    /// Takes down every connection that `which` selects, as if the fabric had reported it broken.
    pub fn give_up(
        &self,
        which: impl Fn(&ServeConnectionCfgs) -> bool + Send + Sync + 'static,
        cause: &Broken,
    ) {
        let selects: Arc<Selects<Arc<ServeConnection>>> = Arc::new(move |c| which(&c.cfgs()));
        self.crew.give_up(&selects, cause);
        // Also take down connections that are still in preparation.
        for preparer in &self.preparers {
            preparer.pass(NicCommand::GiveUp(selects.clone(), cause.clone()));
        }
    }

    /// Totals so far.
    pub fn arrived(&self) -> u64 {
        let each = self.counts.iter();
        each.map(|c| c.arrived.load(Ordering::Relaxed)).sum()
    }

    /// Sleeps of the NIC threads so far.
    pub fn waits(&self) -> NicWaits {
        self.crew.waits()
    }

    /// Busy time and sleeps of the NIC threads so far.
    pub(crate) fn nic_use(&self) -> NicUse {
        self.crew.uses()
    }

    /// Stops the NIC threads and takes every connection down. Detaches threads beyond the limit.
    pub fn stop(&self) {
        // Stop the preparers first, so that no NIC thread gets a connection after the stop.
        let preparers = self.preparers.iter().filter_map(Preparer::stop);
        join_all(preparers.collect(), ENDING);
        self.crew.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
