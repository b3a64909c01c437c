//! The sending half: turns writes into sends and hands them to the provider in one burst.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ofi::{RemoteRegion, Write};

use super::{OfiForm, OwnMessage, cfgs::EACH, shared::Shared};
use crate::{
    Broken, Endpoint, FabricCounts, Flushed, OpenError, Post, PostError, Region, Tx,
    nic::{CELL_BYTES, Descriptor, IN_CELL},
};

/// Registered staging memory: copies of small payloads, and the contents of cells.
///
/// ```text
///   entry of a write:  [ small payload, padded to 16 | 16 bytes for the cell ]
/// ```
#[derive(Debug)]
pub(super) struct Staging {
    region: Arc<Region>,
    inline_bytes: usize,
}

impl Staging {
    pub(crate) fn new(
        writes: usize,
        inline_bytes: usize,
        nodes: &[u32],
    ) -> Result<Self, OpenError> {
        let inline_bytes = inline_bytes.next_multiple_of(CELL_BYTES);
        let bytes = writes.max(1) * (inline_bytes + CELL_BYTES);
        Ok(Staging {
            region: Arc::new(Region::on_nodes(bytes, nodes)?),
            inline_bytes,
        })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn payload(&self, place: usize) -> usize {
        place * (self.inline_bytes + CELL_BYTES)
    }

    fn cell(&self, place: usize) -> usize {
        self.payload(place) + self.inline_bytes
    }
}

pub(super) struct OfiTx {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    staging: Staging,
    /// Sends that are not yet handed to the provider.
    waiting: VecDeque<Write>,
    linger: Duration,
    /// `moves_in_calls`: bytes move only during calls. `remakes`: the provider reconnects silently.
    moves_in_calls: bool,
    remakes: bool,
    counts_writes: bool,
    said_goodbye: bool,
    until: Option<Instant>,
    counts: FabricCounts,
}

impl OfiTx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        endpoint: Endpoint,
        staging: Staging,
        linger: Duration,
    ) -> Self {
        let device = shared.resources.device().clone();
        OfiTx {
            waiting: VecDeque::with_capacity(EACH * shared.sends.depth()),
            shared,
            endpoint,
            staging,
            linger,
            moves_in_calls: device.moves_in_calls(),
            remakes: device.remakes(),
            counts_writes: device.keeps_order(),
            said_goodbye: false,
            until: None,
            counts: FabricCounts::default(),
        }
    }

    fn alive(&self) -> Result<(), Broken> {
        self.shared.broken().map_or(Ok(()), |b| Err(b.clone()))
    }

    fn bare(&self, send: usize, data: u64) -> Write {
        self.shared.bare(send, Some(data))
    }

    /// Source and offset of a payload; a small payload is first copied to the staging memory.
    fn local(&mut self, post: &Post, place: usize) -> (usize, usize) {
        let len = post.len as usize;
        if len > self.staging.inline_bytes {
            return (usize::from(post.source.0) + 1, post.offset);
        }
        let source = &self.endpoint.sources[usize::from(post.source.0)];
        let offset = self.staging.payload(place);
        // SAFETY: the poster leaves its bytes unchanged until `post` returns (the contract of
        // `Tx`), and `check` found them in bounds. `room` is not 0, so the previous write of this
        // staging entry has retired.
        unsafe {
            if let Ok(bytes) = source.bytes(post.offset, len) {
                let _ = self.staging.region.store(offset, bytes);
            }
        }
        self.counts.inline += 1;
        (0, offset)
    }

    /// Queues the sends of a write. Returns their number.
    fn push(&mut self, post: &Post, place: usize) -> u8 {
        let (imm, len) = (post.imm.bits(), post.len as usize);
        let (first, second) = (EACH * place, EACH * place + 1);
        let with_length = u64::from(post.len) << 32 | u64::from(imm);
        if len == 0 && self.shared.form != OfiForm::Cell {
            self.waiting.push_back(self.bare(first, with_length));
            return 1;
        }
        let slot = u64::from(post.imm.slot());
        let at = slot * self.endpoint.peer_stride as u64 + u64::from(post.at);
        let (source, offset) = self.local(post, place);
        let mut payload = self.shared.bare(first, None);
        (payload.source, payload.offset, payload.len) = (source, offset, len);
        payload.target.addr = payload.target.addr.wrapping_add(at);
        let whole = len == self.endpoint.peer_stride && post.at == 0;
        let data = match self.shared.form {
            OfiForm::Completion => Some(u64::from(imm)),
            OfiForm::Data => Some(with_length),
            OfiForm::Cell if whole => Some(u64::from(imm)),
            OfiForm::After | OfiForm::Cell => None,
        };
        payload.data = data;
        self.waiting.push_back(payload);
        if data.is_some() {
            return 1;
        }
        let note = match (self.shared.form, self.shared.cells) {
            (OfiForm::Cell, Some(cells)) => self.cell(post, place, cells),
            _ => self.bare(second, with_length),
        };
        self.waiting.push_back(note);
        EACH as u8
    }

    /// Builds the send of a descriptor into the cell beside a slot.
    fn cell(&self, post: &Post, place: usize, cells: RemoteRegion) -> Write {
        let descriptor = Descriptor::encode(post);
        let offset = self.staging.cell(place);
        // SAFETY: the previous write of this staging entry has retired, as in `local`.
        let _ = unsafe { self.staging.region.store(offset, &descriptor) };
        let at = u64::from(post.imm.slot()) * CELL_BYTES as u64;
        let data = u64::from(post.imm.bits() | IN_CELL);
        let mut write = self.bare(EACH * place + 1, data);
        (write.offset, write.len, write.target) = (offset, CELL_BYTES, cells);
        write.target.addr = cells.addr.wrapping_add(at);
        write
    }

    /// Polls the provider, unless the receiving half is polling it.
    fn progress(&self) {
        if let Some(mut queue) = self.shared.queue_if_free() {
            self.shared.progress(&mut queue);
        }
    }

    /// Hands waiting sends to the provider until it has no more room.
    fn hand_over(&mut self) -> Result<(), Broken> {
        let before = self.counts.work_requests;
        let mut again = false;
        while let Some(write) = self.waiting.front() {
            match self.shared.endpoint.write(write) {
                Ok(()) => {
                    self.shared.sends.count_handed();
                    self.waiting.pop_front();
                    self.counts.work_requests += 1;
                    again = false;
                }
                Err(e) if e.is_again() && !again => {
                    // No room, yet nothing in flight: the provider lost its socket and reconnects
                    // without reporting the lost writes.
                    let idle = self.shared.sends.under_way() == 0;
                    if idle && self.remakes && self.shared.is_warm() {
                        let name = self.shared.resources.device().name();
                        let lost = format!("{name} has lost its connection to the peer");
                        self.shared.fail(Broken::Device(lost));
                        break;
                    }
                    again = true;
                    self.counts.partial += 1;
                    self.progress();
                }
                Err(e) if e.is_again() => break,
                Err(e) => {
                    self.shared.fail(e);
                    break;
                }
            }
            self.alive()?;
        }
        self.counts.doorbells += u64::from(self.counts.work_requests > before);
        self.alive()
    }
}

