//! Checks one answer: compares the tokens that arrived with the server's counts.
//!
//! The account passes tokens on at once, except the tokens of the step that ends the answer: it
//! holds these until the stream has ended. So the counts are checked before an answer is complete.

use super::dialect::{AnswerEvent, AnswerParams, Finish, Tokens, trouble::Trouble};
use crate::engine::streaming::TooLong;

#[derive(Debug)]
pub(super) struct Account<'a> {
    ask: &'a AnswerParams,
    prompt: usize,
    max_tokens: usize,
    /// Number of tokens.
    pub received: usize,
    last: Option<i32>,
    finish: Option<Finish>,
    completion: Option<usize>,
    is_prompt_counted: bool,
    /// Ids that the server counts and does not send.
    pub unsent: usize,
    /// Tokens of the step that ends the answer, held back until the end of the stream.
    held: Tokens,
    /// Number of prompt tokens that the server took from a prefix cache.
    pub cached: usize,
}

impl<'a> Account<'a> {
    /// An account for an answer of at most `max_tokens` tokens to a prompt of `prompt` ids.
    pub fn new(ask: &'a AnswerParams, prompt: usize, max_tokens: usize) -> Self {
        Account {
            ask,
            prompt,
            max_tokens,
            received: 0,
            last: None,
            finish: None,
            completion: None,
            is_prompt_counted: false,
            unsent: 0,
            held: Tokens::new(),
            cached: 0,
        }
    }

    /// Checks one step of the stream. Returns the tokens to pass on, and true if they are the last:
    /// the answer is complete. None are to pass on if the step has none, or the account holds them.
    pub fn take(&mut self, step: AnswerEvent) -> Result<(Tokens, bool), Trouble> {
        self.note(&step)?;
        if self.finish.is_some() && !step.tokens.is_empty() {
            let (n, came) = (step.tokens.len(), self.received);
            return Err(Trouble::End(format!(
                "{n} tokens follow an answer that ended behind {came}"
            )));
        }
        self.tokens(&step.tokens)?;
        let mut now = step.tokens;
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

    fn note(&mut self, step: &AnswerEvent) -> Result<(), Trouble> {
        self.completion = step.completion.or(self.completion);
        self.unsent = step.unsent.unwrap_or(self.unsent);
        // `min` limits a wrong count of the server to the length of the prompt.
        self.cached = step.cached.unwrap_or(self.cached).min(self.prompt);
        self.is_prompt_counted |= step.prompt.is_some();
        match step.prompt {
            Some(said) if said != self.prompt => Err(Trouble::PromptCount {
                said,
                sent: self.prompt,
            }),
            _ => Ok(()),
        }
    }

    fn tokens(&mut self, tokens: &[i32]) -> Result<(), Trouble> {
        let ask = self.ask;
        let (wanted, room) = (self.received + tokens.len(), self.max_tokens);
        if wanted > room {
            return Err(TooLong { wanted, room }.into());
        }
        for id in tokens {
            if !usize::try_from(*id).is_ok_and(|i| i < ask.vocab) {
                return Err(Trouble::Vocabulary {
                    id: *id,
                    vocab: ask.vocab,
                });
            }
            if let Some(last) = self.last
                && self.received > ask.config.min_tokens
                && ask.ends_with(last)
            {
                return Err(Trouble::End(format!(
                    "token {id} follows {last}, which engine.http.eos and engine.http.stop end an \
                     answer with"
                )));
            }
            self.last = Some(*id);
            self.received += 1;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Trouble> {
        let came = self.received;
        if came == 0 && self.completion != Some(0) {
            return Err(Trouble::NoIds);
        }
        let came = came + self.unsent;
        match self.completion {
            Some(said) if said == came => {}
            Some(said) => return Err(Trouble::Lost { said, came }),
            None => return Err(Trouble::Uncounted("answer")),
        }
        if !self.is_prompt_counted {
            return Err(Trouble::Uncounted("prompt"));
        }
        let (min, max) = (
            self.ask.config.min_tokens.min(self.max_tokens),
            self.max_tokens,
        );
        let wrong = |what: String| Err(Trouble::End(what));
        match self.finish {
            None => wrong(format!(
                "{came} tokens, and no word why they end: no event has a finish_reason"
            )),
            Some(Finish::Length) if came != max => wrong(format!(
                "it says that {max} tokens were reached, and {came} came: its context may be \
                 shorter than it says"
            )),
            Some(Finish::Stop) => self.check_stop(),
            Some(Finish::Length) => Ok(()),
        }?;
        if came < min {
            return wrong(format!("{came} tokens, and {min} to {max} were asked for"));
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Trouble> {
        let ask = self.ask;
        let Some(last) = self.last else {
            return Err(Trouble::End("an answer without a token".to_owned()));
        };
        let known =
            !ask.config.eos.is_empty() || (ask.config.ignore_eos && !ask.config.stop.is_empty());
        if ask.config.ignore_eos && ask.config.stop.is_empty() {
            return Err(Trouble::End(format!(
                "it stopped at token {last} although engine.http.ignore_eos is set"
            )));
        }
        if known && !ask.ends_with(last) {
            return Err(Trouble::End(format!(
                "it stopped behind token {last}, which is none of engine.http.eos and \
                 engine.http.stop: it keeps the end of sequence to itself, or has another one: if \
                 {last} is one, add it to engine.http.eos"
            )));
        }
        Ok(())
    }
}
