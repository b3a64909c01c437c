//! Engines and hiccups that are compared.

use accelerator::batcher::{Batcher, Policy};
use serde::Serialize;

use super::{
    before::{Before, Rules},
    model::{Engine, Hiccup, Outcome, run},
};

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which engine.
    pub engine: &'static str,
    /// What went wrong.
    pub hiccup: String,
    /// Which rules.
    pub rules: &'static str,
    /// 99th percentile before the hiccup, in milliseconds.
    pub before_ms: f64,
    /// Milliseconds until samples are in time again; nothing where they never are.
    pub recovered_ms: Option<f64>,
    /// Share of late answers from the hiccup on.
    pub late: f64,
    /// Their longest latency.
    pub worst_ms: f64,
    /// Mean batch.
    pub batch: f64,
    /// Zeros that batches were padded with, beside all samples.
    pub padded: f64,
}

fn policy(max_batch: usize, delay_us: u64, latency_ms: u64) -> Policy {
    Policy {
        max_batch,
        max_delay_ns: delay_us * 1000,
        latency_ns: (latency_ms > 0).then_some(latency_ms * 1_000_000),
    }
}

/// ResNet-50 in INT8 on a large GPU, as seen in Server runs: 2.7 ms at sizes with CUDA graphs, up
/// to 128; from 3.6 to 6.3 ms from there to 178. Two streams.
pub fn graphs() -> Engine {
    Engine {
        base_us: 1000.0,
        each_us: 13.3,
        steps: vec![(129, 884.0, 41.8)],
        sizes: Vec::new(),
        workers: 2,
        shared: 0.0,
        halves: 0.0,
        policy: policy(256, 500, 15),
        per_s: 67_600.0,
        limit_ms: 15.0,
    }
}

/// ResNet-50 in half precision on a large GPU that three streams share, sizes listed, as measured
/// alone: 0.25 ms at 1, 1.2 at 32, 4.2 at 128.
pub fn shared() -> Engine {
    Engine {
        base_us: 215.0,
        each_us: 31.5,
        steps: Vec::new(),
        sizes: vec![1, 16, 32, 48, 64, 80, 96, 112, 128],
        workers: 3,
        shared: 0.95,
        halves: 0.0,
        policy: policy(128, 2000, 15),
        per_s: 29_000.0,
        limit_ms: 15.0,
    }
}

/// ResNet-50 in INT8 on an H200 that three streams share, as `engine_alone` measured it: 64,600
/// samples a second of 128 begun as workers become free and 72,700 apart, 71,700 and 76,800 of 256.
pub fn halves() -> Engine {
    Engine {
        base_us: 390.0,
        each_us: 12.6,
        steps: Vec::new(),
        sizes: vec![1, 32, 64, 96, 128, 160, 192, 224, 256],
        workers: 3,
        shared: 1.0,
        halves: 0.125,
        policy: policy(256, 2000, 15),
        per_s: 68_500.0,
        limit_ms: 15.0,
    }
}

fn engines() -> Vec<(&'static str, Engine)> {
    let listed = Engine {
        sizes: vec![1, 32, 64, 96, 128, 160, 192, 224, 256],
        ..graphs()
    };
    let smooth = Engine {
        base_us: 1000.0,
        each_us: 13.3,
        steps: Vec::new(),
        ..graphs()
    };
    // A model on a few cores: hardly anything is gained by batches.
    let cpu = Engine {
        base_us: 400.0,
        each_us: 1800.0,
        steps: Vec::new(),
        sizes: Vec::new(),
        workers: 2,
        shared: 0.0,
        halves: 0.0,
        policy: policy(64, 500, 0),
        per_s: 900.0,
        limit_ms: 250.0,
    };
    vec![
        ("graphs up to 128", graphs()),
        ("the same, sizes listed", listed),
        ("no step", smooth),
        ("a GPU that streams share", shared()),
        ("the same, with halves", halves()),
        ("a CPU's", cpu),
    ]
}

