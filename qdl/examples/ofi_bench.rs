//! What an exchange costs over a libfabric provider, chapter by chapter, beside libfabric alone and
//! beside our own TCP fabric: `cargo xtask bench ofi [PROVIDER [ADDRESS...]]`.
//!
//! A sender and a receiver, one thread each, in this process: a payload there, 8 bytes back, 32 in
//! flight on each NIC. Prints one JSON object for each row.
#![allow(clippy::expect_used)]

#[path = "ofi_bench/alone.rs"]
mod alone;

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use qdl::{
    config::{NicConfig, NicFabric, OfiKeys},
    fabric::{
        Endpoint, Event, FabricCounts, Grants, Imm, Link, Post, Region, SourceId, Window,
        ofi::{OfiCfgs, OfiConnection, OfiDevice, OfiResources},
        tcp,
    },
    wire::Stream,
};

/// Exchanges in flight on each NIC.
const SLOTS: usize = 32;
const ANSWER: u32 = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(600);

/// How a chapter is done.
#[derive(Clone, Copy)]
pub struct Way {
    name: &'static str,
    nics: usize,
    warm: bool,
    pinned: bool,
    /// Writes posted before the provider is given them.
    batch: usize,
    /// The sender looks for answers only after so many writes, or when nothing can be sent.
    look_every: usize,
}

const PLAIN: Way = Way {
    name: "one NIC, from the first write on",
    nics: 1,
    warm: false,
    pinned: false,
    batch: 1,
    look_every: 1,
};

/// The chapters, each with one thing more than the last.
fn chapters(nics: usize) -> Vec<Way> {
    let warm = Way {
        name: "warmed up",
        warm: true,
        ..PLAIN
    };
    let pinned = Way {
        name: "threads pinned",
        pinned: true,
        ..warm
    };
    let batched = Way {
        name: "posted in batches of 8",
        batch: 8,
        ..pinned
    };
    let lazy = Way {
        name: "and a look for every 8 writes",
        look_every: 8,
        ..batched
    };
    let several = Way {
        name: "and all NICs in turn",
        nics,
        ..lazy
    };
    vec![PLAIN, warm, pinned, batched, lazy, several]
}

/// What a round took.
#[derive(Clone, Copy, Default)]
pub struct Round {
    /// Exchanges that came to their end.
    pub exchanges: u64,
    /// In so long.
    pub seconds: f64,
    /// Microseconds of processor, both sides.
    pub cpu_us: f64,
    /// Writes given to the provider by the sender.
    pub posts: u64,
    /// Times that the sender let the provider work.
    pub looks: u64,
    /// What it read then.
    pub completions: u64,
}

/// Microseconds of processor that this process has used.
pub fn cpu_us() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is written by the call.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Pins this thread to a core, or to none. A thread begins where the one that spawned it was, so
/// both have to say; and how many cores there are is asked before anybody is pinned.
pub fn pin(pinned: bool, core: usize) {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
    if pinned {
        qdl::os::pin(&[core % cores]);
    } else {
        qdl::os::pin(&(0..cores).collect::<Vec<_>>());
    }
}

fn endpoint(stride: usize, peer: usize) -> Endpoint {
    let region = |bytes| Arc::new(Region::new(bytes).expect("memory"));
    let grants = Arc::new(Grants::new(SLOTS));
    Endpoint {
        window: Window::new(region(SLOTS * stride), 0, stride, grants).expect("fits"),
        sources: vec![region(SLOTS * peer)],
        peer_slots: SLOTS,
        peer_stride: peer,
        peer_stream: Stream::None,
        send_depth: 2 * SLOTS,
    }
}

/// A NIC with a connection to itself.
struct Lane {
    near: Link,
    far: Link,
    near_end: Endpoint,
    far_end: Endpoint,
}

