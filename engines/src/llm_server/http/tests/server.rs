//! A scripted server: its responses to queries and its streams, in the form of the source named in
//! each dialect's file.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::config::Dialect;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    runtime::Builder,
    sync::{Semaphore, oneshot},
};

use super::rig::VOCAB;

pub struct Request {
    pub body: Value,
    pub number: usize,
}

impl Request {
    pub fn prompt(&self) -> Vec<i32> {
        let ids = ["prompt", "token_ids", "input_ids"];
        let ids = ids.iter().find_map(|key| self.body.get(key)?.as_array());
        let ids = ids.expect("ids and no text").iter();
        ids.map(|id| id.as_i64().expect("an id") as i32).collect()
    }

    /// The limit of the answer in tokens.
    pub fn most(&self) -> usize {
        let sampling = self.body.get("sampling_params").unwrap_or(&self.body);
        let most = ["max_tokens", "max_new_tokens", "n_predict"];
        let most = most.iter().find_map(|key| sampling.get(key)?.as_u64());
        most.expect("a limit") as usize
    }

    /// The reason for the end of an answer of these tokens.
    pub fn finish(&self, tokens: &[i32]) -> &'static str {
        match tokens.len() == self.most() {
            true => "length",
            false => "stop",
        }
    }

    /// True for a trial, which is limited to 2 tokens.
    pub fn is_trial(&self) -> bool {
        self.most() == 2
    }
}

#[derive(Clone, Debug)]
pub enum Reply {
    Whole(u16, String),
    Stream(Vec<StreamPiece>),
    /// These bytes, head included.
    Raw(String),
}

impl Reply {
    /// A stream of these events, each in a chunk.
    pub fn of(events: Vec<String>) -> Self {
        Reply::Stream(events.into_iter().map(StreamPiece::Chunk).collect())
    }
}

#[derive(Clone, Debug)]
pub enum StreamPiece {
    Chunk(String),
    Wait(Duration),
    /// The stream stops and the connection stays open.
    Hang,
    Cut,
}

type Script = dyn Fn(&Request) -> Reply + Send + Sync;
type About = dyn Fn(&str) -> Option<Reply> + Send + Sync;

