//! Wakes a worker that spins or sleeps, without lost wake-ups.
//!
//! A waiter reads the epoch, looks for work, and only then waits for the epoch to change. A
//! notifier publishes its work, increments the epoch, then reads the number of sleepers. Epoch and
//! number are sequentially consistent, so at least one of these orders holds:
//!
//! * The increment precedes the waiter's last check of the epoch: the waiter does not sleep.
//! * The waiter counts itself before the notifier reads the number: the notifier notifies.
//!
//! The flag `called` keeps a burst from notifying twice. The first notifier sets the flag; a waiter
//! clears it, under the lock, before and after its sleep. A notifier that finds the flag set does
//! nothing: the notified waiter will look for work again.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::lock;
use crossbeam_utils::CachePadded;
use fabric::clock;
use qdl::connection::{Spin, Wait};

/// An event count: an epoch, the number of sleepers, and a condition variable.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    epoch: CachePadded<AtomicU64>,
    sleepers: CachePadded<AtomicUsize>,
    called: AtomicBool,
    lock: Mutex<()>,
    condvar: Condvar,
}

impl EventCount {
    /// The current epoch. A waiter reads the epoch before it looks for work.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Wakes one sleeper, unless one is already being woken. Publish the work before this call.
    pub fn notify(&self) {
        self.epoch.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 && !self.called.swap(true, SeqCst) {
            // A waiter holds the lock from clearing `called` until it sleeps, so this notification
            // cannot fall in between.
            drop(lock(&self.lock));
            self.condvar.notify_one();
        }
    }

    pub fn notify_all(&self) {
        self.epoch.fetch_add(1, SeqCst);
        drop(lock(&self.lock));
        self.condvar.notify_all();
    }

    /// Waits until the epoch differs from `seen`, or until `until_ns` on [`clock::now_ns`]; may
    /// return early. Spins as `spin` says, then sleeps.
    pub fn wait(&self, seen: u64, until_ns: u64, spin: Spin) {
        let started = clock::now_ns();
        let mut now = started;
        while now < until_ns {
            let wait = spin.wait(now - started);
            if wait == Wait::Sleep {
                break;
            }
            if self.epoch() != seen {
                return;
            }
            wait.pause();
            now = clock::now_ns();
        }
        if now >= until_ns {
            return;
        }
        let mut guard = lock(&self.lock);
        self.sleepers.fetch_add(1, SeqCst);
        self.called.store(false, SeqCst);
        if self.epoch() == seen {
            guard = self
                .condvar
                .wait_timeout(guard, Duration::from_nanos(until_ns - now))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        self.sleepers.fetch_sub(1, SeqCst);
        self.called.store(false, SeqCst);
        drop(guard);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    /// A token goes back and forth between threads that sleep at once. A lost wake-up stalls a
    /// round until the deadline, which is far beyond the time limit of the test.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = 3_000;
        const FAR: u64 = 600_000_000_000;
        for waiters in [1, 3] {
            let go = Arc::new(EventCount::default());
            let back = Arc::new(EventCount::default());
            let work = Arc::new(AtomicU64::new(0));
            let done = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..waiters)
                .map(|_| {
                    let (go, back) = (Arc::clone(&go), Arc::clone(&back));
                    let (work, done) = (Arc::clone(&work), Arc::clone(&done));
                    thread::spawn(move || {
                        loop {
                            let seen = go.epoch();
                            let took = work.fetch_update(SeqCst, SeqCst, |w| w.checked_sub(1));
                            if took.is_ok() {
                                done.fetch_add(1, SeqCst);
                                back.notify();
                            } else if done.load(SeqCst) >= ROUNDS {
                                return;
                            } else {
                                go.wait(seen, clock::now_ns() + FAR, Spin::new(0));
                            }
                        }
                    })
                })
                .collect();
            for round in 1..=ROUNDS {
                work.fetch_add(1, SeqCst);
                go.notify();
                loop {
                    let seen = back.epoch();
                    if done.load(SeqCst) >= round {
                        break;
                    }
                    back.wait(seen, clock::now_ns() + FAR, Spin::new(0));
                }
            }
            go.notify_all();
            for t in threads {
                t.join().expect("a waiter ends");
            }
            assert_eq!(done.load(SeqCst), ROUNDS);
        }
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        let events = EventCount::default();
        let until = clock::now_ns() + 2_000_000;
        while clock::now_ns() < until {
            events.wait(events.epoch(), until, Spin::new(1_000_000));
        }
        assert_eq!(events.sleepers.load(SeqCst), 0);
    }
}
