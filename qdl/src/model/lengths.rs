//! Valid lengths of a model's samples and answers. Both nodes check received data with this code.

use std::fmt;

use super::{ModelSpec, TensorSpec};

/// Valid lengths: the bytes of all fixed tensors plus a number of rows of the ragged tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the tensors that are not ragged.
    fixed: usize,
    /// Bytes of one row of all ragged tensors together; 0 without a ragged tensor.
    row: usize,
    max_rows: usize,
}

/// Error of [`Lengths::of_inputs`]: a sample's length does not determine the tensor's bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tensor}: {reason}")]
pub struct NoLengths {
    /// Name of the tensor.
    pub tensor: String,
    /// Why the tensor's bytes are not determined.
    pub reason: &'static str,
}

impl Lengths {
    /// Lengths of a model's samples.
    ///
    /// # Errors
    /// [`NoLengths`] names the tensor.
    pub fn of_inputs(model: &ModelSpec) -> Result<Self, NoLengths> {
        Lengths::of(model.inputs.iter())
    }

    /// Lengths of a model's answers, all parts together.
    ///
    /// # Errors
    /// [`NoLengths`] names the tensor.
    pub fn of_outputs(model: &ModelSpec) -> Result<Self, NoLengths> {
        Lengths::of(model.outputs())
    }

    fn of<'a>(tensors: impl Iterator<Item = &'a TensorSpec>) -> Result<Self, NoLengths> {
        let mut lengths = Lengths {
            fixed: 0,
            row: 0,
            max_rows: 0,
        };
        for t in tensors {
            let refuse = |reason| {
                Err(NoLengths {
                    tensor: t.name.clone(),
                    reason,
                })
            };
            let Some(bytes) = t.bytes() else {
                return refuse("is too large");
            };
            if bytes == 0 {
                return refuse("has no elements");
            }
            if !t.ragged {
                lengths.fixed = lengths.fixed.saturating_add(bytes);
                continue;
            }
            let Some(&rows) = t.shape.first() else {
                return refuse("is a scalar, which cannot be ragged");
            };
            if lengths.row > 0 && rows != lengths.max_rows {
                return refuse("all ragged tensors need the same first dimension");
            }
            lengths.max_rows = rows;
            // `bytes` is not 0, so `rows` is not 0.
            lengths.row = lengths.row.saturating_add(bytes / rows);
        }
        Ok(lengths)
    }

    /// Number of rows of the ragged tensors in `len` bytes; 0 without ragged tensors. `None` if
    /// `len` is invalid for the model.
    pub fn rows(&self, len: usize) -> Option<usize> {
        let rest = len.checked_sub(self.fixed)?;
        if self.row == 0 {
            return (rest == 0).then_some(0);
        }
        let rows = rest / self.row;
        (rest.is_multiple_of(self.row) && (1..=self.max_rows).contains(&rows)).then_some(rows)
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fixed, self.row) {
            (fixed, 0) => write!(f, "{fixed} bytes"),
            (0, row) => write!(f, "1 to {} times {row} bytes", self.max_rows),
            (fixed, row) => write!(
                f,
                "{fixed} bytes and 1 to {} times {row} bytes",
                self.max_rows
            ),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::DType;
    use super::*;

    fn tensor(dtype: DType, shape: &[usize], ragged: bool) -> TensorSpec {
        TensorSpec {
            name: "t".to_owned(),
            dtype,
            shape: shape.to_vec(),
            ragged,
        }
    }

    proptest! {
        /// A length is valid exactly where the tensors can add up to it.
        #[test]
        fn a_length_is_taken_where_tensors_add_up_to_it(
            fixed in 0usize..9, row in 1usize..9, max in 1usize..9, len in 0usize..120,
        ) {
            let mut all = vec![tensor(DType::U8, &[max, row], true)];
            all.extend((fixed > 0).then(|| tensor(DType::I32, &[fixed], false)));
            let lengths = Lengths::of(all.iter()).expect("lengths");
            let rows = (1..=max).find(|n| 4 * fixed + n * row == len);
            prop_assert_eq!(lengths.rows(len), rows);
        }
    }

    #[test]
    fn what_is_fixed_has_one_length() {
        let lengths = Lengths::of_outputs(&ModelSpec::opaque("m", 9, 8)).expect("a length");
        let taken: Vec<_> = (0..20).filter(|n| lengths.rows(*n).is_some()).collect();
        assert_eq!(taken, [8]);
        assert_eq!(lengths.to_string(), "8 bytes");
        let two = [
            tensor(DType::U8, &[3, 2], true),
            tensor(DType::U8, &[4, 2], true),
        ];
        let e = Lengths::of(two.iter()).expect_err("rows differ");
        assert!(e.reason.contains("same first dimension"), "{e}");
    }
}
