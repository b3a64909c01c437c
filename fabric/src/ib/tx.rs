//! The sending half: chains work requests, rings one doorbell per chain, and retires them in bulk.

use std::{sync::Arc, thread, time::Instant};

use verbs::{Mr, Payload, RemoteSlice, SendChain};

use super::{CLOSE, IbCfgs, shared::Shared, shared::wr_id};
use crate::{
    Broken, Endpoint, FabricCounts, Flushed, Post, PostError, Tx,
    nic::{CELL_BYTES, Descriptor, IN_CELL},
};

/// Work requests beside those of writes: the goodbye, and an empty signaled write, by which earlier
/// unsignaled requests retire.
pub(super) const SPARE: u32 = 2;

/// Addresses and keys of the peer's slots and cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub slots: RemoteSlice,
    pub cells: RemoteSlice,
}

pub(super) struct IbTx {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    sources: Vec<Arc<Mr>>,
    target: Target,
    cfgs: IbCfgs,
    /// Most work requests per write.
    each: u64,
    /// Payloads up to this many bytes travel inline.
    inline_bytes: usize,
    chain: SendChain,
    /// Writes and work requests pushed since the connection was made.
    writes: u64,
    work_requests: u64,
    last_signaled: u64,
    /// The last work request carries an immediate, so it can wake the peer.
    ends_in_imm: bool,
    said_goodbye: bool,
    /// Deadline of the goodbye.
    until: Option<Instant>,
    counts: FabricCounts,
}

impl IbTx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        endpoint: Endpoint,
        sources: Vec<Arc<Mr>>,
        target: Target,
        cfgs: IbCfgs,
    ) -> Self {
        let inline_bytes = cfgs.keys.inline_bytes as usize;
        let inline = shared.qp.caps().max_inline_data as usize;
        let room = (cfgs.send_depth + SPARE) as usize;
        IbTx {
            chain: SendChain::new(room, inline.min(inline_bytes.max(CELL_BYTES))),
            each: u64::from(cfgs.keys.each()),
            inline_bytes,
            shared,
            endpoint,
            sources,
            target,
            cfgs,
            writes: 0,
            work_requests: 0,
            last_signaled: 0,
            ends_in_imm: false,
            said_goodbye: false,
            until: None,
            counts: FabricCounts::default(),
        }
    }

    fn alive(&self) -> Result<(), Broken> {
        self.shared.broken().map_or(Ok(()), |b| Err(b.clone()))
    }

    /// Appends one work request. `ends_write` marks the last one of its write.
    fn push(
        &mut self,
        payload: Payload<'_>,
        remote: RemoteSlice,
        imm: Option<u32>,
        ends_write: bool,
        signal: bool,
    ) -> bool {
        let work_requests = self.work_requests + 1;
        let writes = self.writes + u64::from(ends_write);
        // Signal no first half of a split write: it alone cannot retire the write.
        let due = work_requests - self.last_signaled >= u64::from(self.cfgs.signal_every);
        let signaled = signal || (ends_write && due);
        let wr_id = wr_id(work_requests, writes);
        if !self.chain.push(wr_id, payload, remote, imm, signaled) {
            return false;
        }
        self.work_requests = work_requests;
        self.writes = writes;
        self.ends_in_imm = imm.is_some();
        self.counts.work_requests += 1;
        if signaled {
            self.last_signaled = work_requests;
            self.counts.signaled += 1;
        }
        true
    }

    /// Posts the chain to the device. Work requests that the device refuses stay in the chain.
    fn ring(&mut self) -> Result<(), Broken> {
        if self.cfgs.keys.solicited && self.ends_in_imm {
            self.chain.solicit_last();
        }
        for _ in 0..2 {
            if self.chain.is_empty() {
                return Ok(());
            }
            self.counts.doorbells += 1;
            self.counts.syscalls += 1;
            match self.shared.qp.post_send(&mut self.chain) {
                Ok(()) => return Ok(()),
                Err(e) if e.is_full() => {
                    self.counts.partial += 1;
                    self.shared.retire();
                }
                Err(e) => {
                    // A queue pair in ERR refuses posts: retire first, to find the cause.
                    self.shared.retire();
                    self.shared.fail(e);
                }
            }
            self.alive()?;
        }
        Ok(())
    }

    fn under_way(&self) -> u64 {
        self.work_requests - self.shared.retired_wrs()
    }

    /// Pushes an empty signaled write if work requests are in flight and none of them is signaled.
    fn retire_what_idles(&mut self) {
        let retired = self.shared.retired_wrs();
        if self.work_requests > self.last_signaled && retired >= self.last_signaled {
            self.push(Payload::Empty, self.target.slots, None, false, true);
        }
    }

    fn slice(&self, post: &Post) -> Result<verbs::LocalSlice, PostError> {
        self.sources
            .get(usize::from(post.source.0))
            .and_then(|mr| mr.slice(post.offset, post.len as usize))
            .ok_or_else(|| post.out_of_bounds())
    }

    /// Pushes a payload as one work request, or as two if it is split.
    fn push_payload(&mut self, post: &Post) -> Result<bool, PostError> {
        let imm = post.imm.bits();
        let slot = u64::from(post.imm.slot());
        let at = slot * self.endpoint.peer_stride as u64 + u64::from(post.at);
        let mut remote = self.target.slots;
        remote.addr = remote.addr.wrapping_add(at);
        let len = post.len as usize;
        if len <= self.inline_bytes {
            let source = &self.endpoint.sources[usize::from(post.source.0)].clone();
            // SAFETY: the poster leaves these bytes unchanged until `post` returns (the contract of
            // `Tx`); `check` found them in bounds.
            let bytes = unsafe { source.bytes(post.offset, len) }.unwrap_or_default();
            self.counts.inline += 1;
            return Ok(self.push(Payload::Inline(bytes), remote, Some(imm), true, false));
        }
        let local = Payload::Region(self.slice(post)?);
        // The receiver derives offsets of parts from their order, so a part is never split.
        let part = post.imm.more() || post.at > 0;
        let split_above = self.cfgs.keys.adaptive_routing.split_above;
        if part || split_above.is_none_or(|limit| post.len <= limit) {
            return Ok(self.push(local, remote, Some(imm), true, false));
        }
        if !self.push(local, remote, None, false, false) {
            return Ok(false);
        }
        let imm = imm | IN_CELL;
        if len == self.endpoint.peer_stride {
            let remote = self.target.slots;
            return Ok(self.push(Payload::Empty, remote, Some(imm), true, false));
        }
        let mut cell = self.target.cells;
        cell.addr = cell.addr.wrapping_add(slot * CELL_BYTES as u64);
        self.counts.inline += 1;
        let descriptor = Descriptor::encode(post);
        let bytes = Payload::Inline(&descriptor);
        Ok(self.push(bytes, cell, Some(imm), true, false))
    }
}