impl Lane {
    fn over_libfabric(nic: &NicConfig, size: usize) -> Lane {
        let ends = [
            endpoint(ANSWER as usize, size),
            endpoint(size, ANSWER as usize),
        ];
        let [near, far] = [0, 1].map(|i| {
            let device = OfiDevice::open(nic).unwrap_or_else(|e| fail(&e));
            let cfgs = OfiCfgs::resolve(nic, &device, &ends[i]).unwrap_or_else(|e| fail(&e));
            let resources = OfiResources::new(device).unwrap_or_else(|e| fail(&e));
            OfiConnection::prepare(&resources, ends[i].clone(), &cfgs).unwrap_or_else(|e| fail(&e))
        });
        let (at_near, at_far) = (near.end().clone(), far.end().clone());
        let mut far = far.accept(&at_near).unwrap_or_else(|e| fail(&e));
        let mut dialling = near.dial(&at_far).unwrap_or_else(|e| fail(&e));
        while !dialling.step().unwrap_or_else(|e| fail(&e)) {
            far.rx.poll(1, &mut |_| {});
        }
        let [near_end, far_end] = ends;
        Lane {
            near: dialling.link(),
            far,
            near_end,
            far_end,
        }
    }

    fn over_tcp(size: usize) -> Lane {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let far = listener.accept().expect("accepted").0;
        let [near_end, far_end] = [
            endpoint(ANSWER as usize, size),
            endpoint(size, ANSWER as usize),
        ];
        let cfgs = tcp::TcpCfgs::default();
        Lane {
            near: tcp::link(near, near_end.clone(), &cfgs).expect("linked"),
            far: tcp::link(far, far_end.clone(), &cfgs).expect("linked"),
            near_end,
            far_end,
        }
    }
}

fn fail(e: &dyn std::fmt::Display) -> ! {
    eprintln!("error: {e}");
    std::process::exit(1)
}

fn write(slot: u16, use_count: u16, stride: usize, len: u32) -> Post {
    Post {
        source: SourceId(0),
        offset: usize::from(slot) * stride,
        len,
        at: 0,
        imm: Imm::new(slot, use_count),
    }
}

/// Answers whatever comes, until told to stop. A thread that finds nothing to do lets others have
/// its core, as a NIC thread does.
fn answer(lanes: &mut [(Link, Endpoint)], stop: &AtomicBool) {
    let mut came = Vec::with_capacity(SLOTS);
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (link, end) in &mut *lanes {
            link.rx.poll(SLOTS, &mut |e| {
                if let Event::Arrived { imm, .. } = e {
                    came.push(imm);
                }
            });
            let any = !came.is_empty();
            idle &= !any;
            for imm in came.drain(..) {
                end.window.grants().open(imm.slot());
                let post = write(imm.slot(), imm.use_count(), ANSWER as usize, ANSWER);
                link.tx.post(&post).expect("room");
            }
            if any || link.tx.retired() < link.tx.posted() {
                let _ = link.tx.flush();
            }
        }
        if idle {
            thread::yield_now();
        }
    }
}

/// The sender's side of one NIC.
struct Sender {
    link: Link,
    end: Endpoint,
    free: Vec<u16>,
    queued: usize,
    unlooked: usize,
}

impl Sender {
    fn turn(&mut self, way: &Way, size: usize) -> u64 {
        while let Some(slot) = self.free.pop() {
            let use_count = self.end.window.grants().open(slot).expect("free");
            let post = write(slot, use_count, size, size as u32);
            if self.link.tx.post(&post).is_err() {
                self.end.window.grants().revoke(slot);
                self.free.push(slot);
                break;
            }
            self.queued += 1;
            self.unlooked += 1;
            if self.queued >= way.batch {
                break;
            }
        }
        if self.queued >= way.batch || self.free.is_empty() {
            let _ = self.link.tx.flush();
            self.queued = 0;
        }
        let mut answers = 0;
        if self.unlooked >= way.look_every || self.free.is_empty() {
            self.unlooked = 0;
            let free = &mut self.free;
            self.link.rx.poll(SLOTS, &mut |e| {
                if let Event::Arrived { imm, .. } = e {
                    free.push(imm.slot());
                    answers += 1;
                }
            });
        }
        answers
    }

    fn counts(&self) -> (FabricCounts, FabricCounts) {
        (self.link.tx.counts(), self.link.rx.counts())
    }
}

