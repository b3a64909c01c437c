//! Runs the client threads: each has a runtime, connections and sequences.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Builder,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
    task::{JoinError, JoinSet},
};

use super::{
    NAME,
    dialect::trouble::Trouble,
    judge::{Fatal, Judge, Verdict},
    stream::Server,
};
use crate::engine::{
    EngineError, Sequence, panic_message,
    streaming::{OnFatal, TOKEN_BYTES, guarded},
};

/// The client threads.
pub(super) struct Threads {
    /// Unbounded: the submitter keeps to [`Streaming::in_flight`](crate::engine::Streaming).
    to: Vec<UnboundedSender<Sequence>>,
    next: AtomicUsize,
    stop: watch::Sender<bool>,
    ended: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl Threads {
    /// Starts one thread for each server.
    ///
    /// # Errors
    /// The system cannot start a thread or runtime.
    pub fn start(servers: Vec<Server>, judge: &Arc<Judge>, fatal: &Arc<Fatal>) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = mpsc::channel();
        let mut to = Vec::new();
        for (i, server) in servers.into_iter().enumerate() {
            let (sender, from) = unbounded_channel();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let work = Work {
                thread: i,
                server,
                judge: judge.clone(),
                fatal: fatal.clone(),
            };
            let (stopped, end) = (stopped.clone(), end.clone());
            let told = fatal.clone();
            let told: OnFatal = Arc::new(move |error| told.end(error));
            let thread = thread::Builder::new().name(format!("http-{i}"));
            thread.spawn(move || {
                guarded(NAME, i, &told, || {
                    runtime.block_on(serve(Arc::new(work), from, stopped));
                    // This drops the remaining sequences and their connections.
                    drop(runtime);
                    Ok(())
                });
                let _ = end.send(());
            })?;
            to.push(sender);
        }
        Ok(Threads {
            to,
            next: AtomicUsize::new(0),
            stop,
            ended: std::sync::Mutex::new(ended),
        })
    }

    /// Hands a sequence to one thread; drops it after the stop.
    pub fn submit(&self, sequence: Sequence) {
        let i = match self.to.len() {
            1 => 0,
            n => self.next.fetch_add(1, Relaxed) % n,
        };
        // An error returns the sequence, and it is dropped.
        let _ = self.to[i].send(sequence);
    }

    /// Ends the threads and drops their sequences; false if a thread does not end `within`.
    pub fn stop(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let _ = self.stop.send(true);
        let Ok(ended) = self.ended.lock() else {
            return false;
        };
        self.to.iter().all(|_| {
            let left = until.saturating_duration_since(Instant::now());
            // A closed channel means that all threads have ended.
            !matches!(
                ended.recv_timeout(left),
                Err(mpsc::RecvTimeoutError::Timeout)
            )
        })
    }
}

async fn serve(
    work: Arc<Work>,
    mut from: UnboundedReceiver<Sequence>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut running = JoinSet::new();
    loop {
        let sequence = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            Some(ended) = running.join_next() => {
                work.ended(ended);
                continue;
            }
            sequence = from.recv() => sequence,
        };
        let Some(sequence) = sequence else { return };
        running.spawn(work.clone().run(sequence));
    }
}

/// State that the sequences of one thread share.
struct Work {
    /// Index of the thread.
    thread: usize,
    server: Server,
    judge: Arc<Judge>,
    fatal: Arc<Fatal>,
}

impl Work {
    /// Handles the end of a sequence's task: a panic ends the node.
    fn ended(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            self.fatal.end(EngineError::Panicked {
                engine: NAME,
                worker: self.thread,
                message: panic_message(panic.as_ref()),
            });
        }
    }

    /// Runs one sequence, from its prompt to its answer or verdict.
    async fn run(self: Arc<Self>, mut sequence: Sequence) {
        let server = &self.server;
        let stream = server.counters.stream();
        let trouble = match self.prompt(&sequence) {
            Ok(prompt) => {
                let most = server.ask.max_tokens.min(sequence.room());
                match server.answer(&prompt, most, &mut sequence).await {
                    Ok(whole) => {
                        drop(stream);
                        if let Err((sequence, e)) = sequence.finish(&whole.last) {
                            sequence.refuse(&e);
                        }
                        return server.client.done(whole.answer).await;
                    }
                    Err(trouble) => trouble,
                }
            }
            Err(trouble) => trouble,
        };
        drop(stream);
        match self.judge.verdict(server, trouble).await {
            Verdict::Drop => {
                server.counters.cancelled.fetch_add(1, Relaxed);
            }
            Verdict::Refuse(words) => sequence.refuse(&words),
            Verdict::End(words) => self.fatal.tell(&server.config.url, words),
        }
    }

    /// The ids of the prompt, all within the vocabulary.
    fn prompt(&self, sequence: &Sequence) -> Result<Vec<i32>, Trouble> {
        let ask = &self.server.ask;
        let bytes = sequence.input().len();
        let wrong = |words: String| Err(Trouble::Prompt(words));
        if bytes == 0 || !bytes.is_multiple_of(TOKEN_BYTES) || bytes / TOKEN_BYTES > ask.max_prompt
        {
            return wrong(format!(
                "a prompt of {bytes} bytes; model `{}` takes 1 to {} ids of {TOKEN_BYTES} bytes",
                ask.model, ask.max_prompt
            ));
        }
        let prompt: Vec<i32> = sequence.prompt().collect();
        let known = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < ask.vocab);
        match prompt.iter().position(|id| !known(id)) {
            Some(at) => wrong(format!(
                "token {at} of the prompt is {}, beyond the vocabulary of {}",
                prompt[at], ask.vocab
            )),
            None => Ok(prompt),
        }
    }
}