/// Every engine through every hiccup by every set of rules.
pub fn rows(seconds: f64, seed: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, engine) in engines() {
        let burst = (engine.per_s * 0.02) as usize;
        for hiccup in [
            Hiccup::None,
            Hiccup::Stall(5.0),
            Hiccup::Stall(20.0),
            Hiccup::Burst(burst),
            Hiccup::Slow(20.0),
            Hiccup::Away(20.0),
        ] {
            let by = |rules: &mut dyn Rules| run(&engine, hiccup, rules, seconds, seed);
            let before = by(&mut Before::new(engine.policy, &engine.sizes));
            let mut all = vec![("all that is pending", before)];
            if engine.steps.len() == 1 {
                let hand = Policy {
                    max_batch: engine.steps[0].0 - 1,
                    ..engine.policy
                };
                let fits = |s: &usize| *s <= hand.max_batch;
                let sizes: Vec<usize> = engine.sizes.iter().copied().filter(fits).collect();
                all.push(("max_batch 128 by hand", by(&mut Before::new(hand, &sizes))));
            }
            let free = Engine {
                halves: 0.0,
                ..engine.clone()
            };
            all.push(("sizes as measured", by(&mut measured(&free))));
            if engine.halves > 0.0 {
                all.push(("and begun apart", by(&mut measured(&engine))));
            }
            rows.extend(
                all.into_iter()
                    .map(|(rules, o)| row(name, hiccup, rules, o)),
            );
        }
    }
    rows
}

/// The batcher, warmed up as a pipeline does it.
pub fn measured(engine: &Engine) -> Batcher<u64> {
    let mut batcher = Batcher::new(engine.policy, &engine.sizes);
    let powers = std::iter::successors(Some(1), |n| Some(2 * n));
    let most = engine.policy.max_batch;
    for n in powers
        .take_while(|n| *n <= most)
        .chain(engine.sizes.iter().copied())
    {
        // Alone, without copies and without a second stream.
        batcher.warmed(n, (engine.us(n) * 600.0) as u64);
    }
    if engine.halves > 0.0 {
        batcher.begin_apart((engine.us(most) * 600.0) as u64, engine.own_ns(most));
    }
    batcher
}

fn row(engine: &'static str, hiccup: Hiccup, rules: &'static str, o: Outcome) -> Row {
    Row {
        engine,
        hiccup: hiccup.name(),
        rules,
        before_ms: o.before_ms,
        recovered_ms: o.recovered_ms,
        late: o.late,
        worst_ms: o.worst_ms,
        batch: o.batch,
        padded: o.padded,
    }
}

/// Prints them.
pub fn print(rows: &[Row]) {
    println!(
        "{:<24} {:<32} {:<22} {:>9} {:>10} {:>7} {:>9} {:>7} {:>9}",
        "engine",
        "hiccup",
        "rules",
        "p99 ms",
        "in time ms",
        "late %",
        "worst ms",
        "batch",
        "padded %"
    );
    let mut last = ("", "");
    for r in rows {
        let engine = if last.0 == r.engine { "" } else { r.engine };
        let hiccup = match last {
            (e, h) if e == r.engine && h == r.hiccup => "",
            _ => &r.hiccup,
        };
        let recovered = r
            .recovered_ms
            .map_or("never".to_owned(), |ms| format!("{ms:.0}"));
        println!(
            "{engine:<24} {hiccup:<32} {:<22} {:>9.1} {recovered:>10} {:>7.2} {:>9.1} {:>7.1} {:>9.2}",
            r.rules,
            r.before_ms,
            100.0 * r.late,
            r.worst_ms,
            r.batch,
            100.0 * r.padded
        );
        last = (r.engine, &r.hiccup);
    }
    println!(
        "p99: before the hiccup. In time: from the hiccup's begin to the last sample that was late."
    );
}
