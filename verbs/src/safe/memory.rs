//! Memory that can be registered.

use std::ptr::NonNull;

/// Owns a range of memory that a NIC may read and write at any time while it is registered.
///
/// # Safety
///
/// For as long as the value lives, `addr()..addr() + len()` is mapped at that address, readable and
/// (unless it is registered without any write access) writable. No Rust reference to a byte of it
/// exists while a NIC may write that byte: the owner hands out raw pointers, and the protocol above
/// says which byte may be followed when.
pub unsafe trait Memory: Send + Sync + 'static {
    /// The first byte.
    fn addr(&self) -> NonNull<u8>;
    /// How many bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
