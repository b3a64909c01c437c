//! `sockets`: measures plain sockets over several rails, each with a thread at either end.
//!
//! `cargo xtask bench defaults` uses it as the library's baseline for large payloads: as many
//! connections and threads, without the library's work.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Result, anyhow, ensure};
use fabric::os::Congestion;
use serde::Serialize;

use crate::{
    fabric::{
        Shape,
        meter::{Deadline, Meter},
        plain::{Client, Server, Wait},
    },
    loopback::pairs,
    machine,
};

/// Measures plain sockets alone, over several rails with one thread per end.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of rails, 1 to 64, each with a thread at either end.
    #[arg(long, default_value_t = 1)]
    rails: usize,
    /// Connections of each rail, 1 to 8.
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// Size of a request, in bytes.
    #[arg(long, default_value_t = 150_528)]
    request: usize,
    /// Size of a response, in bytes.
    #[arg(long, default_value_t = 8)]
    response: usize,
    /// Number of samples to send from, shared by all rails: as many as LoadGen loads. Fewer samples
    /// may fit into a cache.
    #[arg(long, default_value_t = 1024)]
    samples: usize,
    /// Requests in flight on each connection.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Duration of the round, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    ms: u64,
    /// File for the row as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The result of all rails together.
#[derive(Debug, Serialize)]
struct Row {
    rails: usize,
    connections: usize,
    in_flight: usize,
    /// Requests per second.
    per_s: f64,
    /// Gigabytes of requests per second.
    gb_per_s: f64,
    /// CPU time of both sides for each gigabyte of requests, in seconds.
    cpu_s_per_gb: f64,
}

/// Runs one round on all rails, prints its row and writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        (1..=64).contains(&args.rails)
            && (1..=8).contains(&args.connections)
            && args.request > 0
            && args.response > 0
            && args.samples > 0
            && args.in_flight > 0,
        "rails are 1 to 64, connections 1 to 8, sizes, samples and requests in flight at least 1"
    );
    let shape = Shape {
        request: args.request,
        response: args.response,
        in_flight: args.in_flight * args.connections,
        connections: args.connections,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let samples: Arc<[u8]> = vec![1u8; args.samples * args.request].into();
    for rail in 0..args.rails {
        // Rails begin at different samples, so that they do not read the same memory at once.
        let first = (rail * args.samples / args.rails) as u64;
        let (ours, theirs) = pairs(args.connections, &Congestion::Auto)?
            .into_iter()
            .unzip();
        near.push(Client::new(
            shape,
            Wait::Sleep,
            (samples.clone(), first),
            ours,
        )?);
        far.push(Server::new(shape, Wait::Sleep, theirs)?);
    }
    let servers: Vec<_> = far
        .into_iter()
        .map(|mut s| {
            let stop = stop.clone();
            thread::spawn(move || s.serve(&stop))
        })
        .collect();
    let cpu = machine::cpu_us();
    let deadline = Deadline::after_ms(args.ms);
    let clients: Vec<_> = near
        .into_iter()
        .map(|mut c| {
            thread::spawn(move || {
                let mut meter = Meter::new(shape.in_flight);
                // Return the client: closing its connections now would be an error at the server.
                c.round(deadline, &mut meter).map(|()| (c, meter.answered))
            })
        })
        .collect();
    let ended = clients
        .into_iter()
        .map(|c| {
            c.join()
                .map_err(|_| anyhow!("a thread that asks panicked"))?
        })
        .collect::<Result<Vec<_>>>()?;
    let answered: u64 = ended.iter().map(|(_, answered)| answered).sum();
    let cpu = machine::cpu_us() - cpu;
    stop.store(true, Ordering::Relaxed);
    for s in servers {
        s.join()
            .map_err(|_| anyhow!("a thread that answers panicked"))??;
    }
    let seconds = args.ms as f64 / 1000.0;
    let gigabytes = answered as f64 * args.request as f64 / 1e9;
    let row = Row {
        rails: args.rails,
        connections: args.connections,
        in_flight: args.in_flight,
        per_s: answered as f64 / seconds,
        gb_per_s: gigabytes / seconds,
        cpu_s_per_gb: cpu / 1e6 / gigabytes,
    };
    println!(
        "{} rails x {}: {:.0}/s, {:.2} GB/s, {:.2} CPU s/GB",
        row.rails, row.connections, row.per_s, row.gb_per_s, row.cpu_s_per_gb
    );
    crate::json::write(args.json.as_deref(), &row)
}
