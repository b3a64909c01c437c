//! Types of the dispatcher's interface: settings, callbacks, events and counts.

use std::{io, sync::Arc};

use super::{ConnectionCfgs, Sample, Tries};
use crate::{
    connection::{CrewPlan, EchoCfgs, NicThreadCfgs},
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
    /// No part of the response was handed to [`Completer::parts`], on this connection or on a lost
    /// one: the first token comes with the last.
    pub whole: bool,
}

/// A part of an unfinished response, valid during the callback.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The sample's id, as issued.
    pub id: u64,
    /// The sample's index, as issued.
    pub index: u64,
    /// Bytes of the response before this part.
    pub at: u32,
    /// Bytes of this part, in the slot where the fabric stored them.
    pub payload: &'a [u8],
    /// The part holds the sample's first token, which was not handed over before.
    pub first: bool,
    /// Connections lost earlier while the sample was in flight on them.
    pub losses: u16,
}

/// Two different first tokens of one sample: its connection was lost after the first one, and the
/// answer to the retry begins with the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The sample's index, as issued.
    pub index: u64,
    /// The reported token, its bytes little-endian.
    pub reported: u64,
    /// The first token of the retry.
    pub again: u64,
    /// Index of the connection that delivered the retry's answer.
    pub connection: usize,
}

impl Contradiction {
    /// Compares a first token with the reported one; `None` where they agree or none was reported.
    pub fn of(sample: &Sample, again: Option<u64>, connection: usize) -> Option<Self> {
        let reported = sample.first?.token;
        (again != Some(reported)).then(|| Contradiction {
            index: sample.index,
            reported,
            again: again.unwrap_or_default(),
            connection,
        })
    }
}

/// Consumes the responses of one NIC, on the NIC's thread.
pub trait Completer: Send {
    /// First action of each NIC thread that may call the completer.
    fn begin(&self) -> Option<fn()> {
        None
    }

    /// Completes the samples of one poll. The payloads' slots are freed once the call returns.
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>);

    /// Takes parts of unfinished responses, before `complete` for the same poll. Parts of a sample
    /// come in order. After a retry they begin again at offset 0, and [`Part::first`] is not set a
    /// second time.
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        let _ = parts;
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

    /// Called about every tick, for live figures.
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
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
        again: usize,
    },
    /// Too many connections that carried a sample were lost. The dispatcher retries the sample;
    /// the owner may abort the run. Reported after the loss, and after each further loss.
    WornOut {
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
    /// refusal the owner must abort the run, since the sample is never completed otherwise.
    Refused(RefusedSample),
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
    /// Attempts so far, this one included.
    pub tries: Tries,
    /// The accelerator's reason, without control characters.
    pub reason: String,
    /// The control plane carries the full reason.
    pub is_cut: bool,
}

/// Receives events, and the samples of an aborted run.
pub trait Owner: Send + Sync {
    /// Completes these samples without a response.
    fn complete_empty(&self, samples: &[Sample]);
    /// Handles an event, on a NIC thread; must return quickly.
    fn event(&self, event: DispatchEvent);
}

/// One NIC of the frontend, or one share of its connections ([`CrewPlan`]).
pub struct DispatchNic {
    /// Settings of its thread.
    pub cfgs: NicThreadCfgs,
    /// Consumer of its responses.
    pub completer: Box<dyn Completer>,
}

/// Settings of a dispatcher.
pub struct DispatchCfgs {
    /// Policy that chooses connections.
    pub policy: Policy,
    /// Time limits of the echo.
    pub echo: EchoCfgs,
    /// Largest burst that the issuing thread posts, in payload bytes; NIC threads post larger ones.
    /// With 0, NIC threads post all bursts.
    pub post_up_to: u64,
    /// Time for which a thread issues to the same connection, unless a burst is full earlier.
    pub stay_ns: u64,
    /// Rings one doorbell, or makes one system call, for each sample.
    pub one_by_one: bool,
    /// Registered source regions; a sample's `source` is an index into this list.
    pub sources: Vec<Arc<Region>>,
    /// Unregistered memory of the samples; each sample is copied into registered memory.
    pub staged_from: Option<Arc<Region>>,
    /// Settings of the connections.
    pub connections: Vec<ConnectionCfgs>,
    /// Threads and shares of the NICs; `None` for one thread per NIC.
    pub crew: Option<CrewPlan>,
    /// Writes that a connection queues before its doorbell must be rung.
    pub send_depth: usize,
    /// Parts in which answers come.
    pub stream: Stream,
    /// Bytes of one token of an answer, at most 8, where answers are tokens.
    pub token_bytes: u32,
    /// Valid lengths of answers; `None` for any length.
    pub answers: Option<Lengths>,
}

impl Default for DispatchCfgs {
    fn default() -> Self {
        DispatchCfgs {
            policy: Policy::default(),
            echo: EchoCfgs {
                interval_ns: 250_000_000,
                timeout_ns: 2_000_000_000,
            },
            post_up_to: 16 << 10,
            stay_ns: 50_000,
            one_by_one: false,
            sources: Vec::new(),
            staged_from: None,
            connections: Vec::new(),
            crew: None,
            send_depth: 256,
            stream: Stream::None,
            token_bytes: 4,
            answers: None,
        }
    }
}

/// Totals of a dispatcher. After a drain, `issued == completed + completed_empty`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DispatchCounts {
    /// Samples handed to [`Dispatcher::issue`](super::Dispatcher::issue).
    pub issued: u64,
    /// Samples completed with a response.
    pub completed: u64,
    /// Parts handed over that further parts followed.
    pub parts: u64,
    /// Samples completed empty after an abort.
    pub completed_empty: u64,
    /// Samples sent again after their connection was lost.
    pub again: u64,
    /// Refusals: first, second and third of a sample.
    pub refused: [u64; 3],
    /// Requests posted, retries included.
    pub posted: u64,
    /// Connections lost.
    pub connections_lost: u64,
    /// Most samples that waited at once for a free slot.
    pub backlog_max: u64,
    /// Samples that found no free slot at issue.
    pub backlogged: u64,
    /// Samples that the issuing thread left to a NIC thread although a slot was free.
    pub handed_over: u64,
    /// Wake-ups of NIC threads by other threads.
    pub wakeups: u64,
    /// Sleeps of NIC threads.
    pub sleeps: u64,
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
