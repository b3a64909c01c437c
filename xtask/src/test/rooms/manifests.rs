//! Which crates of the workspace depend on which, read from their `Cargo.toml`.

use std::path::Path;

use anyhow::{Context, Result};

fn read(root: &Path, name: &str) -> Result<String> {
    std::fs::read_to_string(root.join(name)).with_context(|| format!("reading {name}"))
}

/// The members of the workspace.
pub fn members(root: &Path) -> Result<Vec<String>> {
    let text = read(root, "Cargo.toml")?;
    let list = text
        .split_once("members")
        .and_then(|(_, rest)| rest.split_once('[')?.1.split_once(']'))
        .context("Cargo.toml names no members")?
        .0;
    let names = list.split(',').map(|word| word.trim().trim_matches('"'));
    Ok(names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The manifest of a member, and the other members that it depends on; tests' needs do not count.
pub fn depends(root: &Path, member: &str, members: &[String]) -> Result<(String, Vec<String>)> {
    let place = format!("{member}/Cargo.toml");
    let mut inside = false;
    let mut found = Vec::new();
    for line in read(root, &place)?.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            // [dependencies] and [target.'cfg(...)'.dependencies]
            inside = section.split('.').next_back() == Some("dependencies");
            continue;
        }
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        if inside && members.iter().any(|member| member == name) {
            found.push(name.to_owned());
        }
    }
    Ok((place, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_tests_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "Cargo.toml",
            "[workspace]\nmembers = [\"a\", \"b\",\n  \"c-d\", \"e\"]\nexclude = [\"f\"]\n",
        );
        write(
            "a/Cargo.toml",
            "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\nserde = \"1\"\n\
             [target.'cfg(unix)'.dependencies]\nc-d = { path = \"../c-d\" }\n\
             [dev-dependencies]\ne.workspace = true\n",
        );
        let members = members(folder.path()).unwrap();
        assert_eq!(members, ["a", "b", "c-d", "e"]);
        let (place, found) = depends(folder.path(), "a", &members).unwrap();
        assert_eq!((place.as_str(), found.len()), ("a/Cargo.toml", 2));
        assert_eq!(found, ["b", "c-d"]);
    }
}
