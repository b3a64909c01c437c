//! The frontend's end of one connection over the whole run: slots, tracker, sending half, counts.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use fabric::os::lock;
use fabric::{
    Endpoint, Grants, Post, PostError, Region, RegionError, SourceId, Tx, Window, sync::AtomicBool,
    wire::Stream,
};
use record::{ConnectionRecord, NodeRole, timeline::ConnectionTick};

use super::{ConnectionCfgs, DispatchCfgs};
use crate::{
    connection::{
        SendHalf,
        tracker::{Attempt, Sample, Tracker},
    },
    rails::Load,
    response::RESPONSE_HEADER_BYTES,
};

/// Most samples of a burst: many enough for one system call, few enough to use all connections.
pub(super) const BURST: usize = 64;

/// Most samples in a connection's ring: more than are issued during one turn of its NIC thread.
const RING: usize = 4 * BURST;

/// Ring length above which the NIC thread seems to have no core, so the issuing thread posts: twice
/// the samples issued during a turn of a running NIC thread.
const CROWD: usize = 2 * BURST;

/// Memory of the samples.
pub(super) struct Payloads {
    /// Registered regions.
    pub sources: Vec<Arc<Region>>,
    /// Memory of unregistered samples, copied before they are sent.
    pub staged_from: Option<Arc<Region>>,
}

impl Payloads {
    /// Bytes of a sample; `None` beyond its region.
    pub(super) fn of(&self, sample: &Sample) -> Option<&[u8]> {
        let registered = self.sources.get(usize::from(sample.source.0));
        let region = self.staged_from.as_ref().or(registered)?;
        // SAFETY: the owner does not change an issued sample.
        unsafe { region.bytes(sample.offset, sample.len as usize) }.ok()
    }

    /// A connection's staging region, which is behind the caller's source regions.
    pub(super) fn staging(&self) -> SourceId {
        SourceId(self.sources.len() as u16)
    }
}

/// A sample that was not posted.
pub(super) struct NotPosted {
    pub error: PostError,
    /// The caller still owns the sample. If the peer has already answered, the answer has closed
    /// the slot's grant and owns the sample.
    pub is_ours: bool,
}

impl NotPosted {
    pub const FULL: Self = NotPosted {
        error: PostError::Full,
        is_ours: true,
    };
}

/// Figures of a connection over all epochs. Its NIC thread updates them, at most every 40 ms.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Answers, bytes and path, without the rail's score.
    pub tick: ConnectionTick,
    /// Counts of the receiving halves of earlier links.
    pub record: ConnectionRecord,
}

pub(super) struct Connection {
    pub index: usize,
    pub cfgs: ConnectionCfgs,
    /// Index of the connection's share, which determines the thread that polls the connection.
    pub share: usize,
    /// Samples given to this connection and not posted yet; under a policy by health, at most as
    /// many as the connection has slots.
    pub ring: ArrayQueue<Attempt>,
    pub tracker: Tracker,
    pub window: Window,
    pub send: SendHalf,
    pub up: CachePadded<AtomicBool>,
    /// Epoch of the last link.
    pub epoch: AtomicU32,
    /// Cancels that the owner of the send token has seen.
    pub cancels_seen: AtomicU64,
    figures: Mutex<Figures>,
    /// Samples posted, warm-up samples included; the reconciliation compares this count.
    pub posted: CachePadded<AtomicU64>,
    /// Answers to warm-up samples, refusals included.
    pub warmed: AtomicU64,
    pub refused: AtomicU64,
    /// Bytes of the prompts in flight, on a connection to a prefill node.
    pub prompts: CachePadded<AtomicU64>,
    /// Registered copies of samples that lie in unregistered memory, or follow a handle.
    pub staging: Option<Arc<Region>>,
}

impl Connection {
    /// Maps the slots on the NUMA nodes `nodes`, with the connection down.
    pub(crate) fn new(
        index: usize,
        share: usize,
        nodes: &[u32],
        dispatch: &DispatchCfgs,
    ) -> Result<Self, RegionError> {
        let cfgs = dispatch.connections[index];
        let grants = Arc::new(Grants::new(cfgs.slots));
        let map = |stride| Region::on_nodes(cfgs.slots * stride, nodes).map(Arc::new);
        let region = map(cfgs.response_stride)?;
        let is_staged = dispatch.staged_from.is_some() || cfgs.role == NodeRole::Decode;
        let staging = is_staged.then(|| map(cfgs.request_stride)).transpose()?;
        Ok(Connection {
            index,
            share,
            ring: ArrayQueue::new(match dispatch.policy.is_by_health() {
                true => cfgs.slots,
                false => cfgs.slots.min(RING),
            }),
            tracker: Tracker::new(grants.clone()),
            window: Window::new(region, 0, cfgs.response_stride, grants)?
                .in_parts(cfgs.stream(dispatch.stream)),
            send: SendHalf::default(),
            up: CachePadded::default(),
            epoch: AtomicU32::new(0),
            cancels_seen: AtomicU64::new(0),
            figures: Mutex::default(),
            posted: CachePadded::default(),
            warmed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            prompts: CachePadded::default(),
            staging,
            cfgs,
        })
    }

