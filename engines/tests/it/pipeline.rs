//! The pipeline with engines that need no installed library.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use crate::common::{
    Puppet, Samples, eventually, failing, no_error, puppet_error, start, submit_in_bursts,
};
use engines::{
    Batch, Digest, Engine, EngineError, EngineKind, EngineParams, Fault, SampleRun, create,
    pipeline::{Options, Pipeline},
};
use qdl::{
    model::ModelSpec,
    serve::{Arrival, Service},
};

fn digest(sample: &[u8]) -> Vec<u8> {
    Digest::of(sample).to_vec()
}

/// An engine that answers inline if it pretends no compute time.
fn params(inline: bool) -> EngineParams {
    EngineParams::new(EngineKind::Digest).with(|e| {
        e.max_batch = 16;
        e.threads = 2;
        e.delay_us = u64::from(!inline);
    })
}

#[test]
fn every_sample_is_answered_once_with_its_own_digest() {
    const RAILS: usize = 3;
    const EACH: usize = 6_000;
    for params in [
        params(true),
        params(false),
        params(false).with(|e| {
            e.max_batch = 5;
            e.threads = 3;
            e.max_delay_us = 50;
            e.spin_us = 0;
        }),
    ] {
        let options = Options {
            queue: 64,
            ..Options::from(&params)
        };
        let engine = create(&params).expect("the engine needs nothing");
        let pipeline = Pipeline::start(engine, &options, no_error).expect("workers start");
        let origins: Vec<_> = (0..RAILS)
            .map(|r| {
                let sizes: Vec<usize> = (0..EACH).map(|i| (i * 7 + r) % 300).collect();
                Samples::random(&sizes, 8, Some(digest))
            })
            .collect();
        thread::scope(|s| {
            for origin in &origins {
                s.spawn(|| submit_in_bursts(&pipeline, origin));
            }
        });
        eventually("all answered", || {
            origins.iter().map(|o| o.total()).sum::<usize>() == RAILS * EACH
        });
        for o in &origins {
            o.assert_each_answered_once();
        }
        eventually("idle", || pipeline.idle());
        let c = pipeline.counters();
        assert_eq!(c.samples, (RAILS * EACH) as u64);
        assert_eq!(c.batch_sizes.batches(), c.batches);
        assert!(c.batch_sizes.iter().all(|(size, _)| size > 0));
        assert_eq!(c.copies, 0, "these engines read samples where they lie");
        if pipeline.engine().inline().is_none() {
            let sum = c.batch_sizes.samples();
            assert_eq!(sum, c.samples, "no batch is larger than max_batch");
        }
        pipeline
            .stop(Duration::from_secs(60))
            .expect("idle workers end");
        for o in &origins {
            assert_eq!(Arc::strong_count(o), 1, "nothing holds the memory");
        }
    }
}

#[test]
fn null_answers_with_zeros_of_its_output_size() {
    for inline in [true, false] {
        let pipeline = start(&EngineParams {
            spec: Some(ModelSpec::opaque("m", 16, 5)),
            ..params(inline).with(|e| e.kind = EngineKind::Null)
        });
        assert_eq!(pipeline.engine().model().max_output_bytes(), Some(5));
        let samples = Samples::random(&[3, 0, 9], 8, None);
        crate::common::answer(&pipeline, &samples, 0..3);
        for f in samples.finished() {
            assert_eq!(f.len, 5);
            let output = samples.output(f.ticket as usize);
            assert_eq!(output, [0, 0, 0, 0, 0, 0xEE, 0xEE, 0xEE]);
        }
    }
}

#[test]
fn pretended_compute_is_reported_and_never_inline() {
    let params = params(true).with(|e| e.delay_us = 3_000);
    let pipeline = start(&params);
    assert!(pipeline.engine().inline().is_none());
    let samples = Samples::random(&[10; 4], 8, Some(digest));
    crate::common::answer(&pipeline, &samples, 0..4);
    assert!(samples.finished().iter().all(|f| f.compute_us >= 3_000));
}

#[test]
fn a_response_that_does_not_fit_ends_the_pipeline() {
    for inline in [true, false] {
        let params = params(inline);
        let engine = create(&params).expect("the engine needs nothing");
        let (pipeline, errors) = failing(engine, &Options::from(&params));
        let samples = Samples::random(&[1, 1], 7, None);
        pipeline.arrived(&mut vec![samples.arrival(0)]);
        assert_eq!(
            errors.first(),
            "a response of 8 bytes does not fit the 7 bytes of its slot"
        );
        pipeline.arrived(&mut vec![samples.arrival(1)]);
        eventually("all dropped", || {
            pipeline.idle() && Arc::strong_count(&samples) == 1
        });
        assert_eq!(samples.total(), 0, "nothing is answered after an error");
    }
}

