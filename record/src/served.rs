//! The record of one frontend's session at an accelerator: counts of each connection, and whether
//! the counts agree.

use fabric::FabricCounts;
use serde::Serialize;

use super::{
    BatchSizes, NicWaits, Places,
    counts::{add_counts, counts_since},
    reconcile::Comparison,
};

/// One connection, seen from the accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServedConnection {
    /// Index of the connection at the frontend.
    pub connection: u16,
    /// Epoch: greater than 1 after a reconnection. If a session has more than `MOST_ENDED` ended
    /// connections, a record sums several epochs and holds the last.
    pub epoch: u32,
    /// Samples received.
    pub arrived: u64,
    /// Responses handed to the fabric.
    pub answered: u64,
    /// Refusals handed to the fabric.
    pub refused: u64,
    /// Samples without an answer: dropped, or answered after the connection was lost.
    pub dropped_late: u64,
    /// Times that this connection woke the sleeping NIC thread.
    pub wakeups: u64,
    /// Doorbells that left data unsent because the socket or queue pair was full.
    pub blocked: u64,
    /// Counts of the sending half: responses.
    pub tx: FabricCounts,
    /// Counts of the receiving half: requests.
    pub rx: FabricCounts,
    /// True if the connection was lost before the session ended.
    pub lost: bool,
}

/// Maximum number of ended connections that one session's report keeps apart. Later ones are added
/// to an earlier epoch of the same connection.
const MOST_ENDED: usize = 4_096;

impl ServedConnection {
    /// Appends this connection to `ended`. If `ended` has `MOST_ENDED` entries, adds the counts to
    /// an earlier epoch of the connection.
    pub fn put_on(self, ended: &mut Vec<ServedConnection>) {
        let full = ended.len() >= MOST_ENDED;
        let same = |c: &&mut ServedConnection| full && c.connection == self.connection;
        match ended.iter_mut().rev().find(same) {
            Some(earlier) => {
                earlier.add(&self);
                earlier.epoch = earlier.epoch.max(self.epoch);
            }
            None => ended.push(self),
        }
    }

    fn add(&mut self, o: &ServedConnection) {
        add_counts!(self += o: arrived answered refused dropped_late wakeups blocked);
        self.tx.add(&o.tx);
        self.rx.add(&o.rx);
        self.lost |= o.lost;
    }
}

/// Counts of an engine that batches by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SequenceTotals {
    /// Sequences answered.
    pub answered: u64,
    /// Tokens of the answers.
    pub tokens: u64,
}

impl SequenceTotals {
    /// Returns the counts since the earlier reading `before`.
    #[must_use]
    pub fn since(self, before: &SequenceTotals) -> Self {
        counts_since!(self, before: answered tokens)
    }
}

/// The record of one session that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServedReport {
    /// The frontend's node name.
    pub frontend: String,
    /// True if the frontend left in order, with every sample answered: all counts can be compared.
    pub clean: bool,
    /// The frontend's connections, one entry per epoch, in the order of their ends.
    pub connections: Vec<ServedConnection>,
    /// Sizes of the batches run for the frontend.
    pub batches: BatchSizes,
    /// Sequences run for the frontend, if the engine batches by itself; `batches` is empty then.
    pub sequences: Option<SequenceTotals>,
    /// Inputs copied on the engine's side, because their memory layout did not suit the engine.
    pub engine_copies: u64,
    /// Sleeps of NIC threads, and their ends by another thread.
    #[serde(flatten)]
    pub waits: NicWaits,
    /// NUMA places of NIC threads and slots.
    pub places: Places,
    /// Counts that do not agree; [`ServedReport::close`] computes them.
    pub mismatches: Vec<String>,
}

impl ServedReport {
    /// Returns the sum of all connections; `lost` if any connection was lost.
    pub fn total(&self) -> ServedConnection {
        let mut total = ServedConnection::default();
        self.connections.iter().for_each(|c| total.add(c));
        total
    }

