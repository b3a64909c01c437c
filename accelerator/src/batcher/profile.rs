//! What batches of each size take, and which size gets a queue down soonest.
//!
//! Engines have steps: sizes with a CUDA graph or kernels of their own are quick, and one sample
//! more can cost as much as a second batch. Nobody has to say where the steps are: sizes are
//! measured while warming up, and each batch that is run refines them.
//!
//! What is kept of a size is its cost beside the others'. How quick the engine is as a whole is
//! kept apart, and follows within a few batches: alone it is quicker than under load, and where it
//! slows down for a while, sizes that were not run meanwhile do not become better for it.
//!
//! A plain data structure: no clock, no engine, and no allocation after it is made.

/// A size is preferred to another only where it gets through at least a ninth more samples in the
/// same time: less is within what measurements differ by.
const BETTER: f64 = 10.0 / 9.0;
/// Sizes whose samples cost so little more than the least are as good.
const NEXT_TO: f64 = 1.03;
/// What is pending may take this much longer in two batches than in one.
const LONGER: f64 = 1.1;
/// Weight of an observation once a size has been run often: of the first few their mean counts.
const WEIGHT: f64 = 1.0 / 8.0;
/// What warming up said, or sizes on either side, is trusted like so many batches: it is of one and
/// the same moment, as what follows is not.
const OFTEN: u32 = 8;
/// A batch is taken to be off by this factor at most, so that a hiccup is not taken for a cost.
const OFF: f64 = 1.25;
/// Where the pace has changed by this factor since a size was run, what it cost then may have been
/// the pace's fault: it is not held against it.
const MOVED: f64 = 1.2;
/// The first batches are taken as they are: under load an engine is slower than it was alone.
const FIRST: u32 = 4;
/// A size that was not run in so many batches has its cost for itself: what it is quicker by is not
/// the engine's pace, which the others have told.
const SELDOM: u64 = 8;
/// Parts of the sizes between two that have a place of their own.
const PARTS: usize = 8;
/// What was found slow is looked at again after so many batches, of whatever sizes, that were cut
/// short or padded for it, and each time it is found slow again after twice as many.
const LOOK_AGAIN: (u32, u32) = (64, 1024);
/// A batch of zeros that takes less was not run: not every engine has something to warm up.
const LEAST_WARM: u64 = 1_000;
/// Sizes that share a cost: from the place before, up to and with `end`.
#[derive(Clone, Copy, Debug)]
struct Place {
    end: usize,
    /// Nanoseconds that a batch of `end` samples would take at pace 1, and how often that was
    /// measured; 0 where it never was.
    cost: f64,
    times: u32,
    /// The pace when it was last run; 0 where it was not.
    pace: f64,
    /// Batches of all sizes that had been run then.
    at: u64,
    /// Nanoseconds of a batch of `end` zeros while warming up; 0 where there was none.
    alone: f64,
}

impl Place {
    fn of(end: usize) -> Self {
        Place {
            end,
            cost: 0.0,
            times: 0,
            pace: 0.0,
            at: 0,
            alone: 0.0,
        }
    }

    /// Whether it was run at another pace than this.
    fn moved(&self, pace: f64) -> bool {
        let by = self.pace / pace;
        by > 0.0 && !(1.0 / MOVED..=MOVED).contains(&by)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Ascending by `end`; the last is the largest batch there is.
    places: Box<[Place]>,
    /// Sizes are listed, and batches are padded to them: what a place's sizes take is the same.
    /// Else it is taken to be the same for each sample.
    padded: bool,
    /// How much longer batches take now than their cost says.
    pace: f64,
    /// Batches that it was seen in, while there are few.
    paced: u32,
    /// Batches run.
    runs: u64,
    /// Batches cut short or padded since what was found slow was last looked at, and how many there
    /// may be.
    cut: u32,
    look_again: u32,
}

impl Profile {
    /// One of batches up to `max_batch`. Sizes that are listed have a place each, which is that of
    /// those that are padded to it. Else powers of two have one of their own, as sizes that engines
    /// are warmed up with, and those between share a few.
    pub fn new(max_batch: usize, listed: &[usize]) -> Self {
        let max_batch = max_batch.max(1);
        let powers = std::iter::successors(Some(1), |n| Some(2 * n));
        let mut marks: Vec<usize> = match listed {
            [] => powers.take_while(|n| *n < max_batch).collect(),
            some => some.iter().copied().filter(|n| *n < max_batch).collect(),
        };
        marks.push(max_batch);
        marks.retain(|n| *n > 0);
        let mut places = Vec::new();
        let mut before = 0;
        for mark in marks {
            let between = mark - before - 1;
            let parts = match listed {
                [] => between.min(PARTS),
                _ => 0,
            };
            let ends = (1..=parts).map(|i| before + between * i / parts);
            places.extend(ends.chain([mark]).map(Place::of));
            before = mark;
        }
        Profile {
            places: places.into(),
            padded: !listed.is_empty(),
            pace: 1.0,
            paced: 0,
            runs: 0,
            cut: 0,
            look_again: LOOK_AGAIN.0,
        }
    }

