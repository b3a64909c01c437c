//! Fuzz target of the entry function `engines::fuzz_yaml`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| engines::fuzz_yaml(data));
