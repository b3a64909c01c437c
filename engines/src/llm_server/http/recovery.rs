//! The wait for a server that is away: a trial each second.

use std::{pin::pin, time::Duration};

use qdl::wire::Standing;
use tokio::time::{Instant, sleep, sleep_until};

use super::{judge, start, stream::LlmServer, trouble};
use crate::child::ExitStatus;

/// Interval of trials.
const ASK: Duration = Duration::from_secs(1);

/// Tries the server again whenever it is away. Once it has been away for its `ready_s`, it is
/// overdue until it is back. Returns the exit status of a server that this process started and that
/// has ended.
pub(super) async fn watch_over(server: &LlmServer, exit: Option<&ExitStatus>) -> String {
    let standing = &server.standing;
    let mut absence = standing.absence.subscribe();
    let (mut since, mut is_known) = (Instant::now(), false);
    loop {
        // An error is impossible: the server holds the sender.
        let _ = absence.wait_for(|known| known.absence().is_some()).await;
        // A trial alone does not end an absence: a sequence must get a token.
        if server.counters.silence() < since.elapsed() || !is_known {
            since = Instant::now();
        }
        is_known = true;
        sleep(ASK).await;
        let ready = server.ask.config.ready();
        let set = |why: &str| {
            let s = since.elapsed().as_secs();
            let now = match since.elapsed() < ready {
                true => Standing::Away(server.gone(why)),
                false => {
                    let why = format!("{why} (for {s} s: engine.http.ready_s)");
                    Standing::Overdue(server.gone(&why))
                }
            };
            let before = standing.absence.send_replace(now.clone());
            if let (Standing::Away(_), Standing::Overdue(why)) = (before, now) {
                tracing::warn!("{why}; it is overdue, and a run without another node ends");
            }
        };
        let mut trial = pin!(try_again(server));
        let tried = tokio::select! {
            tried = &mut trial => tried,
            () = sleep_until(since + ready), if since.elapsed() < ready => {
                set("no answer to a trial");
                trial.await
            }
        };
        let Err(why) = tried else {
            let (url, s) = (&server.ask.config.url, since.elapsed().as_secs());
            tracing::info!("server {url}: back after {s} s");
            standing.absence.send_replace(Standing::Takes);
            continue;
        };
        if let Some(exit) = exit.and_then(ExitStatus::now) {
            return exit;
        }
        set(&why);
    }
}

/// Asks what the start asks, and for one short answer. Error text: the server does not answer, or
/// is not the server that it was.
async fn try_again(server: &LlmServer) -> Result<(), String> {
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
    if (ask.limits.vocab, now.state) != (server.ask.limits.vocab, server.cache) {
        return Err("it came back with another vocabulary or prefix cache".to_owned());
    }
    let tried = judge::try_once(server, Duration::ZERO).await;
    tried.map_err(|e| e.to_string())
}
