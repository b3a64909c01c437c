//! What a dispatcher is handed, what it calls back, and what it counts.

use std::{io, sync::Arc};

use super::{ConnectionCfgs, Sample, SampleTimes, Tries};
use crate::{
    connection::{CrewPlan, EchoCfgs, NicThreadCfgs},
    model::Lengths,
    rails::{Change, Policy},
};
use fabric::wire::Stream;
use fabric::{Broken, Imm, Region, RegionError};

/// One response, good for the length of the call it is handed to.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The sample's id, as issued.
    pub id: u64,
    /// The sample's index, as issued.
    pub index: u64,
    /// Index of the connection that brought it.
    pub connection: usize,
    /// The response's bytes, where the fabric put them.
    pub payload: &'a [u8],
    /// Nothing of it was handed to [`Completer::parts`] before, now or by a connection that was
    /// lost: its first token comes with its last.
    pub whole: bool,
}

/// A part of a response that goes on, good for the length of the call it is handed to.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The sample's id, as issued.
    pub id: u64,
    /// The sample's index, as issued.
    pub index: u64,
    /// Bytes of the response before it.
    pub at: u32,
    /// Its own bytes, where the fabric put them.
    pub payload: &'a [u8],
    /// It holds the sample's first token, and that was not handed over before.
    pub first: bool,
    /// Connections that were lost with the sample in flight before.
    pub losses: u16,
}

/// A sample's first token came twice, as its connection was lost after the first time, and was not
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The sample's index, as issued.
    pub index: u64,
    /// The token that was reported, its bytes little-endian.
    pub reported: u64,
    /// The one that came when the sample was sent again.
    pub again: u64,
    /// Index of the connection that this one came by.
    pub connection: usize,
}

impl Contradiction {
    /// A sample's first token, `again`, against the one that was reported; `None` where they are
    /// the same, or none was.
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

/// Takes the responses of one NIC. Lives on the NIC's thread.
pub trait Completer: Send {
    /// What each NIC thread that may come to call it does before all else.
    fn begin(&self) -> Option<fn()> {
        None
    }

    /// Completes one poll's worth of samples. The payloads' slots are free once this returns.
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>);

    /// Hands over parts of responses that go on; called before `complete` for what the same poll
    /// brought. The parts of a sample come in order; where it is sent again they begin anew (`at`
    /// 0), and [`Part::first`] is not set a second time.
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        let _ = parts;
    }

    /// A sample that was sent again has another first token than the one reported.
    fn contradicted(&mut self, what: Contradiction) {
        let _ = what;
    }

    /// Records the times of so many samples, neighbours of one burst whose marks are the very same,
    /// after `complete`; each sample is in one call.
    fn record(&mut self, times: &SampleTimes, alike: u64);

    /// Called about every tick, for live figures.
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
    }
}

/// What the dispatcher reports to its owner.
#[derive(Clone, Debug)]
pub enum DispatchEvent {
    /// A connection was lost and its local side is destroyed; its samples are on their way again.
    ConnectionLost {
        /// Index of the connection.
        connection: usize,
        /// Epoch that was lost.
        epoch: u32,
        /// Why.
        cause: Broken,
        /// Samples that went back to the backlog.
        again: usize,
    },
    /// A sample went again and again, and each connection that carried it was lost. It goes on: to
    /// give the run up is the owner's to do. Told after the loss, and after each further one.
    WornOut {
        /// The sample's index, as issued.
        index: u64,
        /// How many connections were lost while it was in flight on them.
        losses: u16,
        /// Index of the last.
        connection: usize,
        /// Why that was lost.
        cause: Broken,
    },
    /// An accelerator refused a sample, which is tried again; not after the third time, when the
    /// owner is to give the run up, since the sample is never completed otherwise.
    Refused(RefusedSample),
    /// A rail went out of service, or came back. Under a policy by health alone.
    Rail {
        /// Index of the peer it leads to.
        peer: usize,
        /// Which, and from what to what.
        change: Change,
    },
}

