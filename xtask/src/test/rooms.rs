//! Checks borders that cargo does not hold: forbidden dependencies between crates, and circles
//! among the files of a folder. A file and the folder of its name count as one, without the
//! folder's `keys`: those of an engine or a fabric belong to its folder and to the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use super::columns::rust_files;

/// Crates, and the crates that they must not depend on. Unknown names are ignored.
const MUST_NOT_KNOW: &str = "
verbs ofi loadgen-log tune launch: fabric record qdl report submission engines
fabric record qdl report submission engines tune: program accelerator frontend gateway
fabric loadgen-bridge: record qdl report submission tune engines
record: qdl report submission tune loadgen-bridge engines
qdl: report submission tune loadgen-bridge engines
report submission: loadgen-bridge
report: engines program
engines: tune loadgen-bridge report submission
frontend-config: tune loadgen-bridge report submission program
loadgen-bridge disk launch: fabric qdl view machine program accelerator frontend
disk launch: record report submission engines tune loadgen-bridge
view: qdl
view machine program accelerator: report submission tune loadgen-bridge frontend
view machine program: engines accelerator
frontend: accelerator
capi: report submission tune loadgen-bridge engines program accelerator frontend gateway
gateway: record report submission tune loadgen-bridge engines accelerator frontend
world: report submission tune loadgen-bridge program engines accelerator frontend
fabric record qdl report submission tune engines accelerator frontend xtask: world
xtask: fabric qdl submission loadgen-bridge program engines accelerator frontend";

/// A module's path within its crate.
type Name = Vec<String>;

pub fn check(root: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    let workspace = read(&root.join("Cargo.toml"))?;
    let (_, members) = workspace.split_once("members = [").context("no members")?;
    let members = members.split(']').next().unwrap_or_default();
    let mut complaints = Vec::new();
    for member in members.split('"').skip(1).step_by(2) {
        let folder = root.join(member);
        complaints.extend(unwanted(member, &read(&folder.join("Cargo.toml"))?));
        let mut modules = BTreeMap::new();
        for file in rust_files(&folder.join("src"))? {
            let inside = file.strip_prefix(folder.join("src"))?.with_extension("");
            let words = inside.iter().map(|w| w.to_string_lossy().into_owned());
            let name: Name = words.filter(|w| w != "mod" && w != "lib").collect();
            if !name.iter().any(|w| w.ends_with("tests") || w == "main") {
                modules.insert(name.clone(), paths(&read(&file)?, &name));
            }
        }
        complaints.extend(circles(member, &with_keys_apart(&modules)));
    }
    Ok(complaints)
}

/// Forbidden dependencies of a crate; dev-dependencies do not count.
fn unwanted(member: &str, manifest: &str) -> Vec<String> {
    let name = manifest.split('"').nth(1).unwrap_or(member);
    let (mut complaints, mut inside) = (Vec::new(), false);
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]" || line.ends_with(".dependencies]");
        }
        let other = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if inside && rules(MUST_NOT_KNOW, name).any(|others| has(others, other)) {
            complaints.push(format!("{member}/Cargo.toml: {name} must not know {other}"));
        }
    }
    complaints
}

/// The texts after the colon, from the lines of a table that list `name` before the colon.
fn rules<'t>(table: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let lines = table.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(move |(names, _)| has(names, name))
        .map(|(_, rest)| rest)
}

fn has(names: &str, name: &str) -> bool {
    names.split(' ').any(|own| own == name)
}

/// The paths that a source names, from the crate's root. Skips comments and code for tests only;
/// relies on rustfmt's layout.
fn paths(text: &str, module: &Name) -> Vec<Name> {
    let (mut code, mut test) = (String::new(), false);
    for line in text.lines() {
        test |= line.starts_with("#[cfg(test") || line.starts_with("#[cfg(all(test");
        if !test {
            code += line.split("//").next().unwrap_or_default().trim();
            code.push(' ');
        }
        test &= line != "}" && (line.starts_with(' ') || !line.ends_with(';'));
    }
    let ends = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
    // Expand the innermost group first: `a::{b, c}` becomes `a::b, a::c`.
    while let Some(open) = code.rfind("::{") {
        let close = code[open..].find('}').map_or(code.len() - 1, |n| open + n);
        let start = code[..open].rfind(ends).map_or(0, |n| n + 1);
        let items = code[open + 3..close].split(',').map(str::trim);
        let items = items.filter(|item| !item.is_empty());
        let prefix = &code[start..open];
        let items: Vec<_> = items.map(|i| format!("{prefix}::{i}")).collect();
        code.replace_range(start..=close, &items.join(", "));
    }
    let mut found = Vec::new();
    for path in code.split(ends).filter(|word| word.contains("::")) {
        let mut at = module.clone();
        for word in path.split("::").filter(|word| !word.is_empty()) {
            match word {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                word => at.push(word.to_owned()),
            }
        }
        found.push(at);
    }
    found
}

