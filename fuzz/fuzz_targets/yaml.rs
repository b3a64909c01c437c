//! Fuzz target of the entry function `qdl::testkit::fuzz::yaml`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| qdl::testkit::fuzz::yaml(data));
