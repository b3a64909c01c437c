//! How much is in flight where that goes by what the way and the engines need.

use std::{
    collections::VecDeque,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{rig::*, *};
use crate::serve::{Arrival, Finished, Sent, Service, respond_all};

/// Slots of a connection.
const SLOTS: usize = 4096;

/// How many of them are in use at the least: those of the rig have 4 KiB.
fn least() -> u64 {
    let cache = crate::os::core_cache_bytes();
    allowance::least(SLOTS, 4096, Some(1), cache) as u64
}

/// Connections that are not lost however slow this machine is, and large samples alone.
fn patient(connections: usize, service: Arc<dyn Service>) -> Bench {
    let wait = Wait {
        echo: Wait::asleep().echo,
        ..Wait::default()
    };
    let policy = Policy::default();
    Bench::with(connections, SLOTS, service, false, 0, policy, wait)
}

/// Connections to an engine that answers nothing, with more to do than they have slots for.
fn stuck(connections: usize) -> Bench {
    let b = patient(connections, Arc::new(Hoard::default()));
    (0..connections).for_each(|i| {
        b.connect(i, 1, &Over::Memory);
    });
    b.wait_up(connections);
    b.dispatcher.in_flight_by_need(&vec![true; connections]);
    b
}

fn issue(b: &Bench, n: u64) {
    let samples: Vec<_> = (0..n).map(|id| b.sample(id)).collect();
    b.dispatcher.issue(&samples);
}

/// So many were posted, and no more.
fn posts(b: &Bench, n: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    while b.dispatcher.counts().posted < n {
        assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(20));
    assert_eq!(b.dispatcher.counts().posted, n);
}

fn allowed(b: &Bench) -> Vec<u64> {
    let records = b.dispatcher.connection_records();
    records.iter().map(|c| c.allowed).collect()
}

#[test]
fn an_engine_has_some_batches_and_one_that_does_not_say_all_slots() {
    let b = stuck(1);
    b.dispatcher.engine_works_on(0, 1);
    issue(&b, 5000);
    posts(&b, least());
    // Three times what it works on.
    b.dispatcher.engine_works_on(0, 300);
    posts(&b, 900);
    assert_eq!(allowed(&b), [900]);
    b.dispatcher.engine_works_on(0, 0);
    posts(&b, SLOTS as u64);
    b.dispatcher.abort("the test is over");
}

#[test]
fn what_a_lost_connection_had_the_others_have() {
    let b = stuck(2);
    b.dispatcher.engine_works_on(0, 400);
    issue(&b, 5000);
    posts(&b, 1200);
    assert_eq!(allowed(&b), [600, 600]);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    b.wait_events(1);
    let end = Instant::now() + Duration::from_secs(20);
    while allowed(&b)[1] != 1200 {
        assert!(Instant::now() < end, "{:?}", allowed(&b));
        thread::yield_now();
    }
    b.dispatcher.abort("the test is over");
}

#[test]
fn slots_that_somebody_has_set_are_all_in_use() {
    let b = patient(2, Arc::new(Hoard::default()));
    (0..2).for_each(|i| {
        b.connect(i, 1, &Over::Memory);
    });
    b.wait_up(2);
    b.dispatcher.in_flight_by_need(&[false, true]);
    b.dispatcher.engine_works_on(0, 1);
    assert_eq!(allowed(&b), [SLOTS as u64, least()]);
    b.dispatcher.abort("the test is over");
}

/// Answers each sample so long after it came, however many there are.
struct Late(mpsc::Sender<(Instant, Arrival)>);

impl Late {
    const AFTER: Duration = Duration::from_millis(50);

    fn start() -> Self {
        let (tell, told) = mpsc::channel::<(Instant, Arrival)>();
        thread::spawn(move || {
            let mut due: VecDeque<_> = VecDeque::new();
            while let Ok(first) = told.recv() {
                due.push_back(first);
                while let Some((at, _)) = due.front() {
                    let left = at.saturating_duration_since(Instant::now());
                    if let Ok(next) = told.recv_timeout(left) {
                        due.push_back(next);
                        continue;
                    }
                    let now = Instant::now();
                    let n = due.partition_point(|(at, _)| *at <= now);
                    let finished = due.drain(..n).map(|(_, mut a)| {
                        a.output()[..8].fill(0);
                        let f = Finished {
                            ticket: a.ticket(),
                            len: 8,
                            queue_us: 1,
                            compute_us: 2,
                            sent: Sent::default(),
                        };
                        (a, f)
                    });
                    respond_all(finished, &mut Vec::new());
                }
            }
        });
        Late(tell)
    }
}

impl Service for Late {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let at = Instant::now() + Late::AFTER;
        for a in arrivals.drain(..) {
            let _ = self.0.send((at, a));
        }
    }
}

#[test]
fn more_is_in_flight_where_the_way_is_long() {
    let b = patient(1, Arc::new(Late::start()));
    b.connect(0, 1, &Over::Memory);
    b.wait_up(1);
    b.dispatcher.in_flight_by_need(&[true]);
    b.dispatcher.engine_works_on(0, 1);
    let end = Instant::now() + Duration::from_secs(60);
    let mut id = 0;
    // Twice in flight are twice as many a second: it has to find that out.
    while allowed(&b)[0] < 2 * 512 {
        assert!(Instant::now() < end, "{:?}", b.dispatcher.counts());
        if b.dispatcher.outstanding() < 3 * SLOTS as u64 {
            let samples: Vec<_> = (id..id + SLOTS as u64).map(|i| b.sample(i)).collect();
            b.dispatcher.issue(&samples);
            id += SLOTS as u64;
        }
        thread::sleep(Duration::from_millis(1));
    }
    b.dispatcher.abort("the test is over");
}
