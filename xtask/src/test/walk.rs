//! Checks the names on a sample's way in `docs/architecture.md`: the file beside each name declares
//! the name, and the number of names is limited.

use std::path::Path;

use anyhow::{Context, Result};

/// The page, and the heading of its lists.
const PAGE: &str = "docs/architecture.md";
const HEADING: &str = "## What a sample meets";

const FUNCTION: &[&str] = &["fn", "void"];

/// Heading of a list, keywords that declare its names, and maximum number of names.
const LISTS: &[(&str, &[&str], usize)] = &[
    ("Functions: posted by LoadGen's thread", FUNCTION, 9),
    ("Functions: posted by the NIC thread", FUNCTION, 6),
    ("Functions: completed by the NIC thread", FUNCTION, 7),
    ("Types", &["struct", "enum", "trait", "type", "union"], 80),
    ("Tuning constants", &["const"], 25),
];

/// Complaints on the lists of the tree below `root`.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let lists = page.split_once(HEADING).map_or("", |(_, rest)| rest);
    let lists = lists.split("\n## ").next().unwrap_or_default();
    let mut complaints = Vec::new();
    for (heading, words, most) in LISTS {
        let starts = |list: &&str| list.starts_with(heading);
        let list = lists.split("\n### ").find(starts).unwrap_or_default();
        let mut names = 0;
        for row in list.lines().filter(|line| line.starts_with("| `")) {
            let mut cells = row.split('|').skip(1).map(str::trim);
            let these = cells.next().unwrap_or_default();
            let file = cells.next().unwrap_or_default().trim_matches('`');
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            for name in these.split(", ").map(|name| name.trim_matches('`')) {
                names += 1;
                if !words.iter().any(|word| declares(&source, word, name)) {
                    complaints.push(format!("{PAGE}: {file} declares no `{name}`"));
                }
            }
        }
        if names == 0 || names > *most {
            complaints.push(format!("{PAGE}: {names} names in {heading}, of {most}"));
        }
    }
    Ok(complaints)
}

fn declares(source: &str, word: &str, name: &str) -> bool {
    let declaration = format!("{word} {name}");
    let mut behind = source.split(&declaration).skip(1);
    behind.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_declared_and_a_list_that_is_empty_or_too_long_are_named() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("docs")).unwrap();
        let complaints = |functions: &str, source: &str| {
            let types = "### Types\n| `Tx`, `Rx` | `a.rs` |";
            let constants = "### Tuning constants\n| `MOST` | `a.rs` | as fit |\n## Next\n";
            let [one, two, three] = [0, 1, 2].map(|i| format!("### {}\n{functions}", LISTS[i].0));
            let page = format!("{HEADING}\n{one}\n{two}\n{three}\n{types}\n{constants}");
            std::fs::write(tree.path().join(PAGE), page).unwrap();
            std::fs::write(tree.path().join("a.rs"), source).unwrap();
            check(tree.path()).unwrap()
        };
        let source = "fn post() {}\ntrait Tx {}\nstruct Rx;\nconst MOST: u8 = 1;";
        let post = "| `post` | `a.rs` |\n";
        assert_eq!(complaints(post, source), [""; 0]);
        let gone = complaints(post, &source.replace("struct Rx", "struct Rxx"));
        assert_eq!(gone, ["docs/architecture.md: a.rs declares no `Rx`"]);
        assert_eq!(complaints("", source).len(), 3);
        assert_eq!(complaints(&post.repeat(7), source).len(), 1);
    }
}
