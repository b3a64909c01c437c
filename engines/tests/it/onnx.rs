//! Engine `onnx` on real models: where samples lie, several outputs, fixed batches. The tests fail
//! without the files that `cargo xtask setup` fetches.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::common::{Samples, eventually, model, ragged, repository, start, tensor};
use engines::config::Provider;
use engines::{EngineKind, EngineParams, create};
use qdl::{
    model::{DType, ModelSpec},
    serve::Service,
    testkit::assert_has,
};

const PIXELS: usize = 64;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn params(file: PathBuf) -> EngineParams {
    EngineParams {
        model: "m".into(),
        file: Some(file),
        ..EngineParams::new(EngineKind::Onnx)
    }
    .with(|e| e.max_batch = 32)
}

/// Two ragged inputs around a fixed one.
fn masked_sum() -> EngineParams {
    let [ids, mask] = ["ids", "mask"].map(|name| ragged(name, DType::I64, &[8]));
    let bias = tensor("bias", DType::I64, &[1]);
    let total = tensor("total", DType::I64, &[1]);
    EngineParams {
        spec: Some(model(vec![ids, bias, mask], total)),
        ..params(fixture("masked_sum.onnx"))
    }
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
    let pairs = reference.iter().zip(&labels);
    let right = pairs.filter(|(a, b)| a == b).count();
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
        crate::common::answer(&pipeline, &scattered, first..last);
    }
    assert_eq!(classes(&scattered), reference);
    let c = pipeline.counters();
    assert_eq!(
        (c.copies, c.copied_bytes),
        (n as u64 / 3, (n * PIXELS) as u64)
    );
}

/// A long sample, then a short one that must see no byte of the long one.
#[test]
fn ragged_inputs_are_padded_with_zeros() {
    let pipeline = start(&masked_sum());
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
        crate::common::answer(&pipeline, &samples, i..i + 1);
    }
    assert_eq!(classes(&samples), want);
    let c = pipeline.counters();
    assert_eq!(
        (c.copies, c.copied_bytes),
        (3 * samples.len() as u64, total)
    );
}

/// ONNX Runtime fails the batch of a sample with indices outside the model's table.
#[test]
fn a_sample_that_fails_its_batch_is_refused_alone() {
    let pipeline = start(&params(fixture("lookup.onnx")).with(|e| e.max_delay_us = 2_000));
    let right = [1i64, 2, 3, 4];
    let rows = [right, [1, 2, 10, 3], right, [i64::MIN, 2, 1, 3], right];
    let bytes = rows.as_flattened().iter().flat_map(|w| w.to_le_bytes());
    let bytes: Vec<u8> = bytes.collect();
    let samples = Samples::new(&bytes, (0..5).map(|i| (i * 32, 32)).collect(), 8, None);
    // The last one comes after the others.
    for range in [0..4, 4..5] {
        pipeline.arrived(&mut samples.arrivals(range));
        eventually("answered or refused", || pipeline.idle());
    }
    let refused = samples.refused();
    assert_eq!((refused.len(), samples.total()), (2, 3), "{refused:?}");
    for (ticket, why) in &refused {
        assert!([1, 3].contains(ticket), "{refused:?}");
        assert_has(why, &["engine onnx", "out of data bounds"]);
    }
    assert!([0, 2, 4].iter().all(|i| classes(&samples)[*i] == 1000));
}

#[test]
fn a_model_that_cannot_be_served_says_why() {
    let garbage = tempdir().join("garbage.onnx");
    std::fs::write(&garbage, b"this is no model").expect("a file can be written");
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
        let e = create(&params(file)).err().expect("not a model");
        assert_has(&e.to_string(), &[text]);
    }
    let without = create(&EngineParams {
        file: None,
        ..params(PathBuf::new())
    });
    let e = without.err().expect("no model").to_string();
    assert_eq!(e, "engine.model.file: engine onnx needs a model file");
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
    assert_has(
        &text,
        &["built without CUDA", "onnxruntime-gpu", "provider: cpu"],
    );
}

/// The detector as in a configuration: class as first output, bias before pixels.
fn named() -> ModelSpec {
    let inputs = vec![
        tensor("bias", DType::F32, &[]),
        tensor("pixels", DType::U8, &[4]),
    ];
    ModelSpec {
        other_outputs: vec![
            tensor("scores", DType::F32, &[4]),
            tensor("boxes", DType::F32, &[2, 4]),
        ],
        ..model(inputs, tensor("class", DType::I64, &[]))
    }
}

fn sample(i: usize) -> (f32, [u8; 4]) {
    let pixels = [0, 1, 2, 3].map(|p| ((i * 37 + p * 11) % 200) as u8);
    (i as f32 / 2.0, pixels)
}

/// Returns class, scores and boxes of sample `i`, in the order of [`named`].
fn answer(i: usize) -> Vec<u8> {
    let (bias, pixels) = sample(i);
    let scores = pixels.map(|p| f32::from(p) + bias);
    let best = pixels.iter().max();
    let class = pixels.iter().position(|p| Some(p) == best).expect("one");
    let boxes = scores.iter().copied().chain(scores.iter().map(|s| -s));
    let floats = scores.iter().copied().chain(boxes);
    let mut bytes = (class as i64).to_le_bytes().to_vec();
    bytes.extend(floats.flat_map(f32::to_le_bytes));
    bytes
}

