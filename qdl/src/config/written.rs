//! Which keys a file writes, and where: who reports a value says where it came from.

use std::{collections::BTreeMap, path::Path};

use super::{error::ConfigError, load::written_keys};

/// The keys of one file that have a value of their own, as in `nics[0].slots`, and their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    name: String,
    lines: BTreeMap<String, usize>,
}

impl Written {
    /// Reads a file again that was loaded.
    ///
    /// # Errors
    /// [`ConfigError`]: it cannot be read any more.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(Written {
            name: name.to_string_lossy().into_owned(),
            lines: written_keys(path)?.into_iter().collect(),
        })
    }

    /// The file's name, without its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The line of a key, from 1; `None` where the file does not write it.
    pub fn line(&self, key: &str) -> Option<usize> {
        self.lines.get(key).copied()
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
}
