//! Checks each request before it leaves, and each answer: the server may check nothing.
//!
//! One invalid request ends vLLM's core with all its sequences, or makes it deaf.

use qdl::request::RequestOptions;
use record::NodeRole;
use serde_json::Value;
use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use super::roles::{params_of, remote_decode};
use crate::{EngineError, config::MAX_IN_FLIGHT, streaming::TooLong};

/// The ids of one event: usually one, or a few if the server decodes several at a time. A list of
/// more than 8 ids is on the heap.
pub(super) type Tokens = SmallVec<[i32; 8]>;

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
    /// Those of `ends` that are stop ids.
    pub stops: Vec<u32>,
    /// Whether these are all: an end of sequence is configured, or ignored.
    pub are_all_ends: bool,
    /// The server counts the tokens of each answer.
    pub counts_answers: bool,
    pub role: NodeRole,
}

/// Reason why a server ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The answer ended at an end of sequence, or at a stop id.
    Stop,
    /// The answer reached its limit.
    Length,
}

/// What one message of a server says of an answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AnswerEvent {
    pub tokens: Tokens,
    pub finish: Option<Finish>,
    /// The server's count of the answer's tokens.
    pub completion: Option<usize>,
    /// The server's count of the prompt's tokens.
    pub prompt: Option<usize>,
    /// Prompt tokens from a prefix cache.
    pub cached: Option<usize>,
    /// Ids of the answer so far that the server counts and does not send.
    pub unsent: Option<usize>,
    /// The answer has no further events.
    pub done: bool,
}

/// The reason why an answer does not count.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("it answered with {} tokens where {} were asked for", .0.wanted, .0.room)]
    TooLong(#[from] TooLong),
    /// The server violated its protocol, so none of its answers counts. The text says how.
    #[error("{0}")]
    Rule(String),
}

impl From<String> for AnswerError {
    fn from(rule: String) -> Self {
        AnswerError::Rule(rule)
    }
}

impl Limits {
    /// Copies the prompt to `into` and returns the account of its answer, which has at most `room`
    /// tokens, under the request's `options`.
    /// Error text: why the server must not get this prompt.
    pub fn admit(
        &self,
        prompt: impl ExactSizeIterator<Item = i32>,
        room: usize,
        options: &RequestOptions,
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
        let mut account = self.account(len, max);
        if !self.role.is_both() {
            let mut hash = Xxh3::new();
            into.iter().for_each(|id| hash.update(&id.to_le_bytes()));
            account.seed = Some(hash.digest());
        }
        if !options.handle.is_empty() {
            account.transfer = Some(Box::new(params_of(&options.handle)?));
        }
        if let Some(min) = options.min_tokens {
            account.min = (min as usize).min(account.max);
        }
        if options.ignore_eos || !options.stop_ids.is_empty() {
            let ids = options.stop_ids.iter().map(|id| {
                let vocab = self.vocab;
                let unknown = || format!("stop id {id} is beyond the vocabulary of {vocab}");
                self.known(*id).ok_or_else(unknown)
            });
            let own = ids.collect::<Result<Vec<_>, _>>()?;
            let configured = match options.ignore_eos {
                true => &self.stops,
                false => &self.ends,
            };
            account.own_ends = Some(Box::new(OwnEnds {
                ends: [configured, &own[..]].concat(),
                are_all: self.are_all_ends || options.ignore_eos,
            }));
        }
        Ok(account)
    }

    /// The account of an answer of at most `max` tokens to a prompt of `prompt` ids. Of a longer
    /// answer, a prefill node computes the first token.
    pub fn account(&self, prompt: usize, max: usize) -> Account {
        let hands_over = self.role == NodeRole::Prefill && max > 1;
        let max = if hands_over { 1 } else { max };
        Account {
            prompt,
            min: self.min_tokens.min(max),
            max,
            received: 0,
            last: None,
            is_prompt_counted: false,
            finish: None,
            completion: None,
            unsent: 0,
            held: Tokens::new(),
            cached: 0,
            own_ends: None,
            hands_over,
            transfer: hands_over.then(|| Box::new(remote_decode())),
            seed: None,
        }
    }

    /// As [`Limits::admit`], for a harmless prompt of at most `most` ids.
    pub fn admit_trial(
        &self,
        most: usize,
        room: usize,
        into: &mut Vec<u32>,
    ) -> Result<Account, String> {
        let ids = (0..TRIAL_PROMPT.min(most)).map(|i| ((i + 1) % self.vocab) as i32);
        self.admit(ids, room, &RequestOptions::default(), into)
    }

