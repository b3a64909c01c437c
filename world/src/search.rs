//! Many seeds: counts, and the first violation, shrunk.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::{plan::Plan, run, shrink::shrink, table::Table};

/// Worlds that a shrinking may take.
const TRIES: usize = 4_000;

/// Every tenth seed runs twice: its history must be the same.
const TWICE: u64 = 10;

/// Seeds to try.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The first seed.
    pub seed: u64,
    /// Most seeds.
    pub schedules: u64,
    /// Most time.
    pub most: Duration,
}

/// Counts over all worlds of a search.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seeds tried.
    pub schedules: u64,
    worlds: u64,
    steps: u64,
    samples: u64,
    frames: u64,
    epochs: u64,
    again: u64,
    virtual_ns: u64,
    seconds: f64,
    table: Table,
}

/// A violation.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed's plan, and what it broke.
    pub plan: Plan,
    /// See `plan`.
    pub violation: String,
    /// The smallest plan that breaks the same invariant, and how.
    pub shrunk: Plan,
    /// See `shrunk`.
    pub shrunk_violation: String,
    /// The history of the shrunk plan.
    pub trace: Vec<String>,
}

/// Tries seeds until one breaks an invariant. Counts each world in `progress`.
pub fn search(search: &Search, progress: &AtomicU64) -> (Tally, Option<Found>) {
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut found = None;
    while tally.schedules < search.schedules && began.elapsed() < search.most && found.is_none() {
        let seed = search.seed.wrapping_add(tally.schedules);
        let plan = Plan::of(seed);
        tally.schedules += 1;
        let outcome = run(&plan, false);
        progress.fetch_add(1, Ordering::Relaxed);
        let is_twice = seed.is_multiple_of(TWICE) && outcome.violation.is_none();
        let again = is_twice.then(|| run(&plan, false));
        let differs = again.as_ref().is_some_and(|again| *again != outcome);
        tally.worlds += 1 + u64::from(is_twice);
        tally.steps += outcome.steps * (1 + u64::from(is_twice));
        tally.samples += outcome.samples;
        tally.frames += outcome.frames;
        tally.epochs += outcome.epochs;
        tally.again += outcome.again;
        tally.virtual_ns += outcome.virtual_ns;
        tally.table.add(&outcome.table);
        found = match outcome.violation {
            Some(violation) => Some((plan, violation)),
            None if differs => Some((plan, "history: two runs of one seed differ".to_owned())),
            None => None,
        };
    }
    tally.seconds = began.elapsed().as_secs_f64();
    let found = found.map(|(plan, violation)| {
        let (shrunk, shrunk_violation) = shrink(&plan, &violation, TRIES, progress);
        Found {
            trace: run(&shrunk, true).trace,
            plan,
            violation,
            shrunk,
            shrunk_violation,
        }
    });
    (tally, found)
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, seconds) = (self.schedules.max(1), self.seconds.max(1e-9));
        writeln!(
            f,
            "{} schedules in {:.1} s, {} worlds: {:.0} worlds/s, {:.0} events/s",
            self.schedules,
            self.seconds,
            self.worlds,
            self.worlds as f64 / seconds,
            self.steps as f64 / seconds,
        )?;
        writeln!(
            f,
            "a world: {} samples, {:.1} sent again, {} frames, {:.1} connections opened, {} ms",
            self.samples / n,
            self.again as f64 / n as f64,
            self.frames / n,
            self.epochs as f64 / n as f64,
            self.virtual_ns / n / 1_000_000,
        )?;
        write!(f, "\nevents by the state of a connection:\n{}", self.table)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} breaks: {}", self.plan.seed, self.violation)?;
        let (before, after) = (self.plan.events.len(), self.shrunk.events.len());
        writeln!(
            f,
            "shrunk from {before} to {after} events: {}\n",
            self.shrunk_violation
        )?;
        self.trace
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "\nkeep it as a line of world/kept.txt:\n{}", self.shrunk)
    }
}
