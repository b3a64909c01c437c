//! Replaces files at once.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use super::Temporary;

/// The system's words for an error, without a capital: `no space left on device (os error 28)`.
pub fn words(error: &io::Error) -> String {
    let mut text = error.to_string();
    text.get_mut(..1)
        .into_iter()
        .for_each(str::make_ascii_lowercase);
    text
}

/// Writes `bytes` to a file beside `path`, waits until they are on the disk, and renames the file
/// to `path`. After an error or a kill, `path` is as before. Writes to a device or a pipe directly.
///
/// # Errors
/// The system's error, in the words of [`words`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    replace(path, bytes.as_ref()).map_err(|e| io::Error::new(e.kind(), words(&e)))
}

/// Like [`write()`]; creates the folders above the file.
///
/// # Errors
/// One line that names the file.
pub fn write_below(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), String> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = made.and_then(|()| write(path, bytes));
    written.map_err(|e| cannot_write(path, &e))
}

/// The message of a file or folder that cannot be written.
pub fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {}", path.display(), words(error))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays, and its file is replaced.
    let to =
        fs::canonicalize(path).or_else(|_| fs::read_link(path).map(|to| path.with_file_name(to)));
    let path = &to.unwrap_or_else(|_| path.to_owned());
    let there = fs::metadata(path).ok();
    let Some(name) = path
        .file_name()
        .filter(|_| there.as_ref().is_none_or(|m| m.is_file()))
    else {
        return fs::write(path, bytes);
    };
    let name = format!(".{}.part", name.to_string_lossy());
    let part = Temporary::new(path.with_file_name(name));
    let mut file = File::create(&*part)?;
    if let Some(there) = there {
        file.set_permissions(there.permissions())?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&*part, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        // The name of the file beside `long` is too long.
        let [own, link, long] = ["own", "link", &"x".repeat(252)].map(|n| folder.path().join(n));
        symlink("own", &link).expect("made");
        for text in ["old", "new"] {
            write(&link, text).expect("room");
            assert_eq!(fs::read_to_string(&own).expect("there"), text);
        }
        fs::write(&long, "old").expect("written");
        write(&long, "new").expect_err("too long");
        assert_eq!(fs::read(&long).expect("there"), b"old");
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 3);
        let error = write(Path::new("/dev/full"), "x").expect_err("full");
        assert_eq!(error.to_string(), "no space left on device (os error 28)");
    }
}
