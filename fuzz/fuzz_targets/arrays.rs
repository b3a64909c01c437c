//! Fuzz target of the entry function `frontend::fuzz::arrays`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| frontend::fuzz::arrays(data));
