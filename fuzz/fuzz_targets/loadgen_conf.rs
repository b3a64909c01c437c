//! Fuzz target of the entry function `frontend::fuzz::loadgen_conf`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| frontend::fuzz::loadgen_conf(data));