    fn largest(&self) -> usize {
        self.places[self.places.len() - 1].end
    }

    fn place(&self, samples: usize) -> usize {
        let at = self.places.partition_point(|p| p.end < samples);
        at.min(self.places.len() - 1)
    }

    /// The place of a batch of so many, and what part of that place's largest it costs.
    pub fn part(&self, samples: usize) -> (usize, f64) {
        let at = self.place(samples);
        let part = match self.padded {
            true => 1.0,
            false => samples.max(1) as f64 / self.places[at].end as f64,
        };
        (at, part.min(1.0))
    }

    /// Sizes that were warmed up, the largest first, and what a batch of each took alone, ns.
    pub fn alone(&self) -> impl Iterator<Item = (usize, u64)> {
        let warmed = self.places.iter().rev().filter(|p| p.alone > 0.0);
        warmed.map(|p| (p.end, p.alone as u64))
    }

    /// What the largest batch of each place costs, ns; 1 where nothing is known.
    pub fn costs(&self) -> impl Iterator<Item = f64> {
        let cost = |p: &Place| self.cost(p.end).unwrap_or(1.0);
        self.places.iter().map(cost)
    }

    /// A batch of zeros took so long, before the first sample came, with no other beside it. Of
    /// several the quickest counts.
    pub fn warmed(&mut self, samples: usize, ns: u64) {
        let at = self.place(samples);
        let place = &mut self.places[at];
        let sooner = place.times == 0 || (ns as f64) < place.cost;
        if place.end == samples && ns >= LEAST_WARM && sooner {
            (place.cost, place.times) = (ns as f64, OFTEN);
            place.alone = place.cost;
        }
    }

    /// A batch took so long.
    pub fn observe(&mut self, samples: usize, ns: u64) {
        let at = self.place(samples);
        let between = self.between(at);
        self.runs += 1;
        let place = &mut self.places[at];
        let seldom = self.runs - place.at > SELDOM;
        place.at = self.runs;
        let ns = ns.max(1) as f64;
        let took = match self.padded {
            true => ns,
            false => ns * place.end as f64 / samples.max(1) as f64,
        };
        if place.times == 0 {
            // What lies between two sizes that are known is hardly ever far from the line.
            place.cost = between.unwrap_or(took / self.pace);
            place.times = if between.is_some() { OFTEN } else { 1 };
        } else if place.moved(self.pace) {
            (place.cost, place.times) = (took / self.pace, 1);
        }
        let off = took / (place.cost * self.pace);
        if self.paced < FIRST {
            self.paced += 1;
            self.pace *= off;
            place.pace = self.pace;
            return;
        }
        if off < 1.0 - WEIGHT {
            self.look_again = LOOK_AGAIN.0;
            if seldom {
                place.cost *= off;
                place.pace = self.pace;
                return;
            }
        }
        let off = off.clamp(1.0 / OFF, OFF);
        // Half of it is the engine's as a whole; of the other half this size takes its part.
        let half = off.sqrt();
        self.pace *= half;
        let weight = WEIGHT.max(1.0 / f64::from(place.times + 1));
        place.cost *= 1.0 + (half - 1.0) * weight;
        (place.times, place.pace) = (place.times.saturating_add(1), self.pace);
    }

    /// What the largest size of a place costs, where that is known.
    fn known(&self, at: usize) -> Option<f64> {
        let place = &self.places[at];
        (place.times > 0).then_some(place.cost)
    }

