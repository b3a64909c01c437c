//! The engine's thread: takes sequences from the queue, runs steps and passes tokens on.

use fabric::clock;
use qdl::connection::Spin;

use super::{
    decoder::{Candidates, Decoder, StepRow},
    schedule::{DecodeStep, Schedule},
};
use crate::{
    EngineError, Sequence,
    streaming::{EngineThread, SequenceSource},
};

/// Longest sleep of the engine's thread without sequences, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 500_000_000;
const WARM_PROMPT: usize = 128;

#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerLimits {
    pub min: usize,
    pub max: usize,
    pub eos: i32,
}

impl AnswerLimits {
    /// The next token of `sequence` after `made` tokens, and true if this token ends the answer.
    fn choose(&self, best: Candidates, made: usize, sequence: &Sequence) -> (i32, bool) {
        let (made, options) = (made + 1, sequence.options());
        let of = |id: i64| i32::try_from(id).unwrap_or(i32::MAX);
        let ends =
            |id: i32| (id == self.eos && !options.ignore_eos) || options.stop_ids.contains(&id);
        let is_early = made < sequence.min_tokens(self.min);
        let first = of(best[0]);
        let token = match ends(first) && is_early {
            // Before the minimum, the second most likely token replaces the end of the answer.
            true => of(best[1]),
            false => first,
        };
        let is_last = ends(token) && !is_early;
        (token, is_last || made >= self.max.min(sequence.room()))
    }
}

pub(super) struct DecodeLoop {
    decoder: Decoder,
    schedule: Schedule<Sequence>,
    limits: AnswerLimits,
    prompt: Vec<i64>,
    /// For each row of a step: its newest token, and the positions in use after the step.
    newest: Vec<(i64, usize)>,
    best: Vec<Candidates>,
}

impl DecodeLoop {
    /// Makes a loop and warms it up. `longest` is the number of tokens in the longest prompt.
    pub fn new(
        decoder: Decoder,
        slots: usize,
        longest: usize,
        limits: AnswerLimits,
    ) -> Result<Self, EngineError> {
        let mut this = DecodeLoop {
            schedule: Schedule::new(slots, decoder.can_move),
            decoder,
            limits,
            prompt: Vec::with_capacity(longest),
            newest: Vec::with_capacity(slots),
            best: Vec::with_capacity(slots),
        };
        let warm = this.warm_up(longest.min(WARM_PROMPT));
        warm.map(|()| this).map_err(|e| failed(slots, e))
    }

    /// Runs a prompt, a step of one row and a step of all rows. So the runtime's work at first use
    /// is done before the first sample.
    fn warm_up(&mut self, prompt: usize) -> Result<(), String> {
        let tokens = vec![0; prompt];
        let fed = StepRow {
            tokens: &tokens,
            held: prompt,
        };
        self.decoder.step(0, [fed].into_iter())?;
        for rows in [1, self.schedule.slots()] {
            let one = StepRow {
                tokens: &[0],
                held: 1,
            };
            self.decoder.step(0, std::iter::repeat_n(one, rows))?;
        }
        Ok(())
    }

    /// Serves until the thread is closed. `refusal`: why a sequence cannot run, if it cannot.
    pub fn serve(
        mut self,
        thread: &EngineThread,
        source: &dyn SequenceSource,
        refusal: impl Fn(&Sequence) -> Option<String>,
    ) -> Result<(), EngineError> {
        while !thread.is_closed() {
            let seen = thread.events.epoch();
            while let Some(sequence) = source.next() {
                let prompt = sequence.prompt().len();
                match refusal(&sequence) {
                    Some(why) => sequence.refuse(&why),
                    None => self.schedule.push(sequence, prompt),
                }
            }
            self.schedule.retain(Sequence::is_wanted);
            let decoder = &mut self.decoder;
            match self.schedule.next(|m| decoder.move_slot(m)) {
                DecodeStep::Idle => {
                    let until = clock::now_ns().saturating_add(LOOK_AGAIN_NS);
                    thread.events.wait(seen, until, Spin::new(0));
                }
                DecodeStep::Join { slot } => self.join(slot).map_err(|e| failed(1, e))?,
                DecodeStep::Decode { first, rows } => {
                    self.decode(first, rows).map_err(|e| failed(rows, e))?;
                }
            }
        }
        Ok(())
    }

    /// Computes the prompt of the sequence in `slot` and passes its first token on.
    fn join(&mut self, slot: usize) -> Result<(), String> {
        let Some(row) = self.schedule.row(slot) else {
            return Ok(());
        };
        self.prompt.clear();
        self.prompt.extend(row.owner.prompt().map(i64::from));
        let fed = StepRow {
            tokens: &self.prompt,
            held: self.prompt.len(),
        };
        let best = self.decoder.step(slot, [fed].into_iter())?[0];
        self.hand_on(slot, best);
        Ok(())
    }

    /// Computes one token of each sequence in the slots and passes the tokens on.
    fn decode(&mut self, first: usize, rows: usize) -> Result<(), String> {
        self.newest.clear();
        for slot in first..first + rows {
            // For a free slot in between, the step computes a dummy token.
            let newest = match self.schedule.row(slot) {
                Some(row) => (i64::from(row.last), row.held() + 1),
                None => (0, 1),
            };
            self.newest.push(newest);
        }
        let fed = self.newest.iter().map(|(token, held)| StepRow {
            tokens: std::slice::from_ref(token),
            held: *held,
        });
        self.best.clear();
        self.best.extend_from_slice(self.decoder.step(first, fed)?);
        for i in 0..self.best.len() {
            self.hand_on(first + i, self.best[i]);
        }
        Ok(())
    }

    fn hand_on(&mut self, slot: usize, best: Candidates) {
        let Some(row) = self.schedule.row(slot) else {
            return;
        };
        let (token, last) = self.limits.choose(best, row.made, &row.owner);
        row.made += 1;
        row.last = token;
        if last {
            if let Some(sequence) = self.schedule.take(slot) {
                sequence.finish(&[token]);
            }
        } else if let Err(why) = row.owner.push(&[token])
            && let Some(sequence) = self.schedule.take(slot)
        {
            sequence.refuse(&why);
        }
    }
}

pub(super) fn failed(batch: usize, reason: String) -> EngineError {
    EngineError::run("llm", batch, reason)
}