/// Exchanges over these NICs for a while.
fn exchange(lanes: Vec<Lane>, way: &Way, size: usize) -> Round {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for lane in lanes {
        for slot in 0..SLOTS as u16 {
            lane.far_end.window.grants().open(slot);
        }
        near.push(Sender {
            link: lane.near,
            end: lane.near_end,
            free: (0..SLOTS as u16).collect(),
            queued: 0,
            unlooked: 0,
        });
        far.push((lane.far, lane.far_end));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, pinned) = (stop.clone(), way.pinned);
    let receiver = thread::spawn(move || {
        pin(pinned, 1);
        answer(&mut far, &stopping);
        far
    });
    pin(way.pinned, 0);
    let spin = |near: &mut Vec<Sender>, time: Duration| {
        let (begun, mut done) = (Instant::now(), 0);
        while begun.elapsed() < time {
            let before = done;
            for sender in &mut *near {
                done += sender.turn(way, size);
            }
            if done == before {
                thread::yield_now();
            }
        }
        (done, begun.elapsed().as_secs_f64())
    };
    if way.warm {
        spin(&mut near, ROUND / 3);
    }
    let sum = |near: &[Sender]| {
        let mut all = (0, 0, 0);
        for (tx, rx) in near.iter().map(Sender::counts) {
            all.0 += tx.work_requests.max(tx.writes);
            all.1 += rx.progress + rx.syscalls + tx.syscalls;
            all.2 += rx.cqes;
        }
        all
    };
    let (before, cpu) = (sum(&near), cpu_us());
    let (exchanges, seconds) = spin(&mut near, ROUND);
    let (after, cpu) = (sum(&near), cpu_us() - cpu);
    stop.store(true, Ordering::Relaxed);
    drop(receiver.join().expect("ended"));
    Round {
        exchanges,
        seconds,
        cpu_us: cpu,
        posts: after.0 - before.0,
        looks: after.1 - before.1,
        completions: after.2 - before.2,
    }
}

/// The middle one of the rounds, by speed.
fn middle(mut rounds: Vec<Round>) -> Round {
    let speed = |r: &Round| r.exchanges as f64 / r.seconds;
    rounds.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    rounds[rounds.len() / 2]
}

fn print(name: &str, size: usize, r: &Round) {
    let each = |n: f64| n / r.exchanges.max(1) as f64;
    let per_second = r.exchanges as f64 / r.seconds;
    println!(
        "{{\"name\": \"{name}\", \"bytes\": {size}, \"per_second\": {per_second:.0}, \
         \"gigabytes_per_second\": {:.3}, \"cpu_us\": {:.2}, \"posts\": {:.3}, \"looks\": {:.3}, \
         \"completions\": {:.3}}}",
        per_second * size as f64 / 1e9,
        each(r.cpu_us),
        each(r.posts as f64),
        each(r.looks as f64),
        each(r.completions as f64),
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let provider = args.next().unwrap_or_else(|| "tcp;ofi_rxm".to_owned());
    let mut places: Vec<String> = args.collect();
    if places.is_empty() {
        places = (1..=4).map(|i| format!("127.0.0.{i}")).collect();
    }
    let nics: Vec<NicConfig> = places
        .iter()
        .map(|place| {
            let address = place.parse().ok();
            NicConfig::from(NicFabric::Ofi(OfiKeys {
                provider: provider.clone(),
                domain: address.is_none().then(|| place.clone()),
                address,
                ..OfiKeys::default()
            }))
        })
        .collect();
    pin(false, 0);
    for size in [150_528usize, 64] {
        let chapters = chapters(nics.len());
        let alone = [
            "libfabric alone",
            "libfabric alone, one way",
            "our TCP fabric",
        ];
        let names: Vec<_> = chapters.iter().map(|w| w.name).chain(alone).collect();
        let mut rounds = vec![Vec::new(); names.len()];
        // In turns: what else the machine does falls on all alike.
        for _ in 0..ROUNDS {
            for (i, way) in chapters.iter().enumerate() {
                let open = |nic| Lane::over_libfabric(nic, size);
                rounds[i].push(exchange(
                    nics[..way.nics].iter().map(open).collect(),
                    way,
                    size,
                ));
            }
            let best = Way {
                nics: 1,
                ..chapters[4]
            };
            let at = chapters.len();
            rounds[at].push(alone::run(&nics[0], size, ANSWER as usize, SLOTS, ROUND));
            rounds[at + 1].push(alone::run(&nics[0], size, 0, SLOTS, ROUND));
            rounds[at + 2].push(exchange(vec![Lane::over_tcp(size)], &best, size));
        }
        for (name, rounds) in names.iter().zip(rounds) {
            print(name, size, &middle(rounds));
        }
    }
}
