//! Plans the copies of a batch: merges its runs, or the tensors of its samples. Plain data.

use super::registry::{MemoryKind, Ranges};
use crate::{Batch, batch::Unpacker};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyPiece {
    /// Source address of the first byte.
    pub from: usize,
    /// Destination address on the GPU.
    pub to: usize,
    pub bytes: usize,
    pub kind: MemoryKind,
}

/// Alignment of an input in bytes, on which compiled kernels rely.
const ALIGNED: usize = 64;

/// Address of a batch that kernels can read in place as `at` samples of `size` bytes. The batch
/// must be one aligned piece in the memory of `gpu`, with the padding in the same range.
pub(super) fn in_place(
    pieces: &[CopyPiece],
    ranges: &Ranges,
    gpu: usize,
    size: usize,
    at: usize,
) -> Option<usize> {
    let [piece] = pieces else {
        return None;
    };
    let (kind, alike) = ranges.at(piece.from);
    let fits = size.checked_mul(at).is_some_and(|bytes| bytes <= alike);
    let here = kind == MemoryKind::Gpu(gpu) && piece.from.is_multiple_of(ALIGNED);
    (here && fits).then_some(piece.from)
}

/// Up to this number of pieces, each piece has its own call.
const ONE_BY_ONE: usize = 3;

/// True if one call copies all pieces: there are more than [`ONE_BY_ONE`], and all are in memory
/// from which the driver copies without staging. `batched`: the driver has such a call.
pub(super) fn in_one_call(pieces: &[CopyPiece], batched: bool) -> bool {
    let staged = pieces.iter().any(|p| p.kind == MemoryKind::Unregistered);
    batched && !staged && pieces.len() > ONE_BY_ONE
}

/// The pieces of one batch. Later batches reuse the list, so that only growth allocates.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    list: Vec<CopyPiece>,
}

impl Pieces {
    /// The pieces of a batch whose samples all have `size` bytes: [`Batch::fill`] formed the runs
    /// with this size. `to` is the GPU address of the input.
    pub fn of_runs(
        &mut self,
        batch: &Batch,
        size: usize,
        to: usize,
        ranges: &Ranges,
    ) -> &[CopyPiece] {
        let runs = batch.runs().iter().map(|run| {
            let from = batch.run_address(*run) as usize;
            (from, to + run.first * size, run.count * size)
        });
        self.merge(ranges, runs)
    }

    /// The pieces of `samples`, each an address and a length that the model accepts. `to` returns
    /// the GPU address of an input; each tensor goes to its sample's position in this input.
    pub fn of_tensors(
        &mut self,
        unpacker: &Unpacker,
        samples: impl Iterator<Item = (usize, usize)>,
        to: impl Fn(usize) -> usize,
        ranges: &Ranges,
    ) -> &[CopyPiece] {
        let parts = samples.enumerate().flat_map(|(i, (address, len))| {
            let parts = unpacker.parts(len).into_iter().flatten();
            parts.map(move |p| (i, address, p))
        });
        let stretches = parts.map(|(i, address, p)| {
            let to = to(p.input) + i * p.room;
            (address + p.at, to, p.bytes)
        });
        self.merge(ranges, stretches)
    }

