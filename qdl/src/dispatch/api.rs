//! Types of the dispatcher's interface: settings, responses, callbacks, events and counts.

use std::{fmt, io, sync::Arc};

use record::NodeRole;

use super::{DispatchState, Sample, Tries};
use crate::{
    connection::{CrewPlan, EchoCfgs, NicThreadCfgs, tracker::InFlight},
    counters::Recorder,
    model::Lengths,
    rails::{Change, Policy},
};
use fabric::wire::Stream;
use fabric::{Broken, Imm, Region, RegionError};

/// One response, valid during the callback.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The sample's id, as issued.
    pub id: u64,
    /// The sample's index, as issued.
    pub index: u64,
    /// Index of the connection that delivered the response.
    pub connection: usize,
    /// Bytes of the response, in the slot where the fabric stored them.
    pub payload: &'a [u8],
    /// No part of the response was passed to [`Completer::parts`], on this or a lost connection:
    /// the first and the last token come together.
    pub whole: bool,
}

/// A response in the slot where it landed. Drop it on any thread to free the slot.
///
/// Until then the slot counts as in flight, so a caller that keeps every slot of a connection stops
/// that connection. The memory stays mapped as long as the response lives, after the dispatcher,
/// too.
pub struct KeptResponse {
    state: Arc<DispatchState>,
    id: u64,
    index: u64,
    connection: usize,
    pub(super) slot: u16,
    len: u32,
    whole: bool,
}

impl KeptResponse {
    /// Makes the only guard of a response's slot, which the caller then does not free.
    pub(super) fn new(state: &Arc<DispatchState>, slot: u16, response: &Response<'_>) -> Self {
        KeptResponse {
            state: state.clone(),
            id: response.id,
            index: response.index,
            connection: response.connection,
            slot,
            len: response.payload.len() as u32,
            whole: response.whole,
        }
    }

    /// The response.
    pub fn response(&self) -> Response<'_> {
        let connection = &self.state.connections[self.connection];
        Response {
            id: self.id,
            index: self.index,
            connection: self.connection,
            // SAFETY: the response has closed the slot's grant. A new grant follows the slot's
            // release, which only `drop` does: a sweep leaves closed grants alone.
            payload: unsafe { connection.payload(self.slot, 0, self.len) },
            whole: self.whole,
        }
    }
}

impl Drop for KeptResponse {
    fn drop(&mut self) {
        let state = &*self.state;
        state.free_slot(&state.connections[self.connection], self.slot);
    }
}

impl fmt::Debug for KeptResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.response().fmt(f)
    }
}

/// A part of an unfinished response, valid during the callback.
#[derive(Clone, Copy, Debug)]
pub struct ResponsePart<'a> {
    /// The sample's id, as issued.
    pub id: u64,
    /// The sample's index, as issued.
    pub index: u64,
    /// Bytes of the response before this part.
    pub offset: u32,
    /// Bytes of this part, in the slot where the fabric stored them.
    pub payload: &'a [u8],
    /// The part holds the sample's first token, which was not reported before.
    pub has_first_token: bool,
    /// Connections lost so far while the sample was in flight on them.
    pub losses: u16,
}

/// Two different first tokens of one sample: one was reported before a connection was lost, and the
/// retry's answer begins with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The sample's index, as issued.
    pub index: u64,
    /// The reported first token, little-endian.
    pub reported: u64,
    /// The first token of the retry.
    pub repeated: u64,
    /// Index of the connection that delivered the retry's answer.
    pub connection: usize,
}

impl Contradiction {
    /// Compares a first token with the reported one; `None` where they agree or none was reported.
    pub fn of(in_flight: &InFlight, repeated: Option<u64>, connection: usize) -> Option<Self> {
        let reported = in_flight.history.first_token?.token;
        (repeated != Some(reported)).then(|| Contradiction {
            index: in_flight.sample.index,
            reported,
            repeated: repeated.unwrap_or_default(),
            connection,
        })
    }
}

