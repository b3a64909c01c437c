//! One connection as the accelerator sees it: the slots its samples land in, the slots its responses are
//! sent from, and, while it is up, the sending half of its link behind the send token.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam_queue::ArrayQueue;

use super::arrival::{Arrival, Finished, Origin};
use crate::{
    drive::Driven,
    fabric::{
        Broken, Endpoint, FabricCounts, Flushed, Grants, Imm, Mailbox, Post, PostError, Region,
        RegionError, SourceId, Tx, Window,
    },
    response::{RESPONSE_HEADER_BYTES, ResponseHeader},
    stats::ServedConnection,
};

/// What a lane is made of; the frontend asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLaneCfgs {
    /// Which session it belongs to; two frontends in turn use the same lane numbers and epochs.
    pub session: u64,
    /// The frontend's index of the connection.
    pub lane: u16,
    /// Its epoch.
    pub epoch: u32,
    /// The GPU whose engine its samples go to; `None` where that makes no difference.
    pub gpu: Option<u32>,
    /// Slots at either end.
    pub slots: usize,
    /// Bytes from one request slot to the next.
    pub request_stride: usize,
    /// Bytes from one response slot to the next, header included.
    pub response_stride: usize,
}

impl ServeLaneCfgs {
    /// Bytes of slots the lane takes on this node; `None` where they overflow.
    pub fn bytes(&self) -> Option<usize> {
        self.request_stride
            .checked_add(self.response_stride)?
            .checked_mul(self.slots)
    }
}

#[derive(Clone, Copy, Debug)]
struct Ready {
    imm: Imm,
    /// Header and payload.
    bytes: u32,
}

#[derive(Debug, Default)]
struct ServeTx {
    link: Option<Box<dyn Tx>>,
    counts: FabricCounts,
    blocked: u64,
}

/// What the rail thread counted of its receiving half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    /// Samples handed to the service.
    pub arrived: u64,
    /// Sleeps that it ended.
    pub wakeups: u64,
    pub fabric: FabricCounts,
}

/// See the module. An [`Arrival`] keeps the lane alive, so its slots outlive the connection for as long as
/// a batch reads them; [`ServeLane::readers`] counts such arrivals.
pub struct ServeLane {
    cfgs: ServeLaneCfgs,
    window: Window,
    output: Arc<Region>,
    send: Driven<ServeTx>,
    ready: ArrayQueue<Ready>,
    /// The last flush did not get rid of everything.
    blocked: AtomicBool,
    /// A flush is under way, and whether it gets rid of everything is not written down yet.
    flushing: AtomicBool,
    /// The sending half has failed.
    broken: AtomicBool,
    /// A sample that came by it cannot be run: the rail thread gives the connection up.
    refused: OnceLock<Broken>,
    pub(super) answer: Mailbox,
    responded: AtomicU64,
    late: AtomicU64,
    /// There once the local side is destroyed.
    received: Mutex<Received>,
}

impl ServeLane {
    /// Maps the slots and grants all requests to the frontend.
    ///
    /// # Errors
    /// [`RegionError`] when the memory cannot be had.
    pub fn new(cfgs: ServeLaneCfgs) -> Result<Self, RegionError> {
        Self::on_nodes(cfgs, &[], None)
    }

    /// As [`ServeLane::new`], on these NUMA nodes; with request slots in memory that is there
    /// already, a GPU's perhaps.
    ///
    /// # Errors
    /// [`RegionError`] when it is too small, or when there is none for responses.
    pub fn on_nodes(
        cfgs: ServeLaneCfgs,
        nodes: &[u32],
        slots: Option<Arc<Region>>,
    ) -> Result<Self, RegionError> {
        let bytes = |stride: usize| {
            stride
                .checked_mul(cfgs.slots)
                .ok_or(RegionError::OutOfBounds {
                    offset: 0,
                    len: stride,
                    region: 0,
                })
        };
        let grants = Arc::new(Grants::new(cfgs.slots));
        (0..cfgs.slots as u16).for_each(|s| {
            grants.open(s);
        });
        let requests = bytes(cfgs.request_stride)?;
        let slots = match slots {
            Some(slots) => slots,
            None => Arc::new(Region::on_nodes(requests, nodes)?),
        };
        Ok(ServeLane {
            window: Window::new(slots, 0, cfgs.request_stride, grants)?,
            output: Arc::new(Region::on_nodes(bytes(cfgs.response_stride)?, nodes)?),
            send: Driven::new(ServeTx::default()),
            ready: ArrayQueue::new(cfgs.slots.max(1)),
            blocked: AtomicBool::new(false),
            flushing: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            refused: OnceLock::new(),
            answer: Mailbox::default(),
            responded: AtomicU64::new(0),
            late: AtomicU64::new(0),
            received: Mutex::default(),
            cfgs,
        })
    }

