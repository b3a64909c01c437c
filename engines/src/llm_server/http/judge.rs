//! Decides whether an error of a sequence refuses the sample or ends the engine.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{
    super::{account::TRIAL_TOKENS, process::EXIT_SEEN},
    stream::LlmServer,
    trouble::Trouble,
};
use crate::{Fault, child::ExitStatus};

/// Time limit of a trial, which decides whether the server works. The sum with `next_token_s`, or
/// with `first_token_s`, stays below the frontend's default `watchdog_s`.
pub(super) const TRIAL: Duration = Duration::from_secs(10);
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
    /// The server is busy or away: the sample is not at fault.
    GiveBack(String),
    End(String),
}

/// Requests a short answer to a harmless prompt, with the parameters of every request. Sends up to
/// [`TRIES`] requests while errors may be the fault of the request.
/// Asks a busy server again for the time `patience`.
/// Error: the last request's [`Trouble`]: other sequences would fail, too.
pub(super) async fn trial(server: &LlmServer, patience: Duration) -> Result<(), Trouble> {
    let mut tries = 1;
    loop {
        let ended = try_once(server, patience).await;
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

/// As [`trial`], with one request.
pub(super) async fn try_once(server: &LlmServer, patience: Duration) -> Result<(), Trouble> {
    let (limits, mut prompt) = (&server.ask.limits, Vec::new());
    let account = limits.admit_trial(server.ask.max_prompt, TRIAL_TOKENS, &mut prompt);
    let account = account.map_err(Trouble::Prompt)?;
    let answer = server.answer(&prompt, account, None, patience).await?;
    let answer = answer.stream;
    server.client.done(answer).await;
    Ok(())
}

pub(super) struct Judge {
    /// Exit status of a server that this process started.
    pub exit: Option<ExitStatus>,
    trial: Duration,
    /// Begin time and result of the last trial.
    last: Mutex<Option<(Instant, Probe)>>,
}

/// State of the server after an error.
#[derive(Clone, Debug, PartialEq)]
enum Probe {
    Works,
    /// It is away, for this reason.
    Away(String),
    Fails,
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
            Fault::Either => match self.probe(server).await {
                Probe::Works if matches!(trouble, Trouble::Busy { .. }) => Verdict::GiveBack(words),
                Probe::Works => Verdict::Refuse(format!("{words}; the server goes on")),
                Probe::Away(why) => match self.exited().await {
                    Some(exit) => Verdict::End(exit),
                    None => {
                        server.standing.leave(&why);
                        Verdict::GiveBack(why)
                    }
                },
                Probe::Fails => Verdict::End(self.exited().await.unwrap_or(words)),
            },
        }
    }

    /// The state of the server. It works if a trial succeeds, or any stream receives tokens. All
    /// concurrent callers share one trial.
    async fn probe(&self, server: &LlmServer) -> Probe {
        if let Some(why) = server.standing.away() {
            return Probe::Away(why);
        }
        let since = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((began, probe)) = &*last
            && *began >= since
        {
            return probe.clone();
        }
        let began = Instant::now();
        let brings_tokens = async {
            while server.counters.silence() + SETTLED > began.elapsed() {
                sleep(PAUSE).await;
            }
        };
        let tried = timeout(self.trial, async {
            tokio::select! {
                tried = trial(server, Duration::ZERO) => tried,
                () = brings_tokens => Ok(()),
            }
        });
        let probe = match tried.await {
            Ok(Ok(())) => Probe::Works,
            Ok(Err(trouble)) if trouble.is_absence() => {
                Probe::Away(server.gone(&trouble.to_string()))
            }
            _ => Probe::Fails,
        };
        *last = Some((began, probe.clone()));
        probe
    }

    /// The exit status, if this process started the server and it ends within [`EXIT_SEEN`].
    async fn exited(&self) -> Option<String> {
        let exit = self.exit.as_ref()?;
        timeout(EXIT_SEEN, exit.seen()).await.ok()?
    }
}
