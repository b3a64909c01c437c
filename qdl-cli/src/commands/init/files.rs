//! Paths in configurations, and atomic writing of several files.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, bail};
use disk::Temporary;
use qdl::control::Token;

use super::Result;

/// Suffix of a written file's name until `init` has checked the file.
const UNTRIED: &str = ".untried";

/// Files under temporary names until they are checked. A drop removes the files that were not
/// kept, and a token that was written for them.
pub(super) struct Staged {
    folder: PathBuf,
    force: bool,
    /// Each file with its final path.
    files: Vec<(Temporary, PathBuf)>,
    token: Option<PathBuf>,
}

impl Staged {
    pub fn new(folder: &Path, force: bool) -> Self {
        Staged {
            folder: folder.to_owned(),
            force,
            files: Vec::new(),
            token: None,
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

    /// Writes a random token that only the owner can read, unless the file exists.
    pub fn token(&mut self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        if !path.is_file() {
            let written = Token::random()?.write_new(&path);
            written.with_context(|| path.display().to_string())?;
            self.token = Some(path);
        }
        Ok(())
    }

    /// Gives the files their names; returns their paths.
    pub fn keep(mut self) -> Result<Vec<PathBuf>> {
        let mut kept = Vec::new();
        for (from, to) in std::mem::take(&mut self.files) {
            fs::rename(&*from, &to).with_context(|| to.display().to_string())?;
            kept.push(to);
        }
        kept.extend(self.token.take());
        Ok(kept)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            let _ = fs::remove_file(token);
        }
    }
}

/// Removes `.` and each `NAME/..` from a path, except where NAME is a link.
pub(super) fn normalised(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        let last = plain.components().next_back();
        match (part, last) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) if !plain.is_symlink() => {
                plain.pop();
            }
            (part, _) => plain.push(part),
        }
    }
    match plain.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => plain,
    }
}

/// A file's path for a configuration in `folder`: relative if the file is inside, so that folder
/// and file can move together. Does not follow links, because related files lie beside the link.
pub(super) fn named_from(folder: &Path, file: &Path) -> String {
    let whole = |path: &Path| normalised(&std::path::absolute(path).unwrap_or(path.to_owned()));
    let file = whole(file);
    let inside = file.strip_prefix(whole(folder)).unwrap_or(&file);
    inside.display().to_string()
}

/// Formats a path for display and for a shell.
pub(super) fn shown(path: &Path) -> String {
    let text = normalised(path).display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./+-=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
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
    fn a_path_has_no_way_back_except_over_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        std::os::unix::fs::symlink("/usr/lib", dir.join("link")).expect("a link");
        let over = dir.join("link/../m.onnx");
        assert_eq!(normalised(&over), over);
        assert_eq!(named_from(&dir.join("x/../y"), &dir.join("./y/m")), "m");
        let far = named_from(&dir.join("x"), &dir.join("x/../y/m"));
        assert_eq!(Path::new(&far), dir.join("y/m"));
        for (path, plain) in [("./x/../y", "y"), ("x/..", "."), ("../x", "../x")] {
            assert_eq!(shown(Path::new(path)), plain);
        }
    }

    #[test]
    fn a_token_is_made_once_for_its_owner_and_goes_with_files_that_are_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let staged = || {
            let mut staged = Staged::new(folder.path(), false);
            staged.token("token").expect("a token");
            staged
        };
        drop(staged());
        assert!(!path.exists());
        assert_eq!(staged().keep().expect("kept"), std::slice::from_ref(&path));
        let made = fs::read_to_string(&path).expect("text");
        assert_eq!(made.trim().len(), 64);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(staged());
        assert_eq!(fs::read_to_string(&path).expect("text"), made);
    }
}