/// A sample that its accelerator did not answer, by its own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSample {
    /// Index of the connection that brought the refusal, and its epoch.
    pub connection: usize,
    /// See there.
    pub epoch: u32,
    /// The slot and its use.
    pub imm: Imm,
    /// The sample's index, as issued; `None`: it warmed up.
    pub index: Option<u64>,
    /// Its attempts so far, this one included.
    pub tries: Tries,
    /// The accelerator's words, without what no terminal should be shown.
    pub reason: String,
    /// More of them come over the control plane.
    pub is_cut: bool,
}

/// Completes samples of an aborted run with no bytes at all, and hears of events.
pub trait Owner: Send + Sync {
    /// Completes these samples empty.
    fn complete_empty(&self, samples: &[Sample]);
    /// Hears of an event, on a NIC thread: returns soon.
    fn event(&self, event: DispatchEvent);
}

/// One NIC of the frontend, or one share of its connections ([`CrewPlan`]).
pub struct DispatchNic {
    /// How its thread waits and where it runs.
    pub cfgs: NicThreadCfgs,
    /// Takes its responses.
    pub completer: Box<dyn Completer>,
}

/// What a dispatcher is made of.
pub struct DispatchCfgs {
    /// How connections are chosen.
    pub policy: Policy,
    /// Signs of life.
    pub echo: EchoCfgs,
    /// Largest burst that the issuing thread posts, in payload bytes; NIC threads post larger ones.
    /// 0: NIC threads post all.
    pub post_up_to: u64,
    /// How long a thread issues to the same connection, unless a burst is full before.
    pub stay_ns: u64,
    /// One system call or doorbell for each sample.
    pub one_by_one: bool,
    /// Registered memory samples are sent from; a sample's `source` is an index into it.
    pub sources: Vec<Arc<Region>>,
    /// Samples lie here instead, unregistered, and are copied before they are sent.
    pub staged_from: Option<Arc<Region>>,
    /// The connections.
    pub connections: Vec<ConnectionCfgs>,
    /// Which thread polls which share of which NIC; `None`: each NIC has its own.
    pub crew: Option<CrewPlan>,
    /// Writes queued on a connection before its doorbell must be rung.
    pub send_depth: usize,
    /// Which parts of an answer come before its end.
    pub stream: Stream,
    /// Bytes of one token of an answer, at most 8, where answers are tokens.
    pub token_bytes: u32,
    /// Lengths that an answer can have; `None`: any.
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

/// Totals of a dispatcher. At rest, `issued == completed + completed_empty`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DispatchCounts {
    /// Samples handed to [`Dispatcher::issue`](super::Dispatcher::issue).
    pub issued: u64,
    /// Samples completed with a response.
    pub completed: u64,
    /// Parts of responses handed over that others followed.
    pub parts: u64,
    /// Samples completed empty after an abort.
    pub completed_empty: u64,
    /// Samples sent again because their connection was lost.
    pub again: u64,
    /// Refusals: first, second and third of a sample.
    pub refused: [u64; 3],
    /// Requests posted, those sent again included.
    pub posted: u64,
    /// Connections lost.
    pub connections_lost: u64,
    /// Most samples that waited at once because no slot was free.
    pub backlog_max: u64,
    /// Samples that found no free slot when they were issued.
    pub backlogged: u64,
    /// Samples that the issuing thread left to a NIC thread to post although a slot was free.
    pub handed_over: u64,
    /// Times a NIC thread had to be woken by another thread.
    pub wakeups: u64,
    /// Times a NIC thread went to sleep.
    pub sleeps: u64,
}

/// A dispatcher that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// Memory for its slots.
    #[error("slots: {0}")]
    Region(#[from] RegionError),
    /// A NIC thread.
    #[error("NIC thread: {0}")]
    Thread(#[from] io::Error),
}
