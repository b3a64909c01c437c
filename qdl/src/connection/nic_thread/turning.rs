//! The loop of a NIC thread as steps, and the thread that takes them.
//!
//! ```text
//!   turn --> busy or spinning ---------------------------> turn
//!        \-> idle: announce --> arm --> ready -----> wake -> turn
//!                                   \-> sleep -----> wake -> turn
//! ```

use std::{os::fd::RawFd, time::Duration};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use super::{
    NicThreadCfgs, NicWork, Turn, arm_all,
    handle::{ASLEEP, AWAKE, Thread, WAKER},
    spin::Wait,
};
use fabric::{
    Armed,
    clock::now_ns,
    sync::{Ordering, fence},
};

/// Next step of a NIC thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// There was work: turn again at once.
    Turn,
    /// There was none: wait so, then turn again. Before [`Wait::Sleep`] come
    /// [`Turning::announce`] and [`Turning::arm`].
    Wait(Wait),
    /// All works are over.
    End,
}

/// The work of each share of one NIC thread, with the state of the thread's loop between two steps.
pub(super) struct Turning {
    cfgs: NicThreadCfgs,
    works: Vec<Box<dyn NicWork>>,
    now: u64,
    idle_since: u64,
    next_tick: u64,
    worked: u64,
}

impl Turning {
    pub(super) fn new(cfgs: NicThreadCfgs, works: Vec<Box<dyn NicWork>>) -> Self {
        let now = now_ns();
        Turning {
            works,
            now,
            idle_since: now,
            next_tick: now.saturating_add(cfgs.tick_ns),
            worked: 0,
            cfgs,
        }
    }

    /// Turns all works, and ticks them when a tick is due. Passes new descriptors to `register`.
    pub(super) fn turn(&mut self, thread: &Thread, register: &mut dyn FnMut(RawFd)) -> Next {
        let (began, mut busy) = (self.now, false);
        self.works.retain_mut(|w| {
            let turn = w.turn(began);
            busy |= turn == Turn::Busy;
            turn != Turn::Stop
        });
        if self.works.is_empty() {
            return Next::End;
        }
        for w in &mut self.works {
            w.new_descriptors(register);
        }
        let now = now_ns();
        self.now = now;
        if busy {
            self.worked += now.saturating_sub(began);
            thread.worked_ns.store(self.worked, Ordering::Relaxed);
        }
        if now >= self.next_tick {
            self.works.iter_mut().for_each(|w| w.tick(now));
            self.next_tick = now.saturating_add(self.cfgs.tick_ns);
        }
        if busy {
            self.idle_since = now;
            return Next::Turn;
        }
        Next::Wait(self.cfgs.spin.wait(now - self.idle_since))
    }

    /// Reads the clock again: time of other threads on this core is no work of this one.
    pub(super) fn yielded(&mut self) {
        self.now = now_ns();
    }

    /// Tells other threads that this one sleeps unless [`Self::arm`] finds events.
    pub(super) fn announce(thread: &Thread) {
        thread.state.store(ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Arms all works after the announcement. Returns the limit of the sleep, which ends at the
    /// next tick; `None` if the thread must not sleep.
    pub(super) fn arm(&mut self, thread: &Thread) -> Option<Duration> {
        if arm_all(self.works.iter_mut().map(|w| w.arm())) == Armed::Ready {
            return None;
        }
        thread.sleeps.fetch_add(1, Ordering::Relaxed);
        let ns = self.next_tick.saturating_sub(self.now).max(1000);
        Some(Duration::from_nanos(ns))
    }

    /// Ends a sleep, or the attempt. `is_event` is false if only the time of the tick has come;
    /// `readable` are the descriptors that ended the sleep.
    pub(super) fn wake(
        &mut self,
        thread: &Thread,
        is_event: bool,
        readable: impl Iterator<Item = RawFd>,
    ) {
        thread.state.store(AWAKE, Ordering::SeqCst);
        self.now = now_ns();
        for fd in readable {
            self.works.iter_mut().for_each(|w| w.woken_by(fd));
        }
        // A tick without events does not restart spinning.
        if is_event {
            self.idle_since = self.now;
        }
    }
}

/// Takes the steps of a NIC thread until its works are over.
pub(super) fn run(mut turning: Turning, thread: &Thread, mut poll: Poll) {
    let mut events = Events::with_capacity(256);
    loop {
        match turning.turn(thread, &mut |fd| register(&poll, fd)) {
            Next::Turn => {}
            Next::Wait(wait) if wait.pause() => {
                if wait == Wait::Yield {
                    turning.yielded();
                }
            }
            Next::Wait(_) => {
                events.clear();
                Turning::announce(thread);
                if let Some(limit) = turning.arm(thread) {
                    // Ignore an error: an interrupted sleep only ends early.
                    let _ = poll.poll(&mut events, Some(limit));
                }
                let readable = events.iter().filter(|e| e.is_readable());
                let fds = readable.map(|e| e.token()).filter(|token| *token != WAKER);
                let fds = fds.map(|token| token.0 as RawFd);
                turning.wake(thread, !events.is_empty(), fds);
            }
            Next::End => return,
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
