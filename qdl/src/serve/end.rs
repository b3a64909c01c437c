//! One connection as the accelerator sees it: the slots its samples land in, the slots its
//! responses are sent from, and its sending half.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crossbeam_queue::ArrayQueue;

use super::arrival::{Arrival, Finished, Origin};
use crate::{
    connection::{Next, Outgoing, SendCounts, SendHalf},
    fabric::{
        Broken, Endpoint, FabricCounts, Grants, Imm, Post, PostError, Region, RegionError,
        SourceId, Tx, Window,
    },
    response::{RESPONSE_HEADER_BYTES, ResponseHeader},
    stats::ServedConnection,
};

/// What a connection is made of; the frontend asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeConnectionCfgs {
    /// Which session it belongs to; two frontends in
    /// turn use the same connection numbers and epochs.
    pub session: u64,
    /// The frontend's index of the connection.
    pub connection: u16,
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

impl ServeConnectionCfgs {
    /// Bytes of slots the connection takes on this node; `None` where they overflow.
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

/// What the NIC thread counted of its receiving half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    /// Samples handed to the service.
    pub arrived: u64,
    /// Sleeps that it ended.
    pub wakeups: u64,
    pub fabric: FabricCounts,
}

/// This node's end of a connection. An [`Arrival`] holds it, so the slots stay mapped after the
/// link is gone until no batch reads them; [`ServeConnection::readers`] counts such arrivals.
pub struct ServeConnection {
    cfgs: ServeConnectionCfgs,
    window: Window,
    output: Arc<Region>,
    pub(super) send: SendHalf,
    /// Responses that are not posted yet. As many places as slots: a slot is granted again once its
    /// response is posted.
    ready: ArrayQueue<Ready>,
    /// A sample that came by it cannot be run: the NIC thread gives the connection up.
    refused: OnceLock<Broken>,
    responded: AtomicU64,
    late: AtomicU64,
    /// There once the local side is destroyed.
    received: Mutex<Received>,
}

impl ServeConnection {
    /// Maps the slots and grants all requests to the frontend.
    ///
    /// # Errors
    /// [`RegionError`] when the memory cannot be had.
    pub fn new(cfgs: ServeConnectionCfgs) -> Result<Self, RegionError> {
        Self::on_nodes(cfgs, &[], None)
    }

    /// As [`ServeConnection::new`], on these NUMA nodes; with request slots in memory that is there
    /// already, a GPU's perhaps.
    ///
    /// # Errors
    /// [`RegionError`] when it is too small, or when there is none for responses.
    pub fn on_nodes(
        cfgs: ServeConnectionCfgs,
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
        Ok(ServeConnection {
            window: Window::new(slots, 0, cfgs.request_stride, grants)?,
            output: Arc::new(Region::on_nodes(bytes(cfgs.response_stride)?, nodes)?),
            // One doorbell for all that is ready.
            send: SendHalf::new(usize::MAX, 0),
            ready: ArrayQueue::new(cfgs.slots.max(1)),
            refused: OnceLock::new(),
            responded: AtomicU64::new(0),
            late: AtomicU64::new(0),
            received: Mutex::default(),
            cfgs,
        })
    }

    /// What it was made of.
    pub fn cfgs(&self) -> ServeConnectionCfgs {
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

    /// Arrivals of this connection that are still alive
    /// somewhere, given the one `Arc` the caller holds.
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
        self.send.fabric_counts()
    }

    /// What it did; complete once its local side is destroyed and nothing reads it any more.
    pub fn record(&self) -> ServedConnection {
        let received = *self.received.lock().unwrap_or_else(PoisonError::into_inner);
        ServedConnection {
            connection: self.cfgs.connection,
            epoch: self.cfgs.epoch,
            arrived: received.arrived,
            answered: self.responded(),
            dropped_late: self.late(),
            wakeups: received.wakeups,
            blocked: self.send.counts().blocked,
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

    /// Nothing is sent afterwards. True once the connection
    /// has said goodbye; until then it is to be called again.
    pub(super) fn detach(&self) -> bool {
        let over = self.send.finish();
        self.drive();
        over
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
        // SAFETY: both addresses were checked to lie in regions that `self` keeps alive, and the
        // arrival keeps `self` alive. The grant of the slot is closed, so the peer does not write
        // the input. It is opened again only when the response has been posted (`post_next`): by
        // then the arrival has ended (`respond`) and the output's bytes have left it, or are read
        // by the kernel or the NIC alone, and by no reference of this process. A peer that writes
        // before it has the response breaks the connection up to that moment, and afterwards spoils
        // what is sent to it.
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

    /// Sends what is ready, or leaves it to the owner of the token. Returns responses posted.
    pub(super) fn drive(&self) -> usize {
        self.send.drive(false, &mut Responses(self)).posted
    }
}

/// Responses on their way to the frontend.
struct Responses<'a>(&'a ServeConnection);

impl Outgoing for Responses<'_> {
    fn begin(&mut self) -> u64 {
        0
    }

    fn post_next(&mut self, tx: &mut dyn Tx, _: &mut SendCounts) -> Next {
        let connection = self.0;
        let Some(ready) = connection.ready.pop() else {
            return Next::Nothing;
        };
        let slot = ready.imm.slot();
        let posted = tx.post(&Post {
            source: SourceId(0),
            offset: usize::from(slot) * connection.cfgs.response_stride,
            len: ready.bytes,
            at: 0,
            imm: ready.imm,
        });
        match posted {
            Ok(()) => {
                // The frontend may use the slot again as soon as it has the response, and not
                // before.
                connection.window.grants().open(slot);
                Next::Posted
            }
            Err(PostError::Full) if connection.ready.push(ready).is_ok() => Next::Full,
            Err(e) => {
                connection.late.fetch_add(1, Ordering::Relaxed);
                e.into()
            }
        }
    }

    fn posted(&mut self, writes: usize, _: &mut SendCounts) -> usize {
        self.0.responded.fetch_add(writes as u64, Ordering::Relaxed);
        0
    }

    /// Nobody is there to have them.
    fn down(&mut self) {
        while self.0.ready.pop().is_some() {
            self.0.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Origin for ServeConnection {
    fn gpu(&self) -> Option<u32> {
        self.cfgs.gpu
    }

    fn refuse(&self, ticket: u64, why: &str) {
        let slot = Imm::from_bits(ticket as u32).slot();
        // The NIC thread looks at every poll, and no later than its next tick. The first cause
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
            // SAFETY: the arrival that owned this output slot has just been given back to us, and
            // the response is not posted yet: nobody else touches the slot.
            let to = unsafe { self.output.bytes_mut(offset, RESPONSE_HEADER_BYTES) };
            if let Ok(to) = to {
                to.copy_from_slice(&header.encode());
            }
            let ready = Ready {
                imm,
                bytes: len + RESPONSE_HEADER_BYTES as u32,
            };
            if self.ready.push(ready).is_err() {
                // Only a slot that was answered twice could fill it.
                self.late.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.drive();
    }
}

impl fmt::Debug for ServeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ServeConnection(connection {}, epoch {})",
            self.cfgs.connection, self.cfgs.epoch
        )
    }
}
