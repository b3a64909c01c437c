//! One request to each accelerator of a cluster.

use std::time::Duration;

use tokio::time::Instant;

use crate::control::{ControlError, Pending};

/// Answers by accelerator, in the order of the configuration; `None` where no session was up.
pub type Answers<T> = Vec<Option<Result<T, ControlError>>>;

/// One request to each accelerator whose session is up.
#[derive(Debug)]
#[must_use = "the requests are under way, but no caller waits for the answers"]
pub struct Asked<T>(pub(super) Vec<Option<Pending<T>>>);

impl<T> Asked<T> {
    /// Waits for all answers for at most `deadline`.
    pub async fn within(self, deadline: Duration) -> Answers<T> {
        let end = Instant::now() + deadline;
        let mut answers = Vec::new();
        for pending in self.0 {
            answers.push(match pending {
                Some(pending) => {
                    let left = end.saturating_duration_since(Instant::now());
                    Some(pending.within(left).await)
                }
                None => None,
            });
        }
        answers
    }
}
