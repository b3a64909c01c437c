//! When a socket is worth another look.
//!
//! A payload that is larger than what a sender hands to its system at once comes in pieces, and a
//! thread that looks for them finds nothing, or a little, again and again. Each look is a system
//! call and takes the socket's lock, for which the sender's half of the way waits on loopback, and
//! the network card's on any other path. So the receiver learns what a byte takes to come, and of a
//! payload under way looks again when most of the next piece is there; between two payloads it
//! lets a small part of the last one's time go by.
//!
//! The end of a payload is looked for all the time, as is everything small.
//!
//! A plain data structure: no clock, no socket.

/// Payloads at least this long come in pieces.
const LARGE: usize = 16 << 10;
/// Of what is left of a payload this part is let come before the next look: the rest comes while
/// that is copied.
const PART: f64 = 0.75;
/// And no more than this: what lies in the socket for longer is out of the caches.
const PIECE: f64 = (64 << 10) as f64;
/// Between payloads a look is this part of the last one's time behind the one before.
const BETWEEN: f64 = 1.0 / 8.0;
/// Whatever comes is not waited for longer than so many looks in vain take: what looking costs is
/// little then, and more is not to be gained.
const LOOKS: f64 = 16.0;
/// Weight of what took longer than was known, which is taken to be off by this factor at most, and
/// of what was quicker: a sender that rested is no slow path.
const SLOWER: f64 = 1.0 / 8.0;
const OFF: f64 = 2.0;
const QUICKER: f64 = 1.0 / 2.0;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// What a byte takes to come, ns; 0 as long as that is not known.
    byte_ns: f64,
    /// What a look takes that finds nothing, ns; 0 as long as that is not known.
    vain_ns: f64,
    /// When something was found last, and when the last look was over.
    found_ns: u64,
    looked_ns: u64,
    /// The last look found the socket empty, or emptied it.
    emptied: bool,
    /// Bytes of the last large payload; 0 where the last one was small.
    large: usize,
}

/// A value that is known, or not yet, and one more. By the rule of doorbells, which a fabric knows
/// nothing of, and in fractions: a byte takes less than a nanosecond.
fn learn(known: f64, seen: f64) -> f64 {
    match known {
        0.0 => seen,
        known if seen < known => known + (seen - known) * QUICKER,
        known => known + (seen.min(OFF * known) - known) * SLOWER,
    }
}

impl Looks {
    /// A payload of so many bytes has begun.
    pub fn begins(&mut self, bytes: usize) {
        self.large = if bytes >= LARGE { bytes } else { 0 };
    }

    /// The last payload was large.
    pub fn large(&self) -> bool {
        self.large > 0
    }

    /// Whether there may be anything to wait for at all: else no clock is needed.
    pub fn waits(&self) -> bool {
        self.large > 0 && self.emptied
    }

    /// Whether to look now, with so much left of the payload under way, 0 where there is none.
    pub fn due(&self, now_ns: u64, left: usize) -> bool {
        let bytes = match left {
            0 => BETWEEN * self.large as f64,
            left if left < LARGE => 0.0,
            left => (PART * left as f64).min(PIECE),
        };
        let wait = (bytes * self.byte_ns).min(LOOKS * self.vain_ns);
        now_ns.saturating_sub(self.looked_ns) as f64 >= wait
    }