    /// What the largest size of a place costs by what is known of smaller and of larger ones, where
    /// both are.
    fn between(&self, at: usize) -> Option<f64> {
        let find = |at: usize| {
            self.known(at)
                .map(|cost| (self.places[at].end as f64, cost))
        };
        let (a, low) = (0..at).rev().find_map(find)?;
        let (b, high) = (at + 1..self.places.len()).find_map(find)?;
        let n = self.places[at].end as f64;
        Some(low + (high - low).max(0.0) * (n - a) / (b - a))
    }

    /// What a batch of so many costs: as measured, or on the line between what is known of smaller
    /// and larger ones. Beyond the largest that is known samples are taken to cost the same each,
    /// so that nothing speaks against finding out. Nothing where nothing is known.
    fn cost(&self, samples: usize) -> Option<f64> {
        let at = self.place(samples);
        let end = |at: usize| self.places[at].end as f64;
        let n = samples as f64;
        if let Some(cost) = self.known(at) {
            return Some(match self.padded {
                true => cost,
                false => cost * n.min(end(at)) / end(at),
            });
        }
        let find = |at: usize| self.known(at).map(|cost| (end(at), cost));
        let below = (0..at).rev().find_map(find);
        let above = (at + 1..self.places.len()).find_map(find);
        match (below, above) {
            (Some((a, cost)), None) => Some(cost * n / a),
            (None, Some((_, cost))) => Some(cost),
            (Some((a, low)), Some((b, high))) => {
                Some(low + (high - low).max(0.0) * (n.clamp(a, b) - a) / (b - a))
            }
            (None, None) => None,
        }
    }

    /// Samples that are enough for a batch: more are no quicker each, or there is no more room.
    pub fn enough(&self) -> usize {
        let largest = self.largest();
        match self.quickest(largest) {
            Some((size, cost)) if self.is_better(size, cost, largest) => size,
            _ => largest,
        }
    }

    /// How many of `pending` samples make the next batch: all that one may have, or the largest
    /// listed size that they fill, where there is one; unless another number is better.
    pub fn cut(&mut self, pending: usize) -> usize {
        let whole = pending.min(self.largest());
        let filled = self.places.partition_point(|p| p.end <= whole);
        let most = match filled {
            0 => whole,
            _ if self.padded => self.places[filled - 1].end,
            _ => whole,
        };
        let mut size = self.shorter(pending, most);
        // What fills the next listed size but in part may still be quicker in one go.
        let cost = self.cost(whole).filter(|_| whole > most);
        if cost.is_some_and(|cost| self.is_better(whole, cost, size)) {
            size = whole;
        }
        // Whatever is run instead: what is not run is never found to be quick again.
        if size == most {
            return most;
        }
        if self.cut >= self.look_again {
            self.cut = 0;
            self.look_again = (2 * self.look_again).min(LOOK_AGAIN.1);
            return most;
        }
        self.cut += 1;
        size
    }

    /// A smaller batch than `most`, where that is better.
    fn shorter(&self, pending: usize, most: usize) -> usize {
        let Some((size, cost)) = self.quickest(most) else {
            return most;
        };
        let moved = self.places[self.place(most)].moved(self.pace);
        let better = size < most && !moved && self.is_better(size, cost, most);
        if better && self.in_time(size, cost, pending, most) {
            return size;
        }
        most
    }

    /// The largest size up to `most` at which samples cost next to least each, and what a batch of
    /// it costs.
    fn quickest(&self, most: usize) -> Option<(usize, f64)> {
        let upto = self.places.partition_point(|p| p.end <= most);
        let known = || self.places[..upto].iter().filter(|p| p.times > 0);
        let each = |p: &Place| p.cost / p.end as f64;
        let least = known().map(each).fold(f64::INFINITY, f64::min);
        let mut near = known().rev();
        let size = near.find(|p| each(p) <= NEXT_TO * least)?;
        Some((size.end, size.cost))
    }

