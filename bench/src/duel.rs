//! Runs the contenders' rounds in turn.

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use fabric::{
    clock::now_ns,
    os::{process_cpu_us, set_affinity, set_congestion},
};
use socket2::{Domain, SockRef, Socket, Type};

use crate::{
    Args, ROUND_MS, contract,
    library::Library,
    meter::{Deadline, Meter, Round, Shape},
    plain::{self, Wait},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Plain sockets, spinning.
    Spin,
    /// Plain sockets, sleeping.
    Sleep,
    /// The bare fabric contract.
    Fabric,
    Qdl,
}

/// The rounds of each contender, in the order of the alternations.
pub type Rounds = Vec<(Contender, Vec<Round>)>;

/// Makes `n` loopback connections with Reno, which every system has, and returns both ends of
/// each. BBR paces loopback and sometimes stalls both contenders.
fn reno_pairs(n: usize) -> Result<Vec<(TcpStream, TcpStream)>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Accepted connections inherit the listener's congestion control.
    set_congestion(&SockRef::from(&listener), Some("reno"))?;
    let to = listener.local_addr()?.into();
    let pair = |_| {
        let near = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        set_congestion(&near, Some("reno"))?;
        near.connect(&to)?;
        Ok((near.into(), listener.accept()?.0))
    };
    (0..n).map(pair).collect()
}

/// The client and the server of a contender. The library brings its own threads.
enum Sides {
    Plain(plain::Client, plain::Server),
    Fabric(contract::Client, contract::Server),
    Qdl(Library),
}

impl Sides {
    fn connect(contender: Contender, shape: Shape, cpus: [usize; 2]) -> Result<Self> {
        let pairs = reno_pairs(shape.connections)?;
        if contender == Contender::Qdl {
            return Ok(Sides::Qdl(Library::new(shape, pairs, cpus)?));
        }
        let (near, far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        if contender == Contender::Fabric {
            let (near, far) = (
                contract::Client::new(shape, near)?,
                contract::Server::new(shape, far)?,
            );
            return Ok(Sides::Fabric(near, far));
        }
        let wait = match contender {
            Contender::Sleep => Wait::Sleep,
            _ => Wait::Spin,
        };
        Ok(Sides::Plain(
            plain::Client::new(shape, wait, near)?,
            plain::Server::new(shape, wait, far)?,
        ))
    }

    /// Runs one round with client and server on a CPU each. Returns the round's duration in ns.
    fn round(&mut self, deadline: Deadline, meter: &mut Meter, cpus: [usize; 2]) -> Result<u64> {
        match self {
            Sides::Plain(near, far) => {
                let near = || near.round(deadline, meter);
                serve_during(cpus, |stop| far.serve(stop), near)
            }
            Sides::Fabric(near, far) => {
                let near = || near.round(deadline, meter);
                serve_during(cpus, |stop| far.serve(stop), near)
            }
            Sides::Qdl(library) => timed(|| library.round(deadline, meter)),
        }
    }
}

/// Runs `work` and returns its duration in ns.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let begin = now_ns();
    work().map(|()| now_ns() - begin)
}

/// Runs the client `near` here, and the server `far` on a thread until `near` returns. Returns the
/// client's duration in ns, without the start and the end of the server's thread.
fn serve_during(
    cpus: [usize; 2],
    far: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    near: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let stop = AtomicBool::new(false);
    // The server's thread inherits its CPU: on the client's it would wait for a spinning client.
    set_affinity(&[cpus[1]])?;
    thread::scope(|scope| {
        let far = scope.spawn(|| far(&stop));
        let pinned = set_affinity(&[cpus[0]]).map_err(Into::into);
        let client = pinned.and_then(|()| timed(near));
        stop.store(true, Ordering::Relaxed);
        let server = far.join();
        // If client and server failed, the server's error is the cause.
        server
            .map_err(|_| anyhow!("the answering thread panicked"))?
            .and(client)
    })
}

