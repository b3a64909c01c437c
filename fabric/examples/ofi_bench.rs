//! Cost of an exchange over a libfabric provider, beside libfabric alone and the TCP fabric:
//! `cargo xtask bench ofi [PROVIDER [DOMAIN or ADDRESS]]`.
//!
//! A sender and a receiver, one thread each, in this process: a payload there, 8 bytes back, 32 in
//! flight. Prints one JSON object for each row.
#![allow(clippy::expect_used)]

#[path = "ofi_bench/alone.rs"]
mod alone;

use std::{
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use fabric::{
    Endpoint, Event, Imm, Link, Post,
    ofi::{NicAddress, OfiCfgs, OfiConnection, OfiDevice, OfiDeviceCfgs, OfiResources},
    os::process_cpu_us,
    tcp, testkit,
};

const SLOTS: usize = 32;
const ANSWER: u32 = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(600);

#[derive(Clone, Copy, Default)]
struct Round {
    /// Completed exchanges.
    exchanges: u64,
    seconds: f64,
    /// CPU time in microseconds, both sides.
    cpu_us: f64,
    /// Writes handed to the provider by the sender.
    posts: u64,
    /// Polls by the sender.
    looks: u64,
    /// Completions that those polls read.
    completions: u64,
}

fn fail(e: &dyn std::fmt::Display) -> ! {
    eprintln!("error: {e}");
    std::process::exit(1)
}

fn endpoint(stride: usize, peer: usize) -> Endpoint {
    Endpoint {
        sources: testkit::endpoint(SLOTS, peer, 0).sources,
        peer_stride: peer,
        ..testkit::endpoint(SLOTS, stride, 2 * SLOTS)
    }
}

/// Endpoints of the sender and the receiver.
fn endpoints(size: usize) -> [Endpoint; 2] {
    let answer = ANSWER as usize;
    [endpoint(answer, size), endpoint(size, answer)]
}

fn over_libfabric(nic: &OfiDeviceCfgs, size: usize) -> [(Link, Endpoint); 2] {
    let ends = endpoints(size);
    let [near, far] = [0, 1].map(|i| {
        let device = OfiDevice::open(nic).unwrap_or_else(|e| fail(&e));
        let cfgs = OfiCfgs::resolve(&device, &ends[i], 64).unwrap_or_else(|e| fail(&e));
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
    [(dialling.link(), near_end), (far, far_end)]
}

fn over_tcp(size: usize) -> [(Link, Endpoint); 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let far = listener.accept().expect("accepted").0;
    let [near_end, far_end] = endpoints(size);
    let link = |stream, end: &Endpoint| tcp::link(stream, end.clone(), &Default::default());
    let near = link(near, &near_end).expect("linked");
    let far = link(far, &far_end).expect("linked");
    [(near, near_end), (far, far_end)]
}

fn write(imm: Imm, stride: usize, len: u32) -> Post {
    testkit::post(usize::from(imm.slot()) * stride, len, imm)
}

/// Answers every arrival until `stop`. An idle thread yields its core, as a NIC thread does.
fn answer(link: &mut Link, end: &Endpoint, stop: &AtomicBool) {
    let mut arrived = Vec::with_capacity(SLOTS);
    while !stop.load(Ordering::Relaxed) {
        link.rx.poll(SLOTS, &mut |e| {
            if let Event::Arrived { imm, .. } = e {
                arrived.push(imm);
            }
        });
        let idle = arrived.is_empty();
        for imm in arrived.drain(..) {
            end.window.grants().open(imm.slot());
            let post = write(imm, ANSWER as usize, ANSWER);
            link.tx.post(&post).expect("room");
        }
        if !idle || link.tx.retired() < link.tx.posted() {
            let _ = link.tx.flush();
        }
        if idle {
            thread::yield_now();
        }
    }
}

/// Posts one write, if a slot is free, and polls for answers.
fn send(link: &mut Link, end: &Endpoint, free: &mut Vec<u16>, size: usize) -> u64 {
    if let Some(slot) = free.pop() {
        let use_count = end.window.grants().open(slot).expect("free");
        let post = write(Imm::new(slot, use_count), size, size as u32);
        if link.tx.post(&post).is_err() {
            end.window.grants().revoke(slot);
            free.push(slot);
        }
    }
    let _ = link.tx.flush();
    let before = free.len();
    link.rx.poll(SLOTS, &mut |e| {
        if let Event::Arrived { imm, .. } = e {
            free.push(imm.slot());
        }
    });
    (free.len() - before) as u64
}

/// Exchanges over this connection for one round, after a warm-up.
fn exchange(
    [(mut near, near_end), (mut far, far_end)]: [(Link, Endpoint); 2],
    size: usize,
) -> Round {
    for slot in 0..SLOTS as u16 {
        far_end.window.grants().open(slot);
    }
    let mut free: Vec<u16> = (0..SLOTS as u16).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| answer(&mut far, &far_end, &stop));
        let mut spin = |near: &mut Link, time: Duration| {
            let (begun, mut done) = (Instant::now(), 0);
            while begun.elapsed() < time {
                match send(near, &near_end, &mut free, size) {
                    0 => thread::yield_now(),
                    answers => done += answers,
                }
            }
            (done, begun.elapsed().as_secs_f64())
        };
        spin(&mut near, ROUND / 3);
        let sum = |near: &Link| {
            let (tx, rx) = (near.tx.counts(), near.rx.counts());
            let looks = rx.progress + rx.syscalls + tx.syscalls;
            (tx.work_requests.max(tx.writes), looks, rx.cqes)
        };
        let (before, cpu) = (sum(&near), process_cpu_us());
        let (exchanges, seconds) = spin(&mut near, ROUND);
        let (after, cpu) = (sum(&near), process_cpu_us() - cpu);
        stop.store(true, Ordering::Relaxed);
        Round {
            exchanges,
            seconds,
            cpu_us: cpu,
            posts: after.0 - before.0,
            looks: after.1 - before.1,
            completions: after.2 - before.2,
        }
    })
}

