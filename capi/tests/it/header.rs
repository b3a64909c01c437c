//! The header says what the library has.

use std::{
    collections::BTreeSet,
    fmt::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use capi::types::{LAYOUT, NUMBERS};
use launch::run_quietly;

pub const MOST: Duration = Duration::from_secs(120);

/// The crate's folder.
pub fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with the library of this build as `libqdl.so`; `None`, and a line, without a compiler.
pub fn with_library() -> Option<tempfile::TempDir> {
    if !launch::on_path("gcc") {
        println!("skipped: no gcc");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("this program");
    let built = program.with_file_name("libcapi.so");
    std::fs::copy(&built, folder.path().join("libqdl.so")).expect("the library of this build");
    Some(folder)
}

/// Compiles a program in C with these words, and returns its path.
pub fn compile(folder: &Path, source: &Path, words: &[&str]) -> Result<PathBuf, String> {
    let program = folder.join("program");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(words)
        .arg(source)
        .arg("-I")
        .arg(here().join("include"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(folder)
        .arg("-lqdl");
    let built = run_quietly("gcc", &mut gcc, MOST);
    built.map(|_| program).map_err(|e| format!("{e:#}"))
}

#[test]
fn sizes_offsets_and_numbers_of_the_header_are_those_of_the_library() {
    let Some(folder) = with_library() else { return };
    let mut text = "#include <stdio.h>\n#include \"qdl.h\"\nint main(void) {\n".to_owned();
    let mut expected = String::new();
    for (name, field, value) in LAYOUT {
        let of = match field.is_empty() {
            true => format!("sizeof({name})"),
            false => format!("offsetof({name}, {field})"),
        };
        writeln!(text, "printf(\"{name}.{field} %zu\\n\", {of});").expect("a text");
        writeln!(expected, "{name}.{field} {value}").expect("a text");
    }
    for (name, value) in NUMBERS {
        writeln!(text, "printf(\"{name} %lld\\n\", (long long){name});").expect("a text");
        writeln!(expected, "{name} {value}").expect("a text");
    }
    text += "return 0; }\n";
    let source = folder.path().join("layout.c");
    std::fs::write(&source, text).expect("a file");
    let program = compile(folder.path(), &source, &[]).expect("a program");
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", folder.path());
    let found = run_quietly("layout", &mut run, MOST).expect("it runs");
    assert_eq!(found.trim(), expected.trim());
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_at_most_20() {
    let Some(folder) = with_library() else { return };
    let header = std::fs::read_to_string(here().join("include/qdl.h")).expect("the header");
    let code = |line: &&str| !line.starts_with([' ', '/', '#']);
    let declared: BTreeSet<_> = header.lines().filter(code).filter_map(function).collect();
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"])
        .arg(folder.path().join("libqdl.so"));
    let symbols = run_quietly("nm", &mut nm, MOST).expect("symbols");
    let name = |line: &str| line.split(' ').next_back().map(str::to_owned);
    let of_face = |name: &String| name.starts_with("qdl_");
    let exported: BTreeSet<_> = symbols.lines().filter_map(name).filter(of_face).collect();
    assert_eq!(declared, exported);
    assert!((10..=20).contains(&exported.len()), "{}", exported.len());
}

/// Name of the function that a line of the header declares.
fn function(line: &str) -> Option<String> {
    let (before, _) = line.split_once('(')?;
    let name = before.rsplit([' ', '*']).next()?;
    name.starts_with("qdl_").then(|| name.to_owned())
}
