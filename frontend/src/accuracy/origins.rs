//! Records which accelerator answered each sample.
//!
//! LoadGen's log does not name the accelerator, so completers record the connection of each answer,
//! only in runs with accuracy.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use record::Accuracy;

use super::sum;

/// The connection of each sample's first answer.
#[derive(Debug)]
pub struct AnswerOrigins(Box<[AtomicU32]>);

impl AnswerOrigins {
    pub fn new(samples: usize) -> Self {
        AnswerOrigins((0..samples).map(|_| AtomicU32::new(0)).collect())
    }

    /// Records an answer's connection. Only a sample's first answer counts: later answers belong to
    /// a submission's performance run, and LoadGen does not log them.
    pub fn answered(&self, index: u64, connection: usize) {
        let place = usize::try_from(index).ok().and_then(|i| self.0.get(i));
        let connection = u32::try_from(connection).unwrap_or(u32::MAX - 1);
        if let Some(place) = place {
            // Ignore the error: the first answer is recorded already.
            let _ = place.compare_exchange(0, connection + 1, Relaxed, Relaxed);
        }
    }

    pub fn of(&self, index: usize) -> Option<usize> {
        let connection = self.0.get(index)?.load(Relaxed);
        (connection as usize).checked_sub(1)
    }
}

/// Merges scores by connection into scores by accelerator; a connection's name is `ACCELERATOR/0`.
pub fn by_accelerator(
    scores: &BTreeMap<usize, Accuracy>,
    connections: &[String],
) -> BTreeMap<String, Accuracy> {
    let mut sums: BTreeMap<String, Accuracy> = BTreeMap::new();
    for (connection, score) in scores {
        let Some(name) = connections.get(*connection) else {
            continue;
        };
        let node = name.rsplit_once('/').map_or(&**name, |(node, _)| node);
        let own = sums.entry(node.to_owned()).or_default();
        *own = sum(*own, *score);
    }
    sums
}

#[cfg(test)]
mod tests {
    use view::accuracy;

    use super::*;

    #[test]
    fn the_first_answer_counts() {
        let origins = AnswerOrigins::new(2);
        assert_eq!(origins.of(0), None);
        origins.answered(0, 3);
        origins.answered(0, 1);
        origins.answered(7, 1);
        assert_eq!(origins.of(0), Some(3));
        assert_eq!(origins.of(1), None);
        assert_eq!(origins.of(7), None);
    }

    #[test]
    fn connections_of_one_accelerator_are_summed() {
        let score = |right| Accuracy::new(right, 10, 0);
        let scores = BTreeMap::from([(0, score(9)), (1, score(8)), (2, score(1))]);
        let names = ["acc-a/0", "acc-a/1", "acc-b/0"].map(str::to_owned);
        let all = by_accelerator(&scores, &names);
        assert_eq!(accuracy(&all["acc-a"]), "85.000 %: 17 of 20");
        assert_eq!(accuracy(&all["acc-b"]), "10.000 %: 1 of 10");
        let local = by_accelerator(&BTreeMap::from([(0, score(7))]), &["front".to_owned()]);
        assert_eq!(local["front"].right, 7);
    }
}
