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

/// Minimum difference, in standard deviations, between accelerators with different models.
const FAR: f64 = 6.0;

/// Describes the accelerator whose share of right answers differs most from the share of the rest,
/// if chance does not explain the difference.
pub fn odd_one(all: &BTreeMap<String, Accuracy>) -> Option<String> {
    let sum = |of: fn(&Accuracy) -> u64| all.values().map(of).sum::<u64>();
    let (right, answers) = (sum(|a| a.right), sum(|a| a.answers));
    let far = |a: &Accuracy| {
        let (n, m) = (a.answers as f64, (answers - a.answers) as f64);
        let others = (right - a.right) as f64 / m;
        let both = right as f64 / answers as f64;
        // Standard deviation of the difference between two equal shares.
        let deviation = (both * (1.0 - both) * (1.0 / n + 1.0 / m)).sqrt();
        (others, (a.share - others).abs() / deviation)
    };
    let each = all.iter().map(|(node, a)| (node, a, far(a)));
    let known = each.filter(|(.., (_, far))| far.is_finite());
    let (node, a, (others, _)) = known
        .filter(|(.., (_, far))| *far > FAR)
        .max_by(|(.., (_, a)), (.., (_, b))| a.total_cmp(b))?;
    Some(format!(
        "{node} is right in {:.1} % of its answers and the others in {:.1} %: do all run the same \
         model?",
        a.share * 100.0,
        others * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use report::text::accuracy;

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

    #[test]
    fn an_accelerator_of_another_model_is_named_and_chance_is_not() {
        let all = |each: &[(u64, u64)]| -> BTreeMap<String, Accuracy> {
            let one = |(i, (right, answers)): (usize, &(u64, u64))| {
                (format!("acc-{i}"), Accuracy::new(*right, *answers, 0))
            };
            each.iter().enumerate().map(one).collect()
        };
        let text = odd_one(&all(&[(264, 270), (6, 270)])).expect("far apart");
        assert!(text.contains("do all run the same model?"), "{text}");
        let text = odd_one(&all(&[(264, 270), (27, 270), (260, 270)])).expect("one of three");
        assert!(text.starts_with("acc-1 is right in 10.0 %"), "{text}");
        assert!(text.contains("the others in 97.0 %"), "{text}");
        assert_eq!(odd_one(&all(&[(264, 270), (259, 270)])), None);
        assert_eq!(odd_one(&all(&[(270, 270), (270, 270)])), None);
        assert_eq!(odd_one(&all(&[(1, 1), (0, 1)])), None);
        assert_eq!(odd_one(&all(&[(5, 9)])), None);
        assert_eq!(odd_one(&all(&[])), None);
    }
}
