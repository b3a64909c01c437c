//! Fuzz target of the entry function `engines::fuzz_server_events`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| engines::fuzz_server_events(data));
