//! One connection as the frontend sees it over the whole run: its slots, its tracker, its sending
//! half, and what it counts.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use super::{Shared, WARM_UP_ID};
use crate::{
    clock::now_ns,
    connection::{
        BUDGET, DoorbellWait, Next, Outgoing, SendCounts, SendHalf,
        tracker::{Reserved, Sample, Tracker},
    },
    fabric::{Endpoint, Grants, Imm, Post, PostError, Region, RegionError, SourceId, Tx, Window},
    flight::{self, Kind, Record},
    rails::Load,
    stats::{ConnectionRecord, timeline::ConnectionReading},
    wire::Stream,
};

/// Samples left to a connection in a row: enough to make a system call worth its while, few enough
/// that several connections share what comes evenly.
pub(super) const BURST: usize = 64;

/// Most samples that wait in a connection's own queue: more than come in while its NIC thread is
/// busy with a turn.
const LEFT: usize = 4 * BURST;

/// What a connection is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCfgs {
    /// Index of the accelerator it leads to.
    pub peer: usize,
    /// Index of the NIC thread that polls it.
    pub nic_index: usize,
    /// Slots at either end.
    pub slots: usize,
    /// Bytes from one response slot to the next, header included, and the trailer where answers
    /// come in parts.
    pub response_stride: usize,
    /// Bytes from one request slot to the next, at the peer.
    pub request_stride: usize,
}

/// What a connection's NIC thread shows some times a second: it alone writes.
#[derive(Debug, Default)]
pub(super) struct Now {
    pub samples: AtomicU64,
    pub bytes_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub retransmits: AtomicU64,
    pub window_limited_us: AtomicU64,
    /// One more than it is; 0 where the fabric does not say.
    pub rtt_us: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    pub index: usize,
    pub cfgs: ConnectionCfgs,
    /// Samples that were given to this connection and are not posted yet: under a policy by health
    /// each, at most as many as it has slots, else those that are left to its NIC thread.
    pub assigned: ArrayQueue<Sample>,
    /// It is chosen by health: it draws nothing from the backlog by itself.
    pub by_health: bool,
    pub tracker: Tracker,
    pub window: Window,
    pub send: SendHalf,
    pub up: CachePadded<AtomicBool>,
    /// Of links that are gone: what their receiving halves did.
    pub counts: Mutex<ConnectionRecord>,
    /// Samples posted, for the reconciliation; those that warmed it up included.
    pub posted: CachePadded<AtomicU64>,
    /// Answers to samples that warmed it up.
    pub warmed: AtomicU64,
    /// What its NIC thread shows of it while the run goes on.
    pub now: Now,
    /// Where samples are copied to that do not lie in registered memory.
    staging: Option<Arc<Region>>,
}

/// Source index of the connection's own staging region, after those of the caller.
fn staging_source(sources: usize) -> SourceId {
    SourceId(sources as u16)
}

impl Connection {
    pub fn new(
        index: usize,
        cfgs: ConnectionCfgs,
        nodes: &[u32],
        staged: bool,
        by_health: bool,
        doorbell_wait: DoorbellWait,
        stream: Stream,
    ) -> Result<Self, RegionError> {
        let grants = Arc::new(Grants::new(cfgs.slots));
        let map = |stride| Region::on_nodes(cfgs.slots * stride, nodes).map(Arc::new);
        let region = map(cfgs.response_stride)?;
        let staging = staged.then(|| map(cfgs.request_stride)).transpose()?;
        Ok(Connection {
            index,
            assigned: ArrayQueue::new(match by_health {
                true => cfgs.slots,
                false => cfgs.slots.min(LEFT),
            }),
            by_health,
            tracker: Tracker::new(grants.clone()),
            window: Window::new(region, 0, cfgs.response_stride, grants)?.in_parts(stream),
            // Answers that one poll brings make room for samples that leave with one doorbell.
            send: SendHalf::new(BUDGET, doorbell_wait),
            up: CachePadded::default(),
            counts: Mutex::default(),
            posted: CachePadded::default(),
            warmed: AtomicU64::new(0),
            now: Now::default(),
            staging,
            cfgs,
        })
    }

    /// What a link of this connection is made with.
    pub fn endpoint(&self, sources: &[Arc<Region>], send_depth: usize) -> Endpoint {
        let mut sources = sources.to_vec();
        sources.extend(self.staging.clone());
        Endpoint {
            window: self.window.clone(),
            sources,
            peer_slots: self.cfgs.slots,
            peer_stride: self.cfgs.request_stride,
            peer_stream: Stream::None,
            send_depth,
        }
    }

    pub fn load(&self) -> Load {
        Load {
            up: self.up.load(Ordering::Relaxed),
            in_flight: self.tracker.in_flight() + self.assigned(),
            slots: self.tracker.allowance(),
        }
    }

    /// Samples given to it and not posted yet.
    pub fn assigned(&self) -> usize {
        self.assigned.len()
    }

