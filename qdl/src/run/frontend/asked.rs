//! One request to each accelerator of a cluster, for threads and tasks that wait.

use std::time::{Duration, Instant};

use crate::control::{ControlError, Pending};

/// Answers by accelerator, in the order of the configuration; `None` where no session was up.
pub type Answers<T> = Vec<Option<Result<T, ControlError>>>;

/// One request to each accelerator whose session is up.
#[derive(Debug)]
#[must_use = "the requests are under way, but no caller waits for the answers"]
pub struct Asked<T>(pub(super) Vec<Option<Pending<T>>>);

impl<T> Asked<T> {
    /// Waits for all answers on a plain thread, for at most `deadline`.
    pub(crate) fn wait(self, deadline: Duration) -> Answers<T> {
        let end = Instant::now() + deadline;
        let left = || end.saturating_duration_since(Instant::now());
        let each = self.0.into_iter();
        each.map(|p| Some(p?.wait(left()))).collect()
    }

    /// Waits for all answers on a task, for at most `deadline`.
    pub async fn within(self, deadline: Duration) -> Answers<T> {
        let end = tokio::time::Instant::now() + deadline;
        let mut answers = Vec::new();
        for pending in self.0 {
            answers.push(match pending {
                Some(pending) => {
                    let left = end.saturating_duration_since(tokio::time::Instant::now());
                    Some(pending.within(left).await)
                }
                None => None,
            });
        }
        answers
    }
}
