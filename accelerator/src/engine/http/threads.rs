//! Runs the client threads: each has a runtime, connections and sequences.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use qdl::connection::join_all;

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
    judge::{Judge, Verdict},
    stream::LlmServer,
};
use crate::engine::{
    EngineError, Sequence,
    streaming::{OnFatal, guarded},
};
use crate::lock;

pub(super) struct Threads {
    /// Unbounded: the submitter keeps to [`Streaming::in_flight`](crate::engine::Streaming).
    to: Vec<UnboundedSender<Sequence>>,
    next: AtomicUsize,
    stop: watch::Sender<bool>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts one thread for each server.
    pub fn start(servers: Vec<LlmServer>, judge: Judge, fatal: &OnFatal) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let judge = Arc::new(judge);
        let (mut to, mut handles) = (Vec::new(), Vec::new());
        for (i, server) in servers.into_iter().enumerate() {
            let (sender, from) = unbounded_channel();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let client = ClientThread {
                thread: i,
                server,
                judge: judge.clone(),
                fatal: fatal.clone(),
            };
            let (stopped, fatal) = (stopped.clone(), fatal.clone());
            let thread = thread::Builder::new().name(format!("http-{i}"));
            let handle = thread.spawn(move || {
                guarded(NAME, i, &fatal, || {
                    runtime.block_on(serve(Arc::new(client), from, stopped));
                    // This drops the remaining sequences and their connections.
                    drop(runtime);
                    Ok(())
                });
            })?;
            to.push(sender);
            handles.push(handle);
        }
        Ok(Threads {
            to,
            next: AtomicUsize::new(0),
            stop,
            handles: Mutex::new(handles),
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

    /// Ends the threads and drops their sequences; a thread that does not end `within` goes on.
    pub fn stop(&self, within: Duration) {
        let _ = self.stop.send(true);
        let mut handles = lock(&self.handles);
        join_all(std::mem::take(&mut *handles), within);
    }
}

async fn serve(
    client: Arc<ClientThread>,
    mut from: UnboundedReceiver<Sequence>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut running = JoinSet::new();
    loop {
        let sequence = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            Some(ended) = running.join_next() => {
                client.handle_end(ended);
                continue;
            }
            sequence = from.recv() => sequence,
        };
        let Some(sequence) = sequence else { return };
        running.spawn(client.clone().run(sequence));
    }
}

struct ClientThread {
    thread: usize,
    server: LlmServer,
    judge: Arc<Judge>,
    fatal: OnFatal,
}

impl ClientThread {
    /// Handles the end of a sequence's task: a panic ends the node.
    fn handle_end(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            (self.fatal)(EngineError::panicked(NAME, self.thread, panic.as_ref()));
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
                    Ok((last, answer)) => {
                        drop(stream);
                        if let Err((sequence, e)) = sequence.finish(&last) {
                            sequence.refuse(&e);
                        }
                        return server.client.done(answer).await;
                    }
                    Err(trouble) => trouble,
                }
            }
            Err(trouble) => trouble,
        };
        drop(stream);
        match self.judge.verdict(server, trouble).await {
            Verdict::Drop => {
                server.counters.lock().cancelled += 1;
            }
            Verdict::Refuse(words) => sequence.refuse(&words),
            Verdict::End(reason) => (self.fatal)(EngineError::Server {
                url: server.config.url.clone(),
                reason,
            }),
        }
    }

    /// The ids of the prompt, all within the vocabulary.
    fn prompt(&self, sequence: &Sequence) -> Result<Vec<i32>, Trouble> {
        let ask = &self.server.ask;
        let prompt: Vec<i32> = sequence.prompt().collect();
        let known = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < ask.vocab);
        match prompt.iter().position(|id| !known(id)) {
            Some(at) => Err(Trouble::Prompt(format!(
                "token {at} of the prompt is {}, beyond the vocabulary of {}",
                prompt[at], ask.vocab
            ))),
            None => Ok(prompt),
        }
    }
}
