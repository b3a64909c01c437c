//! Samples of a length that the model cannot have are refused before they reach an engine.

pub(crate) use qdl::model::Lengths;
use qdl::serve::Arrival;

use super::EngineError;

/// Hands those on that have a length the model can have, or all of them where it takes any bytes;
/// the others are refused, and their number returned.
pub(crate) fn sort(
    lengths: Option<&Lengths>,
    arrivals: &mut Vec<Arrival>,
    mut take: impl FnMut(Arrival),
) -> usize {
    let mut refused = 0;
    for arrival in arrivals.drain(..) {
        match lengths {
            Some(lengths) if lengths.rows(arrival.input_len()).is_none() => {
                let why = refusal(lengths, arrival.input_len());
                arrival.refuse(&why);
                refused += 1;
            }
            _ => take(arrival),
        }
    }
    refused
}

/// [`EngineError::SampleSize`] for a sample of such a length.
#[cold]
pub(crate) fn refusal(lengths: &Lengths, got: usize) -> EngineError {
    EngineError::SampleSize {
        want: lengths.to_string(),
        got,
    }
}
