//! A small seeded generator. Each thing that draws numbers has one of its own, so that a thing that
//! is taken away changes no other's numbers.

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The generator of the thing that `names` identifies, under a seed.
    pub fn of(seed: u64, names: &[u64]) -> Self {
        let mut dice = Dice(seed);
        for name in names {
            dice.0 = dice.draw() ^ name.wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        dice
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.draw() % n }
    }

    /// A number from `from` to `to`, both included.
    pub fn from_to(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True in `p` of 100 cases.
    pub fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    /// A number from 1 to `most`, small ones more often.
    pub fn skewed(&mut self, most: u64) -> u64 {
        let top = self.from_to(1, most.max(1));
        self.from_to(1, top)
    }

    /// One of `all`.
    pub fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
