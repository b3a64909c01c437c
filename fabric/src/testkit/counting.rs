//! The system's allocator, counting what is asked of it: for tests that nothing is allocated, and
//! for measurements that say how often something is. No program that is shipped has it.
//!
//! A test or an example that counts is a program of its own, and installs it:
//!
//! ```
//! use fabric::testkit::counting::{Counting, of_thread};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = of_thread();
//! drop(std::hint::black_box(vec![0u8; 100]));
//! assert_eq!(of_thread() - before, 1);
//! ```

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

/// The system's allocator with two counters: [`of_thread`] and [`of_process`].
///
/// An allocation counts once, zeroed or not, and so does a reallocation; a deallocation does not.
pub struct Counting;

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Allocations and reallocations of the whole process so
/// far; 0 for ever where [`Counting`] is not installed.
pub fn of_process() -> u64 {
    OF_PROCESS.load(Ordering::Relaxed)
}

/// Those of the calling thread alone: what other threads do
/// meanwhile, a test runner's among them, does not show.
pub fn of_thread() -> u64 {
    OF_THREAD.with(Cell::get)
}

fn count() {
    OF_PROCESS.fetch_add(1, Ordering::Relaxed);
    // A thread that is ending may have no counter left, and is not the one that is measured.
    let _ = OF_THREAD.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call goes to `System`, which keeps the allocator's promises; counting allocates
// nothing (the thread-local is constant-initialised and has no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout, as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `ptr` came from `System` with this layout, as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
