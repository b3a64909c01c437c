//! What LoadGen issues and what it is answered with, in LoadGen's own memory layout.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::offset_of;

use crate::control::{CONTROL, Stop};
use crate::raw;

/// LoadGen's name for one issued sample.
///
/// Inside LoadGen it is a pointer, which [`complete`] follows: a number
/// that LoadGen never gave away crashes the process, or worse. So it comes
/// only out of a [`QuerySample`], or back from bits that one of those gave.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ResponseId(usize);

impl ResponseId {
    /// The id as a number, to be kept in a table. Never zero.
    pub fn to_bits(self) -> u64 {
        self.0 as u64
    }

    /// The id that [`to_bits`](Self::to_bits) made a number of.
    ///
    /// # Safety
    ///
    /// `bits` came from [`to_bits`](Self::to_bits) in this process. A number that a peer sent never
    /// qualifies: look the id up by something that was checked.
    pub unsafe fn from_bits(bits: u64) -> Self {
        Self(bits as usize)
    }
}

impl fmt::Debug for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseId({:#x})", self.0)
    }
}

/// One sample of an issued query: 16 bytes, LoadGen's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct QuerySample {
    /// What the response has to carry.
    pub id: ResponseId,
    /// Which sample of the QSL it is.
    pub index: usize,
}

/// The response to one sample: 32 bytes, LoadGen's own,
/// so that a slice of them is handed over as it is.
///
/// The data is borrowed: LoadGen reads it during [`complete`] (it copies it in accuracy mode and
/// for the samples that an audit picks) and never afterwards.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QuerySampleResponse<'a> {
    id: ResponseId,
    data: *const u8,
    size: usize,
    n_tokens: i64,
    borrowed: PhantomData<&'a [u8]>,
}

// SAFETY: the pointer is a shared borrow of bytes, which may be sent and shared.
unsafe impl Send for QuerySampleResponse<'_> {}
// SAFETY: as above; nothing in it can be changed through a shared reference.
unsafe impl Sync for QuerySampleResponse<'_> {}

impl<'a> QuerySampleResponse<'a> {
    /// A response without a count of tokens (0, which is LoadGen's own default).
    pub fn new(id: ResponseId, data: &'a [u8]) -> Self {
        Self {
            id,
            data: data.as_ptr(),
            size: data.len(),
            n_tokens: 0,
            borrowed: PhantomData,
        }
    }

    /// The same with a count of tokens. With `use_token_latencies` LoadGen wants at least 2.
    pub fn with_tokens(self, n_tokens: i64) -> Self {
        Self { n_tokens, ..self }
    }

    /// Its bytes.
    pub fn data(&self) -> &'a [u8] {
        // SAFETY: pointer and length are those of a slice that is borrowed for as long as this.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }

    /// How many tokens LoadGen is told that it has.
    pub fn n_tokens(&self) -> i64 {
        self.n_tokens
    }

    /// The sample it answers.
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

// The other half of these is in shim.cc.
const _: () = {
    assert!(size_of::<QuerySample>() == 16);
    assert!(offset_of!(QuerySample, id) == 0 && offset_of!(QuerySample, index) == 8);
    assert!(size_of::<QuerySampleResponse<'_>>() == 32);
    assert!(offset_of!(QuerySampleResponse<'_>, id) == 0);
    assert!(offset_of!(QuerySampleResponse<'_>, data) == 8);
    assert!(offset_of!(QuerySampleResponse<'_>, size) == 16);
    assert!(offset_of!(QuerySampleResponse<'_>, n_tokens) == 24);
};

/// Completes samples, in any number, from any thread, in any
/// mixture of queries: LoadGen's `QuerySamplesComplete`.
///
/// Nothing is copied on the way and nothing allocated but what LoadGen itself
/// allocates. Wait-free, says LoadGen. It takes the time once per call, so
/// samples that became ready together belong into one call, and no others.
///
/// # Safety
///
/// Every id was issued by the test of this process, appears once, was not completed before, and
/// that test did not come to its end (it does not before every sample is completed). After an
/// aborted or panicked test ids stay valid, and completing them does nothing.
pub unsafe fn complete(responses: &[QuerySampleResponse<'_>]) {
    if responses.is_empty() {
        return;
    }
    // SAFETY: the layout is the one that LoadGen's header has (asserted on both sides), the slice
    // outlives the call, LoadGen only reads it, and the caller vouches for the ids.
    let threw = unsafe {
        raw::lg_query_samples_complete(responses.as_ptr().cast::<c_void>(), responses.len())
    };
    if threw != 0 {
        threw_in("QuerySamplesComplete");
    }
}

/// Stops the test: LoadGen lost samples.
#[cold]
fn threw_in(function: &str) {
    CONTROL.stop(Stop::Aborted(format!(
        "LoadGen's {function} threw an exception; is the memory exhausted?"
    )));
}

/// Reports the first token of samples whose whole response comes later:
/// LoadGen's `FirstTokenComplete`. With `use_token_latencies` LoadGen
/// wants one for every sample, before its [`complete`], except in Offline.
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
        // SAFETY: it is never handed to LoadGen.
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
