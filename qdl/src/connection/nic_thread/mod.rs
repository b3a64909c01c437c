//! The loop of a NIC thread. The thread works while there is work, polls again for a configured
//! time, arms every connection, polls once more, and sleeps on all descriptors. One thread serves
//! one NIC, several NICs, or a share of one NIC's connections ([`crew`]).
//!
//! * this file: the work of a thread, its start and its end
//! * `turning`: the loop, as steps
//! * `by_hand`: the same steps, taken by a test
//! * `handle`: the interface for other threads: whether the thread sleeps, and its wake-up
//! * [`crew`]: the plan of shares and threads
//! * [`spin`]: how an idle thread waits

#[cfg(feature = "testkit")]
pub mod by_hand;
mod crew;
mod handle;
mod spin;
mod turning;

#[cfg(all(test, feature = "loom"))]
mod loom_tests;
#[cfg(all(test, not(feature = "loom")))]
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
    handle::Thread,
    turning::{Turning, run},
};
use fabric::os::lock;
use fabric::{
    Armed,
    os::{CpuList, Near, affinity},
};

pub use crew::CrewPlan;
pub use handle::NicThreadHandle;
pub use spin::{Spin, Wait};

/// Settings of a NIC thread.
#[derive(Clone, Debug)]
pub struct NicThreadCfgs {
    /// Name of the thread; the kernel keeps 15 bytes.
    pub name: String,
    /// How an idle thread waits before it sleeps.
    pub spin: Spin,
    /// Interval of [`NicWork::tick`], in nanoseconds.
    pub tick_ns: u64,
    /// Placement of the thread and of its connections' memory.
    pub near: Near,
    /// First action of the thread.
    pub begin: Option<fn()>,
}

impl NicThreadCfgs {
    /// Makes the settings of a thread of any placement, without a first action.
    pub fn new(name: impl Into<String>, spin: Spin, tick_ns: u64) -> Self {
        NicThreadCfgs {
            name: name.into(),
            spin,
            tick_ns,
            near: Near::default(),
            begin: None,
        }
    }
}

/// Placement of a NIC thread and of its connections' memory, as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// CPUs the thread may run on.
    pub cpus: CpuList,
    /// NUMA nodes of its connections' slots and responses; empty where the kernel does not say.
    pub nodes: BTreeSet<u32>,
}

/// Result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Work was done: turn again at once.
    Busy,
    /// No work was found.
    Idle,
    /// This work is over. The thread ends when all its works are over.
    Stop,
}

/// Arms every connection, also after one is `Ready`: one that is not armed wakes no thread.
pub(crate) fn arm_all(armed: impl Iterator<Item = Armed>) -> Armed {
    match armed.filter(|a| *a == Armed::Ready).count() {
        0 => Armed::Sleep,
        _ => Armed::Ready,
    }
}

/// Work of a NIC thread for one share of a NIC's connections.
pub trait NicWork {
    /// Polls every connection once and handles the events.
    fn turn(&mut self, now_ns: u64) -> Turn;

    /// Checks echoes and deadlines, about every `tick_ns`.
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Arms every connection before a sleep. Returns [`Armed::Ready`] if one has events already.
    fn arm(&mut self) -> Armed;

    /// Records that `fd` ended a sleep.
    fn woken_by(&mut self, fd: RawFd) {
        let _ = fd;
    }

    /// Passes new descriptors to sleep on to `add`. The kernel removes closed ones itself.
    fn new_descriptors(&mut self, add: &mut dyn FnMut(RawFd));
}

/// Function that makes the work of a share, called on the share's thread.
pub(crate) type MakeWork = Box<dyn FnOnce(NicThreadHandle) -> Box<dyn NicWork> + Send>;

/// A NIC thread that has not started.
pub struct NicThread {
    cfgs: NicThreadCfgs,
    handle: NicThreadHandle,
    poll: Poll,
    shares: Vec<MakeWork>,
}

impl NicThread {
    /// Makes the works of its shares, on the thread that turns them.
    fn make(self) -> (Turning, NicThreadHandle, Poll) {
        let works = self
            .shares
            .into_iter()
            .map(|make| make(self.handle.clone()));
        let turning = Turning::new(self.cfgs, works.collect());
        (turning, self.handle, self.poll)
    }
}

/// Makes NIC threads by the plan; [`start`] starts them. A thread takes its settings from its first
/// share. Returns the handle of each share's thread, and all threads.
///
/// # Errors
/// No descriptor is left, or the plan does not fit `shares`.
pub(crate) fn make_crew(
    shares: Vec<(NicThreadCfgs, MakeWork)>,
    plan: &CrewPlan,
) -> io::Result<(Vec<NicThreadHandle>, Vec<NicThread>)> {
    if plan.shares() != shares.len() || !plan.is_sound() {
        let text = format!("{} shares of NICs do not fit {plan:?}", shares.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut of_thread: Vec<Vec<_>> = (0..plan.threads()).map(|_| Vec::new()).collect();
    for (thread, share) in plan.thread_of.iter().zip(shares) {
        of_thread[*thread].push(share);
    }
    let mut threads = Vec::new();
    for shares in of_thread {
        // `is_sound` has checked that every thread has a share.
        let Some((cfgs, _)) = shares.first() else {
            continue;
        };
        let poll = Poll::new()?;
        threads.push(NicThread {
            cfgs: cfgs.clone(),
            handle: NicThreadHandle(Arc::new(Thread::new(&poll)?)),
            poll,
            shares: shares.into_iter().map(|(_, make)| make).collect(),
        });
    }
    let of_share = plan.thread_of.iter().map(|t| threads[*t].handle.clone());
    Ok((of_share.collect(), threads))
}

/// Starts NIC threads. Each thread is pinned before it makes the works of its shares, so that
/// memory is near.
///
/// # Errors
/// No thread is left.
pub(crate) fn start(threads: Vec<NicThread>) -> io::Result<Vec<JoinHandle<()>>> {
    // Set to whether all threads have started; if not, each thread ends.
    let complete = Arc::new(OnceLock::new());
    let mut started = Vec::new();
    for of_crew in threads {
        let complete_here = complete.clone();
        let thread = std::thread::Builder::new()
            .name(of_crew.cfgs.name.clone())
            .spawn(move || {
                of_crew.cfgs.near.pin();
                if let Some(begin) = of_crew.cfgs.begin {
                    begin();
                }
                *lock(&of_crew.handle.0.cpus) = affinity();
                if *complete_here.wait() {
                    let (turning, handle, poll) = of_crew.make();
                    run(turning, &handle.0, poll);
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
    Ok(started)
}

/// Time limit for NIC threads, and for the accelerator's threads that touch the memory of new
/// connections, to end after the stop.
pub(crate) const ENDING: Duration = Duration::from_secs(10);

/// Waits up to `patience` for all threads to end. Detaches a thread that does not end, with a
/// warning.
pub fn join_all(threads: Vec<JoinHandle<()>>, patience: Duration) {
    let end = Instant::now() + patience;
    for t in threads {
        while !t.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        if t.is_finished() {
            // A thread that panicked has reported the panic.
            let _ = t.join();
        } else {
            let name = t.thread().name().unwrap_or("a thread").to_owned();
            tracing::warn!("{name} has not ended after {patience:?}: it is left to itself");
        }
    }
}
