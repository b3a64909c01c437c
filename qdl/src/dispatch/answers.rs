//! Decoding of arrivals: answers in one piece, answers in parts, and refusals.
//!
//! ```text
//!   first part   [ header | tokens ]        --> handed over; the tracker keeps its first token
//!   more parts            [ tokens ]        --> handed over
//!   last part             [ tokens | trailer ]  --> completes the sample
//! ```
//!
//! A sample whose connection is lost between parts is sent again with its reported first token. The
//! token is not reported twice, and the new answer must repeat it.

use super::{Connection, Contradiction, First, Sample, Shared, WARM_UP_ID};
use crate::{
    connection::tracker::InFlight,
    response::{
        MAX_REASON, RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES, Refusal, ResponseHeader,
        ResponseTrailer,
    },
};
use fabric::{Broken, Imm, Window, clock::now_ns};

/// Value of [`Coming::parts`] after an invalid part: every later part is invalid too.
const SPOILT: u32 = u32::MAX;

/// Parts of one slot's answer so far; meaningless after the last part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coming {
    payload: u32,
    parts: u32,
    queue_us: u32,
    /// Microseconds from the sample's arrival at the accelerator to its first token.
    pub first_residence_us: u32,
    /// Time at which the first part was seen, and the sum of all parts' times since the post.
    pub first_ns: u64,
    pub after_ns: u64,
}

/// A part with parts to follow, seen in this turn.
pub(super) struct Piece {
    /// Index of its connection in `FrontendNic::up`.
    pub up: usize,
    pub connection: usize,
    pub slot: u16,
    pub in_flight: InFlight,
    /// Payload bytes before this part, and in it.
    pub at: u32,
    pub len: u32,
    /// Holds the sample's first token, which is not reported yet.
    pub first: bool,
}

/// A complete response, seen in this turn.
pub(super) struct Seen {
    /// Index of its connection in `FrontendNic::up`.
    pub up: usize,
    pub connection: usize,
    pub slot: u16,
    pub in_flight: InFlight,
    /// Header; for a response in parts, with the total length and the final times.
    pub header: ResponseHeader,
    /// Writes that the response came in.
    pub parts: u32,
    /// Mean of the parts' microseconds from the sample's arrival to posting, at the accelerator.
    pub mean_us: u32,
}

impl Seen {
    /// Whether two whole answers have equal records: they left in one burst and were seen in one
    /// turn.
    pub fn is_alike(&self, other: &Seen) -> bool {
        let (mine, theirs) = (&self.in_flight, &other.in_flight);
        self.up == other.up
            && mine.posted_ns == theirs.posted_ns
            && mine.sample.issued_ns == theirs.sample.issued_ns
            && mine.sample.len == theirs.sample.len
            && mine.sample.first == theirs.sample.first
            && mine.sample.tries == theirs.sample.tries
            && self.header.len == other.header.len
            && self.header.queue_us == other.header.queue_us
            && self.header.compute_us == other.header.compute_us
            && self.parts == 1
            && other.parts == 1
    }

    /// Microseconds that the sample spent at the accelerator.
    pub fn residence_us(&self) -> u32 {
        self.header.queue_us.saturating_add(self.header.compute_us)
    }
}

/// Arrivals of one turn.
#[derive(Default)]
pub(super) struct Came {
    pub pieces: Vec<Piece>,
    pub seen: Vec<Seen>,
    pub contradictions: Vec<Contradiction>,
    /// Samples with invalid answers, by connection and slot; they are sent again.
    pub spoilt: Vec<(usize, u16, Sample)>,
    pub refused: Vec<RefusedAnswer>,
}

/// A sample that its accelerator has refused.
pub(super) struct RefusedAnswer {
    /// Index of its connection in `FrontendNic::up`.
    pub up: usize,
    pub connection: usize,
    pub imm: Imm,
    pub sample: Sample,
    /// Offset of the reason within the payload.
    pub at: u32,
    pub len: u32,
    /// The control plane carries the full reason.
    pub is_cut: bool,
}

impl Came {
    pub fn with_capacity(n: usize) -> Self {
        Came {
            pieces: Vec::with_capacity(n),
            seen: Vec::with_capacity(n),
            ..Came::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
            && self.seen.is_empty()
            && self.spoilt.is_empty()
            && self.refused.is_empty()
    }
}

/// A decoded write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// A part with parts to follow: payload bytes before it, and in it.
    Part { at: u32, len: u32 },
    /// The end of an answer, with fields as in [`Seen`].
    End {
        header: ResponseHeader,
        parts: u32,
        mean_us: u32,
    },
    /// A refusal in place of the answer, or of its rest.
    Refused { refusal: Refusal, at: u32, len: u32 },
}

