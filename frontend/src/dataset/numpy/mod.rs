//! NumPy's files, as data sets and labels come in them: `.npy`, one array, and `.npz`, a zip of
//! several.
//!
//! * `header` - what an array says of itself: type, order, shape
//! * `archive` - the arrays of a `.npz`
//! * `element` - numbers out of bytes, these files' and raw ones'
//!
//! No file here is a program: an array of Python objects is a pickle, and is refused unread.

mod archive;
mod element;
mod header;

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

pub use self::element::Element;
use self::header::Header;

/// Where the elements of an array lie.
#[derive(Debug)]
enum Bytes {
    /// In a file, from this byte on.
    File(File, u64),
    /// Here: they were compressed.
    Memory(Box<[u8]>),
}

/// An array in C order, whose elements are little-endian or of one byte, as far as
/// [`Array::check_layout`] was asked.
#[derive(Debug)]
pub struct Array {
    /// In a `.npz` its name there; in a `.npy` nothing.
    pub name: String,
    header: Header,
    bytes: Bytes,
}

impl Array {
    /// The array of a `.npy` that is all of `file`.
    fn of_file(file: File) -> Result<Self, String> {
        let size = file.metadata().map_err(|e| e.to_string())?.len();
        let (header, at) = Header::read(&mut io::BufReader::new(&file), size)?;
        Ok(Array {
            name: String::new(),
            header,
            bytes: Bytes::File(file, at),
        })
    }

    /// How long it is in each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// What its elements are.
    pub fn element(&self) -> Element {
        self.header.element
    }

    /// Type and shape, as in `float32 (100, 4)`.
    pub fn text(&self) -> String {
        self.header.text()
    }

    /// That its bytes are a sample's own: first index slowest, lowest byte first.
    ///
    /// # Errors
    /// In words, with what NumPy is to be told.
    pub fn check_layout(&self) -> Result<(), String> {
        if self.header.fortran_matters() {
            return Err("it is in Fortran's order: save np.ascontiguousarray(a)".to_owned());
        }
        if self.element().big_endian() {
            return Err(format!(
                "its numbers are big-endian: save a.astype('<{}')",
                self.element().code()
            ));
        }
        Ok(())
    }

    /// Fills `to` from byte `at` of its elements on.
    ///
    /// # Errors
    /// The system's, also where there are not so many.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        // Behind it in the same file may lie another.
        let end = at.checked_add(to.len() as u64);
        if end.is_none_or(|end| self.header.bytes().is_none_or(|own| end > own)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &self.bytes {
            Bytes::File(file, begin) => file.read_exact_at(to, begin.saturating_add(at)),
            Bytes::Memory(bytes) => {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let from = from.and_then(|rest| rest.get(..to.len()));
                to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// One whole number for each index of its first dimension, the only one that counts.
    ///
    /// # Errors
    /// In words: a shape that holds more, elements that are no whole numbers, or the system's.
    pub fn integers(&self) -> Result<Vec<i64>, String> {
        let shape = self.shape();
        let (Some(count), true) = (shape.first(), shape.iter().skip(1).all(|d| *d == 1)) else {
            return Err(format!(
                "it is {}, and one number for each sample is wanted: shape (N,)",
                self.text()
            ));
        };
        let element = self.element();
        let mut bytes = vec![0; count * element.bytes()];
        self.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
        element.whole_numbers(&bytes)
    }
}

/// Whether an array of an archive is wanted, by its name among those of all.
pub type Asked<'a> = &'a dyn Fn(&str, &[&str]) -> bool;

/// Opens a file that is to hold arrays or, as `None`, bytes without a format. Of several arrays
/// those that are `asked` for are opened. With `any`, what looks like an image, say, may be just
/// that: samples that are files themselves.
///
/// # Errors
/// In words: which other format it has and what to do, or what is wrong with it as NumPy's.
pub fn open(path: &Path, any: bool, asked: Asked<'_>) -> Result<Option<Vec<Array>>, String> {
    let file = File::open(path).map_err(|e| format!("cannot open it: {e}"))?;
    let mut begin = [0; 8];
    let len = file.read_at(&mut begin, 0);
    let begin = &begin[..len.map_err(|e| format!("cannot read it: {e}"))?];
    let named = |end: &str| {
        path.extension()
            .is_some_and(|e| e.eq_ignore_ascii_case(end))
    };
    if begin.starts_with(header::MAGIC) {
        return Ok(Some(vec![Array::of_file(file)?]));
    }
    if begin.starts_with(b"PK\x03\x04") || begin.starts_with(b"PK\x05\x06") {
        return match archive::arrays(&file, asked)? {
            Some(arrays) => Ok(Some(arrays)),
            None if any && !named("npz") => Ok(None),
            None => Err("it is a zip archive, and no .npz: none of its files is a .npy".to_owned()),
        };
    }
    if named("npy") || named("npz") {
        return Err(
            "by its name it is NumPy's, and it does not begin as NumPy's files do: is it cut \
             short, or raw bytes under a wrong name?"
                .to_owned(),
        );
    }
    match OTHERS.iter().find(|(magic, _)| begin.starts_with(magic)) {
        Some((_, what)) if !any => Err(format!(
            "it is {what}: decode it, and write its numbers with np.save, or its bytes alone"
        )),
        _ => Ok(None),
    }
}

/// How other formats begin that might be taken for raw bytes.
const OTHERS: [(&[u8], &str); 8] = [
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x1f\x8b\x08", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"PAR1", "a Parquet table"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x80\x04\x95", "a Python pickle"),
    (b"QDLTOKEN", "a file of token ids, for `kind: tokens`"),
];

#[cfg(test)]
mod tests;
