//! Fuzz target of the entry function `qdl::testkit::fuzz::responses`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qdl::testkit::fuzz::responses(data));
