//! Random reordering of arrivals, for tests: holds arrivals back and releases them in random order.
//! Once no new arrivals come, all are released.

use std::collections::VecDeque;

const HELD: usize = 64;

/// Arrivals held back, and the state of a xorshift generator.
#[derive(Debug)]
pub(super) struct Shuffle<T> {
    state: u64,
    held: Vec<T>,
}

impl<T> Shuffle<T> {
    /// Makes a shuffle; the same seed gives the same order.
    pub(crate) fn new(seed: u64) -> Self {
        Shuffle {
            state: seed | 1,
            held: Vec::with_capacity(HELD),
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % n
    }

    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes all arrivals of `inbox` and releases some held ones into it, in random order. An empty
    /// inbox releases all.
    pub(crate) fn through(&mut self, inbox: &mut VecDeque<T>) {
        let came = inbox.len();
        self.held.extend(inbox.drain(..));
        let keep = if came == 0 { 0 } else { self.below(HELD) };
        while self.held.len() > keep {
            let at = self.below(self.held.len());
            inbox.push_back(self.held.swap_remove(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_through_once_and_seldom_in_order() {
        let mut shuffle = Shuffle::new(7);
        let mut got = Vec::new();
        for i in 0..1000 {
            let mut inbox = VecDeque::from([2 * i, 2 * i + 1]);
            shuffle.through(&mut inbox);
            got.extend(inbox);
        }
        let mut rest = VecDeque::new();
        shuffle.through(&mut rest);
        got.extend(rest);
        assert!(!shuffle.holds());
        let swapped = got.windows(2).filter(|w| w[0] > w[1]).count();
        assert!(swapped > 500, "{swapped}");
        got.sort_unstable();
        assert_eq!(got, (0..2000).collect::<Vec<_>>());
    }
}
