//! The kernel: on the CPU, where its text is compiled as C++ and its threads run one after the
//! other; and, where there is a GPU, there.

use std::{env, fmt::Write as _, fs, path::Path, process::Command, time::Duration};

use libloading::Library;
use proptest::{prelude::*, test_runner::TestRunner};
use qdl::model::{DType, ModelSpec, TensorSpec};
use sha2::{Digest, Sha256};

use super::{
    super::{
        gather::*,
        kernel::{NAME, PTX},
    },
    *,
};
use crate::engine::{
    cuda::{inputs::list_of, stream::Event},
    unpack::Unpacker,
};

const CU: &str = include_str!("../gather/kernel.cu");

/// What CUDA brings to the text, for one thread after the other.
const ON_THE_CPU: &str = r#"
struct Index { unsigned int x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __device__
#include "kernel.cu"
extern "C" void run(const Chunk *chunks, unsigned int count, unsigned int blocks, unsigned int threads) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
            qdl_gather(chunks, count);
}
"#;

type Run = unsafe extern "C" fn(*const Chunk, u32, u32, u32);

fn compiled(folder: &Path) -> Library {
    fs::write(folder.join("kernel.cu"), CU).expect("written");
    fs::write(folder.join("kernel.cpp"), ON_THE_CPU).expect("written");
    let out = folder.join("kernel.so");
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let done = Command::new(compiler)
        .args([
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            "-Wno-unknown-pragmas",
            "-o",
        ])
        .args([&out, &folder.join("kernel.cpp")])
        .output()
        .expect("a C++ compiler");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    // SAFETY: the library has no initialisers.
    unsafe { Library::new(&out) }.expect("a library")
}

/// Bytes that no sample and no padding has by chance.
fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes)
        .map(|i| ((i as u8).wrapping_mul(37) ^ seed ^ 0x5A) | 1)
        .collect()
}

/// Inputs, most of them ragged, of several widths.
fn models() -> impl Strategy<Value = ModelSpec> {
    let tensor = (
        prop::sample::select(vec![DType::U8, DType::I32, DType::I64]),
        1usize..5,
        any::<bool>(),
    );
    (1usize..400, prop::collection::vec(tensor, 1..4)).prop_map(|(rows, tensors)| ModelSpec {
        name: "some".to_owned(),
        inputs: tensors
            .into_iter()
            .enumerate()
            .map(|(i, (dtype, width, ragged))| TensorSpec {
                name: format!("t{i}"),
                dtype,
                shape: vec![rows, width],
                ragged,
            })
            .collect(),
        output: TensorSpec {
            name: "out".to_owned(),
            dtype: DType::U8,
            shape: vec![1],
            ragged: false,
        },
        other_outputs: Vec::new(),
        compression: None,
    })
}

#[test]
fn every_tensor_comes_to_its_place_with_zeros_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = compiled(folder.path());
    // SAFETY: the function has this type.
    let run = unsafe { library.get::<Run>(b"run\0") }.expect("a function");
    let batches = (
        models(),
        prop::collection::vec((0.0..1.0f64, 0usize..17), 1..7),
        1u32..4,
        1u32..3,
    );
    let test = |(model, samples, blocks, warps): (ModelSpec, Vec<(f64, usize)>, u32, u32)| {
        let unpacker = Unpacker::new(&model).expect("a model");
        let rows = model.inputs[0].shape[0];
        let row = |t: &TensorSpec| t.dtype.bytes() * t.shape[1];
        // Samples back to back with gaps: at every alignment.
        let (mut memory, mut places, mut want) =
            (Vec::new(), Vec::new(), vec![Vec::new(); model.inputs.len()]);
        for (i, (share, gap)) in samples.iter().enumerate() {
            memory.extend(std::iter::repeat_n(0xEE, *gap));
            let own = 1 + (share * (rows - 1) as f64) as usize;
            let begin = memory.len();
            for (t, want) in model.inputs.iter().zip(&mut want) {
                let bytes = row(t) * if t.ragged { own } else { rows };
                let part = noise(bytes, i as u8);
                memory.extend_from_slice(&part);
                want.extend_from_slice(&part);
                want.extend(std::iter::repeat_n(0, row(t) * rows - bytes));
            }
            places.push((begin, memory.len() - begin));
        }
        // What an earlier and longer batch left, and a word behind that must stay.
        let mut got: Vec<Vec<u8>> = want.iter().map(|w| vec![0xAA; w.len() + 8]).collect();
        let mut chunks = vec![Chunk::default(); model.inputs.len() * samples.len() * 8];
        let mut list = List::new(&mut chunks);
        let samples = places
            .iter()
            .map(|(at, len)| (memory.as_ptr() as usize + at, *len));
        prop_assert!(list_of(
            &unpacker,
            samples,
            |i| got[i].as_ptr() as u64,
            &mut list
        ));
        let count = list.len() as u32;
        // SAFETY: the list's sources lie in `memory`, its places in `got`, which nobody else
        // touches.
        unsafe { run(chunks.as_ptr(), count, blocks, warps * WARP) };
        for (got, want) in got.iter_mut().zip(&want) {
            prop_assert_eq!(&got[want.len()..], &[0xAA; 8]);
            prop_assert!(got[..want.len()] == want[..], "{:?}", model);
        }
        Ok(())
    };
    TestRunner::new(ProptestConfig::with_cases(64))
        .run(&batches, test)
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_ptx_is_made_of_the_kernel_beside_it() {
    let mut sum = String::new();
    for byte in Sha256::digest(CU) {
        let _ = write!(sum, "{byte:02x}");
    }
    let first = PTX.lines().next().unwrap_or_default();
    assert!(first.contains(&sum), "run accelerator/gpu/ptx.py: {first}");
    let name = NAME.to_string_lossy();
    assert!(PTX.contains(&format!(".visible .entry {name}(")));
    assert!(PTX.is_ascii() && !PTX.contains('\0'));
}

