//! A load generator for a gateway: many streams at once, each token checked.
//!
//! Each stream sends one request after another on one connection, with a prompt of random ids, and
//! reads the events. With `--check`, the accelerators run the engine `tokens`, whose answer follows
//! from the prompt: every token must come, in order, with no other between.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use engines::{
    config::TokensConfig,
    tokens::{Answers, answer},
};
use fabric::os::process_cpu_us;
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
};

/// Connections that a thread opens at the same time.
const OPENING: usize = 64;
/// Longest wait for the next bytes of an answer.
const SILENCE: Duration = Duration::from_secs(120);

/// Loads a gateway with streams and checks their tokens.
#[derive(Clone, Parser)]
#[command(name = "sse-load", version)]
struct Args {
    /// Address of the gateway.
    #[arg(long, default_value = "127.0.0.1:8000")]
    address: SocketAddr,
    /// Streams at once.
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Seconds of load; each stream finishes its last request.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Requests in all; 0: as many as the seconds allow.
    #[arg(long, default_value_t = 0)]
    requests: u64,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 16)]
    prompt: usize,
    /// Tokens of an answer (`max_tokens`).
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Vocabulary of the engine `tokens`, whose answers are checked; 0: no check.
    #[arg(long, default_value_t = 0)]
    check: i32,
    /// Ask for one JSON body in place of events.
    #[arg(long)]
    json: bool,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Loopback addresses to connect from: 127.0.0.1 and the next ones.
    #[arg(long, default_value_t = 1)]
    addresses: u8,
    /// Connections that are opened and say nothing.
    #[arg(long, default_value_t = 0)]
    idle: usize,
}

/// Counts of all threads.
#[derive(Default)]
struct Counts {
    issued: AtomicU64,
    good: AtomicU64,
    events: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    wrong: AtomicU64,
}

/// A thread's clocks, in microseconds.
struct Times {
    first: Histogram<u64>,
    whole: Histogram<u64>,
    gap: Histogram<u64>,
}

impl Times {
    fn new() -> Result<Self> {
        let times = || Histogram::new_with_bounds(1, 3_600_000_000, 3).context("a histogram");
        Ok(Times {
            first: times()?,
            whole: times()?,
            gap: times()?,
        })
    }
}

