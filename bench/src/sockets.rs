//! `sockets`: measures plain sockets over several rails, each with a thread at either end.
//!
//! `cargo xtask bench defaults` compares the library with this command for large payloads: plain
//! sockets use as many connections and threads, without the library's work.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, ensure};
use fabric::os::{Congestion, process_cpu_us};
use serde_json::json;

use crate::{
    fabric::{
        meter::{Deadline, Meter, Shape},
        plain::{Client, Server, Wait},
    },
    loopback::pairs,
    write_json,
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

/// Runs one round on all rails, prints its row and writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        (1..=64).contains(&args.rails)
            && (1..=8).contains(&args.connections)
            && args.request > 0
            && args.samples > 0
            && args.in_flight > 0,
        "rails are 1 to 64, connections 1 to 8, sizes, samples and requests in flight at least 1"
    );
    let shape = Shape {
        request: args.request,
        response: 8,
        in_flight: args.in_flight * args.connections,
        connections: args.connections,
    };
    let mut rails = Vec::new();
    let samples: Arc<[u8]> = vec![1u8; args.samples * args.request].into();
    for rail in 0..args.rails {
        // Each rail begins at a different sample: rails must not read the same memory at once.
        let first = (rail * args.samples / args.rails) as u64;
        let (near, far) = pairs(args.connections, &Congestion::Auto)?
            .into_iter()
            .unzip();
        rails.push((
            Client::new(shape, Wait::Sleep, (samples.clone(), first), near)?,
            Server::new(shape, Wait::Sleep, far)?,
        ));
    }
    let stop = AtomicBool::new(false);
    let cpu = process_cpu_us();
    let deadline = Deadline::after_ms(args.ms);
    let (answered, cpu) = thread::scope(|scope| {
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for (client, server) in &mut rails {
            servers.push(scope.spawn(|| server.serve(&stop)));
            clients.push(scope.spawn(|| {
                let mut meter = Meter::new(shape.in_flight);
                client.round(deadline, &mut meter).map(|()| meter.answered)
            }));
        }
        let answered: Vec<_> = clients
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        let cpu = process_cpu_us() - cpu;
        stop.store(true, Ordering::Relaxed);
        for server in servers {
            server
                .join()
                .ok()
                .context("an answering thread panicked")??;
        }
        let answered = answered
            .into_iter()
            .map(|answered| answered.ok().context("an asking thread panicked")?);
        anyhow::Ok((answered.sum::<Result<u64>>()?, cpu))
    })?;
    let per_s = answered as f64 * 1000.0 / args.ms as f64;
    let gigabytes = answered as f64 * args.request as f64 / 1e9;
    let gb_per_s = per_s * args.request as f64 / 1e9;
    let cpu_s_per_gb = cpu / 1e6 / gigabytes;
    println!(
        "{} rails x {}: {per_s:.0}/s, {gb_per_s:.2} GB/s, {cpu_s_per_gb:.2} CPU s/GB",
        args.rails, args.connections
    );
    let row = json!({
        "rails": args.rails, "connections": args.connections, "in_flight": args.in_flight,
        "per_s": per_s, "gb_per_s": gb_per_s, "cpu_s_per_gb": cpu_s_per_gb,
    });
    args.json
        .as_deref()
        .map_or(Ok(()), |path| write_json(path, &row))
}
