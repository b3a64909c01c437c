//! One streamed answer: asked for, read to its end, its tokens handed on as they come.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::Body;
use qdl::config::HttpConfig;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    account::{Account, Brought},
    client::{Answer, Client},
    counters::Counters,
    dialect::{
        Ask, Dialect, Tokens,
        trouble::{self, Trouble},
    },
    events::Events,
};
use crate::engine::{Sequence, streaming::TooLong};

/// Most bytes of an event beside its ids.
const EVENT: usize = 64 << 10;
/// Most bytes of an event for each id of the prompt and of the answer so far, some of which send
/// all of them each time, and their text.
const EVENT_ID: usize = 64;
/// A wait is looked up from so often, to see whether anybody still wants what is waited for.
const LOOK: Duration = Duration::from_millis(200);
/// The first pause before a busy server is asked again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Takes tokens as they come.
pub(super) trait Sink: Send {
    /// False once nobody takes them any more.
    fn is_wanted(&self) -> bool;

    /// Takes what a step brought.
    fn push(&mut self, tokens: &[i32]) -> Result<(), TooLong>;

    /// True for an answer that is asked for to see whether the server is well: its tokens say
    /// nothing of the streams that matter.
    fn is_trial(&self) -> bool {
        false
    }
}

impl Sink for Sequence {
    fn is_wanted(&self) -> bool {
        Sequence::is_wanted(self)
    }

    fn push(&mut self, tokens: &[i32]) -> Result<(), TooLong> {
        Sequence::push(self, tokens)
    }
}

/// The server, as one thread speaks with it.
pub(super) struct Server {
    pub client: Client,
    pub dialect: &'static Dialect,
    pub ask: Ask,
    pub config: HttpConfig,
    pub counters: Arc<Counters>,
    /// Most requests at once.
    pub in_flight: usize,
}

/// An answer that is complete, but for these tokens.
pub(super) struct Whole {
    /// The last ones: they go on once it is known that they are the last.
    pub last: Tokens,
    /// To be given back to the client.
    pub answer: Answer,
}

impl Server {
    /// Asks for an answer of `max_tokens` at most, and hands on all but its last tokens.
    ///
    /// # Errors
    /// [`Trouble`]; the request is closed by then.
    pub async fn answer(
        &self,
        prompt: &[i32],
        max_tokens: usize,
        sink: &mut impl Sink,
    ) -> Result<Whole, Trouble> {
        let body = self.dialect.body(&self.ask, prompt, max_tokens);
        let body = Bytes::from(body.map_err(|e| Trouble::Garbled(e.to_string()))?);
        let (mut answer, asked) = self.begin(&body, sink).await?;
        let mut account = Account::new(&self.ask, prompt.len(), max_tokens);
        let last = self
            .read(&mut answer.body, asked, &mut account, sink)
            .await?;
        let counters = &self.counters;
        counters.answers.fetch_add(1, Relaxed);
        counters.tokens.fetch_add(account.came() as u64, Relaxed);
        counters.cached.fetch_add(account.cached as u64, Relaxed);
        if let Some(s) = account.queue_s {
            counters.queued.fetch_add(1, Relaxed);
            counters.queue_us.fetch_add((s * 1e6) as u64, Relaxed);
        }
        Ok(Whole { last, answer })
    }

