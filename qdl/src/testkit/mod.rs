//! What tests stand on in place of hardware, and the suite that every fabric is put through. Behind
//! the feature `testkit`, so that no program carries it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`conformance`] | the fabric contract as tests, for any fabric |
//! | [`memory`] | a fabric inside the process, which can be cut |
//! | [`machine`] | sysfs trees of machines: a DGX, a P5, two sockets, a laptop |
//! | [`device_memory`] | a GPU's memory without a GPU |
//! | [`peer`] | a frontend made of plain bytes |
//! | [`rig`] | a dispatcher and a server in one process, and links between them |
//!
//! RDMA devices without a NIC are `verbs`' own: its feature `stub`.

pub mod conformance;
pub mod device_memory;
pub mod machine;
pub mod memory;
pub mod peer;
pub mod rig;

use std::time::{Duration, Instant};

/// Panics with `text` if it lacks one of `words`.
#[track_caller]
pub fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}

/// Waits until `holds`; panics with `what` after five minutes, so that a test fails and does not
/// hang.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_or(|| what.to_owned(), holds);
}

/// [`eventually`] with words that are made when it is too late.
#[track_caller]
pub fn eventually_or(what: impl Fn() -> String, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(300), "in vain: {}", what());
        if waited < Duration::from_millis(2) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
