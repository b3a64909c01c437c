//! The send token: a lock that no thread waits for. The owner does the work of all other claimants.
//!
//! A thread publishes its work (in a backlog, a free slot, or a readable flag) and claims the
//! token. The thread that owns the token does the work. Any other claimant returns at once, because
//! the owner looks again before it releases the token. So work published before a claim is done
//! when every claim has ended, and no wake-up is needed.

use fabric::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};

/// A value that one thread at a time owns.
#[derive(Debug)]
pub struct SendToken<T> {
    /// Whether a thread has claimed the token since the owner began its last pass.
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

    /// Claims the token for the work that the calling thread has published or found:
    /// `while let Some(value) = claim.next()`, where each pass does all of the work that it finds.
    pub fn claim(&self) -> Claim<'_, T> {
        // A read-modify-write: the owner's `swap` in `next` reads this value or a later one in the
        // flag's modification order. So the owner acquires what this thread published before.
        self.again.swap(true, Ordering::SeqCst);
        Claim {
            token: self,
            has_owned: false,
        }
    }

    /// Waits for the token and runs `f`. Only for setup and teardown, not even to read a count:
    /// work published meanwhile waits for the next [`SendToken::claim`].
    pub fn exclusive<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        match self.value.lock() {
            Ok(mut value) => f(&mut value),
            // After a panic of an owner, teardown must still proceed.
            Err(poisoned) => f(&mut poisoned.into_inner()),
        }
    }

    #[cfg(not(feature = "loom"))]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(std::sync::TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    #[cfg(feature = "loom")]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock().ok()
    }
}

/// A thread's claim to a token.
#[derive(Debug)]
pub struct Claim<'a, T> {
    token: &'a SendToken<T>,
    has_owned: bool,
}

impl<T> Claim<'_, T> {
    /// The value for one pass. `None` if a second thread owns the token (that thread makes one more
    /// pass), or if no thread has claimed the token since this thread's last pass.
    #[allow(clippy::should_implement_trait, reason = "the value borrows the claim")]
    pub fn next(&mut self) -> Option<MutexGuard<'_, T>> {
        if self.has_owned {
            fence(Ordering::SeqCst);
            if !self.token.again.load(Ordering::SeqCst) {
                return None;
            }
        }
        // Pairs with the fence above: this thread finds the token free, or its owner sees `again`.
        fence(Ordering::SeqCst);
        let value = self.token.try_lock()?;
        // Acquires what every thread that set the flag has published.
        self.token.again.swap(false, Ordering::SeqCst);
        self.has_owned = true;
        Some(value)
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::{
        sync::{Arc, atomic::AtomicU32},
        thread,
    };

    use super::*;

    #[test]
    fn loom_the_loser_of_the_token_is_served_by_its_owner() {
        loom::model(|| {
            let token = Arc::new(SendToken::new(0u32));
            let backlog = Arc::new(AtomicU32::new(0));
            let send = |token: &SendToken<u32>, backlog: &AtomicU32| {
                backlog.fetch_add(1, Ordering::Relaxed);
                let mut claim = token.claim();
                while let Some(mut sent) = claim.next() {
                    *sent += backlog.swap(0, Ordering::Relaxed);
                    // An extra step for loom between the work and the end of the pass.
                    backlog.load(Ordering::Relaxed);
                }
            };
            let other = {
                let (token, backlog) = (token.clone(), backlog.clone());
                thread::spawn(move || send(&token, &backlog))
            };
            send(&token, &backlog);
            other.join().expect("joined");
            assert_eq!(backlog.load(Ordering::Relaxed), 0, "left in the backlog");
            assert_eq!(token.exclusive(|s| *s), 2);
        });
    }
}
