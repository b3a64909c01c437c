//! Decides whether an error of a sequence refuses the sample or ends the engine.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{dialect::trouble::Trouble, stream::LlmServer};
use crate::engine::{Fault, program::ExitStatus};

/// Time to wait for the exit of our server process after the server stops answering.
const EXIT_SEEN: Duration = Duration::from_secs(3);
/// Time limit of a trial, which decides whether the server works. The sum with `next_token_s`, or
/// with `first_token_s`, stays below the frontend's default `watchdog_s`.
pub(super) const TRIAL: Duration = Duration::from_secs(10);
const TRIAL_PROMPT: usize = 16;
const TRIAL_TOKENS: usize = 2;
/// Requests of a trial before the server counts as failed.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// Tokens this long after an error prove a working server; earlier ones may come from a buffer.
const SETTLED: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// The frontend is gone: drop the sequence.
    Drop,
    Refuse(String),
    End(String),
}

/// Requests a short answer to a harmless prompt, with the parameters of every request. Sends up to
/// [`TRIES`] requests while errors may be the fault of the request.
/// Error: the last request's [`Trouble`]: other sequences would fail, too.
pub(super) async fn trial(server: &LlmServer) -> Result<(), Trouble> {
    let mut tries = 1;
    loop {
        let ended = try_once(server).await;
        // After a long wait, do not try again.
        let again = |e: &Trouble| {
            let waited = matches!(e, Trouble::Silent { .. } | Trouble::Busy { .. });
            e.fault() == Fault::Either && !waited && tries < TRIES
        };
        if !ended.as_ref().is_err_and(again) {
            return ended;
        }
        tries += 1;
        sleep(PAUSE).await;
    }
}

async fn try_once(server: &LlmServer) -> Result<(), Trouble> {
    let ask = &server.ask;
    let len = TRIAL_PROMPT.min(ask.max_prompt);
    let ids = (1..=len).map(|i| i32::try_from(i % ask.vocab).unwrap_or(0));
    let prompt: Vec<i32> = ids.collect();
    let tokens = TRIAL_TOKENS.min(ask.max_tokens);
    let (_, answer) = server.answer(&prompt, tokens, None).await?;
    server.client.done(answer).await;
    Ok(())
}

pub(super) struct Judge {
    /// Exit status of a server that this process started.
    exit: Option<ExitStatus>,
    trial: Duration,
    /// Begin time and result of the last trial; true if the server works.
    last: Mutex<Option<(Instant, bool)>>,
}

impl Judge {
    pub fn new(exit: Option<ExitStatus>, trial: Duration) -> Self {
        Judge {
            exit,
            trial,
            last: Mutex::default(),
        }
    }

    /// Decides the consequence of one sequence's error; may send a trial to the server.
    pub async fn verdict(&self, server: &LlmServer, trouble: Trouble) -> Verdict {
        let words = trouble.to_string();
        match trouble.fault() {
            _ if trouble == Trouble::Unwanted => Verdict::Drop,
            Fault::Sample => Verdict::Refuse(words),
            Fault::Engine => Verdict::End(words),
            Fault::Either if self.is_well(server).await => {
                Verdict::Refuse(format!("{words}; the server goes on"))
            }
            Fault::Either => Verdict::End(match self.exited().await {
                Some(exit) => exit,
                None => words,
            }),
        }
    }

    /// True if the server still answers: a trial succeeds, or any stream receives tokens. All
    /// concurrent callers share one trial.
    async fn is_well(&self, server: &LlmServer) -> bool {
        let since = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((began, well)) = *last
            && began >= since
        {
            return well;
        }
        let began = Instant::now();
        let brings_tokens = async {
            while server.counters.silence() + SETTLED > began.elapsed() {
                sleep(PAUSE).await;
            }
        };
        let tried = timeout(self.trial, async {
            tokio::select! {
                tried = trial(server) => tried.is_ok(),
                () = brings_tokens => true,
            }
        });
        let well = tried.await == Ok(true);
        *last = Some((began, well));
        well
    }

    /// The exit status, if this process started the server and it ends within [`EXIT_SEEN`].
    async fn exited(&self) -> Option<String> {
        let exit = self.exit.as_ref()?;
        timeout(EXIT_SEEN, exit.seen()).await.ok()?
    }
}
