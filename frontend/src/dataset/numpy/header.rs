//! The header of a `.npy`: a Python dictionary behind a magic number.
//!
//! ```text
//! \x93NUMPY | major | minor | length, u16 or u32 | {'descr': '<f4', 'fortran_order': False, ...}
//! ```
//!
//! The format is NumPy's `numpy/lib/format.py`, versions 1.0 to 3.0.

use std::io::Read;

use serde::Deserialize;

use super::element::Element;

/// First bytes of every `.npy` file.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum length of the dictionary; NumPy itself refuses more than 10,000 bytes.
const LONGEST: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub element: Element,
    pub shape: Vec<usize>,
    fortran: bool,
}

impl Header {
    /// Reads the header of a file of `size` bytes; returns header and header length in bytes.
    pub fn read(from: &mut impl Read, size: u64) -> Result<(Self, u64), String> {
        let cut = |e: std::io::Error| format!("its header cannot be read: {e}");
        let mut begin = [0; 8];
        from.read_exact(&mut begin).map_err(cut)?;
        if begin[..6] != *MAGIC {
            return Err("it does not begin as a .npy does".to_owned());
        }
        let (length, own) = match begin[6] {
            1 => {
                let mut length = [0; 2];
                from.read_exact(&mut length).map_err(cut)?;
                (usize::from(u16::from_le_bytes(length)), 10)
            }
            2 | 3 => {
                let mut length = [0; 4];
                from.read_exact(&mut length).map_err(cut)?;
                (u32::from_le_bytes(length) as usize, 12)
            }
            other => return Err(format!("it is a .npy of version {other}, 1 to 3 are known")),
        };
        if length > LONGEST {
            return Err(format!("its header says that it has {length} bytes"));
        }
        let mut text = vec![0; length];
        from.read_exact(&mut text).map_err(cut)?;
        let text = std::str::from_utf8(&text).map_err(|_| "its header is no text".to_owned())?;
        let (header, own) = (dictionary(text)?, own + length as u64);
        header.check_size(size.saturating_sub(own))?;
        Ok((header, own))
    }

    /// Returns type and shape, such as `float32 (100, 4)`.
    pub fn text(&self) -> String {
        let shape = self.shape.iter().map(ToString::to_string);
        let shape = shape.collect::<Vec<_>>().join(", ");
        let comma = if self.shape.len() == 1 { "," } else { "" };
        format!("{} ({shape}{comma})", self.element.name())
    }

    /// Returns the bytes of the array; `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        let all = self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        u64::try_from(all?.checked_mul(self.element.bytes)?).ok()
    }

    /// Checks that the file has exactly the bytes of the array.
    pub fn check_size(&self, there: u64) -> Result<(), String> {
        match self.bytes() {
            Some(wanted) if wanted == there => Ok(()),
            wanted => Err(format!(
                "{} has {} bytes, and {there} are there: is it cut short?",
                self.text(),
                wanted.map_or_else(|| "too many".to_owned(), |n| n.to_string())
            )),
        }
    }

    /// Whether Fortran's order differs from C's: more than one dimension exceeds 1.
    pub fn fortran_matters(&self) -> bool {
        self.fortran && self.shape.iter().filter(|d| **d > 1).count() > 1
    }
}

/// The header's dictionary; a dictionary with other keys is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dictionary {
    descr: serde_json::Value,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Parses the dictionary as JSON, after converting quotes, tuples, words and trailing commas.
/// Python 2 wrote an `L` behind long numbers.
fn dictionary(text: &str) -> Result<Header, String> {
    let mut before = ' ';
    let is_kept = |c: &char| {
        let before = std::mem::replace(&mut before, *c);
        *c != 'L' || !before.is_ascii_digit()
    };
    let json: String = text.chars().filter(is_kept).collect();
    let mut json = json.replace('\'', "\"");
    for (python, own) in [
        ("(", "["),
        (")", "]"),
        ("True", "true"),
        ("False", "false"),
        (", }", "}"),
        (",}", "}"),
        (", ]", "]"),
        (",]", "]"),
    ] {
        json = json.replace(python, own);
    }
    let read = serde_json::from_str::<Dictionary>(&json);
    let read = read.map_err(|_| "its header is not what NumPy writes".to_owned())?;
    let Some(code) = read.descr.as_str() else {
        let why = "its elements are records of several fields: save each field by itself";
        return Err(why.to_owned());
    };
    Ok(Header {
        element: Element::of_code(code)?,
        shape: read.shape,
        fortran: read.fortran_order,
    })
}