impl Coming {
    /// Marks the answer as invalid, whatever follows.
    fn spoil(&mut self) {
        self.parts = SPOILT;
    }

    /// Decodes a write that has arrived; `None` where it is invalid.
    fn read(&mut self, bytes: &[u8], imm: Imm, at: u32) -> Option<Write> {
        let arrived = u32::try_from(bytes.len()).ok()?;
        if at == 0 {
            let header = ResponseHeader::decode(bytes, arrived, imm.use_count())?;
            let residence = header.queue_us.saturating_add(header.compute_us);
            if let Some(refusal) = header.refusal {
                let (at, len) = (0, header.len);
                return (!imm.more()).then_some(Write::Refused { refusal, at, len });
            }
            if !imm.more() {
                return Some(Write::End {
                    header,
                    parts: 1,
                    mean_us: residence,
                });
            }
            *self = Coming {
                payload: header.len,
                parts: 1,
                queue_us: header.queue_us,
                first_residence_us: residence,
                ..Coming::default()
            };
            let len = header.len;
            return Some(Write::Part { at: 0, len });
        }
        let at = self.payload;
        self.parts = self.parts.checked_add(1)?;
        if imm.more() {
            self.payload = self.payload.checked_add(arrived)?;
            return Some(Write::Part { at, len: arrived });
        }
        let (payload, trailer) = bytes.split_last_chunk::<RESPONSE_TRAILER_BYTES>()?;
        let len = self
            .payload
            .checked_add(u32::try_from(payload.len()).ok()?)?;
        let trailer = ResponseTrailer::decode(trailer, len, self.parts)?;
        if let Some(refusal) = trailer.refusal {
            let len = len - at;
            return Some(Write::Refused { refusal, at, len });
        }
        Some(Write::End {
            header: ResponseHeader {
                len,
                use_count: imm.use_count(),
                refusal: None,
                queue_us: self.queue_us,
                compute_us: trailer.compute_us,
            },
            parts: self.parts,
            mean_us: trailer.mean_us,
        })
    }
}

/// The payload of a response, or a range of it.
///
/// # Safety
/// These bytes have arrived, and the caller keeps the slot's grant closed while the slice lives.
pub(super) unsafe fn payload(window: &Window, slot: u16, at: u32, len: u32) -> &[u8] {
    let offset = window.slot_offset(slot) + RESPONSE_HEADER_BYTES + at as usize;
    // SAFETY: by the caller's promise, the peer does not write these bytes.
    unsafe { window.region().bytes(offset, len as usize) }.unwrap_or_default()
}

impl Shared {
    /// Handles a write on a connection, which has index `up` among those that are up. Answers to
    /// warm-up samples end here.
    pub(super) fn arrived(
        &self,
        (up, connection): (usize, &Connection),
        coming: &mut [Coming],
        (imm, at, len): (Imm, u32, u32),
        came: &mut Came,
    ) -> Result<(), Broken> {
        let slot = imm.slot();
        let window = &connection.window;
        let mut none = Coming::default();
        let coming = coming.get_mut(usize::from(slot)).unwrap_or(&mut none);
        let offset = window.slot_offset(slot) + at as usize;
        // SAFETY: the receiving half has reported these bytes, so the peer does not write them
        // until the slot's grant is opened again, which only `release` permits.
        let bytes = unsafe { window.region().bytes(offset, len as usize) };
        let write = bytes.ok().and_then(|b| coming.read(b, imm, at));
        // The grant is closed, or it is open and only this thread could sweep it. Either way this
        // thread may read the record.
        let in_flight = connection.tracker.arrived(slot);
        let (write, in_flight) = match (write, in_flight) {
            (Some(write), Some(in_flight)) if self.is_of_the_model(&write, at) => {
                (write, in_flight)
            }
            (_, in_flight) => {
                coming.spoil();
                // Where the grant is still open, the sweep of the connection finds the sample.
                if let Some(in_flight) = in_flight.filter(|_| !imm.more()) {
                    came.spoilt.push((connection.index, slot, in_flight.sample));
                }
                return Err(match (write, &self.answers) {
                    (Some(Write::End { header, .. }), Some(lengths)) => Broken::GivenUp(format!(
                        "an answer of {} bytes, where the model's have {lengths}",
                        header.len
                    )),
                    _ => Broken::BadFrame {
                        what: match at {
                            0 => "response header",
                            _ => "response trailer",
                        },
                        value: u64::from(len),
                    },
                });
            }
        };
        let sample = in_flight.sample;
        let warms_up = sample.id == WARM_UP_ID;
        // SAFETY: as above.
        let first = |len| self.token(unsafe { payload(window, slot, 0, len) });
        match write {
            Write::Part { .. } if warms_up => {}
            Write::Part { at, len } => {
                let token = (at == 0).then(|| first(len)).flatten();
                if let Some(token) = token {
                    match sample.first {
                        None => {
                            let at_ns = now_ns();
                            connection
                                .tracker
                                .first_came(slot, First::new(token, at_ns));
                        }
                        Some(_) => came.contradictions.extend(Contradiction::of(
                            &sample,
                            Some(token),
                            connection.index,
                        )),
                    }
                }
                came.pieces.push(Piece {
                    up,
                    connection: connection.index,
                    slot,
                    in_flight,
                    at,
                    len,
                    first: token.is_some() && sample.first.is_none(),
                });
            }
            Write::Refused { refusal, at, len } => came.refused.push(RefusedAnswer {
                up,
                connection: connection.index,
                imm,
                sample,
                at,
                len,
                is_cut: refusal == Refusal::Cut,
            }),
            Write::End { header, .. } if warms_up => {
                connection.tracker.release(slot);
                self.warmed(connection, &in_flight, &header);
            }
            Write::End {
                header,
                parts,
                mean_us,
            } => {
                if parts == 1 && sample.first.is_some() {
                    let again = first(header.len);
                    came.contradictions
                        .extend(Contradiction::of(&sample, again, connection.index));
                }
                came.seen.push(Seen {
                    up,
                    connection: connection.index,
                    slot,
                    in_flight,
                    header,
                    parts,
                    mean_us,
                });
            }
        }
        Ok(())
    }

