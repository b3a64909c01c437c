//! `bench live`: what it costs that a run is looked at while it goes on (`--live`, with somebody
//! who reads every event), and that its decisions are recorded (`--record 64`), beside neither.
//!
//! The whole path of `bench loadgen`, its engine answering at once, so that nothing but the way of
//! a sample takes time. The three take turns, in another order each time, and a ratio is of one
//! turn.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    loadgen::WHOLE_PATH,
    pair::{Nodes, Pair, median, write},
};

/// Turns, where nobody says how many.
const TURNS: usize = 11;
/// Between two attempts to look on: the run has to listen first.
const AGAIN: Duration = Duration::from_millis(20);
/// Offline, of so many samples that ticks come and go.
const OFFLINE: &[&str] = &[
    "--scenario",
    "offline",
    "--set",
    "min_duration=0",
    "--samples",
    "4000000",
];

/// One way of running it.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Plain,
    Live,
    Recorded,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Plain, "neither"),
    (Way::Live, "--live, looked at"),
    (Way::Recorded, "--record 64"),
];

/// Prints the table and writes `target/bench/live.json`.
///
/// # Errors
/// A program cannot be built or came to no result.
pub fn run(root: &Path, turns: Option<usize>) -> Result<()> {
    let pair = Pair::start(
        root,
        &Nodes {
            name: "live",
            ..WHOLE_PATH
        },
    )?;
    let turns = turns.unwrap_or(TURNS).max(1);
    let mut rates = [const { Vec::new() }; WAYS.len()];
    for turn in 0..turns {
        for k in 0..WAYS.len() {
            let at = (turn + k) % WAYS.len();
            rates[at].push(rate(&pair, WAYS[at].0)?);
        }
    }
    println!(
        "\n{:<20} {:>14} {:>8} {:>8} {:>8}",
        "Offline, 64 B", "samples/s", "ratio", "least", "most"
    );
    let mut rows = Vec::new();
    for (at, (_, name)) in WAYS.iter().enumerate() {
        let beside = rates[at].iter().zip(&rates[0]);
        let mut ratios: Vec<f64> = beside.map(|(of, plain)| of / plain).collect();
        let (ratio, of) = (median(&mut ratios), median(&mut rates[at].clone()));
        let ends = (ratios[0], ratios[ratios.len() - 1]);
        println!(
            "{name:<20} {of:>14.0} {ratio:>8.3} {:>8.3} {:>8.3}",
            ends.0, ends.1
        );
        rows.push(json!({"way": name, "offline_per_s": of, "ratio": ratio, "ratios": ratios}));
    }
    println!("Medians of {turns} turns; a ratio is of one turn, beside the run with neither.");
    write(root, "live", &rows)
}

fn rate(pair: &Pair, way: Way) -> Result<f64> {
    match way {
        Way::Plain => Ok(pair.run(OFFLINE)?.per_s()),
        Way::Recorded => Ok(pair.run(&[OFFLINE, &["--record", "64"]].concat())?.per_s()),
        Way::Live => {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let address = free.local_addr()?;
            drop(free);
            let over = Arc::new(AtomicBool::new(false));
            let done = over.clone();
            let looks_on = thread::spawn(move || look_on(address, &done));
            let text = address.to_string();
            let ran = pair.run(&[OFFLINE, &["--live", &text]].concat());
            over.store(true, Relaxed);
            let events = looks_on.join().ok().context("who looks on")?;
            ensure!(events > 0, "nothing was seen of the run");
            Ok(ran?.per_s())
        }
    }
}

/// Reads events until the run ends; how many.
fn look_on(at: std::net::SocketAddr, over: &AtomicBool) -> usize {
    let mut stream = loop {
        match TcpStream::connect(at) {
            Ok(stream) => break stream,
            Err(_) if over.load(Relaxed) => return 0,
            Err(_) => thread::sleep(AGAIN),
        }
    };
    let request = format!("GET /events HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let mut text = Vec::new();
    if stream.write_all(request.as_bytes()).is_ok() {
        // A run that is killed resets it.
        let _ = stream.read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    text.matches("event: tick").count()
}
