//! The loop of a NIC thread: work while there is some, look again for a configured time, then arm
//! every connection, look once more, and sleep on all their descriptors at once. A thread does so
//! for one NIC, for several, or for a share of one's connections; what it has may change to another
//! thread ([`crew`]).
//!
//! * here: what its work is, how threads are started and how they end
//! * `turning`: the loop itself
//! * `handle`: what others have of a thread: they see whether it sleeps, and wake it
//! * [`crew`]: which thread polls what, where NICs are together on one, have several, or change
//! * `handing`: how a share of a NIC changes from one thread to another
//! * [`spin`]: how a thread that finds nothing waits; `naps`: and where what comes has time

pub mod crew;
pub mod spin;

mod handing;
mod handle;
mod naps;
mod turning;

#[cfg(all(test, not(qdl_loom)))]
mod tests;

use std::{
    collections::BTreeSet,
    io,
    os::fd::RawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mio::Poll;

use self::{
    crew::Apart,
    handing::{Crew, Mail, Worked},
    handle::{Seat, Thread, lock},
    turning::run,
};
use crate::{
    fabric::{Armed, Rx},
    os::{CpuList, Near, affinity},
};

pub use crew::{CrewPlan, Moves};
pub use handle::NicThreadHandle;
pub(crate) use naps::Patience;
pub use spin::{Spin, Wait};

/// How a NIC thread waits and where it runs.
#[derive(Clone, Debug)]
pub struct NicThreadCfgs {
    /// Name of the thread, at most 15 bytes of it visible.
    pub name: String,
    /// How it looks for work before it sleeps.
    pub spin: Spin,
    /// How often [`NicWork::tick`] is called, ns.
    pub tick_ns: u64,
    /// Where the thread runs and its connections' memory lies.
    pub near: Near,
    /// What the thread does before all else, shares or none.
    pub begin: Option<fn()>,
}

/// Where a NIC thread runs and its connections' memory lies, as the system says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// CPUs the thread may run on.
    pub cpus: CpuList,
    /// NUMA nodes of its connections' slots and responses; empty where the system does not say.
    pub nodes: BTreeSet<u32>,
}

/// What one turn found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something was done: turn again at once.
    Busy,
    /// Nothing to do.
    Idle,
    /// The thread is to end.
    Stop,
}

/// Arms every connection, whatever the others say: one that was passed over would wake nobody.
pub(crate) fn arm_all<'a>(connections: impl Iterator<Item = &'a mut Box<dyn Rx>>) -> Armed {
    let ready = connections.filter_map(|rx| (rx.arm() == Armed::Ready).then_some(()));
    if ready.count() > 0 {
        Armed::Ready
    } else {
        Armed::Sleep
    }
}

/// What a NIC thread does, for one share of a NIC's connections.
pub trait NicWork {
    /// Polls every connection once and does what follows from it.
    fn turn(&mut self, now_ns: u64) -> Turn;

    /// Called about every `tick_ns`: echoes and deadlines.
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// How long what comes by its connections, or is left to it, may wait, ns. 0 where nothing may,
    /// or nothing is known.
    fn patience_ns(&self) -> u64 {
        0
    }

    /// Before sleeping: arms every connection, and says whether there is anything to do after all.
    fn arm(&mut self) -> Armed;

    /// A sleep was ended by something to read on this descriptor.
    fn woken_by(&mut self, fd: RawFd) {
        let _ = fd;
    }

    /// Descriptors to sleep on from now on. One that is
    /// closed need not be taken back: the kernel forgets it.
    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd));

    /// Whether there is a connection in it: one without is nothing to part threads for.
    fn is_in_use(&self) -> bool {
        true
    }

    /// All descriptors that were named so far and are open: another thread is to sleep on them.
    fn descriptors(&mut self, each: &mut dyn FnMut(RawFd)) {
        let _ = each;
    }
}

/// Makes a share's work, on the thread that is the first to do it.
pub type MakeWork<W> = Box<dyn FnOnce(NicThreadHandle) -> W + Send>;

