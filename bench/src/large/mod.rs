//! `large`: ways of the kernel to move large payloads over one TCP connection, in turns.
//!
//! One thread sends payloads from a set larger than any cache, another receives them into slots.
//! The first way is what the TCP fabric does (`sendmsg` from where a payload lies, `recv` to where
//! it belongs); the others are what the kernel has besides. BIG TCP is a setting of the link: run
//! this in a network namespace with and without it (`docs/large-payloads.md` has the commands).

mod plain;
mod uring;

use std::{
    net::{IpAddr, TcpListener, TcpStream},
    path::PathBuf,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use crate::machine;

/// Bytes of the payloads sent from: beyond any cache, and less than io_uring registers as one.
const PAYLOADS: usize = 256 << 20;
/// Bytes of the slots received into.
const SLOTS: usize = 16 << 20;

/// How one side does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// `sendmsg`, `recv`.
    Plain,
    /// `sendmsg` with `MSG_ZEROCOPY`, `recv`.
    Zerocopy,
    /// io_uring: `SEND` from registered memory, `recv`.
    UringSend,
    /// io_uring: `SEND_ZC` from registered buffers, `recv`.
    UringZc,
    /// `sendmsg`; io_uring: `RECV`.
    UringRecv,
}

/// How `large` is run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Ways, the first of which the others are compared with.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,zerocopy,uring-send,uring-zc,uring-recv"
    )]
    ways: Vec<Way>,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 150_528)]
    bytes: usize,
    /// Address of this machine to connect to; `::1` for the BIG TCP of kernels before 6.3.
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// Turns.
    #[arg(long, default_value_t = 7)]
    turns: usize,
    /// Gigabytes of a turn.
    #[arg(long, default_value_t = 1.0)]
    gigabytes: f64,
    /// The CPUs of sender and receiver; the first two allowed ones unless given.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Where the rows go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What one turn of one way came to.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    /// Sends that the kernel says it copied after all, of those that asked for none.
    copied: Option<f64>,
}

/// Medians of one way.
#[derive(Debug, Serialize)]
struct Row {
    way: Way,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    /// Of the first way's rate and CPU time, within one turn.
    rate_ratio: f64,
    cpu_ratio: f64,
    copied: Option<f64>,
}

/// All ways in turns; prints the table, writes the JSON.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        args.bytes > 0 && args.turns > 0 && args.gigabytes > 0.0 && !args.ways.is_empty(),
        "bytes, turns, gigabytes and ways are at least one"
    );
    let cpus = match args.cpus[..] {
        [sender, receiver] => [sender, receiver],
        _ => machine::two_cpus(),
    };
    let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); args.ways.len()];
    for _ in 0..args.turns {
        for (way, of) in args.ways.iter().zip(&mut turns) {
            of.push(turn(*way, args, cpus).with_context(|| format!("{way:?}"))?);
        }
    }
    println!(
        "{} B over one connection to {}, CPUs {cpus:?}, {} turns",
        args.bytes, args.address, args.turns
    );
    println!("way         GB/s  ratio  CPU s/GB  ratio  copied after all");
    let median = |of: &[Turn], f: &dyn Fn(usize, &Turn) -> f64| {
        let mut all: Vec<f64> = of.iter().enumerate().map(|(i, t)| f(i, t)).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let mut rows = Vec::new();
    for (way, of) in args.ways.iter().zip(&turns) {
        let first = &turns[0];
        let row = Row {
            way: *way,
            gb_per_s: median(of, &|_, t| t.gb_per_s),
            cpu_s_per_gb: median(of, &|_, t| t.cpu_s_per_gb),
            rate_ratio: median(of, &|i, t| t.gb_per_s / first[i].gb_per_s),
            cpu_ratio: median(of, &|i, t| t.cpu_s_per_gb / first[i].cpu_s_per_gb),
            copied: of[0].copied,
        };
        let copied = row
            .copied
            .map_or_else(|| "-".to_owned(), |c| format!("{:.0} %", c * 100.0));
        println!(
            "{:<11} {:>4.2}  {:>5.2}  {:>8.3}  {:>5.2}  {copied:>6}",
            format!("{way:?}"),
            row.gb_per_s,
            row.rate_ratio,
            row.cpu_s_per_gb,
            row.cpu_ratio
        );
        rows.push(row);
    }
    crate::json::write(args.json.as_deref(), &rows)
}

/// Payloads and where they go.
struct Work {
    bytes: usize,
    payloads: Box<[u8]>,
    /// How many are sent.
    count: usize,
}

fn turn(way: Way, args: &Args, [sender, receiver]: [usize; 2]) -> Result<Turn> {
    let listener = TcpListener::bind((args.address, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let theirs = listener.accept()?.0;
    for s in [&ours, &theirs] {
        let s = socket2::SockRef::from(s);
        s.set_send_buffer_size(1 << 20)?;
        s.set_recv_buffer_size(1 << 20)?;
        s.set_tcp_nodelay(true)?;
    }
    let room = |bytes: usize| (bytes / args.bytes).max(2) * args.bytes;
    let mut payloads = vec![0u8; room(PAYLOADS)].into_boxed_slice();
    payloads.fill(1);
    let count = (args.gigabytes * 1e9 / args.bytes as f64).max(1.0) as usize;
    let work = Work {
        bytes: args.bytes,
        payloads,
        count,
    };
    let all = work.bytes * work.count;
    let mut slots = vec![1u8; room(SLOTS)].into_boxed_slice();
    let (cpu, began) = (machine::cpu_us(), Instant::now());
    let far = thread::spawn(move || {
        machine::pin(receiver)?;
        match way {
            Way::UringRecv => uring::receive(&theirs, &mut slots, all),
            _ => plain::receive(&theirs, &mut slots, all),
        }
    });
    let near = thread::spawn(move || {
        machine::pin(sender)?;
        let copied = match way {
            Way::Plain | Way::UringRecv => plain::send(&ours, &work, false),
            Way::Zerocopy => plain::send(&ours, &work, true),
            Way::UringSend => uring::send(&ours, &work, false),
            Way::UringZc => uring::send(&ours, &work, true),
        };
        // Memory may go only once nobody reads it any more: with the socket.
        drop(ours);
        copied
    });
    let copied = near.join().map_err(|_| anyhow!("the sender panicked"))??;
    far.join().map_err(|_| anyhow!("the receiver panicked"))??;
    let gigabytes = all as f64 / 1e9;
    Ok(Turn {
        gb_per_s: gigabytes / began.elapsed().as_secs_f64(),
        cpu_s_per_gb: (machine::cpu_us() - cpu) / 1e6 / gigabytes,
        copied,
    })
}
