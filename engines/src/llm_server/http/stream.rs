//! Requests one streamed answer, reads the stream to its end, and passes tokens on at once.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use qdl::request::RequestOptions;
use record::CacheState;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    chunk,
    client::{HttpClient, OpenAnswer},
    counters::Counters,
    dialect::{AnswerParams, Dialect},
    events::EventReader,
    standing::{LOOK, ServerStanding},
    trouble::{self, Trouble},
};
use crate::{
    Sequence,
    llm_server::account::{Account, Tokens},
};

/// Size limit of an event in bytes, not counting the ids of the event.
const EVENT: usize = 64 << 10;
/// Bytes that an event may have for each id of prompt and answer: some servers send all ids and
/// their text in each event.
const EVENT_ID: usize = 64;
/// First pause before the next request to a busy server that asks for none with `Retry-After`; each
/// further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The sequence that takes the tokens of an answer as they arrive. `None` for a trial of the
/// server, whose tokens do not count as progress for other streams.
type Sink<'s> = Option<&'s mut Sequence>;

/// The end of an answer: the tokens of its last event, or all of them.
pub(super) struct LastTokens {
    pub tokens: Tokens,
    /// The answer goes on at a decode node.
    pub handle: Option<Vec<u8>>,
    pub stream: OpenAnswer,
}

/// The connections to the server, with the parameters of every request.
pub struct LlmServer {
    pub(super) client: HttpClient,
    pub(super) dialect: &'static Dialect,
    pub(super) ask: AnswerParams,
    pub(super) counters: Arc<Counters>,
    pub(super) standing: Arc<ServerStanding>,
    /// Limit of concurrent requests.
    pub(super) in_flight: usize,
    /// State of the prefix cache at the start.
    pub(super) cache: CacheState,
}

impl LlmServer {
    /// Requests the answer of `account` and passes the tokens to `sink`, except those of the last
    /// event. Checks the answer, then returns these. The caller gives the stream to
    /// [`HttpClient::done`]. Asks a busy server again for the time `patience`.
    pub(super) async fn answer(
        &self,
        prompt: &[u32],
        mut account: Account,
        mut sink: Sink<'_>,
        patience: Duration,
    ) -> Result<LastTokens, Trouble> {
        // A stream is for parts.
        let needs_parts = sink.as_ref().is_some_and(|s| s.needs_parts());
        // A stream has no handle.
        let is_whole = account.hands_over || self.dialect.is_whole_better && !needs_parts;
        let none = RequestOptions::NONE;
        let options = sink.as_ref().map_or(&none, |s| s.options());
        let body = (self.dialect).body(&self.ask, prompt, &account, options, is_whole);
        let body = Bytes::from(body.map_err(|e| Trouble::Garbled(e.to_string()))?);
        // A whole answer comes after all its tokens; a prefill server's has one.
        let config = &self.ask.config;
        let after = if is_whole && !account.hands_over {
            config.ready()
        } else {
            config.first_token()
        };
        let (mut answer, asked) = self.begin(&body, after, &mut sink, patience).await?;
        let (stream, account) = (&mut answer.body, &mut account);
        let (tokens, handle) = match is_whole {
            true => {
                self.read_whole(stream, after, asked, account, &mut sink)
                    .await?
            }
            false => (self.read(stream, asked, account, &mut sink).await?, None),
        };
        let (cached, unsent) = (account.cached as u64, account.unsent as u64);
        match account.fetches() {
            // What a prefill node has computed is no prefix cache.
            true => self.counters.fetched.add(cached),
            false => _ = self.counters.cached.fetch_add(cached, Relaxed),
        }
        if self.counters.unsent.fetch_add(unsent, Relaxed) == 0 && unsent > 0 {
            tracing::warn!(
                "server {}: ids that end inside a character are counted and not sent: answers lack \
                 them",
                self.ask.config.url
            );
        }
        Ok(LastTokens {
            tokens,
            handle,
            stream: answer,
        })
    }