/// Consumes the responses of one NIC, on the NIC's thread.
pub trait Completer: Send {
    /// Function that each NIC thread of this completer runs first; `None` for no function.
    fn begin(&self) -> Option<fn()> {
        None
    }

    /// Completes the samples answered in one turn. Their slots are freed once the call returns.
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>);

    /// Whether this completer keeps its responses: the dispatcher then calls
    /// [`Self::complete_kept`] in place of [`Self::complete`].
    fn keeps(&self) -> bool {
        false
    }

    /// As [`Self::complete`], but each slot is freed when its response is dropped, at any time and
    /// on any thread. Responses that stay in the iterator are dropped after the call.
    fn complete_kept(&mut self, responses: &mut dyn ExactSizeIterator<Item = KeptResponse>) {
        let _ = responses;
    }

    /// Takes parts of unfinished responses, before `complete` in the same turn. Parts of a sample
    /// come in order. After a retry they begin again at offset 0, and
    /// [`ResponsePart::has_first_token`] is not set a second time.
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        let _ = parts;
    }

    /// Takes the last refusal of the sample `id`. True: the sample ends here, without an answer.
    /// False (the default): it ends when the owner aborts the run.
    fn refused(&mut self, id: u64, refused: &RefusedSample) -> bool {
        let _ = (id, refused);
        false
    }

    /// Takes a contradiction: a retry's first token differs from the reported one.
    fn contradicted(&mut self, what: Contradiction) {
        let _ = what;
    }

    /// The recorder of a sample that was issued at `issued_ns`, after its `complete`; `None` where
    /// its times are not recorded. Each sample is recorded once.
    fn recorder(&mut self, issued_ns: u64) -> Option<&mut Recorder> {
        let _ = issued_ns;
        None
    }

    /// Publishes live figures. Called about every [`NicThreadCfgs::tick_ns`].
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
    }
}

/// A function that takes each response is a completer.
impl<F: FnMut(Response<'_>) + Send> Completer for F {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        responses.for_each(self);
    }
}

/// Events that the dispatcher reports to its owner.
#[derive(Clone, Debug)]
pub enum DispatchEvent {
    /// A connection was lost, its local side is destroyed, and its samples are queued again.
    ConnectionLost {
        /// Index of the connection.
        connection: usize,
        /// Epoch that was lost.
        epoch: u32,
        /// Cause of the loss.
        cause: Broken,
        /// Samples that went back to the backlog.
        retries: usize,
    },
    /// Too many connections that carried a sample were lost. The dispatcher retries the sample; the
    /// owner may abort the run. Reported after this loss and each further one.
    TooManyLosses {
        /// The sample's index, as issued.
        index: u64,
        /// Connections lost while the sample was in flight on them.
        losses: u16,
        /// Index of the connection lost last.
        connection: usize,
        /// Cause of that loss.
        cause: Broken,
    },
    /// An accelerator refused a sample. The dispatcher retries it up to two times. After the third
    /// refusal the owner must abort the run unless [`Completer::refused`] has ended the sample,
    /// which is never completed otherwise.
    Refused(RefusedSample),
    /// A cancelled sample is in flight: the owner tells the accelerator. Called by the thread that
    /// owns the connection's send token.
    Cancelled {
        /// Index of the connection.
        connection: usize,
        /// Epoch of the connection.
        epoch: u32,
        /// Slot and use count of the sample.
        imm: Imm,
    },
    /// A rail went out of service or came back; only under a policy by health.
    Rail {
        /// Index of the rail's peer.
        peer: usize,
        /// The rail, with its old and new state.
        change: Change,
    },
}

