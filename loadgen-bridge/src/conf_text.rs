//! The text of a `user.conf` or `audit.config`, and a path from which LoadGen reads it correctly.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::LoadgenError;

/// UTF-8's byte order mark, which LoadGen reads as part of the first key.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Whether the file begins with a byte order mark; false if the file cannot be read.
pub fn has_byte_order_mark(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.starts_with(MARK))
}

/// The text of a file without its byte order mark.
pub(crate) struct ConfText {
    text: String,
    path: CString,
    /// The copy that LoadGen reads, if the file has a byte order mark.
    _copy: Option<File>,
}

impl ConfText {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is UTF-16 or binary.
    pub(crate) fn read(path: &Path) -> Result<Self, LoadgenError> {
        let name = path.display();
        let failed = |error| LoadgenError::Conf(format!("cannot read {name}: {error}"));
        let bytes = fs::read(path).map_err(failed)?;
        if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || bytes.contains(&0) {
            let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
            let line = 1 + text.iter().filter(|b| **b == b'\n').count();
            return Err(LoadgenError::Conf(format!(
                "{name}:{line}: it is not UTF-8 but UTF-16 or binary: save it as UTF-8"
            )));
        }
        let (text, copy) = match bytes.strip_prefix(MARK) {
            Some(rest) => (rest, Some(copy_of(rest).map_err(failed)?)),
            None => (&bytes[..], None),
        };
        let own = path.as_os_str().as_bytes().to_vec();
        let read = copy.as_ref().map_or(own, |copy| {
            format!("/proc/self/fd/{}", copy.as_raw_fd()).into_bytes()
        });
        Ok(Self {
            text: String::from_utf8_lossy(text).into_owned(),
            path: CString::new(read).map_err(|_| LoadgenError::Nul { field: "the path" })?,
            _copy: copy,
        })
    }

    /// The lines as LoadGen divides them, numbered from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    /// The path for LoadGen; valid while `self` lives.
    pub(crate) fn path(&self) -> &CStr {
        &self.path
    }
}

/// Makes an unnamed file in memory with these bytes.
fn copy_of(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a C string; the new descriptor has no other owner.
    let mut file = unsafe {
        match libc::memfd_create(c"conf".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            fd => File::from_raw_fd(fd),
        }
    };
    file.write_all(bytes)?;
    Ok(file)
}

/// The words of a line as LoadGen divides it: at ASCII white space only.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    let space = |c| matches!(c, ' ' | '\t' | '\x0b' | '\x0c' | '\r');
    line.split(space).filter(|word| !word.is_empty())
}

/// Whether editors, but not LoadGen, begin a new line at the character.
pub(crate) fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The first character that looks empty or like a space, but is no space to LoadGen.
pub(crate) fn unseen(line: &str) -> Option<char> {
    line.chars().find(|c| {
        let blank = c.is_whitespace() && !c.is_ascii();
        let zero =
            matches!(*c, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}');
        let control = c.is_control() && !matches!(c, '\t' | '\x0b' | '\x0c' | '\r');
        blank || zero || control || matches!(*c, '\u{feff}' | '\u{fffd}')
    })
}

/// The name nearest to `word`, if the distance suggests a spelling error.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word_lower = word.to_lowercase();
    let far = |name: &str| strsim::levenshtein(&word_lower, &name.to_lowercase());
    let beginning = |name: &str| word.len() > 4 && name.starts_with(word);
    let near = names.into_iter().map(|name| match beginning(name) {
        true => (0, name),
        false => (far(name), name),
    });
    near.min()
        .filter(|(far, _)| *far <= 2)
        .map(|(_, name)| name)
}
