//! The same exchange by libfabric's calls alone, with nothing checked: one write with data there,
//! one back, or only there, as its own `fi_rma_bw` does.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fabric::{Region, ofi::OfiDeviceCfgs};
use ofi::{Depths, Domain, Endpoint, Memory, Mr, Ofi, Outcome, Place, RemoteRegion, Target, Write};

use super::{Round, cpu_us, fail, pin};

struct Whole(Region);

// SAFETY: the region stays mapped as long as it lives, and nobody makes references to its bytes.
unsafe impl Memory for Whole {
    fn addr(&self) -> NonNull<u8> {
        NonNull::new(self.0.base()).unwrap_or(NonNull::dangling())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

struct End {
    endpoint: Endpoint,
    at: RemoteRegion,
}

fn end(domain: &Arc<Domain>, window: usize, source: usize, slots: usize) -> End {
    let memory = |bytes: usize| {
        let region = Region::new(bytes.max(1)).unwrap_or_else(|e| fail(&e));
        // SAFETY: nobody else knows it yet.
        if let Ok(bytes) = unsafe { region.bytes_mut(0, bytes) } {
            bytes.fill(1);
        }
        Arc::new(Whole(region))
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
    End { endpoint, at }
}

impl End {
    /// Posts a write of `len` bytes to slot `slot` of `to`; false where there was no room.
    fn write(&self, to: RemoteRegion, slot: usize, len: usize, data: Option<u64>) -> bool {
        let write = Write {
            send: slot,
            source: 0,
            offset: slot * len,
            len,
            target: Target {
                addr: to.addr + (slot * len) as u64,
                key: to.key,
            },
            data,
        };
        match self.endpoint.write(&write) {
            Ok(()) => true,
            Err(e) if e.is_again() => false,
            Err(e) => fail(&e),
        }
    }

    /// Slots of what came, and sends that are over.
    fn poll(&self, came: &mut Vec<usize>, sent: &mut Vec<usize>) -> usize {
        let poll = self.endpoint.poll(&mut |c| match c.outcome {
            Outcome::Arrived { data, .. } => came.push(data as usize),
            Outcome::Sent { send } => sent.push(send),
        });
        poll.unwrap_or_else(|e| fail(&e))
    }
}

/// Exchanges for a while; `answer` is 0 for none.
pub fn run(nic: &OfiDeviceCfgs, size: usize, answer: usize, slots: usize, time: Duration) -> Round {
    let ofi = Ofi::load().unwrap_or_else(|e| fail(&e));
    let place = Place {
        provider: nic.provider.clone(),
        domain: nic.domain.clone(),
        address: nic.address.clone(),
    };
    let info = ofi.find(&place).unwrap_or_else(|e| fail(&e));
    let domains = [0, 1].map(|_| Domain::open(&info).unwrap_or_else(|e| fail(&e)));
    let near = end(&domains[0], answer, size, slots);
    let far = end(&domains[1], size, answer, slots);
    let addresses = [&near, &far].map(|e| e.endpoint.address().unwrap_or_else(|e| fail(&e)));
    near.endpoint
        .introduce(&addresses[1])
        .unwrap_or_else(|e| fail(&e));
    far.endpoint
        .introduce(&addresses[0])
        .unwrap_or_else(|e| fail(&e));
    let (to_far, to_near) = (far.at, near.at);
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let receiver = thread::spawn(move || {
        pin(true, 1);
        let (mut came, mut waiting, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        while !stopping.load(Ordering::Relaxed) {
            if far.poll(&mut came, &mut sent) == 0 {
                thread::yield_now();
            }
            sent.clear();
            waiting.append(&mut came);
            if answer == 0 {
                waiting.clear();
            }
            while let Some(slot) = waiting.pop() {
                if !far.write(to_near, slot, answer, Some(slot as u64)) {
                    waiting.push(slot);
                    break;
                }
            }
        }
        far
    });
    pin(true, 0);
    let mut free: Vec<usize> = (0..slots).collect();
    let (mut came, mut sent) = (Vec::new(), Vec::new());
    let mut round = Round::default();
    let (mut begun, mut cpu) = (Instant::now(), cpu_us());
    let warm_up = time / 3;
    let mut warm = false;
    loop {
        if !warm && begun.elapsed() >= warm_up {
            (round, warm) = (Round::default(), true);
            (begun, cpu) = (Instant::now(), cpu_us());
        }
        if warm && begun.elapsed() >= time {
            break;
        }
        while let Some(slot) = free.pop() {
            let data = (answer > 0).then_some(slot as u64);
            if !near.write(to_far, slot, size, data) {
                free.push(slot);
                break;
            }
            round.posts += 1;
        }
        round.completions += near.poll(&mut came, &mut sent) as u64;
        round.looks += 1;
        let over = if answer > 0 { &mut came } else { &mut sent };
        if over.is_empty() {
            thread::yield_now();
        }
        round.exchanges += over.len() as u64;
        free.append(over);
        came.clear();
        sent.clear();
    }
    (round.seconds, round.cpu_us) = (begun.elapsed().as_secs_f64(), cpu_us() - cpu);
    // `ofi_rxm` does not survive an end in the middle of a write that brings data.
    while free.len() < slots {
        near.poll(&mut came, &mut sent);
        free.append(if answer > 0 { &mut came } else { &mut sent });
        came.clear();
        sent.clear();
    }
    stop.store(true, Ordering::Relaxed);
    drop(receiver.join());
    round
}
