//! Represents one sample in progress: its prompt in the input slot, its answer in the output slot.

use std::{fmt, sync::Arc};

use fabric::clock;
use fabric::wire::Stream;
use qdl::serve::{Arrival, Finished, Part, Sent};

use super::TOKEN_BYTES;

/// An answer does not fit the model's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {wanted} tokens and more, and room for {room}")]
pub struct TooLong {
    /// Tokens of the answer so far.
    pub wanted: usize,
    /// Tokens that fit the model's output.
    pub room: usize,
}

/// Result of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceOutcome {
    /// The sample was answered.
    Answered {
        /// Number of tokens.
        tokens: usize,
    },
    /// The sample was refused, or dropped because its connection is gone.
    Unanswered,
}

/// Receives the end of each sequence, once, on the thread that ended it, after its arrival is
/// released. One callback serves all sequences of an engine.
pub type OnEnd = Arc<dyn Fn(SequenceOutcome) + Send + Sync>;

/// One sample in progress in an engine that batches by itself.
///
/// Dropping a sequence leaves its sample unanswered. That is right only if its connection is gone
/// ([`Sequence::is_wanted`]) or the engine ends.
pub struct Sequence {
    /// `None` once the sample is answered or refused.
    arrival: Option<Arrival>,
    /// Bytes of tokens in the output.
    written: usize,
    sent: Sent,
    stream: Stream,
    started_ns: u64,
    /// Limit of the output in bytes: the smaller of model output and slot.
    room: usize,
    /// Reports the end, which frees the place.
    on_end: Option<OnEnd>,
}

impl Sequence {
    /// A sequence from an arrival. `output_bytes` is the model's largest output.
    pub fn new(arrival: Arrival, output_bytes: usize, on_end: OnEnd) -> Self {
        Sequence {
            stream: arrival.origin().stream(),
            room: output_bytes.min(arrival.output_len()),
            arrival: Some(arrival),
            written: 0,
            sent: Sent::default(),
            started_ns: clock::now_ns(),
            on_end: Some(on_end),
        }
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
        self.written / TOKEN_BYTES
    }

    /// Limit of tokens, including those pushed.
    pub fn room(&self) -> usize {
        self.room / TOKEN_BYTES
    }

    /// False once the connection is gone: drop the sequence then. Engines check it once per step.
    pub fn is_wanted(&self) -> bool {
        self.arrival.as_ref().is_some_and(|a| !a.origin().is_gone())
    }

    /// Arrival time in nanoseconds on [`fabric::clock`].
    pub fn arrived_ns(&self) -> u64 {
        self.arrival.as_ref().map_or(0, Arrival::arrived_ns)
    }

    /// Appends the tokens of a step, and sends them if the frontend wants parts.
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
        if due && self.written > self.sent.bytes as usize {
            self.send_part();
        }
        Ok(())
    }

    /// Appends the last tokens, if any, and sends the response. Refuses the sample if its answer is
    /// too long.
    pub fn finish(mut self, tokens: &[i32]) {
        if let Err(why) = self.append(tokens) {
            return self.refuse(&why);
        }
        let (queue_us, compute_us) = self.durations();
        let outcome = SequenceOutcome::Answered {
            tokens: self.tokens(),
        };
        if let Some(arrival) = self.arrival.take() {
            let finished = Finished {
                ticket: arrival.ticket(),
                len: self.written as u32,
                queue_us,
                compute_us,
                sent: self.sent,
            };
            arrival.respond(&finished);
        }
        self.end(outcome);
    }

    /// Refuses the sample: the reason goes into its slot.
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
            // Earlier bytes may be in transfer.
            let to = arrival.output_from(self.written);
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
        let part = Part {
            ticket: arrival.ticket(),
            from: self.sent.bytes,
            to: self.written as u32,
            queue_us,
            compute_us,
        };

        self.sent.bytes = part.to;
        self.sent.parts += 1;
        self.sent.sum_us += u64::from(queue_us) + u64::from(compute_us);
        arrival.origin().part(&part);
    }

    /// Microseconds in the queue, and in the engine so far.
    fn durations(&self) -> (u32, u32) {
        let started = self.started_ns;
        (
            clock::micros(started.saturating_sub(self.arrived_ns())),
            clock::micros(clock::now_ns().saturating_sub(started)),
        )
    }

    fn end(&mut self, outcome: SequenceOutcome) {
        if let Some(on_end) = self.on_end.take() {
            on_end(outcome);
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // The arrival first: the slot must be released before the place is free.
        self.arrival = None;
        self.end(SequenceOutcome::Unanswered);
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({:?}, {} tokens)", self.arrival, self.tokens())
    }
}