    /// Whether a batch of `size` that costs `cost` gets through more samples in a time than one of
    /// `other`, by what counts as more. Batches that run beside others seem to cost what those do:
    /// so it must not be slower alone either, where that is known of both.
    fn is_better(&self, size: usize, cost: f64, other: usize) -> bool {
        let gains = |by: f64, cost: f64, than: f64| size as f64 * than >= by * other as f64 * cost;
        let than = self.cost(other);
        let now = than.is_some_and(|than| gains(BETTER, cost, than));
        let alone = |n: usize| Some(self.places[self.place(n)].alone).filter(|ns| *ns > 0.0);
        let both = alone(size).zip(alone(other));
        now && both.is_none_or(|(cost, than)| gains(1.0, cost, than))
    }

    /// Whether the last of those pending is done in time though the first batch leaves some out.
    /// Where more are pending than one batch takes, that is a matter of samples a second alone.
    fn in_time(&self, size: usize, cost: f64, pending: usize, most: usize) -> bool {
        if pending > self.largest() {
            return true;
        }
        let both = self.cost(most).zip(self.cost(most - size));
        both.is_some_and(|(whole, rest)| cost + rest <= LONGER * whole)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// 2.7 ms at 128, 3.6 at 129, 6.3 at 178.
    fn steps(n: usize) -> u64 {
        let n = n as u64;
        match n {
            ..=128 => MS + 17 * MS / 10 * n / 128,
            _ => 36 * MS / 10 + 27 * MS / 10 * (n - 129) / 49,
        }
    }

    /// One that has seen every size often.
    fn learned(max_batch: usize, listed: &[usize], time: impl Fn(usize) -> u64) -> Profile {
        let mut p = Profile::new(max_batch, listed);
        // In an order that goes up and down.
        for i in 0..40 * max_batch {
            let n = 1 + i * 7919 % max_batch;
            p.observe(n, time(n));
        }
        p
    }

    #[test]
    fn sizes_have_places_of_their_own_where_engines_are_warmed_up() {
        let p = Profile::new(100, &[]);
        for n in [1, 2, 4, 8, 16, 32, 64, 100] {
            assert_eq!(p.places[p.place(n)].end, n);
            assert!(n == 1 || p.place(n - 1) < p.place(n), "{n} is alone");
        }
        let ends: Vec<usize> = p.places.iter().map(|p| p.end).collect();
        assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}");
        let p = Profile::new(256, &[1, 32, 64, 256]);
        let ends = p.places.iter().map(|p| p.end);
        assert_eq!(Vec::from_iter(ends), [1, 32, 64, 256]);
    }

    #[test]
    fn a_queue_is_cut_where_the_step_is() {
        let mut p = learned(256, &[], steps);
        assert_eq!(p.enough(), 128);
        for (pending, want) in [(100, 100), (128, 128), (140, 128), (178, 128), (900, 128)] {
            assert_eq!(p.cut(pending), want, "{pending} pending");
        }
    }

    #[test]
    fn without_a_step_all_that_is_pending_runs() {
        let mut p = learned(256, &[], |n| MS + 10_000 * n as u64);
        assert_eq!(p.enough(), 256);
        for pending in 1..300 {
            assert_eq!(p.cut(pending), pending.min(256));
        }
    }

    #[test]
    fn nothing_is_known_at_first_and_what_warming_up_said_is_scaled() {
        let mut p = Profile::new(256, &[]);
        assert_eq!((p.enough(), p.cut(200)), (256, 200));
        for n in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            p.warmed(n, steps(n) / 2);
        }
        assert_eq!(p.cut(256), 128);
        // Twice as slow under load, whatever the size.
        p.observe(128, steps(128));
        p.observe(150, steps(150));
        assert!((1.8..2.3).contains(&p.pace), "{}", p.pace);
        let cost = p.cost(150).expect("known") / steps(150) as f64;
        assert!((0.4..0.6).contains(&cost), "{cost}");
        assert_eq!(p.cut(256), 128);
    }

    #[test]
    fn a_hiccup_is_not_what_a_size_costs_and_a_slow_size_is_looked_at_again() {
        let mut p = learned(256, &[], steps);
        p.observe(128, 100 * MS);
        assert!((120..=128).contains(&p.cut(178)));
        // The step is gone: it is found out, and believed.
        let mut whole = 0;
        for _ in 0..2000 {
            let n = p.cut(178);
            whole += usize::from(n == 178);
            p.observe(n, MS + 10_000 * n as u64);
        }
        assert!(whole > 1000, "{whole} of 2000");
    }

