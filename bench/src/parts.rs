//! Answers that grow by one token at a time, in parts of the TCP fabric and over plain sockets.
//!
//! A *round* is so many answers of 128 tokens at once. Each step sends one token of each, all of
//! them with one doorbell; when a round is whole the reader asks for the next. Plain sockets send
//! eight bytes for a token, its answer's number and itself, a step in one `write`; their reader
//! puts each token where it belongs. The fabric has a header of 16 bytes for each, grants, use
//! counts, bounds and order.

use std::{
    cell::Cell,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args as ClapArgs;
use qdl::{
    clock::now_ns,
    fabric::{
        Endpoint, Event, Flushed, Grants, Imm, Link, Post, Region, SourceId, Window,
        tcp::{TcpCfgs, link},
    },
    wire::Stream,
};
use serde_json::json;

use crate::{json, machine};

/// Tokens of an answer.
const TOKENS: usize = 128;
const TOKEN_BYTES: usize = 4;
const STRIDE: usize = TOKENS * TOKEN_BYTES;
/// Bytes of a token over plain sockets.
const MESSAGE: usize = 8;
const BUFFER: usize = 1 << 20;
const PATIENCE_NS: u64 = 10_000_000_000;

/// How long, how often, how many.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Answers at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256])]
    answers: Vec<usize>,
    /// Turns of each contender.
    #[arg(long, default_value_t = 7)]
    alternations: usize,
    /// Milliseconds of a turn.
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Where the rows go.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One contender's turn: parts a second, and microseconds of both sides' CPU for each.
#[derive(Clone, Copy)]
struct Turn {
    per_s: f64,
    cpu_us: f64,
}

/// Prints the table and writes `target/bench/parts.json`.
pub fn run(args: &Args) -> Result<()> {
    println!(
        "{:>8} {:>14} {:>14} {:>7} {:>14} {:>14}",
        "answers", "fabric parts/s", "plain parts/s", "ratio", "fabric CPU us", "plain CPU us"
    );
    // Before this thread is pinned to one of them.
    let cpus = machine::two_cpus();
    let mut rows = Vec::new();
    for answers in &args.answers {
        ensure!((1..=4096).contains(answers), "answers: 1 to 4096");
        let mut turns: [Vec<Turn>; 2] = Default::default();
        for _ in 0..args.alternations.max(1) {
            turns[0].push(turn(cpus, *answers, args.ms, fabric_writer, fabric_reader)?);
            turns[1].push(turn(cpus, *answers, args.ms, plain_writer, plain_reader)?);
        }
        let ratios = turns[0].iter().zip(&turns[1]);
        let ratio = median(ratios.map(|(f, p)| f.per_s / p.per_s).collect());
        let of = |who: usize, f: fn(&Turn) -> f64| median(turns[who].iter().map(f).collect());
        let (fabric, plain) = (of(0, |t| t.per_s), of(1, |t| t.per_s));
        let (fabric_us, plain_us) = (of(0, |t| t.cpu_us), of(1, |t| t.cpu_us));
        println!(
            "{answers:>8} {fabric:>14.0} {plain:>14.0} {ratio:>7.2} {fabric_us:>14.3} {plain_us:>14.3}"
        );
        rows.push(json!({
            "answers": answers, "tokens": TOKENS, "per_s": fabric, "plain_per_s": plain,
            "ratio": ratio, "cpu_us": fabric_us, "plain_cpu_us": plain_us,
        }));
    }
    json::write(args.json.as_deref(), &rows)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One turn over a connection of its own: the writer on the second CPU, the reader here.
fn turn(
    [here, there]: [usize; 2],
    answers: usize,
    ms: u64,
    writer: fn(TcpStream, usize, &AtomicBool) -> Result<()>,
    reader: fn(TcpStream, usize, u64) -> Result<u64>,
) -> Result<Turn> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    for s in [&near, &far] {
        s.set_nodelay(true)?;
        s.set_read_timeout(Some(Duration::from_secs(10)))?;
        let s = socket2::SockRef::from(s);
        s.set_send_buffer_size(BUFFER)?;
        s.set_recv_buffer_size(BUFFER)?;
    }
    machine::pin(here)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = thread::Builder::new()
        .name("writer".to_owned())
        .spawn(move || {
            machine::pin(there)?;
            writer(far, answers, &stopped)
        })?;
    let (cpu, began) = (machine::cpu_us(), now_ns());
    let parts = reader(near, answers, began + ms * 1_000_000);
    let (took, cpu) = (now_ns() - began, machine::cpu_us() - cpu);
    stop.store(true, Ordering::Relaxed);
    // The reader's end is closed: what the writer says of that is no failure.
    let _ = thread.join().map_err(|_| anyhow!("the writer panicked"))?;
    let parts = parts? as f64;
    Ok(Turn {
        per_s: parts * 1e9 / took as f64,
        cpu_us: cpu / parts,
    })
}

fn plain_writer(mut stream: TcpStream, answers: usize, stop: &AtomicBool) -> Result<()> {
    let mut step = vec![0u8; answers * MESSAGE];
    let mut go = [0];
    while !stop.load(Ordering::Relaxed) {
        for token in 0..TOKENS as u32 {
            for (answer, message) in step.chunks_exact_mut(MESSAGE).enumerate() {
                message[..4].copy_from_slice(&(answer as u32).to_le_bytes());
                message[4..].copy_from_slice(&token.to_le_bytes());
            }
            stream.write_all(&step)?;
        }
        stream.read_exact(&mut go)?;
    }
    Ok(())
}

fn plain_reader(mut stream: TcpStream, answers: usize, until: u64) -> Result<u64> {
    let mut buffer = vec![0u8; 256 << 10];
    let (mut left, mut parts, mut whole) = (0, 0u64, 0);
    let mut output = vec![0u8; answers * STRIDE];
    let mut tokens = vec![0usize; answers];
    loop {
        let n = stream.read(&mut buffer[left..])?;
        ensure!(n > 0, "the writer is gone");
        left += n;
        let messages = left / MESSAGE;
        for message in buffer[..messages * MESSAGE].chunks_exact(MESSAGE) {
            let answer = u32::from_le_bytes([message[0], message[1], message[2], message[3]]);
            let count = tokens.get_mut(answer as usize).context("an answer")?;
            let at = answer as usize * STRIDE + *count * TOKEN_BYTES;
            output[at..at + TOKEN_BYTES].copy_from_slice(&message[4..]);
            *count += 1;
            whole += usize::from(*count == TOKENS);
        }
        parts += messages as u64;
        buffer.copy_within(messages * MESSAGE..left, 0);
        left -= messages * MESSAGE;
        if whole == answers {
            if now_ns() > until {
                return Ok(parts);
            }
            tokens.fill(0);
            whole = 0;
            stream.write_all(&[1])?;
        }
    }
}

fn window(slots: usize, stride: usize, stream: Stream) -> Result<(Window, Arc<Region>)> {
    let region = Arc::new(Region::new(slots * stride)?);
    region.prefault();
    let grants = Arc::new(Grants::new(slots));
    let window = Window::new(region.clone(), 0, stride, grants)?;
    Ok((window.in_parts(stream), region))
}

fn joined(
    stream: TcpStream,
    own: &Window,
    source: Arc<Region>,
    peer: (usize, usize, Stream),
) -> Result<Link> {
    let endpoint = Endpoint {
        window: own.clone(),
        sources: vec![source],
        peer_slots: peer.0,
        peer_stride: peer.1,
        peer_stream: peer.2,
        send_depth: 4096,
    };
    link(stream, endpoint, &TcpCfgs::default()).context("link")
}

/// Polls until `enough`; false once it is to stop.
fn until(
    link: &mut Link,
    stop: &AtomicBool,
    sink: &mut dyn FnMut(Imm, u32),
    enough: &mut dyn FnMut() -> bool,
) -> Result<bool> {
    let end = now_ns() + PATIENCE_NS;
    let mut broken = None;
    while !enough() {
        let events = link.rx.poll(256, &mut |event| match event {
            Event::Arrived { imm, len, .. } => sink(imm, len),
            Event::Control(_) => {}
            Event::Broken(b) => broken = Some(b),
        });
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if let Some(b) = broken {
            bail!("the fabric's connection broke: {b}");
        }
        ensure!(events > 0 || now_ns() < end, "nothing came for 10 s");
    }
    Ok(true)
}

fn fabric_writer(stream: TcpStream, answers: usize, stop: &AtomicBool) -> Result<()> {
    let (asked, _) = window(1, 64, Stream::None)?;
    let output = Arc::new(Region::new(answers * STRIDE)?);
    output.prefault();
    let mut link = joined(stream, &asked, output, (answers, STRIDE, Stream::All))?;
    asked.grants().open(0);
    for round in 1u64.. {
        for token in 0..TOKENS {
            for slot in 0..answers as u16 {
                let at = token * TOKEN_BYTES;
                let imm = Imm::new(slot, (round & 0x7fff) as u16);
                let post = Post {
                    source: SourceId(0),
                    offset: usize::from(slot) * STRIDE + at,
                    len: TOKEN_BYTES as u32,
                    at: at as u32,
                    imm: if token + 1 == TOKENS {
                        imm
                    } else {
                        imm.with_more()
                    },
                };
                while link.tx.room() == 0 {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    link.tx.flush()?;
                }
                link.tx.post(&post)?;
            }
            while link.tx.flush()? == Flushed::Blocked {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
        let go = Cell::new(false);
        let on = until(&mut link, stop, &mut |_, _| go.set(true), &mut || go.get())?;
        if !on {
            return Ok(());
        }
        asked.grants().open(0);
    }
    Ok(())
}

fn fabric_reader(stream: TcpStream, answers: usize, deadline: u64) -> Result<u64> {
    let (slots, _) = window(answers, STRIDE, Stream::All)?;
    let source = Arc::new(Region::new(64)?);
    let mut link = joined(stream, &slots, source, (1, 64, Stream::None))?;
    let never = AtomicBool::new(false);
    let (parts, whole) = (Cell::new(0u64), Cell::new(0));
    for round in 1u64.. {
        whole.set(0);
        for slot in 0..answers as u16 {
            slots.grants().open(slot).context("a closed grant")?;
        }
        if round > 1 {
            link.tx.post(&Post {
                source: SourceId(0),
                offset: 0,
                len: 4,
                at: 0,
                imm: Imm::new(0, ((round - 1) & 0x7fff) as u16),
            })?;
            link.tx.flush()?;
        }
        let mut took = |imm: Imm, _: u32| {
            parts.set(parts.get() + 1);
            whole.set(whole.get() + usize::from(!imm.more()));
        };
        until(&mut link, &never, &mut took, &mut || whole.get() == answers)?;
        if now_ns() > deadline {
            break;
        }
    }
    Ok(parts.get())
}
