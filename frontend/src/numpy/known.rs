//! Formats by how a file begins, so that none is taken for raw bytes.

use std::{fs::File, io, os::unix::fs::FileExt};

use super::header;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Bytes without a format that is known here.
    Raw,
    /// One array of NumPy's.
    Npy,
    /// Several, or any other archive.
    Zip,
    /// Another, in words, and what to do with it.
    Other(&'static str, &'static str),
}

const DECODE: &str = "decode what it holds, and write it with np.save, or its bytes alone";
const UNPACK: &str = "unpack it first";
const CONVERT: &str = "read it with Python, and write its numbers with np.save";
const TOKENS: &str = "`kind: tokens` reads it";

/// By the first bytes.
const BEGINNINGS: [(&[u8], &str, &str); 14] = [
    (b"\x89PNG\r\n\x1a\n", "a PNG image", DECODE),
    (b"GIF87a", "a GIF image", DECODE),
    (b"GIF89a", "a GIF image", DECODE),
    (b"II*\0", "a TIFF image", DECODE),
    (b"MM\0*", "a TIFF image", DECODE),
    (b"\x1f\x8b\x08", "compressed by gzip", UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", UNPACK),
    (b"\xfd7zXZ\0", "compressed by xz", UNPACK),
    (b"BZh9", "compressed by bzip2", UNPACK),
    (b"PAR1", "a Parquet table", CONVERT),
    (b"ARROW1", "an Arrow table", CONVERT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", CONVERT),
    (b"QDLTOKEN", "a file of token ids", TOKENS),
    (b"%PDF-", "a PDF document", DECODE),
];

/// Looks at the first and last bytes.
///
/// # Errors
/// The system's.
pub(super) fn format(file: &File) -> io::Result<Format> {
    let size = file.metadata()?.len();
    let mut begin = [0; 16];
    let len = usize::try_from(size).unwrap_or(usize::MAX).min(begin.len());
    file.read_exact_at(&mut begin[..len], 0)?;
    let mut last = [0];
    if size > 0 {
        file.read_exact_at(&mut last, size - 1)?;
    }
    Ok(of(&begin[..len], last[0]))
}

/// From the first bytes and the last.
fn of(begin: &[u8], last: u8) -> Format {
    if begin.starts_with(header::MAGIC) {
        return Format::Npy;
    }
    if begin.starts_with(b"PK\x03\x04") || begin.starts_with(b"PK\x05\x06") {
        return Format::Zip;
    }
    if let Some((_, what, advice)) = BEGINNINGS.iter().find(|(m, ..)| begin.starts_with(m)) {
        return Format::Other(what, advice);
    }
    match *begin {
        // Start of image, and the first segment that there can be.
        [
            0xFF,
            0xD8,
            0xFF,
            0xC0 | 0xC4 | 0xDB | 0xE0..=0xEF | 0xFE,
            ..,
        ] => Format::Other("a JPEG image", DECODE),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Format::Other("a WebP image", DECODE),
        // The protocol's number, an opcode that a pickle can begin with, and its end.
        [
            0x80,
            2..=5,
            0x95 | b'}' | b']' | b'(' | b')' | b'c' | b'X' | b'K',
            ..,
        ] if last == b'.' => Format::Other(
            "a Python pickle",
            "it is not read here, as reading one runs what is in it; write its numbers with \
                 np.save",
        ),
        _ => Format::Raw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_how_they_begin() {
        let other = |begin: &[u8], last| match of(begin, last) {
            Format::Other(what, _) => what,
            known => panic!("{begin:?} is {known:?}"),
        };
        for (begin, what, _) in BEGINNINGS {
            assert_eq!(other(begin, 0), what);
        }
        assert_eq!(other(b"\xff\xd8\xff\xe0\0\x10JFIF", 0xD9), "a JPEG image");
        assert_eq!(other(b"RIFF\x24\0\0\0WEBPVP8 ", 0), "a WebP image");
        assert_eq!(other(b"\x80\x04\x95\x1a\0\0\0", b'.'), "a Python pickle");
        assert_eq!(other(b"\x80\x02}q\0", b'.'), "a Python pickle");
        assert_eq!(of(b"\x93NUMPY\x01\0", 0), Format::Npy);
        assert_eq!(of(b"PK\x03\x04\x14\0", 0), Format::Zip);
        for raw in [&b""[..], b"\x80", b"\x80\x04\x10", b"PK", b"\xff\xd8\xff\0"] {
            assert_eq!(of(raw, b'.'), Format::Raw, "{raw:?}");
        }
        assert_eq!(of(b"\x80\x04\x95\x1a", 0), Format::Raw, "no pickle ends so");
    }
}
