//! Faults by the state of the connection that they meet.

use std::fmt;

use crate::plan::Kind;

/// State of a connection when an event meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Between two epochs.
    Closed,
    /// One end or none has attached its link.
    Opening,
    /// Up, and no sample is in flight.
    Idle,
    /// Samples are in flight.
    Busy,
    /// No slot is free.
    Full,
    /// The last flush left writes behind.
    Blocked,
    /// One end has lost it.
    Leaving,
}

impl State {
    const WORDS: [&str; 7] = [
        "closed", "opening", "idle", "busy", "full", "blocked", "leaving",
    ];
}

/// Counts of events by kind and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table([[u64; State::WORDS.len()]; Kind::ALL.len()]);

impl Table {
    /// Counts an event.
    pub fn count(&mut self, kind: Kind, state: State) {
        self.0[kind as usize][state as usize] += 1;
    }

    /// Adds the counts of another table.
    pub fn add(&mut self, other: &Table) {
        let cells = self.0.iter_mut().flatten();
        cells
            .zip(other.0.iter().flatten())
            .for_each(|(a, b)| *a += b);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10}", "")?;
        State::WORDS.iter().try_for_each(|w| write!(f, "{w:>9}"))?;
        for kind in Kind::ALL {
            write!(f, "\n{:>10}", kind.word())?;
            let row = self.0[*kind as usize];
            row.iter().try_for_each(|n| write!(f, "{n:>9}"))?;
        }
        Ok(())
    }
}
