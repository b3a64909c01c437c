//! Checks each request before it leaves, and each answer: the core checks nothing.
//!
//! One invalid request ends the core with all its sequences, or makes it deaf.

use super::messages::{Output, finish};
use crate::engine::error::shorten;

/// Limits that hold for all requests of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub vocab: usize,
    /// Most tokens of prompt and answer together.
    pub context: usize,
    pub min_tokens: usize,
    pub max_tokens: usize,
    /// Ids that end an answer: the end of sequence and the stop ids.
    pub ends: Vec<u32>,
}

impl Limits {
    /// Copies the prompt to `into` and returns the account of its answer, which has at most `room`
    /// tokens.
    /// Error text: why the core must not get this prompt.
    pub fn admit(
        &self,
        prompt: impl ExactSizeIterator<Item = i32>,
        room: usize,
        into: &mut Vec<u32>,
    ) -> Result<Account, String> {
        let (len, max) = (prompt.len(), self.max_tokens.min(room));
        if len == 0 {
            return Err("the prompt is empty".to_owned());
        }
        if len + 2 > self.context {
            return Err(format!(
                "the prompt has {len} tokens, and the core's context of {} holds prompts of {}",
                self.context,
                self.context.saturating_sub(2)
            ));
        }
        if max == 0 {
            return Err("the answer's slot holds no token".to_owned());
        }
        into.clear();
        for (at, id) in prompt.enumerate() {
            match u32::try_from(id) {
                Ok(id) if (id as usize) < self.vocab => into.push(id),
                _ => {
                    return Err(format!(
                        "token {at} of the prompt is {id}, beyond the vocabulary of {}",
                        self.vocab
                    ));
                }
            }
        }
        Ok(Account {
            prompt: len,
            min: self.min_tokens.min(max),
            max,
            received: 0,
            is_prompt_counted: false,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub prompt: usize,
    /// Fewest and most tokens of the answer.
    pub min: usize,
    pub max: usize,
    pub received: usize,
    is_prompt_counted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    End,
    /// The core could not run this sample; others go on.
    Refuse(String),
}

impl Account {
    /// Checks an output and counts its tokens.
    /// Error text: the core breaks a rule, so that no answer of it counts.
    pub fn take(&mut self, limits: &Limits, output: &Output<'_>) -> Result<Progress, String> {
        if let Some(counts) = output.prompt {
            let (prompt, cached) = (counts.num_prompt_tokens, counts.num_cached_tokens);
            if prompt != self.prompt as u64 {
                let sent = self.prompt;
                return Err(format!(
                    "it counts {prompt} prompt tokens where {sent} were sent"
                ));
            }
            if cached != 0 {
                return Err(format!(
                    "it took {cached} prompt tokens from its prefix cache, which is forbidden"
                ));
            }
            self.is_prompt_counted = true;
        }
        if let Some(id) = output
            .tokens
            .iter()
            .find(|id| **id as usize >= limits.vocab)
        {
            let vocab = limits.vocab;
            return Err(format!(
                "it answered with id {id}, beyond the vocabulary of {vocab}"
            ));
        }
        self.received += output.tokens.len();
        if self.received > self.max {
            let (received, max) = (self.received, self.max);
            return Err(format!(
                "it answered with {received} tokens where {max} were asked for"
            ));
        }
        let Some(reason) = output.finish else {
            return Ok(Progress::More);
        };
        let last = output.tokens.last().and_then(|id| u32::try_from(*id).ok());
        let is_end = last.is_some_and(|id| limits.ends.contains(&id));
        let is_full = self.received == self.max || self.prompt + self.received >= limits.context;
        match reason {
            finish::ERROR => {
                let words = output.error.map(|words| format!(": {}", shorten(words)));
                let words = words.unwrap_or_default();
                Ok(Progress::Refuse(format!(
                    "the core could not run this prompt{words}"
                )))
            }
            finish::STOP if !is_end => {
                Err("it ended an answer with `stop` behind a token that is \
                 neither an end of sequence nor a stop id: see engine.vllm.eos"
                    .to_owned())
            }
            finish::STOP if self.received < self.min => Err(format!(
                "it ended an answer after {} tokens, and min_tokens is {}",
                self.received, self.min
            )),
            finish::LENGTH if !is_full => Err(format!(
                "it ended an answer with `length` after {} of {} tokens",
                self.received, self.max
            )),
            finish::STOP | finish::LENGTH if !self.is_prompt_counted => {
                Err("it does not count the tokens of a prompt".to_owned())
            }
            finish::STOP | finish::LENGTH => Ok(Progress::End),
            finish::ABORT => Err("it gave up an answer that is wanted".to_owned()),
            n => Err(format!("it ended an answer for the unknown reason {n}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::PromptCounts, *};

    fn limits() -> Limits {
        Limits {
            vocab: 100,
            context: 20,
            min_tokens: 2,
            max_tokens: 8,
            ends: vec![2, 7],
        }
    }

    /// Each line: tokens, reason of the end, counts of the prompt, and the verdict or its words.
    /// The prompt has three ids. Scripted cores test refused prompts (`tests::answers`).
    const ANSWERS: &str = "1 1 | - | 3 0 | More
        1 2 | stop | 3 0 | End
        1 7 | stop | 3 0 | End
        1 1 1 1 1 1 1 1 | length | 3 0 | End
        1 1 1 1 1 1 1 1 | length | - | it does not count the tokens of a prompt
        1 3 | stop | 3 0 | neither an end of sequence nor a stop id: see engine.vllm.eos
        - | stop | 3 0 | neither an end of sequence nor a stop id
        2 | stop | 3 0 | after 1 tokens, and min_tokens is 2
        1 1 1 1 1 1 1 | length | 3 0 | with `length` after 7 of 8 tokens
        1 1 1 1 1 1 1 1 1 | - | 3 0 | 9 tokens where 8 were asked for
        100 | - | 3 0 | id 100, beyond the vocabulary of 100
        1 | - | 4 0 | it counts 4 prompt tokens where 3 were sent
        1 | - | 3 1 | it took 1 prompt tokens from its prefix cache
        1 | abort | 3 0 | it gave up an answer that is wanted
        1 | other | 3 0 | unknown reason 4
        - | error | - | the core could not run this prompt: no room";

    fn judge(prompt: usize, line: &str) -> (String, String) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let tokens = fields[0].split(' ').filter_map(|n| n.parse().ok());
        let mut counts = fields[2].split(' ').filter_map(|n| n.parse().ok());
        let reasons = ["stop", "length", "abort", "error", "other"];
        let output = Output {
            tokens: tokens.collect(),
            finish: reasons
                .iter()
                .position(|r| *r == fields[1])
                .map(|at| at as u64),
            prompt: counts.next().map(|num_prompt_tokens| PromptCounts {
                num_prompt_tokens,
                num_cached_tokens: counts.next().unwrap_or_default(),
            }),
            error: Some("no room"),
            ..Output::default()
        };
        let ids = vec![1; prompt].into_iter();
        let account = limits().admit(ids, 64, &mut Vec::new());
        let verdict = match account.expect("sound").take(&limits(), &output) {
            Ok(Progress::Refuse(words)) | Err(words) => words,
            Ok(other) => format!("{other:?}"),
        };
        (verdict, fields[3].to_owned())
    }

    #[test]
    fn answers_are_judged() {
        for line in ANSWERS.lines() {
            let (verdict, words) = judge(3, line);
            assert!(verdict.contains(&words), "{line}: {verdict}");
        }
        // A request's limit below min_tokens wins.
        let account = limits().admit([1, 1].into_iter(), 1, &mut Vec::new());
        let account = account.expect("sound");
        assert_eq!((account.min, account.max), (1, 1));
        // The model's length ends an answer, too.
        let (verdict, words) = judge(18, "1 1 | length | 18 0 | End");
        assert_eq!(verdict, words);
    }
}
