//! Two joined ends, and the time limits of the cases.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::Fabric;
use fabric::wire::Stream;
use fabric::{
    Broken, Endpoint, Event, Flushed, Grants, Imm, Link, Post, PostError, Region, SourceId, Window,
};

/// One end under test: its link, its window and its source region.
pub(super) struct LinkEnd {
    pub(super) link: Link,
    pub(super) window: Window,
    pub(super) source: Arc<Region>,
    patience: Duration,
}

/// Size of an end's window, and the size that its sender believes the peer's window to have.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) slots: usize,
    pub(super) stride: usize,
    pub(super) claimed_slots: usize,
    pub(super) claimed_stride: usize,
    pub(super) send_depth: usize,
    /// Parts in which slots may be written.
    pub(super) stream: Stream,
    /// Slots take requests that begin with options.
    pub(super) options: bool,
}

impl Shape {
    pub(super) fn honest(slots: usize, stride: usize) -> Self {
        Shape {
            slots,
            stride,
            claimed_slots: slots,
            claimed_stride: stride,
            send_depth: 64,
            stream: Stream::None,
            options: false,
        }
    }

    /// Makes an honest shape whose slots may be written in parts.
    pub(super) fn in_parts(slots: usize, stride: usize) -> Self {
        Shape {
            stream: Stream::All,
            ..Shape::honest(slots, stride)
        }
    }
}

pub(super) const GUARD: u8 = 0xee;

fn endpoint(shape: Shape) -> Endpoint {
    // 4,096 guard bytes on both sides of the slots reveal a stray write.
    let bytes = shape.slots * shape.stride;
    let region = Arc::new(Region::new(bytes + 8192).expect("memory"));
    // SAFETY: only this function knows the region.
    unsafe { region.bytes_mut(0, bytes + 8192) }
        .expect("in bounds")
        .fill(GUARD);
    let source_len = (shape.claimed_slots * shape.claimed_stride).max(4096);
    let grants = Arc::new(Grants::new(shape.slots));
    let window = Window::new(region, 4096, shape.stride, grants).expect("fits");
    Endpoint {
        window: window.in_parts(shape.stream).with_options(shape.options),
        sources: vec![Arc::new(Region::new(source_len).expect("memory"))],
        peer_slots: shape.claimed_slots,
        peer_stride: shape.claimed_stride,
        peer_stream: shape.stream,
        send_depth: shape.send_depth,
    }
}

pub(super) fn join(fabric: &dyn Fabric, shape: Shape) -> (LinkEnd, LinkEnd) {
    let (a, b) = (endpoint(shape), endpoint(shape));
    let end = |e: &Endpoint, link| LinkEnd {
        link,
        window: e.window.clone(),
        source: e.sources[0].clone(),
        patience: fabric.patience(),
    };
    let (la, lb) = fabric.pair(a.clone(), b.clone());
    (end(&a, la), end(&b, lb))
}

/// Joins two endpoints; all grants of the second are open.
pub(super) fn granted(fabric: &dyn Fabric, shape: Shape) -> (LinkEnd, LinkEnd) {
    let (a, b) = join(fabric, shape);
    b.grant_all();
    (a, b)
}

impl LinkEnd {
    pub(super) fn grant_all(&self) {
        for slot in 0..self.window.slots() as u16 {
            self.window.grants().open(slot).expect("closed");
        }
    }

    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: each case fills bytes before it posts them or after they have retired, so no send
        // reads them now.
        unsafe { self.source.bytes_mut(offset, bytes.len()) }
            .expect("in bounds")
            .copy_from_slice(bytes);
    }

    pub(super) fn slot(&self, slot: u16, len: usize) -> Vec<u8> {
        let offset = self.window.slot_offset(slot);
        // SAFETY: the slot has arrived or the connection broke, so no thread writes the bytes.
        unsafe { self.window.region().bytes(offset, len) }
            .expect("in bounds")
            .to_vec()
    }

    pub(super) fn untouched(&self) -> bool {
        let r = self.window.region();
        // SAFETY: as in `slot`.
        let all = unsafe { r.bytes(0, r.len()) }.expect("in bounds");
        all.iter().all(|b| *b == GUARD)
    }

    pub(super) fn guards_untouched(&self) -> bool {
        let r = self.window.region();
        // SAFETY: the guards lie outside the window, so no honest write touches them.
        let (before, after) = unsafe { (r.bytes(0, 4096), r.bytes(r.len() - 4096, 4096)) };
        before.expect("in bounds").iter().all(|b| *b == GUARD)
            && after.expect("in bounds").iter().all(|b| *b == GUARD)
    }

    pub(super) fn post(&mut self, offset: usize, len: usize, imm: Imm) -> Result<(), PostError> {
        self.post_at(offset, len, 0, imm)
    }

    pub(super) fn post_at(
        &mut self,
        offset: usize,
        len: usize,
        at: usize,
        imm: Imm,
    ) -> Result<(), PostError> {
        self.link.tx.post(&Post {
            source: SourceId(0),
            offset,
            len: len as u32,
            at: at as u32,
            imm,
        })
    }

    pub(super) fn send_at(&mut self, offset: usize, len: usize, at: usize, imm: Imm) {
        self.post_at(offset, len, at, imm).expect("posted");
        self.flush();
    }

    pub(super) fn send(&mut self, offset: usize, len: usize, imm: Imm) {
        self.post(offset, len, imm).expect("posted");
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        let end = Instant::now() + self.patience;
        while self.link.tx.flush().expect("flushed") == Flushed::Blocked {
            assert!(Instant::now() < end, "blocked for ever");
            thread::yield_now();
        }
    }

    /// Polls until an event comes; panics after the time limit.
    pub(super) fn next(&mut self) -> Event {
        let end = Instant::now() + self.patience;
        loop {
            let mut got = None;
            self.link.rx.poll(1, &mut |e| got = Some(e));
            if let Some(e) = got {
                return e;
            }
            assert!(Instant::now() < end, "nothing came");
            thread::yield_now();
        }
    }

    pub(super) fn next_broken(&mut self) -> Broken {
        match self.next() {
            Event::Broken(b) => b,
            other => panic!("expected a broken connection, got {other:?}"),
        }
    }
}

/// Detects a stuck case: the time limit restarts at each step.
pub(super) struct Progress {
    patience: Duration,
    at: usize,
    end: Instant,
}

impl Progress {
    pub(super) fn new(patience: Duration) -> Self {
        Progress {
            patience,
            at: 0,
            end: Instant::now() + patience,
        }
    }

    /// False once `at` has not changed for the whole time limit.
    pub(super) fn goes_on(&mut self, at: usize) -> bool {
        let now = Instant::now();
        if at != self.at {
            (self.at, self.end) = (at, now + self.patience);
        }
        now < self.end
    }
}

pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed * 31 + i * 7 + i / 251) as u8)
        .collect()
}
