//! Latencies counted in a timeline's buckets.

use record::timeline::bucket_begins;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    counts: Vec<u64>,
    /// Number of latencies.
    pub total: u64,
}

impl Latencies {
    pub fn add(&mut self, tick: &[(u16, u64)]) {
        for &(bucket, count) in tick {
            let at = usize::from(bucket);
            if self.counts.len() <= at {
                self.counts.resize(at + 1, 0);
            }
            self.counts[at] = self.counts[at].saturating_add(count);
            self.total = self.total.saturating_add(count);
        }
    }

    /// The non-empty buckets with their counts.
    pub fn filled(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let all = self.counts.iter().enumerate();
        all.filter_map(|(b, n)| Some((u16::try_from(b).ok()?, *n)).filter(|(_, n)| *n > 0))
    }

    /// A quantile in microseconds, interpolated linearly within a bucket; `None` without latencies.
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        let rank = quantile.clamp(0.0, 1.0) * self.total as f64;
        let mut below = 0u64;
        let mut last = None;
        for (bucket, count) in self.filled() {
            let (from, to) = (bucket_begins(bucket), bucket_begins(bucket + 1));
            if (below + count) as f64 >= rank {
                let share = ((rank - below as f64) / count as f64).clamp(0.0, 1.0);
                return Some((from as f64 + share * (to - from) as f64) / 1000.0);
            }
            below += count;
            last = Some(to as f64 / 1000.0);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use record::timeline::latency_bucket;

    use super::*;

    #[test]
    fn a_quantile_is_near_the_exact_one() {
        let mut all = Latencies::default();
        for us in 1..=10_000u64 {
            all.add(&[(latency_bucket(us * 1000), 1)]);
        }
        for q in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let found = all.quantile_us(q).expect("some");
            let exact = q * 10_000.0;
            // A bucket is an eighth of its octave wide, and the last bucket is not full.
            assert!(
                (found / exact - 1.0).abs() < 0.07,
                "{q}: {found} for {exact}"
            );
        }
        assert_eq!(all.total, 10_000);
        assert_eq!(Latencies::default().quantile_us(0.5), None);
    }
}
