//! Fuzz target of the entry function `qdl::testkit::fuzz::data_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qdl::testkit::fuzz::data_frames(data));
