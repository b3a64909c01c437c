//! Engines that batch by themselves: samples go in one by one, tokens come back whenever.
//!
//! ```text
//!  NIC thread --> a place free? --yes--> Streaming::submit(Sequence) --> the engine's own batches
//!                      \--no--> queue <-- drawn from as sequences end --/        |
//!        frontend <-- part, part, last <-- Sequence::push, Sequence::finish <----+
//! ```
//!
//! A [`Sequence`] is one sample at work: its prompt where it landed, its answer where it is sent
//! from. The engine pushes tokens as they come; which of them leave at once as a part of their own
//! is for whoever sent the sample to say ([`Stream`]), and the engine need not know.

use std::{fmt, sync::Arc, time::Duration};

use qdl::{
    clock,
    serve::{Arrival, Finished, Part, Sent, respond_all},
    wire::Stream,
};

use super::EngineError;

/// Called at most once, with what ends the engine in mid-run.
pub type OnFatal = Arc<dyn Fn(EngineError) + Send + Sync>;

/// The second form of an [`Engine`](super::Engine): it has no batcher in front of it and no worker
/// threads but its own.
pub trait Streaming: Send + Sync {
    /// Starts its threads, loads the model, connects to its server; returns when it can take
    /// sequences, or with why it cannot. What fails later is given to `fatal`.
    ///
    /// # Errors
    /// [`EngineError`]: which model or server, and what to do.
    fn start(&self, fatal: OnFatal) -> Result<(), EngineError>;

    /// Most sequences it has at once; more wait outside.
    fn in_flight(&self) -> usize;

    /// Takes a sequence. Called on a NIC thread or on the one that ended another sequence: never
    /// waits. Nothing that a prompt holds may make it panic; what cannot be run is refused
    /// ([`Sequence::refuse`]).
    fn submit(&self, sequence: Sequence);

    /// Drops what it has and ends its threads, within `timeout`.
    fn stop(&self, timeout: Duration);
}

/// An answer that is longer than its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {wanted} tokens and more, and room for {room}")]
pub struct TooLong {
    /// Tokens that it came to.
    pub wanted: usize,
    /// Tokens that fit the model's output.
    pub room: usize,
}

/// Bytes of a token id, `i32`, little-endian: what LoadGen's tools read.
pub const TOKEN_BYTES: usize = 4;

/// One sample at work in an engine that batches by itself.
///
/// Dropping it unfinished leaves the sample unanswered, as it must be when its connection is gone
/// ([`Sequence::is_wanted`]).
pub struct Sequence {
    /// Gone once it is answered or refused.
    arrival: Option<Arrival>,
    /// Bytes of the output that hold tokens.
    written: usize,
    sent: Sent,
    stream: Stream,
    started_ns: u64,
    /// Bytes of output that the model allows, which may be less than the slot has.
    room: usize,
    /// Frees the place it takes.
    ended: Option<Box<dyn FnOnce(Outcome) + Send>>,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With so many tokens, in so many parts.
    Answered {
        /// Tokens.
        tokens: usize,
        /// Writes.
        parts: u32,
    },
    /// Refused, or dropped since nothing that is sent would arrive.
    Unanswered,
}

impl Sequence {
    /// From an arrival; `output_bytes` is the model's largest output, `ended` is called once, on
    /// the thread that ends the sequence.
    pub fn new(
        arrival: Arrival,
        output_bytes: usize,
        ended: impl FnOnce(Outcome) + Send + 'static,
    ) -> Self {
        Sequence {
            stream: arrival.origin().stream(),
            arrival: Some(arrival),
            written: 0,
            sent: Sent::default(),
            started_ns: clock::now_ns(),
            room: output_bytes,
            ended: Some(Box::new(ended)),
        }
    }

    /// The prompt's bytes.
    pub fn input(&self) -> &[u8] {
        self.arrival.as_ref().map_or(&[], Arrival::input)
    }

    /// The prompt as token ids, where the model's input is `i32`.
    pub fn prompt(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        let (ids, _) = self.input().as_chunks::<TOKEN_BYTES>();
        ids.iter().map(|b| i32::from_le_bytes(*b))
    }

