//! What others have of a NIC thread: they see whether it sleeps, wake it, and read what it was used
//! for.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

use crossbeam_utils::CachePadded;
use mio::{Poll, Token, Waker};

use super::{
    Placed,
    crew::{CrewPlan, SharedLoad},
};
use crate::{fabric::Region, os::CpuList, stats::limits::NicUse};

/// Of what wakes a thread, among the descriptors that it sleeps on.
pub(super) const WAKER: Token = Token(usize::MAX);

/// It turns, or will before it sleeps.
pub(super) const AWAKE: u8 = 0;
/// It sleeps, or is about to and has yet to look once more.
pub(super) const ASLEEP: u8 = 1;
/// The same, and somebody is about to wake it.
const WAKING: u8 = 2;

/// What others know of one NIC thread, and it of them.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) waker: Waker,
    pub(super) state: AtomicU8,
    wakeups: AtomicU64,
    pub(super) sleeps: AtomicU64,
    /// Until when it naps, ns; 0 where it does not. Whoever leaves it something need not wake it.
    pub(super) naps_until_ns: AtomicU64,
    /// Nanoseconds in turns that found something. Written in every such turn, and so kept away from
    /// `state`, which everybody who issues reads.
    pub(super) worked_ns: CachePadded<AtomicU64>,
    pub(super) cpus: Mutex<CpuList>,
    pub(super) load: CachePadded<SharedLoad>,
}

impl Thread {
    pub(super) fn new(poll: &Poll) -> io::Result<Self> {
        Ok(Thread {
            waker: Waker::new(poll.registry(), WAKER)?,
            state: AtomicU8::new(AWAKE),
            wakeups: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            naps_until_ns: AtomicU64::new(0),
            worked_ns: CachePadded::default(),
            cpus: Mutex::default(),
            load: CachePadded::default(),
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

    pub(super) fn wake(&self) {
        if self.claim() {
            self.wakeups.fetch_add(1, Ordering::Relaxed);
            // Fails only if the eventfd's counter is full, and then the thread is being woken.
            let _ = self.waker.wake();
        }
    }
}

/// The thread that polls a share of a NIC's connections, whichever that is at the moment.
#[derive(Clone, Debug)]
pub struct NicThreadHandle(pub(super) Arc<Seat>);

/// Of a share.
#[derive(Debug)]
pub(super) struct Seat {
    /// All of the crew.
    pub(super) threads: Arc<[Thread]>,
    /// The one that polls it.
    pub(super) at: AtomicUsize,
    /// NUMA nodes of its connections' memory.
    pub(super) nodes: Mutex<BTreeSet<u32>>,
}

impl NicThreadHandle {
    /// Behind a fence, as [`Thread::claim`]: whoever polls the share from now on sees what was made
    /// known before it, as it turns once it has the share.
    pub(super) fn thread(&self) -> &Thread {
        &self.0.threads[self.0.at.load(Ordering::SeqCst)]
    }

    /// Makes sure that the thread turns once more. What
    /// the caller made known before is seen by that turn.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        self.thread().wake();
    }

    /// Whether it sleeps, or is about to and has yet to look once more, and nobody is about to wake
    /// it. What the caller made known before is seen by the look of a thread that does not.
    pub fn needs_waking(&self) -> bool {
        // Pairs with the fence in `run`, as that of `wake`.
        fence(Ordering::SeqCst);
        self.thread().state.load(Ordering::SeqCst) == ASLEEP
    }

    /// Whether it slept a moment ago: a hint, and cheap.
    pub fn seems_asleep(&self) -> bool {
        self.0.threads[self.0.at.load(Ordering::Relaxed)]
            .state
            .load(Ordering::Relaxed)
            != AWAKE
    }

    /// Whether it sleeps, or is about to and has yet to look once more, even if somebody else is
    /// about to wake it: that may take its time. What the caller made known before is seen by the
    /// look of a thread that does not.
    pub fn sleeps_now(&self) -> bool {
        fence(Ordering::SeqCst);
        self.thread().state.load(Ordering::SeqCst) != AWAKE
    }

    /// Whether it naps and sees to what is left to it by itself when that is over: a hint, and
    /// cheap.
    pub fn naps(&self, now_ns: u64) -> bool {
        let at = self.0.at.load(Ordering::Relaxed);
        now_ns < self.0.threads[at].naps_until_ns.load(Ordering::Relaxed)
    }

    /// Which thread of the crew it is.
    pub fn number(&self) -> usize {
        self.0.at.load(Ordering::Relaxed)
    }

    /// How often other threads had to wake a thread of these shares' crew, and how often one went
    /// to sleep.
    pub fn waits(handles: &[NicThreadHandle]) -> (u64, u64) {
        let all = handles.first().map_or(&[][..], |h| &h.0.threads);
        all.iter().fold((0, 0), |(wakeups, sleeps), t| {
            let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
            (wakeups + count(&t.wakeups), sleeps + count(&t.sleeps))
        })
    }

    /// What the threads of these shares, which are all of a crew, were used for so far.
    pub fn uses(handles: &[NicThreadHandle]) -> NicUse {
        let all = handles.first().map_or(&[][..], |h| &h.0.threads);
        let worked = all.iter().map(|t| t.worked_ns.load(Ordering::Relaxed));
        NicUse {
            // One that was never needed is no thread that had time to spare.
            threads: worked.clone().filter(|ns| *ns > 0).count() as u32,
            worked_us: worked.map(|ns| ns / 1000).sum(),
            sleeps: Self::waits(handles).1,
        }
    }

    /// Where it runs and its connections' memory lies.
    pub fn placed(&self) -> Placed {
        Placed {
            cpus: lock(&self.thread().cpus).clone(),
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
