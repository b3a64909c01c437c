//! The loop of a NIC thread: work while there is some, look again for a configured time, then arm
//! every connection, look once more, and sleep on all their descriptors at once.

use std::{
    collections::BTreeSet,
    io,
    os::fd::RawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering, fence},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};

use super::{Spin, spin::Wait};
use crate::{
    clock::now_ns,
    fabric::{Armed, Region, Rx},
    os::{CpuList, Near, affinity},
    stats::limits::NicUse,
};

const WAKER: Token = Token(usize::MAX);

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

/// What a NIC thread does.
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

/// It turns, or will before it sleeps.
const AWAKE: u8 = 0;
/// It sleeps, or is about to and has yet to look once more.
const ASLEEP: u8 = 1;
/// The same, and somebody is about to wake it.
const WAKING: u8 = 2;

#[derive(Debug)]
struct Shared {
    waker: Waker,
    state: AtomicU8,
    wakeups: AtomicU64,
    sleeps: AtomicU64,
    /// Nanoseconds in turns that found something. Written in every such turn, and so kept away from
    /// `state`, which everybody who issues reads.
    worked_ns: CachePadded<AtomicU64>,
    placed: Mutex<Placed>,
}

impl Shared {
    /// Whether the thread sleeps and the caller is the one to wake it.
    fn claim(&self) -> bool {
        // Pairs with the fence in `run`: the thread sees what was made known, or we see it asleep.
        fence(Ordering::SeqCst);
        let state = &self.state;
        state.load(Ordering::SeqCst) == ASLEEP
            && state
                .compare_exchange(ASLEEP, WAKING, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }
}

/// Wakes a NIC thread. Cheap while the thread is awake: one load.
#[derive(Clone, Debug)]
pub struct NicThreadHandle(Arc<Shared>);

impl NicThreadHandle {
    /// Makes sure that the thread turns once more. What
    /// the caller made known before is seen by that turn.
    pub fn wake(&self) {
        if self.0.claim() {
            self.0.wakeups.fetch_add(1, Ordering::Relaxed);
            // Fails only if the eventfd's counter is full, and then the thread is being woken.
            let _ = self.0.waker.wake();
        }
    }

    /// Whether it sleeps, or is about to and has yet to look once more, and nobody is about to wake
    /// it. What the caller made known before is seen by the look of a thread that does not.
    pub fn needs_waking(&self) -> bool {
        // Pairs with the fence in `run`, as that of `wake`.
        fence(Ordering::SeqCst);
        self.0.state.load(Ordering::SeqCst) == ASLEEP
    }

    /// Whether it slept a moment ago: a hint, and cheap.
    pub fn seems_asleep(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) != AWAKE
    }

    /// Whether it sleeps, or is about to and has yet to look once more, even if somebody else is
    /// about to wake it: that may take its time. What the caller made known before is seen by the
    /// look of a thread that does not.
    pub fn sleeps_now(&self) -> bool {
        // Pairs with the fence in `run`, as that of `wake`.
        fence(Ordering::SeqCst);
        self.0.state.load(Ordering::SeqCst) != AWAKE
    }

    /// How often another thread had to wake it.
    pub fn wakeups(&self) -> u64 {
        self.0.wakeups.load(Ordering::Relaxed)
    }

    /// How often it went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.0.sleeps.load(Ordering::Relaxed)
    }

    /// Nanoseconds that it has spent in turns that found something to do.
    pub fn worked_ns(&self) -> u64 {
        self.0.worked_ns.load(Ordering::Relaxed)
    }

    /// What the threads of these handles were used for so far.
    pub fn uses(handles: &[NicThreadHandle]) -> NicUse {
        let mut sum = NicUse::default();
        for h in handles {
            sum.threads += 1;
            sum.worked_us += h.worked_ns() / 1000;
            sum.sleeps += h.sleeps();
        }
        sum
    }

    /// Where it runs and its connections' memory lies.
    pub fn placed(&self) -> Placed {
        self.lock_placed().clone()
    }

    /// Notes where memory of one of its connections lies, whose pages are there. Costs a system
    /// call.
    pub(crate) fn note_memory(&self, region: &Region) {
        let nodes = region.nodes();
        self.lock_placed().nodes.extend(nodes);
    }

    fn lock_placed(&self) -> MutexGuard<'_, Placed> {
        self.0.placed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a NIC thread. `make` runs on it, after it has been pinned, so that memory it touches
/// first and devices it opens are near.
///
/// # Errors
/// No descriptor or thread could be had.
pub fn spawn<W: NicWork>(
    cfgs: NicThreadCfgs,
    make: impl FnOnce(NicThreadHandle) -> W + Send + 'static,
) -> io::Result<(NicThreadHandle, JoinHandle<()>)> {
    let poll = Poll::new()?;
    let handle = NicThreadHandle(Arc::new(Shared {
        waker: Waker::new(poll.registry(), WAKER)?,
        state: AtomicU8::new(AWAKE),
        wakeups: AtomicU64::new(0),
        sleeps: AtomicU64::new(0),
        worked_ns: CachePadded::default(),
        placed: Mutex::default(),
    }));
    let shared = handle.clone();
    let thread = std::thread::Builder::new()
        .name(cfgs.name.clone())
        .spawn(move || {
            cfgs.near.pin();
            shared.lock_placed().cpus = affinity();
            let work = make(shared.clone());
            run(&cfgs, &shared.0, poll, work);
        })?;
    Ok((handle, thread))
}