/// A refusal of a sample by its accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSample {
    /// Index of the connection that delivered the refusal.
    pub connection: usize,
    /// Epoch of that connection.
    pub epoch: u32,
    /// Slot and use count of the sample.
    pub imm: Imm,
    /// Index of the sample, as issued; `None` for a warm-up sample.
    pub index: Option<u64>,
    /// Failed attempts so far, this refusal included.
    pub tries: Tries,
    /// The accelerator's reason, without control characters.
    pub reason: String,
    /// `reason` was cut to fit its slot; the session brings all of it.
    pub is_cut: bool,
    /// The accelerator takes no sample now, and the sample is not at fault.
    pub is_away: bool,
    /// The sample has ended with this refusal ([`Completer::refused`]).
    pub is_completed: bool,
}

/// Receives events, and the samples of an aborted run.
pub trait Owner: Send + Sync {
    /// Completes these samples without a response.
    fn complete_empty(&self, samples: &[Sample]);
    /// Handles an event, on a NIC thread or on one that posts or cancels; must return quickly.
    fn event(&self, event: DispatchEvent);
}

/// One NIC of the frontend, or one share of its connections ([`CrewPlan`]).
pub struct DispatchNic {
    /// Settings of the thread that polls these connections.
    pub cfgs: NicThreadCfgs,
    /// Consumer of these connections' responses.
    pub completer: Box<dyn Completer>,
}

/// Settings of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCfgs {
    /// Index of the connection's accelerator.
    pub peer: usize,
    /// Phase of an answer that the accelerator computes.
    pub role: NodeRole,
    /// Index of the connection's NIC.
    pub nic_index: usize,
    /// Slots at each end.
    pub slots: usize,
    /// Bytes from one response slot to the next, with header, and trailer if answers come in parts.
    pub response_stride: usize,
    /// Bytes from one request slot to the next, at the peer.
    pub request_stride: usize,
}

impl ConnectionCfgs {
    /// Parts in which answers come: those of a prefill node come whole.
    pub(crate) fn stream(&self, of_others: Stream) -> Stream {
        match self.role {
            NodeRole::Prefill => Stream::None,
            NodeRole::Both | NodeRole::Decode => of_others,
        }
    }
}

with_defaults! {
/// Settings of a dispatcher.
pub struct DispatchCfgs {
    /// Policy that chooses connections.
    pub policy: Policy,
    /// Time limits of echoes ([`EchoCfgs`]).
    pub echo: EchoCfgs = EchoCfgs { interval_ns: 250_000_000, timeout_ns: 2_000_000_000 },
    /// Largest burst that the issuing thread posts, in payload bytes. NIC threads post larger
    /// bursts; with 0, all bursts.
    pub post_up_to: u64 = 16 << 10,
    /// Time for which a thread issues to the same connection, unless a burst is full earlier.
    pub affinity_ns: u64 = 50_000,
    /// Whether the arbiter compares accelerators by all samples in flight on them, and only then
    /// the connections of one. A pick costs the square of an accelerator's connections.
    pub by_peer: bool,
    /// Whether each sample has its own doorbell or system call.
    pub one_by_one: bool,
    /// Registered source regions; a sample's `source` is an index into this list.
    pub sources: Vec<Arc<Region>>,
    /// Memory of unregistered samples, copied before they are sent; `None` for registered samples.
    pub staged_from: Option<Arc<Region>>,
    /// Settings of the connections.
    pub connections: Vec<ConnectionCfgs>,
    /// Threads and shares of the NICs; `None` for one thread per NIC.
    pub crew: Option<CrewPlan>,
    /// Writes that a connection queues before its doorbell must be rung.
    pub send_depth: usize = 256,
    /// Whether answers come in parts, and in which.
    pub stream: Stream,
    /// Bytes of one token of an answer, at most 8, where answers are tokens.
    pub token_bytes: u32 = 4,
    /// Valid lengths of answers; `None` for any length.
    pub answers: Option<Lengths>,
}
}

/// Error of [`Dispatcher::new`](super::Dispatcher::new).
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The memory of the slots cannot be mapped.
    #[error("slots: {0}")]
    Region(#[from] RegionError),
    /// A NIC thread cannot be started.
    #[error("NIC thread: {0}")]
    Thread(#[from] io::Error),
}