    /// Sends the request, again after a pause while the server is busy, until the headers arrive,
    /// within the time `after`.
    async fn begin(
        &self,
        body: &Bytes,
        after: Duration,
        sink: &mut Sink<'_>,
        patience: Duration,
    ) -> Result<(OpenAnswer, RequestTime), Trouble> {
        let first = self.request_time();
        let mut pause = FIRST_PAUSE;
        let mut busy = None;
        loop {
            let asked = self.request_time();
            let request = self.client.post(self.dialect.path, body.clone());
            let late = || self.extend_deadline(0, after, asked);
            let (status, words, retry_after) =
                match wait_while_wanted(sink, asked.at + after, late, request).await? {
                    Ok(answer) => return Ok((answer, asked)),
                    Err(Trouble::Status {
                        status: status @ (429 | 503),
                        words,
                        retry_after,
                        ..
                    }) => (status, words, retry_after),
                    Err(other) => return Err(other),
                };
            let after = first.at.elapsed();
            let is_over = after >= patience && !self.may_wait(patience, first);
            if is_over || self.standing.away().is_some() {
                return Err(Trouble::Busy {
                    status,
                    words,
                    after,
                });
            }
            self.counters.busy.fetch_add(1, Relaxed);
            let _waits = busy.get_or_insert_with(|| self.standing.busy());
            // The last request comes when the patience ends, however long the server asks to wait.
            let left = patience.saturating_sub(after).max(FIRST_PAUSE);
            let wait = retry_after.map_or(pause, |s| s.max(FIRST_PAUSE)).min(left);
            let until = Instant::now() + wait;
            wait_while_wanted(sink, until, || Ok(until), sleep(wait)).await?;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Words for a server that is away.
    pub(super) fn gone(&self, why: &str) -> String {
        format!("the server at {} is gone: {why}", self.ask.config.url)
    }

    /// The words of [`LlmServer::gone`] for a line that names the server already.
    pub(super) fn reason(&self, gone: &str) -> String {
        gone.replacen(&format!("the server at {}", self.ask.config.url), "it", 1)
    }

    pub(super) fn request_time(&self) -> RequestTime {
        RequestTime {
            at: Instant::now(),
            firsts: self.counters.firsts.load(Relaxed),
        }
    }

    /// Reads a stream to the end of its answer; returns the tokens of the last event.
    pub(super) async fn read<B>(
        &self,
        body: B,
        asked: RequestTime,
        account: &mut Account,
        sink: &mut Sink<'_>,
    ) -> Result<Tokens, Trouble>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let mut events = EventReader::new(body, self.max_event());
        let (mut after, mut until) = (
            self.ask.config.first_token(),
            asked.at + self.ask.config.first_token(),
        );
        loop {
            let tokens = account.received;
            let late = || self.extend_deadline(tokens, after, asked);
            let event = wait_while_wanted(sink, until, late, events.next(tokens)).await??;
            if event.is_error {
                return Err(trouble::parse_error_event(event.data));
            }
            let event = self.dialect.ids.read(event.data, tokens)?;
            let (now, is_end) = account.take(&self.ask.limits, event)?;
            // Only tokens extend the deadline: a server may send other events for ever.
            if account.received > tokens {
                after = self.ask.config.next_token();
                until = Instant::now() + after;
                if sink.is_some() {
                    self.counters.token();
                }
            } else if Instant::now() >= until {
                until = late()?;
            }
            if tokens == 0 && account.received > 0 {
                self.counters.firsts.fetch_add(1, Relaxed);
            }
            if is_end {
                return Ok(now);
            }
            if let Some(sequence) = sink
                && !now.is_empty()
            {
                sequence.push(&now)?;
            }
        }
    }

    /// Reads an answer without a stream; returns its tokens, and the handle if it goes on at a
    /// decode node.
    async fn read_whole(
        &self,
        body: &mut Incoming,
        after: Duration,
        asked: RequestTime,
        account: &mut Account,
        sink: &mut Sink<'_>,
    ) -> Result<(Tokens, Option<Vec<u8>>), Trouble> {
        let body = Limited::new(body, self.max_event()).collect();
        let late = || self.extend_deadline(0, after, asked);
        let body = wait_while_wanted(sink, asked.at + after, late, body).await?;
        let cut = |why: String| Trouble::Cut { tokens: 0, why };
        let text = body.map_err(|e| cut(e.to_string()))?.to_bytes();
        let text = std::str::from_utf8(&text).map_err(|e| Trouble::Garbled(e.to_string()))?;
        let mut event = self.dialect.ids.read(text, 0)?;
        event.done |= event.finish.is_some();
        let (tokens, is_end) = account.take(&self.ask.limits, event)?;
        if !is_end {
            return Err(Trouble::Garbled("its answer has no end".to_owned()));
        }
        if sink.is_some() {
            self.counters.token();
        }
        self.counters.firsts.fetch_add(1, Relaxed);
        let handle = account.goes_on().then(|| chunk::handle(text)).transpose()?;
        Ok((tokens, handle))
    }

    /// Size limit of an event, or of an answer without a stream, in bytes.
    fn max_event(&self) -> usize {
        EVENT + EVENT_ID * (self.ask.max_prompt + self.ask.limits.max_tokens)
    }

    /// Handles a stream that brought no token for the time `after`; returns a new deadline.
    ///
    /// A request without a first token may be in the server's queue. It keeps waiting while any
    /// stream receives tokens, until more streams have begun than can have been ahead of it.
    /// Error: [`Trouble::Silent`] if the stream may not wait longer.
    fn extend_deadline(
        &self,
        tokens: usize,
        after: Duration,
        asked: RequestTime,
    ) -> Result<Instant, Trouble> {
        if tokens == 0 && self.may_wait(after, asked) {
            let left = after.saturating_sub(self.counters.silence());
            return Ok(Instant::now() + left);
        }
        Err(Trouble::Silent { tokens, after })
    }

    /// True if any stream received a token in the last `within`, and so few streams have had their
    /// first token since `asked` that the request may still be in the server's queue.
    fn may_wait(&self, within: Duration, asked: RequestTime) -> bool {
        let firsts = self.counters.firsts.load(Relaxed) - asked.firsts;
        self.counters.silence() < within && firsts <= 2 * self.in_flight as u64
    }
}

/// The time of a request, as clock time and as a count of first tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTime {
    pub at: Instant,
    /// Number of first tokens of all streams before the request.
    firsts: u64,
}

/// Waits for `what` while the sink is wanted. At `until`, calls `late` for a new deadline or error.
async fn wait_while_wanted<F: Future>(
    sink: &mut Sink<'_>,
    mut until: Instant,
    late: impl Fn() -> Result<Instant, Trouble>,
    what: F,
) -> Result<F::Output, Trouble> {
    let mut what = pin!(what);
    loop {
        if sink.as_ref().is_some_and(|s| !s.is_wanted()) {
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