    #[test]
    fn an_engine_that_slows_down_as_a_whole_changes_nothing() {
        let time = |n: usize| 700_000 + 1_000 * n as u64;
        let mut p = learned(8, &[], time);
        for round in 0..40 {
            let slower = if round < 20 { 2 } else { 1 };
            assert_eq!((p.cut(8), p.cut(50)), (8, 8));
            p.observe(8, slower * time(8));
        }
    }

    #[test]
    fn a_slow_size_is_tried_seldom() {
        let mut p = learned(256, &[], steps);
        let whole = (0..4000).filter(|_| {
            let n = p.cut(178);
            p.observe(n, steps(n));
            n == 178
        });
        assert!(
            whole.count() <= 8,
            "64, 128 and so on up to 1,024 batches between"
        );
    }

    #[test]
    fn what_almost_fills_a_listed_size_is_padded_where_that_is_quicker() {
        let mut p = Profile::new(64, &[1, 32, 64]);
        assert_eq!(p.cut(31), 1, "nothing is known");
        for (n, ns) in [(1, MS), (32, 14 * MS / 10), (64, 19 * MS / 10)] {
            p.observe(n, ns);
        }
        for (pending, want) in [(31, 31), (2, 2), (33, 32), (60, 60), (63, 63), (90, 64)] {
            assert_eq!(p.cut(pending), want, "{pending} pending");
        }
    }

    #[test]
    fn a_listed_size_that_seemed_slow_is_run_again() {
        let time = |n: usize| 215_000 + 31_500 * n as u64;
        let sizes = [1, 16, 32, 48, 64];
        let of = |n: usize| sizes.iter().find(|s| **s >= n).copied().unwrap_or(64);
        let mut p = Profile::new(64, &sizes);
        // Nothing is known of it alone, and now it runs beside much else.
        (0..20).for_each(|i| p.observe(sizes[i % 5], time(sizes[i % 5])));
        for _ in 0..200 {
            p.observe(48, 3 * time(48) / 2);
            [16, 32, 64].iter().for_each(|n| p.observe(*n, time(*n)));
        }
        assert_ne!(p.cut(60), 48, "{p:?}");
        let mut again = 0;
        for _ in 0..1000 {
            let n = p.cut(60);
            again += usize::from(n == 48);
            p.observe(n, time(of(n)));
        }
        assert!(again > 500, "{again} of 1,000");
    }

    #[test]
    fn what_is_slower_alone_is_no_better_beside_others() {
        let sizes = [1, 16, 32, 48, 64];
        let time = |n: usize| 215_000 + 31_500 * n as u64;
        let mut p = Profile::new(64, &sizes);
        sizes.iter().for_each(|n| p.warmed(*n, time(*n)));
        (0..40).for_each(|i| p.observe(sizes[i % 5], 4 * MS));
        assert_eq!((p.cut(60), p.cut(40), p.cut(20)), (48, 32, 16));
        assert_eq!(p.cut(12), 12, "sixteen runs of one are slower alone, too");
    }

    proptest! {
        #[test]
        fn another_number_is_better_by_the_margin_and_is_listed_or_all(
            times in prop::collection::vec(1u64..20, 300),
            listed in prop::collection::btree_set(1usize..300, 0..6),
            pending in 1usize..600,
        ) {
            let listed: Vec<usize> = listed.into_iter().chain([300]).collect();
            for listed in [&[][..], &listed[..]] {
                let padded = |n: usize| listed.iter().find(|s| **s >= n).copied().unwrap_or(n);
                let mut p = learned(300, listed, |n| times[padded(n) - 1] * MS);
                let whole = pending.min(300);
                let fits = |n: &&usize| **n <= whole;
                let most = listed.iter().rev().find(fits).copied().unwrap_or(whole);
                let n = p.cut(pending);
                prop_assert!((1..=whole).contains(&n));
                if n != most {
                    prop_assert!(listed.is_empty() || n == whole || listed.contains(&n));
                    let rate = |n: usize| n as f64 / p.cost(n).expect("known");
                    prop_assert!(rate(n) >= rate(most) * 10.0 / 9.0 * 0.99);
                }
                prop_assert!((1..=300).contains(&p.enough()));
            }
        }
    }
}
