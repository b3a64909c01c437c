//! Checks each request before it leaves, and each answer: the server may check nothing.
//!
//! One invalid request ends vLLM's core with all its sequences, or makes it deaf.

use crate::config::MAX_IN_FLIGHT;

use crate::EngineError;

/// Prompt and answer of the request that tries a server, in tokens.
const TRIAL_PROMPT: usize = 16;
pub(super) const TRIAL_TOKENS: usize = 2;
/// Requests beyond a server's concurrency: when an answer ends, the server has the next request.
const AHEAD: usize = 8;
/// Concurrent requests to a server that does not report its concurrency.
const UNKNOWN: usize = 512;

/// Limits that hold for all requests to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Name of the engine, for the names of keys.
    pub engine: &'static str,
    pub vocab: usize,
    /// Most tokens of prompt and answer together, where an answer may end there.
    pub context: usize,
    pub min_tokens: usize,
    pub max_tokens: usize,
    /// Ids that end an answer: the end of sequence and the stop ids.
    pub ends: Vec<u32>,
    /// Whether these are all: an end of sequence is configured, or ignored.
    pub are_all_ends: bool,
}

/// Reason why a server ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The answer ended at an end of sequence, or at a stop id.
    Stop,
    /// The answer reached its limit.
    Length,
}

impl Limits {
    /// Copies the prompt to `into` and returns the account of its answer, which has at most `room`
    /// tokens.
    /// Error text: why the server must not get this prompt.
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
        if len.saturating_add(2) > self.context {
            return Err(format!(
                "the prompt has {len} tokens, and the server's context of {} holds prompts of {}",
                self.context,
                self.context.saturating_sub(2)
            ));
        }
        if max == 0 {
            return Err("the answer's slot holds no token".to_owned());
        }
        into.clear();
        for (at, id) in prompt.enumerate() {
            let known = self.known(id).ok_or_else(|| {
                let vocab = self.vocab;
                format!("token {at} of the prompt is {id}, beyond the vocabulary of {vocab}")
            });
            into.push(known?);
        }
        Ok(self.account(len, max))
    }

    /// The account of an answer of at most `max` tokens to a prompt of `prompt` ids.
    pub fn account(&self, prompt: usize, max: usize) -> Account {
        Account {
            prompt,
            min: self.min_tokens.min(max),
            max,
            received: 0,
            last: None,
            is_prompt_counted: false,
        }
    }

    /// A harmless prompt of at most `most` ids.
    pub fn trial_prompt(&self, most: usize) -> impl ExactSizeIterator<Item = i32> {
        let vocab = self.vocab;
        (0..TRIAL_PROMPT.min(most)).map(move |i| ((i + 1) % vocab) as i32)
    }

    fn known(&self, id: i32) -> Option<u32> {
        let id = u32::try_from(id).ok()?;
        ((id as usize) < self.vocab).then_some(id)
    }
}

/// The tokens of one answer so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub prompt: usize,
    /// Fewest and most tokens of the answer.
    pub min: usize,
    pub max: usize,
    pub received: usize,
    last: Option<u32>,
    is_prompt_counted: bool,
}

impl Account {
    /// Compares the server's count of prompt tokens with the prompt.
    /// Error text: as [`Account::take`].
    pub fn count_prompt(&mut self, said: usize) -> Result<(), String> {
        self.is_prompt_counted = true;
        let sent = self.prompt;
        match said == sent {
            true => Ok(()),
            false => Err(format!(
                "it counts {said} tokens in a prompt of {sent}: it adds some, or cuts it"
            )),
        }
    }

    /// Checks and counts tokens of the answer.
    /// Error text: the server breaks a rule, so that no answer of it counts.
    pub fn take(&mut self, limits: &Limits, tokens: &[i32]) -> Result<(), String> {
        let engine = limits.engine;
        for id in tokens {
            let Some(id) = limits.known(*id) else {
                return Err(format!(
                    "it answers with token {id}, beyond the vocabulary of {}: see \
                     engine.{engine}.vocab",
                    limits.vocab
                ));
            };
            if let Some(last) = self.last
                && self.received > self.min
                && limits.ends.contains(&last)
            {
                return Err(format!(
                    "token {id} follows {last}, which engine.{engine}.eos and \
                     engine.{engine}.stop end an answer with"
                ));
            }
            self.last = Some(id);
            self.received += 1;
        }
        match self.received > self.max {
            true => Err(format!(
                "it answered with {} tokens where {} were asked for",
                self.received, self.max
            )),
            false => Ok(()),
        }
    }

    /// Checks the end of the answer, of whose tokens the server has not sent `unsent`.
    /// Error text: as [`Account::take`].
    pub fn end(&self, limits: &Limits, finish: Finish, unsent: usize) -> Result<(), String> {
        let (came, min, max) = (self.received + unsent, self.min, self.max);
        if !self.is_prompt_counted {
            return Err(uncounted("prompt"));
        }
        match finish {
            Finish::Stop => {
                self.check_stop(limits)?;
                match came < min {
                    true => Err(format!("{came} tokens, and {min} to {max} were asked for")),
                    false => Ok(()),
                }
            }
            Finish::Length if came == max || self.prompt + came >= limits.context => Ok(()),
            Finish::Length => Err(format!(
                "it says that {max} tokens were reached, and {came} came: its context may be \
                 shorter than it says"
            )),
        }
    }

    fn check_stop(&self, limits: &Limits) -> Result<(), String> {
        let engine = limits.engine;
        match self.last {
            None => Err("an answer without a token".to_owned()),
            Some(last) if !limits.are_all_ends || limits.ends.contains(&last) => Ok(()),
            Some(last) if limits.ends.is_empty() => Err(format!(
                "it stopped at token {last} although engine.{engine}.ignore_eos is set"
            )),
            Some(last) => Err(format!(
                "it stopped behind token {last}, which is none of engine.{engine}.eos and \
                 engine.{engine}.stop: it keeps the end of sequence to itself, or has another \
                 one: if {last} is one, add it to engine.{engine}.eos"
            )),
        }
    }
}

