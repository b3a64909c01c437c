//! Element types, and conversion of their bytes to numbers.

use qdl::model::DType;

/// Type of the elements of an array or of a raw file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// NumPy's letter (`b` bool, `i`, `u`, `f`), or `B` for bfloat16, which NumPy lacks.
    letter: char,
    pub bytes: usize,
    pub big_endian: bool,
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Self {
        let letter = match dtype {
            DType::U8 => 'u',
            DType::I8 | DType::I32 | DType::I64 => 'i',
            DType::F16 | DType::F32 => 'f',
            DType::Bf16 => 'B',
        };
        Element {
            letter,
            bytes: dtype.bytes(),
            big_endian: false,
        }
    }
}

impl Element {
    /// Parses NumPy's code, such as `<f4`. Without a byte order, the machine's is meant.
    pub(super) fn of_code(code: &str) -> Result<Self, String> {
        let mut letters = code.trim_start_matches(['<', '=', '>', '|']).chars();
        let order = &code[..code.len() - letters.as_str().len()];
        let letter = letters.next().unwrap_or(' ');
        let bytes = match (letter, letters.as_str()) {
            ('b' | 'i' | 'u', "1") if order.len() < 2 => 1,
            ('i' | 'u' | 'f', "2") if order.len() < 2 => 2,
            ('i' | 'u' | 'f', "4") if order.len() < 2 => 4,
            ('i' | 'u' | 'f', "8") if order.len() < 2 => 8,
            _ => {
                return Err(format!(
                    "its elements are '{code}' and no numbers that are read here, as pickled \
                     Python objects, texts, times, complex numbers and bfloat16 are not"
                ));
            }
        };
        Ok(Element {
            letter,
            bytes,
            big_endian: order == ">" && bytes > 1,
        })
    }

    /// Returns NumPy's code without the byte order, such as `f4`.
    pub fn code(self) -> String {
        format!("{}{}", self.letter.to_ascii_lowercase(), self.bytes)
    }

    /// Returns NumPy's name, such as `float32`.
    pub fn name(self) -> String {
        let name = match self.letter {
            'b' => return "bool".to_owned(),
            'i' => "int",
            'u' => "uint",
            'f' => "float",
            _ => "bfloat",
        };
        format!("{name}{}", 8 * self.bytes)
    }

    /// Whether the type equals a tensor's type, in either byte order.
    pub fn is(self, dtype: DType) -> bool {
        let other = Element::from(dtype);
        (self.letter, self.bytes) == (other.letter, other.bytes)
    }

    /// Returns NumPy's name of `dtype` if NumPy's `astype` converts numbers of this type to `dtype`
    /// without change, except for rounding.
    pub fn cast(self, dtype: DType) -> Option<String> {
        let other = Element::from(dtype);
        let keeps = match other.letter {
            'f' => true,
            'i' => "biu".contains(self.letter),
            'u' => "bu".contains(self.letter),
            _ => false,
        };
        keeps.then(|| other.name())
    }

    /// Returns the bits as a little-endian number.
    fn bits(self, bytes: &[u8]) -> u64 {
        let mut wide = [0u8; 8];
        let own = bytes.get(..self.bytes).unwrap_or_default();
        wide[..own.len()].copy_from_slice(own);
        if self.big_endian {
            wide[..own.len()].reverse();
        }
        u64::from_le_bytes(wide)
    }

    /// Returns the number of these bytes. Integers beyond 2^53 lose their last bits.
    pub fn value(self, bytes: &[u8]) -> f64 {
        let bits = self.bits(bytes);
        match (self.letter, self.bytes) {
            ('b' | 'u', _) => bits as f64,
            ('i', _) => self.signed(bits) as f64,
            ('f', 2) => half(bits as u16),
            ('f', 4) => f64::from(f32::from_bits(bits as u32)),
            ('f', _) => f64::from_bits(bits),
            _ => f64::from(f32::from_bits((bits as u32) << 16)),
        }
    }

