//! Plain sockets that carry the same samples and answers: sizes agreed beforehand, no headers, one
//! `write` and one `read` after the other, and as many connections. Each end has two threads for
//! each connection, so that one sample lands while another is hashed and its answer goes out.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use accelerator::engine::{Digest, DigestAnswers};
use anyhow::{Context, Result, ensure};
use fabric::os::Congestion;
use frontend::dataset::Dataset;
use qdl::config::{FrontendConfig, load_frontend};

use super::Row;
use crate::loopback;

/// `SO_SNDBUF`, as the configurations' own default.
const SEND_BUFFER: usize = 1 << 20;

/// What both ends know beforehand.
#[derive(Clone, clap::Args)]
pub struct Plan {
    /// The frontend's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Samples of the run
    #[arg(long)]
    samples: usize,
}

/// What goes over one connection: connections and slots of the configuration.
struct Lane {
    /// Lengths of samples and of answers, in their order.
    sizes: Vec<(usize, usize)>,
    indices: Vec<usize>,
    slots: usize,
    largest: (usize, usize),
}

fn lanes(config: &FrontendConfig, dataset: &Dataset, samples: usize) -> Result<Vec<Lane>> {
    let needs = qdl::run::SlotNeeds::of(config)?;
    let nic = &needs.nics[0];
    let answers = DigestAnswers::of(&config.model);
    let lane = |c: usize| {
        let of = (c..samples).step_by(nic.connections);
        let indices: Vec<_> = of.map(|i| i % dataset.count()).collect();
        let size = |i: &usize| {
            let len = dataset.len(*i).unwrap_or(0) as usize;
            (len, answers.len(len))
        };
        Lane {
            sizes: indices.iter().map(size).collect(),
            indices,
            slots: nic.slots,
            largest: (needs.request_bytes, needs.response_bytes),
        }
    };
    Ok((0..nic.connections).map(lane).collect())
}

/// Memory that a payload of any size lands in, all of it touched.
fn room(bytes: usize) -> Vec<u8> {
    let mut room = vec![0; bytes];
    room.fill(1);
    room
}

fn tuned(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_send_buffer_size(SEND_BUFFER)?;
    Ok(())
}

/// The far end: prints its port, serves one run, ends.
///
/// # Errors
/// Sockets.
pub fn serve(plan: &Plan) -> Result<()> {
    let config = load_frontend(&plan.config)?;
    let dataset = Dataset::open(&config.dataset, &config.model, None)?;
    let listener = loopback::listen(&Congestion::Auto)?;
    println!("port {}", listener.local_addr()?.port());
    let mut serving = Vec::new();
    for lane in lanes(&config, &dataset, plan.samples)? {
        // Pages are there before the first byte, as the accelerator's slots are.
        let slots: Vec<_> = (0..lane.slots.min(lane.sizes.len()))
            .map(|_| room(lane.largest.0))
            .collect();
        let answer = room(lane.largest.1);
        let (stream, _) = listener.accept()?;
        tuned(&stream)?;
        serving.push(thread::spawn(move || {
            answer_all(&stream, &lane, slots, answer)
        }));
    }
    for one in serving {
        one.join().expect("it does not panic")?;
    }
    Ok(())
}

fn answer_all(
    stream: &TcpStream,
    lane: &Lane,
    slots: Vec<Vec<u8>>,
    mut answer: Vec<u8>,
) -> Result<()> {
    let (free, free_slots) = mpsc::channel();
    for slot in slots {
        free.send(slot)?;
    }
    let (landed, arrivals) = mpsc::channel::<(Vec<u8>, usize, usize)>();
    thread::scope(|scope| {
        let reader = scope.spawn(move || -> Result<()> {
            let mut from = stream;
            for (sample, answer) in &lane.sizes {
                let mut slot: Vec<u8> = free_slots.recv()?;
                from.read_exact(&mut slot[..*sample])?;
                landed.send((slot, *sample, *answer))?;
            }
            Ok(())
        });
        let mut to = stream;
        for (slot, sample, len) in arrivals {
            let digest = u64::from_le_bytes(Digest::of(&slot[..sample]));
            // The last ones need no slot again.
            let _ = free.send(slot);
            DigestAnswers::fill(digest, &mut answer[..len]);
            to.write_all(&answer[..len])?;
        }
        reader.join().expect("it does not panic")
    })
}

/// One run with a process at the far end; seconds from the first byte to the last answer compared.
///
/// # Errors
/// Sockets, or a wrong answer.
pub fn run(row: &Row, samples: usize) -> Result<f64> {
    let mut peer = Command::new(std::env::current_exe()?)
        .arg("models-peer")
        .arg("--config")
        .arg(&row.frontend)
        .args(["--samples", &samples.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let timed = exchange(&mut peer, row, samples);
    if timed.is_err() {
        let _ = peer.kill();
    }
    let status = peer.wait()?;
    let seconds = timed?;
    ensure!(status.success(), "the peer of the plain sockets: {status}");
    Ok(seconds)
}

fn exchange(peer: &mut std::process::Child, row: &Row, samples: usize) -> Result<f64> {
    let mut line = String::new();
    BufReader::new(peer.stdout.take().context("piped")?).read_line(&mut line)?;
    let port: u16 = line.trim().trim_start_matches("port ").parse()?;
    let mut loaded = Vec::new();
    for index in 0..row.count {
        let mut sample = vec![0; row.dataset.len(index).unwrap_or(0) as usize];
        row.dataset.read(index, &mut sample)?;
        let digest = u64::from_le_bytes(Digest::of(&sample));
        loaded.push((sample, digest));
    }
    let loaded = Arc::new(loaded);
    let mut ready = Vec::new();
    for lane in lanes(&row.config, &row.dataset, samples)? {
        let stream = loopback::connect((Ipv4Addr::LOCALHOST, port).into(), &Congestion::Auto)?;
        tuned(&stream)?;
        let answer = room(lane.largest.1);
        ready.push((stream, lane, answer));
    }
    let began = Instant::now();
    let lanes: Vec<_> = ready
        .into_iter()
        .map(|(stream, lane, answer)| {
            let loaded = loaded.clone();
            thread::spawn(move || issue_all(&stream, &lane, &loaded, answer))
        })
        .collect();
    for lane in lanes {
        lane.join().expect("it does not panic")?;
    }
    Ok(began.elapsed().as_secs_f64())
}

fn issue_all(
    stream: &TcpStream,
    lane: &Lane,
    loaded: &[(Vec<u8>, u64)],
    mut answer: Vec<u8>,
) -> Result<()> {
    let (done, window) = mpsc::channel();
    for _ in 0..lane.slots {
        done.send(())?;
    }
    thread::scope(|scope| {
        let writer = scope.spawn(move || -> Result<()> {
            let mut to = stream;
            for index in &lane.indices {
                window.recv()?;
                to.write_all(&loaded[*index].0)?;
            }
            Ok(())
        });
        let mut from = stream;
        for (index, (_, len)) in lane.indices.iter().zip(&lane.sizes) {
            from.read_exact(&mut answer[..*len])?;
            let wrong = DigestAnswers::first_wrong(loaded[*index].1, &answer[..*len]);
            ensure!(
                wrong.is_none(),
                "sample {index}: a wrong answer from byte {wrong:?} on"
            );
            // The writer of the last ones waits for nothing more.
            let _ = done.send(());
        }
        writer.join().expect("it does not panic")
    })
}
