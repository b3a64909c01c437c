//! Queries to the server before the first sample: readiness, model, context, vocabulary, prefix
//! cache, and one short answer with the parameters of every sequence.

use std::time::{Duration, Instant};

use qdl::config::HttpConfig;
use record::{CacheState, PrefixCache, secrets};
use tokio::time::sleep;

use super::{
    client::HttpClient,
    dialect::{
        AnswerParams, Dialect, Question, ServerFacts,
        trouble::{self, Trouble},
    },
};
use crate::engine::{
    error::shorten,
    program::{Program, last_line},
    streaming,
};

/// Interval of readiness queries to a starting server.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of log lines while the server is not ready.
const SAY: Duration = Duration::from_secs(10);

/// Waits until the server reports that it is ready. A server that does not listen yet, or whose
/// name has no address yet, is waited for too.
/// Error text: the server ended, or was not ready in time.
pub(super) async fn ready(
    client: &HttpClient,
    config: &HttpConfig,
    program: Option<&Program>,
) -> Result<(), String> {
    let began = Instant::now();
    let mut said = None;
    loop {
        let why = match client.get("/health").await {
            // A server without `/health` (404) counts as ready.
            Ok((200 | 404, _)) => return Ok(()),
            Ok((status, words)) => {
                format!("it answers {status} to /health: {}", trouble::words(&words))
            }
            Err(e @ Trouble::Connect(_)) if program.is_none() => {
                format!("{e}: start it, or name it in engine.http.command")
            }
            Err(e) => e.to_string(),
        };
        if let Some(exit) = program.and_then(|p| p.exit.now()) {
            return Err(format!("{exit} (before it was ready)"));
        }
        let waited = began.elapsed();
        let log = program.map(|p| (&p.log, last_line(&p.log).unwrap_or_default()));
        let log = log.map_or_else(String::new, |(path, line)| {
            format!(
                "; the last line of its log {}: {}",
                path.display(),
                shorten(&line)
            )
        });
        if waited > config.ready() {
            let s = waited.as_secs();
            return Err(format!(
                "not ready after {s} s ({why}{log}): see engine.http.ready_s"
            ));
        }
        if said.is_none_or(|at: Instant| at.elapsed() > SAY) {
            said = Some(Instant::now());
            tracing::info!(
                "waiting for the server for {} s: {why}{log}",
                waited.as_secs()
            );
        }
        sleep(LOOK).await;
    }
}

/// Sends the dialect's queries; returns the facts from the responses.
/// Error text: a required query has no usable response.
pub(super) async fn query_all(
    client: &HttpClient,
    dialect: &Dialect,
    ask: &AnswerParams,
) -> Result<ServerFacts, String> {
    let mut about = ServerFacts::default();
    for question in dialect.questions {
        let answered = query(client, question, ask, &mut about).await;
        match answered {
            Err(why) if question.needed => return Err(why),
            Err(why) => tracing::debug!("{why}"),
            Ok(()) => {}
        }
    }
    Ok(about)
}

async fn query(
    client: &HttpClient,
    question: &Question,
    ask: &AnswerParams,
    about: &mut ServerFacts,
) -> Result<(), String> {
    let mut last = String::new();
    for path in question.paths {
        let (status, body) = client.get(path).await.map_err(|e| e.to_string())?;
        if status == 200 {
            let read = (question.read)(&body, ask, about);
            return read.map_err(|e| {
                format!(
                    "what it answers to {path} is not understood ({e}): see engine.http.dialect"
                )
            });
        }
        let words = trouble::words(&body);
        last = format!("it answers {status} to {path} ({words}): see engine.http.dialect");
    }
    Err(last)
}

/// Limit of concurrent requests to a server that works on `at_once` sequences, and the reason.
pub(super) fn in_flight(at_once: Option<usize>, config: &HttpConfig) -> (usize, String) {
    streaming::in_flight(at_once, config.in_flight, "engine.http.in_flight")
}

/// Compares the server's facts with the configuration and completes `ask`. Returns warnings for the
/// operator, and the state of the prefix cache.
/// Error text: a difference that would make the run wrong.
pub(super) fn judge(
    about: ServerFacts,
    dialect: &Dialect,
    ask: &mut AnswerParams,
) -> Result<(Vec<String>, PrefixCache), String> {
    let mut warnings = about.notes;
    if !about.models.is_empty() && !about.models.contains(&ask.model) {
        let (has, wants) = (shorten(&about.models.join("`, `")), &ask.model);
        return Err(format!(
            "it serves `{has}` and no `{wants}`: see engine.http.model"
        ));
    }
    let (prompt, answer) = (ask.max_prompt, ask.limits.max_tokens);
    let context = [about.context, ask.config.context]
        .into_iter()
        .flatten()
        .min();
    match context {
        Some(context) if prompt + answer > context => {
            return Err(format!(
                "its context of {context} tokens is too short for the longest sample: \
                 {prompt} of prompt and {answer} of answer"
            ));
        }
        Some(_) => {}
        None => warnings.push(
            "it does not say how long its context is: engine.http.context would have it checked"
                .to_owned(),
        ),
    }
    ask.limits.vocab = match (ask.config.vocab, about.vocab) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            return Err(format!(
                "its vocabulary has {theirs} ids, and engine.http.vocab says {ours}"
            ));
        }
        (ours, theirs) => ours.or(theirs).ok_or(
            "it does not say how many ids its vocabulary has, and an id beyond them may end it: \
             set engine.http.vocab",
        )?,
    };
    let cache = prefix_cache(about.prefix_cache, &ask.config, dialect);
    match cache.state {
        CacheState::Off => {}
        CacheState::On => warnings.push(format!(
            "its prefix cache is on, and such a run does not count: {}",
            cache.how
        )),
        CacheState::Unknown => warnings.push(format!(
            "it does not say whether its prefix cache is on; with one a run does not count: {}",
            cache.how
        )),
    }
    Ok((warnings, cache))
}

/// The state of the prefix cache, from the server's response `said`, else from the configuration.
fn prefix_cache(said: Option<bool>, config: &HttpConfig, dialect: &Dialect) -> PrefixCache {
    let off = dialect.without_prefix_cache;
    let (state, how) = match (said, &config.prefix_cache_off) {
        (Some(true), _) => (CacheState::On, off.to_owned()),
        (Some(false), _) => (CacheState::Off, "the server says so".to_owned()),
        (None, Some(word)) => (CacheState::Off, secrets::mask(word).text),
        (None, None) => {
            let how = format!("{off}, and say so in engine.http.prefix_cache_off");
            (CacheState::Unknown, how)
        }
    };
    PrefixCache { state, how }
}