/// Starts NIC threads as planned: how each waits and where it runs its first share says. What makes
/// a share's work runs on its thread, after that has been pinned, so that memory it touches first
/// and devices it opens are near.
///
/// # Errors
/// No descriptor or thread could be had; or the plan is one for other shares.
pub fn spawn_crew<W: NicWork + Send + 'static>(
    shares: Vec<(NicThreadCfgs, MakeWork<W>)>,
    plan: &CrewPlan,
) -> io::Result<(Vec<NicThreadHandle>, Vec<JoinHandle<()>>)> {
    if plan.shares() != shares.len() || !plan.fits(plan.nics()) {
        let text = format!("{} shares of NICs do not fit {plan:?}", shares.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let polls = (0..plan.threads()).map(|_| Poll::new());
    let polls = polls.collect::<io::Result<Vec<_>>>()?;
    let threads = polls.iter().map(Thread::new);
    let threads: Arc<[Thread]> = threads.collect::<io::Result<Vec<_>>>()?.into();
    let seats: Vec<_> = plan
        .thread_of
        .iter()
        .map(|thread| {
            NicThreadHandle(Arc::new(Seat {
                threads: threads.clone(),
                at: AtomicUsize::new(*thread),
                nodes: Mutex::default(),
            }))
        })
        .collect();
    let mut of_thread: Vec<Vec<_>> = polls.iter().map(|_| Vec::new()).collect();
    let first = |thread| Some(shares[plan.first_share(thread)?].0.clone());
    let cfgs: Vec<Option<NicThreadCfgs>> = (0..polls.len()).map(first).collect();
    for ((share, thread), (_, make)) in plan.thread_of.iter().enumerate().zip(shares) {
        of_thread[*thread].push((seats[share].clone(), make));
    }
    let crew = Arc::new(Crew {
        threads,
        mail: polls.iter().map(|_| Mail::default()).collect(),
        group_of: plan.group_of.clone(),
        moves: plan.moves,
        apart: Apart::new(),
        over: AtomicBool::new(false),
        given_up: AtomicBool::new(false),
    });
    let mut started = Vec::new();
    let each = polls.into_iter().zip(cfgs).zip(of_thread).enumerate();
    for (me, ((poll, cfgs), shares)) in each {
        // The plan fits: every thread has a share, or its group has.
        let Some(cfgs) = cfgs else { continue };
        let shared = crew.clone();
        let thread = std::thread::Builder::new()
            .name(cfgs.name.clone())
            .spawn(move || {
                cfgs.near.pin();
                if let Some(begin) = cfgs.begin {
                    begin();
                }
                *lock(&shared.threads[me].cpus) = affinity();
                let works = shares.into_iter().map(|(seat, make)| Worked {
                    work: make(seat.clone()),
                    seat,
                });
                let works = works.collect();
                run(&cfgs, me, &shared, poll, works);
            });
        match thread {
            Ok(thread) => started.push(thread),
            Err(e) => {
                // Nobody else can tell those that have begun.
                crew.given_up.store(true, Ordering::SeqCst);
                crew.wake_all();
                return Err(e);
            }
        }
    }
    Ok((seats, started))
}

/// Starts a NIC thread of one NIC, as [`spawn_crew`] does.
///
/// # Errors
/// No descriptor or thread could be had.
pub fn spawn<W: NicWork + Send + 'static>(
    cfgs: NicThreadCfgs,
    make: impl FnOnce(NicThreadHandle) -> W + Send + 'static,
) -> io::Result<(NicThreadHandle, JoinHandle<()>)> {
    let make: MakeWork<W> = Box::new(make);
    let (mut handles, mut threads) = spawn_crew(vec![(cfgs, make)], &CrewPlan::each(1))?;
    match (handles.pop(), threads.pop()) {
        (Some(handle), Some(thread)) => Ok((handle, thread)),
        _ => Err(io::Error::other("no thread was started")),
    }
}

/// How long NIC threads, and those beside them, may take to end once they were told to.
pub(crate) const ENDING: Duration = Duration::from_secs(10);

/// Waits for threads that were told to end, for `patience` in all.
/// One that does not is left to itself, with a line in the log.
pub fn join_all(threads: Vec<JoinHandle<()>>, patience: Duration) {
    let end = Instant::now() + patience;
    for t in threads {
        while !t.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        if t.is_finished() {
            // One that panicked has said so already.
            let _ = t.join();
        } else {
            let name = t.thread().name().unwrap_or("a thread").to_owned();
            tracing::warn!("{name} has not ended after {patience:?}: it is left to itself");
        }
    }
}
