//! Counts the requests to the server since the start.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fabric::clock;

/// Counters, incremented by the client threads a few times per answer.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub requests: AtomicU64,
    pub answers: AtomicU64,
    pub tokens: AtomicU64,
    /// Events that carried tokens.
    pub steps: AtomicU64,
    /// Busy responses of the server.
    pub busy: AtomicU64,
    /// Connections opened.
    pub opened: AtomicU64,
    /// Requests on a connection that had carried one before.
    pub kept: AtomicU64,
    /// Requests cancelled because the client is gone.
    pub cancelled: AtomicU64,
    /// Prompt tokens from a prefix cache.
    pub cached: AtomicU64,
    /// Current streams.
    pub now: AtomicU64,
    /// Most streams at once.
    pub most: AtomicU64,
    /// First tokens; sum and maximum of the microseconds from their requests.
    pub firsts: AtomicU64,
    pub first_us: AtomicU64,
    pub first_most_us: AtomicU64,
    /// Arrival of the newest token of any stream, in nanoseconds on [`fabric::clock`].
    pub newest_ns: AtomicU64,
    /// Answers of several tokens in one event.
    pub whole: AtomicU64,
    /// Answers with a reported queue time, and the sum of those times in microseconds.
    pub queued: AtomicU64,
    pub queue_us: AtomicU64,
}

impl Counters {
    /// Counts one more stream until the guard is dropped.
    pub fn stream(&self) -> impl Drop + '_ {
        struct One<'a>(&'a Counters);
        impl Drop for One<'_> {
            fn drop(&mut self) {
                self.0.now.fetch_sub(1, Relaxed);
            }
        }
        let now = self.now.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
        One(self)
    }

    /// Records the time of tokens on any stream.
    pub fn token(&self) {
        self.newest_ns.fetch_max(clock::now_ns(), Relaxed);
    }

    /// Time since the last token of any stream; the maximum before the first token.
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(match self.newest_ns.load(Relaxed) {
            0 => u64::MAX,
            newest => clock::now_ns().saturating_sub(newest),
        })
    }

    /// Counts a first token, `us` microseconds after its request.
    pub fn first(&self, us: u64) {
        self.firsts.fetch_add(1, Relaxed);
        self.first_us.fetch_add(us, Relaxed);
        self.first_most_us.fetch_max(us, Relaxed);
    }

    /// A snapshot of all counters, read one after the other.
    pub fn report(&self) -> Report {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let mean = |sum: &AtomicU64, n: &AtomicU64| of(sum).checked_div(of(n));
        Report {
            requests: of(&self.requests),
            answers: of(&self.answers),
            tokens: of(&self.tokens),
            steps: of(&self.steps),
            busy: of(&self.busy),
            opened: of(&self.opened),
            kept: of(&self.kept),
            cancelled: of(&self.cancelled),
            cached: of(&self.cached),
            whole: of(&self.whole),
            most: of(&self.most),
            first_us: mean(&self.first_us, &self.firsts),
            first_most_us: of(&self.first_most_us),
            queue_us: mean(&self.queue_us, &self.queued),
        }
    }
}

/// Counts and times of the requests to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests, including those that met a busy server.
    pub requests: u64,
    /// Complete answers.
    pub answers: u64,
    /// Tokens in those answers.
    pub tokens: u64,
    /// Events that carried them.
    pub steps: u64,
    /// Busy responses of the server.
    pub busy: u64,
    /// Connections opened.
    pub opened: u64,
    /// Requests on a connection that had carried one before.
    pub kept: u64,
    /// Requests cancelled because the client is gone.
    pub cancelled: u64,
    /// Prompt tokens from a prefix cache: a run with any is not valid.
    pub cached: u64,
    /// Answers of several tokens in one event: LoadGen's TPOT is meaningless for them.
    pub whole: u64,
    /// Most streams at once.
    pub most: u64,
    /// Mean microseconds from a request to its first token.
    pub first_us: Option<u64>,
    /// The longest such time, in microseconds.
    pub first_most_us: u64,
    /// Mean microseconds in the server's queue, if the server reports them.
    pub queue_us: Option<u64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} answers of {} tokens in {} events, at most {} streams at once",
            self.answers, self.tokens, self.steps, self.most
        )?;
        if let Some(mean) = self.first_us {
            let most = self.first_most_us;
            write!(f, "; first token after {mean} us, at most {most}")?;
        }
        if let Some(mean) = self.queue_us {
            write!(f, "; {mean} us in the server's queue")?;
        }
        let (opened, kept) = (self.opened, self.kept);
        write!(f, "; {opened} connections, {kept} requests on kept ones")?;
        for (n, what) in [
            (self.busy, "times busy"),
            (self.cancelled, "cancelled"),
            (self.cached, "prompt tokens out of a prefix cache"),
            (self.whole, "answers in one event"),
        ] {
            if n > 0 {
                write!(f, "; {n} {what}")?;
            }
        }
        Ok(())
    }
}