    pub(crate) fn endpoint(&self, payloads: &Payloads, send_depth: usize) -> Endpoint {
        let mut sources = payloads.sources.clone();
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

    pub(crate) fn load(&self) -> Load {
        Load {
            up: self.up.load(Ordering::Relaxed),
            in_flight: self.tracker.in_flight() + self.ring.len(),
            slots: self.tracker.allowance(),
        }
    }

    /// The load; `up` is false where `may` excludes the connection.
    pub(crate) fn load_if(&self, may: impl Fn(&Connection) -> bool) -> Load {
        let load = self.load();
        Load {
            up: load.up && may(self),
            ..load
        }
    }

    /// Whether new samples may go to it: not to a decode node, which needs a handle.
    pub(crate) fn takes_new(&self) -> bool {
        self.cfgs.role != NodeRole::Decode
    }

    /// Whether the NIC thread seems to have no core.
    pub(crate) fn is_crowded(&self) -> bool {
        self.ring.len() > CROWD
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.tracker.in_flight() == 0 && self.ring.is_empty()
    }

    /// Whether samples may be put into the ring: up, and the accelerator takes samples.
    pub(crate) fn is_open(&self) -> bool {
        self.up.load(Ordering::SeqCst) && self.tracker.allowance() > 0
    }

    /// Whether the connection can post a sample now: up, a free slot, not blocked.
    pub(crate) fn takes(&self) -> bool {
        self.up.load(Ordering::SeqCst) && self.tracker.has_free() && !self.send.is_blocked()
    }

    /// Brings the connection up with a fresh link.
    pub(crate) fn attach(&self, tx: Box<dyn Tx>, epoch: u32) {
        self.window.grants().reset();
        self.epoch.store(epoch, Ordering::Release);
        self.send.attach(tx);
        self.up.store(true, Ordering::SeqCst);
    }

    /// Takes the connection down; afterwards no thread posts on it. Returns true once the link has
    /// said goodbye; call again until then. The caller drops the receiving half before the sweep.
    pub(crate) fn detach(&self) -> bool {
        self.up.store(false, Ordering::SeqCst);
        self.send.finish()
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        lock(&self.figures)
    }

    /// Counts of the sending half, and of receiving halves of earlier links. Takes the send token.
    pub(crate) fn totals(&self) -> ConnectionRecord {
        let (sent, figures) = (self.send.counts(), self.figures());
        ConnectionRecord {
            samples: figures.tick.samples,
            tx: self.send.fabric_counts(),
            slots: self.cfgs.slots as u64,
            allowed: self.tracker.allowance() as u64,
            in_flight_max: sent.in_flight_max,
            blocked: sent.blocked,
            posted: self.posted_for_callers(),
            warmed: self.warmed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ..figures.record.clone()
        }
    }

    /// Live figures without the rail's score; the counts may be 40 ms old.
    pub(crate) fn reading(&self) -> ConnectionTick {
        ConnectionTick {
            in_flight: self.tracker.in_flight() as u64,
            ..self.figures().tick
        }
    }

    /// Posted samples without warm-up samples.
    pub(crate) fn posted_for_callers(&self) -> u64 {
        let warmed = self.warmed.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).saturating_sub(warmed)
    }

    /// The payload of a response, or a range of it.
    ///
    /// # Safety
    /// These bytes have arrived, and the caller keeps the slot's grant closed while the slice
    /// lives.
    #[inline]
    pub(crate) unsafe fn payload(&self, slot: u16, offset: u32, len: u32) -> &[u8] {
        let offset = self.window.slot_offset(slot) + RESPONSE_HEADER_BYTES + offset as usize;
        // SAFETY: by the caller's promise, the peer does not write these bytes.
        unsafe { self.window.region().bytes(offset, len as usize) }.unwrap_or_default()
    }

    /// Posts one sample through a reserved slot. Returns the number of bytes copied to staging.
    ///
    /// # Errors
    /// [`NotPosted`]
    pub(crate) fn post_sample(
        &self,
        link: &mut dyn Tx,
        payloads: &Payloads,
        slot: u16,
        attempt: &Attempt,
        now_ns: u64,
    ) -> Result<usize, NotPosted> {
        let sample = &attempt.sample;
        let mut from = (sample.source, sample.offset, sample.len);
        let mut copied = 0;
        if let (Some(unregistered), Some(to)) = (&payloads.staged_from, &self.staging) {
            let offset = usize::from(slot) * self.cfgs.request_stride;
            let len = sample.len as usize;
            if len <= self.cfgs.request_stride {
                // SAFETY: the QSL does not change a loaded sample. The caller has reserved the
                // slot, so no other thread accesses the slot's staging bytes.
                let copy = unsafe {
                    (
                        unregistered.bytes(sample.offset, len),
                        to.bytes_mut(offset, len),
                    )
                };
                if let (Ok(payload), Ok(to)) = copy {
                    to.copy_from_slice(payload);
                    copied = len;
                    from = (payloads.staging(), offset, sample.len);
                }
            }
        }
        self.begin_prompt(sample);
        self.post_at(link, slot, attempt, from, sample.has_options, now_ns)
            .map(|()| copied)
            .inspect_err(|e| {
                if e.is_ours {
                    self.end_prompt(sample);
                }
            })
    }

    /// Posts these bytes of a source region through a reserved slot.
    // The call would take 37 instructions of each sample: arguments and result pass by memory.
    #[inline(always)]
    pub(super) fn post_at(
        &self,
        link: &mut dyn Tx,
        slot: u16,
        attempt: &Attempt,
        (source, offset, len): (SourceId, usize, u32),
        has_options: bool,
        now_ns: u64,
    ) -> Result<(), NotPosted> {
        let Some(imm) = self.tracker.begin(slot, attempt, now_ns) else {
            self.tracker.release(slot);
            return Err(NotPosted::FULL);
        };
        let post = Post {
            source,
            offset,
            len,
            at: 0,
            imm: imm.with_options(has_options),
        };
        link.post(&post).map_err(|e| {
            // The thread that closes the grant owns the sample: this thread, or an answer's.
            let is_ours = self.window.grants().revoke(slot);
            if is_ours {
                self.tracker.release(slot);
            }
            NotPosted { error: e, is_ours }
        })
    }
}
