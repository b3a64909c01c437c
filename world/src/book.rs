//! The book: the fate of each sample, as the callbacks of both ends tell it, and the history.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use fabric::{Broken, Region, os::lock, testkit::dice::Dice};
use qdl::{
    counters::Recorder,
    dispatch::{Completer, Contradiction, Response, ResponsePart, Sample},
    serve::{Arrival, Service},
};
use record::ServedReport;

/// The engine's answer to a sample with this digest: at least one token, at most `most` bytes.
pub fn answer(digest: u64, most: usize) -> Vec<u8> {
    let mut dice = Dice::of(digest, &[]);
    let words = dice.from_to(1, (most as u64 / 4).max(1));
    let word = |_| (dice.draw() as u32).to_le_bytes();
    (0..words).flat_map(word).collect()
}

/// The fate of a sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// Digest of its bytes.
    pub digest: u64,
    /// Seed of its own dice.
    pub seed: u64,
    /// Completions.
    pub ends: u8,
    /// Its first token was reported.
    pub first: bool,
    /// Bytes of the parts of the current attempt.
    pub bytes: u32,
    /// Accelerator of the last attempt.
    pub server: usize,
    /// Attempts that arrived at an engine, and those that it refused.
    pub attempts: u32,
    pub refusals: u32,
    /// It is a sample of a warm-up, which no consumer sees.
    pub warms_up: bool,
    /// It was cancelled before its end: most attempts that may arrive at an engine.
    pub cancelled: Option<u32>,
}

/// A connection that one end has reported lost.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The frontend's number, or that of the accelerator's session.
    pub connection: usize,
    pub epoch: u32,
    pub cause: Broken,
    /// The accelerator and its session; `None`: the frontend has reported it.
    pub server: Option<(usize, u64)>,
}

/// What a picture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The frontend has the answer of this accelerator.
    Answer {
        /// Time in the world.
        at_ns: u64,
        /// Number of the accelerator.
        server: usize,
    },
    /// The frontend has lost a connection to this accelerator.
    Loss {
        /// Time in the world.
        at_ns: u64,
        /// Number of the accelerator.
        server: usize,
    },
}

/// Everything that has happened in a world.
#[derive(Default)]
pub struct Book {
    pub fates: Vec<Fate>,
    pub of_digest: BTreeMap<u64, u64>,
    /// Longest answer in bytes.
    pub most: usize,
    pub answered: u64,
    pub empty: u64,
    pub recorded: u64,
    pub aborted: bool,
    pub violations: Vec<String>,
    /// Losses that the world has not handled.
    pub losses: Vec<Loss>,
    /// Control tasks may have work.
    pub is_news: bool,
    /// Whether the cluster came up, once that is known.
    pub ready: Option<bool>,
    /// Reports of accelerators.
    pub served: Vec<(usize, ServedReport)>,
    pub arrivals: VecDeque<(usize, Arrival)>,
    pub now: u64,
    /// A companion takes a step.
    pub is_preparing: bool,
    /// Hash of the history.
    pub hash: u64,
    /// The history in words, if wanted.
    pub trace: Option<Vec<String>>,
    /// Answers and losses with their times, with the history.
    pub moments: Vec<Moment>,
    /// Slots in use of a connection.
    pub in_flight: Option<Box<dyn Fn(usize) -> usize + Send>>,
}

