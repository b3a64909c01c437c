//! Source of the workspace as text, to find the readers of a key.

use std::path::{Path, PathBuf};

/// Root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Code under `path` (a folder or a file, relative to the root), without tests, comments, and files
/// below `without`.
pub fn code(path: &str, without: &str) -> String {
    let mut todo = vec![root().join(path)];
    let mut text = String::new();
    while let Some(path) = todo.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let skipped = !without.is_empty() && path.ends_with(without);
        if skipped || name.contains("tests") || name == "sim" || name == "conformance" {
            continue;
        }
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a folder");
            todo.extend(entries.map(|e| e.expect("an entry").path()));
        } else if name.ends_with(".rs") {
            text.push_str(&production(
                &std::fs::read_to_string(&path).expect("a text"),
            ));
        }
    }
    text
}

/// Text of a file without tests and comments.
pub fn production(file: &str) -> String {
    let code = file.split("#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or_default().lines();
    lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Whether `text` contains `.name` as a whole word, or `.name(` for a call.
pub fn reads(text: &str, name: &str) -> bool {
    let dotted = format!(".{name}");
    text.match_indices(&dotted).any(|(at, found)| {
        let next = text[at + found.len()..].chars().next().unwrap_or(' ');
        !next.is_alphanumeric() && next != '_'
    })
}
