//! From NIC threads to the threads that serve connections: what came of each sample, in one batch
//! for each thread and turn.

use std::{mem, sync::Arc, sync::Mutex};

use fabric::{clock::now_ns, os::lock};
use qdl::dispatch::{Completer, KeptResponse, RefusedSample, ResponsePart, Sample};
use tokio::sync::Notify;

/// Maximum number of threads that serve connections: a sample's id names one in 8 bits.
pub const MAX_THREADS: usize = 128;

/// A sample's id: thread, place among the thread's requests, and the place's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The thread.
    pub thread: u8,
    /// The place's use, modulo 2^24.
    pub used: u32,
    /// The place.
    pub place: u32,
}

impl RequestId {
    /// The id as a number.
    pub fn to_bits(self) -> u64 {
        let used = u64::from(self.used & 0xff_ffff);
        u64::from(self.thread) << 56 | used << 32 | u64::from(self.place)
    }

    /// The id of a number.
    pub fn from_bits(bits: u64) -> Self {
        RequestId {
            thread: (bits >> 56) as u8,
            used: (bits >> 32) as u32 & 0xff_ffff,
            place: bits as u32,
        }
    }
}

/// Tokens of an unfinished answer.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedTokens {
    /// The sample.
    pub id: RequestId,
    /// Tokens of the answer before these.
    pub offset: u32,
    /// Number of tokens, which lie in [`Batch::ids`] in the order of the parts.
    pub len: u32,
    /// When the part was read, on [`fabric::clock`].
    pub at_ns: u64,
}

/// The end of a sample.
#[derive(Debug)]
pub enum Outcome {
    /// The whole answer, in the slot where it landed.
    Answered(KeptResponse),
    /// The accelerators refused the sample, for this reason.
    Refused(String),
    /// The run ends; no accelerator answers any more.
    Lost,
}

/// What NIC threads have read for one thread. All parts come before all ends.
#[derive(Debug, Default)]
pub struct Batch {
    /// Parts in the order of arrival.
    pub parts: Vec<ArrivedTokens>,
    /// The tokens of `parts`.
    pub ids: Vec<i32>,
    /// Ends, each with its time on [`fabric::clock`].
    pub ends: Vec<(RequestId, u64, Outcome)>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.ends.is_empty()
    }

    /// Removes everything and keeps the memory.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.ids.clear();
        self.ends.clear();
    }
}

/// The inbox of one thread.
#[derive(Debug, Default)]
pub struct Inbox {
    batch: Mutex<Batch>,
    filled: Notify,
}

impl Inbox {
    /// Appends `batch`, which is empty afterwards, and wakes the thread. The lock is held for a
    /// copy of a turn's tokens, or for a swap.
    fn put(&self, batch: &mut Batch) {
        if batch.is_empty() {
            return;
        }
        let was_empty = {
            let mut held = lock(&self.batch);
            let was_empty = held.is_empty();
            if was_empty {
                mem::swap(&mut *held, batch);
            } else {
                held.parts.append(&mut batch.parts);
                held.ids.append(&mut batch.ids);
                held.ends.append(&mut batch.ends);
            }
            was_empty
        };
        batch.clear();
        // The thread that finds a filled inbox has been woken for it.
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// Exchanges the contents for `empty`, and waits for some first.
    pub async fn take(&self, empty: &mut Batch) {
        loop {
            mem::swap(&mut *lock(&self.batch), empty);
            if !empty.is_empty() {
                return;
            }
            self.filled.notified().await;
        }
    }

    /// Ends samples that no accelerator answers any more.
    pub fn lose(inboxes: &[Inbox], samples: &[Sample]) {
        for sample in samples {
            let id = RequestId::from_bits(sample.id);
            let mut batch = Batch::default();
            batch.ends.push((id, now_ns(), Outcome::Lost));
            if let Some(inbox) = inboxes.get(usize::from(id.thread)) {
                inbox.put(&mut batch);
            }
        }
    }
}

/// Sorts the answers of one NIC by the thread that serves their connection.
pub struct Router {
    inboxes: Arc<[Inbox]>,
    batches: Vec<Batch>,
}

impl Router {
    /// Makes a router to these threads.
    pub fn new(inboxes: &Arc<[Inbox]>) -> Self {
        Router {
            inboxes: inboxes.clone(),
            batches: inboxes.iter().map(|_| Batch::default()).collect(),
        }
    }

    fn send(&mut self) {
        for (inbox, batch) in self.inboxes.iter().zip(&mut self.batches) {
            inbox.put(batch);
        }
    }

    fn end(&mut self, id: u64, at_ns: u64, outcome: Outcome) {
        let id = RequestId::from_bits(id);
        if let Some(batch) = self.batches.get_mut(usize::from(id.thread)) {
            batch.ends.push((id, at_ns, outcome));
        }
    }
}

impl Completer for Router {
    fn complete(&mut self, _: &mut dyn ExactSizeIterator<Item = qdl::dispatch::Response<'_>>) {}

    fn keeps(&self) -> bool {
        true
    }

    fn complete_kept(&mut self, responses: &mut dyn ExactSizeIterator<Item = KeptResponse>) {
        let now = now_ns();
        for kept in responses {
            self.end(kept.response().id, now, Outcome::Answered(kept));
        }
        self.send();
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        let at_ns = now_ns();
        for part in parts {
            let id = RequestId::from_bits(part.id);
            let Some(batch) = self.batches.get_mut(usize::from(id.thread)) else {
                continue;
            };
            let (ids, _) = part.payload.as_chunks();
            batch
                .ids
                .extend(ids.iter().map(|id| i32::from_le_bytes(*id)));
            batch.parts.push(ArrivedTokens {
                id,
                offset: part.offset / size_of::<i32>() as u32,
                len: ids.len() as u32,
                at_ns,
            });
        }
        self.send();
    }

    fn refused(&mut self, id: u64, refused: &RefusedSample) -> bool {
        self.end(id, now_ns(), Outcome::Refused(refused.reason.clone()));
        self.send();
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_survives_as_a_number(thread in 0..MAX_THREADS as u8, used in 0u32..1 << 24,
                                      place: u32) {
            let id = RequestId { thread, used, place };
            prop_assert_eq!(RequestId::from_bits(id.to_bits()), id);
            prop_assert_ne!(id.to_bits(), qdl::dispatch::WARM_UP_ID);
        }
    }

    #[test]
    fn a_thread_finds_what_several_turns_brought_in_their_order() {
        let inboxes: Arc<[Inbox]> = [Inbox::default(), Inbox::default()].into();
        let mut router = Router::new(&inboxes);
        let id = RequestId {
            thread: 1,
            used: 3,
            place: 9,
        };
        for offset in [0u32, 1] {
            let payload = [offset as u8, 0, 0, 0];
            let part = ResponsePart {
                id: id.to_bits(),
                index: 0,
                offset: offset * 4,
                payload: &payload,
                has_first_token: offset == 0,
                losses: 0,
            };
            router.parts(&mut [part].into_iter());
        }
        Inbox::lose(
            &inboxes,
            &[Sample {
                id: id.to_bits(),
                ..Sample::default()
            }],
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let mut batch = Batch::default();
        runtime.block_on(inboxes[1].take(&mut batch));
        assert_eq!(batch.ids, [0, 1]);
        assert_eq!(
            batch.parts.iter().map(|p| p.offset).collect::<Vec<_>>(),
            [0, 1]
        );
        assert!(matches!(batch.ends[..], [(own, _, Outcome::Lost)] if own == id));
    }
}
