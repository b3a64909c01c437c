//! Engine `onnx` on models with several outputs, outputs of one element, or a fixed batch. The
//! tests fail without the files that `cargo xtask setup` fetches.

mod common;

use std::{path::Path, sync::Arc};

use accelerator::engine::{EngineKind, EngineParams, create};
use common::{Samples, eventually, start};
use qdl::{
    model::{DType, ModelSpec, TensorSpec},
    serve::Service,
    testkit::assert_has,
};

fn params(fixture: &str) -> EngineParams {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    EngineParams {
        model: "m".into(),
        file: Some(folder.join(fixture)),
        ..EngineParams::new(EngineKind::Onnx)
    }
    .with(|e| e.max_batch = 32)
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        ragged: false,
    }
}

/// The detector as in a configuration: class as first output, bias before pixels.
fn named() -> ModelSpec {
    ModelSpec {
        name: "m".to_owned(),
        inputs: vec![
            tensor("bias", DType::F32, &[]),
            tensor("pixels", DType::U8, &[4]),
        ],
        output: tensor("class", DType::I64, &[]),
        other_outputs: vec![
            tensor("scores", DType::F32, &[4]),
            tensor("boxes", DType::F32, &[2, 4]),
        ],
        compression: None,
    }
}

/// Returns bias and pixels of sample `i`.
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
        ..params("detect.onnx")
    };
    let pipeline = start(&params);
    assert_eq!(pipeline.engine().model(), &named());
    let samples = detections(50);
    pipeline.arrived(&mut samples.arrivals(0..50));
    eventually("all answered", || samples.total() == 50);
    for i in 0..50 {
        assert_eq!(samples.output(i)[..56], answer(i), "sample {i}");
    }
    assert!(samples.finished().iter().all(|f| f.len == 56));
}

#[test]
fn without_a_configuration_tensors_come_as_the_file_has_them() {
    let engine = create(&params("detect.onnx")).unwrap_or_else(|e| panic!("{e}"));
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
fn outputs_that_nobody_asks_for_are_left_out() {
    let class_alone = ModelSpec {
        other_outputs: Vec::new(),
        ..named()
    };
    let pipeline = start(&EngineParams {
        spec: Some(class_alone.clone()),
        ..params("detect.onnx")
    });
    assert_eq!(pipeline.engine().model(), &class_alone);
    let samples = detections(5);
    pipeline.arrived(&mut samples.arrivals(0..5));
    eventually("all answered", || samples.total() == 5);
    for i in 0..5 {
        assert_eq!(samples.output(i)[..8], answer(i)[..8], "sample {i}");
    }
    assert!(samples.finished().iter().all(|f| f.len == 8));
    // No configuration can name an output that is no tensor.
    let engine = create(&params("bag.onnx")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engine.model().output.name, "y");
    assert!(engine.model().other_outputs.is_empty());
    let e = create(&params("half_beside.onnx")).err().expect("halves");
    assert_has(
        &e.to_string(),
        &["tensor `half`", "f16", "leave this one out"],
    );
    let mut y_alone = engine.model().clone();
    let beside = |spec: &ModelSpec| {
        create(&EngineParams {
            spec: Some(spec.clone()),
            ..params("half_beside.onnx")
        })
    };
    let engine = beside(&y_alone).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engine.model(), &y_alone);
    y_alone.output.name = "z".to_owned();
    let e = beside(&y_alone).err().expect("no such output").to_string();
    assert_has(&e, &["`z`: is no output of the model, which has half, y"]);
}

#[test]
fn an_output_of_a_single_element_needs_no_dimension() {
    let pipeline = start(&params("scalar.onnx"));
    let model = pipeline.engine().model();
    assert_eq!(model.output.to_string(), "total: i64[]");
    let words: Vec<u8> = (0..30i64).flat_map(i64::to_le_bytes).collect();
    let samples = Samples::new(&words, (0..10).map(|i| (i * 24, 24)).collect(), 8, None);
    pipeline.arrived(&mut samples.arrivals(0..10));
    eventually("all answered", || samples.total() == 10);
    for i in 0..10 {
        let total = 9 * i as i64 + 3;
        assert_eq!(samples.output(i), total.to_le_bytes(), "sample {i}");
    }
}

/// Ten samples in batches of four; the last batch has two samples and zeros. Then a batch that fits
/// exactly and is read in place.
#[test]
fn a_model_of_a_fixed_batch_runs_in_batches_of_that_size() {
    let pipeline = start(&params("fixed_batch.onnx"));
    assert_eq!(pipeline.engine().fixed_batch(), Some(4));
    let floats: Vec<u8> = (0..28).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let samples = Samples::new(&floats, (0..14).map(|i| (i * 8, 8)).collect(), 8, None);
    pipeline.arrived(&mut samples.arrivals(0..10));
    eventually("ten answered", || samples.total() == 10);
    pipeline.arrived(&mut samples.arrivals(10..14));
    eventually("all answered", || samples.total() == 14);
    for i in 0..14 {
        assert_eq!(samples.output(i), samples.input(i), "sample {i}");
    }
    let counters = pipeline.counters();
    assert!(
        counters.batch_sizes.iter().skip(5).all(|n| *n == 0),
        "no batch is larger than the model's"
    );
    samples.assert_each_answered_once();
}

/// The padding of a batch affects no response, with several inputs and outputs too.
#[test]
fn a_fixed_batch_of_several_tensors_is_filled_up() {
    let params = EngineParams {
        spec: Some(named()),
        ..params("detect_of_4.onnx")
    };
    let pipeline = start(&params);
    let samples = detections(11);
    // A batch of one each, after a full one whose bytes must not be seen again.
    pipeline.arrived(&mut samples.arrivals(0..4));
    eventually("four answered", || samples.total() == 4);
    for i in 4..11 {
        pipeline.arrived(&mut vec![samples.arrival(i)]);
        eventually("answered", || samples.total() == i + 1);
    }
    for i in 0..11 {
        assert_eq!(samples.output(i)[..56], answer(i), "sample {i}");
    }
}

/// Each answer of this model holds the sum of its batch, so the padding must be zeros.
#[test]
fn a_batch_is_filled_up_with_zeros() {
    let pipeline = start(&params("sum_of_4.onnx"));
    let floats: Vec<u8> = (1..21).flat_map(|i| (i as f32).to_le_bytes()).collect();
    // The samples are not adjacent, so the engine copies all of them to the batch's buffer.
    let samples = Samples::new(&floats, (0..5).map(|i| (i * 16, 8)).collect(), 8, None);
    pipeline.arrived(&mut samples.arrivals(0..4));
    eventually("four answered", || samples.total() == 4);
    pipeline.arrived(&mut vec![samples.arrival(4)]);
    eventually("all answered", || samples.total() == 5);
    let twice: Vec<u8> = [34f32, 36.0].iter().flat_map(|f| f.to_le_bytes()).collect();
    assert_eq!(samples.output(4), twice);
}

#[test]
fn a_smaller_max_batch_is_minded_by_a_fixed_batch() {
    let pipeline = start(&params("fixed_batch.onnx").with(|e| e.max_batch = 2));
    let samples = Samples::random(&[8; 6], 8, None);
    pipeline.arrived(&mut samples.arrivals(0..6));
    eventually("all answered", || samples.total() == 6);
    let sizes = pipeline.counters().batch_sizes;
    assert!(sizes.iter().skip(3).all(|n| *n == 0), "{sizes:?}");
}
