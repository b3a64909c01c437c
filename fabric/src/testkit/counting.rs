//! The system's allocator with counters: for tests that code allocates nothing, and for
//! measurements of allocations. No shipped program contains it.
//!
//! A test or example that counts allocations is its own program and installs the allocator:
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

/// Allocations and reallocations of the process so far; always 0 without [`Counting`] installed.
pub fn of_process() -> u64 {
    OF_PROCESS.load(Ordering::Relaxed)
}

/// Allocations and reallocations of the calling thread alone, without other threads such as a test
/// runner's.
pub fn of_thread() -> u64 {
    OF_THREAD.with(Cell::get)
}

fn count() {
    OF_PROCESS.fetch_add(1, Ordering::Relaxed);
    // An ending thread may have lost its counter; it is not the measured thread.
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
