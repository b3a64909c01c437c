//! Which bytes of a batch are copied where: its runs, merged. Plain data.

use qdl::config::Gather;

use super::registry::{Place, Ranges};
use crate::engine::{Batch, Run};

/// One copy: bytes that lie without a gap, and where they go in the batch's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First byte.
    pub from: usize,
    /// Offset in the input of the batch.
    pub to: usize,
    /// How many.
    pub bytes: usize,
    /// Where they lie.
    pub place: Place,
}

/// Kernels are compiled for inputs that begin at a multiple of so many bytes.
const ALIGNED: usize = 64;

/// Where a whole batch of `at` samples of `size` bytes can be read on GPU `gpu`, without a copy:
/// its pieces are one, in that GPU's memory, and what pads the batch up to `at` lies behind it in
/// the same memory.
pub(super) fn in_place(
    pieces: &[Piece],
    ranges: &Ranges,
    gpu: usize,
    size: usize,
    at: usize,
) -> Option<usize> {
    let [piece] = pieces else {
        return None;
    };
    let (place, alike) = ranges.at(piece.from);
    let fits = size.checked_mul(at).is_some_and(|bytes| bytes <= alike);
    let here = place == Place::Gpu(gpu) && piece.from.is_multiple_of(ALIGNED);
    (here && fits && piece.to == 0).then_some(piece.from)
}

/// How the pieces of a batch get to its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the copy engine, a call for each.
    OneByOne,
    /// By the copy engine, one call for all.
    Together,
    /// By the kernel that gathers.
    Kernel,
}

/// So many pieces are copied one call each.
const ONE_BY_ONE: usize = 3;
/// Pieces of up to so many bytes are the kernel's: on an H200 it takes a third of the time of
/// copies there. Larger ones it brings sooner as well, but beside a model's kernels it costs them
/// more than that: with ResNet-50's 147 KiB they took a fifth longer.
const SMALL: usize = 8 << 10;

/// Chooses. `kernel` is the GPU on which a kernel may gather, `batched` says that one call copies
/// many pieces.
pub(super) fn way(asked: Gather, pieces: &[Piece], kernel: Option<usize>, batched: bool) -> Way {
    let by_kernel = kernel.is_some_and(|gpu| pieces.iter().all(|p| p.place.readable_on(gpu)));
    let unregistered = pieces.iter().any(|p| p.place == Place::Unregistered);
    match asked {
        Gather::Kernel if by_kernel => return Way::Kernel,
        _ if pieces.len() <= ONE_BY_ONE => return Way::OneByOne,
        Gather::Auto if by_kernel => {
            let bytes: usize = pieces.iter().map(|p| p.bytes).sum();
            let on_gpu = pieces.iter().any(|p| matches!(p.place, Place::Gpu(_)));
            if on_gpu || !batched || bytes <= SMALL.saturating_mul(pieces.len()) {
                return Way::Kernel;
            }
        }
        _ => {}
    }
    if batched && !unregistered {
        Way::Together
    } else {
        Way::OneByOne
    }
}

/// The pieces of one batch; kept from batch to batch, so that nothing is allocated once it has
/// grown.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    list: Vec<Piece>,
}

impl Pieces {
    /// The pieces of a batch whose samples all have `size` bytes, as its runs were found with that
    /// size.
    pub fn of(&mut self, batch: &Batch, size: usize, ranges: &Ranges) -> &[Piece] {
        self.merge(
            size,
            ranges,
            batch
                .runs()
                .iter()
                .map(|run| (batch.run_address(*run) as usize, *run)),
        )
    }