    /// What it was made of.
    pub fn cfgs(&self) -> ServeLaneCfgs {
        self.cfgs
    }

    /// True where its request slots are in memory of a GPU.
    pub fn is_on_device(&self) -> bool {
        self.window.region().device().is_some()
    }

    /// What its link is to be made with.
    pub fn endpoint(&self, send_depth: usize) -> Endpoint {
        Endpoint {
            window: self.window.clone(),
            sources: vec![self.output.clone()],
            peer_slots: self.cfgs.slots,
            peer_stride: self.cfgs.response_stride,
            send_depth,
        }
    }

    /// Arrivals of this lane that are still alive somewhere, given the one `Arc` the caller holds.
    pub fn readers(self: &Arc<Self>) -> usize {
        Arc::strong_count(self) - 1
    }

    /// Responses handed to the fabric.
    pub fn responded(&self) -> u64 {
        self.responded.load(Ordering::Relaxed)
    }

    /// Responses dropped because the connection was gone when they were ready.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Counts of its sending half.
    pub fn sent_counts(&self) -> FabricCounts {
        self.send.exclusive(|s| match &s.link {
            Some(tx) => tx.counts(),
            None => s.counts,
        })
    }

    /// What it did; complete once its local side is destroyed and nothing reads it any more.
    pub fn record(&self) -> ServedConnection {
        let received = *self.received.lock().unwrap_or_else(PoisonError::into_inner);
        ServedConnection {
            lane: self.cfgs.lane,
            epoch: self.cfgs.epoch,
            arrived: received.arrived,
            answered: self.responded(),
            dropped_late: self.late(),
            wakeups: received.wakeups,
            blocked: self.send.exclusive(|s| s.blocked),
            tx: self.sent_counts(),
            rx: received.fabric,
            lost: false,
        }
    }