    /// Compares all counts that must be equal. Skips lost connections, and every connection if the
    /// frontend was lost.
    fn compare(&self) -> Vec<String> {
        let mut all = Comparison::default();
        if !self.clean {
            return all.0;
        }
        for c in self.connections.iter().filter(|c| !c.lost) {
            let of = |what: &str| format!("{what} of connection {}", c.connection);
            let arrived = ("samples that arrived", c.arrived);
            all.same((of("writes received"), c.rx.writes), arrived);
            let responses = c.answered.saturating_add(c.refused);
            let done = responses.saturating_add(c.dropped_late);
            let done = ("samples answered, refused or dropped", done);
            all.same((of("samples"), c.arrived), done);
            let ends = c.tx.writes.saturating_sub(c.tx.parts);
            all.same((of("writes sent"), ends), ("responses", responses));
        }
        let total = self.total();
        let ran = self.batches.samples();
        match &self.sequences {
            _ if total.lost => {}
            Some(s) => {
                let answered = ("samples answered", total.answered);
                all.same(("sequences answered", s.answered), answered);
            }
            // The engine may or may not have run the samples that were dropped.
            None if (total.answered..=total.arrived).contains(&ran) => {}
            None => {
                let arrived = ("samples that arrived", total.arrived);
                all.same(("samples in batches", ran), arrived);
            }
        }
        all.0
    }

    /// Computes [`ServedReport::mismatches`]. Returns whether all counts agree.
    pub fn close(&mut self) -> bool {
        self.mismatches = self.compare();
        self.mismatches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_epochs_takes_more_room_and_no_count_is_lost() {
        let mut ended = Vec::new();
        for epoch in 1..=3 * MOST_ENDED as u32 {
            let one = ServedConnection {
                connection: (epoch % 3) as u16,
                epoch,
                arrived: 2,
                ..ServedConnection::default()
            };
            one.put_on(&mut ended);
        }
        let arrived: u64 = ended.iter().map(|c| c.arrived).sum();
        assert_eq!((ended.len(), arrived), (MOST_ENDED, 6 * MOST_ENDED as u64));
        let last = ended.iter().map(|c| c.epoch).max();
        assert_eq!(last, Some(3 * MOST_ENDED as u32));
        let other = ServedConnection {
            connection: 7,
            ..ServedConnection::default()
        };
        other.put_on(&mut ended);
        assert_eq!(ended.last().map(|c| c.connection), Some(7), "a first end");
    }

    fn good() -> ServedReport {
        let connection = |connection, n| {
            let mut c = ServedConnection {
                connection,
                arrived: n,
                answered: n,
                ..ServedConnection::default()
            };
            (c.rx.writes, c.tx.writes) = (n, n);
            c
        };
        ServedReport {
            clean: true,
            connections: vec![connection(0, 5), connection(1, 7)],
            batches: BatchSizes::from_counts(&[0, 0, 6, 0, 0]),
            ..ServedReport::default()
        }
    }

    #[test]
    fn each_count_that_is_off_is_named() {
        type Spoil = fn(&mut ServedReport);
        let cases: [(Spoil, &str); 7] = [
            (|_| {}, ""),
            (
                |r| r.connections[0].rx.writes += 1,
                "writes received of connection 0 is 6, but samples that arrived is 5",
            ),
            (
                |r| r.connections[1].answered -= 1,
                "samples of connection 1 is 7, but samples answered, refused or dropped is 6; \
                 writes sent of connection 1 is 7, but responses is 6",
            ),
            (
                |r| r.connections[1].tx.writes -= 1,
                "writes sent of connection 1 is 6, but responses is 7",
            ),
            (
                |r| {
                    r.connections[1].tx.parts += 3;
                    r.connections[1].tx.writes += 3;
                },
                "",
            ),
            (
                |r| r.connections[1].tx.parts += 3,
                "writes sent of connection 1 is 4, but responses is 7",
            ),
            (
                |r| r.batches.record(1),
                "samples in batches is 13, but samples that arrived is 12",
            ),
        ];
        for (spoil, expected) in cases {
            let mut report = good();
            spoil(&mut report);
            assert_eq!(report.close(), expected.is_empty());
            assert_eq!(report.mismatches.join("; "), expected);
        }
    }

    #[test]
    fn what_was_lost_is_not_compared() {
        let mut report = good();
        report.connections[0].lost = true;
        report.connections[0].answered -= 2;
        report.batches.record(1);
        assert!(report.close(), "{:?}", report.mismatches);
        report.connections[1].answered -= 2;
        assert!(!report.close());
        report.clean = false;
        assert!(report.close());
    }

    #[test]
    fn an_engine_that_makes_no_batches_is_compared_by_its_sequences() {
        let mut report = good();
        report.batches = BatchSizes::default();
        report.sequences = Some(SequenceTotals {
            answered: 12,
            tokens: 3400,
        });
        assert!(report.close(), "{:?}", report.mismatches);
        report.connections[0].answered -= 1;
        report.connections[0].tx.writes -= 1;
        report.connections[0].dropped_late += 1;
        assert!(!report.close());
        let words = "sequences answered is 12, but samples answered is 11";
        assert_eq!(report.mismatches, [words]);
    }
}
