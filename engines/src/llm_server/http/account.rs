//! Checks one answer: compares the tokens that arrived with the server's counts.
//!
//! The account passes tokens on at once, except the tokens of the step that ends the answer: it
//! holds these until the stream has ended. So the counts are checked before an answer is complete.

use super::dialect::{AnswerEvent, Tokens, trouble::Trouble};
use crate::{
    llm_server::account::{self, Finish, Limits, uncounted},
    streaming::TooLong,
};

#[derive(Debug)]
pub(super) struct Account<'a> {
    limits: &'a Limits,
    answer: account::Account,
    finish: Option<Finish>,
    completion: Option<usize>,
    /// Ids that the server counts and does not send.
    pub unsent: usize,
    /// Tokens of the step that ends the answer, held back until the end of the stream.
    held: Tokens,
    /// Number of prompt tokens that the server took from a prefix cache.
    pub cached: usize,
}

impl<'a> Account<'a> {
    /// An account for an answer of at most `max_tokens` tokens to a prompt of `prompt` ids.
    pub fn new(limits: &'a Limits, prompt: usize, max_tokens: usize) -> Self {
        Account {
            limits,
            answer: limits.account(prompt, max_tokens),
            finish: None,
            completion: None,
            unsent: 0,
            held: Tokens::new(),
            cached: 0,
        }
    }

    /// Number of tokens.
    pub fn received(&self) -> usize {
        self.answer.received
    }

    /// Checks one step of the stream. Returns the tokens to pass on, and true if they are the last:
    /// the answer is complete. None are to pass on if the step has none, or the account holds them.
    pub fn take(&mut self, step: AnswerEvent) -> Result<(Tokens, bool), Trouble> {
        let answer = &mut self.answer;
        self.completion = step.completion.or(self.completion);
        self.unsent = step.unsent.unwrap_or(self.unsent);
        // `min` limits a wrong count of the server to the length of the prompt.
        self.cached = step.cached.unwrap_or(self.cached).min(answer.prompt);
        if let Some(said) = step.prompt {
            answer.count_prompt(said)?;
        }
        let mut now = step.tokens;
        if self.finish.is_some() && !now.is_empty() {
            let (n, came) = (now.len(), answer.received);
            let words = format!("{n} tokens follow an answer that ended behind {came}");
            return Err(words.into());
        }
        let (wanted, room) = (answer.received + now.len(), answer.max);
        if wanted > room {
            return Err(TooLong { wanted, room }.into());
        }
        answer.take(self.limits, &now)?;
        self.finish = self.finish.or(step.finish);
        if self.finish.is_some() {
            // This runs once per answer, for at most `max_tokens` ids.
            self.held.extend(now.drain(..));
        }
        if !step.done {
            return Ok((now, false));
        }
        self.check()?;
        Ok((std::mem::take(&mut self.held), true))
    }

    fn check(&self) -> Result<(), Trouble> {
        let came = self.received();
        if came == 0 && self.completion != Some(0) {
            let words = "its stream carries no token ids: it is too old, or not asked as \
                         engine.http.dialect says";
            return Err(words.to_owned().into());
        }
        let came = came + self.unsent;
        // Before the count, which some servers give with the reason alone.
        let Some(finish) = self.finish else {
            let words = "no word why they end: no event has a finish_reason";
            return Err(format!("{came} tokens, and {words}").into());
        };
        match self.completion {
            Some(said) if said == came => {}
            Some(said) => return Err(Trouble::lost(said, came)),
            None => return Err(uncounted("answer").into()),
        }
        Ok(self.answer.end(self.limits, finish, self.unsent)?)
    }
}
