//! One sample in progress: its prompt in the input slot, its answer in the output slot.

use std::{fmt, sync::Arc};

use fabric::clock;
use fabric::wire::Stream;
use qdl::{
    request::{MAX_HANDLE, RequestOptions},
    serve::{Arrival, Finished, Sent},
};

use super::TOKEN_BYTES;
use crate::SizeCounts;

/// The error if an answer does not fit the model's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {wanted} tokens and more, and room for {room}")]
pub struct TooLong {
    /// Tokens of the answer so far, including those that do not fit.
    pub wanted: usize,
    /// Tokens that fit the model's output.
    pub room: usize,
}

/// The end of a sequence: with or without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceOutcome {
    /// The sample was answered.
    Answered {
        /// Number of tokens in the answer.
        tokens: usize,
    },
    /// The engine refused the sample, or dropped it because its connection is gone.
    Unanswered,
}

/// Callback for the end of a sequence, called once per sequence, on the thread that ended it and
/// after the release of its arrival. All sequences of an engine share one callback.
pub type OnEnd = Arc<dyn Fn(SequenceOutcome) + Send + Sync>;

/// One sample in progress in an engine that batches by itself.
///
/// A step reads and writes one of each of thousands of sequences, so their size counts.
///
/// The drop of a sequence leaves its sample unanswered; a cancelled sample is refused. Drop a
/// sequence only if it is not wanted ([`Sequence::is_wanted`]) or the engine ends.
pub struct Sequence {
    /// `None` once the sample is answered or refused.
    arrival: Option<Arrival>,
    /// Bytes of tokens written to the output slot.
    written: u32,
    sent: Sent,
    stream: Stream,
    /// Microseconds that the sample waited in the pipeline's queue.
    queue_us: u32,
    /// Limit of the answer in bytes: the least of the request's limit, the model's output and the
    /// output slot.
    room: u32,
    /// Called at the end of the sequence, so that the engine can take another.
    on_end: Option<OnEnd>,
    /// Counts the events of all sequences of the engine.
    events: Option<Arc<SizeCounts>>,
    /// The request's options, if it has any.
    options: Option<Box<RequestOptions>>,
}

static NO_OPTIONS: RequestOptions = RequestOptions::NONE;

const _: () = assert!(size_of::<Sequence>() <= 128);

impl Sequence {
    /// Makes a sequence of an arrival, whose answer has at most `output_bytes` bytes: the model's
    /// largest output.
    pub fn new(arrival: Arrival, output_bytes: usize, on_end: OnEnd) -> Self {
        Sequence {
            stream: arrival.origin().stream(),
            // An output slot has less than 4 GiB.
            room: u32::try_from(output_bytes.min(arrival.output_len())).unwrap_or(u32::MAX),
            queue_us: clock::micros(clock::now_ns().saturating_sub(arrival.arrived_ns())),
            arrival: Some(arrival),
            written: 0,
            sent: Sent::default(),
            on_end: Some(on_end),
            events: None,
            options: None,
        }
    }

    /// Sets the request's options. Their token limit also bounds the answer.
    #[must_use]
    pub fn with_options(mut self, options: RequestOptions) -> Self {
        if let Some(limit) = options.token_limit {
            let limit = limit.get().saturating_mul(TOKEN_BYTES as u32);
            self.room = self.room.min(limit);
        }
        self.options = (options != NO_OPTIONS).then(|| Box::new(options));
        self
    }

    /// The request's options.
    pub fn options(&self) -> &RequestOptions {
        self.options.as_deref().unwrap_or(&NO_OPTIONS)
    }

    /// Fewest tokens of the answer: the request's, or `configured` where it has none.
    pub fn min_tokens(&self, configured: usize) -> usize {
        self.options().min_tokens.map_or(configured, |n| n as usize)
    }

    /// Counts each call that brings tokens in `events`, sent or not: the engine's progress.
    #[must_use]
    pub fn counted(mut self, events: Arc<SizeCounts>) -> Self {
        self.events = Some(events);
        self
    }

    /// The bytes of the prompt.
    pub fn input(&self) -> &[u8] {
        self.arrival.as_ref().map_or(&[], Arrival::input)
    }

    /// The prompt as token ids, for a model input of type `i32`.
    pub fn prompt(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        let (ids, _) = self.input().as_chunks::<TOKEN_BYTES>();
        ids.iter().map(|b| i32::from_le_bytes(*b))
    }

    /// Tokens pushed so far.
    pub fn tokens(&self) -> usize {
        self.written as usize / TOKEN_BYTES
    }

    /// Most tokens in the answer, including those pushed so far.
    pub fn room(&self) -> usize {
        self.room as usize / TOKEN_BYTES
    }

    /// True if the frontend wants tokens before the answer is complete.
    pub fn needs_parts(&self) -> bool {
        self.stream != Stream::None
    }

    /// False once the connection is gone, or the frontend has cancelled the sample: drop the
    /// sequence then. Engines check this every step.
    pub fn is_wanted(&self) -> bool {
        self.arrival.as_ref().is_some_and(Arrival::is_wanted)
    }

