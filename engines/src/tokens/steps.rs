//! Runs the continuous batch, with step times from the configuration.

use std::sync::Arc;

use crate::config::TokensConfig;
use fabric::clock;
use qdl::connection::Spin;
use record::NodeRole;

use super::Answers;
use crate::{
    Sequence,
    event_count::EventCount,
    streaming::{EngineThread, SequenceSource, TOKEN_BYTES},
};

const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

/// Longest delay, in nanoseconds, that the next steps make up for after a late wake-up.
const CATCH_UP_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds of a step for each prompt token of joining sequences.
    prefill_ns: u64,
    step_ns: u64,
    /// Nanoseconds of a step for each sequence after the first.
    beside_ns: u64,
    spin: Spin,
}

impl Pace {
    pub fn new(settings: &TokensConfig, spin_us: u64) -> Self {
        Pace {
            prefill_ns: settings.prefill_us.saturating_mul(1_000),
            step_ns: settings.step_us.saturating_mul(1_000),
            beside_ns: settings.beside_us.saturating_mul(1_000),
            spin: Spin::new(spin_us.saturating_mul(1_000)),
        }
    }

    /// Nanoseconds of a step of `sequences` sequences, with `joined` prompt tokens of new ones.
    fn step(&self, sequences: usize, joined: u64) -> u64 {
        let beside = self
            .beside_ns
            .saturating_mul(sequences.saturating_sub(1) as u64);
        let prefill = self.prefill_ns.saturating_mul(joined);
        self.step_ns.saturating_add(beside).saturating_add(prefill)
    }
}

struct Active {
    sequence: Sequence,
    seed: u64,
    /// Tokens generated so far; `len` is the number in the whole answer.
    at: u32,
    len: u32,
}

/// State that NIC threads and the engine's thread share.
pub(super) struct Steps {
    answers: Answers,
    pace: Pace,
    /// Limit of concurrent sequences.
    pub most: usize,
    pub thread: Arc<EngineThread>,
    /// Notified when the engine closes: ends the wait of a step, which new sequences must not end.
    over: EventCount,
    role: NodeRole,
}

impl Steps {
    pub fn new(answers: Answers, pace: Pace, most: usize, role: NodeRole) -> Self {
        Steps {
            role,
            answers,
            pace,
            most,
            thread: Arc::default(),
            over: EventCount::default(),
        }
    }

    /// Ends the engine's thread.
    pub fn close(&self) {
        self.thread.close();
        self.over.notify_all();
    }

    /// The body of the engine's thread, until `close`.
    pub fn run(&self, source: &dyn SequenceSource) {
        let mut batch: Vec<Active> = Vec::with_capacity(self.most);
        // Planned end of the previous step; `None` if the batch has been empty since.
        let mut last_end = None;
        while !self.thread.is_closed() {
            let seen = self.thread.events.epoch();
            let prefill = self.join(source, &mut batch);
            if batch.is_empty() {
                last_end = None;
                let until = clock::now_ns().saturating_add(LONGEST_SLEEP_NS);
                self.thread.events.wait(seen, until, self.pace.spin);
                continue;
            }
            let took = self.pace.step(batch.len(), prefill);
            if took > 0 {
                let now = clock::now_ns();
                let earliest = now.saturating_sub(CATCH_UP_NS);
                let end = last_end
                    .map_or(now, |end: u64| end.max(earliest))
                    .saturating_add(took);
                last_end = Some(end);
                if !self.wait_until(end) {
                    return;
                }
            }
            self.step(&mut batch);
        }
    }

    /// Moves new sequences into the batch; returns the number of their prompt tokens.
    fn join(&self, source: &dyn SequenceSource, batch: &mut Vec<Active>) -> u64 {
        let mut prefill = 0;
        while let Some(sequence) = source.next() {
            let options = sequence.options();
            let seed = Answers::seed_with(sequence.input(), options.seed);
            let room = sequence.room();
            // A prefill node's handle is the seed of the answer.
            let handle = &options.handle;
            if !handle.is_empty() && handle[..] != seed.to_le_bytes() {
                sequence.refuse(&"the handle is not of this prompt");
                continue;
            }
            let prompt = match handle.is_empty() {
                true => sequence.input().len() / TOKEN_BYTES,
                false => 0,
            };
            // With `ignore_eos`, the end of sequence would be behind the last token.
            let len = match options.ignore_eos {
                true => room + 1,
                false => self.answers.len(seed).max(sequence.min_tokens(0)).min(room),
            };
            prefill += prompt as u64;
            batch.push(Active {
                seed,
                at: 0,
                len: len as u32,
                sequence,
            });
        }
        prefill
    }

    /// Waits until `end_ns`; returns false if the engine closes before.
    fn wait_until(&self, end_ns: u64) -> bool {
        loop {
            let seen = self.over.epoch();
            if self.thread.is_closed() {
                return false;
            }
            let now = clock::now_ns();
            if now >= end_ns {
                return true;
            }
            let until = end_ns.min(now.saturating_add(LONGEST_SLEEP_NS));
            self.over.wait(seen, until, self.pace.spin);
        }
    }

    /// Gives a token to each sequence; finished and unwanted sequences leave the batch.
    fn step(&self, batch: &mut Vec<Active>) {
        let mut i = 0;
        while let Some(active) = batch.get_mut(i) {
            if !active.sequence.is_wanted() {
                drop(batch.swap_remove(i));
                continue;
            }
            let (at, len) = (active.at as usize, active.len as usize);
            let token = [self.answers.token(active.seed, at, len)];
            let sequence = &active.sequence;
            let stops =
                at + 1 >= sequence.min_tokens(0) && sequence.options().stop_ids.contains(&token[0]);
            if stops || at + 1 == len.min(sequence.room()) {
                batch.swap_remove(i).sequence.finish(&token);
                continue;
            }
            if self.role == NodeRole::Prefill {
                let seed = active.seed.to_le_bytes();
                batch.swap_remove(i).sequence.hand_over(token[0], &seed);
                continue;
            }
            active.at += 1;
            match active.sequence.push(&token) {
                Ok(()) => i += 1,
                Err(why) => batch.swap_remove(i).sequence.refuse(&why),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_its_time_and_that_of_each_prompt_token_and_neighbour() {
        let settings = TokensConfig {
            step_us: 1_000,
            prefill_us: 100,
            beside_us: 200,
            ..TokensConfig::default()
        };
        let pace = Pace::new(&settings, 0);
        assert_eq!(pace.step(1, 0), 1_000_000);
        assert_eq!(pace.step(3, 50), 6_400_000);
    }
}