    fn known(&self, id: i32) -> Option<u32> {
        let id = u32::try_from(id).ok()?;
        ((id as usize) < self.vocab).then_some(id)
    }
}

/// The ids that end the answer of a request with options of its own, as in [`Limits`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnEnds {
    ends: Vec<u32>,
    are_all: bool,
}

/// One answer so far: its tokens, and the server's counts.
///
/// The account passes tokens on at once, except those of the event that ends the answer: it holds
/// these until the last event. So the counts are checked before an answer is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub prompt: usize,
    /// Fewest and most tokens of the answer.
    pub min: usize,
    pub max: usize,
    pub received: usize,
    last: Option<u32>,
    is_prompt_counted: bool,
    finish: Option<Finish>,
    completion: Option<usize>,
    /// Ids that the server counts and does not send.
    pub unsent: usize,
    /// Tokens of the event that ends the answer.
    held: Tokens,
    /// Number of prompt tokens that the server took from a prefix cache.
    pub cached: usize,
    /// `None` where the configuration's ids end the answer.
    own_ends: Option<Box<OwnEnds>>,
    /// The answer may go on at a decode node.
    pub hands_over: bool,
    /// `kv_transfer_params` of the request: keep the KV cache, or fetch it.
    pub transfer: Option<Box<Value>>,
    /// Seed of sampling where the request has none: prefill and decode draw the first token from
    /// the prompt's.
    pub seed: Option<u64>,
}

impl Account {
    /// Whether the request has a handle: its prompt's KV cache comes from a prefill node.
    pub fn fetches(&self) -> bool {
        self.transfer.is_some() && !self.hands_over
    }

    /// Whether the answer goes on at a decode node: nothing but the limit of one token has ended it
    /// here.
    pub fn goes_on(&self) -> bool {
        self.hands_over && self.finish == Some(Finish::Length)
    }

    /// Ids that end the answer of a request with options of its own for them.
    pub fn own_ends(&self) -> Option<&[u32]> {
        self.own_ends.as_ref().map(|own| &own.ends[..])
    }