impl Tx for IbTx {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        self.alive()?;
        self.endpoint.check(post)?;
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let pushed = if post.len == 0 {
            let (remote, imm) = (self.target.slots, post.imm.bits());
            self.push(Payload::Empty, remote, Some(imm), true, false)
        } else {
            self.push_payload(post)?
        };
        // `room` counts the chain's free entries, so the chain accepts the push.
        if !pushed {
            return Err(PostError::Full);
        }
        post.count(self.endpoint.peer_stream, &mut self.counts);
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, Broken> {
        self.alive()?;
        if self.chain.is_empty() {
            self.shared.retire();
            self.retire_what_idles();
        }
        self.ring()?;
        if self.room() * 2 <= self.cfgs.writes as usize {
            self.shared.retire();
        }
        if self.room() == 0 || !self.chain.is_empty() {
            self.shared.arm_send();
            if !self.chain.is_empty() {
                self.ring()?;
            }
        }
        self.alive()?;
        Ok(if self.room() == 0 || !self.chain.is_empty() {
            Flushed::Blocked
        } else {
            Flushed::Done
        })
    }

    fn room(&self) -> usize {
        let wrs = u64::from(self.cfgs.send_depth).saturating_sub(self.under_way()) / self.each;
        let writes = self.writes - self.shared.retired_writes();
        let writes = u64::from(self.cfgs.writes).saturating_sub(writes);
        let chain = self.chain.room() as u64 / self.each;
        writes.min(wrs).min(chain) as usize
    }

    fn posted(&self) -> u64 {
        self.writes
    }

    fn retired(&self) -> u64 {
        self.shared.retired_writes()
    }

    fn inline_limit(&self) -> usize {
        self.inline_bytes
    }

    fn finish(&mut self) -> bool {
        if self.shared.broken().is_some() {
            return true;
        }
        let until = *self
            .until
            .get_or_insert_with(|| Instant::now() + self.cfgs.linger);
        if !self.said_goodbye {
            let remote = self.target.slots;
            self.said_goodbye = self.push(Payload::Empty, remote, Some(CLOSE), false, true);
            if self.said_goodbye {
                // The goodbye must wake a sleeping peer, whatever precedes it in the chain.
                self.chain.solicit_last();
            }
        }
        if self.ring().is_err() {
            return true;
        }
        self.shared.retire();
        (self.said_goodbye && self.under_way() == 0) || Instant::now() >= until
    }

    fn counts(&self) -> FabricCounts {
        FabricCounts {
            retired: self.shared.retired_wrs(),
            cqes: self.shared.send_cqes(),
            ..self.counts
        }
    }
}

impl Drop for IbTx {
    fn drop(&mut self) {
        // `finish` has returned true already, except where the connection never came up.
        while !self.finish() {
            thread::yield_now();
        }
        self.shared.half_gone();
    }
}
