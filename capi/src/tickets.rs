//! Samples that the program has taken and not answered: an answer grows in its output slot.

use fabric::{
    clock::{micros, now_ns},
    wire::Stream,
};
use qdl::{
    request::RequestOptions,
    serve::{Arrival, Finished, OutputPart, Sent},
};

/// A sample in the program's hands.
pub struct Ticket {
    arrival: Arrival,
    stream: Stream,
    /// Bytes of the answer so far.
    written: u32,
    sent: Sent,
    /// Most bytes of the answer.
    room: u32,
    queue_us: u32,
    /// The request's options, if it has any.
    pub options: Option<Box<RequestOptions>>,
}

impl Ticket {
    /// Takes an arrival, whose answer has at most `most` bytes.
    pub fn new(arrival: Arrival, most: usize, options: RequestOptions) -> Self {
        let limit = options
            .token_limit
            .map_or(usize::MAX, |n| n.get() as usize * size_of::<i32>());
        let room = most.min(arrival.output_len()).min(limit);
        Ticket {
            stream: arrival.origin().stream(),
            written: 0,
            sent: Sent::default(),
            // An output slot has less than 4 GiB.
            room: u32::try_from(room).unwrap_or(u32::MAX),
            queue_us: micros(now_ns().saturating_sub(arrival.arrived_ns())),
            options: (options != RequestOptions::NONE).then(|| Box::new(options)),
            arrival,
        }
    }

    /// The sample.
    pub fn arrival(&mut self) -> &mut Arrival {
        &mut self.arrival
    }

    /// Most bytes of the answer.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Appends `len` bytes to the answer: those of `data`, or those that the program has written to
    /// the output slot itself.
    ///
    /// # Errors
    /// They do not fit.
    pub fn append(&mut self, data: Option<&[u8]>, len: u32) -> Result<(), String> {
        let end = self
            .written
            .checked_add(len)
            .filter(|end| *end <= self.room);
        let Some(end) = end else {
            let (before, room) = (self.written, self.room);
            return Err(format!(
                "{len} bytes behind {before}, and the answer has room for {room}"
            ));
        };
        if let Some(data) = data {
            let to = self.arrival.output_from(self.written as usize);
            to[..data.len()].copy_from_slice(data);
        }
        self.written = end;
        Ok(())
    }

    /// The bytes appended since the last part, if the frontend wants them now.
    pub fn part(&mut self) -> Option<OutputPart> {
        let is_due = match self.stream {
            Stream::None => false,
            Stream::First => self.sent.parts == 0,
            Stream::All => true,
        };
        if !is_due || self.written == self.sent.bytes {
            return None;
        }
        let (ticket, durations) = (self.arrival.ticket(), self.durations());
        Some(self.sent.next(ticket, self.written, durations))
    }

    /// Length of the answer so far, in bytes.
    pub fn len(&self) -> usize {
        self.written as usize
    }

    /// The whole answer, for [`qdl::serve::respond_all`].
    pub fn finish(self) -> (Arrival, Finished) {
        let (queue_us, compute_us) = self.durations();
        let finished = Finished {
            ticket: self.arrival.ticket(),
            len: self.written,
            queue_us,
            compute_us,
            sent: self.sent,
        };
        (self.arrival, finished)
    }

    /// Refuses the sample.
    pub fn refuse(self, why: &str) {
        self.arrival.refuse(&why);
    }

    /// Microseconds until the program took the sample, and from then until now.
    fn durations(&self) -> (u32, u32) {
        let since = micros(now_ns().saturating_sub(self.arrival.arrived_ns()));
        (self.queue_us, since.saturating_sub(self.queue_us))
    }
}