/// Limit of concurrent requests to a server that works on `at_once` sequences, and the reason: the
/// value `set` of the key `key`, or `at_once`.
pub(super) fn in_flight(at_once: Option<usize>, set: Option<usize>, key: &str) -> (usize, String) {
    let says = match at_once {
        Some(n) => format!("it says that it works on {n} sequences at once"),
        None => "it does not say how many sequences it works on at once".to_owned(),
    };
    let n = match (set, at_once) {
        (Some(n), _) => return (n, format!("{says}, and {key} is {n}")),
        (None, Some(n)) => n.saturating_add(AHEAD).min(MAX_IN_FLIGHT),
        (None, None) => UNKNOWN,
    };
    (n, says)
}

/// The longest answer of an engine whose keys `[max_tokens, min_tokens]` have these values, for a
/// model whose output holds `room` tokens.
/// Error: names the key that does not fit.
pub(super) fn answer_limit(
    keys: [&'static str; 2],
    (max, min): (Option<usize>, usize),
    room: usize,
) -> Result<usize, EngineError> {
    let max = max.unwrap_or(room);
    if max > room {
        let reason = format!("{max} is more than the model's output of {room}");
        return Err(EngineError::param(keys[0], reason));
    }
    if min > max {
        let reason = format!("{min} is more than max_tokens, {max}");
        return Err(EngineError::param(keys[1], reason));
    }
    Ok(max)
}

/// Error text for an answer whose tokens, or whose prompt's, the server does not count.
pub(super) fn uncounted(of: &str) -> String {
    format!(
        "it does not count the tokens of the {of}, so none can be found lost: it is too old, or not \
         asked as it should be"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            engine: "vllm",
            vocab: 100,
            context: 20,
            min_tokens: 2,
            max_tokens: 8,
            ends: vec![2],
            are_all_ends: true,
        }
    }

    /// The end of an answer of these tokens to a prompt of `prompt` ids in a slot of `room` tokens.
    fn ends(
        limits: &Limits,
        (prompt, room): (usize, usize),
        tokens: &[i32],
        finish: Finish,
    ) -> Result<(), String> {
        let ids = vec![1; prompt].into_iter();
        let mut account = limits.admit(ids, room, &mut Vec::new())?;
        account.count_prompt(prompt)?;
        account.take(limits, tokens)?;
        account.end(limits, finish, 0)
    }

    #[test]
    fn limits_of_the_model_and_the_request_end_an_answer() {
        let all = limits();
        let of = |sizes, tokens, finish| ends(&all, sizes, tokens, finish);
        assert_eq!(of((18, 64), &[1, 1], Finish::Length), Ok(()), "the context");
        // A request's limit below min_tokens wins.
        assert_eq!(of((2, 1), &[2], Finish::Stop), Ok(()));
        assert_eq!(of((2, 8), &[2, 2, 2], Finish::Stop), Ok(()), "too early");
        let any = |change: fn(&mut Limits)| {
            let mut limits = limits();
            change(&mut limits);
            limits
        };
        let unknown = any(|l| l.are_all_ends = false);
        assert_eq!(ends(&unknown, (2, 8), &[5, 6], Finish::Stop), Ok(()));
        let ignored = any(|l| l.ends.clear());
        let (longer, stop) = ("8 tokens were reached, and 7 came", Finish::Stop);
        for (limits, tokens, finish, words) in [
            (&all, &[1; 7][..], Finish::Length, longer),
            (&all, &[1; 9], stop, "9 tokens where 8 were asked for"),
            (&all, &[2], stop, "1 tokens, and 2 to 8 were asked for"),
            (&all, &[], stop, "an answer without a token"),
            (&all, &[5, 100], stop, "beyond the vocabulary of 100"),
            (&all, &[5, 5, 2, 7], stop, "token 7 follows 2, which"),
            (&all, &[5, 6], stop, "if 6 is one, add it to engine"),
            (&ignored, &[5, 2], stop, "at token 2 although"),
        ] {
            let why = ends(limits, (3, 64), tokens, finish).expect_err(words);
            assert!(why.contains(words), "{why}");
        }
        let has = |ended: Result<(), String>, words| ended.is_err_and(|e| e.contains(words));
        let mut account = all.account(3, 8);
        assert!(has(account.end(&all, stop, 0), "it does not count"));
        assert!(has(account.count_prompt(4), "4 tokens in a prompt of 3"));
    }

    #[test]
    fn a_prompt_that_a_server_must_not_get_is_named() {
        for (prompt, room, words) in [
            (vec![], 8, "the prompt is empty"),
            (vec![20, 100], 8, "token 1 of the prompt is 100, beyond"),
            (vec![-1], 8, "token 0 of the prompt is -1"),
            (vec![20; 19], 8, "context of 20 holds prompts of 18"),
            (vec![1], 0, "the answer's slot holds no token"),
        ] {
            let why = limits().admit(prompt.into_iter(), room, &mut Vec::new());
            let why = why.expect_err(words);
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn requests_at_once_are_those_that_the_server_works_on_and_eight() {
        for (said, configured, most) in [
            (Some(3), None, 11),
            (Some(3), Some(5), 5),
            (None, Some(7), 7),
            (None, None, 512),
            (Some(usize::MAX), None, MAX_IN_FLIGHT),
        ] {
            let limit = in_flight(said, configured, "a key").0;
            assert_eq!(limit, most, "{said:?} {configured:?}");
        }
    }
}
