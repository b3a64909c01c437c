//! The accelerator's end of one connection: the slots of its samples, the slots of its responses,
//! and its sending half.

use std::{
    slice,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use fabric::os::lock;
use fabric::{
    Broken, Endpoint, FabricCounts, Grants, Imm, Post, PostError, Region, RegionError, SourceId,
    Tx, Window, wire::Stream,
};

use record::ServedConnection;

use super::{
    arrival::{Arrival, Finished, Origin, OutputPart},
    response_queue::{BYTES_MAX, Ready, ResponseQueue},
};
use crate::{
    connection::{ArrivedWrite, NicThreadHandle, SendCounts, SendHalf, WriteSource, not_posted},
    request::RequestOptions,
    response::{
        MAX_REASON, RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES, Refusal, ResponseHeader,
    },
};

/// Length of a connection's queue above which its NIC thread seems to have no core.
const CROWD: usize = 64;

/// Flag of a cancelled sample, beside its use count.
const CANCELLED: u32 = 1 << 31;
/// Reason of the refusal of a cancelled sample.
const CANCELLED_REASON: &str = "cancelled";

/// Settings of a connection, requested by the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeConnectionCfgs {
    /// Session of the connection; distinguishes frontends, which reuse numbers and epochs.
    pub session: u64,
    /// The frontend's index of the connection.
    pub connection: u16,
    /// Epoch of the connection.
    pub epoch: u32,
    /// GPU whose engine runs the samples; `None` for any GPU.
    pub gpu: Option<u32>,
    /// Slots at each end.
    pub slots: usize,
    /// Bytes from one request slot to the next.
    pub request_stride: usize,
    /// Request slots have room for options ([`crate::request`]).
    pub takes_options: bool,
    /// Bytes from one response slot to the next, with the header, and with the trailer where
    /// answers leave in parts.
    pub response_stride: usize,
    /// Parts in which the frontend wants answers.
    pub stream: Stream,
}

impl ServeConnectionCfgs {
    /// Bytes of the connection's slots on this node; `None` where the sum overflows.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.request_stride
            .checked_add(self.response_stride)?
            .checked_mul(self.slots)
    }

    /// Bytes of a response slot that an output may use; `None` if the stride is too small.
    fn capacity(&self) -> Option<usize> {
        let (own, most) = match self.stream {
            Stream::None => (RESPONSE_HEADER_BYTES, u32::MAX as usize),
            _ => (RESPONSE_HEADER_BYTES + RESPONSE_TRAILER_BYTES, BYTES_MAX),
        };
        self.response_stride.min(most).checked_sub(own)
    }
}

/// Callback for a refusal: slot and use count, full reason, whether the response cuts it short.
pub(crate) type OnReason = dyn Fn(Imm, &str, bool) + Send + Sync;

/// This node's end of a connection. Each [`Arrival`] holds a reference, so the slots stay mapped
/// until no batch reads them. [`ServeConnection::readers`] counts the arrivals.
pub struct ServeConnection {
    pub(super) cfgs: ServeConnectionCfgs,
    pub(super) window: Window,
    pub(super) output: Arc<Region>,
    pub(super) send: SendHalf,
    pub(super) responses: ResponseQueue,
    /// The NIC thread that polls the connection and posts `responses`.
    nic: OnceLock<NicThreadHandle>,
    /// Whether the connection is lost, so that responses can no longer be delivered.
    gone: AtomicBool,
    reasons: OnceLock<Box<OnReason>>,
    /// By slot: [`CANCELLED`] and the use count of a cancelled sample. Made at the first cancel.
    cancelled: OnceLock<Box<[AtomicU32]>>,
    pub(super) responded: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) parts: AtomicU64,
    late: AtomicU64,
    /// Counts of the receiving half, set when the local side is destroyed.
    received: Mutex<ServedConnection>,
}

impl ServeConnection {
    /// Maps the slots and grants all request slots to the frontend.
    ///
    /// # Errors
    /// [`RegionError`] when the memory cannot be mapped.
    pub fn new(cfgs: ServeConnectionCfgs) -> Result<Self, RegionError> {
        Self::on_nodes(cfgs, &[], None)
    }

