//! Compares values of Rust with those that a C compiler computes from the installed headers.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, process::Command};

/// C expressions, with their values in Rust.
pub type Expectations = BTreeMap<String, u64>;

/// The source of a C program that prints each expression with its value.
fn program(expected: &Expectations, headers: &[&str]) -> String {
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in headers {
        writeln!(source, "#include <{header}>").expect("writing to a string");
    }
    source.push_str("int main(void) {\n");
    for expression in expected.keys() {
        writeln!(
            source,
            "  printf(\"%s\\t%llu\\n\", \"{expression}\", (unsigned long long)({expression}));"
        )
        .expect("writing to a string");
    }
    source.push_str("  return 0;\n}\n");
    source
}

/// Compares all of `expected` with C. Skips if the first of `headers` (below `/usr/include`, from
/// `package`) or a compiler is missing.
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
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("layout-{package}");
    let (source, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, program(expected, headers)).expect("writing the C program");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output()
        .expect("running the C compiler");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    let printed = Command::new(&binary)
        .output()
        .expect("running the C program");
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).expect("plain text");
    let actual: Expectations = printed
        .lines()
        .map(|line| {
            let (expression, value) = line.split_once('\t').expect("an expression and its value");
            (expression.to_owned(), value.parse().expect("a number"))
        })
        .collect();
    let wrong: Vec<_> = expected
        .iter()
        .filter(|(expression, value)| actual.get(*expression) != Some(value))
        .map(|(expression, value)| {
            let there = actual.get(expression);
            format!("{expression}: {value} here, {there:?} in C")
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(actual.len(), expected.len());
    println!("{} values agree with {}", expected.len(), header.display());
}
