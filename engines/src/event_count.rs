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
//! nothing: the notified waiter will look for work again, and notifies if it leaves work behind.

use std::{sync::PoisonError, time::Duration};

use crossbeam_utils::CachePadded;
use fabric::{
    clock,
    sync::{
        AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering::SeqCst,
        loom_fence,
    },
};
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
        loom_fence();
        if self.sleepers.load(SeqCst) > 0 && !self.called.swap(true, SeqCst) {
            // A waiter holds the lock from clearing `called` until it sleeps, so this notification
            // cannot fall in between.
            drop(self.lock());
            self.condvar.notify_one();
        }
    }

    pub fn notify_all(&self) {
        self.epoch.fetch_add(1, SeqCst);
        drop(self.lock());
        self.condvar.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut guard = self.lock();
        self.sleepers.fetch_add(1, SeqCst);
        self.called.swap(false, SeqCst);
        loom_fence();
        if self.epoch() == seen {
            guard = self
                .condvar
                .wait_timeout(guard, Duration::from_nanos(until_ns - now))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        self.sleepers.fetch_sub(1, SeqCst);
        // A read-modify-write: what a notifier that found the flag set has published is seen.
        self.called.swap(false, SeqCst);
        drop(guard);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

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

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::{sync::Arc, thread};

    use super::*;

    /// Jobs, and the workers that wait for them.
    #[derive(Default)]
    struct Jobs {
        left: AtomicU64,
        events: EventCount,
    }

    impl Jobs {
        fn give(&self) {
            self.left.fetch_add(1, SeqCst);
            self.events.notify();
        }

        /// Takes a job, and wakes a second worker for the jobs left. Under loom a sleep has no end
        /// but a notification.
        fn take(&self) {
            loop {
                let seen = self.events.epoch();
                let left = self.left.load(SeqCst);
                if left > 0 {
                    let took = self.left.compare_exchange(left, left - 1, SeqCst, SeqCst);
                    if took.is_ok() {
                        if left > 1 {
                            self.events.notify();
                        }
                        return;
                    }
                } else {
                    self.events.wait(seen, u64::MAX, Spin::new(0));
                }
            }
        }
    }

    #[test]
    fn loom_no_notification_is_lost() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let jobs = Arc::new(Jobs::default());
            let worker = {
                let jobs = jobs.clone();
                thread::spawn(move || (0..2).for_each(|_| jobs.take()))
            };
            (0..2).for_each(|_| jobs.give());
            worker.join().expect("joined");
        });
    }

    #[test]
    fn loom_each_of_two_workers_is_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let jobs = Arc::new(Jobs::default());
            let workers = [0; 2].map(|_| {
                let jobs = jobs.clone();
                thread::spawn(move || jobs.take())
            });
            (0..2).for_each(|_| jobs.give());
            for worker in workers {
                worker.join().expect("joined");
            }
        });
    }
}