fn detections(n: usize) -> Arc<Samples> {
    let mut bytes = Vec::new();
    for i in 0..n {
        let (bias, pixels) = sample(i);
        bytes.extend(bias.to_le_bytes());
        bytes.extend(pixels);
    }
    Samples::new(&bytes, (0..n).map(|i| (i * 8, 8)).collect(), 64, None)
}

#[test]
fn several_outputs_come_packed_in_the_order_of_the_configuration() {
    let params = EngineParams {
        spec: Some(named()),
        ..params(fixture("detect.onnx"))
    };
    let pipeline = start(&params);
    assert_eq!(pipeline.engine().model(), &named());
    let samples = detections(50);
    crate::common::answer(&pipeline, &samples, 0..50);
    for i in 0..50 {
        assert_eq!(samples.output(i)[..56], answer(i), "sample {i}");
    }
    assert!(samples.finished().iter().all(|f| f.len == 56));
}

#[test]
fn without_a_configuration_tensors_come_as_the_file_has_them() {
    let engine = create(&params(fixture("detect.onnx"))).unwrap_or_else(|e| panic!("{e}"));
    let model = engine.model();
    let names: Vec<_> = model.inputs.iter().chain(model.outputs()).collect();
    let names: Vec<_> = names.iter().map(|t| t.to_string()).collect();
    assert_eq!(
        names,
        [
            "pixels: u8[4]",
            "bias: f32[]",
            "boxes: f32[2, 4]",
            "class: i64[]",
            "scores: f32[4]"
        ]
    );
    assert_eq!(model.max_output_bytes(), Some(56));
}

#[test]
fn outputs_without_a_name_in_the_configuration_are_left_out() {
    let class_alone = ModelSpec {
        other_outputs: Vec::new(),
        ..named()
    };
    let pipeline = start(&EngineParams {
        spec: Some(class_alone.clone()),
        ..params(fixture("detect.onnx"))
    });
    assert_eq!(pipeline.engine().model(), &class_alone);
    let samples = detections(5);
    crate::common::answer(&pipeline, &samples, 0..5);
    for i in 0..5 {
        assert_eq!(samples.output(i)[..8], answer(i)[..8], "sample {i}");
    }
    assert!(samples.finished().iter().all(|f| f.len == 8));
    // No configuration can name an output that is no tensor.
    let engine = create(&params(fixture("bag.onnx"))).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engine.model().output.name, "y");
    assert!(engine.model().other_outputs.is_empty());
    let e = create(&params(fixture("half_beside.onnx")))
        .err()
        .expect("halves");
    assert_has(
        &e.to_string(),
        &["tensor `half`", "f16", "leave this one out"],
    );
    let mut y_alone = engine.model().clone();
    let beside = |spec: &ModelSpec| {
        create(&EngineParams {
            spec: Some(spec.clone()),
            ..params(fixture("half_beside.onnx"))
        })
    };
    let engine = beside(&y_alone).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engine.model(), &y_alone);
    y_alone.output.name = "z".to_owned();
    let e = beside(&y_alone).err().expect("no such output").to_string();
    assert_has(&e, &["`z`: is no output of the model, which has half, y"]);
}

/// Ten samples in batches of four; the last batch has two samples and zeros. Then a batch that fits
/// exactly and is read in place.
#[test]
fn a_model_of_a_fixed_batch_runs_in_batches_of_that_size() {
    for (max_batch, most) in [(32, 4), (2, 2)] {
        let params = params(fixture("fixed_batch.onnx")).with(|e| e.max_batch = max_batch);
        let pipeline = start(&params);
        assert_eq!(pipeline.engine().fixed_batch(), Some(4));
        let floats: Vec<u8> = (0..28).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let samples = Samples::new(&floats, (0..14).map(|i| (i * 8, 8)).collect(), 8, None);
        crate::common::answer(&pipeline, &samples, 0..10);
        crate::common::answer(&pipeline, &samples, 10..14);
        for i in 0..14 {
            assert_eq!(samples.output(i), samples.input(i), "sample {i}");
        }
        let sizes = pipeline.counters().batch_sizes;
        assert!(sizes.iter().all(|(size, _)| size <= most), "{sizes:?}");
        samples.assert_each_answered_once();
    }
}

/// Each answer of this model holds the sum of its batch, so the padding must be zeros.
#[test]
fn a_batch_is_filled_up_with_zeros() {
    let pipeline = start(&params(fixture("sum_of_4.onnx")));
    let floats: Vec<u8> = (1..21).flat_map(|i| (i as f32).to_le_bytes()).collect();
    // The samples are not adjacent, so the engine copies all of them to the batch's buffer.
    let samples = Samples::new(&floats, (0..5).map(|i| (i * 16, 8)).collect(), 8, None);
    crate::common::answer(&pipeline, &samples, 0..4);
    crate::common::answer(&pipeline, &samples, 4..5);
    let twice: Vec<u8> = [34f32, 36.0].iter().flat_map(|f| f.to_le_bytes()).collect();
    assert_eq!(samples.output(4), twice);
}
