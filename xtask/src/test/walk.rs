//! What a sample meets on its way, as `docs/architecture.md` lists it: each name is declared in the
//! file beside it, and there are not too many.

use std::path::Path;

use anyhow::{Context, Result};

/// The page, and the heading of its lists.
const PAGE: &str = "docs/architecture.md";
const HEADING: &str = "## What a sample meets";

/// Heading of a list, the words that declare its names, and how many names it may have.
const LISTS: &[(&str, &[&str], usize)] = &[
    ("### Functions", &["fn"], 16),
    (
        "### Types",
        &["struct", "enum", "trait", "type", "union"],
        107,
    ),
    ("### Tuning constants", &["const"], 25),
];

/// What is wrong with the lists of the tree below `root`.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let page = root.join(PAGE);
    let text = std::fs::read_to_string(&page).with_context(|| format!("reading {PAGE}"))?;
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    Ok(complaints(&text, read))
}

fn complaints(page: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let lists = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let lists = lists.split("\n## ").next().unwrap_or_default();
    let mut complaints = Vec::new();
    for (heading, words, most) in LISTS {
        let list = lists.split_once(heading).map_or("", |(_, rest)| rest);
        let list = list.split("\n### ").next().unwrap_or_default();
        let mut names = 0;
        for row in list.lines().filter(|l| l.starts_with("| `")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let (Some(these), Some(file)) = (cells.get(1), cells.get(2)) else {
                continue;
            };
            let file = file.trim_matches('`');
            let source = read(file);
            for name in these.split(", ").map(|n| n.trim_matches('`')) {
                names += 1;
                if !declares(&source, words, name) {
                    complaints.push(format!("{PAGE}: {file} declares no `{name}`"));
                }
            }
        }
        if names == 0 || names > *most {
            complaints.push(format!(
                "{PAGE}: {names} names under {heading:?}, of {most}"
            ));
        }
    }
    complaints
}

/// Whether a source declares a name, by one of these words; a C++ source defines a method.
fn declares(source: &str, words: &[&str], name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let by = |before: &str| {
        let mut found = source.match_indices(before);
        found.any(|(at, _)| ends(&source[at + before.len()..]))
    };
    words.iter().any(|word| by(&format!("{word} {name}")))
        || (words == ["fn"] && by(&format!("void {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
## What a sample meets
### Functions, out
| function | file |
| --- | --- |
| `post` | `a.rs` |
### Types
| `Tx`, `Rx` | `a.rs` |
### Tuning constants
| `MOST` | `a.rs` | as many as fit |
## Next
";

    #[test]
    fn a_name_that_is_not_declared_is_named() {
        let source = "fn post() {}\ntrait Tx {}\nstruct Rx;\nconst MOST: u8 = 1;";
        assert_eq!(complaints(GOOD, |_| source.to_owned()), [""; 0]);
        let gone = source
            .replace("struct Rx", "struct Rxx")
            .replace("fn post", "fn posts");
        let found = complaints(GOOD, |_| gone.clone());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("post") && found[1].contains("Rx"));
    }

    #[test]
    fn lists_that_are_empty_or_too_long_are_named() {
        let found = complaints("", |_| String::new());
        assert_eq!(found.len(), 3, "{found:?}");
        let many: String = (0..17).map(|_| "| `post` | `a.rs` |\n").collect();
        let page = GOOD.replace("| `post` | `a.rs` |\n", &many);
        let found = complaints(&page, |_| {
            "fn post trait Tx struct Rx const MOST".to_owned()
        });
        assert!(
            found.len() == 1 && found[0].contains("17 names"),
            "{found:?}"
        );
    }
}