/// CPU time of two connected, idle NIC threads together, in percent of a core.
pub fn idle_percent(cpus: [usize; 2], args: &Args) -> Result<f64> {
    let shape = Shape {
        request: 64,
        response: 64,
        in_flight: 1,
        connections: 1,
    };
    let mut library = Library::new(shape, reno_pairs(1)?, cpus)?;
    // A short round shows that the two NIC threads are connected.
    library.round(Deadline::after_ms(1), &mut Meter::new(1))?;
    let (cpu, begin) = (process_cpu_us(), now_ns());
    thread::sleep(Duration::from_secs(args.idle_s));
    let (cpu, took) = (process_cpu_us() - cpu, now_ns() - begin);
    Ok(cpu * 1e5 / took as f64)
}

/// Alternations before all contenders reconnect. A connection keeps the kernel's estimates, for
/// example a congestion window after a false loss; these must not decide a row.
const ALTERNATIONS_OF_A_SET: usize = 3;

/// Runs all alternations of `shape`, with new connections for each set of alternations.
pub fn measure(shape: Shape, cpus: [usize; 2], args: &Args) -> Result<Rounds> {
    let contenders = [
        (Contender::Spin, "spin"),
        (Contender::Sleep, "sleep"),
        (Contender::Fabric, "fabric"),
        (Contender::Qdl, "qdl"),
    ];
    let is_chosen = |(contender, name): &(Contender, &str)| {
        *contender == Contender::Spin || args.contenders.iter().any(|a| a == name)
    };
    let chosen = contenders.into_iter().filter(is_chosen);
    let mut rounds: Rounds = chosen.map(|(c, _)| (c, Vec::new())).collect();
    let mut left = args.alternations;
    while left > 0 {
        let n = left.min(ALTERNATIONS_OF_A_SET);
        run_set(shape, cpus, args, n, &mut rounds)?;
        left -= n;
    }
    Ok(rounds)
}

/// Connects all contenders, runs a warm-up and then `alternations` alternations.
fn run_set(
    shape: Shape,
    cpus: [usize; 2],
    args: &Args,
    alternations: usize,
    rounds: &mut Rounds,
) -> Result<()> {
    let sides = rounds
        .iter()
        .map(|(contender, _)| Sides::connect(*contender, shape, cpus));
    let mut sides = sides.collect::<Result<Vec<_>>>()?;
    set_affinity(&[cpus[0]]).context("pin")?;
    // The first alternation is the warm-up.
    for alternation in 0..=alternations {
        for i in 0..sides.len() {
            // Rotate the order, so that no contender always runs after the same one.
            let i = (i + alternation) % sides.len();
            let ms = if alternation == 0 { 10 } else { ROUND_MS };
            let round = run_round(&mut sides[i], shape, cpus, ms, args.samples)?;
            if alternation > 0 {
                rounds[i].1.push(round);
            }
        }
    }
    if std::env::var_os("QDL_BENCH_COUNTS").is_some() {
        for contender in &sides {
            match contender {
                Sides::Qdl(library) => println!("{}", library.counts()),
                Sides::Fabric(near, _) => println!("{}", near.counts()),
                Sides::Plain(..) => {}
            }
        }
    }
    Ok(())
}

fn run_round(
    sides: &mut Sides,
    shape: Shape,
    cpus: [usize; 2],
    ms: u64,
    samples: Option<u64>,
) -> Result<Round> {
    let mut meter = Meter::new(shape.in_flight);
    let before = process_cpu_us();
    let by_time = || Deadline::after_ms(ms);
    let deadline = samples.map_or_else(by_time, Deadline::after_samples);
    let took = sides.round(deadline, &mut meter, cpus)?;
    ensure!(meter.answered > 0, "nothing was answered");
    Ok(Round {
        per_s: meter.answered as f64 * 1e9 / took as f64,
        p50_us: meter.quantile_us(0.5),
        p99_us: meter.quantile_us(0.99),
        cpu_us: (process_cpu_us() - before) / meter.answered as f64,
    })
}
