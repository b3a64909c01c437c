//! Refuses samples whose length the model cannot have, before they reach an engine.

pub(crate) use qdl::model::Lengths;
use qdl::serve::Arrival;

use super::EngineError;

/// Passes arrivals of a valid length to `take` (all of them without `lengths`) and refuses the
/// others; returns the number of refusals.
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

/// [`EngineError::SampleSize`] for a sample of `got` bytes.
#[cold]
pub(crate) fn refusal(lengths: &Lengths, got: usize) -> EngineError {
    EngineError::SampleSize {
        want: lengths.to_string(),
        got,
    }
}
