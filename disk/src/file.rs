//! Replaces files at once.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::Path,
};

use super::Temporary;

/// Suffix of a file that is being written.
pub(crate) const PART: &str = ".qdl-part";

/// The system's words for an error, without a capital: `no space left on device (os error 28)`.
pub fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

/// Writes `bytes` to a file beside `path`, waits until they are on the disk, and renames the file
/// to `path`. After an error or a kill, `path` is as before. Writes to a device or a pipe directly.
///
/// # Errors
/// The system's error, in the words of [`words`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    replace(path, bytes.as_ref()).map_err(|e| io::Error::new(e.kind(), words(&e)))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays, and its file is replaced.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let there = fs::metadata(path).ok();
    let Some(name) = path
        .file_name()
        .filter(|_| there.as_ref().is_none_or(|m| m.is_file()))
    else {
        return fs::write(path, bytes);
    };
    let name = format!(".{}.{}{PART}", name.to_string_lossy(), std::process::id());
    let part = Temporary::new(path.with_file_name(name));
    let mut file = File::create(&*part)?;
    if let Some(there) = there {
        file.set_permissions(there.permissions())?;
    }
    file.write_all(bytes)?;
    match file.sync_all() {
        // The file system has no such call.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
        synced => synced?,
    }
    fs::rename(&*part, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("own"), "old").expect("written");
        symlink("own", at("link")).expect("made");
        write(&at("link"), "new").expect("room");
        assert!(at("link").is_symlink());
        assert_eq!(fs::read(at("own")).expect("there"), b"new");
        // The name of the file beside it is too long.
        let long = at(&"x".repeat(250));
        fs::write(&long, "old").expect("written");
        write(&long, "new").expect_err("too long");
        assert_eq!(fs::read(&long).expect("there"), b"old");
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 3);
    }

    #[test]
    fn a_full_device_has_the_systems_words() {
        let error = write(Path::new("/dev/full"), "x").expect_err("full");
        let expected = "no space left on device (os error 28)";
        assert_eq!(
            (error.kind(), &*error.to_string()),
            (ErrorKind::StorageFull, expected)
        );
    }
}
