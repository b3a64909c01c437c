//! Handle of a NIC thread for other threads: whether the thread sleeps, wake-up, and statistics.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use crossbeam_utils::CachePadded;
use fabric::{
    Region,
    os::CpuList,
    sync::{AtomicU8, Ordering, fence},
};
use mio::{Poll, Token, Waker};
use record::{NicUse, NicWaits};

use super::{Placed, crew::CrewPlan};
use fabric::os::lock;

/// Token of the waker among the descriptors that the thread sleeps on.
pub(super) const WAKER: Token = Token(usize::MAX);

/// The thread polls, or will poll before it sleeps.
pub(super) const AWAKE: u8 = 0;
/// The thread sleeps, or will poll once more before it sleeps.
pub(super) const ASLEEP: u8 = 1;
/// As `ASLEEP`, and a second thread is about to wake the thread.
pub(super) const WAKING: u8 = 2;

/// State of one NIC thread that other threads access.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) waker: Waker,
    pub(super) state: AtomicU8,
    wakeups: AtomicU64,
    pub(super) sleeps: AtomicU64,
    /// Nanoseconds in busy turns. Every busy turn writes it, so it has its own cache line, apart
    /// from `state`, which every issuing thread reads.
    pub(super) worked_ns: CachePadded<AtomicU64>,
    pub(super) cpus: Mutex<CpuList>,
    /// NUMA nodes of the memory of its connections.
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

    /// Claims the right to wake the thread; false if the thread is awake or claimed. The caller
    /// issues a `SeqCst` fence first, which pairs with that of `Turning::announce`: either the
    /// thread sees what the caller published, or the caller sees the thread asleep.
    pub(super) fn claim(&self) -> bool {
        let state = &self.state;
        state.load(Ordering::SeqCst) == ASLEEP
            && state
                .compare_exchange(ASLEEP, WAKING, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }
}

/// Handle of the thread that polls a share of a NIC's connections.
#[derive(Clone, Debug)]
pub struct NicThreadHandle(pub(super) Arc<Thread>);

impl NicThreadHandle {
    /// Makes the thread poll once more. That poll sees all that the caller published before.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.0.claim() {
            self.0.wakeups.fetch_add(1, Ordering::Relaxed);
            // The call fails only if the eventfd's counter is full; then the thread wakes anyway.
            let _ = self.0.waker.wake();
        }
    }

    /// Whether the thread sleeps or will poll only once more before it sleeps. Also true while a
    /// second thread is about to wake the NIC thread, since the second thread may be preempted
    /// first. If the NIC thread is awake, it sees what the caller published before.
    pub(crate) fn is_asleep(&self) -> bool {
        // Pairs with the fence of `Turning::announce`, as the fence in `wake` does.
        fence(Ordering::SeqCst);
        self.0.state.load(Ordering::SeqCst) != AWAKE
    }

    /// Threads of these shares, each once.
    fn threads(shares: &[NicThreadHandle]) -> impl Iterator<Item = &Thread> {
        let first = |(i, h): &(usize, &NicThreadHandle)| {
            shares[..*i]
                .iter()
                .all(|other| !Arc::ptr_eq(&other.0, &h.0))
        };
        let all = shares.iter().enumerate().filter(first);
        all.map(|(_, h)| &*h.0)
    }

    /// Sleeps of these shares' threads so far.
    pub(crate) fn waits(shares: &[NicThreadHandle]) -> NicWaits {
        Self::threads(shares).fold(NicWaits::default(), |sum, t| NicWaits {
            sleeps: sum.sleeps + t.sleeps.load(Ordering::Relaxed),
            woken: sum.woken + t.wakeups.load(Ordering::Relaxed),
        })
    }

    /// Busy time and sleeps of these shares' threads so far.
    pub(crate) fn uses(shares: &[NicThreadHandle]) -> NicUse {
        let threads = Self::threads(shares);
        let worked: Vec<_> = threads
            .map(|t| t.worked_ns.load(Ordering::Relaxed))
            .collect();
        NicUse {
            // A thread that never had work does not count as idle capacity.
            threads: worked.iter().filter(|ns| **ns > 0).count() as u32,
            worked_us: worked.iter().map(|ns| ns / 1000).sum(),
            sleeps: Self::waits(shares).sleeps,
        }
    }

    /// CPUs of the thread, and NUMA nodes of the memory of the thread's connections.
    pub(crate) fn placed(&self) -> Placed {
        Placed {
            cpus: lock(&self.0.cpus).clone(),
            nodes: lock(&self.0.nodes).clone(),
        }
    }

    /// Placement of each NIC: CPUs of the thread of the NIC's first share, and NUMA nodes of the
    /// memory of all the NIC's connections.
    pub(crate) fn placed_by_nic(shares: &[NicThreadHandle], plan: &CrewPlan) -> Vec<Placed> {
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

    /// Adds the NUMA nodes of a connection's memory, whose pages are present. One system call.
    pub(crate) fn note_memory(&self, region: &Region) {
        let nodes = region.nodes();
        lock(&self.0.nodes).extend(nodes);
    }
}
