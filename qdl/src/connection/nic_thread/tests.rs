//! Real sleeps of threads with one share or several, their start, and unsound plans.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::{
    by_hand::{HandTurned, Step},
    *,
};

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
    // The tick is so rare that no test depends on it.
    NicThreadCfgs::new("test-nic", Spin::new(0), 3_600_000_000_000)
}

#[test]
fn a_thread_that_is_about_to_be_woken_still_sleeps() {
    let make: MakeWork = Box::new(|_| Box::new(Counter::default()));
    let made = make_crew(vec![(cfgs_of_a_sleeper(), make)], &CrewPlan::each(1));
    let (handles, mut threads) = made.expect("descriptors");
    let handle = &handles[0];
    let mut thread = HandTurned::new(threads.pop().expect("one"));
    assert!(!handle.is_asleep());
    assert_eq!(thread.turn(&mut |_| {}), Step::Arm);
    assert!(thread.arm().is_some());
    // A waking thread is preempted before it writes to the eventfd.
    assert!(handle.0.claim());
    assert!(
        handle.is_asleep(),
        "a caller that relies on this thread waits for ever"
    );
    thread.wake(true, &[]);
    assert!(!handle.is_asleep() && !handle.0.claim());
}

/// Two shares run on one thread and one share on a second thread, without a tick.
#[test]
fn a_wake_reaches_each_share_of_a_thread() {
    let stop = Arc::new(AtomicBool::new(false));
    let counter = |_| Counter {
        stop: stop.clone(),
        ..Counter::default()
    };
    let counters = [0; 3].map(counter);
    let mails = counters
        .each_ref()
        .map(|c| (c.mail.clone(), c.seen.clone()));
    let share = |counter| {
        let make: MakeWork = Box::new(move |_| Box::new(counter));
        (cfgs_of_a_sleeper(), make)
    };
    let plan = CrewPlan {
        nic_of: vec![0, 1, 1],
        thread_of: vec![0, 0, 1],
    };
    let (handles, threads) = make_crew(counters.map(share).into(), &plan).expect("sound");
    let threads = start(threads).expect("started");
    assert_eq!(threads.len(), 2);
    let end = Instant::now() + Duration::from_secs(20);
    for i in 1..=200 {
        for ((mail, seen), handle) in mails.iter().zip(&handles) {
            mail.store(i, Ordering::SeqCst);
            handle.wake();
            while seen.load(Ordering::SeqCst) != i {
                assert!(Instant::now() < end, "slept through mail {i}");
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(NicThreadHandle::uses(&handles).threads, 2, "each once");
    stop.store(true, Ordering::SeqCst);
    handles.iter().for_each(NicThreadHandle::wake);
    for thread in threads {
        thread.join().expect("stopped");
    }
}

#[test]
fn a_plan_for_other_nics_is_refused() {
    let make: MakeWork = Box::new(|_| Box::new(Counter::default()));
    let nics = vec![(cfgs_of_a_sleeper(), make)];
    let error = make_crew(nics, &CrewPlan::each(2)).err();
    let kind = error.expect("two threads for one NIC").kind();
    assert_eq!(kind, io::ErrorKind::InvalidInput);
}

#[test]
fn every_thread_of_a_crew_begins_in_the_same_way() {
    static BEGAN: AtomicUsize = AtomicUsize::new(0);
    let stop = Arc::new(AtomicBool::new(true));
    let share = |_| {
        let work = Counter {
            stop: stop.clone(),
            ..Counter::default()
        };
        let cfgs = NicThreadCfgs {
            begin: Some(|| {
                BEGAN.fetch_add(1, Ordering::SeqCst);
            }),
            ..cfgs_of_a_sleeper()
        };
        let make: MakeWork = Box::new(move |_| Box::new(work));
        (cfgs, make)
    };
    let plan = CrewPlan {
        nic_of: vec![0, 0, 0],
        thread_of: vec![0, 1, 0],
    };
    let (_, threads) = make_crew([0; 3].map(share).into(), &plan).expect("sound");
    let threads = start(threads).expect("started");
    for thread in threads {
        thread.join().expect("well");
    }
    assert_eq!(BEGAN.load(Ordering::SeqCst), 2, "once a thread");
}
