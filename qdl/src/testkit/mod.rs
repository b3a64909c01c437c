//! What tests stand on in place of hardware, and the suite that every fabric is put through. Behind
//! the feature `testkit`, so that no program carries it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`machine`] | sysfs trees of machines: a DGX, a P5, two sockets, a laptop |
//!
//! RDMA devices without a NIC are `verbs`' own: its feature `stub`.

pub mod machine;

/// Panics with `text` if it lacks one of `words`.
#[track_caller]
pub fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
}