/// Moves the file `keys` of each folder beside all folders.
fn with_keys_apart(modules: &BTreeMap<Name, Vec<Name>>) -> BTreeMap<Name, Vec<Name>> {
    let apart = |path: &Name| {
        let end = path.iter().position(|word| word == "keys").unwrap_or(0);
        match end > 0 && modules.contains_key(&path[..=end]) {
            true => [&[path[..=end].join("::")], &path[end + 1..]].concat(),
            false => path.clone(),
        }
    };
    let each = modules.iter();
    each.map(|(name, paths)| (apart(name), paths.iter().map(apart).collect()))
        .collect()
}

/// Circles among the files of each folder of a crate.
fn circles(krate: &str, modules: &BTreeMap<Name, Vec<Name>>) -> Vec<String> {
    // For each folder, pairs of a file and a file that it uses.
    let mut arrows: BTreeMap<&[String], BTreeSet<[&str; 2]>> = BTreeMap::new();
    let each = |(user, paths)| std::iter::repeat(user).zip(paths);
    for (user, path) in modules.iter().flat_map(each) {
        let depth = user.iter().zip(path).take_while(|(a, b)| a == b).count();
        let (folder, Some(file), Some(word)) = (&user[..depth], user.get(depth), path.get(depth))
        else {
            continue;
        };
        let is_file = |word| modules.contains_key(&[folder, std::slice::from_ref(word)].concat());
        // An item that the folder's own module re-exports belongs to the file that it comes from.
        let of_file = |p: &&Name| p.starts_with(folder) && p.get(depth + 1) == Some(word);
        let mut imports = modules.get(folder).into_iter().flatten();
        let passed_on = imports.find(|p| !is_file(word) && of_file(p));
        let used = passed_on.map_or(word, |p| &p[depth]);
        if used != file && is_file(used) {
            arrows.entry(folder).or_default().insert([file, used]);
        }
    }
    let mut complaints = Vec::new();
    for (folder, mut arrows) in arrows {
        // A file that uses no other, or that no other uses, is in no circle.
        let mut before = 0;
        while before != arrows.len() {
            before = arrows.len();
            let all = arrows.clone();
            let goes_on = |[from, to]: &[&str; 2]| {
                all.iter().any(|[user, _]| user == to) && all.iter().any(|[_, used]| used == from)
            };
            arrows.retain(goes_on);
        }
        let folder = format!("{krate}/src/{}", folder.join("/"));
        if !arrows.is_empty() {
            let arrows: Vec<_> = arrows.iter().map(|arrow| arrow.join(" uses ")).collect();
            complaints.push(format!("{folder}: in a circle, {}", arrows.join(", ")));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_circle_and_a_planted_dependency_are_named() {
        let tree = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = tree.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("Cargo.toml", "members = [\"qdl\"]\n");
        write(
            "qdl/Cargo.toml",
            "name = \"qdl\"\n[dev-dependencies]\nreport = \"1\"\n",
        );
        write("qdl/src/lib.rs", "mod a;\nmod b;\npub use b::{C, D};\n");
        write("qdl/src/a.rs", "use crate::{C as D, E};\n");
        let only_tests = "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n";
        write("qdl/src/b/mod.rs", only_tests);
        write("qdl/src/b/f.rs", "");
        assert_eq!(check(tree.path()).unwrap(), [""; 0]);
        write("qdl/src/b/f.rs", "fn f(_: &super::super::a::X<u8>) {}\n");
        write(
            "qdl/Cargo.toml",
            "name = \"qdl\"\n[dependencies]\nreport.workspace = true\n",
        );
        let dependency = "qdl/Cargo.toml: qdl must not know report";
        let circle = "qdl/src/: in a circle, a uses b, b uses a";
        assert_eq!(check(tree.path()).unwrap(), [dependency, circle]);
        std::fs::remove_file(tree.path().join("qdl/src/b/f.rs")).unwrap();
        write("qdl/src/b/mod.rs", "pub mod keys;\nuse crate::a::X;\n");
        write("qdl/src/b/keys.rs", "");
        write("qdl/src/a.rs", "use crate::b::keys::K;\n");
        assert_eq!(check(tree.path()).unwrap(), [dependency]);
        write("qdl/src/b/keys.rs", "use crate::a::X;\n");
        let circle = "qdl/src/: in a circle, a uses b::keys, b::keys uses a";
        assert_eq!(check(tree.path()).unwrap(), [dependency, circle]);
    }
}
