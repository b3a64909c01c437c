//! A NIC thread goes to sleep while a second thread leaves work for it, in every order.

use std::sync::atomic::AtomicU32 as Plain;

use loom::{
    sync::{Arc, atomic::AtomicU32},
    thread,
};

use super::{
    by_hand::{HandTurned, Step},
    *,
};
use fabric::sync::Ordering::Relaxed;

/// Work that the second thread leaves, and the part of it that the NIC thread has seen.
#[derive(Clone)]
struct Mail {
    left: Arc<AtomicU32>,
    seen: std::sync::Arc<Plain>,
}

impl Mail {
    fn new() -> Self {
        Mail {
            left: Arc::new(AtomicU32::new(0)),
            seen: std::sync::Arc::default(),
        }
    }

    fn is_seen(&self) -> bool {
        self.seen.load(Relaxed) > 0
    }

    fn has_news(&self) -> bool {
        self.left.load(Relaxed) != self.seen.load(Relaxed)
    }

    fn thread(&self) -> (HandTurned, NicThreadHandle) {
        let work = self.clone();
        let make: MakeWork = Box::new(move |_| Box::new(work));
        let cfgs = NicThreadCfgs::new("loom", Spin::new(0), u64::MAX);
        let made = make_crew(vec![(cfgs, make)], &CrewPlan::each(1));
        let (mut handles, mut threads) = made.expect("descriptors");
        let thread = threads.pop().expect("one thread");
        (HandTurned::new(thread), handles.pop().expect("its handle"))
    }
}

impl NicWork for Mail {
    fn turn(&mut self, _: u64) -> Turn {
        if !self.has_news() {
            return Turn::Idle;
        }
        self.seen.store(1, Relaxed);
        Turn::Busy
    }
    fn arm(&mut self) -> Armed {
        match self.has_news() {
            true => Armed::Ready,
            false => Armed::Sleep,
        }
    }
    fn new_descriptors(&mut self, _: &mut dyn FnMut(RawFd)) {}
}

#[test]
fn loom_a_wake_up_is_never_lost() {
    loom::model(|| {
        let mail = Mail::new();
        let (mut nic, handle) = mail.thread();
        let left = mail.left.clone();
        let other = thread::spawn(move || {
            left.store(1, Relaxed);
            handle.wake();
        });
        while !mail.is_seen() {
            if nic.turn(&mut |_| {}) == Step::Arm {
                // Nothing but a wake-up ends the sleep.
                let sleeps = nic.arm().is_some();
                while sleeps && !nic.is_woken() {
                    thread::yield_now();
                }
                nic.wake(true, &[]);
            }
        }
        other.join().expect("joined");
    });
}

#[test]
fn loom_a_thread_that_seems_awake_sees_what_was_left_before() {
    loom::model(|| {
        let mail = Mail::new();
        let (mut nic, handle) = mail.thread();
        let left = mail.left.clone();
        let other = thread::spawn(move || {
            left.store(1, Relaxed);
            handle.is_asleep()
        });
        let mut sleeps = false;
        while !sleeps && !mail.is_seen() {
            if nic.turn(&mut |_| {}) == Step::Arm {
                sleeps = nic.arm().is_some();
                if !sleeps {
                    nic.wake(true, &[]);
                }
            }
        }
        let seemed_asleep = other.join().expect("joined");
        assert!(seemed_asleep || mail.is_seen(), "it sleeps beside its work");
    });
}
