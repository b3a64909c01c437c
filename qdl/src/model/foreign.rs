//! Recognises files of formats that hold neither raw numbers nor a model, by their first bytes.

use std::{fs::File, io, os::unix::fs::FileExt};

/// Number of bytes that are read.
const BEGIN: usize = 512;

/// Format of a file in the place of samples, labels or a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFormat {
    /// Name, such as `a PNG image`.
    pub name: &'static str,
    /// How to get the file whose place this one takes; `None` if the content may be the data.
    pub instead: Option<&'static str>,
}

/// First bytes of binary formats.
const BINARY: [(&[u8], &str); 13] = [
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x1f\x8b\x08", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\xfd7zXZ\0", "compressed by xz"),
    (b"BZh91AY", "compressed by bzip2"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "a Parquet table"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x80\x04\x95", "a Python pickle"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"GGUF", "a GGUF file"),
    (b"QDLTOKEN", "a file of token ids, for `kind: tokens`"),
];

/// Fewest bytes of a text: fewer may be numbers that are printable by chance.
const SHORTEST_TEXT: usize = 12;

/// First bytes of small texts that version control keeps in the place of a file.
const POINTERS: [(&str, &str, &str); 3] = [
    ("version https://git-lfs", "a pointer of Git LFS", LFS),
    ("version https://hawser", "a pointer of Git LFS", LFS),
    ("/annex/objects/", "a pointer of git-annex", ANNEX),
];
const LFS: &str = "`git lfs pull` fetches the file itself";
const ANNEX: &str = "`git annex get` fetches the file itself";

impl ForeignFormat {
    /// The format of a file; `None` for numbers, models and unknown formats.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(file: &File) -> io::Result<Option<Self>> {
        let mut begin = [0; BEGIN];
        let got = file.read_at(&mut begin, 0)?;
        Ok(Self::of(&begin[..got]))
    }

    /// The format of a file that begins with these bytes. A text counts only if all bytes are
    /// printable, so that numbers are no text.
    fn of(begin: &[u8]) -> Option<Self> {
        let named = |name, instead| Some(ForeignFormat { name, instead });
        if let Some((_, name)) = BINARY.iter().find(|(magic, _)| begin.starts_with(magic)) {
            return named(name, None);
        }
        let text = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin);
        let printable = |b: &u8| matches!(b, b'\t'..=b'\r' | b' '..=b'~' | 0x80..);
        if text.len() < SHORTEST_TEXT || !text.iter().all(printable) {
            let safetensors = named("a safetensors file", None);
            return safetensors.filter(|_| is_safetensors(begin));
        }
        let text = String::from_utf8_lossy(text).to_ascii_lowercase();
        let text = text.trim_start();
        if let Some((_, name, instead)) = POINTERS.iter().find(|(t, ..)| text.starts_with(t)) {
            return named(name, Some(instead));
        }
        let mut marks = text.chars().filter(|c| !c.is_whitespace());
        match (marks.next()?, marks.next()?) {
            ('<', '!' | '?' | 'a'..='z') => {
                let page = "its text says why the download failed";
                let is_html = text.contains("html");
                let name = if is_html { "a web page (HTML)" } else { "XML" };
                named(name, Some(page))
            }
            ('{', '"' | '}') | ('[', '{' | '[' | '"' | '-' | '0'..='9') => named("JSON", None),
            _ => None,
        }
    }

    /// Name and remedy; `otherwise` is the remedy if the content may be the data.
    pub fn text(self, otherwise: &str) -> String {
        format!("{}: {}", self.name, self.instead.unwrap_or(otherwise))
    }
}

/// Whether a length and a JSON object of that length begin the file.
fn is_safetensors(begin: &[u8]) -> bool {
    let length = begin.first_chunk().map(|b| u64::from_le_bytes(*b));
    length.is_some_and(|n| (2..100 << 20).contains(&n)) && begin[8..].starts_with(b"{\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_place_of_a_file_is_named_with_the_way_to_the_file() {
        for (text, wanted) in [
            ("version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
            ("version https://hawser.github.com/spec/v1\n", "Git LFS"),
            ("/annex/objects/SHA256E-s5--59.npy\n", "git-annex"),
            ("\n<!DOCTYPE html>\n<title>", "HTML"),
            ("\u{feff}<HTML lang=\"de\">", "HTML"),
            ("<?xml version=\"1.0\"?><Error>", "XML"),
            ("{\"error\": \"rate limit\"}", "JSON"),
            ("{\n  \"caf\u{e9}\": 1", "JSON"),
            ("[[1, 2], [3]]", "JSON"),
            ("PK\u{3}\u{4}....", "zip"),
            ("\u{10}\0\0\0\0\0\0\0{\"w\":{", "safetensors"),
        ] {
            let found = ForeignFormat::of(text.as_bytes()).expect(text);
            assert!(found.name.contains(wanted), "{text}: {found:?}");
            let is_data = ["JSON", "zip", "safetensors"].contains(&wanted);
            assert_eq!(found.instead.is_none(), is_data, "{text}");
        }
    }

    #[test]
    fn numbers_and_other_texts_have_no_format() {
        let floats: Vec<u8> = (0..64u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        for begin in [
            &b"{\"\0\0\0\0\0\0"[..],
            b"<a\x01\x02",
            b"[2345678901",
            b"{123456789012",
            b"version 3 of it",
            b"\x08\x07\x12\x07pytorch",
            &[b'1'; 600],
            &floats,
        ] {
            assert_eq!(ForeignFormat::of(begin), None, "{begin:?}");
        }
    }
}
