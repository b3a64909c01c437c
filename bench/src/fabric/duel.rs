//! Runs the contenders' rounds in turn.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use fabric::clock::now_ns;

use super::{
    Args, contract,
    meter::{Deadline, Meter, Round},
    plain::{self, Wait},
    rails::Rails,
    shape::{SAMPLES, Shape},
};
use crate::{loopback::pairs, machine};

/// Time that the far side has to begin or end a round.
const PATIENCE: Duration = Duration::from_secs(10);

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Plain sockets, spinning.
    Spin,
    /// Plain sockets, sleeping.
    Sleep,
    /// The bare fabric contract.
    Fabric,
    /// The whole library.
    Qdl,
}

/// Each contender's rounds, one for each alternation.
pub type Rounds = Vec<(Contender, Vec<Round>)>;

enum Near {
    Plain(plain::Client),
    Fabric(contract::Client),
    Qdl(Rails),
}

enum Far {
    Plain(plain::Server),
    Fabric(contract::Server),
}

/// The answering thread, which serves one contender at a time.
struct FarThread {
    turns: Option<Sender<(usize, Arc<AtomicBool>)>>,
    done: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FarThread {
    fn spawn(mut sides: Vec<Far>, cpu: usize) -> Result<Self> {
        let (turns, mine) = channel::<(usize, Arc<AtomicBool>)>();
        let (tell, done) = channel();
        let thread = std::thread::Builder::new()
            .name("far".to_owned())
            .spawn(move || {
                let pinned = machine::pin(cpu).map_err(Into::into);
                if tell.send(pinned).is_err() {
                    return;
                }
                while let Ok((side, stop)) = mine.recv() {
                    let served = match &mut sides[side] {
                        Far::Plain(s) => s.serve(&stop),
                        Far::Fabric(s) => s.serve(&stop),
                    };
                    if tell.send(served).is_err() {
                        return;
                    }
                }
            })?;
        let far = FarThread {
            turns: Some(turns),
            done,
            thread: Some(thread),
        };
        far.wait()?;
        Ok(far)
    }

    fn begin(&self, side: usize) -> Result<Arc<AtomicBool>> {
        let stop = Arc::new(AtomicBool::new(false));
        let turns = self.turns.as_ref().context("the far thread")?;
        turns
            .send((side, stop.clone()))
            .map_err(|_| anyhow!("the far thread is gone"))?;
        Ok(stop)
    }

    fn wait(&self) -> Result<()> {
        self.done.recv_timeout(PATIENCE).context("the far thread")?
    }
}

impl Drop for FarThread {
    fn drop(&mut self) {
        self.turns = None;
        if let Some(t) = self.thread.take() {
            // A panic of the thread has printed its message already.
            let _ = t.join();
        }
    }
}

/// CPU time of a connected, idle pair of NIC threads, in percent of a core.
pub fn idle_percent(cpus: [usize; 2], args: &Args) -> Result<f64> {
    let shape = Shape {
        request: 64,
        response: 64,
        in_flight: 1,
        connections: 1,
    };
    let mut rails = Rails::new(shape, pairs(1, &args.congestion)?, cpus)?;
    // One exchange shows that the pair is connected.
    rails.round(Deadline::after_ms(1), &mut Meter::new(1))?;
    let (cpu, begin) = (machine::cpu_us(), now_ns());
    std::thread::sleep(Duration::from_secs(args.idle_s));
    let (cpu, took) = (machine::cpu_us() - cpu, now_ns() - begin);
    Ok(cpu * 1e5 / took as f64)
}

/// Alternations before all contenders reconnect. A connection keeps the kernel's estimates (a
/// window, a false loss), which must not decide a row.
const ALTERNATIONS_OF_A_SET: usize = 3;

/// Runs all alternations of a shape.
pub fn measure(shape: Shape, cpus: [usize; 2], args: &Args) -> Result<Rounds> {
    let mut all = Rounds::new();
    let mut left = args.alternations;
    while left > 0 {
        let n = left.min(ALTERNATIONS_OF_A_SET);
        let rounds = set(shape, cpus, args, n)?;
        if all.is_empty() {
            all = rounds;
        } else {
            for (mine, (_, more)) in all.iter_mut().zip(rounds) {
                mine.1.extend(more);
            }
        }
        left -= n;
    }
    Ok(all)
}

/// Connects all contenders and runs some alternations.
fn set(shape: Shape, cpus: [usize; 2], args: &Args, alternations: usize) -> Result<Rounds> {
    let contenders = [
        (Contender::Spin, "spin"),
        (Contender::Sleep, "sleep"),
        (Contender::Fabric, "fabric"),
        (Contender::Qdl, "qdl"),
    ];
    let chosen = contenders
        .into_iter()
        .filter(|(c, name)| *c == Contender::Spin || args.contenders.iter().any(|a| a == name))
        .map(|(c, _)| c);
    let (mut near, mut far, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for contender in chosen {
        let pairs = pairs(shape.connections, &args.congestion)?;
        if contender == Contender::Qdl {
            near.push(Near::Qdl(Rails::new(shape, pairs, cpus)?));
        } else {
            let (a, b): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let wait = match contender {
                Contender::Sleep => Wait::Sleep,
                _ => Wait::Spin,
            };
            if contender == Contender::Fabric {
                near.push(Near::Fabric(contract::Client::new(shape, a)?));
                far.push(Far::Fabric(contract::Server::new(shape, b)?));
            } else {
                let samples = (vec![1u8; SAMPLES * shape.request].into(), 0);
                near.push(Near::Plain(plain::Client::new(shape, wait, samples, a)?));
                far.push(Far::Plain(plain::Server::new(shape, wait, b)?));
            }
        }
        names.push(contender);
    }
    machine::pin(cpus[0]).context("pin")?;
    let far = FarThread::spawn(far, cpus[1])?;
    let mut rounds: Rounds = names.iter().map(|c| (*c, Vec::new())).collect();
    // The first alternation is the warm-up.
    for alternation in 0..=alternations {
        for i in 0..near.len() {
            // Rotate the order, so that no contender always runs after the same one.
            let side = (i + alternation) % near.len();
            let ms = if alternation == 0 { 10 } else { args.round_ms };
            let end = (ms, args.samples);
            let round = one(&mut near[side], side, &far, shape, end)?;
            if alternation > 0 {
                rounds[side].1.push(round);
            }
        }
    }
    if std::env::var_os("QDL_BENCH_COUNTS").is_some() {
        for n in &near {
            match n {
                Near::Qdl(rails) => println!("{}", rails.counts()),
                Near::Fabric(c) => println!("{}", c.counts()),
                Near::Plain(_) => {}
            }
        }
    }
    Ok(rounds)
}

fn one(
    near: &mut Near,
    side: usize,
    far: &FarThread,
    shape: Shape,
    (ms, samples): (u64, Option<u64>),
) -> Result<Round> {
    let stop = match near {
        Near::Qdl(_) => None,
        _ => Some(far.begin(side)?),
    };
    let mut meter = Meter::new(shape.in_flight);
    let (cpu, begin) = (machine::cpu_us(), now_ns());
    let by_time = || Deadline::after_ms(ms);
    let deadline = samples.map_or_else(by_time, Deadline::after_samples);
    match near {
        Near::Plain(c) => c.round(deadline, &mut meter)?,
        Near::Fabric(c) => c.round(deadline, &mut meter)?,
        Near::Qdl(r) => r.round(deadline, &mut meter)?,
    }
    let took = now_ns() - begin;
    if let Some(stop) = stop {
        stop.store(true, Ordering::Relaxed);
        far.wait()?;
    }
    let cpu = machine::cpu_us() - cpu;
    ensure!(meter.answered > 0, "nothing was answered");
    Ok(Round {
        per_s: meter.answered as f64 * 1e9 / took as f64,
        p50_us: meter.quantile_us(0.5),
        p99_us: meter.quantile_us(0.99),
        cpu_us: cpu / meter.answered as f64,
    })
}
