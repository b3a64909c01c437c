//! One streamed answer: asked for, read to its end, its tokens handed on as they come.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use hyper::body::Body;
use qdl::config::HttpConfig;
use sse_stream::SseStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    account::{Account, Brought},
    client::{Answer, Client, chain},
    counters::Counters,
    dialect::{Ask, Dialect, Tokens, trouble::Trouble},
};
use crate::engine::{Sequence, streaming::TooLong};

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
    async fn begin(
        &self,
        body: &Bytes,
        sink: &mut impl Sink,
    ) -> Result<(Answer, Instant), Trouble> {
        let first = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = Instant::now();
            let after = self.config.first_token();
            let until = asked + after;
            self.counters.requests.fetch_add(1, Relaxed);
            let path = self.dialect.path;
            let request = self.client.post(path, body.clone(), until, after);
            let silent = Trouble::Silent { tokens: 0, after };
            let (status, words) = match wanted(sink, until, request).await.ok_or(silent)?? {
                Ok(answer) => return Ok((answer, asked)),
                Err(Trouble::Status { status, words, .. }) if matches!(status, 429 | 503) => {
                    (status, words)
                }
                Err(other) => return Err(other),
            };
            self.counters.busy.fetch_add(1, Relaxed);
            let after = first.elapsed();
            if after + pause > self.config.busy() {
                return Err(Trouble::Busy {
                    status,
                    words,
                    after,
                });
            }
            wanted(sink, Instant::now() + 2 * pause, sleep(pause))
                .await
                .transpose()?;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Reads a stream to the end of its answer; returns the last tokens.
    pub(super) async fn read<B>(
        &self,
        body: B,
        asked: Instant,
        account: &mut Account<'_>,
        sink: &mut impl Sink,
    ) -> Result<Tokens, Trouble>
    where
        B: Body + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let mut events = SseStream::new(body);
        let (mut after, mut until) = (self.config.first_token(), asked + self.config.first_token());
        let mut steps = 0;
        loop {
            let tokens = account.came();
            let silent = Trouble::Silent { tokens, after };
            let event = wanted(sink, until, events.next()).await.ok_or(silent)??;
            let cut = |why| Trouble::Cut { tokens, why };
            let event = match event {
                Some(Ok(event)) => event,
                Some(Err(sse_stream::Error::Body(e))) => return Err(cut(chain(e.as_ref()))),
                Some(Err(e)) => return Err(Trouble::Garbled(e.to_string())),
                None => return Err(cut("it ended before the answer did".to_owned())),
            };
            let Some(data) = event.data else { continue };
            let brought = account.take((self.dialect.read)(&data, tokens)?)?;
            if account.came() > tokens {
                steps += 1;
                after = self.config.next_token();
                until = Instant::now() + after;
            }
            if tokens == 0 && account.came() > 0 {
                self.counters.first(asked.elapsed().as_micros() as u64);
            }
            match brought {
                Brought::Tokens(now) if now.is_empty() => {}
                Brought::Tokens(now) => sink.push(&now)?,
                Brought::End(last) => {
                    self.counters.steps.fetch_add(steps, Relaxed);
                    return Ok(last);
                }
            }
        }
    }
}

/// Waits for something for as long as the sink is wanted; `None` past `until`.
async fn wanted<F: Future>(
    sink: &mut impl Sink,
    until: Instant,
    what: F,
) -> Option<Result<F::Output, Trouble>> {
    let mut what = pin!(what);
    loop {
        if !sink.is_wanted() {
            return Some(Err(Trouble::Unwanted));
        }
        let look = until.min(Instant::now() + LOOK);
        if let Ok(output) = timeout_at(look, what.as_mut()).await {
            return Some(Ok(output));
        }
        if Instant::now() >= until {
            return None;
        }
    }
}
