//! The keys that a file sets, with their lines, for reports of a value's source.

use std::{collections::BTreeMap, path::Path};

use fabric::kinds::{EachFabric, NAMING_KEYS, NicFabric};

use super::{
    document::Document,
    error::{ConfigError, Problem},
    load::written_keys,
};

/// The keys of one file that have a scalar or list value, such as `nics[0].slots`, with lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    name: String,
    /// Path of the file as the user named it.
    origin: String,
    text: String,
    lines: BTreeMap<String, usize>,
    /// Per NIC: index of the file's entry that represents the NIC; empty until it is set.
    nics: Vec<usize>,
}

/// Whether a key of an entry names a NIC or its GPU. The topology sets these keys for an entry with
/// `match`.
fn is_name(key: &str) -> bool {
    struct PlaceKeys<'k>(&'k str, bool);
    impl EachFabric for PlaceKeys<'_> {
        fn visit<K: Default>(&mut self, _: &'static str, make: fn(K) -> NicFabric) {
            self.1 |= make(K::default()).facts().place_keys.contains(&self.0);
        }
    }
    let mut of_place = PlaceKeys(key, false);
    NicFabric::each(&mut of_place);
    let names_fabric = NAMING_KEYS.iter().any(|(_, keys)| keys.contains(&key));
    of_place.1 || (names_fabric && key != "match") || key == "gpu"
}

impl Written {
    /// Reads a loaded file again.
    ///
    /// # Errors
    /// [`ConfigError`] if the file cannot be read any more.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.file_name().unwrap_or(path.as_os_str());
        let (keys, text) = written_keys(path)?;
        Ok(Written {
            name: name.to_string_lossy().into_owned(),
            origin: path.display().to_string(),
            text,
            lines: keys,
            nics: Vec::new(),
        })
    }

    /// Whether the key names a NIC: `nics[0].device`.
    pub fn names_nic(key: &str) -> bool {
        let key = key
            .strip_prefix("nics[")
            .and_then(|key| key.split_once("]."));
        key.is_some_and(|(_, key)| is_name(key))
    }

    /// Sets the file's entry `of[i]` as the source of entry `i` of `nics`.
    pub fn set_nic_entries(&mut self, of: Vec<usize>) {
        self.nics = of;
    }

    /// Returns the file's name, without its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A problem of a key or its value, with its place; `None` if the file does not set the key.
    pub fn problem(&self, key: &str, what: String) -> Option<Problem> {
        self.line(key)?;
        let place = Document::new(&self.text).locate(key);
        Some(Problem::new(&self.origin, &self.text, place, what, None))
    }

    /// Returns the line of a key, from 1; `None` if the file does not set the key.
    pub fn line(&self, key: &str) -> Option<usize> {
        self.entry(key)
            .unwrap_or_else(|| self.lines.get(key).copied())
    }

    /// Returns the line of a NIC's key, in the entry that represents the NIC.
    fn entry(&self, key: &str) -> Option<Option<usize>> {
        let (index, key) = key.strip_prefix("nics[")?.split_once("].")?;
        let of = self.nics.get(index.parse::<usize>().ok()?)?;
        let line = |key: &str| self.lines.get(&format!("nics[{of}].{key}")).copied();
        let matched = || is_name(key).then(|| line("match")).flatten();
        Some(line(key).or_else(matched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_lines_of_their_values() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text =
            "node: a\nnics:\n  - slots: 7\n    completion: {mode: poll}\n  - {}\nx:\n  - 3\n";
        std::fs::write(file.path(), text).expect("written");
        let written = Written::read(file.path()).expect("read");
        let lines = [
            "node",
            "nics[0].slots",
            "nics[0].completion.mode",
            "x",
            "nics",
            "none",
        ];
        let lines = lines.map(|key| written.line(key));
        assert_eq!(lines, [Some(1), Some(3), Some(4), Some(7), None, None]);
        assert!(Written::read("/no/such/file").is_err());
    }

    #[test]
    fn nics_that_one_entry_stands_for_have_its_lines() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "nics:\n  - address: 127.0.0.1\n  - match: x*\n    slots: 7\n";
        std::fs::write(file.path(), text).expect("written");
        let mut written = Written::read(file.path()).expect("read");
        written.set_nic_entries(vec![0, 1, 1]);
        for (key, line) in [
            ("nics[0].address", Some(2)),
            ("nics[0].slots", None),
            ("nics[1].domain", Some(3)),
            ("nics[2].domain", Some(3)),
            ("nics[2].slots", Some(4)),
            ("nics[2].connections", None),
            ("nics[3].slots", None),
        ] {
            assert_eq!(written.line(key), line, "{key}");
        }
    }
}
