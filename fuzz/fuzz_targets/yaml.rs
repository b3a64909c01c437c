//! Fuzz target of the entry function `frontend::fuzz::yaml`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| frontend::fuzz::yaml(data));
