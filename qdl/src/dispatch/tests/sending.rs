//! What whoever posts finds out about a link while the rail thread sleeps: that it failed, that it is full. The rail thread
//! has no tick to come to the rescue here.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{rig::*, *};
use crate::{
    fabric::{FabricCounts, Flushed, Post, PostError, Tx},
    testkit::memory,
};

/// Rail threads that sleep at once, and nothing that wakes them by and by.
fn asleep(lanes: usize) -> Bench {
    let policy = Policy::default();
    Bench::with(
        lanes,
        8,
        Arc::new(Digest),
        false,
        1 << 20,
        policy,
        Wait::asleep(),
    )
}

/// A sending half whose flushes are tampered with.
struct Tampered<F> {
    inner: Box<dyn Tx>,
    flush: F,
}

impl<F: FnMut(&mut dyn Tx) -> Result<Flushed, Broken> + Send> Tx for Tampered<F> {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.inner.post(post)
    }
    fn flush(&mut self) -> Result<Flushed, Broken> {
        (self.flush)(&mut *self.inner)
    }
    fn room(&self) -> usize {
        self.inner.room()
    }
    fn posted(&self) -> u64 {
        self.inner.posted()
    }
    fn retired(&self) -> u64 {
        self.inner.retired()
    }
    fn inline_limit(&self) -> usize {
        self.inner.inline_limit()
    }
    fn counts(&self) -> FabricCounts {
        self.inner.counts()
    }
}

impl<F> std::fmt::Debug for Tampered<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tampered")
    }
}

/// Joins both ends of lane 0, of which this end flushes like this.
fn connect(
    b: &Bench,
    flush: impl FnMut(&mut dyn Tx) -> Result<Flushed, Broken> + Send + 'static,
) -> memory::MemoryFaults {
    let serve = b.serve_lane(0, 1);
    let (near, far, faults) =
        memory::pair(b.dispatcher.endpoint(0), serve.endpoint(64)).expect("joined");
    b.server.attach(0, serve, far);
    let tx = Box::new(Tampered {
        inner: near.tx,
        flush,
    });
    let rx = near.rx;
    b.dispatcher.attach(0, 1, Link { tx, rx });
    faults
}

#[test]
fn a_link_that_fails_whoever_posts_is_lost_though_nothing_comes_over_it() {
    let b = asleep(2);
    let failed = || Broken::Device("its port is down".to_owned());
    let _faults = connect(&b, move |_| Err(failed()));
    b.wait_up(1);
    b.dispatcher.issue(&[b.sample(0)]);
    b.wait_events(1);
    {
        let events = b.book.events.lock().expect("alive");
        let DispatchEvent::LaneLost { cause, again, .. } = &events[0] else {
            panic!("{events:?}")
        };
        assert_eq!((cause, *again), (&failed(), 1));
    }
    b.connect(1, 1, &Over::Memory);
    assert!(
        b.dispatcher.drain(Duration::from_secs(10)),
        "{:?}",
        b.dispatcher.counts()
    );
    b.check(1);
}

#[test]
fn room_that_comes_while_a_flush_ends_is_not_overlooked() {
    let b = asleep(1);
    let rail = b.dispatcher.handles[0].clone();
    let mut first = true;
    let _faults = connect(&b, move |inner| {
        if !std::mem::take(&mut first) {
            return inner.flush();
        }
        // There was no room. Before that is said, room comes, and wakes the rail thread, which looks and sleeps again.
        let sleeps = rail.sleeps();
        rail.wake();
        let end = Instant::now() + Duration::from_secs(10);
        while rail.sleeps() == sleeps && Instant::now() < end {
            std::thread::yield_now();
        }
        Ok(Flushed::Blocked)
    });
    b.wait_up(1);
    // Until it has gone to sleep for good.
    std::thread::sleep(Duration::from_millis(50));
    b.dispatcher.issue(&[b.sample(0)]);
    assert!(
        b.dispatcher.drain(Duration::from_secs(10)),
        "{:?}",
        b.dispatcher.counts()
    );
    b.check(1);
}
