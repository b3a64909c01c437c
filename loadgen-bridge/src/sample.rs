//! Samples and responses in LoadGen's memory layout, and how to complete a sample.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::offset_of;

use crate::control::{CONTROL, Stop};
use crate::raw;

/// LoadGen's id of an issued sample.
///
/// Inside LoadGen the id is a pointer that [`complete`] follows: an invalid id is undefined
/// behaviour. So an id comes only from a [`QuerySample`], or from the bits of such an id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ResponseId(usize);

impl ResponseId {
    /// The id as a number, for a table. Never zero.
    pub fn to_bits(self) -> u64 {
        self.0 as u64
    }

    /// The id from the bits of [`to_bits`](Self::to_bits).
    ///
    /// # Safety
    ///
    /// `bits` came from [`to_bits`](Self::to_bits) in this process. Never pass a number that a peer
    /// sent: look up the id under a checked key instead.
    pub unsafe fn from_bits(bits: u64) -> Self {
        Self(bits as usize)
    }
}

impl fmt::Debug for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseId({:#x})", self.0)
    }
}

/// A sample of an issued query, 16 bytes in LoadGen's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct QuerySample {
    /// The id for the response.
    pub id: ResponseId,
    /// Index of the sample in the QSL.
    pub index: usize,
}

/// The response to a sample, 32 bytes in LoadGen's layout, so that slices pass unchanged.
///
/// The response borrows its data: LoadGen reads the data only during [`complete`], and copies them
/// in accuracy mode and for the samples that an audit picks.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QuerySampleResponse<'a> {
    id: ResponseId,
    data: *const u8,
    size: usize,
    n_tokens: i64,
    borrowed: PhantomData<&'a [u8]>,
}

// SAFETY: the pointer is a shared borrow of bytes, which is Send.
unsafe impl Send for QuerySampleResponse<'_> {}
// SAFETY: the pointer is a shared borrow of bytes, and no method writes through `&self`.
unsafe impl Sync for QuerySampleResponse<'_> {}

impl<'a> QuerySampleResponse<'a> {
    /// A response without a token count (0, LoadGen's default).
    pub fn new(id: ResponseId, data: &'a [u8]) -> Self {
        Self {
            id,
            data: data.as_ptr(),
            size: data.len(),
            n_tokens: 0,
            borrowed: PhantomData,
        }
    }

    /// Sets the token count. With `use_token_latencies` LoadGen requires at least 2.
    pub fn with_tokens(self, n_tokens: i64) -> Self {
        Self { n_tokens, ..self }
    }

    /// The response's bytes.
    pub fn data(&self) -> &'a [u8] {
        // SAFETY: pointer and length come from a slice borrowed for `'a`.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }

    /// The token count for LoadGen.
    pub fn n_tokens(&self) -> i64 {
        self.n_tokens
    }

    /// The id of the answered sample.
    pub fn id(&self) -> ResponseId {
        self.id
    }
}

impl fmt::Debug for QuerySampleResponse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuerySampleResponse")
            .field("id", &self.id)
            .field("size", &self.size)
            .field("n_tokens", &self.n_tokens)
            .finish()
    }
}

// shim.cc asserts the C++ side.
const _: () = {
    assert!(size_of::<QuerySample>() == 16);
    assert!(offset_of!(QuerySample, id) == 0 && offset_of!(QuerySample, index) == 8);
    assert!(size_of::<QuerySampleResponse<'_>>() == 32);
    assert!(offset_of!(QuerySampleResponse<'_>, id) == 0);
    assert!(offset_of!(QuerySampleResponse<'_>, data) == 8);
    assert!(offset_of!(QuerySampleResponse<'_>, size) == 16);
    assert!(offset_of!(QuerySampleResponse<'_>, n_tokens) == 24);
};

/// Completes any number of samples of any queries, from any thread (`QuerySamplesComplete`).
///
/// This function copies and allocates nothing; LoadGen may. Wait-free, by LoadGen's documentation.
/// LoadGen takes the time once per call, so pass only samples that became ready together.
///
/// # Safety
///
/// This process's test issued each id; each id appears once and was not completed before; and the
/// test has not ended (a test does not end before every sample is completed). After an aborted or
/// panicked test ids stay valid, and their completion does nothing.
pub unsafe fn complete(responses: &[QuerySampleResponse<'_>]) {
    if responses.is_empty() {
        return;
    }
    // SAFETY: the layout is LoadGen's (asserted on both sides), the slice outlives the call,
    // LoadGen only reads it, and the caller guarantees the ids.
    let threw = unsafe {
        raw::lg_query_samples_complete(responses.as_ptr().cast::<c_void>(), responses.len())
    };
    if threw != 0 {
        threw_in("QuerySamplesComplete");
    }
}

/// Stops the test, because LoadGen lost samples.
#[cold]
fn threw_in(function: &str) {
    CONTROL.stop(Stop::Aborted(format!(
        "LoadGen's {function} threw an exception; is the memory exhausted?"
    )));
}

/// Reports the first token of samples whose whole response follows later (LoadGen's
/// `FirstTokenComplete`). With `use_token_latencies` LoadGen requires it for every sample before
/// its [`complete`], except in Offline.
///
/// # Safety
///
/// As for [`complete`]; also, each id appears here at most once in a test.
pub unsafe fn first_token_complete(responses: &[QuerySampleResponse<'_>]) {
    if responses.is_empty() {
        return;
    }
    // SAFETY: as in `complete`.
    let threw = unsafe {
        raw::lg_first_token_complete(responses.as_ptr().cast::<c_void>(), responses.len())
    };
    if threw != 0 {
        threw_in("FirstTokenComplete");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_keep_the_id() {
        // SAFETY: the id never goes to LoadGen.
        let id = unsafe { ResponseId::from_bits(0x7fff_dead_beef_0010) };
        assert_eq!(id.to_bits(), 0x7fff_dead_beef_0010);
        let response = QuerySampleResponse::new(id, b"four").with_tokens(3);
        assert_eq!(
            (response.id(), response.data(), response.n_tokens()),
            (id, &b"four"[..], 3)
        );
        assert!(format!("{response:?}").contains("0x7fffdeadbeef0010"));
    }
}