    /// Merges stretches (source, destination, bytes). Stretches that are adjacent at source and
    /// destination become one piece. No piece crosses a border of registered memory: the driver
    /// refuses a copy across adjacent slots of two connections.
    fn merge(
        &mut self,
        ranges: &Ranges,
        stretches: impl Iterator<Item = (usize, usize, usize)>,
    ) -> &[CopyPiece] {
        self.list.clear();
        // Bytes by which the last piece may grow before the end of its memory range.
        let mut room = 0;
        for (mut from, mut to, mut left) in stretches {
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
                        let (kind, alike) = ranges.at(from);
                        // At the end of the address space the range has 0 bytes.
                        room = alike.max(1);
                        self.list.push(CopyPiece {
                            from,
                            to,
                            bytes: 0,
                            kind,
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
    use qdl::model::{DType, ModelSpec, TensorSpec};

    use super::*;
    use crate::{
        SampleRun,
        testkit::{model, tensor},
    };

    proptest! {
        /// The pieces copy the same bytes as copies sample by sample, and none could be merged.
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
            // Runs as a batch forms them, with random cuts: merging must undo the cuts.
            let mut runs: Vec<(usize, SampleRun)> = Vec::new();
            for (i, s) in slots.iter().enumerate() {
                let follows = i > 0 && slots[i - 1] + 1 == *s && !cuts[i];
                match runs.last_mut() {
                    Some((_, run)) if follows => run.count += 1,
                    _ => runs.push((s * size, SampleRun { first: i, count: 1 })),
                }
            }
            // Adjacent regions, some of them registered.
            let kinds = [MemoryKind::Unregistered, MemoryKind::Registered, MemoryKind::Gpu(1)];
            let (mut ranges, mut owner) = (Ranges::default(), vec![(0, kinds[0]); 24]);
            let mut at = 0;
            for (i, (slots, kind)) in regions.iter().enumerate() {
                let (end, kind) = ((at + slots).min(24), kinds[*kind]);
                if kind != kinds[0] && at < end {
                    ranges.add(at * size, (end - at) * size, kind);
                    owner[at..end].fill((i + 1, kind));
                }
                at = end;
            }
            let mut pieces = Pieces::default();
            let stretches = runs
                .into_iter()
                .map(|(from, run)| (from, run.first * size, run.count * size));
            let list = pieces.merge(&ranges, stretches).to_vec();
            let mut got = vec![0xAA; want.len()];
            for p in &list {
                got[p.to..p.to + p.bytes].copy_from_slice(&memory[p.from..p.from + p.bytes]);
            }
            prop_assert_eq!(got, want);
            for p in &list {
                let owners = &owner[p.from / size..(p.from + p.bytes).div_ceil(size)];
                prop_assert!(owners.iter().all(|o| *o == owners[0]), "{:?} crosses a border", p);
                prop_assert_eq!(p.kind, owners[0].1);
            }
            for w in list.windows(2) {
                prop_assert_eq!(w[0].to + w[0].bytes, w[1].to, "no gap in the batch");
            }
            let breaks = slots.windows(2);
            let breaks = breaks.filter(|w| w[0] + 1 != w[1] || owner[w[0]] != owner[w[1]]).count();
            prop_assert_eq!(list.len(), breaks + 1, "no two pieces that are one");
        }
    }

    /// Models with inputs of several widths, most of them ragged.
    fn models() -> impl Strategy<Value = ModelSpec> {
        let shapes = (
            prop::sample::select(vec![DType::U8, DType::I32, DType::I64]),
            1usize..5,
            any::<bool>(),
        );
        (1usize..40, prop::collection::vec(shapes, 1..4)).prop_map(|(rows, tensors)| {
            let inputs = tensors
                .into_iter()
                .map(|(dtype, width, is_ragged)| TensorSpec {
                    ragged: is_ragged,
                    ..tensor("input", dtype, &[rows, width])
                });
            model(inputs.collect(), tensor("output", DType::U8, &[1]))
        })
    }

    proptest! {
        #[test]
        fn every_tensor_comes_to_its_place_and_nothing_else_is_written(
            model in models(),
            samples in prop::collection::vec((0.0..1.0f64, 0usize..17), 1..7),
        ) {
            let unpacker = Unpacker::new(&model).expect("a model");
            let rows = model.inputs[0].shape[0];
            let (mut memory, mut places) = (Vec::new(), Vec::new());
            let mut want = vec![Vec::new(); model.inputs.len()];
            for (i, (share, gap)) in samples.iter().enumerate() {
                memory.extend(std::iter::repeat_n(0xEE, *gap));
                let own = 1 + (share * (rows - 1) as f64) as usize;
                let begin = memory.len();
                for (t, want) in model.inputs.iter().zip(&mut want) {
                    let row = t.dtype.bytes() * t.shape[1];
                    let bytes = row * if t.ragged { own } else { rows };
                    let part: Vec<u8> = (0..bytes).map(|b| (b * 37 + i) as u8 | 1).collect();
                    memory.extend_from_slice(&part);
                    want.extend_from_slice(&part);
                    want.extend(std::iter::repeat_n(0, row * rows - bytes));
                }
                places.push((begin, memory.len() - begin));
            }
            // Inputs far apart, filled with zeros: the memset precedes the copies.
            const FAR: usize = 1 << 20;
            let mut got: Vec<Vec<u8>> = want.iter().map(|w| vec![0; w.len()]).collect();
            let mut pieces = Pieces::default();
            let ranges = Ranges::default();
            let samples = places.into_iter();
            for p in pieces.of_tensors(&unpacker, samples, |input| input * FAR, &ranges) {
                let to = &mut got[p.to / FAR][p.to % FAR..][..p.bytes];
                prop_assert!(to.iter().all(|b| *b == 0), "nothing is copied twice");
                to.copy_from_slice(&memory[p.from..][..p.bytes]);
            }
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn many_pieces_go_by_one_call_where_the_driver_need_not_stage_them() {
        let piece = |kind| CopyPiece {
            from: 0,
            to: 0,
            bytes: 8,
            kind,
        };
        let many = [MemoryKind::Registered, MemoryKind::Gpu(1)]
            .repeat(2)
            .into_iter();
        let mut many: Vec<CopyPiece> = many.map(piece).collect();
        assert!(in_one_call(&many, true));
        assert!(!in_one_call(&many[..3], true), "few");
        assert!(!in_one_call(&many, false), "the driver has no such call");
        many[2].kind = MemoryKind::Unregistered;
        assert!(!in_one_call(&many, true));
    }

    #[test]
    fn a_batch_is_read_in_place_where_all_of_it_lies_on_the_gpu() {
        let mut ranges = Ranges::default();
        ranges.add(6400, 640, MemoryKind::Gpu(1));
        ranges.add(12800, 640, MemoryKind::Registered);
        let piece = |from, bytes| CopyPiece {
            from,
            to: 0,
            bytes,
            kind: ranges.at(from).0,
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
