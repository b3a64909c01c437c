//! One frontend's stay at an accelerator: what each of
//! its connections did, and whether the counts agree.

use serde::Serialize;

use super::{BatchSizes, DecompressedUse, Mismatch, Places, TrafficRecord, ledger::Check};

/// One connection, seen from the accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServedConnection {
    /// The frontend's index of it.
    pub connection: u16,
    /// Its epoch: greater than 1 where it was lost and made again. With more than
    /// `MOST_ENDED` ends in a session the last of those that this record holds the sum of.
    pub epoch: u32,
    /// Samples taken from it.
    pub arrived: u64,
    /// Responses handed to the fabric.
    pub answered: u64,
    /// Refusals handed to the fabric.
    pub refused: u64,
    /// Samples that got no answer: dropped, or answered when it was gone.
    pub dropped_late: u64,
    /// Times that the NIC thread slept and was woken by what came over it.
    pub wakeups: u64,
    /// Doorbells after which something was left that its socket or queue pair had no room for.
    pub blocked: u64,
    /// Its sending half: responses.
    pub tx: TrafficRecord,
    /// Its receiving half: requests.
    pub rx: TrafficRecord,
    /// It was lost before the session ended.
    pub lost: bool,
}

/// Most ends of connections that one session's report tells apart; later ones are counted in with
/// an earlier epoch of the same connection.
pub const MOST_ENDED: usize = 4_096;

impl ServedConnection {
    /// Puts a connection that has ended on record.
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
        self.arrived += o.arrived;
        self.answered += o.answered;
        self.refused += o.refused;
        self.dropped_late += o.dropped_late;
        self.wakeups += o.wakeups;
        self.blocked += o.blocked;
        self.tx.add(&o.tx);
        self.rx.add(&o.rx);
        self.lost |= o.lost;
    }
}

/// What an engine did that batches by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SequenceTotals {
    /// Sequences answered.
    pub answered: u64,
    /// Tokens of their answers.
    pub tokens: u64,
}

impl SequenceTotals {
    /// What has been counted since an earlier state of the same counts.
    #[must_use]
    pub fn since(self, before: &SequenceTotals) -> Self {
        SequenceTotals {
            answered: self.answered.saturating_sub(before.answered),
            tokens: self.tokens.saturating_sub(before.tokens),
        }
    }
}

/// One session, over.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServedReport {
    /// The frontend's node name.
    pub frontend: String,
    /// It took its leave: what it sent is answered, so everything can be compared.
    pub clean: bool,
    /// Its connections, each epoch by itself, in the order in which they ended.
    pub connections: Vec<ServedConnection>,
    /// Sizes of the batches that ran for it.
    pub batches: BatchSizes,
    /// What ran for it where the engine batches by itself, and `batches` is empty.
    pub sequences: Option<SequenceTotals>,
    /// Inputs that the engine's side copied, because they did not lie as the engine wants them.
    pub engine_copies: u64,
    /// Samples that the engine's side decompressed.
    pub decompressed: DecompressedUse,
    /// Times that NIC threads went to sleep.
    pub sleeps: u64,
    /// Times that NIC threads were woken by another thread.
    pub woken: u64,
    /// Where NIC threads and slots are.
    pub places: Places,
    /// What does not agree; filled in by [`ServedReport::close`].
    pub mismatches: Vec<String>,
}

impl ServedReport {
    /// All connections as one; `lost` where any was.
    pub fn total(&self) -> ServedConnection {
        let mut total = ServedConnection::default();
        self.connections.iter().for_each(|c| total.add(c));
        total
    }

    /// Compares all counts that ought to agree. Nothing is asked of a
    /// connection that was lost, nor of any where the frontend was.
    pub fn reconcile(&self) -> Vec<Mismatch> {
        let mut check = Check::default();
        if !self.clean {
            return check.0;
        }
        for c in self.connections.iter().filter(|c| !c.lost) {
            let of = |what: &str| format!("{what} of connection {}", c.connection);
            check.same(
                of("writes received"),
                c.rx.writes,
                "samples that arrived",
                c.arrived,
            );
            let responses = c.answered.saturating_add(c.refused);
            let done = responses.saturating_add(c.dropped_late);
            check.same(
                of("samples"),
                c.arrived,
                "samples answered, refused or dropped",
                done,
            );
            let ends = c.tx.writes.saturating_sub(c.tx.parts);
            check.same(of("writes sent"), ends, "responses", responses);
        }
        let total = self.total();
        if !total.lost {
            match &self.sequences {
                Some(s) => check.same(
                    "sequences answered",
                    s.answered,
                    "samples answered",
                    total.answered,
                ),
                // What was dropped had been run already, or had not.
                None if (total.answered..=total.arrived).contains(&self.batches.samples()) => {}
                None => check.same(
                    "samples in batches",
                    self.batches.samples(),
                    "samples that arrived",
                    total.arrived,
                ),
            }
        }
        check.0
    }

    /// Fills in [`ServedReport::mismatches`]. Returns whether everything agrees.
    pub fn close(&mut self) -> bool {
        self.mismatches = self.reconcile().iter().map(Mismatch::to_string).collect();
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
                epoch: 1,
                arrived: n,
                answered: n,
                ..ServedConnection::default()
            };
            (c.rx.writes, c.tx.writes) = (n, n);
            c
        };
        let mut batches = BatchSizes::new(4);
        (0..6).for_each(|_| batches.record(2));
        ServedReport {
            frontend: "frontend-01".to_owned(),
            clean: true,
            connections: vec![connection(0, 5), connection(1, 7)],
            batches,
            sleeps: 3,
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
