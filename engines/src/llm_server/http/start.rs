//! Queries to the server before the first sample: readiness, model, context, vocabulary, prefix
//! cache, and one short answer with the parameters of every sequence.

use crate::config::HttpConfig;
use record::{CacheState, PrefixCache, secrets};

use super::{
    client::HttpClient,
    dialect::{AnswerParams, Dialect, Question, ServerFacts},
    trouble::{self, Trouble},
};
use crate::error::shorten;

/// Why the server is not ready; `None` if it is. A server that does not listen yet, or whose name
/// has no address yet, is not ready. `is_own`: this engine starts the server.
pub(super) async fn unready(client: &HttpClient, is_own: bool) -> Option<String> {
    Some(match client.get("/health").await {
        // A server without `/health` (404) counts as ready.
        Ok((200 | 404, _)) => return None,
        Ok((status, words)) => {
            format!("it answers {status} to /health: {}", trouble::words(&words))
        }
        Err(e @ Trouble::Connect(_)) if !is_own => {
            format!("{e}: start it, or name it in engine.http.command")
        }
        Err(e) => e.to_string(),
    })
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
    if let Some(refusal) = about.refusal {
        return Err(refusal);
    }
    let (prompt, answer) = (ask.max_prompt, ask.limits.max_tokens);
    if let Some(most) = about.max_prompt.filter(|most| prompt > *most) {
        return Err(format!(
            "it takes prompts of at most {most} tokens, and the longest sample has {prompt}: start \
             it with a longer context"
        ));
    }
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
