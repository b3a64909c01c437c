//! A closing connection says goodbye while its neighbours on the same NIC go on.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use super::{rig::*, tampered::*, *};
use fabric::Tx;

/// Delays its goodbye until the test permits it.
#[derive(Clone, Default)]
struct Lingers {
    began: Arc<AtomicBool>,
    enough: Arc<AtomicBool>,
}

impl Lingers {
    fn wait_begun(&self) {
        eventually("it never said goodbye", || {
            self.began.load(Ordering::SeqCst)
        });
    }
}

impl Tamper for Lingers {
    fn finish(&mut self, _: &mut dyn Tx) -> bool {
        self.began.store(true, Ordering::SeqCst);
        self.enough.load(Ordering::SeqCst)
    }
}

/// Whether connection 2 carries samples while connection 0, of the same NIC, says goodbye.
fn neighbours_go_on(b: &Bench, lingers: &Lingers) {
    lingers.wait_begun();
    b.issue(0..100);
    let end = Instant::now() + Duration::from_secs(5);
    while b.dispatcher.outstanding() > 0 && Instant::now() < end {
        std::thread::yield_now();
    }
    let waiting = b.dispatcher.outstanding();
    let events = b.book.events.lock().expect("alive").len();
    lingers.enough.store(true, Ordering::SeqCst);
    assert_eq!(
        waiting, 0,
        "samples waited for another connection's goodbye"
    );
    assert_eq!(events, 0, "lost before its local side was destroyed");
    b.check(100);
}

#[test]
fn a_frontends_goodbye_holds_up_no_other_connection() {
    let b = Bench::of(3, 8);
    let lingers = Lingers::default();
    let _faults = b.connect_tampered(0, lingers.clone());
    b.connect(2, 1, Over::Memory);
    b.wait_up(2);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    neighbours_go_on(&b, &lingers);
    b.wait_events(1);
}

#[test]
fn an_accelerators_goodbye_holds_up_no_other_connection() {
    let b = Bench::of(3, 8);
    let lingers = Lingers::default();
    // No frontend drives connection 0; only its neighbour carries samples.
    let (serve, _near, far, _faults) = b.halves(0);
    b.server.attach(0, serve, tampered(far, lingers.clone()));
    b.connect(2, 1, Over::Memory);
    b.wait_up(1);
    b.server.give_up(|c| c.connection == 0, &Broken::Closed);
    neighbours_go_on(&b, &lingers);
    let lost = b.next_lost();
    assert_eq!((lost.connection, lost.cause), (0, Broken::Closed));
}
