//! A connection attaches while a second one of its rail carries samples, and delays none of them.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use super::{rig::*, *};
use crate::serve::{Arrival, Service};

/// Registers the memory of the first connection at once, of later ones after `go`.
#[derive(Default)]
struct Slow {
    registered: Mutex<(usize, bool)>,
    go: Condvar,
}

impl Slow {
    fn go(&self) {
        self.registered.lock().expect("alive").1 = true;
        self.go.notify_all();
    }
}

impl Service for Slow {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        Digest.arrived(arrivals);
    }
    fn memory(&self, _: &Arc<Region>) {
        let mut r = self.registered.lock().expect("alive");
        r.0 += 1;
        if r.0 > 1 {
            let patience = Duration::from_secs(30);
            drop(self.go.wait_timeout_while(r, patience, |r| !r.1));
        }
    }
}

#[test]
fn samples_of_a_rail_do_not_wait_for_the_slots_of_its_next_connection() {
    let slow = Arc::new(Slow::default());
    let b = Bench::new(RigCfgs::new(3, 8), slow.clone());
    b.connect(0, 1, Over::Memory);
    b.wait_up(1);
    // Connections 0 and 2 share a rail. The peer may write to connection 2 at once; it answers once
    // its memory is registered.
    let (serve, _near, far, _faults) = b.halves(2);
    b.server.attach(0, serve, far);
    b.issue(0..100);
    let carried = b.dispatcher.drain(Duration::from_secs(10));
    // The connection is given up before it is ready, and its loss is reported once it is ready.
    b.server.give_up(|c| c.connection == 2, &Broken::Closed);
    slow.go();
    assert!(carried, "{:?}", b.dispatcher.counts());
    let lost = b.next_lost();
    assert_eq!((lost.connection, lost.cause), (2, Broken::Closed));
    b.check(100);
}
