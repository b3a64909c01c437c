//! Fuzz target of the entry function `qdl::testkit::fuzz::control_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qdl::testkit::fuzz::control_frames(data));
