//! Fuzz target of the entry function `accelerator::fuzz_server_events`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| accelerator::fuzz_server_events(data));