impl Book {
    /// Adds to the hash of the history.
    pub fn mix(&mut self, what: u64, of: u64) {
        let with = self.hash ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of;
        self.hash = with.wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    /// Adds a line to the history.
    pub fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.3} us  {}", self.now as f64 / 1e3, what()));
        }
    }

    /// Notes a violation. The text up to the first colon is its kind.
    pub fn wrong(&mut self, what: String) {
        self.say(|| format!("VIOLATION {what}"));
        self.violations.push(what);
    }

    fn end(&mut self, id: u64, empty: bool) {
        self.mix(1 + u64::from(empty), id);
        self.say(|| format!("sample {id} completed{}", if empty { " empty" } else { "" }));
        let aborted = self.aborted;
        let Some(fate) = self.fates.get_mut(id as usize) else {
            return self.wrong(format!("completed an unknown sample: {id}"));
        };
        fate.ends += 1;
        let (at_ns, server) = (self.now, fate.server);
        if self.trace.is_some() && !empty {
            self.moments.push(Moment::Answer { at_ns, server });
        }
        let fate = &self.fates[id as usize];
        if fate.ends > 1 {
            self.wrong(format!("completed twice: sample {id}"));
        } else if empty && !aborted && fate.cancelled.is_none() {
            self.wrong(format!("completed empty without an abort: sample {id}"));
        }
        match empty {
            true => self.empty += 1,
            false => self.answered += 1,
        }
    }

    /// Chooses a sample to cancel, by the dice of an event.
    pub fn choose_cancelled(&self, n: u64, dice: &mut Dice) -> Option<u64> {
        let all = (0..).zip(&self.fates).filter(|(_, fate)| !fate.warms_up);
        let ids: Vec<u64> = match n > 4 {
            true => all.filter(|(_, f)| f.ends == 0).map(|(id, _)| id).collect(),
            false => all.map(|(id, _)| id).collect(),
        };
        let last = if n > 4 {
            ids.len()
        } else {
            (n as usize).min(ids.len())
        };
        let ids = &ids[ids.len() - last..];
        (!ids.is_empty()).then(|| ids[dice.below(ids.len() as u64) as usize])
    }

    /// Notes that a sample is about to be cancelled; so many `more` attempts may arrive.
    pub fn cancel(&mut self, id: u64, more: u32) {
        self.mix(7, id);
        self.say(|| format!("cancel {id}"));
        let fate = &mut self.fates[id as usize];
        if fate.ends == 0 {
            let most = fate.attempts.saturating_add(more);
            fate.cancelled = Some(fate.cancelled.map_or(most, |before| before.min(most)));
        }
    }

    /// Notes samples that are completed without an answer.
    pub fn completed_empty(&mut self, samples: &[Sample]) {
        samples.iter().for_each(|s| self.end(s.id, true));
    }

    fn response(&mut self, r: &Response<'_>) {
        self.end(r.id, false);
        let Some(fate) = self.fates.get(r.id as usize).copied() else {
            return;
        };
        if r.payload != answer(fate.digest, self.most) {
            self.wrong(format!("answer: sample {} has wrong bytes", r.id));
        }
        if r.whole == fate.first {
            let text = format!("first token: sample {}, answer whole: {}", r.id, r.whole);
            self.wrong(text);
        }
        if r.index != index_of(r.id) {
            self.wrong(format!("answer: sample {} has index {}", r.id, r.index));
        }
    }

    fn part(&mut self, p: &ResponsePart<'_>) {
        self.mix(3, p.id << 20 | u64::from(p.offset));
        self.say(|| format!("sample {} part {}..+{}", p.id, p.offset, p.payload.len()));
        let most = self.most;
        let Some(fate) = self.fates.get_mut(p.id as usize) else {
            return self.wrong(format!("part of an unknown sample: {}", p.id));
        };
        let before = *fate;
        let from = if p.offset == 0 { 0 } else { before.bytes } as usize;
        fate.bytes = (from + p.payload.len()) as u32;
        fate.first |= p.has_first_token;
        let whole = answer(fate.digest, most);
        if before.ends > 0 {
            self.wrong(format!("part after the end: sample {}", p.id));
        }
        if p.offset as usize != from || whole.get(from..from + p.payload.len()) != Some(p.payload) {
            self.wrong(format!(
                "part: sample {} has wrong bytes at {}",
                p.id, p.offset
            ));
        }
        if p.has_first_token && before.first {
            self.wrong(format!("first token twice: sample {}", p.id));
        }
        if p.offset == 0 && !p.has_first_token && !before.first {
            self.wrong(format!("first token not reported: sample {}", p.id));
        }
    }
}

/// The index of a sample, as issued.
pub fn index_of(id: u64) -> u64 {
    100 + id
}

/// The book, as the callbacks hold it.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Book>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Book> {
        lock(&self.0)
    }
}

/// Consumer of the answers of one share.
pub struct Keeper(pub Shared, pub Option<Recorder>);

impl Completer for Keeper {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let mut book = self.0.lock();
        let mut held: Vec<(usize, usize)> = Vec::new();
        for r in responses {
            match held
                .iter_mut()
                .find(|(connection, _)| *connection == r.connection)
            {
                Some((_, n)) => *n += 1,
                None => held.push((r.connection, 1)),
            }
            book.response(&r);
        }
        for (connection, n) in held {
            let used = book.in_flight.as_ref().map_or(n, |of| of(connection));
            if used < n {
                let text = format!("slot: free during the callback, connection {connection}");
                book.wrong(text);
            }
        }
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        let mut book = self.0.lock();
        parts.for_each(|p| book.part(&p));
    }

    fn contradicted(&mut self, what: Contradiction) {
        self.0
            .lock()
            .wrong(format!("first token differs: {what:?}"));
    }

    fn recorder(&mut self, _: u64) -> Option<&mut Recorder> {
        self.1.as_mut()
    }
}

/// Service of one accelerator: arrivals wait in the book until the world takes them.
pub struct Door(pub Shared, pub usize);

impl Service for Door {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let mut book = self.0.lock();
        let arrivals = arrivals.drain(..).map(|a| (self.1, a));
        book.arrivals.extend(arrivals);
    }

    fn memory(&self, _: &Arc<Region>) {
        let mut book = self.0.lock();
        if !book.is_preparing {
            book.wrong("preparation: a NIC thread waits for a registration".to_owned());
        }
    }
}