    /// Tokens pushed so far.
    pub fn tokens(&self) -> usize {
        self.written / TOKEN_BYTES
    }

    /// Tokens that fit, those pushed included.
    pub fn room(&self) -> usize {
        let slot = self.arrival.as_ref().map_or(0, Arrival::output_len);
        self.room.min(slot) / TOKEN_BYTES
    }

    /// False once nothing that is pushed arrives any more: drop it then. Looked at once for each
    /// step.
    pub fn is_wanted(&self) -> bool {
        self.arrival.as_ref().is_some_and(|a| !a.origin().is_gone())
    }

    /// When it was taken from its connection, on [`qdl::clock`].
    pub fn arrived_ns(&self) -> u64 {
        self.arrival.as_ref().map_or(0, Arrival::arrived_ns)
    }

    /// Appends what a step of the engine brought, and sends it where parts are wanted.
    ///
    /// # Errors
    /// [`TooLong`]; nothing was appended, and the sequence is to be refused.
    pub fn push(&mut self, tokens: &[i32]) -> Result<(), TooLong> {
        self.append(tokens)?;
        let due = match self.stream {
            Stream::None => false,
            Stream::First => self.sent.parts == 0,
            Stream::All => true,
        };
        if due && self.written > self.sent.bytes as usize {
            self.send_part();
        }
        Ok(())
    }

    /// Appends the last tokens, if there are any, and answers.
    ///
    /// # Errors
    /// [`TooLong`], with the sequence, which is to be refused.
    pub fn finish(mut self, tokens: &[i32]) -> Result<(), (Self, TooLong)> {
        if let Err(e) = self.append(tokens) {
            return Err((self, e));
        }
        let (queue_us, compute_us) = self.durations();
        let outcome = Outcome::Answered {
            tokens: self.tokens(),
            parts: self.sent.parts + 1,
        };
        if let Some(arrival) = self.arrival.take() {
            let finished = Finished {
                ticket: arrival.ticket(),
                len: self.written as u32,
                queue_us,
                compute_us,
                sent: self.sent,
            };
            respond_all([(arrival, finished)], &mut Vec::with_capacity(1));
        }
        self.end(outcome);
        Ok(())
    }

    /// Gives the sample back, since nothing can run it: its connection is lost with these words.
    pub fn refuse(mut self, why: &dyn fmt::Display) {
        if let Some(arrival) = self.arrival.take() {
            arrival.refuse(why);
        }
    }

    fn append(&mut self, tokens: &[i32]) -> Result<(), TooLong> {
        let (end, room) = (self.tokens() + tokens.len(), self.room());
        if end > room {
            return Err(TooLong { wanted: end, room });
        }
        if let Some(arrival) = &mut self.arrival {
            let to = &mut arrival.output()[self.written..end * TOKEN_BYTES];
            for (to, token) in to.chunks_exact_mut(TOKEN_BYTES).zip(tokens) {
                to.copy_from_slice(&token.to_le_bytes());
            }
            self.written = end * TOKEN_BYTES;
        }
        Ok(())
    }

    fn send_part(&mut self) {
        let (queue_us, compute_us) = self.durations();
        let Some(arrival) = &self.arrival else { return };
        arrival.origin().part(&Part {
            ticket: arrival.ticket(),
            from: self.sent.bytes,
            to: self.written as u32,
            queue_us,
            compute_us,
        });
        self.sent.bytes = self.written as u32;
        self.sent.parts += 1;
        self.sent.sum_us += u64::from(queue_us) + u64::from(compute_us);
    }

    /// Microseconds from arrival to the engine, and in it so far.
    fn durations(&self) -> (u32, u32) {
        let started = self.started_ns;
        (
            micros(started.saturating_sub(self.arrived_ns())),
            micros(clock::now_ns().saturating_sub(started)),
        )
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(ended) = self.ended.take() {
            ended(outcome);
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // The arrival first: its slot is not read any more when its place is free.
        self.arrival = None;
        self.end(Outcome::Unanswered);
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({:?}, {} tokens)", self.arrival, self.tokens())
    }
}

/// Nanoseconds to microseconds, at most what a response can carry (71 minutes).
fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1_000).unwrap_or(u32::MAX)
}
