//! NumPy files as data sets and labels: `.npy` with one array, and `.npz`, a zip archive of
//! several.
//!
//! * `header` - an array's type, order and shape
//! * `archive` - the arrays of a `.npz`
//! * `element` - numbers of NumPy files and of raw files
//!
//! The reader executes no file: it refuses an array of Python objects, which is a pickle, unread.

mod archive;
mod element;
mod header;

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use qdl::model::ForeignFormat;

pub use self::element::Element;
pub use self::header::Header;

#[derive(Debug)]
enum ElementBytes {
    /// In a file, from this byte offset on.
    File(File, u64),
    Memory(Box<[u8]>),
}

/// An array. After [`Array::check_layout`], its elements are in C order, and little-endian or of
/// one byte.
#[derive(Debug)]
pub struct Array {
    /// Name in a `.npz`; empty for a `.npy`.
    pub name: String,
    pub header: Header,
    bytes: ElementBytes,
}

impl Array {
    fn of_file(file: File) -> Result<Self, String> {
        let size = file.metadata().map_err(|e| e.to_string())?.len();
        let (header, at) = Header::read(&mut io::BufReader::new(&file), size)?;
        Ok(Array {
            name: String::new(),
            header,
            bytes: ElementBytes::File(file, at),
        })
    }

    /// Checks that the array's bytes can be sent as samples: C order, little-endian.
    pub fn check_layout(&self) -> Result<(), String> {
        if self.header.fortran_matters() {
            return Err("it is in Fortran's order: save np.ascontiguousarray(a)".to_owned());
        }
        if self.header.element.big_endian {
            return Err(format!(
                "its numbers are big-endian: save a.astype('<{}')",
                self.header.element.code()
            ));
        }
        Ok(())
    }

    /// Reads elements into `to`, from byte `at` of the elements.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        // Stop at this array's end: another array may follow in the same file.
        let end = at.checked_add(to.len() as u64);
        if end.is_none_or(|end| self.header.bytes().is_none_or(|own| end > own)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &self.bytes {
            ElementBytes::File(file, begin) => file.read_exact_at(to, begin.saturating_add(at)),
            ElementBytes::Memory(bytes) => {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let from = from.and_then(|rest| rest.get(..to.len()));
                to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// Returns one whole number per index of the first dimension; all other dimensions must be 1.
    pub fn integers(&self) -> Result<Vec<i64>, String> {
        let shape = &self.header.shape;
        let (Some(count), true) = (shape.first(), shape.iter().skip(1).all(|d| *d == 1)) else {
            return Err(format!(
                "it is {}, and one number for each sample is wanted: shape (N,)",
                self.header.text()
            ));
        };
        let element = self.header.element;
        let mut bytes = vec![0; count * element.bytes];
        self.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
        element.whole_numbers(&bytes)
    }
}

/// The selected arrays of a file, and the names of all arrays in it.
#[derive(Debug)]
pub struct Arrays {
    pub opened: Vec<Array>,
    /// Names of all arrays in the file; empty for a `.npy`.
    pub names: Vec<String>,
}

/// Whether to read an array of an archive: from its name and the names of all arrays.
pub type Selector<'a> = &'a dyn Fn(&str, &[&str]) -> bool;

/// Which files without arrays count as raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawBytes {
    /// Files of no known format, whose names are not NumPy's.
    Unnamed,
    /// Files of no known format: the element type is stated beside the file.
    Typed,
    /// As [`RawBytes::Unnamed`], and files of known formats: a sample may be an image file.
    Files,
}

/// Opens a file with arrays; `None` for raw bytes. Of several arrays, opens those that `select`
/// chooses.
pub fn open(path: &Path, raw: RawBytes, select: Selector<'_>) -> Result<Option<Arrays>, String> {
    let file = File::open(path).map_err(|e| format!("cannot open it: {e}"))?;
    let mut begin = [0; 8];
    let len = file.read_at(&mut begin, 0);
    let begin = &begin[..len.map_err(|e| format!("cannot read it: {e}"))?];
    let extension = path.extension().unwrap_or_default();
    let named = |end: &str| extension.eq_ignore_ascii_case(end);
    if begin.starts_with(header::MAGIC) {
        return Ok(Some(Arrays {
            opened: vec![Array::of_file(file)?],
            names: Vec::new(),
        }));
    }
    if begin.starts_with(b"PK\x03\x04") || begin.starts_with(b"PK\x05\x06") {
        return match archive::arrays(&file, select)? {
            Some(arrays) => Ok(Some(arrays)),
            None if raw == RawBytes::Files && !named("npz") => Ok(None),
            None => Err("it is a zip archive, and no .npz: none of its files is a .npy".to_owned()),
        };
    }
    let format = ForeignFormat::of_file(&file).map_err(|e| format!("cannot read it: {e}"))?;
    match format {
        Some(format) if raw != RawBytes::Files || format.instead.is_some() => {
            let save = "decode it, and write its numbers with np.save, or its bytes alone";
            Err(format!("it is {}", format.text(save)))
        }
        _ if begin.is_empty() && (named("npy") || named("npz")) => {
            Err("is empty: 0 bytes".to_owned())
        }
        _ if raw != RawBytes::Typed && (named("npy") || named("npz")) => Err(
            "by its name it is NumPy's, and it does not begin as NumPy's files do: is it cut \
             short, or raw bytes under a wrong name? Labels with a `dtype` may have any name"
                .to_owned(),
        ),
        _ => Ok(None),
    }
}

#[cfg(test)]
pub(super) mod tests;