    /// Until the headers are there; says when what was answered was asked.
    async fn begin(&self, body: &Bytes, sink: &mut impl Sink) -> Result<(Answer, Asked), Trouble> {
        let first = self.asked();
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = self.asked();
            let after = self.config.first_token();
            self.counters.requests.fetch_add(1, Relaxed);
            let request = self.client.post(self.dialect.path, body.clone());
            let late = || self.late(0, after, asked);
            let (status, words) = match wanted(sink, asked.at + after, late, request).await? {
                Ok(answer) => return Ok((answer, asked)),
                Err(Trouble::Status { status, words, .. }) if matches!(status, 429 | 503) => {
                    (status, words)
                }
                Err(other) => return Err(other),
            };
            self.counters.busy.fetch_add(1, Relaxed);
            let after = first.at.elapsed();
            if after + pause > self.config.busy() && !self.may_wait(self.config.busy(), first) {
                return Err(Trouble::Busy {
                    status,
                    words,
                    after,
                });
            }
            let until = Instant::now() + pause;
            wanted(sink, until, || Ok(until), sleep(pause)).await?;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// A request is sent now.
    pub(super) fn asked(&self) -> Asked {
        Asked {
            at: Instant::now(),
            firsts: self.counters.firsts.load(Relaxed),
        }
    }

    /// Reads a stream to the end of its answer; returns the last tokens.
    pub(super) async fn read<B>(
        &self,
        body: B,
        asked: Asked,
        account: &mut Account<'_>,
        sink: &mut impl Sink,
    ) -> Result<Tokens, Trouble>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let ids = self.ask.max_prompt + self.ask.max_tokens;
        let mut events = Events::new(body, EVENT + EVENT_ID * ids);
        let (mut after, mut until) = (
            self.config.first_token(),
            asked.at + self.config.first_token(),
        );
        let mut steps = 0;
        loop {
            let tokens = account.came();
            let late = || self.late(tokens, after, asked);
            let event = wanted(sink, until, late, events.next(tokens)).await??;
            if event.is_error {
                return Err(trouble::said_whole(event.data));
            }
            let brought = account.take((self.dialect.read)(event.data, tokens)?)?;
            // Tokens alone move the deadline on: whatever else comes may come for ever.
            if account.came() > tokens {
                steps += 1;
                after = self.config.next_token();
                until = Instant::now() + after;
                if !sink.is_trial() {
                    self.counters.token();
                }
            } else if Instant::now() >= until {
                until = late()?;
            }
            if tokens == 0 && account.came() > 0 {
                self.counters.first(asked.at.elapsed().as_micros() as u64);
            }
            match brought {
                Brought::Tokens(now) if now.is_empty() => {}
                Brought::Tokens(now) => sink.push(&now)?,
                Brought::End(last) => {
                    self.counters.steps.fetch_add(steps, Relaxed);
                    if steps == 1 && account.came() > 1 && !sink.is_trial() {
                        self.came_whole(account.came());
                    }
                    return Ok(last);
                }
            }
        }
    }

    /// A stream has no token `after` a deadline: how long it may go on waiting.
    ///
    /// A request that waits in the server's queue waits on while the server brings tokens to any
    /// stream, until more first tokens came than requests can have been in front of it.
    ///
    /// # Errors
    /// [`Trouble::Silent`]
    fn late(&self, tokens: usize, after: Duration, asked: Asked) -> Result<Instant, Trouble> {
        if tokens == 0 && self.may_wait(after, asked) {
            let left = after.saturating_sub(self.counters.silence());
            return Ok(Instant::now() + left);
        }
        Err(Trouble::Silent { tokens, after })
    }

    /// Whether the server brought tokens to any stream in the time `within`, and has not forgotten
    /// the request that was `asked` first.
    fn may_wait(&self, within: Duration, asked: Asked) -> bool {
        let firsts = self.counters.firsts.load(Relaxed) - asked.firsts;
        self.counters.silence() < within && firsts <= 2 * self.in_flight as u64
    }

    /// An answer of several tokens came in one event.
    fn came_whole(&self, tokens: usize) {
        if self.counters.whole.fetch_add(1, Relaxed) == 0 {
            tracing::warn!(
                "server {}: an answer of {tokens} tokens came whole in one event: its time per \
                 output token (TPOT) is 0, and LoadGen's TPOT means nothing",
                self.config.url
            );
        }
    }
}

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub at: Instant,
    /// First tokens that had come to any stream by then.
    firsts: u64,
}

/// Waits for something for as long as the sink is wanted. Past `until`, `late` gives more time or
/// says what is wrong.
async fn wanted<F: Future>(
    sink: &mut impl Sink,
    mut until: Instant,
    late: impl Fn() -> Result<Instant, Trouble>,
    what: F,
) -> Result<F::Output, Trouble> {
    let mut what = pin!(what);
    loop {
        if !sink.is_wanted() {
            return Err(Trouble::Unwanted);
        }
        let look = until.min(Instant::now() + LOOK);
        if let Ok(output) = timeout_at(look, what.as_mut()).await {
            return Ok(output);
        }
        if Instant::now() >= until {
            until = late()?;
        }
    }
}
