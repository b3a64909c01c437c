//! Rust source, read as far as the checks of this folder need: what is code, what is a comment,
//! what is text in a literal, and what is compiled for tests alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What a byte of a source file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything that is none of the others.
    Code,
    /// A comment, its marks included.
    Comment,
    /// A string or character literal, its quotation marks included.
    Literal,
}

/// The kind of each byte.
pub fn kinds(text: &str) -> Vec<Kind> {
    let bytes = text.as_bytes();
    let mut kinds = vec![Kind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (kind, end) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => (Kind::Comment, line_end(bytes, at)),
            b'/' if bytes[at..].starts_with(b"/*") => (Kind::Comment, block_end(bytes, at)),
            b'"' => (Kind::Literal, string_end(bytes, at)),
            b'\'' => match character_end(text, at) {
                Some(end) => (Kind::Literal, end),
                None => (Kind::Code, at + 1),
            },
            b'r' | b'b' | b'c' if at == 0 || !is_word(bytes[at - 1]) => {
                match raw_string_end(bytes, at) {
                    Some(end) => (Kind::Literal, end),
                    None => (Kind::Code, at + 1),
                }
            }
            _ => (Kind::Code, at + 1),
        };
        let end = end.clamp(at + 1, bytes.len());
        kinds[at..end].fill(kind);
        at = end;
    }
    kinds
}

/// The code alone: everything else is blanks, and line breaks stay where they are.
pub fn code(text: &str) -> String {
    let kept = |(byte, kind): (u8, Kind)| match (byte, kind) {
        (b'\n', _) => '\n',
        (_, Kind::Code) if byte.is_ascii() => char::from(byte),
        _ => ' ',
    };
    text.bytes().zip(kinds(text)).map(kept).collect()
}

/// Rust files below a folder, in order; hidden folders and build folders are left out.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder);
    for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    let rest = bytes[at..].iter().position(|&byte| byte == b'\n');
    rest.map_or(bytes.len(), |length| at + length)
}

/// Block comments nest.
fn block_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// `r"..."`, `br#"..."#` and the like; `None` where no raw string begins.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix = if bytes[at] == b'r' { 1 } else { 2 };
    if bytes.get(at + prefix - 1) != Some(&b'r') {
        return None;
    }
    let open = at + prefix;
    let hashes = bytes[open..].iter().take_while(|&&b| b == b'#').count();
    if bytes.get(open + hashes) != Some(&b'"') {
        return None;
    }
    let close = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let body = open + hashes + 1;
    let length = bytes[body..]
        .windows(close.len())
        .position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| body + length + close.len()))
}

/// The end of a character literal; `None` where it is a lifetime.
fn character_end(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at + 1..];
    let mut characters = rest.char_indices();
    let (_, first) = characters.next()?;
    if first == '\\' {
        // The character behind the backslash may be a quotation mark itself.
        characters.next();
        let (end, _) = characters.find(|(_, character)| *character == '\'')?;
        return Some(at + 1 + end + 1);
    }
    let (end, second) = characters.next()?;
    (second == '\'').then_some(at + 1 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = r##"let a = "crate::x \" y"; // crate::z
let b = r#"crate::"q" "#; /* crate:: /* nested */ crate:: */ let c = '"'; let d: &'a str = '\'';
let e = b"crate::"; 'outer: loop { rest() }"##;
        let code = code(text);
        assert!(!code.contains("crate"), "{code}");
        for kept in [
            "let a =",
            "let b =",
            "let c =",
            "&'a str",
            "'outer: loop { rest() }",
        ] {
            assert!(code.contains(kept), "`{kept}` is gone: {code}");
        }
        assert_eq!(code.lines().count(), 3);
    }

    #[test]
    fn what_is_never_closed_ends_with_the_file() {
        for text in ["\"", "/* /* */", "r##\"\"#", "'\\", "let a = '", "b", "r"] {
            assert_eq!(kinds(text).len(), text.len());
        }
    }
}