    /// Like [`ServeConnection::new`], with memory on the NUMA nodes `nodes`. The request slots lie
    /// in `slots`, if given, such as a GPU's memory.
    ///
    /// # Errors
    /// [`RegionError`] when `slots` is too small, or the memory cannot be mapped.
    pub(crate) fn on_nodes(
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
            window: Window::new(slots, 0, cfgs.request_stride, grants)?
                .with_options(cfgs.takes_options),
            output: Arc::new(Region::on_nodes(bytes(cfgs.response_stride)?, nodes)?),
            send: SendHalf::default(),
            responses: ResponseQueue::new(cfgs.slots, cfgs.stream),
            nic: OnceLock::new(),
            gone: AtomicBool::new(false),
            reasons: OnceLock::new(),
            cancelled: OnceLock::new(),
            responded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            parts: AtomicU64::new(0),
            late: AtomicU64::new(0),
            received: Mutex::default(),
            cfgs,
        })
    }

    pub(crate) fn cfgs(&self) -> ServeConnectionCfgs {
        self.cfgs
    }

    /// Whether the request slots lie in a GPU's memory.
    pub(crate) fn is_on_device(&self) -> bool {
        self.window.region().device().is_some()
    }

    /// The endpoint for a new link.
    pub fn endpoint(&self, send_depth: usize) -> Endpoint {
        Endpoint {
            window: self.window.clone(),
            sources: vec![self.output.clone()],
            peer_slots: self.cfgs.slots,
            peer_stride: self.cfgs.response_stride,
            peer_stream: self.cfgs.stream,
            send_depth,
        }
    }

    /// Number of live arrivals of this connection, if the caller holds the only other reference.
    pub fn readers(self: &Arc<Self>) -> usize {
        Arc::strong_count(self) - 1
    }

    /// Answers handed to the fabric, complete ones and last parts.
    pub fn responded(&self) -> u64 {
        self.responded.load(Ordering::Relaxed)
    }

    /// Parts of responses handed to the fabric, without last parts. Reading this count, like the
    /// others, delays no sender.
    pub(crate) fn parts(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }

    /// Refusals handed to the fabric.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sets the callback for refusals. It runs on an engine's thread before the refusal is posted.
    pub(crate) fn on_reason(&self, hear: Box<OnReason>) {
        let _ = self.reasons.set(hear);
    }

    /// Marks a sample as cancelled, before or behind its arrival. The mark of a sample that has
    /// been answered goes with the slot's next arrival.
    pub fn cancel(&self, imm: Imm) {
        let made = || (0..self.cfgs.slots).map(|_| AtomicU32::new(0)).collect();
        let all = self.cancelled.get_or_init(made);
        if let Some(mark) = all.get(usize::from(imm.slot())) {
            mark.store(CANCELLED | u32::from(imm.use_count()), Ordering::Relaxed);
        }
    }

    /// The mark of a cancelled sample in this slot; `None` before any cancel.
    #[inline]
    fn mark(&self, slot: u16) -> Option<&AtomicU32> {
        self.cancelled.get()?.get(usize::from(slot))
    }

    /// Samples whose answer was not delivered: dropped, or answered after the connection was lost.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Counts of the sending half. Call it only once the link is gone: it takes the send token, and
    /// responses queued meanwhile would not be posted.
    pub(super) fn sent_counts(&self) -> FabricCounts {
        self.send.fabric_counts()
    }

    /// All counts, once the connection's local side is destroyed. `lost`: before the session ended.
    pub(crate) fn record(&self, lost: bool) -> ServedConnection {
        ServedConnection {
            connection: self.cfgs.connection,
            epoch: self.cfgs.epoch,
            answered: self.responded(),
            refused: self.refused(),
            dropped_late: self.late(),
            blocked: self.send.counts().blocked,
            tx: self.sent_counts(),
            lost,
            ..lock(&self.received).clone()
        }
    }

    pub(super) fn put_received(&self, counts: ServedConnection) {
        *lock(&self.received) = counts;
    }

    pub(super) fn memory(&self) -> impl Iterator<Item = &Region> {
        [&**self.window.region(), &*self.output].into_iter()
    }

    pub(super) fn prefault(&self) {
        self.memory().for_each(Region::prefault);
    }

    #[cfg(all(test, not(feature = "loom")))]
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    pub(super) fn requests(&self) -> &Arc<Region> {
        self.window.region()
    }

    /// Stops sending. Returns true once the link has said goodbye; call again until then.
    pub(super) fn detach(&self) -> bool {
        self.gone.store(true, Ordering::Relaxed);
        let over = self.send.finish();
        self.post_ready();
        over
    }

    pub(super) fn polled_by(&self, nic: &NicThreadHandle) {
        let _ = self.nic.set(nic.clone());
    }

    /// Appends the arrival of a complete write to `arrivals`; the connection's receiving half has
    /// closed the slot's grant. Returns `None` if the slot does not exist, or the options are none.
    pub(super) fn arrive(
        self: &Arc<Self>,
        ArrivedWrite { imm, len, .. }: ArrivedWrite,
        now_ns: u64,
        arrivals: &mut Vec<Arrival>,
    ) -> Option<()> {
        let slot = imm.slot();
        let options = match imm.has_options() {
            false => 0,
            true => self.options_len(slot, len)?,
        };
        // The response has the same immediate, without the bit of the options.
        let ticket = Imm::new(slot, imm.use_count()).bits();
        let output = usize::from(slot) * self.cfgs.response_stride + RESPONSE_HEADER_BYTES;
        let capacity = self.cfgs.capacity()?;
        let input = self
            .window
            .region()
            .at(self.window.slot_offset(slot), len as usize)
            .ok()?;
        let output = self.output.at(output, capacity).ok()?;
        if let Some(mark) = self.mark(slot) {
            // A cancel of this use may come meanwhile.
            let (old, order) = (mark.load(Ordering::Relaxed), Ordering::Relaxed);
            if old != 0 && old != CANCELLED | u32::from(imm.use_count()) {
                let _ = mark.compare_exchange(old, 0, order, order);
            }
        }
        let on_device = self.is_on_device();
        // The slot's grant is closed, so the peer does not write the input. `post_next` opens the
        // grant only after it has posted the response. By then the arrival has ended (`respond`),
        // and only the kernel or the NIC reads the output. A peer's write without a grant breaks
        // the connection; one after the new grant can spoil only the peer's own response. Parts
        // leave while the arrival lives: its owner writes only behind the bytes passed to `parts`.
        // The header before the output and the trailer behind it do not belong to the arrival.
        // SAFETY: `at` checked both ranges, in regions that `self` keeps alive, and the arrival
        // keeps `self` alive. While it lives, no other thread writes the input or its part of the
        // output, as explained above.
        let arrival = unsafe {
            Arrival::new(
                input,
                len,
                output,
                capacity as u32,
                ticket.into(),
                now_ns,
                self.clone(),
            )
        };
        let arrival = arrival.on_device(on_device);
        arrivals.push(match options {
            0 => arrival,
            bytes => arrival.behind_options(bytes),
        });
        Some(())
    }

    /// Length of the block of options that a request begins with; `None` where it is none.
    #[cold]
    fn options_len(&self, slot: u16, len: u32) -> Option<u16> {
        let (region, offset) = (self.window.region(), self.window.slot_offset(slot));
        // SAFETY: the slot's grant is closed, so the peer does not write these bytes.
        let request = unsafe { region.bytes(offset, len as usize) };
        RequestOptions::block_len(request.ok()?)
    }

    /// Posts ready responses, or leaves them to the owner of the send token. Returns whether this
    /// call did any work.
    pub(super) fn post_ready(&self) -> bool {
        self.post_from(&mut ResponseWrites::new(self, &[]))
    }

    fn post_from(&self, responses: &mut ResponseWrites<'_>) -> bool {
        let is_work = self.send.post_from(responses).is_work;
        if self.send.has_failed() {
            // The NIC thread takes the connection down, even if no event comes from the link.
            self.nic.get().inspect(|nic| nic.wake());
        }
        is_work
    }

    /// Whether responses wait and the last flush was not blocked.
    pub(super) fn has_ready(&self) -> bool {
        !self.responses.is_empty() && !self.send.is_blocked()
    }

    /// Queues a part of an answer, behind its earlier parts.
    fn queue_part(&self, part: &OutputPart) {
        let imm = Imm::from_bits(part.ticket as u32);
        let Some(growing) = self.responses.growing(imm.slot()) else {
            return;
        };
        let len = self.within(part.to);
        let end = len + RESPONSE_HEADER_BYTES as u32;
        if part.from == 0 {
            let header = ResponseHeader {
                len,
                use_count: imm.use_count(),
                refusal: None,
                queue_us: part.queue_us,
                compute_us: part.compute_us,
            };
            self.begin(imm, &header);
            growing.begin(imm, end);
        }
        growing.grow(end, part.queue_us, part.compute_us, false);
        self.responses.push(Ready::Part(imm.slot()));
    }

    /// Whether the NIC thread posts the queued parts: the thread is awake, and the queue is short
    /// enough to show that the thread has a core.
    fn leaves_parts(&self) -> bool {
        let is_awake = |nic: &NicThreadHandle| !nic.is_asleep();
        self.nic.get().is_some_and(is_awake) && self.responses.waiting() <= CROWD
    }

    /// Limits an output's length to the slot's capacity.
    fn within(&self, len: u32) -> u32 {
        let capacity = self.cfgs.capacity().unwrap_or(0);
        len.min(u32::try_from(capacity).unwrap_or(u32::MAX))
    }

    /// Discards a queue entry, since the link is gone.
    pub(super) fn give_up(&self, ready: Ready) {
        let late = u64::from(self.responses.give_up(ready));
        self.late.fetch_add(late, Ordering::Relaxed);
    }

    /// Makes the queue entry of a computed sample, and writes its header.
    pub(super) fn ready(&self, finished: &Finished) -> Ready {
        let imm = Imm::from_bits(finished.ticket as u32);
        let len = self.within(finished.len);
        let end = len + RESPONSE_HEADER_BYTES as u32;
        let (queue_us, compute_us) = (finished.queue_us, finished.compute_us);
        match self.responses.growing(imm.slot()) {
            Some(growing) if finished.sent.parts > 0 => {
                growing.grow(end, queue_us, compute_us, true);
                Ready::Part(imm.slot())
            }
            _ => {
                let header = ResponseHeader {
                    len,
                    use_count: imm.use_count(),
                    refusal: None,
                    queue_us,
                    compute_us,
                };
                self.begin(imm, &header);
                Ready::Whole {
                    imm,
                    bytes: end,
                    refused: false,
                }
            }
        }
    }

    pub(super) fn queue(&self, ready: Ready) {
        if !self.responses.push(ready) {
            // Only a slot answered twice fills the queue.
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn output_offset(&self, slot: u16) -> usize {
        usize::from(slot) * self.cfgs.response_stride
    }

    /// Writes the header of a response in one piece, or of a response's first part.
    #[inline]
    fn begin(&self, imm: Imm, header: &ResponseHeader) {
        let offset = self.output_offset(imm.slot());
        // SAFETY: the header lies before the arrival's output, and no write of the slot is posted
        // yet, so no other thread accesses these bytes.
        let to = unsafe { self.output.bytes_mut(offset, RESPONSE_HEADER_BYTES) };
        if let Ok(to) = to {
            to.copy_from_slice(&header.encode());
        }
    }
}

impl ServeConnection {
    /// Refuses a sample, or gives it back where `is_away`.
    fn refuse_as(&self, ticket: u64, why: &str, is_away: bool) {
        let imm = Imm::from_bits(ticket as u32);
        let growing = self.responses.growing(imm.slot()).filter(|g| g.grown() > 0);
        let header = RESPONSE_HEADER_BYTES as u32;
        let from = growing.map_or(0, |g| g.grown() - header);
        let room = self.within(u32::MAX) - from;
        let mut fits = why.len().min(MAX_REASON).min(room as usize);
        while !why.is_char_boundary(fits) {
            fits -= 1;
        }
        // Do not cut within a word, unless a cut at a blank loses half of the text.
        let (head, rest) = why.split_at(fits);
        if head.ends_with(char::is_alphanumeric)
            && rest.starts_with(char::is_alphanumeric)
            && let Some(blank) = head.rfind(' ')
            && blank >= fits / 2
        {
            fits = blank;
        }
        let reason = &why.as_bytes()[..fits];
        // The frontend ignores the reason of a cancelled sample: no frame brings more of it.
        let is_cancelled = self.is_cancelled(ticket);
        let refusal = match is_cancelled || reason.len() == why.len() {
            _ if is_away => Refusal::Away,
            true => Refusal::Whole,
            false => Refusal::Cut,
        };
        if let Some(hear) = self.reasons.get()
            && !is_cancelled
        {
            hear(imm, why, refusal == Refusal::Cut);
        }
        let end = from + reason.len() as u32;
        let at = self.output_offset(imm.slot()) + (header + from) as usize;
        // SAFETY: the arrival has been given back, and the posted parts end before `at`. So no
        // other thread accesses these bytes, which lie within the slot's output.
        let to = unsafe { self.output.bytes_mut(at, reason.len()) };
        if let Ok(to) = to {
            to.copy_from_slice(reason);
        }
        self.queue(match growing {
            Some(growing) => {
                growing.refuse(header + end, refusal);
                Ready::Part(imm.slot())
            }
            None => {
                let begin = ResponseHeader {
                    len: end,
                    use_count: imm.use_count(),
                    refusal: Some(refusal),
                    queue_us: 0,
                    compute_us: 0,
                };
                self.begin(imm, &begin);
                Ready::Whole {
                    imm,
                    bytes: header + end,
                    refused: true,
                }
            }
        });
        self.post_ready();
    }
}

impl Origin for ServeConnection {
    fn gpu(&self) -> Option<u32> {
        self.cfgs.gpu
    }

    fn stream(&self) -> Stream {
        self.cfgs.stream
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn parts(&self, parts: &[OutputPart]) {
        parts.iter().for_each(|part| self.queue_part(part));
        let is_first = |part: &OutputPart| part.from == 0;
        match self.cfgs.stream {
            Stream::All if !parts.iter().any(is_first) && self.leaves_parts() => {}
            _ => _ = self.post_ready(),
        }
    }

    fn refuse(&self, ticket: u64, why: &str) {
        self.refuse_as(ticket, why, false);
    }

    fn give_back(&self, ticket: u64, why: &str) {
        self.refuse_as(ticket, why, true);
    }

    fn has_elsewhere(&self) -> bool {
        true
    }

    fn dropped(&self, ticket: u64) {
        match self.is_cancelled(ticket) && !self.is_gone() {
            true => self.refuse_as(ticket, CANCELLED_REASON, false),
            false => _ = self.late.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn is_cancelled(&self, ticket: u64) -> bool {
        let imm = Imm::from_bits(ticket as u32);
        let cancelled = CANCELLED | u32::from(imm.use_count());
        self.mark(imm.slot())
            .is_some_and(|mark| mark.load(Ordering::Relaxed) == cancelled)
    }

    fn respond(&self, finished: &[Finished]) {
        let mut responses = ResponseWrites::new(self, finished);
        self.post_from(&mut responses);
        // These were not posted: a second thread holds the token, or the fabric was full.
        let left = responses.direct.as_slice();
        if !left.is_empty() {
            left.iter().for_each(|f| self.queue(self.ready(f)));
            self.post_ready();
        }
    }
}

/// Responses of one connection: first the queued ones, then the caller's own.
struct ResponseWrites<'a> {
    connection: &'a ServeConnection,
    direct: slice::Iter<'a, Finished>,
    /// Whole answers and last parts, posted in this burst.
    answered: u64,
    /// Refusals posted in this burst.
    refused: u64,
    /// Parts other than last parts, posted in this burst.
    parts: u64,
}

impl<'a> ResponseWrites<'a> {
    fn new(connection: &'a ServeConnection, finished: &'a [Finished]) -> Self {
        ResponseWrites {
            connection,
            direct: finished.iter(),
            answered: 0,
            refused: 0,
            parts: 0,
        }
    }

    /// Posts the next write of `ready`; `None` if the bytes were posted already.
    fn post_response(
        &mut self,
        ready: Ready,
        tx: &mut dyn Tx,
    ) -> Option<Result<bool, Box<Broken>>> {
        let c = self.connection;
        let (slot, posted, ends, refused) = match ready {
            Ready::Whole {
                imm,
                bytes,
                refused,
            } => {
                let posted = tx.post(&Post {
                    source: SourceId(0),
                    offset: c.output_offset(imm.slot()),
                    len: bytes,
                    at: 0,
                    imm,
                });
                (imm.slot(), posted, true, refused)
            }
            Ready::Part(slot) => {
                let (piece, residence) = c.responses.piece(slot)?;
                let (mut imm, mut len) = (piece.imm, piece.to - piece.from);
                let offset = c.output_offset(slot);
                if let Some(trailer) = &piece.trailer {
                    let behind = offset + piece.to as usize;
                    // SAFETY: the arrival has been given back (`respond`), and the posted parts end
                    // before `behind`, so no other thread accesses these bytes.
                    let to = unsafe { c.output.bytes_mut(behind, RESPONSE_TRAILER_BYTES) };
                    if let Ok(to) = to {
                        to.copy_from_slice(&trailer.encode());
                    }
                    len += RESPONSE_TRAILER_BYTES as u32;
                } else {
                    imm = imm.with_more();
                }
                let posted = tx.post(&Post {
                    source: SourceId(0),
                    offset: offset + piece.from as usize,
                    len,
                    at: piece.from,
                    imm,
                });
                if posted.is_ok() {
                    c.responses.posted(slot, &piece, residence);
                }
                let refused = piece.trailer.is_some_and(|t| t.refusal.is_some());
                (slot, posted, piece.trailer.is_some(), refused)
            }
        };
        Some(match posted {
            Ok(()) => {
                if ends {
                    // Not before the post: from the grant on, the frontend may write the slot.
                    c.window.grants().open(slot);
                    self.answered += u64::from(!refused);
                    self.refused += u64::from(refused);
                } else {
                    self.parts += 1;
                }
                Ok(true)
            }
            Err(PostError::Full) if c.responses.push(ready) => Ok(false),
            Err(e) => {
                c.give_up(ready);
                not_posted(e)
            }
        })
    }
}

impl WriteSource for ResponseWrites<'_> {
    fn begin(&mut self) -> usize {
        // One doorbell for all ready responses.
        usize::MAX
    }

    fn post_next(&mut self, tx: &mut dyn Tx, _: &mut SendCounts) -> Result<bool, Box<Broken>> {
        let c = self.connection;
        while let Some(ready) = c.responses.pop() {
            if let Some(next) = self.post_response(ready, tx) {
                return next;
            }
        }
        while let Some(finished) = self.direct.next() {
            let ready = c.ready(finished);
            let next = match ready {
                Ready::Whole { .. } => self.post_response(ready, tx),
                Ready::Part(_) => {
                    c.queue(ready);
                    c.responses
                        .pop()
                        .and_then(|ready| self.post_response(ready, tx))
                }
            };
            if let Some(next) = next {
                return next;
            }
        }
        Ok(false)
    }

    fn end(&mut self, _: usize, _: &mut SendCounts) -> bool {
        let answered = std::mem::take(&mut self.answered);
        self.connection
            .responded
            .fetch_add(answered, Ordering::Relaxed);
        for (n, to) in [
            (&mut self.parts, &self.connection.parts),
            (&mut self.refused, &self.connection.refused),
        ] {
            match std::mem::take(n) {
                0 => {}
                n => _ = to.fetch_add(n, Ordering::Relaxed),
            }
        }
        false
    }

    /// Discards the queue, since the link is gone.
    fn down(&mut self) {
        let c = self.connection;
        while let Some(ready) = c.responses.pop() {
            c.give_up(ready);
        }
    }
}
