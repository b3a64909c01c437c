//! Engine `onnx` on real models. The tests fail without the files that `cargo xtask setup` fetches.

mod common;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use accelerator::engine::{EngineKind, EngineParams, create, onnx::find_library};
use common::{Samples, eventually, start};
use qdl::{config::Provider, serve::Service};

const PIXELS: usize = 64;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a crate of the workspace")
        .to_owned()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn params(file: PathBuf) -> EngineParams {
    find_library(None).unwrap_or_else(|e| panic!("{e}"));
    EngineParams {
        model: "m".into(),
        file: Some(file),
        ..EngineParams::new(EngineKind::Onnx)
    }
    .with(|e| e.max_batch = 32)
}

fn digits() -> (Vec<u8>, Vec<i64>) {
    let read = |name: &str| {
        let path = repository().join(".deps/models").join(name);
        std::fs::read(&path)
            .unwrap_or_else(|e| panic!("{}: {e}: run cargo xtask setup", path.display()))
    };
    let labels = read("digits.labels.i64")
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")))
        .collect();
    (read("digits.samples.u8"), labels)
}

fn classes(samples: &Samples) -> Vec<i64> {
    (0..samples.len())
        .map(|i| i64::from_le_bytes(samples.output(i)[..8].try_into().expect("eight bytes")))
        .collect()
}

/// The same images in three layouts: adjacent, adjacent in another order, and apart.
#[test]
fn digits_are_read_where_they_lie_and_gathered_where_they_do_not() {
    let (pixels, labels) = digits();
    let n = labels.len();
    let pipeline = start(&params(repository().join("models/digits.onnx")));
    let model = pipeline.engine().model();
    assert_eq!(model.inputs[0].to_string(), "pixels: u8[64]");
    assert_eq!(model.output.to_string(), "class: i64[1]");
    assert!(pipeline.warm_up().is_some_and(|w| w.cold_us > 0));

    let together: Vec<_> = (0..n).map(|i| (i * PIXELS, PIXELS)).collect();
    let samples = Samples::new(&pixels, together, 16, None);
    // One batch at a time, so that the runs are known.
    for first in (0..n).step_by(32) {
        let last = (first + 32).min(n);
        pipeline.arrived(&mut (first..last).rev().map(|i| samples.arrival(i)).collect());
        eventually("a batch answered", || samples.total() == last);
    }
    let reference = classes(&samples);
    let right = reference
        .iter()
        .zip(&labels)
        .filter(|(a, b)| a == b)
        .count();
    assert!(right * 100 >= 97 * n, "{right} of {n} right");
    assert!(samples.finished().iter().all(|f| f.len == 8));
    assert_eq!(pipeline.counters().copies, 0, "a run is not copied");

    // A gap of 13 bytes after every third image makes runs of three.
    let mut apart = Vec::new();
    let mut places = Vec::new();
    for (i, image) in pixels.chunks_exact(PIXELS).enumerate() {
        places.push((apart.len(), PIXELS));
        apart.extend_from_slice(image);
        if i % 3 == 2 {
            apart.extend_from_slice(&[0xFF; 13]);
        }
    }
    let scattered = Samples::new(&apart, places, 16, None);
    for first in (0..n).step_by(27) {
        let last = (first + 27).min(n);
        pipeline.arrived(&mut scattered.arrivals(first..last));
        eventually("a batch answered", || scattered.total() == last);
    }
    assert_eq!(classes(&scattered), reference);
    let c = pipeline.counters();
    assert_eq!(
        (c.copies, c.copied_bytes),
        (n as u64 / 3, (n * PIXELS) as u64)
    );
}

#[test]
fn several_workers_agree_with_one() {
    let (pixels, _) = digits();
    let places: Vec<_> = (0..pixels.len() / PIXELS)
        .map(|i| (i * PIXELS, PIXELS))
        .collect();
    let file = repository().join("models/digits.onnx");
    let run = |threads, intra_threads| {
        let pipeline = start(&params(file.clone()).with(|e| {
            e.threads = threads;
            e.intra_threads = intra_threads;
        }));
        let samples = Samples::new(&pixels, places.clone(), 8, None);
        pipeline.arrived(&mut samples.arrivals(0..samples.len()));
        eventually("all answered", || samples.total() == samples.len());
        samples.assert_each_answered_once();
        pipeline
            .stop(Duration::from_secs(60))
            .expect("idle workers end");
        assert_eq!(Arc::strong_count(&samples), 1);
        classes(&samples)
    };
    assert_eq!(run(3, 1), run(1, 2));
}

