//! Compiles LoadGen, unaltered, and the shim over it.

use std::path::{Path, PathBuf};
use std::process::exit;

/// Where `cargo xtask setup` puts LoadGen's sources, from the repository's root.
const FETCHED: &str = ".deps/loadgen-6.0.17";

/// LoadGen without its Python binding and without `bindings/c_api.cc`,
/// whose place the shim takes. `generated/version_generated.cc` comes with
/// the archive: made again outside MLCommons' git it would lose its hashes.
const SOURCES: &[&str] = &[
    "early_stopping.cc",
    "generated/version_generated.cc",
    "issue_query_controller.cc",
    "loadgen.cc",
    "logging.cc",
    "results.cc",
    "test_settings_internal.cc",
    "utils.cc",
    "version.cc",
];

fn main() {
    println!("cargo::rerun-if-env-changed=LOADGEN_DIR");
    for ours in ["build.rs", "shim"] {
        println!("cargo::rerun-if-changed={ours}");
    }
    let folder = match std::env::var_os("LOADGEN_DIR") {
        Some(given) => PathBuf::from(given),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(FETCHED),
    };
    // A folder that is missing now and comes later must
    // be noticed, and so must a file that changes in it.
    println!("cargo::rerun-if-changed={}", folder.display());
    let missing: Vec<_> = SOURCES
        .iter()
        .filter(|source| !folder.join(source).is_file())
        .collect();
    if !missing.is_empty() {
        println!(
            "cargo::error=LoadGen's sources are not in {} ({} of {} files are missing). Run `cargo xtask setup`, \
             which fetches them, or set LOADGEN_DIR to where they are.",
            folder.display(),
            missing.len(),
            SOURCES.len()
        );
        exit(1);
    }

    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        // Whatever the profile: the rate that LoadGen reaches is part of what is measured.
        .opt_level(2)
        .include(&folder)
        .include("shim");
    let mut loadgen = build.clone();
    // Its warnings are upstream's.
    loadgen
        .warnings(false)
        .files(SOURCES.iter().map(|source| folder.join(source)));
    let mut shim = build;
    shim.warnings(true).file("shim/shim.cc");
    // LoadGen's headers leave arguments unused.
    shim.flag_if_supported("-Wno-unused-parameter");
    if std::env::var_os("CARGO_FEATURE_BENCH").is_some() {
        shim.file("shim/bench_null.cc");
    }
    // The linker wants those who use a library before it.
    shim.compile("loadgen_shim");
    loadgen.compile("loadgen");
}
