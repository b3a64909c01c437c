//! The loop of a NIC thread.

use std::{
    os::fd::RawFd,
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use super::{
    NicThreadCfgs, NicWork, Turn, arm_all,
    handle::{ASLEEP, AWAKE, Thread, WAKER},
    spin::Wait,
};
use fabric::{Armed, clock::now_ns};

pub(super) fn run<W: NicWork>(
    cfgs: &NicThreadCfgs,
    thread: &Thread,
    mut poll: Poll,
    mut works: Vec<W>,
) {
    let mut events = Events::with_capacity(256);
    let mut now = now_ns();
    let mut idle_since = now;
    let mut next_tick = now + cfgs.tick_ns;
    let mut worked = 0;
    loop {
        let mut busy = false;
        works.retain_mut(|w| {
            let turn = w.turn(now);
            busy |= turn == Turn::Busy;
            turn != Turn::Stop
        });
        if works.is_empty() {
            return;
        }
        for w in &mut works {
            w.new_descriptors(&mut |fd| register(&poll, fd));
        }
        let began = std::mem::replace(&mut now, now_ns());
        if busy {
            worked += now.saturating_sub(began);
            thread.worked_ns.store(worked, Ordering::Relaxed);
        }
        if now >= next_tick {
            works.iter_mut().for_each(|w| w.tick(now));
            next_tick = now + cfgs.tick_ns;
        }
        if busy {
            idle_since = now;
            continue;
        }
        let wait = cfgs.spin.wait(now - idle_since);
        if wait.pause() {
            if wait == Wait::Yield {
                // Read the clock again: time of other threads on this core is no work of this one.
                now = now_ns();
            }
            continue;
        }
        events.clear();
        thread.state.store(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if arm_all(works.iter_mut().map(NicWork::arm)) == Armed::Sleep {
            thread.sleeps.fetch_add(1, Ordering::Relaxed);
            let ns = next_tick.saturating_sub(now).max(1000);
            // Ignore an error: an interrupted sleep only ends early.
            let _ = poll.poll(&mut events, Some(Duration::from_nanos(ns)));
        }
        thread.state.store(AWAKE, Ordering::SeqCst);
        now = now_ns();
        for e in events.iter().filter(|e| e.is_readable()) {
            if e.token() != WAKER {
                let fd = e.token().0 as RawFd;
                works.iter_mut().for_each(|w| w.woken_by(fd));
            }
        }
        // A tick without events does not restart spinning.
        if !events.is_empty() {
            idle_since = now;
        }
    }
}

fn register(poll: &Poll, fd: RawFd) {
    let result = poll.registry().register(
        &mut SourceFd(&fd),
        Token(fd as usize),
        Interest::READABLE | Interest::WRITABLE,
    );
    if let Err(e) = result {
        // Without epoll, each tick still polls the connection, and its echo detects a loss.
        tracing::warn!("NIC thread: epoll_ctl: {e}");
    }
}
