//! Several GPUs behind one node, with an engine that needs no GPU: which GPU gets which samples,
//! and the record of each GPU.

use std::{sync::Arc, time::Duration};

use crate::common::{Samples, eventually};
use engines::{
    Digest, EngineKind, EngineParams,
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use fabric::Region;
use qdl::{model::ModelSpec, serve::Service};

const SAMPLE: usize = 64;

/// So many samples of a connection that belongs to a GPU, or to none.
fn samples(n: usize, gpu: Option<u32>) -> Arc<Samples> {
    let digest = |sample: &[u8]| Digest::of(sample).to_vec();
    Samples::on_gpu(gpu, &vec![SAMPLE; n], 8, Some(digest))
}

fn start(gpus: &[usize], delay_us: u64) -> Pipelines {
    let mut params = EngineParams::new(EngineKind::Digest).with(|e| {
        e.max_batch = 8;
        e.threads = 2;
        e.delay_us = delay_us;
    });
    params.spec = Some(ModelSpec::opaque("m", SAMPLE, 8));
    let engines = pipelines::create(&params, gpus).expect("engines");
    Pipelines::start(engines, &Options::from(&params), |e| panic!("{e}")).expect("workers")
}

fn wait(pipelines: &Pipelines, of: &[&Arc<Samples>]) {
    eventually("all are answered", || {
        of.iter().all(|s| s.total() == s.len()) && pipelines.in_flight() == 0
    });
    of.iter().for_each(|s| s.assert_each_answered_once());
}

fn ran(pipelines: &Pipelines) -> Vec<(usize, u64)> {
    let records = pipelines.gpus();
    assert!(records.iter().all(|r| r.name == "digest"));
    records
        .iter()
        .map(|r| (r.index, r.batches.samples()))
        .collect()
}

#[test]
fn samples_go_to_the_gpu_of_their_connection() {
    // With and without worker threads.
    for delay_us in [0, 10] {
        let pipelines = start(&[3, 7], delay_us);
        let (a, b) = (samples(170, Some(3)), samples(80, Some(7)));
        pipelines.memory(&Arc::new(Region::new(SAMPLE).expect("memory")));
        // One NIC thread's burst may be of several connections.
        let mut burst = a.arrivals(0..20);
        burst.extend(b.arrivals(0..80));
        pipelines.arrived(&mut burst);
        assert!(burst.is_empty());
        pipelines.arrived(&mut a.arrivals(20..170));
        wait(&pipelines, &[&a, &b]);
        assert_eq!(ran(&pipelines), [(3, 170), (7, 80)], "delay {delay_us}");
        let totals = pipelines.totals();
        assert_eq!(totals.batches.samples(), 250);
        assert_eq!(totals.gpus, pipelines.gpus());
        pipelines.stop(Duration::from_secs(5)).expect("idle");
    }
}

#[test]
fn samples_of_no_gpu_or_of_one_that_nobody_serves_are_shared_out() {
    let (pipelines, any) = (start(&[0, 1, 2, 3], 50), samples(256, None));
    pipelines.arrived(&mut any.arrivals(0..256));
    wait(&pipelines, &[&any]);
    assert_eq!(ran(&pipelines), [(0, 64), (1, 64), (2, 64), (3, 64)]);
    let (pipelines, lost) = (start(&[0, 1], 0), samples(10, Some(9)));
    pipelines.arrived(&mut lost.arrivals(0..10));
    wait(&pipelines, &[&lost]);
}

#[test]
fn a_single_pipeline_has_no_record_of_a_gpu_it_does_not_use() {
    let (pipelines, of_another) = (start(&[0], 0), samples(10, Some(5)));
    pipelines.arrived(&mut of_another.arrivals(0..10));
    wait(&pipelines, &[&of_another]);
    assert!(pipelines.gpus().is_empty());
    assert_eq!(pipelines.counters().samples, 10);
    let options = Options::from(&EngineParams::new(EngineKind::Digest));
    assert!(Pipelines::start(vec![], &options, |_| {}).is_err());
}
