//! No line of Rust is wider than 100 columns: rustfmt wraps code, but no comment and no macro.
//!
//! A line with a string literal may be wider, as breaking one can spoil it, and so may a comment
//! with an address in it.

use std::path::Path;

use anyhow::{Context, Result};

use super::source::{Kind, kinds, rust_files};

/// The widest that a line may be.
const COLUMNS: usize = 100;

/// The lines of the repository that are too wide.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in rust_files(root)? {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("reading {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display();
        for (line, columns) in too_wide(&text) {
            complaints.push(format!(
                "{name}:{line}: {columns} columns, {COLUMNS} is the limit"
            ));
        }
    }
    Ok(complaints)
}

/// Number and width of each line that is too wide.
fn too_wide(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut kinds_of_file = None;
    let mut start = 0;
    for (index, line) in text.split('\n').enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS {
            let kinds = kinds_of_file.get_or_insert_with(|| kinds(text));
            let kinds = &kinds[start..start + line.len()];
            let excused = match kinds.last() {
                Some(Kind::Comment) => line.contains("://"),
                _ => kinds.contains(&Kind::Literal),
            };
            if !excused {
                found.push((index + 1, columns));
            }
        }
        start += line.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_addresses_may_be_wider_and_nothing_else() {
        let long = "x ".repeat(60);
        let lines = [
            format!("// {long}"),
            format!("let a = \"{long}\";"),
            format!("// https://example.org/{long}"),
            format!("let a = \"\"; // {long}"),
            format!("call({})", "x,".repeat(60)),
            "x".repeat(100),
            "\u{e4}".repeat(100),
        ];
        let found: Vec<_> = too_wide(&lines.join("\n")).iter().map(|w| w.0).collect();
        assert_eq!(found, [1, 4, 5]);
    }

    #[test]
    fn the_file_and_the_line_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("a/src");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("lib.rs"), format!("\n//{}\n", "-".repeat(99))).unwrap();
        let complaints = check(folder.path()).unwrap();
        assert_eq!(
            complaints,
            ["a/src/lib.rs:2: 101 columns, 100 is the limit"]
        );
    }
}
