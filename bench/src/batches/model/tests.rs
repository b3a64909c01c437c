use std::cell::Cell;

use proptest::{prelude::*, test_runner::TestRunner};

use super::{super::before::Before, *};

fn engine() -> Engine {
    super::super::table::graphs()
}

fn both(engine: &Engine, hiccup: Hiccup, seconds: f64, seed: u64) -> (Outcome, Outcome) {
    let mut before = Before::new(engine.policy, &engine.sizes);
    let mut now = super::super::table::measured(engine);
    (
        run(engine, hiccup, &mut before, seconds, seed),
        run(engine, hiccup, &mut now, seconds, seed),
    )
}

#[test]
fn every_sample_is_answered() {
    let (before, now) = both(&engine(), Hiccup::Stall(5.0), 0.2, 1);
    assert!(before.worst_ms.is_finite() && now.worst_ms.is_finite());
}

#[test]
fn a_queue_behind_a_step_is_worked_off() {
    for hiccup in [Hiccup::Stall(10.0), Hiccup::Burst(1000), Hiccup::Slow(20.0)] {
        let (before, now) = both(&engine(), hiccup, 0.6, 2);
        assert_eq!(before.recovered_ms, None, "{hiccup:?}");
        assert!(
            now.recovered_ms.is_some_and(|ms| ms < 150.0),
            "{hiccup:?}: {now:?}"
        );
    }
}

/// At loads up to 0.85, whatever the engine, mean latency is at most 1.25 times that of the old
/// rules and half a batch's time more, and the longest likewise, with two batches' time: in 98 of
/// 100. In none is either of them three times as long. Those beyond have a step between two sizes
/// that are warmed up, and a load that hardly any size can carry. Always the same 256 engines.
#[test]
fn never_worse_by_more_than_the_margin() {
    let steps = prop::collection::vec((2usize..256, 0.0f64..2000.0, 0.0f64..60.0), 0..3);
    let engines = (
        (50.0f64..2000.0, 1.0f64..40.0, steps, 1usize..4),
        prop::sample::select(vec![8usize, 32, 64, 100, 256]),
        prop::sample::select(vec![0u64, 500, 2000]),
        any::<bool>(),
        (0.3f64..0.85, 0usize..5, 0.0f64..1.0, 1u64..1000),
    );
    let (all, beyond, worst) = (Cell::new(0), Cell::new(0), Cell::new(0.0_f64));
    let mut runner = TestRunner::deterministic();
    let result = runner.run(&engines, |(engine, max_batch, delay_us, listed, rest)| {
        let ((base_us, each_us, steps, workers), (load, kind, size, seed)) = (engine, rest);
        let policy = Policy {
            max_batch,
            max_delay_ns: delay_us * 1000,
            latency_ns: None,
        };
        let sizes = (1..)
            .map(|n| 8 * n)
            .take_while(|n| listed && *n < max_batch);
        let mut e = Engine {
            base_us,
            each_us,
            steps,
            sizes: Vec::from_iter(sizes.chain(listed.then_some(max_batch))),
            workers,
            shared: 0.0,
            halves: 0.0,
            policy,
            per_s: 1.0,
            limit_ms: 15.0,
        };
        e.per_s = load * e.capacity();
        let batch_ms = e.us(max_batch) / 1000.0;
        let ms = 10.0 * size * batch_ms;
        let hiccup = [
            Hiccup::None,
            Hiccup::Stall(ms),
            Hiccup::Burst((1.0 + 10.0 * size) as usize * max_batch),
            Hiccup::Slow(2.0 * ms),
            Hiccup::Away(2.0 * ms),
        ][kind];
        let (before, now) = both(&e, hiccup, 0.12 * batch_ms, seed);
        let mean = now.mean_ms / (before.mean_ms + 0.4 * batch_ms);
        let longest = now.worst_ms / (before.worst_ms + 1.6 * batch_ms);
        let times = mean.max(longest);
        all.set(all.get() + 1);
        beyond.set(beyond.get() + u32::from(times > 1.25));
        worst.set(worst.get().max(times));
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
    let (all, beyond, worst) = (all.get(), beyond.get(), worst.get());
    println!("{beyond} of {all} beyond 1.25 times, the worst {worst:.2} times");
    assert!(
        50 * beyond <= all && worst < 3.0,
        "{beyond} of {all}, {worst}"
    );
}

/// Batches that share a GPU seem to cost what runs beside them does. Whatever is made of that after
/// a calm second: hardly anything is padded, and near what the GPU can do at all the 99th
/// percentile is what the largest listed size that is filled would give.
#[test]
fn what_runs_beside_a_batch_is_not_held_against_its_size() {
    let mut engine = super::super::table::shared();
    let full = engine.per_s;
    for load in [0.92, 0.96] {
        let (mut now, mut before) = (0.0, 0.0);
        for seed in 1..=8 {
            let mut measured = super::super::table::measured(&engine);
            engine.per_s = 0.5 * full;
            run(&engine, Hiccup::None, &mut measured, 1.0, seed);
            engine.per_s = load * full;
            let learned = run(&engine, Hiccup::None, &mut measured, 3.0, seed);
            assert!(learned.padded < 0.005, "{load}, {seed}: {learned:?}");
            let mut plain = Before::new(engine.policy, &engine.sizes);
            now += learned.before_ms;
            before += run(&engine, Hiccup::None, &mut plain, 3.0, seed).before_ms;
        }
        assert!(now < 1.05 * before, "{load}: {now} beside {before}");
    }
}

/// Where batches are quicker begun apart, a queue is got down that is not got down otherwise, at a
/// load that is carried while nothing goes wrong.
#[test]
fn batches_that_begin_apart_work_a_queue_off() {
    let engine = super::super::table::halves();
    let free = Engine {
        halves: 0.0,
        ..engine.clone()
    };
    for seed in 1..=4 {
        for hiccup in [Hiccup::Stall(10.0), Hiccup::Burst(1000), Hiccup::Slow(10.0)] {
            let of = |rules: &Engine| {
                let mut rules = super::super::table::measured(rules);
                run(&engine, hiccup, &mut rules, 1.0, seed)
            };
            let (as_free, apart) = (of(&free), of(&engine));
            println!("{hiccup:?} {as_free:?} {apart:?}");
            assert!(
                apart.recovered_ms.is_some_and(|ms| ms < 150.0),
                "{hiccup:?}, {seed}: {apart:?}"
            );
            assert!(apart.late < as_free.late, "{hiccup:?}, {seed}: {as_free:?}");
        }
    }
}