    /// Runs that follow each other in memory and in the batch become one piece, and no piece goes
    /// beyond a border of registered memory: two connections' slots may lie side by side, and one
    /// copy of both would be refused.
    fn merge(
        &mut self,
        size: usize,
        ranges: &Ranges,
        runs: impl Iterator<Item = (usize, Run)>,
    ) -> &[Piece] {
        self.list.clear();
        // Bytes behind the last piece that it may still grow by.
        let mut room = 0;
        for (from, run) in runs {
            let (mut from, mut to, mut left) = (from, run.first * size, run.count * size);
            while left > 0 {
                match self.list.last_mut() {
                    Some(last)
                        if room > 0
                            && last.from + last.bytes == from
                            && last.to + last.bytes == to =>
                    {
                        let more = left.min(room);
                        last.bytes += more;
                        (from, to, left, room) = (from + more, to + more, left - more, room - more);
                    }
                    _ => {
                        let (place, alike) = ranges.at(from);
                        // At the last byte of all addresses nothing is alike, and nothing lies.
                        room = alike.max(1);
                        self.list.push(Piece {
                            from,
                            to,
                            bytes: 0,
                            place,
                        });
                    }
                }
            }
        }
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Copying by pieces gives what copying sample by sample gives, with no two pieces that
        /// could be one.
        #[test]
        fn pieces_copy_every_sample_once_to_its_place(
            size in 1usize..5,
            slots in prop::collection::vec(0usize..24, 1..20),
            cuts in prop::collection::vec(any::<bool>(), 20),
            regions in prop::collection::vec((1usize..9, 0usize..3), 1..6),
        ) {
            let memory: Vec<u8> = (0..24 * size).map(|i| (i * 7 + 3) as u8).collect();
            let mut want = Vec::new();
            for s in &slots {
                want.extend_from_slice(&memory[s * size..][..size]);
            }
            // Runs as the batch finds them, cut where it likes: merging must not depend on it.
            let mut runs: Vec<(usize, Run)> = Vec::new();
            for (i, s) in slots.iter().enumerate() {
                let follows = i > 0 && slots[i - 1] + 1 == *s && !cuts[i];
                match runs.last_mut() {
                    Some((_, run)) if follows => run.count += 1,
                    _ => runs.push((s * size, Run { first: i, count: 1 })),
                }
            }
            // Regions side by side, some of them registered.
            let places = [Place::Unregistered, Place::Registered, Place::Gpu(1)];
            let (mut ranges, mut owner) = (Ranges::default(), vec![(0, places[0]); 24]);
            let mut at = 0;
            for (i, (slots, place)) in regions.iter().enumerate() {
                let (end, place) = ((at + slots).min(24), places[*place]);
                if place != places[0] && at < end {
                    ranges.add(at * size, (end - at) * size, place);
                    owner[at..end].fill((i + 1, place));
                }
                at = end;
            }
            let mut pieces = Pieces::default();
            let list = pieces.merge(size, &ranges, runs.into_iter()).to_vec();
            let mut got = vec![0xAA; want.len()];
            for p in &list {
                got[p.to..p.to + p.bytes].copy_from_slice(&memory[p.from..p.from + p.bytes]);
            }
            prop_assert_eq!(got, want);
            for p in &list {
                let owners = &owner[p.from / size..(p.from + p.bytes).div_ceil(size)];
                prop_assert!(owners.iter().all(|o| *o == owners[0]), "{:?} crosses a border", p);
                prop_assert_eq!(p.place, owners[0].1);
            }
            for w in list.windows(2) {
                prop_assert_eq!(w[0].to + w[0].bytes, w[1].to, "no gap in the batch");
            }
            let breaks = slots.windows(2);
            let breaks = breaks.filter(|w| w[0] + 1 != w[1] || owner[w[0]] != owner[w[1]]).count();
            prop_assert_eq!(list.len(), breaks + 1, "no two pieces that are one");
        }
    }

    #[test]
    fn many_small_pieces_are_the_kernels_and_few_or_large_ones_the_copy_engines() {
        let pieces = |count: usize, bytes, place| -> Vec<Piece> {
            let piece = |i| Piece {
                from: i,
                to: i,
                bytes,
                place,
            };
            (0..count).map(piece).collect()
        };
        let (here, host) = (Place::Gpu(1), Place::Registered);
        let small = pieces(4, SMALL, host);
        let large = pieces(4, SMALL + 1, host);
        let auto = |list: &[Piece], kernel, batched| way(Gather::Auto, list, kernel, batched);
        assert_eq!(auto(&small, Some(1), true), Way::Kernel);
        assert_eq!(auto(&small[..3], Some(1), true), Way::OneByOne, "few");
        assert_eq!(auto(&large, Some(1), true), Way::Together);
        assert_eq!(auto(&large, Some(1), false), Way::Kernel, "no call for all");
        assert_eq!(auto(&small, None, true), Way::Together, "no kernel");
        assert_eq!(auto(&small, None, false), Way::OneByOne);
        let own = pieces(4, 1 << 20, here);
        assert_eq!(auto(&own, Some(1), true), Way::Kernel, "within the GPU");
        assert_eq!(auto(&own, Some(0), true), Way::Together, "of another GPU");
        let mut mixed = small.clone();
        mixed[2].place = Place::Unregistered;
        assert_eq!(auto(&mixed, Some(1), true), Way::OneByOne);
        let asked = |asked, list: &[Piece]| way(asked, list, Some(1), true);
        assert_eq!(asked(Gather::Kernel, &large[..1]), Way::Kernel);
        assert_eq!(asked(Gather::Kernel, &mixed), Way::OneByOne, "it cannot");
        assert_eq!(asked(Gather::Copies, &small), Way::Together);
        assert_eq!(asked(Gather::Copies, &own), Way::Together);
    }

    #[test]
    fn a_batch_is_read_in_place_where_all_of_it_lies_on_the_gpu() {
        let mut ranges = Ranges::default();
        ranges.add(6400, 640, Place::Gpu(1));
        ranges.add(12800, 640, Place::Registered);
        let piece = |from, bytes| Piece {
            from,
            to: 0,
            bytes,
            place: ranges.at(from).0,
        };
        let (four, six) = (piece(6400, 256), piece(6400 + 256, 384));
        assert_eq!(in_place(&[four], &ranges, 1, 64, 4), Some(6400));
        assert_eq!(in_place(&[four], &ranges, 1, 64, 10), Some(6400), "padded");
        assert_eq!(
            in_place(&[four], &ranges, 1, 64, 11),
            None,
            "beyond its end"
        );
        assert_eq!(in_place(&[six], &ranges, 1, 64, 6), Some(6656));
        assert_eq!(in_place(&[six], &ranges, 0, 64, 6), None, "another GPU's");
        assert_eq!(in_place(&[four, six], &ranges, 1, 64, 10), None);
        assert_eq!(in_place(&[piece(6401, 64)], &ranges, 1, 64, 1), None);
        assert_eq!(in_place(&[piece(12800, 64)], &ranges, 1, 64, 1), None);
        assert_eq!(in_place(&[four], &ranges, 1, usize::MAX, 2), None);
    }
}
