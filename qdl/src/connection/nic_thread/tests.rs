//! Wakes that are not lost, NICs that change hands, and plans that do not fit.

use std::sync::atomic::AtomicU64;

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
        begin: None,
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
    used: bool,
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
    fn is_in_use(&self) -> bool {
        self.used
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
        let make: MakeWork<Nic> = Box::new(move |_| Nic {
            counter,
            busy,
            used: true,
        });
        nics.push((cfgs_of_a_sleeper(), make));
    }
    let plan = CrewPlan {
        nic_of: vec![0, 1, 2, 3],
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

/// Four shares of a NIC on one thread, two of them with connections, beside a thread with nothing.
#[test]
fn of_a_full_thread_half_of_what_is_in_use_goes_to_one_that_has_nothing() {
    let stop = Arc::new(AtomicBool::new(false));
    let share = |used| {
        let (counter, busy) = (
            Counter {
                stop: stop.clone(),
                ..Counter::default()
            },
            Arc::new(AtomicBool::new(used)),
        );
        let make: MakeWork<Nic> = Box::new(move |_| Nic {
            counter,
            busy,
            used,
        });
        (cfgs_of_a_sleeper(), make)
    };
    let plan = CrewPlan {
        nic_of: vec![0; 4],
        thread_of: vec![0; 4],
        group_of: vec![0, 0],
        moves: Moves::ByNeed,
    };
    let shares = [false, true, false, true].map(share);
    let (handles, threads) = spawn_crew(shares.into(), &plan).expect("started");
    let end = Instant::now() + Duration::from_secs(60);
    while handles[1].number() == handles[3].number() {
        assert!(Instant::now() < end, "nothing moves");
        std::thread::yield_now();
    }
    stop.store(true, Ordering::SeqCst);
    handles.iter().for_each(NicThreadHandle::wake);
    for thread in threads {
        thread.join().expect("stopped");
    }
}

#[test]
fn a_plan_for_other_nics_is_refused() {
    let make: MakeWork<Counter> = Box::new(|_| Counter::default());
    let nics = vec![(cfgs_of_a_sleeper(), make)];
    let error = spawn_crew(nics, &CrewPlan::each(2)).expect_err("two threads for one NIC");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// Counts mail as [`Counter`], which may wait for so long.
struct Patient {
    counter: Counter,
    patience_ns: u64,
}

impl NicWork for Patient {
    fn turn(&mut self, now: u64) -> Turn {
        self.counter.turn(now)
    }
    fn patience_ns(&self) -> u64 {
        self.patience_ns
    }
    fn arm(&mut self) -> Armed {
        self.counter.arm()
    }
    fn new_descriptors(&mut self, _add: &mut dyn FnMut(RawFd)) {}
}

#[test]
fn a_thread_naps_where_what_comes_may_wait_and_sees_to_it_unasked() {
    let adaptive = Spin {
        yield_after_ns: 0,
        sleep_after_ns: 3_600_000_000_000,
    };
    let poll = Spin {
        sleep_after_ns: u64::MAX,
        ..adaptive
    };
    let cases = [
        (10_000_000, adaptive, true),
        (0, adaptive, false),
        (10_000_000, poll, false),
    ];
    for (patience_ns, spin, naps) in cases {
        let counter = Counter::default();
        let (mail, seen) = (counter.mail.clone(), counter.seen.clone());
        let stop = counter.stop.clone();
        let cfgs = NicThreadCfgs {
            spin,
            ..cfgs_of_a_sleeper()
        };
        let work = Patient {
            counter,
            patience_ns,
        };
        let (handle, thread) = spawn(cfgs, move |_| work).expect("started");
        let end = Instant::now() + Duration::from_secs(20);
        let (mut napped, mut i) = (false, 0);
        while i < 50 || (naps && !napped) {
            i += 1;
            mail.store(i, Ordering::SeqCst);
            while seen.load(Ordering::SeqCst) != i {
                napped |= handle.thread().naps_until_ns.load(Ordering::Relaxed) > 0;
                assert!(!handle.needs_waking(), "it naps, and is not asleep");
                assert!(Instant::now() < end, "mail {i} was not seen");
                std::hint::spin_loop();
            }
        }
        assert_eq!(napped, naps, "{patience_ns} {spin:?}");
        stop.store(true, Ordering::SeqCst);
        thread.join().expect("stopped");
    }
}

#[test]
fn every_thread_of_a_crew_begins_in_the_same_way() {
    static BEGAN: AtomicUsize = AtomicUsize::new(0);
    let work = Counter::default();
    let stop = work.stop.clone();
    let plan = CrewPlan {
        nic_of: vec![0],
        thread_of: vec![0],
        group_of: vec![0, 0],
        moves: Moves::ByNeed,
    };
    let cfgs = NicThreadCfgs {
        begin: Some(|| {
            BEGAN.fetch_add(1, Ordering::SeqCst);
        }),
        ..cfgs_of_a_sleeper()
    };
    let make: MakeWork<Counter> = Box::new(move |_| work);
    let (handles, threads) = spawn_crew(vec![(cfgs, make)], &plan).expect("started");
    stop.store(true, Ordering::SeqCst);
    handles[0].wake();
    for thread in threads {
        thread.join().expect("well");
    }
    assert_eq!(BEGAN.load(Ordering::SeqCst), 2, "one of them has no share");
}
