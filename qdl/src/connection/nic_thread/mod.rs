//! The loop of a NIC thread: work while there is some, look again for a configured time, then arm
//! every connection, look once more, and sleep on all their descriptors at once. A thread does so
//! for one NIC, for several, or for a share of one NIC's connections ([`crew`]).
//!
//! * here: what its work is, how threads are started and how they end
//! * `turning`: the loop itself
//! * `handle`: what others have of a thread: they see whether it sleeps, and wake it
//! * [`crew`]: the plan of shares and threads
//! * [`spin`]: how a thread that finds nothing waits

pub mod crew;
pub mod spin;

mod handle;
mod turning;

#[cfg(all(test, not(qdl_loom)))]
mod tests;

use std::{
    collections::BTreeSet,
    io,
    os::fd::RawFd,
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mio::Poll;

use self::{
    handle::{Thread, lock},
    turning::run,
};
use fabric::{
    Armed,
    os::{CpuList, Near, affinity},
};

pub use crew::CrewPlan;
pub use handle::NicThreadHandle;
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
    /// What the thread does before all else.
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
    /// This work is over. Its thread ends with its last work.
    Stop,
}

/// Whether any was ready. All are armed first: one that is left out would wake no thread.
pub(crate) fn arm_all(armed: impl Iterator<Item = Armed>) -> Armed {
    match armed.filter(|a| *a == Armed::Ready).count() {
        0 => Armed::Sleep,
        _ => Armed::Ready,
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

    /// Before sleeping: arms every connection, and says whether there is anything to do after all.
    fn arm(&mut self) -> Armed;

    /// A sleep was ended by something to read on this descriptor.
    fn woken_by(&mut self, fd: RawFd) {
        let _ = fd;
    }

    /// Descriptors to sleep on from now on. One that is
    /// closed need not be taken back: the kernel forgets it.
    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd));
}

/// Makes a share's work, on the thread that does it.
pub type MakeWork<W> = Box<dyn FnOnce(NicThreadHandle) -> W + Send>;

/// Starts NIC threads as planned. The first share of a thread says how it waits and where it runs.
/// Each thread is pinned, then makes the works of its shares: memory that they touch first and
/// devices that they open are near. Returns the handle of each share, and all threads.
///
/// # Errors
/// No descriptor or thread could be had; or the plan is one for other shares.
pub fn spawn_crew<W: NicWork + Send + 'static>(
    shares: Vec<(NicThreadCfgs, MakeWork<W>)>,
    plan: &CrewPlan,
) -> io::Result<(Vec<NicThreadHandle>, Vec<JoinHandle<()>>)> {
    if plan.shares() != shares.len() || !plan.is_sound() {
        let text = format!("{} shares of NICs do not fit {plan:?}", shares.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let polls = (0..plan.threads()).map(|_| Poll::new());
    let polls = polls.collect::<io::Result<Vec<_>>>()?;
    let handle = |poll| Ok(NicThreadHandle(Arc::new(Thread::new(poll)?)));
    let handles = polls.iter().map(handle).collect::<io::Result<Vec<_>>>()?;
    let mut of_thread: Vec<Vec<_>> = polls.iter().map(|_| Vec::new()).collect();
    for (thread, share) in plan.thread_of.iter().zip(shares) {
        of_thread[*thread].push(share);
    }
    // Whether all threads have been started: else each ends.
    let complete = Arc::new(OnceLock::new());
    let mut started = Vec::new();
    for ((poll, handle), shares) in polls.into_iter().zip(&handles).zip(of_thread) {
        // The plan is sound: every thread has a share.
        let Some((cfgs, _)) = shares.first() else {
            continue;
        };
        let (cfgs, handle, complete_here) = (cfgs.clone(), handle.clone(), complete.clone());
        let thread = std::thread::Builder::new()
            .name(cfgs.name.clone())
            .spawn(move || {
                cfgs.near.pin();
                if let Some(begin) = cfgs.begin {
                    begin();
                }
                *lock(&handle.0.cpus) = affinity();
                if *complete_here.wait() {
                    let works = shares.into_iter().map(|(_, make)| make(handle.clone()));
                    let works = works.collect();
                    run(&cfgs, &handle.0, poll, works);
                }
            });
        match thread {
            Ok(thread) => started.push(thread),
            Err(e) => {
                let _ = complete.set(false);
                return Err(e);
            }
        }
    }
    let _ = complete.set(true);
    let of_share = plan.thread_of.iter().map(|thread| handles[*thread].clone());
    Ok((of_share.collect(), started))
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
