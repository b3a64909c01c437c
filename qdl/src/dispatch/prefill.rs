//! Prefill and decode on different nodes: from a prefill node's answer to the decode node's post.
//!
//! ```text
//!   backlog of new samples --> prefill node --> first token and handle, kept in their answer slot
//!        ^                                                   |
//!        |  the handle is stale                              v
//!        +------------- backlog of prefilled samples --> decode node, behind the handle
//! ```
//!
//! A handle stays in the answer slot of its prefill connection until a decode connection has posted
//! the sample. So prompts whose KV cache waits are at most as many as those slots: a slow decode
//! node holds the prefill nodes back. The post copies block, handle and prompt into the slot of the
//! decode connection's staging region. While prefilled samples wait, nothing is posted to prefill
//! nodes: a handle must be used in time.
//!
//! A handle serves one post. What loses, refuses or spoils the decode attempt sends the sample to a
//! prefill node again, and so does a handle whose connection has been lost, or which is older than
//! [`HANDLE_NS`]: its KV cache may be gone.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
};

use record::NodeRole;

use super::{
    Attempt, Connection, DispatchState, NEW, PREFILLED, Sample, WARM_UP_ID,
    connection::{NotPosted, Payloads},
};
use crate::{connection::tracker::InFlight, request::RequestOptions};
use fabric::{Tx, clock::now_ns, os::lock};

/// Age at which a handle is stale. The prefill core of vLLM 0.24 to 0.32 keeps a KV cache for 30 s
/// (`kv_lease_duration` of `NixlConnector`), until a decode core has the request. A decode core
/// does not notice that the blocks have other contents meanwhile.
const HANDLE_NS: u64 = 20_000_000_000;

/// The handles of prefilled samples that have not been posted to a decode node.
#[derive(Default)]
pub(super) struct Handles {
    /// Number of handles.
    count: AtomicUsize,
    of_sample: Mutex<HashMap<u64, Handle>>,
    /// Handles so far.
    pub prefilled: AtomicU64,
}

/// Place of a handle: a range of an answer slot that is not released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    connection: usize,
    epoch: u32,
    slot: u16,
    offset: u32,
    len: u32,
    arrived_ns: u64,
}

/// A prefill node's answer with a handle, read in this turn.
pub(super) struct Prefilled {
    /// Index of the prefill connection.
    pub connection: usize,
    pub slot: u16,
    pub in_flight: InFlight,
    /// Bytes of token and handle.
    pub len: u32,
}

impl Handles {
    fn insert(&self, id: u64, handle: Handle) {
        let mut all = lock(&self.of_sample);
        all.insert(id, handle);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn get(&self, id: u64) -> Option<Handle> {
        lock(&self.of_sample).get(&id).copied()
    }

    fn remove(&self, id: u64) -> Option<Handle> {
        let mut all = lock(&self.of_sample);
        let removed = all.remove(&id);
        self.count.store(all.len(), Ordering::Relaxed);
        removed
    }

    /// Number of handles in slots of this connection.
    #[cfg(feature = "testkit")]
    pub fn on(&self, connection: usize) -> usize {
        let all = lock(&self.of_sample);
        all.values().filter(|h| h.connection == connection).count()
    }
}

impl DispatchState {
    /// Sends the sample of a prefill node's answer to a decode node.
    pub(super) fn hand_over(&self, prefilled: &Prefilled) {
        let f = &prefilled.in_flight;
        let (id, from) = (f.sample.id, &self.connections[prefilled.connection]);
        from.end_prompt(&f.sample);
        let mut attempt = f.attempt();
        let now = now_ns();
        attempt
            .history
            .tries
            .prefilled(now.saturating_sub(f.sample.issued_ns));
        let handle = self.handle(from, prefilled.slot, prefilled.len, now);
        self.handles.insert(id, handle);
        self.handles.prefilled.fetch_add(1, Ordering::Relaxed);
        if self.end_if_cancelled(&attempt) {
            return;
        }
        if self.is_aborted() {
            return self.complete_empty(&[attempt.sample]);
        }
        let is_decode = |c: &Connection| c.cfgs.role == NodeRole::Decode;
        if !self.retry_now(&attempt, is_decode) {
            self.backlogs[PREFILLED].push(std::iter::once(attempt));
            self.look_again(id);
            // A slot may have come free between the choice and the push.
            fence(Ordering::SeqCst);
            let decode = self.connections.iter().filter(|c| is_decode(c));
            decode.filter(|c| c.takes()).for_each(|c| self.wake(c));
        }
        if self.is_aborted() {
            self.empty_backlog();
        }
    }

    /// The handle at the end of an answer of `len` bytes in this slot.
    fn handle(&self, from: &Connection, slot: u16, len: u32, now: u64) -> Handle {
        let offset = self.receiving.token_bytes;
        Handle {
            connection: from.index,
            epoch: from.epoch.load(Ordering::Acquire),
            slot,
            offset,
            len: len - offset,
            arrived_ns: now,
        }
    }

    /// The handle of a sample that a decode connection is about to post; `None` if it is stale.
    pub(super) fn fresh_handle(&self, id: u64, now: u64) -> Option<Handle> {
        self.handles.get(id).filter(|handle| {
            let from = &self.connections[handle.connection];
            from.up.load(Ordering::SeqCst)
                && from.epoch.load(Ordering::Acquire) == handle.epoch
                && now.saturating_sub(handle.arrived_ns) < HANDLE_NS
        })
    }

