use proptest::prelude::*;

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever the engine: up to nine tenths of what the engine can do, no later by more than a
    /// quarter and half of a batch's time on average, and a quarter and two batches' at worst.
    #[test]
    fn never_worse_by_more_than_the_margin(
        base_us in 50.0f64..2000.0,
        each_us in 1.0f64..40.0,
        steps in prop::collection::vec((2usize..256, 0.0f64..2000.0, 0.0f64..60.0), 0..3),
        workers in 1usize..4,
        max_batch in prop::sample::select(vec![8usize, 32, 64, 100, 256]),
        delay_us in prop::sample::select(vec![0u64, 500, 2000]),
        listed in any::<bool>(),
        load in 0.3f64..0.9,
        kind in 0usize..5,
        size in 0.0f64..1.0,
        seed in 1u64..1000,
    ) {
        let policy = Policy { max_batch, max_delay_ns: delay_us * 1000, latency_ns: None };
        let sizes = match listed {
            true => (1..=max_batch / 8).map(|n| 8 * n).filter(|n| *n < max_batch)
                .chain([max_batch]).collect(),
            false => Vec::new(),
        };
        let mut e = Engine {
            base_us, each_us, steps, sizes, workers, policy, per_s: 1.0, limit_ms: 15.0,
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
        prop_assert!(
            now.mean_ms <= 1.25 * before.mean_ms + 0.5 * batch_ms,
            "mean {} -> {} ms; {e:?} {hiccup:?}", before.mean_ms, now.mean_ms
        );
        prop_assert!(
            now.worst_ms <= 1.25 * before.worst_ms + 2.0 * batch_ms,
            "worst {} -> {} ms; {e:?} {hiccup:?}", before.worst_ms, now.worst_ms
        );
    }
}
