//! A posting thread finds a link failed or full while the NIC thread sleeps; no tick wakes it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{rig::*, tampered::*, *};
use crate::response::ResponseHeader;
use fabric::{Flushed, Grants, Post, PostError, SourceId, Tx, Window, testkit::memory};

/// A bench whose NIC threads sleep at once, without a tick.
fn asleep(connections: usize, policy: Policy) -> Bench {
    Bench::digests(
        RigCfgs::new(connections, 8)
            .policy(policy)
            .wait(Wait::asleep()),
    )
}

#[test]
fn a_link_that_fails_in_a_post_is_lost_without_an_event() {
    let b = asleep(2, Policy::default());
    let failed = || Broken::Device("its port is down".to_owned());
    let _faults = b.connect_tampered(0, move |_: &mut dyn Tx| Err(failed()));
    b.wait_up(1);
    b.dispatcher.issue(&[b.sample(0)]);
    b.wait_events(1);
    {
        let events = b.book.events.lock().expect("alive");
        let DispatchEvent::ConnectionLost { cause, again, .. } = &events[0] else {
            panic!("{events:?}")
        };
        assert_eq!((cause, *again), (&failed(), 1));
    }
    b.connect(1, 1, Over::Memory);
    b.drain();
    b.check(1);
}

/// Takes this many writes, then fails.
struct Tires(usize);

impl Tamper for Tires {
    fn post(&mut self, tx: &mut dyn Tx, post: &Post) -> Result<(), PostError> {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                tx.post(post)
            }
            None => Err(Broken::Device("its port is down".to_owned()).into()),
        }
    }
}

#[test]
fn samples_that_a_failing_link_refuses_go_by_another_nic_at_once() {
    let b = asleep(2, Policy::RoundRobin);
    let _faults = b.connect_tampered(0, Tires(0));
    b.connect(1, 1, Over::Memory);
    b.wait_up(2);
    // The issuing thread finds the failure; the second NIC's thread sleeps.
    b.dispatcher.issue(&[b.sample(0)]);
    b.drain();
    b.check(1);
    b.wait_events(1);
}

#[test]
fn samples_that_were_taken_when_their_link_failed_go_by_another() {
    let b = asleep(2, Policy::default());
    let _faults = b.connect_tampered(0, Tires(3));
    b.wait_up(1);
    // More than a burst: a NIC thread takes as many as there are slots.
    b.issue(0..70);
    b.wait_events(1);
    b.connect(1, 1, Over::Memory);
    b.drain();
    b.check(70);
}

#[test]
fn room_that_comes_while_a_flush_ends_is_not_overlooked() {
    let b = asleep(1, Policy::default());
    let nic_thread = b.dispatcher.handles[0].clone();
    let asked = Arc::new(Asked::default());
    let looks = asked.clone();
    let mut first = true;
    let flush = move |inner: &mut dyn Tx| {
        if !std::mem::take(&mut first) {
            return inner.flush();
        }
        // The link was full. Before the flush returns, room comes and wakes the NIC thread, which
        // polls and arms twice: a whole turn lies between the two.
        let before = looks.armed.load(Ordering::SeqCst);
        let end = Instant::now() + Duration::from_secs(10);
        while looks.armed.load(Ordering::SeqCst) < before + 2 && Instant::now() < end {
            nic_thread.wake();
            std::thread::yield_now();
        }
        Ok(Flushed::Blocked)
    };
    let _faults = b.connect_noting(0, flush, &asked);
    b.wait_up(1);
    b.dispatcher.issue(&[b.sample(0)]);
    b.drain();
    b.check(1);
}

/// A failed link whose peer answers a granted slot although it received no request.
struct Early {
    peer: Link,
    book: Arc<Book>,
}

impl Tamper for Early {
    fn post(&mut self, _: &mut dyn Tx, post: &Post) -> Result<(), PostError> {
        let answer = Post {
            source: SourceId(0),
            offset: 0,
            len: RESPONSE as u32,
            at: 0,
            imm: post.imm,
        };
        self.peer.tx.post(&answer)?;
        self.peer.tx.flush()?;
        eventually("the answer was not taken", || {
            !self.book.answers.lock().expect("alive").is_empty()
        });
        Err(Broken::Device("its port is down".to_owned()).into())
    }
}

#[test]
fn a_sample_that_is_answered_while_its_post_fails_is_completed_once() {
    let b = Bench::of(2, 8);
    let region = Arc::new(Region::new(RESPONSE).expect("memory"));
    let header = ResponseHeader {
        len: 8,
        use_count: 1,
        refusal: None,
        queue_us: 1,
        compute_us: 2,
    };
    // SAFETY: only this test knows the region.
    let bytes = unsafe { region.bytes_mut(0, RESPONSE) }.expect("in");
    bytes[..16].copy_from_slice(&header.encode());
    let slots = Arc::new(Region::new(8 * 4096).expect("memory"));
    let far = Endpoint {
        window: Window::new(slots, 0, 4096, Arc::new(Grants::new(8))).expect("fits"),
        sources: vec![region],
        peer_slots: 8,
        peer_stride: RESPONSE,
        peer_stream: fabric::wire::Stream::None,
        send_depth: 64,
    };
    let (near, peer, _faults) = memory::pair(b.dispatcher.endpoint(0), far).expect("joined");
    let book = b.book.clone();
    b.dispatcher
        .attach(0, 1, tampered(near, Early { peer, book }));
    b.wait_up(1);
    b.dispatcher.issue(&[b.sample(0)]);
    b.connect(1, 1, Over::Memory);
    // A second sample, answered by the sound connection after the first, if that was posted there.
    b.dispatcher.issue(&[b.sample(1)]);
    b.drain();
    let answers = b.book.answers.lock().expect("alive");
    assert_eq!(answers.get(&0).map(|a| a.0), Some(1), "completed so often");
    assert_eq!(b.dispatcher.counts().completed, 2);
}
