//! Compiles LoadGen, unaltered, and the shim.

use std::path::{Path, PathBuf};
use std::process::exit;

/// Folder of LoadGen's sources from `cargo xtask setup`, relative to the repository's root.
const FETCHED: &str = ".deps/loadgen-6.0.17";

/// LoadGen's sources without its Python binding and without `bindings/c_api.cc`, which the shim
/// replaces. `generated/version_generated.cc` is part of the archive: generated again outside
/// MLCommons' git it would lack the hashes.
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
    // Cargo must notice a folder that appears later, and a changed file in it.
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
        .cpp_link_stdlib(None)
        .std("c++17")
        // Every profile optimizes: LoadGen's maximum rate is part of the measurement.
        .opt_level(2)
        .include(&folder)
        .include("shim");
    if let Some(mimalloc) = std::env::var_os("DEP_MIMALLOC_INCLUDE_DIR") {
        build.include(mimalloc);
    }
    let compiler = build.get_compiler();
    let mut loadgen = build.clone();
    // LoadGen's warnings are upstream's.
    loadgen
        .warnings(false)
        .files(SOURCES.iter().map(|source| folder.join(source)));
    let mut shim = build;
    shim.warnings(true).file("shim/shim.cc");
    // LoadGen's headers leave arguments unused.
    shim.flag_if_supported("-Wno-unused-parameter");
    // The linker needs users of a library before the library.
    shim.compile("loadgen_shim");
    loadgen.compile("loadgen");
    link_standard_library(&compiler);
}

/// Links libstdc++ statically, so that the programs run where an older one is installed.
fn link_standard_library(compiler: &cc::Tool) {
    let mut ask = compiler.to_command();
    let answer = ask.arg("-print-file-name=libstdc++.a").output();
    let path = answer.map(|answer| String::from_utf8_lossy(&answer.stdout).trim().to_owned());
    // The compiler repeats the name of a file that it does not find.
    match path.as_deref().map(Path::new).map(Path::parent) {
        Ok(Some(folder)) if folder.is_absolute() => {
            println!("cargo::rustc-link-search=native={}", folder.display());
            println!("cargo::rustc-link-lib=static=stdc++");
        }
        _ => println!("cargo::rustc-link-lib=stdc++"),
    }
}
