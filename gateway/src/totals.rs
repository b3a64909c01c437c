//! Totals of all requests, as the thread that writes `requests.csv` counts them.

use std::io;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Digits of a time: 0.1 %.
const DIGITS: u8 = 3;
/// Longest time: 2^47 ns, 39 hours.
const LONGEST_NS: u64 = 1 << 47;

/// One request. Times are nanoseconds on [`fabric::clock`]; 0 where the event did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// The request's head was read.
    pub arrived_ns: u64,
    /// The sample was issued to the dispatcher.
    pub issued_ns: u64,
    /// A NIC thread read the first token.
    pub first_ns: u64,
    /// A NIC thread read the end.
    pub last_ns: u64,
    /// The cluster's connection that brought the answer.
    pub node: Option<u32>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub tokens: u32,
    /// How the request ended.
    pub end: RequestEnd,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestEnd {
    /// An accelerator refused the request, or was lost, or its successor's answer differed.
    #[default]
    Failed,
    /// The client got its whole answer.
    Answered,
    /// The client went away before the end of its answer.
    Left,
}

impl RequestEnd {
    /// The word in `requests.csv`.
    pub fn word(self) -> &'static str {
        match self {
            RequestEnd::Failed => "failed",
            RequestEnd::Answered => "answered",
            RequestEnd::Left => "left",
        }
    }
}

/// Percentiles of a time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

/// The windows over which a rate can be taken, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Windows {
    /// First arrival of a request to the last end of one.
    pub whole: u64,
    /// First arrival to the end of the request that was issued last: LoadGen's Server window.
    pub legacy_loadgen: u64,
}

/// Counts, times and windows of requests. A request is completed if its client got the whole
/// answer; only these count in the times and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub completed: u64,
    /// Requests whose client went away.
    pub left: u64,
    /// Requests that an accelerator refused, that were lost, or whose answer differed.
    pub failed: u64,
    /// Tokens of the prompts of completed requests.
    pub prompt_tokens: u64,
    /// Tokens of the answers of completed requests.
    pub tokens: u64,
    pub window_ns: Windows,
    /// Arrival to issue: the gateway's parsing and tokenizing.
    pub to_issue_ns: Percentiles,
    /// Arrival to first token.
    pub ttft_ns: Percentiles,
    /// Arrival to the answer's end.
    pub latency_ns: Percentiles,
}

/// Counts requests.
#[derive(Debug)]
pub struct Counter {
    totals: Totals,
    times: [Histogram<u64>; 3],
    first_arrived_ns: u64,
    last_end_ns: u64,
    /// Issue and end of the request that was issued last.
    last_issued_ns: (u64, u64),
}

impl Counter {
    /// Makes a counter without requests.
    ///
    /// # Errors
    /// The bounds of the histograms are wrong.
    pub fn new() -> io::Result<Self> {
        Ok(Counter {
            totals: Totals::default(),
            times: [histogram()?, histogram()?, histogram()?],
            first_arrived_ns: u64::MAX,
            last_end_ns: 0,
            last_issued_ns: (0, 0),
        })
    }

    /// Counts a request.
    pub fn add(&mut self, request: &RequestTimes) {
        let totals = &mut self.totals;
        match request.end {
            RequestEnd::Failed => return totals.failed += 1,
            RequestEnd::Left => return totals.left += 1,
            RequestEnd::Answered => totals.completed += 1,
        }
        totals.prompt_tokens += u64::from(request.prompt);
        totals.tokens += u64::from(request.tokens);
        let ends = [request.issued_ns, request.first_ns, request.last_ns];
        for (times, end_ns) in self.times.iter_mut().zip(ends) {
            times.saturating_record(end_ns.saturating_sub(request.arrived_ns).max(1));
        }
        self.first_arrived_ns = self.first_arrived_ns.min(request.arrived_ns);
        self.last_end_ns = self.last_end_ns.max(request.last_ns);
        let issued = (request.issued_ns, request.last_ns);
        self.last_issued_ns = self.last_issued_ns.max(issued);
    }

    /// The totals so far.
    pub fn totals(&self) -> Totals {
        let [to_issue_ns, ttft_ns, latency_ns] = [0, 1, 2].map(|n| percentiles(&self.times[n]));
        let since = |end_ns: u64| end_ns.saturating_sub(self.first_arrived_ns);
        Totals {
            window_ns: Windows {
                whole: since(self.last_end_ns),
                legacy_loadgen: since(self.last_issued_ns.1),
            },
            to_issue_ns,
            ttft_ns,
            latency_ns,
            ..self.totals
        }
    }
}

/// An empty histogram of times.
pub(crate) fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).map_err(io::Error::other)
}

pub(crate) fn percentiles(times: &Histogram<u64>) -> Percentiles {
    if times.is_empty() {
        return Percentiles::default();
    }
    let at = |quantile| times.value_at_quantile(quantile);
    Percentiles {
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max: times.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_legacy_window_ends_with_the_request_that_was_issued_last() {
        let mut counter = Counter::new().expect("histograms");
        assert_eq!(counter.totals(), Totals::default());
        let request = |arrived: u64, first: u64, last: u64| RequestTimes {
            arrived_ns: arrived * MS,
            issued_ns: (arrived + 1) * MS,
            first_ns: first * MS,
            last_ns: last * MS,
            node: Some(0),
            prompt: 3,
            tokens: 10,
            end: RequestEnd::Answered,
        };
        counter.add(&request(100, 120, 900));
        counter.add(&request(200, 240, 500));
        let left = RequestTimes {
            end: RequestEnd::Left,
            ..request(1, 2, 5000)
        };
        counter.add(&left);
        let lost = RequestTimes {
            end: RequestEnd::Failed,
            ..request(1, 2, 5000)
        };
        counter.add(&lost);
        let totals = counter.totals();
        assert_eq!((totals.completed, totals.left, totals.failed), (2, 1, 1));
        assert_eq!((totals.prompt_tokens, totals.tokens), (6, 20));
        let windows = totals.window_ns;
        assert_eq!(
            (windows.whole, windows.legacy_loadgen),
            (800 * MS, 400 * MS)
        );
        let is_near = |ns: u64, ms: u64| ns.abs_diff(ms * MS) <= ms * MS / 500;
        assert!(is_near(totals.to_issue_ns.p50, 1), "{totals:?}");
        assert!(is_near(totals.ttft_ns.p50, 20), "{totals:?}");
        assert!(is_near(totals.ttft_ns.p99, 40), "{totals:?}");
        assert!(is_near(totals.latency_ns.max, 800), "{totals:?}");
    }
}
