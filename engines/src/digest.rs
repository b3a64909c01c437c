//! The `digest` engine answers with a hash of the sample, so that a test can prove that every
//! response belongs to its sample, at any response size. The `null` engine answers with zeros, to
//! measure the cost of everything but an engine.
//!
//! The first 8 bytes of an answer are the sample's XXH3. Each following word of 8 bytes is the
//! previous word plus [`STEP`]. So a test can check every byte of a large answer.

use std::{thread, time::Duration};

use qdl::{model::ModelSpec, serve::Arrival};
use xxhash_rust::xxh3::xxh3_64;

use super::{ANY_INPUT, Batch, Engine, EngineError, EngineKind, EngineParams, Inline, Worker};
use crate::{
    config::AnswerSource,
    entry::{EngineEntry, Opened},
};

pub(crate) const DIGEST: EngineEntry = EngineEntry {
    has_ragged_output: true,
    answer_bytes_min: Digest::OUTPUT_BYTES,
    ..row(EngineKind::Digest, "digest")
};
pub(crate) const NULL: EngineEntry = row(EngineKind::Null, "null");

const fn row(kind: EngineKind, name: &'static str) -> EngineEntry {
    EngineEntry {
        has_other_outputs: true,
        keys: &["delay_us"],
        ..EngineEntry::of(kind, name, AnswerSource::AnyBytes, open)
    }
}

fn open(params: &EngineParams) -> Opened {
    Ok(std::sync::Arc::new(Digest::new(params)))
}

/// Difference of consecutive words of an answer: odd, so no word repeats within an answer.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const WORD: usize = size_of::<u64>();
/// Number of words that the check compares between two branches.
const BLOCK: usize = 512;
/// Largest sample and answer, in bytes, for inline answers. Larger ones would keep a NIC thread
/// from its connections for too long.
const INLINE_UP_TO: usize = 1 << 20;

/// The lengths of answers for a model, and the functions that write and check an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    largest_sample: usize,
    room: usize,
    /// Bytes of a row of a ragged output; 0 for an output of fixed size.
    row: usize,
}

impl Answers {
    /// Answers for a model. An answer fills an output of fixed size. Of a ragged output it fills a
    /// part in proportion to the sample's length, in whole rows, and at least 8 bytes.
    pub fn of(model: &ModelSpec) -> Self {
        let room = model.max_output_bytes().unwrap_or(0);
        let rows = model.output.shape.first().filter(|_| model.output.ragged);
        Answers {
            largest_sample: model.max_input_bytes().unwrap_or(0).max(1),
            room,
            row: rows.map_or(0, |rows| room / (*rows).max(1)),
        }
    }

    /// Length in bytes of the answer to a sample of `sample` bytes.
    pub fn len(&self, sample: usize) -> usize {
        if self.row == 0 {
            return self.room;
        }
        let part = self.room as u128 * sample as u128 / self.largest_sample as u128;
        let part = usize::try_from(part).unwrap_or(self.room);
        let least = WORD.next_multiple_of(self.row);
        (part - part % self.row).max(least).min(self.room)
    }

    /// Fills `to` with the answer to a sample whose XXH3 is `digest`.
    pub fn fill(digest: u64, to: &mut [u8]) {
        let mut word = digest;
        let (words, rest) = to.as_chunks_mut::<WORD>();
        for to in words {
            *to = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }

    /// Offset of the first wrong byte in an answer to a sample whose XXH3 is `digest`.
    pub fn first_wrong(digest: u64, answer: &[u8]) -> Option<usize> {
        let mut word = digest;
        for (i, block) in answer.chunks(BLOCK * WORD).enumerate() {
            let begin = word;
            let (words, rest) = block.as_chunks::<WORD>();
            // No branch per word, so that the compiler compares several words at a time.
            let mut differ = 0;
            for got in words {
                differ |= u64::from_le_bytes(*got) ^ word;
                word = word.wrapping_add(STEP);
            }
            if differ != 0 || *rest != word.to_le_bytes()[..rest.len()] {
                let mut due = vec![0; block.len()];
                Answers::fill(begin, &mut due);
                let at = due.iter().zip(block).position(|(a, b)| a != b);
                return at.map(|at| i * BLOCK * WORD + at);
            }
        }
        None
    }
}

/// The `digest` or `null` engine.
#[derive(Clone, Debug)]
pub struct Digest {
    model: ModelSpec,
    answers: Answers,
    /// True for `null`: every answer is zeros.
    zeros: bool,
    delay: Duration,
    inline: bool,
}

impl Digest {
    /// Default and least size of a response of the engine `digest`, in bytes.
    pub const OUTPUT_BYTES: usize = WORD;

