//! Compares values of Rust with those that a C compiler computes from the installed headers.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, process::Command};

pub type Expectations = BTreeMap<String, u64>;

/// Compares all of `expected` with C, by assertions that a compiler evaluates. Skips if the first
/// of `headers` (below `/usr/include`, from `package`) or a compiler is missing.
pub fn compare(expected: &Expectations, headers: &[&str], package: &str) {
    let header = Path::new("/usr/include").join(headers[0]);
    if !header.exists() {
        println!(
            "skipped: {} is not here (Debian: {package})",
            header.display()
        );
        return;
    }
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler `cc` (Debian: gcc)");
        return;
    }
    let mut source = String::from("#include <stddef.h>\n");
    for header in headers {
        writeln!(source, "#include <{header}>").expect("writing to a string");
    }
    for (c, here) in expected {
        let text = format!("{c} is {here} in Rust");
        writeln!(source, "_Static_assert(({c}) == {here}ull, \"{text}\");").expect("a string");
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{package}.c"));
    std::fs::write(&file, source).expect("writing the C file");
    let mut compiler = Command::new("cc");
    let compiled = compiler.arg("-fsyntax-only").arg(&file).output();
    let compiled = compiled.expect("running the C compiler");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    println!("{} values agree with {}", expected.len(), header.display());
}
