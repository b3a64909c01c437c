//! The client threads, and the path of a sequence.

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};

use super::{
    super::Transport,
    HttpTransport,
    judge::{Judge, Verdict},
    recovery::watch_over,
    stream::{LastTokens, LlmServer},
    trouble::Trouble,
};
use crate::{
    EngineError, Sequence,
    streaming::{OnFatal, SequenceSource},
};
use fabric::os::lock;

/// A runtime of `count` client threads, for the queries at the start and for all sequences.
pub(super) fn runtime(count: usize) -> io::Result<Runtime> {
    let next = AtomicUsize::new(0);
    Builder::new_multi_thread()
        .worker_threads(count.max(1))
        .thread_name_fn(move || format!("http-{}", next.fetch_add(1, Relaxed)))
        .enable_all()
        .build()
}

pub(super) struct Threads {
    /// `None` from the stop on.
    runtime: Mutex<Option<Runtime>>,
    client: Arc<SequenceRunner>,
}

impl Threads {
    /// Runs sequences on `runtime`, and watches over the server's absences.
    pub fn new(runtime: Runtime, server: LlmServer, judge: Judge, fatal: OnFatal) -> Self {
        let client = Arc::new(SequenceRunner {
            server,
            judge,
            fatal,
        });
        let watching = client.clone();
        runtime.spawn(async move {
            let SequenceRunner { server, judge, .. } = &*watching;
            let end = watch_over(server, judge.exit.as_ref());
            watching.end(&end.await);
        });
        Threads {
            runtime: Mutex::new(Some(runtime)),
            client,
        }
    }

    /// Runs the sequences of the source on the client threads, until the stop.
    pub fn wake(&self, source: &dyn SequenceSource) {
        let Some(runtime) = &*lock(&self.runtime) else {
            return;
        };
        while let Some(sequence) = source.next() {
            let client = self.client.clone();
            let run = AssertUnwindSafe(client.clone().run(sequence)).catch_unwind();
            runtime.spawn(async move {
                if let Err(panic) = run.await {
                    (client.fatal)(EngineError::panicked(
                        HttpTransport::NAME,
                        0,
                        panic.as_ref(),
                    ));
                }
            });
        }
    }

    /// Drops the sequences with their connections, and ends the threads within `timeout`.
    pub fn stop(&self, timeout: Duration) {
        // A dropped sequence wakes the engine, so the lock is free by then.
        let runtime = lock(&self.runtime).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(timeout);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

struct SequenceRunner {
    server: LlmServer,
    judge: Judge,
    fatal: OnFatal,
}

impl SequenceRunner {
    /// Runs one sequence, from its prompt to its answer, or to the verdict on its error.
    async fn run(self: Arc<Self>, mut sequence: Sequence) {
        let server = &self.server;
        loop {
            if let Some(why) = server.standing.away() {
                if sequence.has_elsewhere() {
                    return sequence.give_back(&why);
                }
                if let Some(overdue) = server.standing.back(&sequence).await {
                    return self.end(&server.reason(&overdue));
                }
            }
            let trouble = match self.answer(&mut sequence).await {
                Ok(last) => {
                    match (last.handle, last.tokens.first()) {
                        (Some(handle), Some(token)) => sequence.hand_over(*token, &handle),
                        _ => sequence.finish(&last.tokens),
                    }
                    return server.client.done(last.stream).await;
                }
                Err(trouble) => trouble,
            };
            match self.judge.verdict(server, trouble).await {
                Verdict::Drop => return,
                Verdict::GiveBack(why) if sequence.has_elsewhere() => {
                    return sequence.give_back(&why);
                }
                // Waits for the server. Tokens that the origin has are not taken back.
                Verdict::GiveBack(_)
                    if server.standing.away().is_some() && sequence.tokens() == 0 => {}
                Verdict::GiveBack(words) | Verdict::Refuse(words) => {
                    return sequence.refuse(&words);
                }
                Verdict::End(reason) => return self.end(&reason),
            }
        }
    }

    async fn answer(&self, sequence: &mut Sequence) -> Result<LastTokens, Trouble> {
        let server = &self.server;
        let (limits, room, mut prompt) = (&server.ask.limits, sequence.room(), Vec::new());
        let account = limits.admit(sequence.prompt(), room, sequence.options(), &mut prompt);
        let account = account.map_err(Trouble::Prompt)?;
        let patience = server.ask.config.busy();
        let answer = server.answer(&prompt, account, Some(sequence), patience);
        answer.await
    }

    fn end(&self, reason: &str) {
        let line = format!("server {}: {reason}", self.server.ask.config.url);
        (self.fatal)(EngineError::engine(line));
    }
}
