//! A frontend that breaks the protocol harms only itself.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{rig::*, tampered::*, *};
use crate::serve::{Arrival, Service};
use fabric::{Flushed, Imm, Post, SourceId, Tx};

#[derive(Default)]
struct Counted(AtomicU64);

impl Service for Counted {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let n = arrivals.len() as u64;
        Digest.arrived(arrivals);
        self.0.fetch_add(n, Ordering::SeqCst);
    }
}

/// Has no room for any response at first.
struct NoRoom;

impl Tamper for NoRoom {
    fn room(&self, _: &dyn Tx) -> usize {
        0
    }
    fn flush(&mut self, _: &mut dyn Tx) -> Result<Flushed, Broken> {
        Ok(Flushed::Blocked)
    }
}

#[test]
fn a_slot_that_is_written_again_before_its_response_was_posted_breaks_the_connection() {
    let counted = Arc::new(Counted::default());
    let b = Bench::new(RigCfgs::new(1, 8), counted.clone());
    let (serve, mut near, far, _faults) = b.halves(0);
    b.server.attach(0, serve, tampered(far, NoRoom));
    let mut write = |use_count| {
        let post = Post {
            source: SourceId(0),
            offset: 0,
            len: 16,
            at: 0,
            imm: Imm::new(3, use_count),
        };
        near.tx.post(&post).expect("room");
        near.tx.flush().expect("alive");
    };
    write(1);
    eventually("nothing arrived", || counted.0.load(Ordering::SeqCst) != 0);
    // The engine has given the slot's output back, and it waits to be sent. An engine that got it
    // again would write into it.
    write(2);
    let lost = b.next_lost();
    assert!(matches!(lost.cause, Broken::Grant(_)), "{:?}", lost.cause);
    assert_eq!(counted.0.load(Ordering::SeqCst), 1);
}
