//! The same exchange by libfabric's calls alone, with nothing checked: one write with data there,
//! one back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fabric::{Region, ofi::OfiDeviceCfgs, os::process_cpu_us};
use ofi::{Depths, Domain, Endpoint, Memory, Mr, Ofi, Outcome, RemoteRegion, Write};

use super::{Round, fail};

struct RawEnd {
    endpoint: Endpoint,
    at: RemoteRegion,
}

fn end(domain: &Arc<Domain>, window: usize, source: usize, slots: usize) -> RawEnd {
    let memory = |bytes: usize| {
        let region = Region::new(bytes.max(1)).unwrap_or_else(|e| fail(&e));
        // SAFETY: only this function knows the region.
        if let Ok(bytes) = unsafe { region.bytes_mut(0, bytes) } {
            bytes.fill(1);
        }
        let (at, len) = (region.base(), region.len());
        // SAFETY: the region stays mapped as long as it lives, and no code makes references to its
        // bytes.
        unsafe { Memory::new(at, len, Arc::new(region)) }
    };
    let key = std::process::id().into();
    let source = Mr::source(domain, memory(slots * source), key).unwrap_or_else(|e| fail(&e));
    let depths = Depths {
        sends: slots,
        receives: 0,
        completions: 4 * slots,
    };
    let mut endpoint = Endpoint::open(domain, vec![source], depths).unwrap_or_else(|e| fail(&e));
    let at = endpoint
        .expose(memory(slots * window), key + 1)
        .unwrap_or_else(|e| fail(&e));
    RawEnd { endpoint, at }
}

impl RawEnd {
    /// Posts a write of `len` bytes to slot `slot` of `to`; false where there was no room.
    fn write(&self, to: RemoteRegion, slot: usize, len: usize) -> bool {
        let write = Write {
            send: slot,
            source: 0,
            offset: slot * len,
            len,
            target: RemoteRegion {
                addr: to.addr + (slot * len) as u64,
                ..to
            },
            data: Some(slot as u64),
        };
        match self.endpoint.write(&write) {
            Ok(()) => true,
            Err(e) if e.is_again() => false,
            Err(e) => fail(&e),
        }
    }

    /// Appends the slots of arrivals.
    fn poll(&self, arrived: &mut Vec<usize>) -> usize {
        let poll = self.endpoint.poll(&mut |c| match c.outcome {
            Outcome::Arrived { data, .. } => arrived.push(data as usize),
            Outcome::Sent { .. } => {}
        });
        poll.unwrap_or_else(|e| fail(&e))
    }
}

/// Exchanges for `time`, after a warm-up.
pub(super) fn run(
    nic: &OfiDeviceCfgs,
    size: usize,
    answer: usize,
    slots: usize,
    time: Duration,
) -> Round {
    let ofi = Ofi::load(None).unwrap_or_else(|e| fail(&e));
    let info = ofi.find(&nic.at).unwrap_or_else(|e| fail(&e));
    let domains = [0, 1].map(|_| Domain::open(&info).unwrap_or_else(|e| fail(&e)));
    let near = end(&domains[0], answer, size, slots);
    let far = end(&domains[1], size, answer, slots);
    let addresses = [&near, &far].map(|e| e.endpoint.address().unwrap_or_else(|e| fail(&e)));
    for (end, peer) in [(&near, &addresses[1]), (&far, &addresses[0])] {
        end.endpoint.introduce(peer).unwrap_or_else(|e| fail(&e));
    }
    let (to_far, to_near) = (far.at, near.at);
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let receiver = thread::spawn(move || {
        let mut waiting = Vec::new();
        while !stopping.load(Ordering::Relaxed) {
            if far.poll(&mut waiting) == 0 {
                thread::yield_now();
            }
            while let Some(slot) = waiting.pop() {
                if !far.write(to_near, slot, answer) {
                    waiting.push(slot);
                    break;
                }
            }
        }
        far
    });
    let mut free: Vec<usize> = (0..slots).collect();
    let mut round = Round::default();
    let (mut begun, mut cpu) = (Instant::now(), process_cpu_us());
    let mut warm = false;
    loop {
        if !warm && begun.elapsed() >= time / 3 {
            (round, warm) = (Round::default(), true);
            (begun, cpu) = (Instant::now(), process_cpu_us());
        }
        if warm && begun.elapsed() >= time {
            break;
        }
        while let Some(slot) = free.pop() {
            if !near.write(to_far, slot, size) {
                free.push(slot);
                break;
            }
            round.posts += 1;
        }
        let before = free.len();
        round.completions += near.poll(&mut free) as u64;
        round.looks += 1;
        if free.len() == before {
            thread::yield_now();
        }
        round.exchanges += (free.len() - before) as u64;
    }
    (round.seconds, round.cpu_us) = (begun.elapsed().as_secs_f64(), process_cpu_us() - cpu);
    // `ofi_rxm` does not survive an end in the middle of a write with data.
    while free.len() < slots {
        near.poll(&mut free);
    }
    stop.store(true, Ordering::Relaxed);
    drop(receiver.join());
    round
}