    /// A look from `began_ns` to `now_ns` found so many bytes, which was all there was or not;
    /// `within` a payload that had begun before it.
    pub fn looked(
        &mut self,
        (began_ns, now_ns): (u64, u64),
        bytes: usize,
        emptied: bool,
        within: bool,
    ) {
        if bytes == 0 {
            self.vain_ns = learn(self.vain_ns, now_ns.saturating_sub(began_ns) as f64);
        } else {
            if within && self.emptied {
                let took = now_ns.saturating_sub(self.found_ns) as f64;
                self.byte_ns = learn(self.byte_ns, took / bytes as f64);
            }
            self.found_ns = now_ns;
        }
        (self.looked_ns, self.emptied) = (now_ns, emptied);
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What copying a byte takes.
    const COPY_NS: f64 = 0.05;

    /// A sender whose bytes come at a rate, in pieces, one payload behind the other; a receiver
    /// that looks whenever that is due, and takes what is there.
    struct World {
        now: f64,
        vain_ns: f64,
        looks: Looks,
        /// Looks at the socket.
        looked: usize,
    }

    impl World {
        fn new(vain_ns: f64) -> Self {
            World {
                now: 1e6,
                vain_ns,
                looks: Looks::default(),
                looked: 0,
            }
        }

        /// A payload of which the first byte comes now and each other `byte_ns` behind the one
        /// before, `piece` at a time; how much later than its end it was taken, ns.
        fn payload(&mut self, bytes: usize, byte_ns: f64, piece: usize) -> f64 {
            let (began, ends) = (self.now, self.now + bytes as f64 * byte_ns);
            let mut taken = 0;
            loop {
                let left = if taken == 0 { 0 } else { bytes - taken };
                if !self.looks.waits() || self.looks.due(self.now as u64, left) {
                    let came = ((self.now - began) / byte_ns) as usize;
                    let there = match self.now >= ends {
                        true => bytes,
                        false => came / piece * piece,
                    };
                    let found = there.min(bytes) - taken;
                    let at = self.now as u64;
                    self.now += self.vain_ns + found as f64 * COPY_NS;
                    self.looked += 1;
                    if found > 0 && taken == 0 {
                        self.looks.begins(bytes);
                    }
                    if self.looks.large() {
                        let to = (at, self.now as u64);
                        self.looks.looked(to, found, true, taken > 0);
                    }
                    taken += found;
                    if taken == bytes {
                        return (at as f64 - ends).max(0.0);
                    }
                }
                // A turn of a thread that has nothing to do.
                self.now += 100.0;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a look costs and however quick the path is: once that is known, a payload takes
        /// a few looks, or as many as take a small part of its time, and is taken when it is whole.
        #[test]
        fn a_large_payload_takes_few_looks_and_is_not_kept_waiting(
            vain_ns in 200f64..4_000.0,
            byte_ns in 0.1f64..2.0,
            bytes in (64usize << 10)..(512 << 10),
            piece in 1_448usize..40_000,
        ) {
            let mut world = World::new(vain_ns);
            (0..50).for_each(|_| _ = world.payload(bytes, byte_ns, piece));
            world.looked = 0;
            let late: Vec<f64> = (0..50).map(|_| world.payload(bytes, byte_ns, piece)).collect();
            let most = late.iter().fold(0.0, |a: f64, b| a.max(*b));
            // A few looks, the copies, and a wait that was too long for a path in pieces.
            let last = LARGE.max(piece) as f64 * byte_ns;
            let end = last + 4.0 * vain_ns + bytes as f64 * COPY_NS + 200.0;
            prop_assert!(most <= end, "{most} ns late");
            let time = bytes as f64 * byte_ns;
            let (pieces, few) = (bytes as f64 / PIECE, 2.0 * time / (LOOKS * vain_ns));
            // What is left at the end is looked for all the time, and so is the first piece.
            let ends = (LARGE + piece) as f64 * byte_ns / (vain_ns + 100.0);
            let looks = world.looked as f64 / 50.0;
            prop_assert!(
                looks <= 6.0 + 3.0 * pieces + few + 2.0 * ends,
                "{looks} looks of {vain_ns} ns at {time} ns"
            );
        }

        /// A path that changes, a sender that rests, a look that took long: nothing is waited for
        /// longer than so many looks in vain take here.
        #[test]
        fn nothing_makes_it_wait_for_long(
            paths in prop::collection::vec((0.05f64..50.0, 1_448usize..65_000), 1..12),
            vain_ns in 200f64..4_000.0,
        ) {
            let mut world = World::new(vain_ns);
            for (byte_ns, piece) in paths {
                for _ in 0..4 {
                    let late = world.payload(150_528, byte_ns, piece);
                    let most = (LOOKS + 2.0) * vain_ns + 150_528.0 * COPY_NS + 200.0;
                    prop_assert!(late <= most, "{late} ns late at {byte_ns} ns a byte");
                }
            }
        }
    }

    #[test]
    fn what_is_small_is_looked_for_all_the_time() {
        let mut looks = Looks::default();
        looks.begins(LARGE - 1);
        looks.looked((0, 1_000), 0, true, false);
        assert!(!looks.waits());
        looks.begins(LARGE);
        assert!(looks.waits());
        assert!(looks.due(1_000, 0), "what a byte takes is not known");
    }

    #[test]
    fn where_there_is_more_than_a_look_takes_the_next_is_due() {
        let mut looks = Looks::default();
        looks.begins(150_528);
        looks.looked((0, 2_000), 0, true, true);
        looks.looked((10_000, 12_000), 10_000, true, true);
        assert!(looks.waits());
        assert!(!looks.due(13_000, 100_000));
        assert!(looks.due(13_000, LARGE - 1), "the end of a payload");
        looks.looked((40_000, 50_000), 65_536, false, true);
        assert!(!looks.waits());
    }
}