    pub(super) fn received(&self, counts: Received) {
        *self.received.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    pub(super) fn memory(&self) -> impl Iterator<Item = &Region> {
        [&**self.window.region(), &*self.output].into_iter()
    }

    pub(super) fn prefault(&self) {
        self.memory().for_each(Region::prefault);
    }

    pub(super) fn requests(&self) -> &Arc<Region> {
        self.window.region()
    }

    pub(super) fn attach(&self, tx: Box<dyn Tx>) {
        self.send.exclusive(|s| s.link = Some(tx));
    }

    /// Nothing is sent afterwards.
    pub(super) fn detach(&self) {
        self.send.exclusive(|s| {
            if let Some(mut tx) = s.link.take() {
                tx.finish();
                s.counts = tx.counts();
            }
        });
        self.drive();
    }

    /// Whether something may be left that the fabric had no room for. A flush that is under way counts: what would wake
    /// the rail thread may come between the flush and its result.
    pub(super) fn held_up(&self) -> bool {
        // In this order: whoever sees the flush over sees its result.
        self.flushing.load(Ordering::SeqCst) || self.blocked.load(Ordering::SeqCst)
    }

    pub(super) fn cannot_send(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Why a sample of it was refused, if one was.
    pub(super) fn refused(&self) -> Option<&Broken> {
        self.refused.get()
    }

    /// The arrival of a write: the receiving half has closed the slot's grant.
    pub(super) fn arrival(self: &Arc<Self>, imm: Imm, len: u32, now_ns: u64) -> Option<Arrival> {
        let slot = imm.slot();
        let output = usize::from(slot) * self.cfgs.response_stride + RESPONSE_HEADER_BYTES;
        let capacity = self
            .cfgs
            .response_stride
            .checked_sub(RESPONSE_HEADER_BYTES)?;
        let input = self
            .window
            .region()
            .at(self.window.slot_offset(slot), len as usize)
            .ok()?;
        let output = self.output.at(output, capacity).ok()?;
        let on_device = self.is_on_device();
        // SAFETY: both addresses were checked to lie in regions that `self` keeps alive, and the arrival keeps
        // `self` alive. The grant of the slot is closed, so the peer does not write the input, and it is opened
        // again only by `respond`, which is the end of the arrival; the output slot goes with the input's.
        let arrival = unsafe {
            Arrival::new(
                input,
                len,
                output,
                capacity as u32,
                u64::from(imm.bits()),
                now_ns,
                self.clone(),
            )
        };
        Some(if on_device {
            arrival.on_device()
        } else {
            arrival
        })
    }

    /// Sends what is ready, or leaves it to whoever has the token. Returns responses posted.
    pub(super) fn drive(&self) -> usize {
        let mut posted = 0;
        self.send.drive(|s| posted += self.post_all(s));
        posted
    }

    fn post_all(&self, s: &mut ServeTx) -> usize {
        let Some(link) = s.link.as_mut() else {
            // Nobody is there to have them.
            while self.ready.pop().is_some() {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
            return 0;
        };
        let mut posted = 0;
        let mut must_flush = self.blocked.load(Ordering::Relaxed);
        if link.room() > 0
            && let Some(message) = self.answer.take()
        {
            self.note(link.post(&Post::control(message)));
            must_flush = true;
        }
        loop {
            let mut full = false;
            while !self.ready.is_empty() && !full {
                if link.room() == 0 {
                    full = true;
                } else if let Some(r) = self.ready.pop() {
                    let offset = usize::from(r.imm.slot()) * self.cfgs.response_stride;
                    let result = link.post(&Post {
                        source: SourceId(0),
                        offset,
                        len: r.bytes,
                        at: 0,
                        imm: r.imm,
                    });
                    match result {
                        Ok(()) => posted += 1,
                        Err(e) => {
                            self.note(Err(e));
                            self.late.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
            // Where there is no room a flush makes some, or finds out why there is none.
            if posted > 0 || must_flush || full {
                self.flushing.store(true, Ordering::SeqCst);
                let flushed = link.flush();
                match &flushed {
                    Ok(Flushed::Done) => self.blocked.store(false, Ordering::SeqCst),
                    Ok(Flushed::Blocked) => {
                        self.blocked.store(true, Ordering::SeqCst);
                        s.blocked += 1;
                    }
                    Err(b) => self.note(Err(b.clone().into())),
                }
                self.flushing.store(false, Ordering::SeqCst);
                if flushed != Ok(Flushed::Done) {
                    break;
                }
            }
            if !full {
                break;
            }
        }
        self.responded.fetch_add(posted as u64, Ordering::Relaxed);
        posted
    }

    fn note(&self, result: Result<(), PostError>) {
        match result {
            Ok(()) | Err(PostError::Full) => {}
            Err(PostError::Broken(Broken::Closed)) => self.broken.store(true, Ordering::SeqCst),
            Err(e) => {
                if !self.broken.swap(true, Ordering::SeqCst) {
                    tracing::debug!("lane {}: a response cannot be sent: {e}", self.cfgs.lane);
                }
            }
        }
    }
}

impl Origin for ServeLane {
    fn gpu(&self) -> Option<u32> {
        self.cfgs.gpu
    }

    fn refuse(&self, ticket: u64, why: &str) {
        let slot = Imm::from_bits(ticket as u32).slot();
        // The rail thread looks at every poll, and no later than its next tick. The first cause
        // is the one that is reported.
        let _ = self
            .refused
            .set(Broken::GivenUp(format!("slot {slot}: {why}")));
    }

    fn respond(&self, finished: &[Finished]) {
        for f in finished {
            let imm = Imm::from_bits(f.ticket as u32);
            let slot = imm.slot();
            let capacity = self.cfgs.response_stride - RESPONSE_HEADER_BYTES;
            let len = f.len.min(capacity as u32);
            let header = ResponseHeader {
                len,
                use_count: imm.use_count(),
                queue_us: f.queue_us,
                compute_us: f.compute_us,
            };
            let offset = usize::from(slot) * self.cfgs.response_stride;
            // SAFETY: the arrival that owned this output slot has just been given back to us, and the response
            // is not posted yet: nobody else touches the slot.
            let to = unsafe { self.output.bytes_mut(offset, RESPONSE_HEADER_BYTES) };
            if let Ok(to) = to {
                to.copy_from_slice(&header.encode());
            }
            // The frontend may use the slot again as soon as it has the response.
            self.window.grants().open(slot);
            let ready = Ready {
                imm,
                bytes: len + RESPONSE_HEADER_BYTES as u32,
            };
            if self.ready.push(ready).is_err() {
                // As many places as slots: only a slot answered twice could fill it.
                self.late.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.drive();
    }
}

impl fmt::Debug for ServeLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ServeLane(lane {}, epoch {})",
            self.cfgs.lane, self.cfgs.epoch
        )
    }
}
