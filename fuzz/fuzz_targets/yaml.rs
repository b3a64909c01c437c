//! A configuration file of either node. Whatever is wrong
//! with it must be told with a place and in bounded length.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use qdl::config::{parse_accelerator, parse_frontend};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let base = Path::new("/nowhere");
    let errors = [
        parse_frontend(text, "f.yaml", base).err(),
        parse_accelerator(text, "a.yaml", base).err(),
    ];
    for error in errors.into_iter().flatten() {
        let told = error.to_string();
        assert!(told.contains(".yaml"), "no place in {told}");
    }
});
