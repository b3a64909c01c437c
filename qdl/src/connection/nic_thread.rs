//! The loop of a NIC thread: work while there is some, look again for a configured time, then arm
//! every connection, look once more, and sleep on all their descriptors at once. A thread does so
//! for one NIC or for several, which may change to another ([`crew`](super::crew)).

use std::{
    collections::BTreeSet,
    io,
    os::fd::RawFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};

use super::{
    CrewPlan, Moves, Spin,
    crew::{Apart, Balance, Give, Load, SharedLoad, WINDOW_NS},
    spin::Wait,
};
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

    /// All descriptors that were named so far and are open: another thread is to sleep on them.
    fn descriptors(&mut self, each: &mut dyn FnMut(RawFd)) {
        let _ = each;
    }
}

/// It turns, or will before it sleeps.
const AWAKE: u8 = 0;
/// It sleeps, or is about to and has yet to look once more.
const ASLEEP: u8 = 1;
/// The same, and somebody is about to wake it.
const WAKING: u8 = 2;

#[derive(Debug)]
struct Thread {
    waker: Waker,
    state: AtomicU8,
    wakeups: AtomicU64,
    sleeps: AtomicU64,
    /// Nanoseconds in turns that found something. Written in every such turn, and so kept away from
    /// `state`, which everybody who issues reads.
    worked_ns: CachePadded<AtomicU64>,
    cpus: Mutex<CpuList>,
    load: CachePadded<SharedLoad>,
}

impl Thread {
    fn new(poll: &Poll) -> io::Result<Self> {
        Ok(Thread {
            waker: Waker::new(poll.registry(), WAKER)?,
            state: AtomicU8::new(AWAKE),
            wakeups: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            worked_ns: CachePadded::default(),
            cpus: Mutex::default(),
            load: CachePadded::default(),
        })
    }