/// The same bytes as a copy gives, and how long both take: pieces of one size that lie apart, from
/// registered memory of the host and from the GPU's own. Prints a line for each size.
#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu_pieces_come_as_they_do_by_copies() {
    use crate::engine::cuda::{
        copies::Lists, memory::DeviceMemory, pieces::Piece, registry::Place,
    };

    const ALL: usize = 64 << 20;
    let device = Device::open(0).expect("a GPU");
    device.bind().expect("bound");
    let kernel = device.gather().expect("the kernel");
    let stream = Stream::urgent(&device).expect("a stream");
    let events = [(); 2].map(|()| Event::new(&device).expect("an event"));
    let host = Pinned::new(&device, ALL).expect("memory");
    // SAFETY: nobody else has the memory.
    unsafe { std::slice::from_raw_parts_mut(host.address().as_ptr(), ALL) }
        .copy_from_slice(&noise(ALL, 3));
    let on_gpu = DeviceMemory::new(&device, &stream, ALL).expect("memory");
    let to = [(); 2].map(|()| DeviceMemory::new(&device, &stream, ALL).expect("memory"));
    let back = [(); 2].map(|()| Pinned::new(&device, ALL).expect("memory"));
    // SAFETY: both have so many bytes.
    let filled = unsafe {
        sys::cuMemcpyHtoDAsync_v2(
            on_gpu.address(),
            host.address().as_ptr().cast(),
            ALL,
            stream.raw(),
        )
    };
    device.check("filling", filled).expect("filled");
    stream.synchronize().expect("filled");
    let mut lists = Lists::default();
    for (size, count) in [
        (8, 512),
        (64, 512),
        (512, 512),
        (3072, 384),
        (9216, 512),
        (16384, 512),
        (32768, 512),
        (65536, 512),
        (150_528, 128),
        (150_528, 8),
    ] {
        for (place, base) in [
            (Place::Registered, host.address().as_ptr() as usize),
            (Place::Gpu(0), on_gpu.address() as usize),
        ] {
            // Every other one, from the last to the first.
            let pieces: Vec<Piece> = (0..count)
                .map(|i| Piece {
                    from: base + (count - 1 - i) * 2 * size % (ALL - size) / 8 * 8,
                    to: i * size,
                    bytes: size,
                    place,
                })
                .collect();
            let mut gatherer = Gatherer::new(&device, kernel.clone(), count, [size].into_iter())
                .expect("a gatherer");
            let mut took = [Duration::MAX; 2];
            for _ in 0..20 {
                for way in 0..2 {
                    events[0].record(&stream).expect("recorded");
                    let to = to[way].address();
                    // SAFETY: every piece lies within the sources, and ends within `ALL` bytes of
                    // `to`, as 512 pieces of 64 KiB do; the stream is waited for before anything
                    // else.
                    unsafe {
                        if way == 0 {
                            lists.all(&device, &stream, to, &pieces).expect("copied");
                        } else {
                            let fill = |l: &mut List<'_>| {
                                pieces.iter().all(|p| {
                                    l.add(p.from as u64, to + p.to as u64, p.bytes, p.bytes)
                                })
                            };
                            assert!(gatherer.launch(&device, &stream, fill).expect("launched"));
                        }
                    }
                    events[1].record(&stream).expect("recorded");
                    events[1].wait(1_000_000).expect("done");
                    took[way] = took[way].min(events[0].until(&events[1]));
                }
            }
            for way in 0..2 {
                // SAFETY: both have so many bytes.
                let result = unsafe {
                    sys::cuMemcpyDtoHAsync_v2(
                        back[way].address().as_ptr().cast(),
                        to[way].address(),
                        size * count,
                        stream.raw(),
                    )
                };
                device.check("reading back", result).expect("read");
            }
            stream.synchronize().expect("read");
            // SAFETY: the copies are done.
            let [copied, gathered] =
                unsafe { [back[0].bytes(size * count), back[1].bytes(size * count)] };
            assert!(
                copied == gathered,
                "{count} pieces of {size} bytes, {place:?}"
            );
            assert!(copied.iter().all(|b| b & 1 == 1), "nothing is left out");
            println!(
                "{{\"pieces\": {count}, \"bytes\": {size}, \"from\": \"{place:?}\", \"copies_us\": {:.1}, \"kernel_us\": {:.1}}}",
                took[0].as_secs_f64() * 1e6,
                took[1].as_secs_f64() * 1e6,
            );
        }
    }
}
