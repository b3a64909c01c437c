//! A dispatcher whose NIC threads the test turns, and accelerators that the test plays. Nothing
//! waits: after [`Front::turn`] each thread sleeps, and all consequences have happened.

use std::{cell::RefCell, mem, ops::Range, sync::Arc, thread};

use super::{rig::*, *};
use crate::{
    connection::nic_thread::by_hand::{HandTurned, Step},
    response::{RESPONSE_HEADER_BYTES, Refusal, ResponseHeader, ResponseTrailer},
    testkit::rig::source,
};
use fabric::{
    Event, Grants, Imm, Post, SourceId, Window,
    testkit::{memory, memory::MemoryFaults},
};

/// A dispatcher without threads of its own.
pub struct Front {
    pub dispatcher: Dispatcher,
    pub book: Book,
    /// The memory of all samples.
    pub source: Arc<Region>,
    threads: RefCell<Vec<HandTurned>>,
    cfgs: RigCfgs,
}

/// The far end of a connection.
pub struct Far {
    link: Link,
    requests: Arc<Region>,
    source: Arc<Region>,
    grants: Arc<Grants>,
    /// Bytes of a response slot.
    stride: usize,
    /// Per slot: bytes written.
    at: Vec<usize>,
    faults: MemoryFaults,
}

impl Front {
    /// A dispatcher whose NIC threads sleep as soon as they have nothing to do.
    pub fn new(cfgs: RigCfgs) -> Self {
        Front::with(cfgs, Book::keeper)
    }

    /// As [`Front::new`], with these completers.
    pub fn with(cfgs: RigCfgs, completer: impl Fn(&Book) -> Box<dyn Completer>) -> Self {
        let cfgs = cfgs.wait(Wait::asleep());
        let book = Book::default();
        let nics = cfgs.nics(|| completer(&book));
        let owner = Arc::new(book.clone());
        let source = source();
        let made = Dispatcher::assemble(cfgs.dispatch(&source), nics, owner);
        let (dispatcher, threads) = made.expect("made");
        if let Some(arbiter) = cfgs.arbiter() {
            dispatcher.choose_by_health(arbiter, 1_000_000, Box::new(|_| None));
        }
        Front {
            dispatcher,
            book,
            source,
            threads: RefCell::new(threads.into_iter().map(HandTurned::new).collect()),
            cfgs,
        }
    }

    /// Turns each thread once. Returns whether one has more to do.
    pub fn turn_once(&self) -> bool {
        let mut threads = self.threads.borrow_mut();
        let mut more = false;
        for thread in threads.iter_mut() {
            thread.wake(true, &[]);
            more |= match thread.turn(&mut |_| {}) {
                Step::Turn => true,
                Step::Arm => thread.arm().is_none(),
                Step::End => false,
            };
        }
        more || threads.iter().any(HandTurned::is_woken)
    }

    /// Turns the threads until all sleep. Returns the reports since the last call.
    pub fn turn(&self) -> Reports {
        while self.turn_once() {}
        mem::take(&mut self.book.lock())
    }

    /// Wakes the threads, which do not turn.
    pub fn rouse(&self) {
        let mut threads = self.threads.borrow_mut();
        threads.iter_mut().for_each(|t| t.wake(true, &[]));
    }

    pub fn sample(&self, id: u64) -> Sample {
        self.cfgs.sample(id)
    }

    /// Issues samples in one call.
    pub fn issue(&self, ids: Range<u64>) {
        let samples: Vec<_> = ids.map(|id| self.sample(id)).collect();
        self.dispatcher.issue(&samples);
    }

    /// Joins the epoch of a connection to an accelerator, with all slots granted.
    pub fn connect(&self, connection: usize, epoch: u32) -> Far {
        let (far, link) = self.far(connection);
        self.dispatcher.attach(connection, epoch, link);
        while self.turn_once() {}
        far
    }

    /// The far end of a connection, with all slots granted, and the link to attach.
    pub fn far(&self, connection: usize) -> (Far, Link) {
        Far::joined(self.dispatcher.endpoint(connection), &self.cfgs)
    }

    /// Joins the first epoch of each connection.
    pub fn connect_all(&self) -> Vec<Far> {
        let all = 0..self.cfgs.connections;
        all.map(|c| self.connect(c, 1)).collect()
    }

    /// Turns the threads until a second thread's call of the dispatcher has returned; `play` plays
    /// the accelerators.
    pub fn while_calling<T: Send>(
        &self,
        call: impl FnOnce(&Dispatcher) -> T + Send,
        mut play: impl FnMut(),
    ) -> T {
        let dispatcher = &self.dispatcher;
        thread::scope(|scope| {
            let called = scope.spawn(|| call(dispatcher));
            while !called.is_finished() {
                self.turn_once();
                play();
                thread::yield_now();
            }
            called.join().expect("returns")
        })
    }

    /// Posted samples, those left to NIC threads, those without a slot, and most of them at once.
    pub fn posts(&self) -> (u64, u64, u64, u64) {
        let (posted, q) = (self.dispatcher.counts().posted, self.dispatcher.queued());
        (posted, q.handed_over, q.backlogged, q.backlog_max)
    }

    /// Posted samples of each connection.
    pub fn posted(&self) -> Vec<u64> {
        let records = self.dispatcher.connection_records();
        records.iter().map(|c| c.posted).collect()
    }
}

