//! What the requests to the server came to, since the start.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fabric::clock;

/// Counted by the threads that speak with the server, a few times for each answer.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub requests: AtomicU64,
    pub answers: AtomicU64,
    pub tokens: AtomicU64,
    /// Events with tokens in them.
    pub steps: AtomicU64,
    /// Times that it said it was busy.
    pub busy: AtomicU64,
    /// Connections opened.
    pub opened: AtomicU64,
    /// Requests on a connection that had carried one before.
    pub kept: AtomicU64,
    /// Requests that were closed since nobody waited any more.
    pub cancelled: AtomicU64,
    /// Tokens of prompts that came out of a prefix cache.
    pub cached: AtomicU64,
    /// Streams now.
    pub now: AtomicU64,
    /// Most streams at once.
    pub most: AtomicU64,
    /// First tokens, and microseconds from their requests to them.
    pub firsts: AtomicU64,
    pub first_us: AtomicU64,
    pub first_most_us: AtomicU64,
    /// When the newest token of any stream came, on [`fabric::clock`].
    pub newest_ns: AtomicU64,
    /// Answers of several tokens that came in one event.
    pub whole: AtomicU64,
    /// Answers of which the server said how long they were in its queue, and microseconds.
    pub queued: AtomicU64,
    pub queue_us: AtomicU64,
}

impl Counters {
    /// One more stream; ends with the guard.
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

    /// Tokens came, to any stream.
    pub fn token(&self) {
        self.newest_ns.fetch_max(clock::now_ns(), Relaxed);
    }

    /// For how long no stream has brought a token; for ever where none has yet.
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(match self.newest_ns.load(Relaxed) {
            0 => u64::MAX,
            newest => clock::now_ns().saturating_sub(newest),
        })
    }

    /// A first token, so long after its request.
    pub fn first(&self, us: u64) {
        self.firsts.fetch_add(1, Relaxed);
        self.first_us.fetch_add(us, Relaxed);
        self.first_most_us.fetch_max(us, Relaxed);
    }

    /// Everything, at about one moment.
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

/// What the requests to a server came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests, those included that the server was too busy for.
    pub requests: u64,
    /// Answers that came whole.
    pub answers: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// Events that brought them.
    pub steps: u64,
    /// Times that the server said it was busy.
    pub busy: u64,
    /// Connections opened.
    pub opened: u64,
    /// Requests on a connection that had carried one before.
    pub kept: u64,
    /// Requests that were closed since nobody waited any more.
    pub cancelled: u64,
    /// Tokens of prompts that came out of a prefix cache: such a run does not count.
    pub cached: u64,
    /// Answers of several tokens that came in one event: LoadGen's TPOT means nothing then.
    pub whole: u64,
    /// Most streams at once.
    pub most: u64,
    /// Microseconds from a request to its first token, on average.
    pub first_us: Option<u64>,
    /// The longest.
    pub first_most_us: u64,
    /// Microseconds in the server's own queue, on average, where it says.
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
