//! What others have of a NIC thread: they see whether it sleeps, wake it, and read what it was used
//! for.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering, fence},
    },
};

use crossbeam_utils::CachePadded;
use mio::{Poll, Token, Waker};

use super::{Placed, crew::CrewPlan};
use crate::{counters::NicTimes, fabric::Region, os::CpuList};

/// Of what wakes a thread, among the descriptors that it sleeps on.
pub(super) const WAKER: Token = Token(usize::MAX);

/// It turns, or will before it sleeps.
pub(super) const AWAKE: u8 = 0;
/// It sleeps, or is about to and has yet to look once more.
pub(super) const ASLEEP: u8 = 1;
/// The same, and somebody is about to wake it.
const WAKING: u8 = 2;

/// The state of one NIC thread that other threads see.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) waker: Waker,
    pub(super) state: AtomicU8,
    wakeups: AtomicU64,
    pub(super) sleeps: AtomicU64,
    /// Nanoseconds in turns that found something. Written in every such turn, and so kept away from
    /// `state`, which everybody who issues reads.
    pub(super) worked_ns: CachePadded<AtomicU64>,
    pub(super) cpus: Mutex<CpuList>,
    /// NUMA nodes of its connections' memory.
    nodes: Mutex<BTreeSet<u32>>,
}

impl Thread {
    pub(super) fn new(poll: &Poll) -> io::Result<Self> {
        Ok(Thread {
            waker: Waker::new(poll.registry(), WAKER)?,
            state: AtomicU8::new(AWAKE),
            wakeups: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            worked_ns: CachePadded::default(),
            cpus: Mutex::default(),
            nodes: Mutex::default(),
        })
    }

    /// Whether the thread sleeps and the caller is the one to wake it. Behind a fence, which pairs
    /// with the one in `run`: the thread sees what was made known before it, or is seen asleep.
    pub(super) fn claim(&self) -> bool {
        let state = &self.state;
        state.load(Ordering::SeqCst) == ASLEEP
            && state
                .compare_exchange(ASLEEP, WAKING, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }
}

/// The thread that polls a share of a NIC's connections.
#[derive(Clone, Debug)]
pub struct NicThreadHandle(pub(super) Arc<Thread>);

impl NicThreadHandle {
    /// Makes sure that the thread turns once more. What
    /// the caller made known before is seen by that turn.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.0.claim() {
            self.0.wakeups.fetch_add(1, Ordering::Relaxed);
            // Fails only if the eventfd's counter is full, and then the thread is being woken.
            let _ = self.0.waker.wake();
        }
    }

    /// Whether the thread sleeps, or is about to and has yet to look once more; also while another
    /// thread is about to wake it, which may lose its core before it does. A thread that is awake
    /// sees what the caller made known before.
    pub fn is_asleep(&self) -> bool {
        // Pairs with the fence in `run`, as that of `wake`.
        fence(Ordering::SeqCst);
        self.0.state.load(Ordering::SeqCst) != AWAKE
    }

    /// The threads of these shares, each once.
    fn threads(shares: &[NicThreadHandle]) -> impl Iterator<Item = &Thread> {
        let first = |(i, h): &(usize, &NicThreadHandle)| {
            shares[..*i]
                .iter()
                .all(|other| !Arc::ptr_eq(&other.0, &h.0))
        };
        let all = shares.iter().enumerate().filter(first);
        all.map(|(_, h)| &*h.0)
    }

    /// How often other threads had to wake the threads of these shares, and how often those went to
    /// sleep.
    pub fn waits(shares: &[NicThreadHandle]) -> (u64, u64) {
        Self::threads(shares).fold((0, 0), |(wakeups, sleeps), t| {
            let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
            (wakeups + count(&t.wakeups), sleeps + count(&t.sleeps))
        })
    }

    /// What the threads of these shares were used for so far.
    pub fn uses(shares: &[NicThreadHandle]) -> NicTimes {
        let threads = Self::threads(shares);
        let worked: Vec<_> = threads
            .map(|t| t.worked_ns.load(Ordering::Relaxed))
            .collect();
        NicTimes {
            // A thread that never had work is no thread with time to spare.
            threads: worked.iter().filter(|ns| **ns > 0).count() as u32,
            worked_us: worked.iter().map(|ns| ns / 1000).sum(),
            sleeps: Self::waits(shares).1,
        }
    }

    /// Where it runs and its connections' memory lies.
    pub fn placed(&self) -> Placed {
        Placed {
            cpus: lock(&self.0.cpus).clone(),
            nodes: lock(&self.0.nodes).clone(),
        }
    }

    /// The same of each NIC, whose shares these are: where the thread of its first runs, and where
    /// the memory of all lies.
    pub fn placed_by_nic(shares: &[NicThreadHandle], plan: &CrewPlan) -> Vec<Placed> {
        let nic = |nic| {
            let mut shares = plan.shares_of(nic).filter_map(|share| shares.get(share));
            let first = shares.next().map(NicThreadHandle::placed);
            shares.fold(first.unwrap_or_default(), |mut placed, share| {
                placed.nodes.extend(share.placed().nodes);
                placed
            })
        };
        (0..plan.nics()).map(nic).collect()
    }

    /// Notes where memory of one of its connections lies, whose pages are there. Costs a system
    /// call.
    pub(crate) fn note_memory(&self, region: &Region) {
        let nodes = region.nodes();
        lock(&self.0.nodes).extend(nodes);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