pub struct Server {
    pub url: String,
    pub state: Arc<ServerState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
pub struct ServerState {
    pub connections: AtomicUsize,
    pub asked: AtomicUsize,
    /// Connections that the client closed during an answer.
    pub cancelled: AtomicUsize,
    /// True closes the connection after every request.
    pub closes: bool,
    /// Limit of concurrent streams, if any; more wait.
    pub at_once: Option<Semaphore>,
}

impl Server {
    /// Answers prompts by `script` and queries by `about`.
    pub fn with(
        state: ServerState,
        about: impl Fn(&str) -> Option<Reply> + Send + Sync + 'static,
        script: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(state);
        let (tell, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let _ = tell.send(listener.local_addr().expect("an address"));
                let about: Arc<About> = Arc::new(about);
                let script: Arc<Script> = Arc::new(script);
                let accept = async {
                    while let Ok((stream, _)) = listener.accept().await {
                        shared.connections.fetch_add(1, SeqCst);
                        let (about, script) = (about.clone(), script.clone());
                        tokio::spawn(serve(stream, shared.clone(), about, script));
                    }
                };
                tokio::select! { () = accept => (), _ = stopped => () }
            });
        });
        let address: SocketAddr = address.recv().expect("a server");
        Server {
            url: format!("http://{address}"),
            state,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Of this dialect, with nothing wrong but what `script` answers.
    pub fn of(
        dialect: Dialect,
        script: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(
            ServerState::default(),
            move |path| about(dialect, path),
            script,
        )
    }

    /// Answers `path` with `status` and `body`, other queries and all prompts correctly.
    pub fn saying(dialect: Dialect, path: &'static str, status: u16, body: &str) -> Self {
        let body = body.to_owned();
        Self::with(
            ServerState::default(),
            move |asked| match asked == path {
                true => Some(Reply::Whole(status, body.clone())),
                false => about(dialect, asked),
            },
            move |asked| correct(dialect, asked),
        )
    }

    /// Answers every prompt as [`tokens_of`] says.
    pub fn good(dialect: Dialect) -> Self {
        Self::of(dialect, move |asked| correct(dialect, asked))
    }

    /// Answers trials without error, and other prompts by `script`.
    pub fn working(
        dialect: Dialect,
        script: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::of(dialect, move |asked| match asked.is_trial() {
            true => correct(dialect, asked),
            false => script(asked),
        })
    }

    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(
    stream: TcpStream,
    state: Arc<ServerState>,
    about: Arc<About>,
    script: Arc<Script>,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    loop {
        let mut line = String::new();
        from.read_line(&mut line).await.ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            from.read_line(&mut header).await.ok()?;
            let header = header.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(n) = header.strip_prefix("content-length: ") {
                length = n.parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await.ok()?;
        let reply = if line.starts_with("GET") {
            about(&path).unwrap_or(Reply::Whole(404, r#"{"detail":"Not Found"}"#.to_owned()))
        } else {
            script(&Request {
                body: serde_json::from_slice(&body).expect("JSON"),
                number: state.asked.fetch_add(1, SeqCst),
            })
        };
        match reply {
            Reply::Whole(status, text) => {
                let reply = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\n\r\n{text}",
                    text.len()
                );
                to.write_all(reply.as_bytes()).await.ok()?;
            }
            Reply::Raw(bytes) => to.write_all(bytes.as_bytes()).await.ok()?,
            Reply::Stream(pieces) => {
                let mut one = [0];
                tokio::select! {
                    whole = pour(&state, &mut to, &pieces) => whole?,
                    // A client sends nothing during an answer: a read returns only after a close.
                    _ = from.read(&mut one) => {
                        state.cancelled.fetch_add(1, SeqCst);
                        return None;
                    }
                }
            }
        }
        if state.closes {
            return None;
        }
    }
}

/// Writes a stream, in its turn; `None` if the connection ends with it.
async fn pour(state: &ServerState, to: &mut OwnedWriteHalf, pieces: &[StreamPiece]) -> Option<()> {
    let _permit = match &state.at_once {
        Some(at_once) => Some(at_once.acquire().await.ok()?),
        None => None,
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    to.write_all(head.as_bytes()).await.ok()?;
    for piece in pieces {
        match piece {
            StreamPiece::Chunk(text) => {
                let chunk = format!("{:x}\r\n{text}\r\n", text.len());
                to.write_all(chunk.as_bytes()).await.ok()?;
            }
            StreamPiece::Wait(time) => tokio::time::sleep(*time).await,
            StreamPiece::Hang => std::future::pending().await,
            StreamPiece::Cut => return None,
        }
    }
    to.write_all(b"0\r\n\r\n").await.ok()
}

/// The correct answer to a prompt: 1 to 40 tokens without an end of sequence.
pub fn tokens_of(prompt: &[i32], most: usize) -> Vec<i32> {
    let hash = prompt
        .iter()
        .fold(17u32, |h, id| h.wrapping_mul(31).wrapping_add(*id as u32));
    let len = (hash as usize % 40 + 1).min(most);
    let id = |k: usize| 3 + (hash as usize).wrapping_add(k * 13) % (VOCAB - 3);
    (0..len).map(|k| id(k) as i32).collect()
}

/// The stream of an answer in the dialect, with one token per event, or llama.cpp's whole answer.
pub fn answer(dialect: Dialect, asked: &Request, tokens: &[i32]) -> Reply {
    if asked.body["stream"] == false {
        let events = events(
            dialect,
            asked.prompt().len(),
            &[tokens],
            asked.finish(tokens),
        );
        let last = events.last().and_then(|event| event.strip_prefix("data: "));
        let mut whole: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
        whole["tokens"] = json!(tokens);
        return Reply::Whole(200, whole.to_string());
    }
    Reply::of(singly(dialect, asked, tokens, asked.finish(tokens)))
}

pub fn correct(dialect: Dialect, asked: &Request) -> Reply {
    answer(dialect, asked, &tokens_of(&asked.prompt(), asked.most()))
}

/// The first events of an answer of vLLM, then another piece.
pub fn begun(asked: &Request, count: usize, then: StreamPiece) -> Reply {
    let all = singly(Dialect::Vllm, asked, &[5, 6, 7], "stop");
    let some = all.into_iter().take(count).map(StreamPiece::Chunk);
    Reply::Stream(some.chain([then]).collect())
}

/// The events of an answer with one token each.
pub fn singly(dialect: Dialect, asked: &Request, tokens: &[i32], finish: &str) -> Vec<String> {
    let groups: Vec<_> = tokens.iter().map(std::slice::from_ref).collect();
    events(dialect, asked.prompt().len(), &groups, finish)
}

/// The events of an answer with one event per group of tokens.
pub fn events(dialect: Dialect, prompt: usize, groups: &[&[i32]], finish: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut so_far: Vec<i32> = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        so_far.extend_from_slice(group);
        let last = i + 1 == groups.len();
        let finish = last.then_some(finish);
        let n = so_far.len();
        let event = match dialect {
            // A chunk of vLLM 0.24, whose first one also carries the prompt's ids; the others send
            // some of these keys.
            Dialect::Vllm | Dialect::VllmGenerate | Dialect::TensorRtLlm => json!({
                "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
                "choices": [{
                    "index": 0, "text": "", "logprobs": null, "finish_reason": finish,
                    "stop_reason": null, "token_ids": group,
                    "prompt_token_ids": if i == 0 { json!(vec![1; prompt]) } else { Value::Null },
                }],
                "usage": null,
            }),
            Dialect::Sglang => sglang(&so_far, n, prompt, finish),
            Dialect::LlamaCpp => json!({
                "index": 0, "content": "x", "tokens": group, "stop": false, "id_slot": -1,
                "tokens_predicted": n, "tokens_evaluated": prompt,
            }),
        };
        all.push(format!("data: {event}\n\n"));
    }
    let usage = json!({
        "choices": [],
        "usage": {
            "prompt_tokens": prompt, "completion_tokens": so_far.len(),
            "total_tokens": prompt + so_far.len(),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    });
    match dialect {
        Dialect::Vllm | Dialect::VllmGenerate | Dialect::TensorRtLlm => {
            all.push(format!("data: {usage}\n\n"));
            all.push("data: [DONE]\n\n".to_owned());
        }
        Dialect::Sglang => all.push("data: [DONE]\n\n".to_owned()),
        Dialect::LlamaCpp => {
            let stop = if finish == "stop" { "eos" } else { "limit" };
            let end = json!({
                "index": 0, "content": "", "tokens": [], "stop": true, "id_slot": 0,
                "stop_type": stop, "stopping_word": "", "tokens_predicted": so_far.len(),
                "tokens_evaluated": prompt, "truncated": false, "timings": {"cache_n": 0},
            });
            all.push(format!("data: {end}\n\n"));
        }
    }
    all
}

/// An event of SGLang with `ids` and the count `n`.
pub fn sglang(ids: &[i32], n: usize, prompt: usize, finish: Option<&str>) -> Value {
    let reason = finish.map(|kind| match kind {
        "stop" => json!({"type": "stop", "matched": 2}),
        _ => json!({"type": "length", "length": n}),
    });
    json!({
        "text": "", "output_ids": ids,
        "meta_info": {
            "id": "1", "finish_reason": reason, "prompt_tokens": prompt, "weight_version": "d",
            "completion_tokens": n, "cached_tokens": 0, "e2e_latency": 0.1,
        },
    })
}

/// The correct responses of each server to queries.
pub fn about(dialect: Dialect, path: &str) -> Option<Reply> {
    let models = json!({"object": "list", "data": [{
        "id": "m", "object": "model", "max_model_len": 4096,
    }]});
    let vllm = "# TYPE vllm:cache_config_info gauge\n\
                vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",\
                num_gpu_blocks=\"56174\"} 1.0\n";
    let text = match (dialect, path) {
        (_, "/health") => "{}".to_owned(),
        (Dialect::LlamaCpp, "/v1/models") => json!({"data": [{
            "id": "m", "meta": {"vocab_type": 2, "n_vocab": VOCAB, "n_ctx_train": 4096},
        }]})
        .to_string(),
        (Dialect::LlamaCpp, "/props") => json!({
            "default_generation_settings": {"n_ctx": 2048}, "total_slots": 4,
        })
        .to_string(),
        (Dialect::TensorRtLlm, "/v1/models") => json!({"object": "list", "data": [{
            "id": "m", "object": "model", "owned_by": "tensorrt_llm",
        }]})
        .to_string(),
        (_, "/v1/models") => models.to_string(),
        (Dialect::Vllm | Dialect::VllmGenerate, "/metrics") => vllm.to_owned(),
        (Dialect::Sglang, "/get_server_info") => json!({
            "disable_radix_cache": true, "incremental_streaming_output": true,
            "context_length": null,
        })
        .to_string(),
        _ => return None,
    };
    Some(Reply::Whole(200, text))
}