fn refuses(bad: &'static [u8]) -> impl Fn(&mut Batch) -> Result<(), EngineError> {
    move |batch| {
        if (0..batch.len()).any(|i| batch.input(i) == bad) {
            return Err(puppet_error(batch.len(), "no such index"));
        }
        for i in 0..batch.len() {
            let answer = digest(batch.input(i));
            batch.write(i, &answer)?;
        }
        Ok(())
    }
}

/// A batch has two samples that the engine refuses. Each returns with the engine's reason, and all
/// other samples are answered.
#[test]
fn a_refused_sample_does_not_affect_others() {
    let engine = Puppet::new(4, refuses(&[9; 4]));
    let pipeline = Pipeline::start(Arc::new(engine), &options(8, 1), no_error).expect("starts");
    let others = Samples::random(&[4; 12], 8, Some(digest));
    let hostile = Samples::new(
        &[1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9],
        vec![(0, 4), (4, 4), (8, 4)],
        8,
        Some(digest),
    );
    for round in 0..2 {
        let others = (6 * round..6 * round + 6).map(|i| others.arrival(i));
        let mut burst: Vec<Arrival> = others.collect();
        if round == 0 {
            burst.extend([1, 2].map(|i| hostile.arrival(i)));
        }
        pipeline.arrived(&mut burst);
    }
    eventually("all answered or let go", || {
        pipeline.idle() && Arc::strong_count(&hostile) == 1 && others.total() == 12
    });
    others.assert_each_answered_once();
    let refusals = hostile.refused();
    assert!(!refusals.is_empty() && hostile.total() == 0, "{refusals:?}");
    for (_, why) in &refusals {
        assert_eq!(why, "engine puppet failed on a batch of 1: no such index");
    }
    assert_eq!(others.refused(), []);
}

/// An engine that also fails on zeros is broken: the failure is the engine's, not a sample's.
#[test]
fn an_engine_that_fails_on_zeros_is_broken() {
    let mut engine = Puppet::new(4, refuses(&[9; 4]));
    engine.broken = true;
    let (pipeline, errors) = failing(Arc::new(engine), &options(8, 1));
    let samples = Samples::new(&[9; 4], vec![(0, 4)], 8, None);
    pipeline.arrived(&mut vec![samples.arrival(0)]);
    let error = errors.first();
    assert_eq!(error, "engine puppet failed on a batch of 1: no such index");
    eventually("let go", || Arc::strong_count(&samples) == 1);
    assert_eq!(samples.refused(), []);
}

fn options(max_batch: usize, threads: usize) -> Options {
    Options::from(&EngineParams::new(EngineKind::Digest).with(|e| {
        e.max_batch = max_batch;
        e.threads = threads;
    }))
}

#[test]
fn a_failing_engine_is_reported_once_and_lets_go_of_every_sample() {
    for panics in [false, true] {
        let batches = AtomicUsize::new(0);
        let engine = Puppet::new(4, move |batch| {
            if batches.fetch_add(1, SeqCst) == 5 {
                assert!(!panics, "asked to");
                let line = format!("GPU 0: computing: a batch of {}", batch.len());
                return Err(EngineError::new(Fault::Engine, line));
            }
            Ok(())
        });
        let (pipeline, errors) = failing(Arc::new(engine), &options(2, 2));
        let samples = Samples::random(&[4; 200], 8, None);
        for i in 0..200 {
            pipeline.arrived(&mut vec![samples.arrival(i)]);
        }
        eventually("all let go and reported", || {
            pipeline.idle() && Arc::strong_count(&samples) == 1 && !errors.all().is_empty()
        });
        pipeline
            .stop(Duration::from_secs(60))
            .expect("the workers have ended");
        let errors = errors.all();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let kind = if panics {
            "panicked: asked to"
        } else {
            "GPU 0: computing"
        };
        assert!(errors[0].contains(kind), "{errors:?}");
        assert!(samples.total() < 200);
        assert!((0..200).all(|i| samples.record(i).answered <= 1));
    }
}