/// Two ragged inputs around a fixed one: a long sample, then a short one that must see no byte of
/// the long one.
#[test]
fn ragged_inputs_are_padded_with_zeros() {
    let pipeline = start(&EngineParams {
        ragged: vec!["ids".into(), "mask".into()],
        ..params(fixture("masked_sum.onnx"))
    });
    assert!(!pipeline.engine().model().fixed_size());
    let mut bytes = Vec::new();
    let mut places = Vec::new();
    let mut want = Vec::new();
    for rows in [8i64, 1, 8, 3, 2, 5] {
        let at = bytes.len();
        let ids = 1..=rows;
        let bias = 1_000 * rows;
        want.push(ids.clone().sum::<i64>() + bias);
        for word in ids.chain([bias]).chain((0..rows).map(|_| 1)) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        places.push((at, bytes.len() - at));
    }
    let total = bytes.len() as u64;
    let samples = Samples::new(&bytes, places, 8, None);
    for i in 0..samples.len() {
        // One sample at a time, so that all use the same row of the buffers.
        pipeline.arrived(&mut vec![samples.arrival(i)]);
        eventually("answered", || samples.total() == i + 1);
    }
    assert_eq!(classes(&samples), want);
    let c = pipeline.counters();
    assert_eq!(
        (c.copies, c.copied_bytes),
        (3 * samples.len() as u64, total)
    );
}

#[test]
fn a_sample_of_a_wrong_size_is_refused_by_name() {
    let cases: [(&str, &[&str], usize, &str); 4] = [
        (
            "models/digits.onnx",
            &[],
            63,
            "of 63 bytes arrived; the model takes 64 bytes",
        ),
        (
            "",
            &["ids", "mask"],
            8,
            "takes 8 bytes and 1 to 8 times 16 bytes",
        ),
        ("", &["ids", "mask"], 8 + 9 * 16, "a sample of 152 bytes"),
        ("", &["ids", "mask"], 8 + 17, "a sample of 25 bytes"),
    ];
    for (file, ragged, size, text) in cases {
        let file = match file {
            "" => fixture("masked_sum.onnx"),
            file => repository().join(file),
        };
        let params = EngineParams {
            ragged: ragged.iter().map(|s| (*s).to_owned()).collect(),
            ..params(file)
        };
        let pipeline = start(&params);
        let samples = Samples::random(&[size], 8, None);
        pipeline.arrived(&mut vec![samples.arrival(0)]);
        let [(0, why)] = &samples.refused()[..] else {
            panic!("not refused on arrival: {:?}", samples.refused());
        };
        assert!(why.contains(text), "{why}");
        assert!(pipeline.idle());
    }
}

#[test]
fn a_model_that_cannot_be_served_says_why() {
    let garbage = tempdir().join("garbage.onnx");
    std::fs::write(&garbage, b"this is no model").expect("a file can be written");
    let error = |file: PathBuf, ragged: &[&str]| {
        let params = EngineParams {
            ragged: ragged.iter().map(|s| (*s).to_owned()).collect(),
            ..params(file)
        };
        create(&params).err().expect("not a model").to_string()
    };
    let cases = [
        (
            PathBuf::from("nowhere.onnx"),
            "model file nowhere.onnx: No such file",
        ),
        (fixture(""), "is not a file"),
        (
            garbage,
            "garbage.onnx: not a model that ONNX Runtime can load",
        ),
        (
            fixture("two_batches.onnx"),
            "tensor `v`: the first dimension is fixed at 2, that of `x` is fixed at 4",
        ),
        (
            fixture("open_width.onnx"),
            "tensor `x`: only the batch may be dynamic",
        ),
        (
            fixture("halves.onnx"),
            "tensor `x`: elements of type f16 are not supported: u8, i8, i32, i64 and f32 are; begin the \
             graph with a Cast",
        ),
    ];
    for (file, text) in cases {
        let e = error(file, &[]);
        assert!(e.contains(text), "{e}");
    }
    let e = error(fixture("masked_sum.onnx"), &["nobody"]);
    assert!(e.contains("`nobody`: is called ragged"), "{e}");
    let without = create(&EngineParams {
        file: None,
        ..params(PathBuf::new())
    });
    let e = without.err().expect("no model").to_string();
    assert_eq!(e, "engine.model.file: engine onnx needs a model file");
}

#[test]
fn a_library_that_is_absent_names_the_command_that_fetches_it() {
    let params = params(repository().join("models/digits.onnx"));
    let e = create(&params.with(|e| e.library = Some("/nowhere/libonnxruntime.so".into())));
    let e = e.err().expect("no library").to_string();
    assert!(e.contains("/nowhere/libonnxruntime.so"), "{e}");
    assert!(e.contains("cargo xtask setup"), "{e}");
}

fn tempdir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onnx");
    std::fs::create_dir_all(&dir).expect("a folder can be made");
    dir
}

/// The library that `cargo xtask setup` fetches runs only on the CPU.
#[test]
fn a_library_without_cuda_says_so_and_what_to_do() {
    let params = params(repository().join("models/digits.onnx"));
    let params = params.with(|e| e.provider = Provider::Cuda);
    let text = create(&params).err().expect("refused").to_string();
    assert!(!text.contains('\n'), "{text}");
    assert!(
        text.contains("built without CUDA")
            && text.contains("onnxruntime-gpu")
            && text.contains("provider: cpu"),
        "{text}"
    );
}