    /// Whether the thread sleeps and the caller is the one to wake it. Behind a fence, which pairs
    /// with the one in `run`: the thread sees what was made known before it, or is seen asleep.
    fn claim(&self) -> bool {
        let state = &self.state;
        state.load(Ordering::SeqCst) == ASLEEP
            && state
                .compare_exchange(ASLEEP, WAKING, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }

    fn wake(&self) {
        if self.claim() {
            self.wakeups.fetch_add(1, Ordering::Relaxed);
            // Fails only if the eventfd's counter is full, and then the thread is being woken.
            let _ = self.waker.wake();
        }
    }
}

/// The thread that polls a NIC, whichever that is at the moment.
#[derive(Clone, Debug)]
pub struct NicThreadHandle(Arc<Seat>);

/// Of a NIC.
#[derive(Debug)]
struct Seat {
    /// All of the crew.
    threads: Arc<[Thread]>,
    /// The one that polls it.
    at: AtomicUsize,
    /// NUMA nodes of its connections' memory.
    nodes: Mutex<BTreeSet<u32>>,
}

impl NicThreadHandle {
    /// Behind a fence, as [`Thread::claim`]: whoever polls the NIC from now on sees what was made
    /// known before it, as it turns once it has the NIC.
    fn thread(&self) -> &Thread {
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

    /// Which thread of the crew it is.
    pub fn number(&self) -> usize {
        self.0.at.load(Ordering::Relaxed)
    }

    /// How often other threads had to wake a thread of these NICs' crew, and how often one went to
    /// sleep.
    pub fn waits(handles: &[NicThreadHandle]) -> (u64, u64) {
        let all = handles.first().map_or(&[][..], |h| &h.0.threads);
        all.iter().fold((0, 0), |(wakeups, sleeps), t| {
            let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
            (wakeups + count(&t.wakeups), sleeps + count(&t.sleeps))
        })
    }

    /// What the threads of these NICs, which are all of a crew, were used for so far.
    pub fn uses(handles: &[NicThreadHandle]) -> NicUse {
        let all = handles.first().map_or(&[][..], |h| &h.0.threads);
        let worked = all.iter().map(|t| t.worked_ns.load(Ordering::Relaxed));
        NicUse {
            threads: all.len() as u32,
            worked_us: worked.map(|ns| ns / 1000).sum(),
            sleeps: Self::waits(handles).1,
        }
    }

    /// Where it runs and its NIC's connections' memory lies.
    pub fn placed(&self) -> Placed {
        Placed {
            cpus: lock(&self.thread().cpus).clone(),
            nodes: lock(&self.0.nodes).clone(),
        }
    }

    /// Notes where memory of one of its connections lies, whose pages are there. Costs a system
    /// call.
    pub(crate) fn note_memory(&self, region: &Region) {
        let nodes = region.nodes();
        lock(&self.0.nodes).extend(nodes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a NIC's work, on the thread that is the first to do it.
pub type MakeWork<W> = Box<dyn FnOnce(NicThreadHandle) -> W + Send>;

/// Starts NIC threads as planned: how each waits and where it runs its first NIC says. What makes a
/// NIC's work runs on its thread, after that has been pinned, so that memory it touches first and
/// devices it opens are near.
///
/// # Errors
/// No descriptor or thread could be had; or the plan is one for other NICs.
pub fn spawn_crew<W: NicWork + Send + 'static>(
    nics: Vec<(NicThreadCfgs, MakeWork<W>)>,
    plan: &CrewPlan,
) -> io::Result<(Vec<NicThreadHandle>, Vec<JoinHandle<()>>)> {
    if !plan.fits(nics.len()) {
        let text = format!("{} NICs do not fit {plan:?}", nics.len());
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
    let mut cfgs: Vec<Option<NicThreadCfgs>> = vec![None; polls.len()];
    for ((nic, thread), (own, make)) in plan.thread_of.iter().enumerate().zip(nics) {
        cfgs[*thread].get_or_insert(own);
        of_thread[*thread].push((seats[nic].clone(), make));
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
    for (me, ((poll, cfgs), nics)) in each {
        // The plan fits: every thread has a NIC.
        let Some(cfgs) = cfgs else { continue };
        let shared = crew.clone();
        let thread = std::thread::Builder::new()
            .name(cfgs.name.clone())
            .spawn(move || {
                cfgs.near.pin();
                *lock(&shared.threads[me].cpus) = affinity();
                let works = nics.into_iter().map(|(seat, make)| Worked {
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

/// What a NIC is to a thread: its work, and where others learn who does it.
struct Worked<W> {
    seat: NicThreadHandle,
    work: W,
}

/// NICs that others gave to a thread; nothing once it has ended.
struct Mail<W> {
    has: AtomicBool,
    nics: Mutex<Option<Vec<Worked<W>>>>,
}

impl<W> Default for Mail<W> {
    fn default() -> Self {
        Mail {
            has: AtomicBool::new(false),
            nics: Mutex::new(Some(Vec::new())),
        }
    }
}

impl<W> Mail<W> {
    fn take(&self) -> Vec<Worked<W>> {
        if !self.has.load(Ordering::Acquire) || !self.has.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let nics = lock(&self.nics).as_mut().map(std::mem::take);
        // What was made known to whoever had these is seen by the turns that follow.
        fence(Ordering::SeqCst);
        nics.unwrap_or_default()
    }

    /// Nothing comes from now on. False where something has come.
    fn close(&self) -> bool {
        let mut nics = lock(&self.nics);
        let empty = nics.as_ref().is_none_or(Vec::is_empty);
        if empty {
            *nics = None;
        }
        empty
    }
}

/// What the threads that may poll each other's NICs share.
struct Crew<W> {
    threads: Arc<[Thread]>,
    mail: Box<[Mail<W>]>,
    group_of: Vec<usize>,
    moves: Moves,
    apart: Apart,
    /// NICs have been told to end: a thread that has none left ends.
    over: AtomicBool,
    /// Not all could be started.
    given_up: AtomicBool,
}

impl<W: NicWork> Crew<W> {
    fn wake_all(&self) {
        fence(Ordering::SeqCst);
        self.threads.iter().for_each(Thread::wake);
    }

    /// Whether a thread without NICs, which has no more to come, ends.
    fn is_done(&self, me: usize) -> bool {
        self.over.load(Ordering::SeqCst) && self.mail[me].close()
    }

    /// Gives a NIC to another thread, or back to this one if that has ended.
    fn give(&self, poll: &Poll, mut nic: Worked<W>, me: usize, to: usize) -> Option<Worked<W>> {
        let mut nics = lock(&self.mail[to].nics);
        let Some(nics) = nics.as_mut() else {
            return Some(nic);
        };
        nic.work.descriptors(&mut |fd| {
            // One that was never registered is as good as taken back.
            let _ = poll.registry().deregister(&mut SourceFd(&fd));
        });
        debug_assert_eq!(nic.seat.number(), me);
        nic.seat.0.at.store(to, Ordering::SeqCst);
        nics.push(nic);
        self.mail[to].has.store(true, Ordering::Release);
        None
    }

    /// Gives NICs away where this thread has too much to do, or so little that another can do it
    /// beside its own.
    fn balance(
        &self,
        me: usize,
        balance: &mut Balance,
        poll: &Poll,
        works: &mut Vec<Worked<W>>,
        (now, share): (u64, f64),
    ) {
        let nics = works.len();
        self.threads[me].load.set(Load { nics, share });
        if nics == 0 || self.over.load(Ordering::SeqCst) {
            return;
        }
        let loads: Vec<_> = self.threads.iter().map(|t| t.load.get()).collect();
        let may_move = self.apart.is_over(now);
        let give = match self.moves {
            Moves::Never => None,
            Moves::ByNeed => balance.look(me, share, &loads, &self.group_of, may_move),
            #[cfg(all(test, not(qdl_loom)))]
            Moves::Restless => {
                let next = (me + 1..self.threads.len()).chain(0..me);
                let mut next = next.filter(|t| self.group_of[*t] == self.group_of[me]);
                next.next().map(Give::All)
            }
        };
        let (to, keep) = match give {
            None => return,
            Some(Give::Half(to)) => {
                self.apart.parted(now);
                (to, nics - nics / 2)
            }
            Some(Give::All(to)) => (to, 0),
        };
        let given = works.split_off(keep);
        // Until it says so itself: somebody else may have something to give, too.
        let part = share * given.len() as f64 / nics as f64;
        self.threads[to].load.set(Load {
            nics: loads[to].nics + given.len(),
            share: loads[to].share + part,
        });
        let back = given
            .into_iter()
            .filter_map(|nic| self.give(poll, nic, me, to));
        works.extend(back);
        self.threads[me].load.set(Load {
            nics: works.len(),
            share: share * works.len() as f64 / nics as f64,
        });
        fence(Ordering::SeqCst);
        self.threads[to].wake();
    }
}

/// A thread's looks at its share of the time.
struct Window {
    balance: Balance,
    began_ns: u64,
    worked_before: u64,
}

fn run<W: NicWork>(
    cfgs: &NicThreadCfgs,
    me: usize,
    crew: &Crew<W>,
    mut poll: Poll,
    mut works: Vec<Worked<W>>,
) {
    let shared = &crew.threads[me];
    let mut events = Events::with_capacity(256);
    let mut now = now_ns();
    let mut idle_since = now;
    let mut next_tick = now + cfgs.tick_ns;
    let mut worked = 0;
    let mut window = Window {
        balance: Balance::new(),
        began_ns: now,
        worked_before: 0,
    };
    let nics = works.len();
    shared.load.set(Load { nics, share: 0.0 });
    loop {
        for mut given in crew.mail[me].take() {
            given.work.descriptors(&mut |fd| register(&poll, fd));
            works.push(given);
        }
        let mut turn = Turn::Idle;
        let mut ended = false;
        works.retain_mut(|w| match w.work.turn(now) {
            Turn::Busy => {
                turn = Turn::Busy;
                true
            }
            Turn::Idle => true,
            Turn::Stop => {
                ended = true;
                false
            }
        });
        for w in &mut works {
            w.work.new_descriptors(&mut |fd| register(&poll, fd));
        }
        if ended && !crew.over.swap(true, Ordering::SeqCst) {
            // Those that have no NIC are told by nobody else.
            crew.wake_all();
        }
        if crew.given_up.load(Ordering::Relaxed) || (works.is_empty() && crew.is_done(me)) {
            return;
        }
        let began = std::mem::replace(&mut now, now_ns());
        if turn == Turn::Busy {
            worked += now.saturating_sub(began);
            shared.worked_ns.store(worked, Ordering::Relaxed);
        }
        if now >= next_tick {
            works.iter_mut().for_each(|w| w.work.tick(now));
            next_tick = now + cfgs.tick_ns;
        }
        let spent = now.saturating_sub(window.began_ns);
        if crew.moves != Moves::Never && spent >= WINDOW_NS {
            let share = (worked - window.worked_before) as f64 / spent as f64;
            (window.began_ns, window.worked_before) = (now, worked);
            crew.balance(me, &mut window.balance, &poll, &mut works, (now, share));
        }
        let wait = cfgs.spin.wait(now - idle_since);
        match turn {
            Turn::Busy => idle_since = now,
            Turn::Idle | Turn::Stop if wait.pause() => {
                // What another thread had the core for was no work of this one's.
                if wait == Wait::Yield {
                    now = now_ns();
                }
            }
            Turn::Idle | Turn::Stop => {
                events.clear();
                shared.state.store(ASLEEP, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                // All of them, whatever the others say: one that was passed over would wake nobody.
                let ready = works.iter_mut().filter_map(|w| {
                    let armed = w.work.arm();
                    (armed == Armed::Ready).then_some(())
                });
                let ready = ready.count();
                let something = crew.mail[me].has.load(Ordering::SeqCst)
                    || (works.is_empty() && crew.over.load(Ordering::SeqCst))
                    || crew.given_up.load(Ordering::SeqCst);
                if ready == 0 && !something {
                    shared.sleeps.fetch_add(1, Ordering::Relaxed);
                    let patience = next_tick.saturating_sub(now).max(1000);
                    // Without a NIC there is nothing to look after. An interrupted sleep is a short
                    // one.
                    let patience = (!works.is_empty()).then(|| Duration::from_nanos(patience));
                    let _ = poll.poll(&mut events, patience);
                }
                shared.state.store(AWAKE, Ordering::SeqCst);
                now = now_ns();
                for e in events.iter().filter(|e| e.is_readable()) {
                    if e.token() != WAKER {
                        let fd = e.token().0 as RawFd;
                        works.iter_mut().for_each(|w| w.work.woken_by(fd));
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

fn register(poll: &Poll, fd: RawFd) {
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

    fn cfgs_of_a_sleeper() -> NicThreadCfgs {
        NicThreadCfgs {
            name: "test-nic".into(),
            spin: Spin::new(0),
            // No tick comes to the rescue.
            tick_ns: 3_600_000_000_000,
            near: Near::default(),
        }
    }

    /// A thread that sleeps at once.
    fn sleeper(work: Counter) -> (NicThreadHandle, JoinHandle<()>) {
        spawn(cfgs_of_a_sleeper(), move |_| work).expect("started")
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
        assert!(handle.thread().claim());
        assert!(
            handle.sleeps_now(),
            "whoever trusts it to look waits for another"
        );
        stop.store(true, Ordering::SeqCst);
        handle.thread().waker.wake().expect("room");
        thread.join().expect("stopped");
        assert!(!handle.thread().claim(), "it has ended, and was awake");
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

    /// Counts mail as [`Counter`], and has always something to do while it is told so.
    struct Nic {
        counter: Counter,
        busy: Arc<AtomicBool>,
    }

    impl NicWork for Nic {
        fn turn(&mut self, now: u64) -> Turn {
            match self.counter.turn(now) {
                Turn::Idle if self.busy.load(Ordering::SeqCst) => Turn::Busy,
                turn => turn,
            }
        }
        fn arm(&mut self) -> Armed {
            match self.busy.load(Ordering::SeqCst) {
                true => Armed::Ready,
                false => self.counter.arm(),
            }
        }
        fn new_descriptors(&mut self, _add: &mut dyn FnMut(RawFd)) {}
    }

    #[test]
    fn nics_part_where_a_thread_is_full_and_no_mail_is_lost_on_the_way() {
        for _ in 0..2 {
            parts();
        }
    }

    /// Three NICs on one thread, and one on the other that never has much to do.
    fn parts() {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = Arc::new(AtomicBool::new(false));
        let (mut mails, mut nics) = (Vec::new(), Vec::new());
        for nic in 0..4 {
            let counter = Counter {
                stop: stop.clone(),
                ..Counter::default()
            };
            mails.push((counter.mail.clone(), counter.seen.clone()));
            let busy = match nic {
                0..3 => busy.clone(),
                _ => Arc::default(),
            };
            let make: MakeWork<Nic> = Box::new(move |_| Nic { counter, busy });
            nics.push((cfgs_of_a_sleeper(), make));
        }
        let plan = CrewPlan {
            thread_of: vec![0, 0, 0, 1],
            group_of: vec![0, 0],
            moves: Moves::ByNeed,
        };
        let (handles, threads) = spawn_crew(nics, &plan).expect("started");
        let places = || {
            let places = handles.iter().map(NicThreadHandle::number);
            places.collect::<Vec<_>>()
        };
        let end = Instant::now() + Duration::from_secs(60);
        let (mut sent, mut after) = (0, 0);
        while after < 50 {
            sent += 1;
            busy.store(sent > 50 && after < 25, Ordering::SeqCst);
            for ((mail, seen), handle) in mails.iter().zip(&handles) {
                mail.store(sent, Ordering::SeqCst);
                handle.wake();
                while seen.load(Ordering::SeqCst) != sent {
                    let all = places();
                    assert!(Instant::now() < end, "{all:?} slept through mail {sent}");
                    std::thread::yield_now();
                }
            }
            after += u64::from(places()[..3] != [0; 3]);
            assert!(Instant::now() < end, "nothing moves");
        }
        stop.store(true, Ordering::SeqCst);
        handles.iter().for_each(NicThreadHandle::wake);
        for thread in threads {
            thread.join().expect("stopped");
        }
        assert!(NicThreadHandle::waits(&handles).1 > 0, "they never slept");
    }

    #[test]
    fn a_plan_for_other_nics_is_refused() {
        let make: MakeWork<Counter> = Box::new(|_| Counter::default());
        let nics = vec![(cfgs_of_a_sleeper(), make)];
        let error = spawn_crew(nics, &CrewPlan::each(2)).expect_err("two threads for one NIC");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