impl Tx for OfiTx {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.alive()?;
        self.endpoint.check(post)?;
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let place = self.shared.sends.place();
        let sends = if post.imm.is_control() {
            let mut sends = 0;
            if self.counts_writes {
                let count = OwnMessage::Count(self.counts.writes as u32).bits();
                self.waiting
                    .push_back(self.bare(EACH * place, count.into()));
                sends += 1;
            }
            let bits = post.imm.bits().into();
            let send = EACH * place + usize::from(sends);
            self.waiting.push_back(self.bare(send, bits));
            sends + 1
        } else {
            self.push(post, place)
        };
        post.count(self.endpoint.peer_stream, &mut self.counts);
        self.shared.sends.begin(sends);
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, Broken> {
        self.alive()?;
        self.hand_over()?;
        let under_way = self.shared.sends.under_way() > 0;
        if (under_way && self.moves_in_calls) || self.room() * 2 <= self.shared.sends.depth() {
            self.progress();
        }
        self.alive()?;
        let stuck = !self.waiting.is_empty() || self.room() == 0;
        let moving = self.moves_in_calls && self.shared.sends.under_way() > 0;
        Ok(if stuck || moving {
            Flushed::Blocked
        } else {
            Flushed::Done
        })
    }

    fn room(&self) -> usize {
        let sends = &self.shared.sends;
        sends.depth() - (sends.posted() - sends.retired()) as usize
    }

    fn posted(&self) -> u64 {
        self.shared.sends.posted()
    }

    fn retired(&self) -> u64 {
        self.shared.sends.retired()
    }

    fn inline_limit(&self) -> usize {
        self.staging.inline_bytes
    }

    fn finish(&mut self) -> bool {
        if self.shared.broken().is_some() || !self.shared.is_warm() {
            return true;
        }
        let until = *self
            .until
            .get_or_insert_with(|| Instant::now() + self.linger);
        if self.hand_over().is_err() {
            return true;
        }
        if self.waiting.is_empty() && !self.said_goodbye {
            self.said_goodbye = self.shared.say_goodbye(self.counts.writes);
            self.counts.work_requests += u64::from(self.said_goodbye);
        }
        self.progress();
        let gone = self.said_goodbye && self.shared.sends.under_way() == 0;
        gone || self.shared.broken().is_some() || Instant::now() >= until
    }

    fn counts(&self) -> FabricCounts {
        FabricCounts {
            retired: self.shared.sends.completed(),
            signaled: self.counts.work_requests,
            ..self.counts
        }
    }
}

impl Drop for OfiTx {
    fn drop(&mut self) {
        // `finish` has returned true already, except where the connection never came up.
        while !self.finish() {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_the_staging_memory_do_not_overlap() {
        let s = Staging::new(3, 20, &[]).expect("memory");
        let mut at = 0;
        for place in 0..3 {
            assert_eq!(s.payload(place), at);
            assert_eq!(s.cell(place), at + 32);
            at += 48;
        }
        assert!(s.region().len() >= at);
    }
}
