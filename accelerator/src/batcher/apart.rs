//! How far apart batches begin.
//!
//! Batches that are on a GPU together go through the same layers. Begun at the same time they want
//! the same thing at the same time, first memory and then arithmetic, and wait for each other;
//! begun apart, one has the one while another has the other. And what begins together stays
//! together: as each ends, the next begins beside the others. ResNet-50 in INT8 on an H200, three
//! at a time, samples a second as workers became free and begun apart: 64,600 and 72,700 of 128,
//! 1.75 ms apart; 71,700 and 76,800 of 256, 3.3 ms apart.
//!
//! So where warming up found that it brings something, no batch begins sooner after the one before
//! it than that one takes of the engine: its part of the time while several run. That is measured
//! of each batch. It is a little more than it would be with all of them as far apart as can be; so
//! they begin a little closer, and find out.
//!
//! A plain data structure: no clock, no engine, and no allocation after it is made.

/// Batches begin so much closer than what one takes of the engine. It is what finds out whether
/// more can be had, and what a queue is got down by where that was measured with hardly anything to
/// do.
const CLOSER: f64 = 0.97;
/// Weight of one batch.
const WEIGHT: f64 = 1.0 / 8.0;
/// A batch is taken to be off by this factor at most, so that a hiccup is not taken for a cost.
const OFF: f64 = 1.25;
/// What a batch takes of the engine is more than was known only where others were beside it: for so
/// much longer than that it ran. One that is alone has the engine, whether it needs it or not.
const BESIDE: f64 = 1.25;
/// Of the time between two a worker may be late by this part without those behind it being late,
/// too: sleeps are never over on time.
const LATE: f64 = 0.25;

/// A batch that began.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Samples in it.
    pub samples: usize,
    /// Its place, and what part of a full one it is.
    place: usize,
    part: f64,
    at_ns: u64,
    /// What a batch that was there all the time had had of the engine until then, ns.
    had_ns: f64,
}

impl Begun {
    /// One that began when nobody looked.
    pub fn of(samples: usize) -> Self {
        Begun {
            samples,
            place: 0,
            part: 1.0,
            at_ns: 0,
            had_ns: 0.0,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Apart {
    /// Nanoseconds that a batch takes of the engine, by place; empty where batches begin as workers
    /// become free.
    own: Box<[f64]>,
    /// Batches that run.
    running: usize,
    /// When one began or ended last, and what a batch that was there all the time had had by then.
    at_ns: u64,
    had_ns: f64,
    /// The next begins then, ns.
    next_ns: u64,
}

impl Apart {
    /// From now on, with what a batch of each place takes of the engine, ns.
    pub fn start(&mut self, own: impl Iterator<Item = f64>) {
        self.own = own.map(|ns| ns.max(1.0)).collect();
    }

    /// When the next may begin where others run, ns; 0 where that is all the same.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// A batch of so many samples begins: of this place, `part` of a full one.
    pub fn begins(&mut self, now_ns: u64, place: usize, part: f64, samples: usize) -> Begun {
        self.go_on(now_ns);
        if let Some(own) = self.own.get(place) {
            let after = CLOSER * own * part;
            let late = now_ns.saturating_sub(self.next_ns);
            let from = match self.running {
                0 => now_ns,
                _ if late as f64 > LATE * after => now_ns,
                _ => self.next_ns.min(now_ns),
            };
            self.next_ns = from.saturating_add(after as u64);
        }
        self.running += 1;
        Begun {
            samples,
            place,
            part,
            at_ns: now_ns,
            had_ns: self.had_ns,
        }
    }

    /// It has ended.
    pub fn ends(&mut self, now_ns: u64, begun: Begun) {
        self.go_on(now_ns);
        self.running = self.running.saturating_sub(1);
        let Some(own) = self.own.get_mut(begun.place) else {
            return;
        };
        let had = (self.had_ns - begun.had_ns) / begun.part;
        let ran = now_ns.saturating_sub(begun.at_ns) as f64 / begun.part;
        if had > *own && ran < BESIDE * had {
            return;
        }
        *own += (had.clamp(*own / OFF, *own * OFF) - *own) * WEIGHT;
    }

    fn go_on(&mut self, now_ns: u64) {
        if self.running > 0 {
            self.had_ns += now_ns.saturating_sub(self.at_ns) as f64 / self.running as f64;
        }
        self.at_ns = self.at_ns.max(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(own: f64) -> Apart {
        let mut apart = Apart::default();
        apart.start([own].into_iter());
        apart
    }

    #[test]
    fn without_a_start_nothing_waits() {
        let mut apart = Apart::default();
        let begun = apart.begins(5, 0, 1.0, 8);
        assert_eq!((begun.samples, apart.next_ns()), (8, 0));
        apart.ends(9, begun);
        assert_eq!(apart.next_ns(), 0);
    }

    #[test]
    fn what_is_late_by_little_makes_nothing_behind_it_late() {
        let mut apart = started(1_000.0);
        apart.begins(10_000, 0, 1.0, 1);
        assert_eq!(apart.next_ns(), 10_970);
        apart.begins(11_100, 0, 1.0, 1);
        assert_eq!(apart.next_ns(), 11_940, "as if it had been on time");
        apart.begins(13_000, 0, 0.5, 1);
        assert_eq!(apart.next_ns(), 13_485, "half of one, and late");
    }

    #[test]
    fn each_has_its_part_of_the_time() {
        let mut apart = started(1_000.0);
        let a = apart.begins(0, 0, 1.0, 1);
        let b = apart.begins(500, 0, 1.0, 1);
        // Alone for 500, then half of 800: 900 in all.
        apart.ends(1_300, a);
        assert!((apart.own[0] - (1_000.0 - 100.0 / 8.0)).abs() < 1e-6);
        // 400 beside it and 1,600 alone: more than was known, and hardly anything beside it.
        let own = apart.own[0];
        apart.ends(2_900, b);
        assert_eq!(apart.own[0], own);
    }

    #[test]
    fn a_hiccup_is_not_what_a_batch_takes() {
        let mut apart = started(1_000.0);
        let a = apart.begins(0, 0, 1.0, 1);
        let b = apart.begins(0, 0, 1.0, 1);
        apart.ends(50_000_000, a);
        apart.ends(50_000_000, b);
        assert!(apart.own[0] < 1_070.0, "{}", apart.own[0]);
    }

    /// Batches as soon as they may begin, two workers: apart by what was thought at first, and by
    /// less and less until an engine that does one in 600 ns is what they wait for.
    #[test]
    fn they_come_closer_while_there_is_more_to_be_had() {
        let mut apart = started(1_000.0);
        let (mut now, mut ends, mut running) = (0u64, 0u64, None);
        for _ in 0..400 {
            let begun = apart.begins(now, 0, 1.0, 1);
            let next = apart.next_ns();
            if let Some(before) = running.replace(begun) {
                apart.ends(ends.max(now), before);
            }
            // One after the other, and a pause of which another could make use.
            ends = (ends + 600).max(now + 900);
            now = next.max(now + 1);
        }
        assert!((590.0..760.0).contains(&apart.own[0]), "{}", apart.own[0]);
    }
}