    /// Lets a sample with a stale handle wait for a prefill node again.
    pub(super) fn prefill_again(&self, attempt: &Attempt) {
        let id = attempt.sample.id;
        self.end_handle(id);
        self.backlogs[NEW].push(std::iter::once(*attempt));
        self.look_again(id);
        self.wake_all();
    }

    /// Posts a sample on a decode connection, behind its handle.
    pub(super) fn post_prefilled(
        &self,
        connection: &Connection,
        link: &mut dyn Tx,
        slot: u16,
        attempt: &Attempt,
        handle: Handle,
        now: u64,
    ) -> Result<usize, NotPosted> {
        let from = &self.connections[handle.connection];
        // SAFETY: the answer has closed the slot's grant, and the slot is released only when the
        // handle ends: below, or by the thread that ends a sample that no connection has.
        let bytes = unsafe { from.payload(handle.slot, handle.offset, handle.len) };
        let posted = connection.post_behind(link, &self.payloads, slot, attempt, bytes, now);
        if posted.as_ref().map_or_else(|e| !e.is_ours, |_| true) {
            self.end_handle(attempt.sample.id);
        }
        posted
    }

    /// Keeps the handle of a warm-up sample's answer, for the decode node of its pair; false if the
    /// answer has none.
    pub(super) fn keep_warm_up(&self, connection: &Connection, slot: u16, len: u32) -> bool {
        let has_handle = self.hands_over(connection, len);
        if has_handle {
            self.end_handle(WARM_UP_ID);
        }
        // A warm-up that has failed ends the handle, and no later one is kept.
        let handle = || self.handle(connection, slot, len, now_ns());
        let insert = || self.handles.insert(WARM_UP_ID, handle());
        has_handle && self.warm_up.while_running(insert).is_some()
    }

    /// Whether an answer of `len` bytes is a prefill node's, with a handle.
    pub(super) fn hands_over(&self, connection: &Connection, len: u32) -> bool {
        connection.cfgs.role == NodeRole::Prefill && len > self.receiving.token_bytes
    }

    /// Ends the handle of a sample, if it has one, and frees the handle's slot.
    #[inline]
    pub(super) fn end_handle(&self, id: u64) {
        if self.handles.is_any()
            && let Some(handle) = self.handles.remove(id)
        {
            self.free_slot(&self.connections[handle.connection], handle.slot);
        }
    }

    /// Whether a connection to a prefill node posts nothing for now: prefilled samples wait for a
    /// decode node. So their handles do not become stale in a long backlog.
    #[inline]
    pub(super) fn is_held_back(&self, connection: &Connection) -> bool {
        connection.cfgs.role == NodeRole::Prefill && !self.backlogs[PREFILLED].is_empty()
    }

    /// Frees an answer slot that was kept, on any thread.
    pub(super) fn free_slot(&self, connection: &Connection, slot: u16) {
        connection.tracker.release(slot);
        // Either this thread sees a waiting sample, or the sample's thread sees the free slot.
        fence(Ordering::SeqCst);
        self.distribute();
        if self.waits_for(connection) {
            self.wake(connection);
        }
    }
}

impl Connection {
    /// Counts a prompt that is about to be posted to a prefill node. [`Self::end_prompt`] follows
    /// once: when the prompt is not posted, is answered or refused, or is lost.
    /// Warm-up samples do not count.
    pub(super) fn begin_prompt(&self, sample: &Sample) {
        if self.counts_prompt(sample) {
            let bytes = u64::from(sample.len);
            self.prompts.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn end_prompt(&self, sample: &Sample) {
        if self.counts_prompt(sample) {
            let bytes = u64::from(sample.len);
            self.prompts.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn counts_prompt(&self, sample: &Sample) -> bool {
        self.cfgs.role == NodeRole::Prefill && sample.id != WARM_UP_ID
    }

    /// As [`Connection::post_sample`], with a handle in the sample's options.
    fn post_behind(
        &self,
        link: &mut dyn Tx,
        payloads: &Payloads,
        slot: u16,
        attempt: &Attempt,
        handle: &[u8],
        now_ns: u64,
    ) -> Result<usize, NotPosted> {
        let sample = &attempt.sample;
        let at = usize::from(slot) * self.cfgs.request_stride;
        let assembled = payloads.of(sample).and_then(|payload| {
            let block = match sample.has_options {
                true => usize::from(RequestOptions::block_len(payload)?),
                false => 0,
            };
            let (block, prompt) = payload.split_at(block);
            let staging = self.staging.as_ref()?;
            // SAFETY: the caller has reserved the slot, so no other thread accesses the slot's
            // staging bytes.
            let to = unsafe { staging.bytes_mut(at, self.cfgs.request_stride) }.ok()?;
            let len = RequestOptions::put_handle(block, handle, to)?;
            to.get_mut(len..len + prompt.len())?.copy_from_slice(prompt);
            Some((len + prompt.len()) as u32)
        });
        let Some(len) = assembled else {
            // Unreachable: the slots have room for prompt, options and handle.
            self.tracker.release(slot);
            return Err(NotPosted::FULL);
        };
        let staged = (payloads.staging(), at, len);
        self.post_at(link, slot, attempt, staged, true, now_ns)
            .map(|()| len as usize)
    }
}
