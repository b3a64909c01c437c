//! Whose fault it was: what comes to a sequence is its own affair, or the end of the engine.

use std::{
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{
    command::Exit,
    dialect::trouble::Trouble,
    stream::{Server, Sink},
};
use crate::engine::{
    EngineError, Fault,
    streaming::{OnFatal, TooLong},
};

/// How long the end of a server that we started may take to be seen, once it answers no more.
const EXIT_SEEN: Duration = Duration::from_secs(3);
/// How long a trial may take that decides whether the server goes on: with `next_token_s`, and with
/// `first_token_s`, it is over before a frontend gives a silent run up (`watchdog_s`), by default.
pub(super) const TRIAL: Duration = Duration::from_secs(10);
/// Ids of the prompt of a trial.
const TRIAL_PROMPT: usize = 16;
/// Tokens of its answer.
const TRIAL_TOKENS: usize = 2;
/// Trials that may fail before the server is not well.
const TRIES: usize = 3;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(200);
/// Tokens that come so long after a trouble were sent after it: those before lay in a buffer.
const SETTLED: Duration = Duration::from_millis(200);

/// Says the engine's end, once. Off the hot path: it is said once in a node's life.
#[derive(Default)]
pub(super) struct Fatal(std::sync::Mutex<State>);

#[derive(Default)]
struct State {
    told: bool,
    on_fatal: Option<OnFatal>,
    /// What came before anybody listened.
    early: Option<EngineError>,
}

impl Fatal {
    /// Who hears it from now on; at once, where it has happened already.
    pub fn listen(&self, on_fatal: &OnFatal) {
        let mut state = self.state();
        let early = state.early.take();
        state.on_fatal = Some(on_fatal.clone());
        drop(state);
        if let Some(early) = early {
            on_fatal(early);
        }
    }

    /// From here on nothing is said: the engine is being stopped.
    pub fn mute(&self) {
        let mut state = self.state();
        state.told = true;
        state.early = None;
    }

    /// Says that of the server, unless something was said.
    pub fn tell(&self, url: &str, reason: String) {
        self.end(EngineError::Server {
            url: url.to_owned(),
            reason,
        });
    }

    /// Says it, unless something was said.
    pub fn end(&self, error: EngineError) {
        let mut state = self.state();
        if std::mem::replace(&mut state.told, true) {
            return;
        }
        match state.on_fatal.clone() {
            Some(on_fatal) => {
                drop(state);
                on_fatal(error);
            }
            None => state.early = Some(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sequence comes to that got no answer.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nobody waits: it is dropped.
    Drop,
    /// The sample is given back with these words.
    Refuse(String),
    /// The engine ends with these.
    End(String),
}

/// A trial whose tokens are of no interest.
struct Nobody;

impl Sink for Nobody {
    fn is_wanted(&self) -> bool {
        true
    }

    fn push(&mut self, _: &[i32]) -> Result<(), TooLong> {
        Ok(())
    }

    fn is_trial(&self) -> bool {
        true
    }
}

/// Asks for a short answer to a harmless prompt, as the engine asks for all of them; up to
/// [`TRIES`] times where it may fail for a reason of its own.
///
/// # Errors
/// [`Trouble`]: what any sequence would meet.
pub(super) async fn trial(server: &Server) -> Result<(), Trouble> {
    let mut tries = 1;
    loop {
        let ended = try_once(server).await;
        // What has waited for long already is not asked again.
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

async fn try_once(server: &Server) -> Result<(), Trouble> {
    let ask = &server.ask;
    let len = TRIAL_PROMPT.min(ask.max_prompt);
    let ids = (1..=len).map(|i| i32::try_from(i % ask.vocab).unwrap_or(0));
    let prompt: Vec<i32> = ids.collect();
    let tokens = TRIAL_TOKENS.min(ask.max_tokens);
    let whole = server.answer(&prompt, tokens, &mut Nobody).await?;
    server.client.done(whole.answer).await;
    Ok(())
}

/// See the module.
pub(super) struct Judge {
    /// A server that we started.
    pub exit: Option<Exit>,
    /// How long a trial may take.
    trial: Duration,
    /// When the last trial began, and whether it went well.
    last: Mutex<Option<(Instant, bool)>>,
}

impl Judge {
    pub fn new(exit: Option<Exit>) -> Arc<Self> {
        Arc::new(Self::within(exit, TRIAL))
    }

    /// With another bound on its trials.
    pub fn within(exit: Option<Exit>, trial: Duration) -> Self {
        Judge {
            exit,
            trial,
            last: Mutex::default(),
        }
    }

    /// Judges what came to one sequence.
    pub async fn verdict(&self, server: &Server, trouble: Trouble) -> Verdict {
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

    /// Whether the server still answers: a trial goes well, or tokens come to any stream. Of many
    /// that ask at once, one tries for all.
    async fn is_well(&self, server: &Server) -> bool {
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

    /// How a server that we started ended, if it did.
    async fn exited(&self) -> Option<String> {
        let exit = self.exit.as_ref()?;
        timeout(EXIT_SEEN, exit.seen()).await.ok()?
    }
}
