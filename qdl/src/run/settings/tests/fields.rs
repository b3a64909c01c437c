//! Every public field and accessor of the configuration is read by code outside of it.

use std::path::Path;

/// Public fields, and public methods with their bodies, of files in `qdl/src/config`.
#[derive(Default)]
struct Items {
    fields: Vec<String>,
    methods: Vec<(String, String)>,
}

impl Items {
    fn read(&mut self, text: &str) {
        let mut public_type = false;
        let mut method: Option<usize> = None;
        for line in text.lines() {
            if !line.starts_with([' ', '}']) {
                public_type = line.contains("struct ");
            }
            if let Some(field) = line.strip_prefix("    pub ").filter(|_| public_type) {
                let name = field.split(':').next().unwrap_or_default();
                self.fields.push(name.to_owned());
            } else if line.starts_with("    pub fn ") && line.contains("self") {
                let name = line["    pub fn ".len()..].split('(').next();
                let name = name.unwrap_or_default().to_owned();
                self.methods.push((name, String::new()));
                method = Some(self.methods.len() - 1);
            } else if let [name, from, key] = line.split_whitespace().collect::<Vec<_>>()[..]
                && ["from_millis", "from_secs"].contains(&from)
            {
                // A line of `durations!`.
                self.methods
                    .push((name.to_owned(), format!("self.{key}\n")));
            } else if line == "    }" {
                method = None;
            } else if let Some(method) = method {
                self.methods[method].1.push_str(line);
                self.methods[method].1.push('\n');
            }
        }
    }

    /// Fields and methods that no code in `rest` reads, directly or through a called method.
    fn dead(&self, rest: &str) -> Vec<String> {
        let mut seen = rest.to_owned();
        let mut left: Vec<_> = self.methods.iter().collect();
        // A called method makes the fields that its body reads live.
        while let Some(i) = left.iter().position(|(name, _)| reads(&seen, name)) {
            seen.push_str(&left.swap_remove(i).1);
        }
        let fields = self.fields.iter().filter(|f| !reads(&seen, f)).cloned();
        fields
            .chain(left.into_iter().map(|(name, _)| format!("{name}()")))
            .collect()
    }
}

/// Code under `path` (a folder or a file, relative to the root), without tests, comments, and files
/// below `without`.
fn code(path: &str, without: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut todo = vec![root.join(path)];
    let mut text = String::new();
    while let Some(path) = todo.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let skipped = !without.is_empty() && path.ends_with(without);
        if skipped || name.contains("tests") {
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

fn production(file: &str) -> String {
    let code = file.split("#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or_default().lines();
    lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// Whether `text` contains `.name` as a whole word, or `.name(` for a call.
fn reads(text: &str, name: &str) -> bool {
    let dotted = format!(".{name}");
    text.match_indices(&dotted).any(|(at, found)| {
        let next = text[at + found.len()..].chars().next().unwrap_or(' ');
        !next.is_alphanumeric() && next != '_'
    })
}

/// Code of the programs without the configuration.
fn rest() -> String {
    ["qdl/src", "frontend/src", "accelerator/src"]
        .map(|path| code(path, "qdl/src/config"))
        .concat()
}

#[test]
fn every_field_is_read() {
    let mut items = Items::default();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config");
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let named = |name: &str| path.file_name().is_some_and(|n| n == name);
        // Errors are displayed, not configured.
        if path.extension().is_some_and(|e| e == "rs") && !named("error.rs") {
            items.read(&production(&std::fs::read_to_string(&path).expect("text")));
        }
    }
    assert!(items.fields.len() > 90, "{}", items.fields.len());
    assert!(items.methods.len() > 20, "{}", items.methods.len());
    assert_eq!(items.dead(&rest()), [""; 0], "no code reads these");
}

const TYPE: &str = "
pub struct Config {
    pub alive: u64,
    pub by_way_of: u64,
    pub dead: u64,
    pub checked: u64,
}
impl Config {
    pub fn way(&self) -> u64 {
        self.by_way_of
    }
    pub fn unused(&self) -> u64 {
        self.dead
    }
    pub(super) fn check(&self) {
        self.checked;
    }
}
";

#[test]
fn a_dead_field_is_found() {
    let mut items = Items::default();
    items.read(TYPE);
    let dead = items.dead("config.alive; config.way(); config.deadly");
    assert_eq!(dead, ["dead", "checked", "unused()"]);
}
