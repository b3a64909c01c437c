//! The allocator of the programs. LoadGen uses it too (`loadgen-bridge/shim/shim.cc`); libraries
//! that are opened at run time keep the C library's.

use std::ffi::{c_int, c_long};

/// The type of the programs' `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// `mi_option_purge_delay` of mimalloc.h.
const PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
    #[cfg(test)]
    fn mi_option_get(option: c_int) -> c_long;
}

/// Keeps freed memory for the next burst: the kernel clears memory that was returned to it, page by
/// page.
pub(crate) fn keep_freed_memory() {
    // SAFETY: the library is linked through the crate, and the function takes two integers.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_that_of_the_purge_delay() {
        // SAFETY: as above. options.c gives 1000 ms, which no other option has.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, 1000);
        keep_freed_memory();
        // SAFETY: as above.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, -1);
    }
}