    /// Could it post a sample now?
    pub fn takes(&self) -> bool {
        self.up.load(Ordering::SeqCst) && self.tracker.has_free() && !self.send.is_blocked()
    }

    /// Puts the connection up with a fresh link.
    pub fn attach(&self, tx: Box<dyn Tx>) {
        self.window.grants().reset();
        self.send.attach(tx);
        self.up.store(true, Ordering::SeqCst);
    }

    /// Takes the connection down: afterwards nobody posts on it. True
    /// once it has said goodbye; until then it is to be called again.
    /// The receiving half is the caller's to drop before it sweeps.
    pub fn detach(&self) -> bool {
        self.up.store(false, Ordering::SeqCst);
        self.send.finish()
    }

    pub fn counts(&self) -> MutexGuard<'_, ConnectionRecord> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything it has counted so far.
    pub fn settled(&self) -> ConnectionRecord {
        let sent = self.send.counts();
        ConnectionRecord {
            tx: self.send.fabric_counts(),
            slots: self.cfgs.slots as u64,
            allowed: self.tracker.allowance() as u64,
            in_flight_max: sent.in_flight_max,
            blocked: sent.blocked,
            posted: self.posted_for_callers(),
            warmed: self.warmed.load(Ordering::Relaxed),
            ..self.counts().clone()
        }
    }

    /// What it is like now; counts may lag behind by some hundredths of a second.
    pub fn reading(&self) -> ConnectionReading {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        ConnectionReading {
            samples: read(&self.now.samples),
            bytes_out: read(&self.now.bytes_out),
            bytes_in: read(&self.now.bytes_in),
            retransmits: read(&self.now.retransmits),
            window_limited_us: read(&self.now.window_limited_us),
            rtt_us: read(&self.now.rtt_us).checked_sub(1),
            in_flight: self.tracker.in_flight() as u64,
            score: None,
        }
    }

    /// Samples of the caller's that were posted.
    pub fn posted_for_callers(&self) -> u64 {
        let warmed = self.warmed.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).saturating_sub(warmed)
    }

    /// Posts one sample by a slot that is reserved for it. Returns the bytes that had to be copied
    /// for it.
    fn post(
        &self,
        link: &mut dyn Tx,
        sources: usize,
        staged_from: Option<&Region>,
        (slot, sample): (u16, &Sample),
        now: u64,
    ) -> Result<usize, PostError> {
        let mut post = Post {
            source: sample.source,
            offset: sample.offset,
            len: sample.len,
            at: 0,
            imm: Imm::new(slot, 0),
        };
        let mut copied = 0;
        if let (Some(from), Some(to)) = (staged_from, &self.staging) {
            let offset = usize::from(slot) * self.cfgs.request_stride;
            let len = sample.len as usize;
            if len <= self.cfgs.request_stride {
                // SAFETY: the QSL does not change a loaded sample, and the staging slot belongs to
                // this slot's owner, who was reserved just now.
                let copy = unsafe { (from.bytes(sample.offset, len), to.bytes_mut(offset, len)) };
                if let (Ok(from), Ok(to)) = copy {
                    to.copy_from_slice(from);
                    copied = len;
                    post.source = staging_source(sources);
                    post.offset = offset;
                }
            }
        }
        let Some(imm) = self.tracker.begin(slot, sample, now) else {
            self.tracker.release(slot);
            return Err(PostError::Full);
        };
        post.imm = imm;
        flight::note(|| Record {
            at_ns: now,
            kind: Kind::Posted as u8,
            connection: self.index as u16,
            slot,
            count: sample.losses,
            size: sample.len,
            aux: sample.issued_ns,
        });
        link.post(&post).map(|()| copied).inspect_err(|_| {
            // It never left, so nobody can have answered it.
            if self.window.grants().revoke(slot) {
                self.tracker.release(slot);
            }
        })
    }
}

thread_local! {
    /// Where a thread puts samples of the backlog, while it posts them.
    static TAKEN: Cell<Vec<Sample>> = const { Cell::new(Vec::new()) };
}

/// Samples on their way to a connection: the caller's own first, then what was given to this
/// connection, and, but by health, the backlog.
pub(super) struct Requests<'a, D> {
    shared: &'a Shared,
    connection: &'a Connection,
    direct: D,
    /// When this burst began, or the first is to.
    now: u64,
    /// `now` is of a burst that is over.
    begun: bool,
    /// Slots for those that are to be expected of this burst.
    slots: Reserved,
    /// Writes of this burst.
    posted: usize,
    /// Samples of the backlog, of which those before `next` have been posted in this burst: they
    /// are not taken off its length yet.
    taken: Vec<Sample>,
    next: usize,
    /// So many were posted of others, which `taken` held before.
    before: u64,
}

