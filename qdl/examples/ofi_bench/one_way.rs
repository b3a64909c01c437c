//! Writes there and nothing back, as `fi_rma_bw` does them: a slot is used again once its write has
//! retired.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use qdl::fabric::{Armed, Event, Flushed, Link};

use super::{Lane, ROUND, Round, SLOTS, cpu_us, pin, write};

/// What a thread does that finds nothing to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    Spin,
    /// Until its descriptor has something, or for a millisecond.
    Sleep,
}

impl Idle {
    fn idle(self, link: &mut Link, blocked: bool) {
        if self == Idle::Spin {
            std::hint::spin_loop();
        } else if link.rx.arm() == Armed::Sleep {
            let mut fd = libc::pollfd {
                fd: link.rx.fd(),
                events: libc::POLLIN | if blocked { libc::POLLOUT } else { 0 },
                revents: 0,
            };
            // SAFETY: one descriptor, which the connection keeps open.
            unsafe { libc::poll(&raw mut fd, 1, 1) };
        }
    }
}

/// Use counts go round in 15 bits.
fn following(use_count: u16) -> u16 {
    (use_count + 1) & 0x7fff
}

/// Writes for a while.
pub fn run(lane: Lane, size: usize, idle: Idle) -> Round {
    let (mut near, mut far, end) = (lane.near, lane.far, lane.far_end);
    // The first use of each slot.
    let mut uses: Vec<u16> = (0..SLOTS as u16)
        .map(|slot| end.window.grants().open(slot).expect("free"))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    let receiver = thread::spawn(move || {
        pin(true, 1);
        while !stopping.load(Ordering::Relaxed) {
            let n = far.rx.poll(SLOTS, &mut |e| match e {
                Event::Arrived { imm, .. } => {
                    end.window.grants().open(imm.slot());
                }
                other => panic!("{other:?}"),
            });
            if n == 0 {
                idle.idle(&mut far, false);
            }
        }
        far
    });
    pin(true, 0);
    let counts = |link: &Link| {
        let (tx, rx) = (link.tx.counts(), link.rx.counts());
        let posts = tx.work_requests.max(tx.writes);
        (posts, rx.progress + rx.syscalls + tx.syscalls, rx.cqes)
    };
    let mut spin = |near: &mut Link, time: Duration| {
        let (begun, before, mut next) = (Instant::now(), near.tx.retired(), near.tx.posted());
        while begun.elapsed() < time {
            let (posted, retired) = (next, near.tx.retired());
            while next - near.tx.retired() < SLOTS as u64 {
                let slot = (next % SLOTS as u64) as u16;
                let used = &mut uses[usize::from(slot)];
                near.tx
                    .post(&write(slot, *used, size, size as u32))
                    .expect("room");
                *used = following(*used);
                next += 1;
            }
            let flushed = near.tx.flush().expect("alive");
            if next == posted && near.tx.retired() == retired {
                near.rx.poll(1, &mut |e| panic!("{e:?}"));
                if flushed == Flushed::Blocked && near.tx.retired() == retired {
                    idle.idle(near, true);
                }
            }
        }
        (near.tx.retired() - before, begun.elapsed().as_secs_f64())
    };
    spin(&mut near, ROUND / 3);
    let (before, cpu) = (counts(&near), cpu_us());
    let (exchanges, seconds) = spin(&mut near, ROUND);
    let (after, cpu) = (counts(&near), cpu_us() - cpu);
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