#[test]
fn a_worker_that_cannot_be_made_keeps_the_pipeline_from_starting() {
    let fails: fn(usize) -> Result<(), EngineError> = |index| match index {
        0 => Ok(()),
        _ => Err(EngineError::param("threads", "one is enough")),
    };
    let panics: fn(usize) -> Result<(), EngineError> = |_| panic!("cannot");
    for (make, text) in [
        (fails, "engine.threads: one is enough"),
        (panics, "puppet panicked: cannot"),
    ] {
        let mut engine = Puppet::new(4, |_| Ok(()));
        engine.make = make;
        let error = Pipeline::start(Arc::new(engine), &options(2, 2), no_error)
            .expect_err("worker 1 cannot be made");
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// Samples gather while a worker is busy. Adjacent samples then form one run, in any order of
/// arrival.
#[test]
fn neighbours_are_handed_over_as_one_run() {
    type Batches = Arc<Mutex<Vec<(Vec<SampleRun>, Vec<u64>)>>>;
    let held = Arc::new(AtomicBool::new(true));
    let seen: Batches = Arc::default();
    let (gate, log) = (Arc::clone(&held), Arc::clone(&seen));
    let engine = Puppet::new(10, move |batch| {
        let tickets = batch.arrivals().iter().map(Arrival::ticket).collect();
        log.lock()
            .expect("no panic inside")
            .push((batch.runs().to_vec(), tickets));
        eventually("let go", || !gate.load(SeqCst));
        Ok(())
    });
    let pipeline = Pipeline::start(Arc::new(engine), &options(8, 1), no_error).expect("starts");
    let samples = Samples::random(&[10; 12], 8, None);
    pipeline.arrived(&mut vec![samples.arrival(11)]);
    eventually("the first is being run", || {
        !seen.lock().expect("no panic inside").is_empty()
    });
    // Sample 5 is missing; the last two samples belong to the next batch.
    let order = [3, 4, 1, 2, 0, 7, 6, 8, 9, 10];
    pipeline.arrived(&mut order.iter().map(|i| samples.arrival(*i)).collect());
    held.store(false, SeqCst);
    eventually("all answered", || samples.total() == 11);
    let seen = seen.lock().expect("no panic inside").clone();
    let run = |first, count| SampleRun { first, count };
    assert_eq!(
        seen,
        [
            (vec![run(0, 1)], vec![11]),
            (vec![run(0, 5), run(5, 3)], vec![0, 1, 2, 3, 4, 6, 7, 8]),
            (vec![run(0, 2)], vec![9, 10]),
        ]
    );
}

#[test]
fn stopping_runs_what_is_pending_and_has_a_deadline() {
    let held = Arc::new(AtomicBool::new(true));
    let runs = Arc::new(AtomicBool::new(false));
    let (gate, began) = (Arc::clone(&held), Arc::clone(&runs));
    let engine = Puppet::new(1, move |_| {
        began.store(true, SeqCst);
        eventually("let go", || !gate.load(SeqCst));
        Ok(())
    });
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let samples = Samples::random(&[1; 40], 8, None);

    // A worker that never returns: the stop still ends.
    let stuck = Pipeline::start(Arc::clone(&engine), &options(1, 1), no_error).expect("starts");
    stuck.arrived(&mut samples.arrivals(0..10));
    eventually("one is being run", || runs.load(SeqCst));
    let error = stuck
        .stop(Duration::from_millis(20))
        .expect_err("it is held");
    let words = "1 engine worker(s) still run a batch after 20 ms";
    assert_eq!(error, words);
    eventually("only the one that runs is left", || stuck.in_flight() <= 1);

    // A slow worker: the stop waits until all pending samples are answered.
    let before = samples.total();
    let slow = Pipeline::start(engine, &options(4, 1), no_error).expect("starts");
    slow.arrived(&mut samples.arrivals(20..40));
    thread::scope(|s| {
        let stopping = s.spawn(|| slow.stop(Duration::from_secs(60)));
        held.store(false, SeqCst);
        stopping.join().expect("no panic").expect("it ends in time");
    });
    assert!((20..40).all(|i| samples.record(i).answered == 1));
    slow.arrived(&mut vec![samples.arrival(15)]);
    assert!(slow.idle(), "what comes after the stop is dropped");
    eventually("the stuck one has ended", || stuck.idle());
    assert!(samples.total() <= before + 21);
    assert_eq!(samples.record(15).answered, 0);
}