fn run(cfgs: &NicThreadCfgs, shared: &Shared, mut poll: Poll, mut work: impl NicWork) {
    let mut events = Events::with_capacity(256);
    let mut now = now_ns();
    let mut idle_since = now;
    let mut next_tick = now + cfgs.tick_ns;
    let mut worked = 0;
    loop {
        let turn = work.turn(now);
        register(&poll, &mut work);
        let began = std::mem::replace(&mut now, now_ns());
        if turn == Turn::Busy {
            worked += now.saturating_sub(began);
            shared.worked_ns.store(worked, Ordering::Relaxed);
        }
        if now >= next_tick {
            work.tick(now);
            next_tick = now + cfgs.tick_ns;
        }
        let wait = cfgs.spin.wait(now - idle_since);
        match turn {
            Turn::Stop => return,
            Turn::Busy => idle_since = now,
            Turn::Idle if wait.pause() => {
                // What another thread had the core for was no work of this one's.
                if wait == Wait::Yield {
                    now = now_ns();
                }
            }
            Turn::Idle => {
                events.clear();
                shared.state.store(ASLEEP, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if work.arm() == Armed::Sleep {
                    shared.sleeps.fetch_add(1, Ordering::Relaxed);
                    let patience = Duration::from_nanos(next_tick.saturating_sub(now).max(1000));
                    // An interrupted sleep is a short one.
                    let _ = poll.poll(&mut events, Some(patience));
                }
                shared.state.store(AWAKE, Ordering::SeqCst);
                now = now_ns();
                for e in events.iter().filter(|e| e.is_readable()) {
                    if e.token() != WAKER {
                        work.woken_by(e.token().0 as RawFd);
                    }
                }
                // A tick alone is no reason to spin again.
                if !events.is_empty() {
                    idle_since = now;
                }
            }
        }
    }
}

fn register(poll: &Poll, work: &mut impl NicWork) {
    work.new_descriptors(&mut |fd| {
        let result = poll.registry().register(
            &mut SourceFd(&fd),
            Token(fd as usize),
            Interest::READABLE | Interest::WRITABLE,
        );
        if let Err(e) = result {
            // A connection that cannot be slept on is still
            // polled at every tick, and its echo shows a loss.
            tracing::warn!("NIC thread: epoll_ctl: {e}");
        }
    });
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

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[derive(Default)]
    struct Counter {
        mail: Arc<AtomicU64>,
        seen: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
    }

    impl NicWork for Counter {
        fn turn(&mut self, _now: u64) -> Turn {
            if self.stop.load(Ordering::SeqCst) {
                return Turn::Stop;
            }
            let mail = self.mail.load(Ordering::SeqCst);
            if self.seen.swap(mail, Ordering::SeqCst) == mail {
                Turn::Idle
            } else {
                Turn::Busy
            }
        }
        fn tick(&mut self, _now: u64) {}
        fn arm(&mut self) -> Armed {
            let news = self.mail.load(Ordering::SeqCst) != self.seen.load(Ordering::SeqCst)
                || self.stop.load(Ordering::SeqCst);
            if news { Armed::Ready } else { Armed::Sleep }
        }
        fn new_descriptors(&mut self, _add: &mut dyn FnMut(RawFd)) {}
    }

    /// A thread that sleeps at once.
    fn sleeper(work: Counter) -> (NicThreadHandle, JoinHandle<()>) {
        let cfgs = NicThreadCfgs {
            name: "test-nic".into(),
            spin: Spin::new(0),
            // No tick comes to the rescue.
            tick_ns: 3_600_000_000_000,
            near: Near::default(),
        };
        spawn(cfgs, move |_| work).expect("started")
    }

    #[test]
    fn a_thread_that_somebody_is_about_to_wake_still_sleeps() {
        let work = Counter::default();
        let stop = work.stop.clone();
        let (handle, thread) = sleeper(work);
        let end = Instant::now() + Duration::from_secs(20);
        while !handle.sleeps_now() {
            assert!(Instant::now() < end, "it never slept");
            std::thread::yield_now();
        }
        // A waker that is preempted before it writes.
        assert!(handle.0.claim());
        assert!(
            handle.sleeps_now(),
            "whoever trusts it to look waits for another"
        );
        stop.store(true, Ordering::SeqCst);
        handle.0.waker.wake().expect("room");
        thread.join().expect("stopped");
        assert!(!handle.0.claim(), "it has ended, and was awake");
    }

    #[test]
    fn a_wake_is_never_lost() {
        let work = Counter::default();
        let (mail, seen, stop) = (work.mail.clone(), work.seen.clone(), work.stop.clone());
        let (handle, thread) = sleeper(work);
        let end = Instant::now() + Duration::from_secs(20);
        for i in 1..=2000u64 {
            mail.store(i, Ordering::SeqCst);
            handle.wake();
            while seen.load(Ordering::SeqCst) != i {
                assert!(Instant::now() < end, "slept through mail {i}");
                std::hint::spin_loop();
            }
        }
        stop.store(true, Ordering::SeqCst);
        handle.wake();
        thread.join().expect("stopped");
    }
}