    /// Ids that end the answer, and whether these are all.
    fn ends<'a>(&'a self, limits: &'a Limits) -> (&'a [u32], bool) {
        match &self.own_ends {
            Some(own) => (&own.ends, own.are_all),
            None => (&limits.ends, limits.are_all_ends),
        }
    }

    /// Checks one event. Returns the tokens to pass on, and true if they are the last: the answer
    /// is complete. None are to pass on if the event has none, or the account holds them.
    pub fn take(
        &mut self,
        limits: &Limits,
        event: AnswerEvent,
    ) -> Result<(Tokens, bool), AnswerError> {
        self.completion = event.completion.or(self.completion);
        self.unsent = event.unsent.unwrap_or(self.unsent);
        // `min` limits a wrong count of the server to the length of the prompt.
        self.cached = event.cached.unwrap_or(self.cached).min(self.prompt);
        if let Some(said) = event.prompt {
            self.is_prompt_counted = true;
            let sent = self.prompt;
            if said != sent {
                return Err(AnswerError::Rule(format!(
                    "it counts {said} tokens in a prompt of {sent}: it adds some, or cuts it"
                )));
            }
        }
        let mut now = event.tokens;
        if self.finish.is_some() && !now.is_empty() {
            let (n, came) = (now.len(), self.received);
            let words = format!("{n} tokens follow an answer that ended behind {came}");
            return Err(AnswerError::Rule(words));
        }
        let (wanted, room) = (self.received + now.len(), self.max);
        if wanted > room {
            return Err(TooLong { wanted, room }.into());
        }
        self.count(limits, &now)?;
        self.finish = self.finish.or(event.finish);
        if self.finish.is_some() {
            // This runs once per answer, for at most `max` ids.
            self.held.extend(now.drain(..));
        }
        if !event.done {
            return Ok((now, false));
        }
        self.check_end(limits)?;
        Ok((std::mem::take(&mut self.held), true))
    }

    /// Checks and counts tokens of the answer.
    fn count(&mut self, limits: &Limits, tokens: &[i32]) -> Result<(), String> {
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
                && self.ends(limits).0.contains(&last)
            {
                return Err(format!(
                    "token {id} follows {last}, which engine.{engine}.eos and \
                     engine.{engine}.stop end an answer with"
                ));
            }
            self.last = Some(id);
            self.received += 1;
        }
        Ok(())
    }

    /// Checks the end of the answer.
    fn check_end(&self, limits: &Limits) -> Result<(), String> {
        if limits.counts_answers && self.received == 0 && self.completion != Some(0) {
            let words = "its stream carries no token ids: it is too old, or not asked as \
                         engine.http.dialect says";
            return Err(words.to_owned());
        }
        let (came, min, max) = (self.received + self.unsent, self.min, self.max);
        // Before the count, which some servers give with the reason alone.
        let Some(finish) = self.finish else {
            let words = "no word why they end: no event has a finish_reason";
            return Err(format!("{came} tokens, and {words}"));
        };
        match self.completion {
            Some(said) if said != came => return Err(lost(said, came)),
            None if limits.counts_answers => return Err(uncounted("answer")),
            _ if !self.is_prompt_counted => return Err(uncounted("prompt")),
            _ => {}
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
        let (engine, (ends, are_all)) = (limits.engine, self.ends(limits));
        match self.last {
            None => Err("an answer without a token".to_owned()),
            Some(last) if !are_all || ends.contains(&last) => Ok(()),
            Some(last) if ends.is_empty() => Err(format!(
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

/// A seed for servers that take no number above the largest `i64`.
pub(super) fn signed(seed: u64) -> u64 {
    seed & i64::MAX as u64
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

/// Error text for an answer whose tokens are not as many as the server counts.
pub(super) fn lost(said: usize, came: usize) -> String {
    format!("it counts {said} tokens in an answer of which {came} came: tokens are lost on the way")
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
            stops: Vec::new(),
            are_all_ends: true,
            counts_answers: false,
            role: NodeRole::Both,
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
        let mut account = limits.admit(ids, room, &RequestOptions::default(), &mut Vec::new())?;
        let ended = account.take(limits, last(Some(prompt), tokens, finish));
        ended.map(drop).map_err(|e| e.to_string())
    }

    fn last(prompt: Option<usize>, tokens: &[i32], finish: Finish) -> AnswerEvent {
        AnswerEvent {
            tokens: tokens.into(),
            finish: Some(finish),
            prompt,
            done: true,
            ..AnswerEvent::default()
        }
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
        for (said, words) in [(None, "not count"), (Some(4), "4 tokens in a prompt of 3")] {
            let ended = all.account(3, 8).take(&all, last(said, &[5, 2], stop));
            assert!(ended.is_err_and(|e| e.to_string().contains(words)));
        }
    }

    #[test]
    fn tokens_of_the_event_that_ends_an_answer_wait_for_the_last_event() {
        let all = limits();
        let mut account = all.account(3, 8);
        let mut take = |event: AnswerEvent| {
            let (tokens, is_over) = account.take(&all, event).expect("in order");
            (tokens.to_vec(), is_over)
        };
        let part = AnswerEvent {
            tokens: [5][..].into(),
            ..AnswerEvent::default()
        };
        assert_eq!(take(part), (vec![5], false));
        let end = AnswerEvent {
            done: false,
            ..last(Some(3), &[6, 2], Finish::Stop)
        };
        assert_eq!(take(end), (Vec::new(), false));
        let done = AnswerEvent {
            done: true,
            ..AnswerEvent::default()
        };
        assert_eq!(take(done), (vec![6, 2], true));
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
            let none = RequestOptions::default();
            let why = limits().admit(prompt.into_iter(), room, &none, &mut Vec::new());
            let why = why.expect_err(words);
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn an_answer_ends_where_its_requests_options_say() {
        let options = |ignore_eos, stop_ids: &[i32]| RequestOptions {
            min_tokens: Some(1),
            ignore_eos,
            stop_ids: stop_ids.to_vec(),
            ..RequestOptions::default()
        };
        let (stops, ignores) = (options(false, &[7]), options(true, &[7]));
        for (options, tokens, words) in [
            (&stops, &[2][..], None),
            (&stops, &[5, 7], None),
            (&stops, &[5, 7, 5, 2], Some("token 5 follows 7")),
            (&ignores, &[5, 2, 2, 7], None),
            (&ignores, &[5, 2], Some("stopped behind token 2")),
        ] {
            let (all, mut prompt) = (limits(), Vec::new());
            let account = all.admit([1].into_iter(), 8, options, &mut prompt);
            let ended = account
                .expect("sound")
                .take(&all, last(Some(1), tokens, Finish::Stop));
            let why = ended.err().map(|e| e.to_string());
            let fits = why
                .as_deref()
                .zip(words)
                .map(|(why, words)| why.contains(words));
            assert!(
                why.is_some() == words.is_some() && fits != Some(false),
                "{why:?}"
            );
        }
        let beyond = limits().admit([1].into_iter(), 8, &options(true, &[100]), &mut Vec::new());
        assert!(beyond.is_err_and(|e| e.contains("stop id 100 is beyond the vocabulary of 100")));
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
