//! The modules of a crate, the file that a path leads to, and the arrows between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::circles::Arrow;
use super::imports::{Named, Source};

/// A module's name within its crate; empty for the root.
type Name = Vec<String>;

/// A crate's modules, those for tests left out.
pub struct Crate {
    modules: BTreeMap<Name, Module>,
    /// Arrows from rooms to other crates of the workspace.
    pub foreign: Vec<Arrow>,
}

struct Module {
    file: PathBuf,
    source: Source,
    /// Names that it passes on with `pub use`, and where they come from.
    exports: BTreeMap<String, Name>,
}

/// Arrows of a crate.
pub struct Arrows {
    /// Between its rooms.
    pub rooms: Vec<Arrow>,
    /// Within each folder: between what lies in its subfolders, and in its own files.
    pub inside: Vec<Vec<Arrow>>,
}

impl Crate {
    /// Reads all modules of the crate in folder `name` below `root`.
    pub fn read(root: &Path, name: &str, members: &[String]) -> Result<Self> {
        let source = Path::new(name).join("src");
        let file = ["lib.rs", "main.rs"]
            .map(|file| source.join(file))
            .into_iter()
            .find(|file| root.join(file).is_file())
            .with_context(|| format!("{} has neither lib.rs nor main.rs", source.display()))?;
        let crates: Vec<_> = members.iter().map(|name| name.replace('-', "_")).collect();
        let mut krate = Self {
            modules: BTreeMap::new(),
            foreign: Vec::new(),
        };
        krate.add(root, Name::new(), file, &source, &crates)?;
        krate.note_exports();
        let mut foreign = Vec::new();
        for (name, module) in &krate.modules {
            for named in &module.source.names {
                let first = named.path[0].as_str();
                let member = members.iter().find(|m| m.replace('-', "_") == first);
                let (Some(member), Some(room)) = (member, name.first()) else {
                    continue;
                };
                if !module.source.modules.iter().any(|module| module == first) {
                    foreign.push(Arrow {
                        from: room.clone(),
                        to: member.clone(),
                        place: module.place(named),
                    });
                }
            }
        }
        krate.foreign = foreign;
        Ok(krate)
    }

    fn add(
        &mut self,
        root: &Path,
        name: Name,
        file: PathBuf,
        folder: &Path,
        crates: &[String],
    ) -> Result<()> {
        let text = std::fs::read_to_string(root.join(&file))
            .with_context(|| format!("reading {}", file.display()))?;
        let source = Source::read(&text, crates);
        for module in &source.modules {
            let mut child = name.clone();
            child.push(module.clone());
            let files = [
                folder.join(format!("{module}.rs")),
                folder.join(module).join("mod.rs"),
            ];
            let Some(there) = files.into_iter().find(|file| root.join(file).is_file()) else {
                bail!("{}: there is no file of `mod {module};`", file.display());
            };
            self.add(root, child, there, &folder.join(module), crates)?;
        }
        let module = Module {
            file,
            source,
            exports: BTreeMap::new(),
        };
        self.modules.insert(name, module);
        Ok(())
    }

    fn note_exports(&mut self) {
        let mut all = Vec::new();
        for (name, module) in &self.modules {
            for named in module.source.names.iter().filter(|n| n.public) {
                if let (Some(from), Some(leaf)) = (self.absolute(name, named), named.path.last()) {
                    all.push((name.clone(), leaf.clone(), from));
                }
            }
        }
        for (name, leaf, from) in all {
            if let Some(module) = self.modules.get_mut(&name) {
                module.exports.insert(leaf, from);
            }
        }
    }

    /// The rooms.
    pub fn rooms(&self) -> BTreeSet<&str> {
        let names = self.modules.keys().filter_map(|name| name.first());
        names.map(String::as_str).collect()
    }

    /// A path from the crate's root on; `None` for one that leads to another crate.
    fn absolute(&self, name: &Name, named: &Named) -> Option<Name> {
        let mut at = [&name[..], &named.inline[..]].concat();
        let mut rest = &named.path[..];
        match rest[0].as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                let mut whole = at.clone();
                whole.push(child.to_owned());
                if !self.modules.contains_key(&whole) {
                    return None;
                }
            }
        }
        at.extend_from_slice(rest);
        Some(at)
    }

    /// The module that holds what a path names. What a module passes on from within its own room is
    /// looked for where it comes from, and so is what the crate's root passes on.
    fn resolve(&self, path: &[String], most: u32) -> Name {
        let mut at = Name::new();
        for word in path {
            let mut next = at.clone();
            next.push(word.clone());
            if self.modules.contains_key(&next) {
                at = next;
                continue;
            }
            let from = self.modules.get(&at).and_then(|m| m.exports.get(word));
            if let Some(from) = from
                && most > 0
                && (at.is_empty() || from.first() == at.first())
            {
                return self.resolve(from, most - 1);
            }
            break;
        }
        at
    }

    /// A module whose file stands alone in its folder, without modules of its own.
    fn is_leaf(&self, name: &Name) -> bool {
        let module = self.modules.get(name);
        module.is_some_and(|module| module.source.modules.is_empty())
    }

    /// All arrows of the crate.
    pub fn arrows(&self) -> Arrows {
        let mut rooms = Vec::new();
        let mut inside: BTreeMap<Name, Vec<Arrow>> = BTreeMap::new();
        for (name, module) in &self.modules {
            for named in &module.source.names {
                let Some(path) = self.absolute(name, named) else {
                    continue;
                };
                let to = self.resolve(&path, 8);
                let (Some(here), Some(there)) = (name.first(), to.first()) else {
                    continue;
                };
                if here != there {
                    rooms.push(Arrow {
                        from: here.clone(),
                        to: there.clone(),
                        place: module.place(named),
                    });
                    continue;
                }
                let shared = name.iter().zip(&to).take_while(|(a, b)| a == b).count();
                let folder = name[..shared].to_vec();
                // A folder's own module puts together what lies below it.
                if *name == folder {
                    continue;
                }
                let (from, to) = (self.part(&folder, name), self.part(&folder, &to));
                if from != to {
                    inside.entry(folder).or_default().push(Arrow {
                        from,
                        to,
                        place: module.place(named),
                    });
                }
            }
        }
        Arrows {
            rooms,
            inside: inside.into_values().collect(),
        }
    }

    /// The part of a folder that a module belongs to: a subfolder, or the folder's own files.
    fn part(&self, folder: &Name, name: &Name) -> String {
        let own =
            name.len() == folder.len() || (name.len() == folder.len() + 1 && self.is_leaf(name));
        let part = if own {
            folder
        } else {
            &name[..=folder.len()].to_vec()
        };
        part.join("::")
    }
}

impl Module {
    fn place(&self, named: &Named) -> String {
        format!("{}:{}", self.file.display(), named.line)
    }
}
