//! One sample at work: its prompt where it landed, its answer where it is sent from.

use std::{fmt, sync::Arc};

use fabric::clock;
use fabric::wire::Stream;
use qdl::serve::{Arrival, Finished, Part, Sent};

use super::TOKEN_BYTES;

/// An answer that is longer than its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {wanted} tokens and more, and room for {room}")]
pub struct TooLong {
    /// Tokens that it came to.
    pub wanted: usize,
    /// Tokens that fit the model's output.
    pub room: usize,
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

/// Hears of the end of every sequence that was given one of its places.
pub trait Places: Send + Sync {
    /// Called once for each, on the thread that ended it, when nothing of it is left.
    fn ended(self: Arc<Self>, outcome: Outcome);
}

/// Who hears of the end.
enum Hook {
    Once(Box<dyn FnOnce(Outcome) + Send>),
    Places(Arc<dyn Places>),
}

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
    ended: Option<Hook>,
}

impl Sequence {
    /// From an arrival; `output_bytes` is the model's largest output, `ended` is called once, on
    /// the thread that ends the sequence.
    pub fn new(
        arrival: Arrival,
        output_bytes: usize,
        ended: impl FnOnce(Outcome) + Send + 'static,
    ) -> Self {
        Self::hooked(arrival, output_bytes, Hook::Once(Box::new(ended)))
    }

    /// The same, without an allocation: `places` hears of its end.
    pub fn placed(arrival: Arrival, output_bytes: usize, places: Arc<dyn Places>) -> Self {
        Self::hooked(arrival, output_bytes, Hook::Places(places))
    }

    fn hooked(arrival: Arrival, output_bytes: usize, hook: Hook) -> Self {
        Sequence {
            stream: arrival.origin().stream(),
            room: output_bytes.min(arrival.output_len()),
            arrival: Some(arrival),
            written: 0,
            sent: Sent::default(),
            started_ns: clock::now_ns(),
            ended: Some(hook),
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
        self.room / TOKEN_BYTES
    }

    /// False once nothing that is pushed arrives any more: drop it then. Looked at once for each
    /// step.
    pub fn is_wanted(&self) -> bool {
        self.arrival.as_ref().is_some_and(|a| !a.origin().is_gone())
    }

    /// When it was taken from its connection, on [`fabric::clock`].
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
    // It is given back as it is: whoever has it refuses it, and a box would be an allocation.
    #[allow(clippy::result_large_err)]
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
            arrival.respond(&finished);
        }
        self.end(outcome);
        Ok(())
    }

    /// Gives the sample back, since nothing can run it: the reason lands in its slot.
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
            // What lies before may be on its way.
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

    /// Microseconds from arrival to the engine, and in it so far.
    fn durations(&self) -> (u32, u32) {
        let started = self.started_ns;
        (
            clock::micros(started.saturating_sub(self.arrived_ns())),
            clock::micros(clock::now_ns().saturating_sub(started)),
        )
    }

    fn end(&mut self, outcome: Outcome) {
        match self.ended.take() {
            Some(Hook::Once(hook)) => hook(outcome),
            Some(Hook::Places(places)) => places.ended(outcome),
            None => {}
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
