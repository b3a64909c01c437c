//! Runs the client threads: each has its own runtime, connections and sequences.

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::FutureExt;
use qdl::connection::join_all;
use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

use super::{
    NAME,
    dialect::trouble::Trouble,
    judge::{Judge, Verdict},
    stream::LlmServer,
};
use crate::engine::{EngineError, Sequence, catch_panic, streaming::OnFatal};
use crate::lock;

pub(super) struct Threads {
    /// The pipeline submits at most [`Streaming::in_flight`](crate::engine::Streaming) sequences.
    clients: Vec<(Handle, Arc<ClientThread>)>,
    next: AtomicUsize,
    stop: watch::Sender<bool>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts one client thread for each of `servers`.
    pub fn start(servers: Vec<LlmServer>, judge: Judge, fatal: &OnFatal) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let judge = Arc::new(judge);
        let (mut clients, mut handles) = (Vec::new(), Vec::new());
        for (i, server) in servers.into_iter().enumerate() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let client = ClientThread {
                thread: i,
                server,
                judge: judge.clone(),
                fatal: fatal.clone(),
            };
            clients.push((runtime.handle().clone(), Arc::new(client)));
            let (mut stopped, fatal) = (stopped.clone(), fatal.clone());
            let thread = thread::Builder::new().name(format!("http-{i}"));
            handles.push(thread.spawn(move || {
                let ended = catch_panic(NAME, i, || {
                    // The wait fails only if the sender `stop` is gone.
                    let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
                    // This drops the remaining sequences and their connections.
                    drop(runtime);
                    Ok(())
                });
                if let Err(error) = ended {
                    fatal(error);
                }
            })?);
        }
        Ok(Threads {
            clients,
            next: AtomicUsize::new(0),
            stop,
            handles: Mutex::new(handles),
        })
    }

    /// Hands a sequence to the next client thread in turn. After the stop, drops the sequence.
    pub fn submit(&self, sequence: Sequence) {
        let i = self.next.fetch_add(1, Relaxed) % self.clients.len();
        let (runtime, client) = &self.clients[i];
        let run = AssertUnwindSafe(client.clone().run(sequence)).catch_unwind();
        let client = client.clone();
        runtime.spawn(async move {
            if let Err(panic) = run.await {
                (client.fatal)(EngineError::panicked(NAME, client.thread, panic.as_ref()));
            }
        });
    }

    /// Ends the threads and drops their sequences. Waits at most `within` for the threads.
    pub fn stop(&self, within: Duration) {
        let _ = self.stop.send(true);
        let mut handles = lock(&self.handles);
        join_all(std::mem::take(&mut *handles), within);
    }
}

struct ClientThread {
    thread: usize,
    server: LlmServer,
    judge: Arc<Judge>,
    fatal: OnFatal,
}

impl ClientThread {
    /// Runs one sequence, from its prompt to its answer, or to the verdict on its error.
    async fn run(self: Arc<Self>, mut sequence: Sequence) {
        let server = &self.server;
        let stream = server.counters.stream();
        let trouble = match self.prompt(&sequence) {
            Ok(prompt) => {
                let most = server.ask.max_tokens.min(sequence.room());
                match server.answer(&prompt, most, &mut sequence).await {
                    Ok((last, answer)) => {
                        drop(stream);
                        sequence.finish(&last);
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
                url: server.ask.config.url.clone(),
                reason,
            }),
        }
    }

    /// The ids of the prompt; an error if an id is outside the vocabulary.
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