/// Prints the round of median speed.
fn print(name: &str, size: usize, mut rounds: Vec<Round>) {
    let speed = |r: &Round| r.exchanges as f64 / r.seconds;
    rounds.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    let r = rounds[rounds.len() / 2];
    let each = |n: f64| n / r.exchanges.max(1) as f64;
    println!(
        "{{\"name\": \"{name}\", \"bytes\": {size}, \"per_second\": {:.0}, \
         \"gigabytes_per_second\": {:.3}, \"cpu_us\": {:.2}, \"posts\": {:.3}, \"looks\": {:.3}, \
         \"completions\": {:.3}}}",
        speed(&r),
        speed(&r) * size as f64 / 1e9,
        each(r.cpu_us),
        each(r.posts as f64),
        each(r.looks as f64),
        each(r.completions as f64),
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let provider = args.next().unwrap_or_else(|| "tcp;ofi_rxm".to_owned());
    let at = args.next().unwrap_or_else(|| "127.0.0.1".to_owned());
    let is_address = at.parse::<std::net::IpAddr>().is_ok();
    let nic = OfiDeviceCfgs {
        label: provider.clone(),
        at: NicAddress {
            provider,
            domain: (!is_address).then(|| at.clone()),
            address: is_address.then_some(at),
        },
        ..OfiDeviceCfgs::default()
    };
    for size in [150_528usize, 64] {
        let mut rounds: [Vec<Round>; 3] = Default::default();
        // In turns: other load of the machine falls on all alike.
        for _ in 0..ROUNDS {
            rounds[0].push(exchange(over_libfabric(&nic, size), size));
            rounds[1].push(alone::run(&nic, size, ANSWER as usize, SLOTS, ROUND));
            rounds[2].push(exchange(over_tcp(size), size));
        }
        let names = ["warmed up", "libfabric alone", "our TCP fabric"];
        for (name, rounds) in names.iter().zip(rounds) {
            print(name, size, rounds);
        }
    }
}