    /// Makes the engine from `kind`, `model`, `spec` and `delay_us` of `params`.
    pub fn new(params: &EngineParams) -> Self {
        let zeros = params.engine.kind == EngineKind::Null;
        let spec = params.spec.as_ref();
        let fits = |m: &&ModelSpec| zeros || m.max_output_bytes() >= Some(Self::OUTPUT_BYTES);
        let model = spec.filter(fits).cloned().unwrap_or_else(|| {
            let largest = spec.and_then(ModelSpec::max_input_bytes);
            let largest = largest.unwrap_or(ANY_INPUT);
            ModelSpec::opaque(&params.model, largest, Self::OUTPUT_BYTES)
        });
        let answers = Answers::of(&model);
        let small = answers.largest_sample.max(answers.room) <= INLINE_UP_TO;
        Digest {
            model,
            answers,
            zeros,
            delay: params.delay(),
            inline: params.engine.delay_us == 0 && (small || zeros),
        }
    }

    /// The first 8 bytes of the response to `sample`: XXH3, 64 bits with seed 0, little-endian.
    pub fn of(sample: &[u8]) -> [u8; Self::OUTPUT_BYTES] {
        xxh3_64(sample).to_le_bytes()
    }

    fn kind(&self) -> EngineKind {
        match self.zeros {
            true => EngineKind::Null,
            false => EngineKind::Digest,
        }
    }

    fn digest(&self, sample: &[u8]) -> u64 {
        match self.zeros {
            true => 0,
            false => xxh3_64(sample),
        }
    }

    /// Writes the answer to a sample of `bytes` bytes into `to`; returns the answer's length.
    fn write(&self, digest: u64, bytes: usize, to: &mut [u8]) -> Result<u32, EngineError> {
        let need = match self.zeros {
            true => self.answers.room,
            false => self.answers.len(bytes),
        };
        let room = to.len();
        let Some(to) = to.get_mut(..need) else {
            return Err(EngineError::output_room(need, room));
        };
        match self.zeros {
            true => to.fill(0),
            false => Answers::fill(digest, to),
        }
        u32::try_from(need).map_err(|_| EngineError::output_room(need, room))
    }
}

impl Engine for Digest {
    fn name(&self) -> &'static str {
        self.kind().as_str()
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn takes_any_bytes(&self) -> bool {
        self.kind().takes_any_bytes()
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        Ok(Box::new(self.clone()))
    }

    fn inline(&self) -> Option<&dyn Inline> {
        self.inline.then_some(self as &dyn Inline)
    }
}

impl Inline for Digest {
    fn answer(&self, burst: &mut [Arrival], lens: &mut Vec<u32>) -> Result<(), EngineError> {
        for arrival in burst {
            let (digest, bytes) = (self.digest(arrival.input()), arrival.input_len());
            lens.push(self.write(digest, bytes, arrival.output())?);
        }
        Ok(())
    }
}

impl Worker for Digest {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        if !self.delay.is_zero() {
            thread::sleep(self.delay);
        }
        for i in 0..batch.len() {
            let (digest, bytes) = (self.digest(batch.input(i)), batch.input_len(i));
            let (output, len) = batch.output(i);
            *len = self.write(digest, bytes, output)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use qdl::model::{DType, TensorSpec};

    use super::*;
    use crate::testkit::{ragged, tensor};

    fn answers(input: usize, output: TensorSpec) -> Answers {
        Answers::of(&ModelSpec {
            output,
            ..ModelSpec::opaque("m", input, 8)
        })
    }

    #[test]
    fn an_answer_is_as_large_a_part_as_its_sample() {
        let fixed = answers(100, tensor("o", DType::U8, &[40]));
        assert_eq!((fixed.len(1), fixed.len(100)), (40, 40));
        let quarter = answers(4000, ragged("o", DType::U8, &[1000]));
        assert_eq!((quarter.len(4000), quarter.len(403)), (1000, 100));
        assert_eq!(quarter.len(1), 8, "its digest at least");
        let ids = answers(4000, ragged("o", DType::I32, &[1000]));
        assert_eq!((ids.len(4000), ids.len(403)), (4000, 400));
        let large = answers(1 << 30, ragged("o", DType::U8, &[1 << 30]));
        assert_eq!(large.len(1 << 30), 1 << 30);
    }

    #[test]
    fn every_byte_of_an_answer_is_known() {
        for len in [8, 9, 4095, 4096, 4103, 20_000] {
            let mut answer = vec![0; len];
            Answers::fill(7, &mut answer);
            assert_eq!(answer[..8], 7u64.to_le_bytes());
            assert_eq!(Answers::first_wrong(7, &answer), None, "{len} bytes");
            assert_eq!(Answers::first_wrong(8, &answer), Some(0));
            for at in [0, 7, len / 2, len - 1] {
                answer[at] ^= 1;
                assert_eq!(Answers::first_wrong(7, &answer), Some(at), "of {len}");
                answer[at] ^= 1;
            }
            // The correct bytes at a wrong position.
            if len > 4096 {
                answer.rotate_left(8);
                assert_eq!(Answers::first_wrong(7, &answer), Some(0));
            }
        }
    }
}