/// What all streams know.
struct Load {
    args: Args,
    answers: Option<Answers>,
    counts: Counts,
    end: Instant,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let settings = TokensConfig {
        min_tokens: args.tokens,
        max_tokens: Some(args.tokens),
        vocab: args.check.max(2),
        ..TokensConfig::default()
    };
    let answers = Answers::new(&settings, args.tokens).context("--check")?;
    let load = Arc::new(Load {
        answers: (args.check > 0).then_some(answers),
        counts: Counts::default(),
        end: Instant::now() + Duration::from_secs_f64(args.seconds),
        args,
    });
    let (began, cpu) = (Instant::now(), process_cpu_us());
    let threads = (0..load.args.threads.max(1)).map(|n| {
        let load = load.clone();
        thread::spawn(move || run(&load, n))
    });
    let threads: Vec<_> = threads.collect();
    let mut times = Times::new()?;
    for thread in threads {
        let own = thread.join().ok().context("a thread panicked")??;
        times.first.add(own.first)?;
        times.whole.add(own.whole)?;
        times.gap.add(own.gap)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let read = |n: &AtomicU64| n.load(Relaxed);
    let Counts {
        issued,
        good,
        events,
        refused,
        failed,
        wrong,
    } = &load.counts;
    let at = |times: &Histogram<u64>, q| times.value_at_quantile(q) as f64 / 1000.0;
    let line = json!({
        "issued": read(issued), "good": read(good), "refused": read(refused),
        "failed": read(failed), "wrong": read(wrong), "events": read(events),
        "seconds": seconds, "events_s": read(events) as f64 / seconds,
        "requests_s": read(good) as f64 / seconds,
        "ttft_p50_ms": at(&times.first, 0.5), "ttft_p99_ms": at(&times.first, 0.99),
        "gap_p50_ms": at(&times.gap, 0.5), "gap_p99_ms": at(&times.gap, 0.99),
        "gap_max_ms": times.gap.max() as f64 / 1000.0,
        "latency_p50_ms": at(&times.whole, 0.5), "latency_p99_ms": at(&times.whole, 0.99),
        "cpu_s": (process_cpu_us() - cpu) / 1e6,
    });
    println!("{line}");
    ensure!(read(failed) + read(wrong) == 0, "failed or wrong answers");
    Ok(())
}

fn run(load: &Arc<Load>, thread: usize) -> Result<Times> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = tokio::task::LocalSet::new();
    let of_thread = |all: usize| (all + load.args.threads - 1 - thread) / load.args.threads;
    let gate = Arc::new(Semaphore::new(OPENING));
    let times = std::rc::Rc::new(std::cell::RefCell::new(Times::new()?));
    let streams = of_thread(load.args.streams);
    for n in 0..streams + of_thread(load.args.idle) {
        let (load, gate, times) = (load.clone(), gate.clone(), times.clone());
        tasks.spawn_local(async move {
            let seed = (thread * 1_000_003 + n) as u64;
            let source = (seed % u64::from(load.args.addresses.max(1))) as u8 + 1;
            let opened = {
                let _permit = gate.acquire().await;
                open(load.args.address, source).await
            };
            let mut stream = match opened {
                Ok(stream) => stream,
                Err(error) => {
                    eprintln!("connect: {error:#}");
                    load.counts.failed.fetch_add(1, Relaxed);
                    return;
                }
            };
            if n >= streams {
                tokio::time::sleep_until(load.end.into()).await;
                return;
            }
            let mut random = seed + 1;
            while Instant::now() < load.end {
                let number = load.counts.issued.fetch_add(1, Relaxed);
                if load.args.requests > 0 && number >= load.args.requests {
                    load.counts.issued.fetch_sub(1, Relaxed);
                    return;
                }
                if let Err(error) = ask(&load, &mut stream, &mut random, &times).await {
                    if load.counts.failed.fetch_add(1, Relaxed) < 5 {
                        eprintln!("stream {seed}: {error:#}");
                    }
                    match open(load.args.address, source).await {
                        Ok(other) => stream = other,
                        Err(_) => return,
                    }
                }
            }
        });
    }
    runtime.block_on(tasks);
    let times = std::rc::Rc::try_unwrap(times)
        .ok()
        .context("a stream is left")?;
    Ok(times.into_inner())
}

async fn open(address: SocketAddr, source: u8) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((IpAddr::from(Ipv4Addr::new(127, 0, 0, source)), 0).into())?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a request and reads its answer.
async fn ask(
    load: &Load,
    stream: &mut TcpStream,
    random: &mut u64,
    times: &std::cell::RefCell<Times>,
) -> Result<()> {
    let vocab = load.args.check.max(1000) as u64;
    let mut next = || {
        *random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*random >> 33) % vocab
    };
    let prompt: Vec<i32> = (0..load.args.prompt).map(|_| next() as i32).collect();
    let body = json!({
        "prompt": prompt, "max_tokens": load.args.tokens, "stream": !load.args.json,
        "return_token_ids": load.args.check > 0,
    });
    let body = body.to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let began = Instant::now();
    stream.write_all(request.as_bytes()).await?;
    let expected = load
        .answers
        .as_ref()
        .map(|answers| answer(&prompt, answers));
    let mut answer = AnswerReader::new(load.args.json);
    let mut chunk = vec![0; 8 << 10];
    let mut last = began;
    while !answer.is_over {
        let read = tokio::time::timeout(SILENCE, stream.read(&mut chunk)).await;
        let read = read.context("no byte for 120 s")??;
        ensure!(
            read > 0,
            "the connection ended after {} events",
            answer.events
        );
        let before = answer.events;
        answer.add(&chunk[..read])?;
        if answer.events > before {
            let now = Instant::now();
            let us = now.duration_since(last).as_micros() as u64;
            let mut times = times.borrow_mut();
            match before {
                0 => times.first.saturating_record(us),
                _ => times.gap.saturating_record(us),
            }
            last = now;
            load.counts
                .events
                .fetch_add(answer.events - before, Relaxed);
        }
    }
    if answer.status == 429 {
        load.counts.refused.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        return Ok(());
    }
    ensure!(
        answer.status == 200,
        "status {}: {}",
        answer.status,
        answer.text()
    );
    let us = began.elapsed().as_micros() as u64;
    times.borrow_mut().whole.saturating_record(us);
    if expected.is_some_and(|expected| expected != answer.ids) {
        load.counts.wrong.fetch_add(1, Relaxed);
        bail!(
            "other tokens than the engine's: {} of them",
            answer.ids.len()
        );
    }
    load.counts.good.fetch_add(1, Relaxed);
    Ok(())
}

