//! What this program was used for while LoadGen's clock ran: readings of its threads and NICs, from
//! the first query to the last answer or nearly so.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use qdl::{os::thread_id, stats::limits::NodeUse};

/// How often it is read in mid-run: some reads of `/proc` for each thread.
const EVERY: Duration = Duration::from_millis(500);

/// The threads that LoadGen issues queries on say so here.
#[derive(Clone, Debug, Default)]
pub struct IssueThreads(Arc<Mutex<Vec<u64>>>);

impl IssueThreads {
    /// The calling thread is one.
    pub fn add_this(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(thread_id());
    }

    /// Their numbers.
    pub fn all(&self) -> Vec<u64> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Meter {
    first: Option<NodeUse>,
    last: Option<(Instant, NodeUse)>,
}

impl Meter {
    /// A look while the run goes on: `working` while samples are outstanding. What the process does
    /// after the last answer is LoadGen's own, and is not read.
    pub fn look(&mut self, working: bool, read: impl FnOnce() -> NodeUse) {
        if self.first.is_none() {
            let first = read();
            self.last = Some((Instant::now(), first.clone()));
            self.first = Some(first);
        } else if working
            && self
                .last
                .as_ref()
                .is_none_or(|(at, _)| at.elapsed() >= EVERY)
        {
            self.last = Some((Instant::now(), read()));
        }
    }

    /// What was used between the first look and the last one that found work.
    pub fn used(&self) -> NodeUse {
        match (&self.first, &self.last) {
            (Some(first), Some((_, last))) => last.since(first),
            _ => NodeUse::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use qdl::{
        run::usage,
        stats::limits::{ISSUE, NicUse},
    };

    use super::*;

    #[test]
    fn what_is_done_after_the_last_answer_is_not_counted() {
        let mut meter = Meter::default();
        assert_eq!(meter.used(), NodeUse::default());
        let worked = |worked_us| NodeUse {
            nics: NicUse {
                threads: 1,
                worked_us,
                sleeps: 0,
            },
            ..NodeUse::default()
        };
        let later = |meter: &mut Meter| {
            meter.last = meter.last.take().map(|(at, used)| (at - EVERY, used));
        };
        meter.look(true, || worked(10));
        later(&mut meter);
        meter.look(true, || worked(30));
        meter.look(true, || panic!("too soon"));
        later(&mut meter);
        meter.look(false, || panic!("nothing is outstanding"));
        assert_eq!(meter.used().nics.worked_us, 20);
    }

    #[test]
    fn issue_threads_are_told_from_others() {
        let issue = IssueThreads::default();
        issue.add_this();
        let used = usage(&issue.all(), NicUse::default());
        assert_eq!(used.group(ISSUE).map(|g| g.threads), Some(1));
    }
}
