//! The wait for a server that is away: a trial each second.

use std::time::Duration;

use record::CacheState;
use tokio::time::{Instant, sleep};

use super::{dialect::trouble, judge, start, stream::LlmServer};
use crate::engine::program::ExitStatus;

/// Interval of trials.
const ASK: Duration = Duration::from_secs(1);

/// Tries the server again whenever it is away. Returns once it has been away for its `ready_s`: the
/// reason. `cache` is the state of its prefix cache at the start.
pub(super) async fn watch_over(
    server: &LlmServer,
    cache: CacheState,
    exit: Option<&ExitStatus>,
) -> String {
    let standing = &server.standing;
    let mut away = standing.away.subscribe();
    let (mut since, mut is_known) = (Instant::now(), false);
    loop {
        // An error is impossible: the server holds the sender.
        let _ = away.wait_for(Option::is_some).await;
        // A trial alone does not end an absence: a sequence must get a token.
        if server.counters.silence() < since.elapsed() || !is_known {
            since = Instant::now();
        }
        is_known = true;
        sleep(ASK).await;
        let tried = try_again(server, cache).await;
        let absence = since.elapsed();
        let s = absence.as_secs();
        let Err(why) = tried else {
            tracing::info!("server {}: back after {s} s", server.ask.config.url);
            standing.away.send_replace(None);
            continue;
        };
        if let Some(exit) = exit.and_then(ExitStatus::now) {
            return exit;
        }
        if absence >= server.ask.config.ready() {
            return format!("it is gone for {s} s: {why}; see engine.http.ready_s");
        }
        standing.away.send_replace(Some(server.gone(&why)));
    }
}

/// Asks what the start asks, and for one short answer. Error text: the server does not answer, or
/// is not the server that it was.
async fn try_again(server: &LlmServer, cache: CacheState) -> Result<(), String> {
    let health = server.client.get("/health").await;
    match health.map_err(|e| e.to_string())? {
        (200 | 404, _) => {}
        (status, body) => {
            let words = trouble::words(&body);
            return Err(format!("it answers {status} to /health: {words}"));
        }
    }
    let mut ask = server.ask.clone();
    let facts = start::query_all(&server.client, server.dialect, &ask).await?;
    let (_, now) = start::judge(facts, server.dialect, &mut ask)?;
    if (ask.vocab, now.state) != (server.ask.vocab, cache) {
        return Err("it came back with another vocabulary or prefix cache".to_owned());
    }
    let tried = judge::try_once(server, Duration::ZERO).await;
    tried.map_err(|e| e.to_string())
}
