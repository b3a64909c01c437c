//! Paths in configurations, and atomic writing of several files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use disk::Temporary;
use qdl::control::Token;

use super::Result;

/// Suffix of a written file's name until `init` has checked the file.
const UNTRIED: &str = ".untried";

/// Files under temporary names until they are checked.
pub(super) struct Staged {
    folder: PathBuf,
    force: bool,
    /// Each file with its final path.
    files: Vec<(Temporary, PathBuf)>,
}

impl Staged {
    pub fn new(folder: &Path, force: bool) -> Self {
        Staged {
            folder: folder.to_owned(),
            force,
            files: Vec::new(),
        }
    }

    pub fn may_write(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        if !self.force && path.symlink_metadata().is_ok() {
            bail!(
                "{} is there: --force overwrites it, --output writes elsewhere",
                shown(&path)
            );
        }
        Ok(())
    }

    /// Returns a file's temporary path, in the final folder: relative paths in the file are valid.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{UNTRIED}"))
    }

    pub fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        let path = Temporary::new(path);
        disk::write(&path, text).with_context(|| path.display().to_string())?;
        self.files.push((path, self.folder.join(name)));
        Ok(())
    }

    pub fn keep(self) -> Result<()> {
        for (from, to) in self.files {
            fs::rename(&*from, &to).with_context(|| to.display().to_string())?;
        }
        Ok(())
    }
}

/// A file's path for a configuration in `folder`: relative if the file is inside, so that folder
/// and file can move together. Does not follow links, because related files lie beside the link.
pub(super) fn named_from(folder: &Path, file: &Path) -> String {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let file = whole(file);
    let inside = file.strip_prefix(whole(folder)).unwrap_or(&file);
    inside.display().to_string()
}

/// Formats a path for display and for a shell.
pub(super) fn shown(path: &Path) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./+-=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Writes a random token that only the owner can read, unless the file exists.
pub(super) fn token(path: &Path) -> Result<()> {
    if path.is_file() {
        return Ok(());
    }
    let token = Token::random()?;
    token
        .write_new(path)
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_of_the_folder_moves_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("m.onnx"), "").expect("written");
        let (dir, other) = (folder.path(), tempfile::tempdir().expect("a folder"));
        assert_eq!(named_from(dir, &dir.join("m.onnx")), "m.onnx");
        let link = dir.join("link.onnx");
        std::os::unix::fs::symlink(dir.join("m.onnx"), &link).expect("a link");
        assert_eq!(named_from(dir, &link), "link.onnx");
        let far = named_from(other.path(), &link);
        assert_eq!(Path::new(&far), link, "weights lie beside the link");
        let far = named_from(other.path(), &dir.join("m.onnx"));
        assert!(
            Path::new(&far).is_absolute() && far.ends_with("/m.onnx"),
            "{far}"
        );
    }

    #[test]
    fn a_shell_reads_a_path_as_one_word() {
        assert_eq!(shown(Path::new("./a/b-1.yaml")), "a/b-1.yaml");
        assert_eq!(shown(Path::new("a b/it's")), r"'a b/it'\''s'");
    }

    #[test]
    fn a_token_is_made_once_and_for_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        token(&path).expect("made");
        let made = fs::read_to_string(&path).expect("text");
        assert_eq!(made.trim().len(), 64);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        token(&path).expect("there");
        assert_eq!(fs::read_to_string(&path).expect("text"), made);
    }
}
