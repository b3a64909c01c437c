//! One connection as the frontend sees it over the whole run: its slots, its tracker, its sending
//! half, and what it counts.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::{
    connection::{
        SendHalf,
        tracker::{Sample, Tracker},
    },
    counters::{ConnectionCounts, ConnectionReading},
    fabric::{Endpoint, Grants, Imm, Post, PostError, Region, RegionError, SourceId, Tx, Window},
    rails::Load,
    wire::Stream,
};

/// Most samples of a burst: enough for one system call, few enough that connections share evenly
/// what comes.
pub(super) const BURST: usize = 64;

/// Most samples in a connection's ring: more than are issued during one turn of its NIC thread.
const LEFT: usize = 4 * BURST;

/// What a connection is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCfgs {
    /// Index of the accelerator it leads to.
    pub peer: usize,
    /// Index of the NIC that it is on.
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
    /// Which of all shares of NICs it is in: whose thread polls it.
    pub share: usize,
    /// Its ring: samples that were given to it and are not posted yet. Under a policy by health at
    /// most as many as it has slots.
    pub assigned: ArrayQueue<Sample>,
    /// It is chosen by health: it draws nothing from the backlog by itself.
    pub by_health: bool,
    pub tracker: Tracker,
    pub window: Window,
    pub send: SendHalf,
    pub up: CachePadded<AtomicBool>,
    /// Of links that are gone: what their receiving halves did.
    pub counts: Mutex<ConnectionCounts>,
    /// Samples posted, for the reconciliation; those that warmed it up included.
    pub posted: CachePadded<AtomicU64>,
    /// Answers to samples that warmed it up, refusals included.
    pub warmed: AtomicU64,
    /// Refusals of others.
    pub refused: AtomicU64,
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
        (index, share): (usize, usize),
        cfgs: ConnectionCfgs,
        nodes: &[u32],
        staged: bool,
        by_health: bool,
        stream: Stream,
    ) -> Result<Self, RegionError> {
        let grants = Arc::new(Grants::new(cfgs.slots));
        let map = |stride| Region::on_nodes(cfgs.slots * stride, nodes).map(Arc::new);
        let region = map(cfgs.response_stride)?;
        let staging = staged.then(|| map(cfgs.request_stride)).transpose()?;
        Ok(Connection {
            index,
            share,
            assigned: ArrayQueue::new(match by_health {
                true => cfgs.slots,
                false => cfgs.slots.min(LEFT),
            }),
            by_health,
            tracker: Tracker::new(grants.clone()),
            window: Window::new(region, 0, cfgs.response_stride, grants)?.in_parts(stream),
            send: SendHalf::default(),
            up: CachePadded::default(),
            counts: Mutex::default(),
            posted: CachePadded::default(),
            warmed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
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

    /// The same; down where it may not be chosen.
    pub fn load_if(&self, may: impl Fn(&Connection) -> bool) -> Load {
        let load = self.load();
        Load {
            up: load.up && may(self),
            ..load
        }
    }

    /// Nothing is in flight on it or waits in its ring.
    pub fn is_idle(&self) -> bool {
        self.tracker.in_flight() == 0 && self.assigned.is_empty()
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

    pub fn counts(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything it has counted so far.
    pub fn settled(&self) -> ConnectionCounts {
        let sent = self.send.counts();
        ConnectionCounts {
            tx: self.send.fabric_counts(),
            slots: self.cfgs.slots as u64,
            allowed: self.tracker.allowance() as u64,
            in_flight_max: sent.in_flight_max,
            blocked: sent.blocked,
            posted: self.posted_for_callers(),
            warmed: self.warmed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ..*self.counts()
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
        }
    }

    /// Samples of the caller's that were posted.
    pub fn posted_for_callers(&self) -> u64 {
        let warmed = self.warmed.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).saturating_sub(warmed)
    }

    /// Posts one sample by a slot that is reserved for it. Returns the bytes that had to be copied
    /// for it.
    ///
    /// # Errors
    /// The post's own, and whether the sample is still the caller's: it is not where the peer has
    /// answered it meanwhile, which closed the slot's grant.
    pub fn post(
        &self,
        link: &mut dyn Tx,
        sources: usize,
        staged_from: Option<&Region>,
        (slot, sample): (u16, &Sample),
        now: u64,
    ) -> Result<usize, (PostError, bool)> {
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
            return Err((PostError::Full, true));
        };
        post.imm = imm;
        link.post(&post).map(|()| copied).map_err(|e| {
            // Whoever closes the grant owns the sample: this thread, or one that took an answer.
            let is_ours = self.window.grants().revoke(slot);
            if is_ours {
                self.tracker.release(slot);
            }
            (e, is_ours)
        })
    }
}
