//! The lengths that samples of a model can have. Plain data.

use qdl::{model::ModelSpec, serve::Arrival};

use super::EngineError;

/// Fixed tensors once, and ragged ones by the row: a sample's length alone tells how many rows.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    model: String,
    /// Bytes of the tensors that are not ragged.
    fixed: usize,
    /// Bytes of one row of all ragged tensors together; 0 where none is.
    row: usize,
    /// Most rows of a ragged tensor.
    max_rows: usize,
}

impl Lengths {
    /// # Errors
    /// The name of the tensor that cannot be told apart from others in a sample, and why.
    pub fn of(model: &ModelSpec) -> Result<Self, (String, String)> {
        let mut lengths = Lengths {
            model: model.name.clone(),
            fixed: 0,
            row: 0,
            max_rows: 0,
        };
        for t in &model.inputs {
            let refuse = |reason: &str| Err((t.name.clone(), reason.to_owned()));
            let Some(bytes) = t.bytes() else {
                return refuse("is too large");
            };
            if bytes == 0 {
                return refuse("has no elements");
            }
            if !t.ragged {
                lengths.fixed += bytes;
                continue;
            }
            let Some(&rows) = t.shape.first() else {
                return refuse("is a scalar, which cannot be ragged");
            };
            if lengths.row > 0 && rows != lengths.max_rows {
                return refuse("all ragged inputs need the same first dimension");
            }
            lengths.max_rows = rows;
            // `bytes` is not 0, so neither is `rows`; it overflowed nowhere, so neither does a sum
            // of rows.
            lengths.row += bytes / rows;
        }
        Ok(lengths)
    }

    /// Hands those on that have a length the model can have, or all of them where it takes any
    /// bytes; the others are refused, and their number returned.
    pub fn sort(
        lengths: Option<&Lengths>,
        arrivals: &mut Vec<Arrival>,
        mut take: impl FnMut(Arrival),
    ) -> usize {
        let mut refused = 0;
        for arrival in arrivals.drain(..) {
            match lengths {
                Some(lengths) if lengths.rows(arrival.input_len()).is_none() => {
                    let why = lengths.refusal(arrival.input_len());
                    arrival.refuse(&why);
                    refused += 1;
                }
                _ => take(arrival),
            }
        }
        refused
    }

    /// Rows of the ragged tensors of a sample of `len` bytes, 0 where the model has none; nothing
    /// where no sample has that length.
    pub fn rows(&self, len: usize) -> Option<usize> {
        let rest = len.checked_sub(self.fixed)?;
        if self.row == 0 {
            return (rest == 0).then_some(0);
        }
        let rows = rest / self.row;
        (rest.is_multiple_of(self.row) && (1..=self.max_rows).contains(&rows)).then_some(rows)
    }

    /// [`EngineError::SampleSize`] for a sample of such a length.
    #[cold]
    pub fn refusal(&self, len: usize) -> EngineError {
        EngineError::SampleSize {
            model: self.model.clone(),
            want: match (self.fixed, self.row) {
                (fixed, 0) => format!("{fixed} bytes"),
                (0, row) => format!("1 to {} times {row} bytes", self.max_rows),
                (fixed, row) => {
                    format!("{fixed} bytes and 1 to {} times {row} bytes", self.max_rows)
                }
            },
            got: len,
        }
    }
}