impl<'a, D: ExactSizeIterator<Item = Sample>> Requests<'a, D> {
    /// The caller's own are `direct`, at `now`; 0 where nobody has looked at the clock.
    pub fn new(shared: &'a Shared, connection: &'a Connection, direct: D, now: u64) -> Self {
        Requests {
            shared,
            connection,
            direct,
            now,
            begun: false,
            slots: Reserved::default(),
            posted: 0,
            taken: Vec::new(),
            next: 0,
            before: 0,
        }
    }

    /// The next of those taken.
    fn of_taken(&mut self) -> Option<Sample> {
        let sample = self.taken.get(self.next).copied()?;
        self.next += 1;
        Some(sample)
    }

    /// The backlog's next, and those behind it, as many as are posted in this burst. Of those that
    /// were taken before none is left.
    fn of_backlog(&mut self, room: usize) -> Option<Sample> {
        let seen = self.before + self.next as u64;
        if self.connection.by_health || self.shared.waiting() <= seen {
            return None;
        }
        if self.taken.capacity() == 0 {
            self.taken = TAKEN.take();
        }
        let most = self.slots.len().min(room).min(self.room_in_burst());
        self.shared.backlog.take(most, &mut self.taken);
        (self.before, self.next) = (seen, 0);
        self.of_taken()
    }

    /// So many more writes belong to this burst.
    fn room_in_burst(&self) -> usize {
        BUDGET.saturating_sub(self.posted).max(1)
    }

    /// So many more are there to be posted, as far as can be seen.
    fn more(&self) -> usize {
        let backlog = match self.connection.by_health {
            true => 0,
            false => {
                let seen = self.before + self.next as u64;
                self.shared.waiting().saturating_sub(seen)
            }
        };
        self.direct.len() + self.connection.assigned() + backlog as usize
    }
}

impl<D: ExactSizeIterator<Item = Sample>> Outgoing for Requests<'_, D> {
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) || self.now == 0 {
            self.now = now_ns();
        }
    }

    fn post_next(&mut self, tx: &mut dyn Tx, counts: &mut SendCounts) -> Next {
        let (shared, connection) = (self.shared, self.connection);
        if self.slots.is_empty() {
            if !connection.tracker.has_free() {
                return Next::Full;
            }
            let more = self.more();
            if more == 0 {
                return Next::Nothing;
            }
            let wanted = more.min(self.room_in_burst());
            self.slots = connection.tracker.reserve_some(wanted);
            if self.slots.is_empty() {
                return Next::Full;
            }
        }
        // What nothing was given to is not popped from: that takes a fence each time.
        let given = || match connection.assigned.is_empty() {
            true => None,
            false => connection.assigned.pop(),
        };
        // Those taken have their slots: none of what comes now goes before them.
        let sample = self.of_taken().or_else(|| self.direct.next());
        let sample = sample.or_else(given);
        let Some(sample) = sample.or_else(|| self.of_backlog(tx.room())) else {
            return Next::Nothing;
        };
        let staged = shared.staged_from.as_deref();
        let posted = match self.slots.next() {
            Some(slot) => {
                let sources = shared.sources.len();
                connection.post(tx, sources, staged, (slot, &sample), self.now)
            }
            None => Err(PostError::Full),
        };
        match posted {
            Ok(copied) => {
                self.posted += 1;
                counts.staged += u64::from(copied > 0);
                counts.staged_bytes += copied as u64;
                Next::Posted
            }
            Err(e) => {
                shared.not_posted(connection, sample);
                e.into()
            }
        }
    }

    fn posted(&mut self, writes: usize, counts: &mut SendCounts) -> bool {
        let connection = self.connection;
        let came_back = connection.tracker.give_back(&mut self.slots);
        self.posted = 0;
        if let Some(left) = self.taken.get(self.next..) {
            // There is something where the link has failed alone: whoever takes the connection down
            // wakes the others.
            self.shared.backlog.put_back(left);
        }
        let seen = std::mem::take(&mut self.before) + std::mem::take(&mut self.next) as u64;
        self.taken.clear();
        self.shared.taken_off(seen);
        let in_flight = connection.tracker.in_flight();
        counts.in_flight_max = counts.in_flight_max.max(in_flight as u64);
        connection
            .posted
            .fetch_add(writes as u64, Ordering::Relaxed);
        came_back && self.more() > 0
    }
}

impl<D> Drop for Requests<'_, D> {
    fn drop(&mut self) {
        if self.taken.capacity() > 0 {
            TAKEN.set(std::mem::take(&mut self.taken));
        }
    }
}

impl Shared {
    /// A sample could not be posted after all: it goes by another connection.
    fn not_posted(&self, connection: &Connection, sample: Sample) {
        if sample.id == WARM_UP_ID {
            return self.warm_up.not_posted(connection.index);
        }
        if let Some(h) = self.health.get() {
            h.arbiter.taken_back(connection.index, sample.len);
        }
        self.push_all(std::iter::once(sample));
    }
}