    /// Whether a first part holds at least its token, and an answer has a length of the model.
    fn is_of_the_model(&self, write: &Write, at: u32) -> bool {
        match write {
            Write::Part { len, .. } => at > 0 || *len >= self.token_bytes,
            Write::End { header, .. } => {
                let lengths = self.answers.as_ref();
                lengths.is_none_or(|l| l.rows(header.len as usize).is_some())
            }
            Write::Refused { len, .. } => *len as usize <= MAX_REASON,
        }
    }

    /// The first token of an answer, little-endian; `None` where the payload is shorter.
    fn token(&self, payload: &[u8]) -> Option<u64> {
        let n = self.token_bytes as usize;
        let mut b = [0; 8];
        b.get_mut(..n)?.copy_from_slice(payload.get(..n)?);
        Some(u64::from_le_bytes(b))
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An answer cut at any place decodes to its parts; a trailer with wrong counts is refused.
        #[test]
        fn parts_read_as_what_was_written(
            sizes in prop::collection::vec(1u32..50, 1..20),
            last in 0u32..50,
            use_count in 0u16..0x8000,
            (wrong_len, wrong_parts) in (0u32..3, 0u32..3),
        ) {
            let imm = Imm::new(3, use_count);
            let mut coming = Coming::default();
            let (mut at, mut sum) = (0, 0);
            for (i, len) in sizes.iter().copied().enumerate() {
                let mut bytes = vec![7; len as usize];
                if i == 0 {
                    let (queue_us, compute_us, refusal) = (5, 6, None);
                    let header = ResponseHeader { len, use_count, refusal, queue_us, compute_us };
                    bytes.splice(0..0, header.encode());
                }
                let write = coming.read(&bytes, imm.with_more(), at);
                prop_assert_eq!(write, Some(Write::Part { at: sum, len }));
                sum += len;
                at = sum + RESPONSE_HEADER_BYTES as u32;
            }
            prop_assert_eq!(coming.first_residence_us, 11);
            let (len, parts) = (sum + last, sizes.len() as u32 + 1);
            let trailer = ResponseTrailer {
                len: len + wrong_len,
                parts: parts + wrong_parts,
                refusal: None,
                compute_us: 8,
                mean_us: 9,
            };
            let mut bytes = vec![7; last as usize];
            bytes.extend(trailer.encode());
            let header =
                ResponseHeader { len, use_count, refusal: None, queue_us: 5, compute_us: 8 };
            let end = Write::End { header, parts, mean_us: 9 };
            let right = (wrong_len, wrong_parts) == (0, 0);
            prop_assert_eq!(coming.read(&bytes, imm, at), right.then_some(end));
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            writes in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 1..5),
        ) {
            let (mut coming, mut at) = (Coming::default(), 0);
            for (bytes, more) in writes {
                let imm = Imm::new(0, 1);
                let imm = if more { imm.with_more() } else { imm };
                if coming.read(&bytes, imm, at).is_none() {
                    break;
                }
                at += bytes.len() as u32;
            }
        }
    }
}