    /// Arrival time in nanoseconds on [`fabric::clock`].
    pub fn arrived_ns(&self) -> u64 {
        self.arrival.as_ref().map_or(0, Arrival::arrived_ns)
    }

    /// Appends the tokens of a step, and sends them as a part if the frontend wants parts.
    ///
    /// # Errors
    /// [`TooLong`]: nothing was appended; the caller must refuse the sequence.
    pub fn push(&mut self, tokens: &[i32]) -> Result<(), TooLong> {
        self.append(tokens)?;
        let due = match self.stream {
            Stream::None => false,
            Stream::First => self.sent.parts == 0,
            Stream::All => true,
        };
        if due && self.written > self.sent.bytes {
            self.send_part();
        }
        Ok(())
    }

    /// Appends the last tokens, if any, and sends the response. Refuses the sample if the answer is
    /// too long.
    pub fn finish(mut self, tokens: &[i32]) {
        if let Err(why) = self.append(tokens) {
            return self.refuse(&why);
        }
        let len = self.written as usize;
        self.respond(len);
    }

    /// Sends the response, of `len` bytes.
    fn respond(mut self, len: usize) {
        let (queue_us, compute_us) = self.durations();
        let outcome = SequenceOutcome::Answered {
            tokens: self.tokens(),
        };
        if let Some(arrival) = self.arrival.take() {
            let finished = Finished {
                ticket: arrival.ticket(),
                len: len as u32,
                queue_us,
                compute_us,
                sent: self.sent,
            };
            arrival.respond(&finished);
        }
        self.end(outcome);
    }

    /// Ends the sequence of a prefill node: sends the first token, and the handle by which a decode
    /// node finds the KV cache of the prompt. Refuses the sample if the handle is empty or longer
    /// than [`MAX_HANDLE`].
    pub fn hand_over(mut self, token: i32, handle: &[u8]) {
        if handle.is_empty() || handle.len() > MAX_HANDLE {
            let len = handle.len();
            return self.refuse(&format_args!(
                "the prompt's handle has {len} bytes, 1 to {MAX_HANDLE} are possible: larger \
                 blocks of the KV cache make it shorter"
            ));
        }
        if let Err(why) = self.append(&[token]) {
            return self.refuse(&why);
        }
        let to = self.arrival.as_mut();
        let room = to.map(|a| a.output_from(TOKEN_BYTES)).unwrap_or_default();
        let Some(to) = room.get_mut(..handle.len()) else {
            return self.refuse(&"the answer's slot has no room for a handle");
        };
        to.copy_from_slice(handle);
        self.respond(TOKEN_BYTES + handle.len());
    }

    /// Refuses the sample: writes the reason `why` into the sample's output slot.
    pub fn refuse(mut self, why: &dyn fmt::Display) {
        if let Some(arrival) = self.arrival.take() {
            arrival.refuse(why);
        }
    }

    /// Gives the sample back: it runs elsewhere, or here once this node takes samples again.
    pub fn give_back(mut self, why: &str) {
        if let Some(arrival) = self.arrival.take() {
            arrival.give_back(why);
        }
    }

    /// Whether a sample given back can run elsewhere.
    pub fn has_elsewhere(&self) -> bool {
        let arrival = self.arrival.as_ref();
        arrival.is_some_and(|a| a.origin().has_elsewhere())
    }

    fn append(&mut self, tokens: &[i32]) -> Result<(), TooLong> {
        let (end, room) = (self.tokens() + tokens.len(), self.room());
        if end > room {
            return Err(TooLong { wanted: end, room });
        }
        if let Some(arrival) = &mut self.arrival {
            // Write only behind earlier tokens: a fabric may be sending these.
            let to = arrival.output_from(self.written as usize);
            for (to, token) in to.chunks_exact_mut(TOKEN_BYTES).zip(tokens) {
                to.copy_from_slice(&token.to_le_bytes());
            }
            // At most `room`, which is a `u32`.
            self.written = (end * TOKEN_BYTES) as u32;
            if let Some(events) = &self.events {
                events.add(tokens.len());
            }
        }
        Ok(())
    }

    fn send_part(&mut self) {
        let durations = self.durations();
        let Some(arrival) = &self.arrival else { return };
        let part = self.sent.next(arrival.ticket(), self.written, durations);
        arrival.origin().parts(&[part]);
    }

    /// Microseconds in the pipeline's queue, and microseconds in the engine so far.
    fn durations(&self) -> (u32, u32) {
        let since = clock::now_ns().saturating_sub(self.arrived_ns());
        let compute_us = clock::micros(since).saturating_sub(self.queue_us);
        (self.queue_us, compute_us)
    }

    fn end(&mut self, outcome: SequenceOutcome) {
        if let Some(on_end) = self.on_end.take() {
            on_end(outcome);
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // Drop the arrival first: the slot must be released before `on_end` admits a sequence.
        self.arrival = None;
        self.end(SequenceOutcome::Unanswered);
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({:?}, {} tokens)", self.arrival, self.tokens())
    }
}