    fn signed(self, bits: u64) -> i64 {
        let unused = 64 - 8 * self.bytes as u32;
        ((bits << unused) as i64) >> unused
    }

    /// Returns these bytes as a whole number. The error is their number, if not whole or if too
    /// large for 64 bits.
    pub fn whole(self, bytes: &[u8]) -> Result<i64, f64> {
        let bits = self.bits(bytes);
        match self.letter {
            'i' => Ok(self.signed(bits)),
            'b' | 'u' => i64::try_from(bits).map_err(|_| bits as f64),
            _ => {
                let value = self.value(bytes);
                let whole = value.fract() == 0.0 && value.abs() < 9e15;
                whole.then_some(value as i64).ok_or(value)
            }
        }
    }

    /// Returns the whole numbers in `bytes`, whose elements have this type.
    pub fn whole_numbers(self, bytes: &[u8]) -> Result<Vec<i64>, String> {
        let each = bytes.chunks_exact(self.bytes).enumerate();
        each.map(|(i, b)| {
            let none = |n: f64| {
                let name = self.name();
                format!("as {name}, number {i} is {n:e}, which is not whole")
            };
            self.whole(b).map_err(none)
        })
        .collect()
    }
}

fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1.0 + fraction / 1024.0) * 2f64.powi(e - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> Element {
        Element::of_code(code).expect(code)
    }

    #[test]
    fn halves_are_read_right() {
        assert_eq!(half(0x3c00), 1.0);
        assert_eq!(half(0xc500), -5.0);
        assert_eq!(half(0x0001), 2f64.powi(-24));
        assert_eq!(half(0x7c00), f64::INFINITY);
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn numbers_are_read_in_either_order_and_at_every_width() {
        assert_eq!(of("<i4").whole(&(-7i32).to_le_bytes()), Ok(-7));
        assert_eq!(of(">i4").whole(&(-7i32).to_be_bytes()), Ok(-7));
        assert_eq!(of("<i2").whole(&i16::MIN.to_le_bytes()), Ok(-32_768));
        assert_eq!(of(">u2").whole(&[1, 2]), Ok(258));
        assert_eq!(of("|u1").whole(&[255]), Ok(255));
        assert_eq!(of("|i1").whole(&[255]), Ok(-1));
        assert_eq!(of("|b1").whole(&[1]), Ok(1));
        assert_eq!(of("u1").whole(&[255]), Ok(255));
        assert_eq!(of("i4").whole(&(-7i32).to_ne_bytes()), Ok(-7));
        assert_eq!(of("<i8").whole(&i64::MIN.to_le_bytes()), Ok(i64::MIN));
        assert!(of("<u8").whole(&u64::MAX.to_le_bytes()).is_err());
        assert_eq!(of(">f8").whole(&3f64.to_be_bytes()), Ok(3));
        assert_eq!(of("<f4").whole(&0.5f32.to_le_bytes()), Err(0.5));
        assert!(of("<f4").whole(&f32::NAN.to_le_bytes()).is_err());
        assert!(of("<f4").whole(&f32::INFINITY.to_le_bytes()).is_err());
        let bf16 = Element::from(DType::Bf16);
        assert_eq!(bf16.whole(&0x4040u16.to_le_bytes()), Ok(3));
        // The bytes of an i32, read as f32, are not whole.
        let text = of("<f4").whole_numbers(&[0, 0, 0, 0, 7, 0, 0, 0]);
        let text = text.expect_err("a denormal");
        assert!(text.starts_with("as float32, number 1 is 9.8"), "{text}");
    }

    #[test]
    fn what_is_no_number_is_named() {
        for code in [
            "|O", "<U7", "<M8[ns]", "<c8", "|V2", "<f16", "<<i4", "", "f", "+f4", "f+4",
        ] {
            let text = Element::of_code(code).expect_err(code);
            assert!(text.contains(&format!("'{code}'")), "{text}");
        }
        assert!(of("<f4").is(DType::F32) && of(">f4").is(DType::F32));
        assert!(!of("<f2").is(DType::Bf16) && !of("<i4").is(DType::F32));
    }
}
