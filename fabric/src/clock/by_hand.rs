//! A clock that a test sets, for one thread.

use std::cell::Cell;

use super::system_ns;

thread_local! {
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The reading that this thread has set, or else the system's ([`system_ns`]).
pub fn now_ns() -> u64 {
    NOW.get().unwrap_or_else(system_ns)
}

/// Sets the clock of this thread; `None` restores the system's clock.
pub fn set(now_ns: Option<u64>) {
    NOW.set(now_ns);
}
