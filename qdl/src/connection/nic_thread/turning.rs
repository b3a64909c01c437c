//! The loop itself.

use std::{
    os::fd::RawFd,
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use super::{
    NicThreadCfgs, NicWork, Turn,
    crew::{Balance, Load, Moves, WINDOW_NS},
    handing::{Crew, Worked},
    handle::{ASLEEP, AWAKE, Thread, WAKER},
    naps::Naps,
    spin::{Wait, Yields},
};
use crate::{
    clock::now_ns,
    fabric::Armed,
    os::{OwnWait, sleep_punctually},
};

/// A thread's looks at how much of its time it is at work.
struct Window {
    balance: Balance,
    began_ns: u64,
    worked_before: u64,
    wait: Option<OwnWait>,
    waited_before: u64,
}

impl Window {
    /// It is over: parts of its time in which the thread was at work, and waited for a core.
    fn over(&mut self, now: u64, worked: u64) -> (f64, f64) {
        let spent = now.saturating_sub(self.began_ns) as f64;
        let busy = (worked - self.worked_before) as f64 / spent;
        let waited = self.wait.as_ref().and_then(OwnWait::ns);
        let waited = waited.unwrap_or(self.waited_before);
        let part = waited.saturating_sub(self.waited_before) as f64 / spent;
        (self.began_ns, self.worked_before, self.waited_before) = (now, worked, waited);
        (busy, part)
    }
}

/// What a NIC thread does from its start to its end.
pub(super) fn run<W: NicWork>(
    cfgs: &NicThreadCfgs,
    me: usize,
    crew: &Crew<W>,
    mut poll: Poll,
    mut works: Vec<Worked<W>>,
) {
    let shared = &crew.threads[me];
    let mut events = Events::with_capacity(256);
    let mut now = now_ns();
    let mut idle_since = now;
    let mut next_tick = now + cfgs.tick_ns;
    let mut yields = Yields::new();
    let mut naps = Naps::new();
    // Where it is refused naps are late, and shorter for it.
    let _ = sleep_punctually();
    let mut worked = 0;
    let moves = crew.moves != Moves::Never;
    let wait = moves.then(OwnWait::of_this_thread).flatten();
    let waited_before = wait.as_ref().and_then(OwnWait::ns).unwrap_or(0);
    let mut window = Window {
        balance: Balance::new(),
        began_ns: now,
        worked_before: 0,
        wait,
        waited_before,
    };
    let shares = works.iter().filter(|w| w.work.is_in_use()).count();
    shared.load.set(Load { shares, busy: 0.0 });
    loop {
        for mut given in crew.mail[me].take() {
            given.work.descriptors(&mut |fd| register(&poll, fd));
            works.push(given);
        }
        let mut turn = Turn::Idle;
        let mut ended = false;
        works.retain_mut(|w| match w.work.turn(now) {
            Turn::Busy => {
                turn = Turn::Busy;
                true
            }
            Turn::Idle => true,
            Turn::Stop => {
                ended = true;
                false
            }
        });
        for w in &mut works {
            w.work.new_descriptors(&mut |fd| register(&poll, fd));
        }
        if ended && !crew.over.swap(true, Ordering::SeqCst) {
            // Those that have nothing are told by nobody else.
            crew.wake_all();
        }
        if crew.given_up.load(Ordering::Relaxed) || (works.is_empty() && crew.is_done(me)) {
            return;
        }
        let began = std::mem::replace(&mut now, now_ns());
        if turn == Turn::Busy {
            worked += now.saturating_sub(began);
            shared.worked_ns.store(worked, Ordering::Relaxed);
        }
        if now >= next_tick {
            works.iter_mut().for_each(|w| w.work.tick(now));
            next_tick = now + cfgs.tick_ns;
        }
        let spent = now.saturating_sub(window.began_ns);
        if moves && spent >= WINDOW_NS {
            let parts = window.over(now, worked);
            crew.balance(me, &mut window.balance, &poll, &mut works, now, parts);
        }
        let wait = cfgs.spin.wait(now - idle_since);
        if turn == Turn::Idle
            && wait == Wait::Yield
            && !cfgs.spin.never_sleeps()
            && nap(shared, &works, &mut naps, &mut now)
        {
            continue;
        }
        let wait = yields.wait(wait, now);
        match turn {
            Turn::Busy => idle_since = now,
            Turn::Idle | Turn::Stop if wait.pause() => {
                // What another thread had the core for was no work of this one's.
                if wait == Wait::Yield {
                    let before = std::mem::replace(&mut now, now_ns());
                    yields.ran(before, now);
                }
            }
            Turn::Idle | Turn::Stop => {
                events.clear();
                shared.state.store(ASLEEP, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                // All of them, whatever the others say: one that was passed over would wake nobody.
                let ready = works.iter_mut().filter_map(|w| {
                    let armed = w.work.arm();
                    (armed == Armed::Ready).then_some(())
                });
                let ready = ready.count();
                let something = crew.mail[me].has.load(Ordering::SeqCst)
                    || (works.is_empty() && crew.over.load(Ordering::SeqCst))
                    || crew.given_up.load(Ordering::SeqCst);
                if ready == 0 && !something {
                    shared.sleeps.fetch_add(1, Ordering::Relaxed);
                    let patience = next_tick.saturating_sub(now).max(1000);
                    // Without a share there is nothing to look after. An interrupted sleep is a
                    // short one.
                    let patience = (!works.is_empty()).then(|| Duration::from_nanos(patience));
                    let _ = poll.poll(&mut events, patience);
                }
                shared.state.store(AWAKE, Ordering::SeqCst);
                now = now_ns();
                for e in events.iter().filter(|e| e.is_readable()) {
                    if e.token() != WAKER {
                        let fd = e.token().0 as RawFd;
                        works.iter_mut().for_each(|w| w.work.woken_by(fd));
                    }
                }
                // A tick alone is no reason to spin again.
                if !events.is_empty() {
                    idle_since = now;
                }
            }
        }
    }
}

/// Sleeps for a while, whatever comes, where what comes by none of these has to be seen to sooner.
/// Apart from the loop, which is not to be the slower for it.
#[cold]
#[inline(never)]
fn nap<W: NicWork>(thread: &Thread, works: &[Worked<W>], naps: &mut Naps, now: &mut u64) -> bool {
    let used = works.iter().filter(|w| w.work.is_in_use());
    let patience = used.map(|w| w.work.patience_ns()).min();
    let Some(ns) = naps.next(patience.unwrap_or(0)) else {
        return false;
    };
    thread.naps_until_ns.store(*now + ns, Ordering::Relaxed);
    std::thread::sleep(Duration::from_nanos(ns));
    thread.naps_until_ns.store(0, Ordering::Relaxed);
    let began = std::mem::replace(now, now_ns());
    naps.took(ns, now.saturating_sub(began));
    true
}

fn register(poll: &Poll, fd: RawFd) {
    let result = poll.registry().register(
        &mut SourceFd(&fd),
        Token(fd as usize),
        Interest::READABLE | Interest::WRITABLE,
    );
    if let Err(e) = result {
        // A connection that cannot be slept on is still
        // polled at every tick, and its echo shows a loss.
        tracing::warn!("NIC thread: epoll_ctl: {e}");
    }
}