impl Far {
    fn joined(near: Endpoint, cfgs: &RigCfgs) -> (Self, Link) {
        let (slots, stride) = (cfgs.slots, cfgs.response);
        let region = |bytes| Arc::new(Region::new(bytes).expect("memory"));
        let grants = Arc::new(Grants::new(slots));
        (0..slots as u16).for_each(|s| _ = grants.open(s));
        let source = region(slots * stride);
        let requests = region(slots * cfgs.request);
        let window = Window::new(requests.clone(), 0, cfgs.request, grants.clone());
        let far = Endpoint {
            window: window.expect("fits").with_options(true),
            sources: vec![source.clone()],
            peer_slots: slots,
            peer_stride: stride,
            peer_stream: cfgs.stream,
            send_depth: 64,
        };
        let (near, link, faults) = memory::pair(near, far).expect("joined");
        let far = Far {
            link,
            requests,
            source,
            grants,
            stride,
            at: vec![0; slots],
            faults,
        };
        (far, near)
    }

    /// Requests that have come since the last call.
    pub fn requests(&mut self) -> Vec<Imm> {
        let mut all = Vec::new();
        self.link.rx.poll(usize::MAX, &mut |event| match event {
            Event::Arrived { imm, .. } => all.push(imm),
            other => panic!("{other:?}"),
        });
        all.iter().for_each(|i| self.at[usize::from(i.slot())] = 0);
        all
    }

    /// The only request that has come since the last call.
    #[track_caller]
    pub fn request(&mut self) -> Imm {
        let all = self.requests();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    /// Answers all requests that have come with two tokens.
    pub fn answer_all(&mut self) {
        for imm in self.requests() {
            self.whole(imm, &[1, 2]);
        }
    }

    /// The first bytes of a request that has not been answered.
    pub fn request_bytes(&self, imm: Imm, len: usize) -> &[u8] {
        let offset = usize::from(imm.slot()) * (self.requests.len() / self.at.len());
        // SAFETY: the dispatcher does not write the slot before its answer.
        unsafe { self.requests.bytes(offset, len) }.expect("inside")
    }

    /// Cuts the connection.
    pub fn cut(&self) {
        self.faults.cut();
    }

    /// Posts the next bytes of a slot; they leave with the next flush.
    pub fn post(&mut self, imm: Imm, bytes: &[u8]) {
        let slot = usize::from(imm.slot());
        let at = self.at[slot];
        let offset = slot * self.stride + at;
        // SAFETY: no write in flight covers these bytes.
        unsafe { self.source.store(offset, bytes) }.expect("inside");
        let post = Post {
            source: SourceId(0),
            offset,
            len: bytes.len() as u32,
            at: at as u32,
            imm,
        };
        self.link.tx.post(&post).expect("room");
        self.at[slot] += bytes.len();
        if !imm.more() {
            self.grants.open(imm.slot());
        }
    }

    pub fn flush(&mut self) {
        self.link.tx.flush().expect("alive");
    }

    pub fn header(imm: Imm, tokens: &[u32]) -> Vec<u8> {
        let header = ResponseHeader {
            len: 4 * tokens.len() as u32,
            use_count: imm.use_count(),
            refusal: None,
            queue_us: 1,
            compute_us: 2,
        };
        [&header.encode()[..], &Self::bytes(tokens)].concat()
    }

    fn bytes(tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
    }

    /// Answers in one piece, and flushes.
    pub fn whole(&mut self, imm: Imm, tokens: &[u32]) {
        self.post(imm, &Self::header(imm, tokens));
        self.flush();
    }

    pub fn first(&mut self, imm: Imm, tokens: &[u32]) {
        self.post(imm.with_more(), &Self::header(imm, tokens));
    }

    pub fn more(&mut self, imm: Imm, tokens: &[u32]) {
        self.post(imm.with_more(), &Self::bytes(tokens));
    }

    /// The last of so many parts, and flushes.
    pub fn last(&mut self, imm: Imm, tokens: &[u32], parts: u32) {
        self.end(imm, &Self::bytes(tokens), parts, None);
    }

    fn end(&mut self, imm: Imm, bytes: &[u8], parts: u32, refusal: Option<Refusal>) {
        let before = self.at[usize::from(imm.slot())] - RESPONSE_HEADER_BYTES;
        let trailer = ResponseTrailer {
            len: (before + bytes.len()) as u32,
            parts,
            refusal,
            compute_us: 9,
            mean_us: 6,
        };
        self.post(imm, &[bytes, &trailer.encode()].concat());
        self.flush();
    }

    /// Refuses a sample, and flushes.
    pub fn refuse(&mut self, imm: Imm, refusal: Refusal, why: &str) {
        let header = ResponseHeader {
            len: why.len() as u32,
            use_count: imm.use_count(),
            refusal: Some(refusal),
            queue_us: 0,
            compute_us: 0,
        };
        self.post(imm, &[&header.encode()[..], why.as_bytes()].concat());
        self.flush();
    }

    /// Refuses the rest of an answer in so many parts, and flushes.
    pub fn refuse_rest(&mut self, imm: Imm, why: &str, parts: u32) {
        self.end(imm, why.as_bytes(), parts, Some(Refusal::Whole));
    }
}