/// Reads an answer: status, events, their ids, and its end.
struct AnswerReader {
    bytes: Vec<u8>,
    status: u16,
    /// Length of a body that is not chunked.
    length: Option<usize>,
    is_json: bool,
    has_head: bool,
    events: u64,
    ids: Vec<i32>,
    is_over: bool,
}

impl AnswerReader {
    fn new(is_json: bool) -> Self {
        AnswerReader {
            bytes: Vec::new(),
            status: 0,
            length: None,
            is_json,
            has_head: false,
            events: 0,
            ids: Vec::new(),
            is_over: false,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes)
            .chars()
            .take(300)
            .collect()
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        if !self.has_head {
            let Some(end) = find(&self.bytes, b"\r\n\r\n") else {
                return Ok(());
            };
            let head = String::from_utf8_lossy(&self.bytes[..end]).to_ascii_lowercase();
            let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
            self.status = status.context("no status line")?;
            let length = head.lines().find_map(|l| l.strip_prefix("content-length:"));
            self.length = length.and_then(|l| l.trim().parse().ok());
            self.has_head = true;
            self.bytes.drain(..end + 4);
        }
        if let Some(length) = self.length {
            if self.bytes.len() >= length {
                self.is_over = true;
                if self.is_json && self.status == 200 {
                    self.events = 1;
                    let body = std::mem::take(&mut self.bytes);
                    self.ids(&body)?;
                }
            }
            return Ok(());
        }
        let mut from = 0;
        while let Some(end) = find(&self.bytes[from..], b"\n\n") {
            let event = self.bytes[from..from + end].to_vec();
            from += end + 2;
            let Some(data) = find(&event, b"data: ") else {
                bail!("no event: {}", String::from_utf8_lossy(&event));
            };
            let data = &event[data + 6..];
            ensure!(
                !data.starts_with(b"{\"error\""),
                "after {} events: {}",
                self.events,
                String::from_utf8_lossy(data)
            );
            if data == b"[DONE]" {
                continue;
            }
            self.events += 1;
            self.ids(data)?;
        }
        self.bytes.drain(..from);
        // The last chunk.
        self.is_over = self.bytes.ends_with(b"0\r\n\r\n");
        Ok(())
    }

    /// Adds the ids of an event.
    fn ids(&mut self, event: &[u8]) -> Result<()> {
        const KEY: &[u8] = b"\"token_ids\":[";
        let Some(at) = find(event, KEY) else {
            return Ok(());
        };
        let list = &event[at + KEY.len()..];
        let end = find(list, b"]").context("a list of ids without an end")?;
        let list = std::str::from_utf8(&list[..end])?;
        for id in list.split(',').filter(|id| !id.is_empty()) {
            self.ids.push(id.trim().parse()?);
        }
        Ok(())
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
