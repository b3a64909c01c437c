//! The send token: a lock whose losers leave their work to the owner and never wait.
//!
//! A thread publishes its work (in a backlog, a free slot, or a readable flag) and calls
//! [`SendToken::drive`]. The thread that gets the token does the work. A loser returns at once,
//! because the owner looks again before it releases the token. So work published before a call to
//! `drive` is done when every call has returned, and no wake-up is needed.

use fabric::sync::{AtomicBool, Mutex, Ordering, fence};

/// A value that the calling threads drive in turn.
#[derive(Debug)]
pub struct SendToken<T> {
    /// A thread has called `drive` since the owner began to look.
    again: AtomicBool,
    value: Mutex<T>,
}

impl<T: Default> Default for SendToken<T> {
    fn default() -> Self {
        SendToken::new(T::default())
    }
}

impl<T> SendToken<T> {
    /// Makes a free token.
    pub fn new(value: T) -> Self {
        SendToken {
            again: AtomicBool::new(false),
            value: Mutex::new(value),
        }
    }

    /// Runs `work`, unless a second thread holds the token: then that thread runs its own `work`
    /// once more. Returns whether `work` ran here. `work` may run several times.
    pub fn drive(&self, mut work: impl FnMut(&mut T)) -> bool {
        let mut ran = false;
        // A read-modify-write: the owner's `swap` below reads this value or a later one in the
        // flag's modification order. So it acquires what this thread published before.
        self.again.swap(true, Ordering::SeqCst);
        loop {
            // Pairs with the fence below: either this thread finds the token free, or the owner
            // sees `again`.
            fence(Ordering::SeqCst);
            let Some(mut value) = self.try_lock() else {
                return ran;
            };
            // Acquires what every thread that set the flag has published.
            self.again.swap(false, Ordering::SeqCst);
            work(&mut value);
            ran = true;
            drop(value);
            fence(Ordering::SeqCst);
            if !self.again.load(Ordering::SeqCst) {
                return ran;
            }
        }
    }

    /// Waits for the token and runs `f`. For setup and teardown, never while samples are in flight,
    /// not even to read a count: work published meanwhile waits for the next [`SendToken::drive`].
    pub fn exclusive<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        match self.value.lock() {
            Ok(mut value) => f(&mut value),
            // After a panic of an owner, teardown must still proceed.
            Err(poisoned) => f(&mut poisoned.into_inner()),
        }
    }

    #[cfg(not(qdl_loom))]
    fn try_lock(&self) -> Option<std::sync::MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    #[cfg(qdl_loom)]
    fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.value.try_lock().ok()
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        thread,
    };

    use crossbeam_queue::SegQueue;

    use super::*;

    #[test]
    fn nothing_made_known_is_left_undone() {
        let driven = Arc::new(SendToken::new(0u64));
        let backlog = Arc::new(SegQueue::new());
        let done = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let (driven, backlog, done) = (driven.clone(), backlog.clone(), done.clone());
                thread::spawn(move || {
                    for i in 0..20_000u64 {
                        backlog.push(t * 20_000 + i);
                        driven.drive(|sum| {
                            while let Some(x) = backlog.pop() {
                                *sum += x;
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        assert_eq!(done.load(Ordering::Relaxed), 80_000);
        assert_eq!(driven.exclusive(|s| *s), (0..80_000u64).sum::<u64>());
    }
}

#[cfg(all(test, qdl_loom))]
mod loom_tests {
    use loom::{
        sync::{Arc, atomic::AtomicU32},
        thread,
    };

    use super::*;

    #[test]
    fn loom_the_loser_of_the_token_is_served_by_its_owner() {
        loom::model(|| {
            let driven = Arc::new(SendToken::new(0u32));
            let backlog = Arc::new(AtomicU32::new(0));
            let send = |driven: &SendToken<u32>, backlog: &AtomicU32| {
                backlog.fetch_add(1, Ordering::Relaxed);
                driven.drive(|sent| {
                    *sent += backlog.swap(0, Ordering::Relaxed);
                    // An extra step for loom between the work and the end of the turn.
                    backlog.load(Ordering::Relaxed);
                });
            };
            let other = {
                let (driven, backlog) = (driven.clone(), backlog.clone());
                thread::spawn(move || send(&driven, &backlog))
            };
            send(&driven, &backlog);
            other.join().expect("joined");
            assert_eq!(backlog.load(Ordering::Relaxed), 0, "left in the backlog");
            assert_eq!(driven.exclusive(|s| *s), 2);
        });
    }
}
