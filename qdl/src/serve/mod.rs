//! The accelerator's face of the library: take arrivals, give back responses.
//!
//! ```text
//!   rail thread: Rx::poll --> Arrival --> Service (the batcher) --> engine --> respond_all
//!                                                                                 |
//!   frontend  <------------------- Tx::flush <------- the lane's send token <-----+
//! ```
//!
//! An [`Arrival`] borrows its slot from the lane it came by: the engine reads the sample where it landed and
//! writes the response where it is sent from.

mod arrival;
mod lane;
mod prepare;
mod rail;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64, atomic::Ordering},
    thread::JoinHandle,
};

use crossbeam_queue::SegQueue;

pub use arrival::{Arrival, Finished, Origin, Service, respond_all};
pub use lane::{ServeLane, ServeLaneCfgs};

use crate::{
    fabric::{Broken, FabricCounts, Link},
    rail::{self as rails, Placed, RailCfgs, RailHandle},
};

use prepare::Preparer;
use rail::{Command, ServeRail};

/// What a server tells whoever set it up.
#[derive(Clone, Debug)]
pub struct LaneLost {
    /// Session it belonged to.
    pub session: u64,
    /// The frontend's index of the connection.
    pub lane: u16,
    /// Its epoch.
    pub epoch: u32,
    /// Why.
    pub cause: Broken,
}

/// Hears that a lane was lost, on a rail thread: returns soon. Its local side is destroyed by then; batches
/// may still read its slots.
pub type OnLaneLost = dyn Fn(LaneLost) + Send + Sync;

pub(crate) type Which = dyn Fn(&ServeLaneCfgs) -> bool + Send + Sync;

#[derive(Debug, Default)]
pub(crate) struct RailCounts {
    arrived: AtomicU64,
    received: Mutex<FabricCounts>,
}

/// Totals of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServeCounts {
    /// Samples that arrived.
    pub arrived: u64,
    /// What the receiving halves did; those of live connections are counted when they end.
    pub received: FabricCounts,
    /// Times a rail thread had to be woken by another thread.
    pub wakeups: u64,
    /// Times a rail thread went to sleep.
    pub sleeps: u64,
}

/// The accelerator's rail threads.
pub struct Server {
    handles: Vec<RailHandle>,
    inboxes: Vec<Arc<SegQueue<Command>>>,
    preparers: Vec<Preparer>,
    counts: Vec<Arc<RailCounts>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Starts one rail thread for each entry. All deliver to `service`.
    ///
    /// # Errors
    /// A thread or descriptor could not be had.
    pub fn new(
        rails: Vec<RailCfgs>,
        service: &Arc<dyn Service>,
        lost: &Arc<OnLaneLost>,
    ) -> io::Result<Self> {
        // Dropped where a thread cannot be started, it ends those before it.
        let mut server = Server {
            handles: Vec::new(),
            inboxes: Vec::new(),
            preparers: Vec::new(),
            counts: Vec::new(),
            threads: Mutex::default(),
        };
        for cfgs in rails {
            let inbox = Arc::new(SegQueue::new());
            let counts = Arc::new(RailCounts::default());
            let (i, c) = (inbox.clone(), counts.clone());
            let (s, l) = (service.clone(), lost.clone());
            let (handle, thread) = rails::spawn(cfgs.clone(), move |_| ServeRail::new(i, s, l, c))?;
            server.handles.push(handle.clone());
            server.inboxes.push(inbox.clone());
            server.counts.push(counts);
            server.threads().push(thread);
            let s = service.clone();
            server
                .preparers
                .push(Preparer::new(&cfgs, s, inbox, handle)?);
        }
        Ok(server)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of rails.
    pub fn rails(&self) -> usize {
        self.handles.len()
    }

    /// Where the threads run and the connections' memory lies, by rail.
    pub fn placed(&self) -> Vec<Placed> {
        self.handles.iter().map(RailHandle::placed).collect()
    }

    /// Serves a lane on a rail, once its slots are ready: a thread beside the rail's sees to that, so that the rail's other
    /// lanes do not wait for it.
    pub fn attach(&self, rail: usize, lane: Arc<ServeLane>, link: Link) {
        self.preparers[rail].pass(Command::Attach { lane, link });
    }

    /// Gives every lane up that `which` chooses, as if the fabric had reported it broken.
    pub fn give_up(
        &self,
        which: impl Fn(&ServeLaneCfgs) -> bool + Send + Sync + 'static,
        cause: &Broken,
    ) {
        let which: Arc<Which> = Arc::new(which);
        for rail in 0..self.rails() {
            let give_up = || Command::GiveUp {
                which: which.clone(),
                cause: cause.clone(),
            };
            self.command(rail, give_up());
            // Those that are still being made ready, too.
            self.preparers[rail].pass(give_up());
        }
    }

    fn command(&self, rail: usize, command: Command) {
        self.inboxes[rail].push(command);
        self.handles[rail].wake();
    }

    /// Totals so far.
    pub fn counts(&self) -> ServeCounts {
        let mut total = ServeCounts::default();
        for c in &self.counts {
            total.arrived += c.arrived.load(Ordering::Relaxed);
            let received = c.received.lock().unwrap_or_else(PoisonError::into_inner);
            total.received.add(&received);
        }
        total.wakeups = self.handles.iter().map(RailHandle::wakeups).sum();
        total.sleeps = self.handles.iter().map(RailHandle::sleeps).sum();
        total
    }

    /// Stops the rail threads; every lane is taken down. A thread that does not end is left to itself after a while.
    pub fn stop(&self) {
        // First, so that no lane comes after the end.
        let preparers = self.preparers.iter().filter_map(Preparer::stop);
        rails::join_all(preparers.collect(), rails::ENDING);
        for rail in 0..self.rails() {
            self.command(rail, Command::Stop);
        }
        let threads = std::mem::take(&mut *self.threads());
        rails::join_all(threads, rails::ENDING);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
