//! Checks that no line of Rust is wider than 100 columns: rustfmt wraps neither comments nor
//! macros. Lines with a literal or an address may be wider.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const COLUMNS: usize = 100;

/// Complaints on the lines of the repository that are too wide.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in rust_files(root)? {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("reading {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display();
        for (number, line) in (1..).zip(text.lines()) {
            let columns = line.chars().count();
            if columns > COLUMNS && !may_be_wider(line) {
                complaints.push(format!(
                    "{name}:{number}: {columns} columns, {COLUMNS} is the limit"
                ));
            }
        }
    }
    Ok(complaints)
}

/// Whether a line contains an address, a literal, or a literal's part before a `\`.
fn may_be_wider(line: &str) -> bool {
    let is_comment = line.trim_start().starts_with("//");
    line.contains("://") || (!is_comment && (line.contains('"') || line.ends_with('\\')))
}

/// Rust files below a folder, sorted, without hidden folders and build folders.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder);
    for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && name != "target" {
                files.extend(rust_files(&entry.path())?);
            }
        } else if name.ends_with(".rs") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_and_the_line_are_named_and_literals_and_addresses_may_be_wider() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("a/src");
        std::fs::create_dir_all(&source).unwrap();
        let long = "x,".repeat(60);
        let lines = [
            format!("// \"{long}\""),
            format!("let a = \"{long}\";"),
            format!("// https://example.org/{long}"),
            format!("call({long})"),
            "\u{e4}".repeat(100),
        ];
        std::fs::write(source.join("lib.rs"), lines.join("\n")).unwrap();
        let complaints = check(folder.path()).unwrap();
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        let first = "a/src/lib.rs:1: 125 columns, 100 is the limit";
        assert!(complaints[0] == first && complaints[1].starts_with("a/src/lib.rs:4: "));
    }
}
