//! The rails in service, sorted by score.
//!
//! One array of 32-bit keys: the score above, the rail's number below, so that equal scores have an
//! order too and a search touches at most eight cache lines at 256 rails. Everything is allocated
//! when the list is made.

use super::{MAX_RAILS, RailId, Score};

/// Bits of a key that hold the rail.
const RAIL_BITS: u32 = 8;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct OrderedRails {
    /// Sorted; only the first `len` count.
    keys: Box<[u32]>,
    len: usize,
    /// Key of each rail, zero while it is not in the list.
    of: Box<[u32]>,
}

fn key(rail: RailId, score: Score) -> u32 {
    score.steps() << RAIL_BITS | u32::from(rail.0)
}

fn parts(key: u32) -> (RailId, Score) {
    (RailId(key as u8), Score::from_steps(key >> RAIL_BITS))
}

impl OrderedRails {
    /// An empty list for rails `0..rails`; more than [`MAX_RAILS`] are not kept.
    pub fn new(rails: usize) -> Self {
        let rails = rails.min(MAX_RAILS);
        OrderedRails {
            keys: vec![0; rails].into(),
            len: 0,
            of: vec![0; rails].into(),
        }
    }

    /// True while no rail is in the list.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A rail's score; `None` while it is not in the list.
    pub fn score(&self, rail: RailId) -> Option<Score> {
        match self.of.get(usize::from(rail.0)) {
            Some(&k) if k != 0 => Some(parts(k).1),
            _ => None,
        }
    }

    /// Puts a rail into the list, or moves it to where its new score belongs. A rail the list was
    /// not made for is ignored.
    pub fn set(&mut self, rail: RailId, score: Score) {
        let Some(slot) = self.of.get_mut(usize::from(rail.0)) else {
            return;
        };
        let new = key(rail, score);
        let old = std::mem::replace(slot, new);
        if old == new {
            return;
        }
        let sorted = &mut self.keys[..self.len];
        if old == 0 {
            let to = sorted.partition_point(|k| *k < new);
            self.keys.copy_within(to..self.len, to + 1);
            self.keys[to] = new;
            self.len += 1;
            return;
        }
        let from = sorted.partition_point(|k| *k < old);
        // Only the keys between the two places move, by one.
        if new > old {
            let to = from + sorted[from..].partition_point(|k| *k < new);
            sorted.copy_within(from + 1..to, from);
            sorted[to - 1] = new;
        } else {
            let to = sorted[..from].partition_point(|k| *k < new);
            sorted.copy_within(to..from, to + 1);
            sorted[to] = new;
        }
    }

    /// Takes a rail out of the list.
    pub fn remove(&mut self, rail: RailId) {
        let Some(slot) = self.of.get_mut(usize::from(rail.0)) else {
            return;
        };
        let old = std::mem::take(slot);
        if old != 0 {
            let at = self.keys[..self.len].partition_point(|k| *k < old);
            self.keys.copy_within(at + 1..self.len, at);
            self.len -= 1;
        }
    }

    /// The best rail: of equal ones, the one with the highest number.
    pub fn best(&self) -> Option<(RailId, Score)> {
        self.keys[..self.len].last().map(|k| parts(*k))
    }

    /// The rail with the lowest score of more than `m` steps: one binary search.
    pub fn lowest_above(&self, m: u64) -> Option<(RailId, Score)> {
        self.window(m.saturating_add(1), u64::MAX)
            .first()
            .map(parts_of)
    }

    /// The rails with `low..=high` steps, worst first: two binary searches.
    pub fn window(&self, low: u64, high: u64) -> Window<'_> {
        let sorted = &self.keys[..self.len];
        let start = sorted.partition_point(|k| u64::from(*k >> RAIL_BITS) < low);
        let rest = &sorted[start..];
        let end = rest.partition_point(|k| u64::from(*k >> RAIL_BITS) <= high);
        Window(&rest[..end])
    }

    /// All rails in the list, worst first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (RailId, Score)> + '_ {
        self.keys[..self.len].iter().map(parts_of)
    }
}

fn parts_of(key: &u32) -> (RailId, Score) {
    parts(*key)
}

/// Neighbours in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a>(&'a [u32]);

impl<'a> Window<'a> {
    fn first(self) -> Option<&'a u32> {
        self.0.first()
    }

    /// The one whose number comes next after `last`, going round. Going by number and not by place
    /// keeps turns even while the rails change places.
    pub fn next_after(self, last: RailId) -> Option<(RailId, Score)> {
        // How far round each is, in a byte; the compiler makes vector code of this.
        let distance = |k: &u32| (*k as u8).wrapping_sub(last.0).wrapping_sub(1);
        let nearest = self.0.iter().map(distance).min()?;
        self.0.iter().find(|k| distance(k) == nearest).map(parts_of)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is done to it, it is what sorting the rails afresh would give, and both
        /// searches are what a linear scan would find.
        #[test]
        fn it_is_a_sorted_list(
            rails in 1usize..40,
            steps in prop::collection::vec((0u8..48, 0u32..60, any::<bool>()), 0..120),
            m in 0u64..70, wide in 0u64..20, last: u8,
        ) {
            let mut list = OrderedRails::new(rails);
            let mut model = vec![None; rails];
            for (rail, score, keep) in steps {
                let there = usize::from(rail) < rails;
                if keep {
                    list.set(RailId(rail), Score::from_steps(score));
                    if there { model[usize::from(rail)] = Some(Score::from_steps(score)); }
                } else {
                    list.remove(RailId(rail));
                    if there { model[usize::from(rail)] = None; }
                }
            }
            let mut sorted: Vec<_> = model.iter().enumerate()
                .filter_map(|(i, s)| s.map(|s| (s, RailId(i as u8)))).collect();
            sorted.sort();
            prop_assert_eq!(list.iter().map(|(r, s)| (s, r)).collect::<Vec<_>>(), sorted.clone());
            prop_assert_eq!(list.len, sorted.len());
            for (i, s) in model.iter().enumerate() {
                prop_assert_eq!(list.score(RailId(i as u8)), *s);
            }
            let above = sorted.iter().find(|(s, _)| u64::from(s.steps()) > m);
            let above = above.map(|(s, r)| (*r, *s));
            prop_assert_eq!(list.lowest_above(m), above);
            let inside: Vec<_> = sorted.iter()
                .filter(|(s, _)| (m..=m + wide).contains(&u64::from(s.steps()))).collect();
            let window = list.window(m, m + wide);
            prop_assert_eq!(window.0.len(), inside.len());
            let round = |r: RailId| (u32::from(r.0) + 255 - u32::from(last)) % 256;
            let next = inside.iter().map(|(_, r)| *r).min_by_key(|r| round(*r));
            prop_assert_eq!(window.next_after(RailId(last)).map(|(r, _)| r), next);
        }
    }

    #[test]
    fn it_holds_as_many_as_there_can_be() {
        let mut list = OrderedRails::new(MAX_RAILS + 1);
        for i in 0..=255 {
            list.set(RailId(i), Score::ONE);
        }
        assert_eq!(list.len, MAX_RAILS);
        assert_eq!(list.best(), Some((RailId(255), Score::ONE)));
        list.set(RailId(255), Score::MIN);
        assert_eq!(list.lowest_above(0), Some((RailId(255), Score::MIN)));
        assert_eq!(list.lowest_above(u64::MAX), None);
    }
}
