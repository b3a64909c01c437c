//! One answer's books: the tokens that came against what the server says of them.
//!
//! Tokens go on as they come, but those of the step that ends the answer: they are held until the
//! stream has said everything, so that no answer is complete that is not counted right.

use super::dialect::{Ask, Finish, Step, Tokens, trouble::Trouble};
use crate::engine::streaming::TooLong;

/// See the module.
#[derive(Debug)]
pub(super) struct Account<'a> {
    ask: &'a Ask,
    /// Ids of the prompt.
    prompt: usize,
    /// Tokens asked for at most.
    max_tokens: usize,
    /// Tokens that came.
    came: usize,
    last: Option<i32>,
    finish: Option<Finish>,
    completion: Option<usize>,
    /// The server has counted the prompt, and right.
    is_prompt_counted: bool,
    /// Tokens of the step that ends the answer.
    held: Tokens,
    /// Tokens of the prompt out of a prefix cache.
    pub cached: usize,
    /// Seconds in the server's queue, where it says.
    pub queue_s: Option<f64>,
}

/// What a step brings.
#[derive(Debug, PartialEq)]
pub(super) enum Brought {
    /// Tokens that go on at once; none where the step had none, or has its own held.
    Tokens(Tokens),
    /// The answer is complete but for these.
    End(Tokens),
}

impl<'a> Account<'a> {
    /// For an answer of `max_tokens` at most to a prompt of so many ids.
    pub fn new(ask: &'a Ask, prompt: usize, max_tokens: usize) -> Self {
        Account {
            ask,
            prompt,
            max_tokens,
            came: 0,
            last: None,
            finish: None,
            completion: None,
            is_prompt_counted: false,
            held: Tokens::new(),
            cached: 0,
            queue_s: None,
        }
    }

    /// Tokens that came.
    pub fn came(&self) -> usize {
        self.came
    }

    /// Takes a step.
    ///
    /// # Errors
    /// [`Trouble`]: what does not add up.
    pub fn take(&mut self, step: Step) -> Result<Brought, Trouble> {
        self.note(&step)?;
        if self.finish.is_some() && !step.tokens.is_empty() {
            let (n, came) = (step.tokens.len(), self.came);
            return Err(Trouble::End(format!(
                "{n} tokens follow an answer that ended behind {came}"
            )));
        }
        self.tokens(&step.tokens)?;
        let mut now = step.tokens;
        self.finish = self.finish.or(step.finish);
        if self.finish.is_some() {
            // Once for an answer, and no more of them than were asked for.
            self.held.extend(now.drain(..));
        }
        if !step.done {
            return Ok(Brought::Tokens(now));
        }
        self.check()?;
        Ok(Brought::End(std::mem::take(&mut self.held)))
    }

    fn note(&mut self, step: &Step) -> Result<(), Trouble> {
        self.completion = step.completion.or(self.completion);
        // A lie of the server about one prompt stays as large as the prompt.
        self.cached = step.cached.unwrap_or(self.cached).min(self.prompt);
        self.is_prompt_counted |= step.prompt.is_some();
        self.queue_s = step.queue_s.or(self.queue_s);
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
        let (wanted, room) = (self.came + tokens.len(), self.max_tokens);
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
                && self.came > ask.min_tokens
                && ask.ends_with(last)
            {
                return Err(Trouble::End(format!(
                    "token {id} follows {last}, which engine.http.eos and engine.http.stop end an \
                     answer with"
                )));
            }
            self.last = Some(*id);
            self.came += 1;
        }
        Ok(())
    }

    /// The whole answer, once its stream has ended as it ought to.
    fn check(&self) -> Result<(), Trouble> {
        let came = self.came;
        if came == 0 && self.completion != Some(0) {
            return Err(Trouble::NoIds);
        }
        match self.completion {
            Some(said) if said == came => {}
            Some(said) => return Err(Trouble::Lost { said, came }),
            None => return Err(Trouble::Uncounted("answer")),
        }
        if !self.is_prompt_counted {
            return Err(Trouble::Uncounted("prompt"));
        }
        let (min, max) = (self.ask.min_tokens.min(self.max_tokens), self.max_tokens);
        let wrong = |what: String| Err(Trouble::End(what));
        match self.finish {
            None => wrong(format!("{came} tokens, and no word why they end")),
            Some(Finish::Length) if came != max => wrong(format!(
                "it says that {max} tokens were reached, and {came} came: its context may be \
                 shorter than it says"
            )),
            Some(Finish::Stop) => self.check_stop(),
            Some(Finish::Length) => Ok(()),
        }?;
        if came < min || came > max {
            return wrong(format!("{came} tokens, and {min} to {max} were asked for"));
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Trouble> {
        let ask = self.ask;
        let Some(last) = self.last else {
            return Err(Trouble::End("an answer without a token".to_owned()));
        };
        let known = !ask.eos.is_empty() || (ask.ignore_eos && !ask.stop.is_empty());
        if ask.ignore_eos && ask.stop.is_empty() {
            return Err(Trouble::End(format!(
                "it stopped at token {last} although engine.http.ignore_eos is set"
            )));
        }
        if known && !ask.ends_with(last) {
            return Err(Trouble::End(format!(
                "it stopped behind token {last}, which is none of engine.http.eos and \
                 engine.http.stop: it keeps the end of sequence to itself, or has another one"
            )));
        }
        Ok(())
    }
}
