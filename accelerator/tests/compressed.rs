//! Compressed samples through the pipeline: the engine sees each original sample, and a corrupt
//! sample affects no other.

mod common;

use std::sync::{Arc, Mutex};

use accelerator::{
    engine::{Batch, Digest, Engine, EngineError, EngineKind, EngineParams},
    pipeline::{Options, Pipeline},
};
use common::{Puppet, Samples, eventually, no_error};
use qdl::{
    compression,
    model::{Compression, ModelSpec},
    serve::{Arrival, Service},
};

/// Returns the digest of a sample before its compression.
fn digest(carried: &[u8]) -> Vec<u8> {
    let len = compression::decompressed_len(carried).expect("sound");
    let mut sample = vec![0; len];
    compression::decompress(carried, &mut sample).expect("sound");
    Digest::of(&sample).to_vec()
}

/// Compresses `samples` as the QSL does, and appends `spoiled` unchanged.
fn carried(samples: &[Vec<u8>], spoiled: &[Vec<u8>], answer: common::Answer) -> Arc<Samples> {
    let (mut all, mut places, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    for sample in samples {
        let at = all.len();
        compression::compress(sample, &mut scratch, &mut all);
        places.push((at, all.len() - at));
    }
    for bytes in spoiled {
        places.push((all.len(), bytes.len()));
        all.extend_from_slice(bytes);
    }
    Samples::new(&all, places, 8, Some(answer))
}

fn samples(n: usize, len: impl Fn(usize) -> usize) -> Vec<Vec<u8>> {
    let sample = |i: usize| (0..len(i)).map(|k| (k / 50 + i) as u8).collect();
    (0..n).map(sample).collect()
}

fn params(model: &ModelSpec) -> EngineParams {
    EngineParams {
        spec: Some(model.clone()),
        ..EngineParams::new(EngineKind::Digest)
    }
    .with(|e| (e.max_batch, e.threads) = (8, 2))
}

fn answer_all(batch: &mut Batch) -> Result<(), EngineError> {
    for i in 0..batch.len() {
        let answer = Digest::of(batch.input(i));
        batch.write(i, &answer)?;
    }
    Ok(())
}

#[test]
fn samples_of_one_size_are_one_run_once_they_are_decompressed() {
    let batches: Arc<Mutex<Vec<(usize, usize)>>> = Arc::default();
    let list = batches.clone();
    let engine = Arc::new(Puppet::new(1001, move |batch| {
        let sizes = (batch.len(), batch.runs().len());
        list.lock().expect("alive").push(sizes);
        answer_all(batch)
    }));
    let model = engine.model().clone();
    let params = params(&model.with_compression(Some(Compression::Lz4)));
    let pipeline = Pipeline::start(engine, &Options::from(&params), no_error).expect("starts");
    let samples = carried(&samples(64, |_| 1001), &[], digest);
    common::answer(&pipeline, &samples, 0..64);
    samples.assert_each_answered_once();
    let batches = batches.lock().expect("alive");
    assert!(batches.iter().any(|(samples, _)| *samples > 1));
    assert!(batches.iter().all(|(_, runs)| *runs == 1), "{batches:?}");
}

/// A decompression bomb, a length that no sample of the model has, and corrupt bytes. The pipeline
/// refuses each with its own reason and answers the other samples of its connection and batch.
#[test]
fn a_spoiled_sample_is_refused_and_the_others_are_answered() {
    let engine = Arc::new(Puppet::new(4096, answer_all));
    let model = engine.model().clone();
    let params = params(&model.with_compression(Some(Compression::Lz4)));
    let pipeline = Pipeline::start(engine, &Options::from(&params), no_error).expect("starts");
    let (mut bomb, mut short, mut spoiled) = (Vec::new(), Vec::new(), Vec::new());
    let mut scratch = Vec::new();
    compression::compress(&[0; 1 << 20], &mut scratch, &mut bomb);
    assert!(bomb.len() < 8192, "a slot holds it");
    compression::compress(&[1; 4095], &mut scratch, &mut short);
    compression::compress(&[2; 4096], &mut scratch, &mut spoiled);
    spoiled.truncate(spoiled.len() - 3);
    for (bytes, words) in [
        (
            bomb,
            "it says that it has 1048576 bytes, the largest has 4096",
        ),
        (
            short,
            "a sample of 4095 bytes arrived; the model takes 4096 bytes",
        ),
        (spoiled, "its LZ4 block is none of 4096 bytes"),
        (vec![1, 2], "2 bytes arrived, 4 say how long"),
    ] {
        let all = carried(&samples(12, |_| 4096), &[bytes], digest);
        let mut burst: Vec<Arrival> = (0..12).map(|i| all.arrival(i)).collect();
        burst.insert(5, all.arrival(12));
        pipeline.arrived(&mut burst);
        eventually("the others are answered", || {
            pipeline.idle() && all.total() == 12
        });
        let answered: Vec<usize> = (0..13).map(|i| all.record(i).answered).collect();
        assert_eq!(answered, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0], "{words}");
        let refused = all.refused();
        assert!(
            refused.len() == 1 && refused[0].0 == 12 && refused[0].1.contains(words),
            "{words}: {refused:?}"
        );
    }
}
