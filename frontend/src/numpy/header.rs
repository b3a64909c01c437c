//! What a `.npy` says of its array: a Python dictionary behind a magic number.
//!
//! ```text
//! \x93NUMPY | major | minor | length, u16 or u32 | {'descr': '<f4', 'fortran_order': False, ...}
//! ```
//!
//! The format is NumPy's `numpy/lib/format.py`, versions 1.0 to 3.0. The dictionary is read as the
//! three keys that it has, in any order, and as nothing else.

use std::io::Read;

use super::element::Element;

/// How every such file begins.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest dictionary: NumPy itself refuses longer ones than 10,000 bytes.
const LONGEST: usize = 65_536;

/// Of one array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub element: Element,
    pub shape: Vec<usize>,
    fortran: bool,
}

impl Header {
    /// Reads it; the array's bytes lie behind as many as it took.
    pub fn read(from: &mut impl Read) -> Result<(Self, u64), String> {
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
        Ok((dictionary(text)?, own + length as u64))
    }

    /// Type and shape in words.
    pub fn text(&self) -> String {
        let shape = self.shape.iter().map(ToString::to_string);
        let shape = shape.collect::<Vec<_>>().join(", ");
        let comma = if self.shape.len() == 1 { "," } else { "" };
        format!("{} ({shape}{comma})", self.element.name())
    }

    /// Bytes of the array; none where they overflow.
    pub fn bytes(&self) -> Option<u64> {
        let all = self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        u64::try_from(all?.checked_mul(self.element.bytes())?).ok()
    }

    /// That an array has as many bytes as there are.
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

    /// True where Fortran's order is another than C's: more than one dimension counts.
    pub fn fortran_matters(&self) -> bool {
        self.fortran && self.shape.iter().filter(|d| **d > 1).count() > 1
    }
}

/// The three keys, each once.
fn dictionary(text: &str) -> Result<Header, String> {
    let odd = || "its header is not what NumPy writes".to_owned();
    let mut text = Text(text);
    let (mut element, mut fortran, mut shape) = (None, None, None);
    text.take('{').ok_or_else(odd)?;
    while text.take('}').is_none() {
        let key = text.string().ok_or_else(odd)?;
        text.take(':').ok_or_else(odd)?;
        let again = match key {
            "descr" if text.peek() == Some('[') => {
                return Err(
                    "its elements are records of several fields: save each field by itself"
                        .to_owned(),
                );
            }
            "descr" => {
                let code = text.string().ok_or_else(odd)?;
                element.replace(Element::of_code(code)?).is_some()
            }
            "fortran_order" => fortran.replace(text.truth().ok_or_else(odd)?).is_some(),
            "shape" => shape.replace(text.tuple().ok_or_else(odd)?).is_some(),
            _ => return Err(odd()),
        };
        let more = text.take(',').is_some();
        if again || !(more || text.peek() == Some('}')) {
            return Err(odd());
        }
    }
    match (element, fortran, shape, text.peek()) {
        (Some(element), Some(fortran), Some(shape), None) => Ok(Header {
            element,
            shape,
            fortran,
        }),
        _ => Err(odd()),
    }
}

/// What is left of a dictionary; blanks count nowhere but in strings.
struct Text<'t>(&'t str);

impl<'t> Text<'t> {
    fn peek(&mut self) -> Option<char> {
        self.0 = self.0.trim_start();
        self.0.chars().next()
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        (self.peek()? == wanted).then(|| self.0 = &self.0[wanted.len_utf8()..])
    }

    fn string(&mut self) -> Option<&'t str> {
        let quote = self.peek().filter(|c| matches!(c, '\'' | '"'))?;
        let (string, rest) = self.0[1..].split_once(quote)?;
        self.0 = rest;
        (!string.contains('\\')).then_some(string)
    }

    fn truth(&mut self) -> Option<bool> {
        self.peek()?;
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Some(value);
            }
        }
        None
    }

    fn tuple(&mut self) -> Option<Vec<usize>> {
        let mut numbers = Vec::new();
        self.take('(')?;
        while self.take(')').is_none() {
            self.peek()?;
            let end = self.0.find(|c: char| !c.is_ascii_digit())?;
            numbers.push(self.0[..end].parse().ok()?);
            self.0 = &self.0[end..];
            // Python 2 wrote its long numbers so.
            let _ = self.take('L');
            if self.take(',').is_none() && self.peek()? != ')' {
                return None;
            }
        }
        Some(numbers)
    }
}
