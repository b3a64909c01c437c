use proptest::prelude::*;

use super::{
    super::{
        AcceleratorRecord, ConnectionRecord, StageRow, StageTable, SystemRecord,
        limits::{Cause, EngineUse, Evidence, ISSUE, NicUse, NodeUse, PathUse, ThreadGroup},
    },
    *,
};

pub(super) const SECONDS: f64 = 10.0;

/// Mean microseconds of the five stages that follow one another.
pub(super) type Means = [f64; 5];

/// Out and back 50 us, a batch's wait 100, its inference 500.
pub(super) const CALM: Means = [5.0, 50.0, 100.0, 500.0, 5.0];

fn stages(means: Means, count: u64) -> StageTable {
    let row = |us: f64| StageRow {
        p50_us: us,
        p90_us: 1.5 * us,
        p99_us: 2.0 * us,
        p999_us: 3.0 * us,
        max_us: 4.0 * us,
        mean_us: us,
        count,
    };
    let parts = Stage::PARTS.iter().zip(means).map(|(s, us)| (*s, row(us)));
    let round_trip = row(means[1] + means[2] + means[3]);
    let total = row(means.iter().sum());
    StageTable::new(parts.chain([(Stage::RoundTrip, round_trip), (Stage::Total, total)]))
}

pub(super) fn us(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// A run of 10 s that is well: Server at 1,000/s.
pub(super) fn healthy() -> RunRecord {
    let group = |name: &str, ran, waited| ThreadGroup {
        name: name.to_owned(),
        threads: 1,
        ran_us: us(ran),
        waited_us: us(waited),
    };
    let node = NodeUse {
        clock_us: us(SECONDS),
        cores: 4,
        machine_ticks: 4_000,
        machine_busy_ticks: 1_500,
        threads: vec![group(ISSUE, 0.5, 0.1), group("nic", 2.0, 0.2)],
        nics: NicUse {
            threads: 1,
            worked_us: us(1.0),
            sleeps: 200,
        },
        engine: EngineUse::default(),
    };
    let engine = EngineUse {
        max_batch: 64,
        workers: 2,
        busy_us: us(5.0),
        batches: 8_000,
        samples: 10_000,
        ..EngineUse::default()
    };
    RunRecord {
        scenario: "Server".to_owned(),
        fabric: "tcp".to_owned(),
        valid: Some(true),
        samples: 10_000,
        per_s: 1_000.0,
        target_qps: Some(1_000.0),
        duration_s: SECONDS,
        stages: stages(CALM, 10_000),
        system: SystemRecord {
            accelerators: vec![AcceleratorRecord {
                node: "acc".to_owned(),
                used: NodeUse {
                    engine,
                    ..node.clone()
                },
                ..AcceleratorRecord::default()
            }],
            connections: vec![ConnectionRecord {
                name: "acc/0".to_owned(),
                slots: 256,
                ..ConnectionRecord::default()
            }],
            ..SystemRecord::default()
        },
        evidence: Evidence {
            node,
            loadgen: Some(LoadgenView {
                mean_us: 700.0,
                p99_us: 1_400.0,
                scheduled_per_s: Some(1_001.0),
                bounded_us: 1_400.0,
                bound_us: Some(10_000.0),
            }),
        },
        ..RunRecord::default()
    }
}

/// The same in another scenario, at this rate.
pub(super) fn of(scenario: &str, samples: u64, means: Means) -> RunRecord {
    let mut run = healthy();
    run.scenario = scenario.to_owned();
    run.samples = samples;
    run.per_s = samples as f64 / SECONDS;
    run.stages = stages(means, samples);
    if let Some(l) = &mut run.evidence.loadgen {
        (l.scheduled_per_s, l.bound_us) = (None, None);
    }
    run
}

fn engine(run: &mut RunRecord, max_batch: u64, workers: u32, busy: f64, mean: u64) {
    let samples = run.samples;
    run.system.accelerators[0].used.engine = EngineUse {
        max_batch,
        workers,
        busy_us: us(busy * SECONDS * f64::from(workers)),
        batches: samples / mean,
        samples,
        ..EngineUse::default()
    };
}

/// This node's NIC thread is at work for this share of the time, all of it on a core.
pub(super) fn nics_at_work(run: &mut RunRecord, part: f64) {
    run.evidence.node.nics.worked_us = us(part * SECONDS);
    run.evidence.node.threads[1].ran_us = us(part * SECONDS);
}

/// The bound is missed by far, all of it in the stages.
pub(super) fn missed(mut run: RunRecord, means: Means) -> RunRecord {
    run.stages = stages(means, run.samples);
    if let Some(l) = &mut run.evidence.loadgen {
        let total: f64 = means.iter().sum();
        (l.mean_us, l.p99_us, l.bounded_us) = (total, 2.0 * total, 2.0 * total);
        l.bound_us = Some(total);
    }
    run
}

pub(super) fn said(run: &RunRecord) -> (Option<Cause>, String) {
    let limits = judge(run);
    let one = limits.findings.first().map(Finding::line);
    if let Some(one) = one {
        assert_eq!(limits.line, one, "one line, the strongest finding's");
    }
    (limits.cause(), limits.line)
}

#[test]
fn a_run_that_keeps_its_aim_with_room_is_limited_by_nothing() {
    let (cause, line) = said(&healthy());
    assert_eq!(cause, None);
    assert_eq!(
        line,
        "nothing: 1,000/s came back of 1,001/s scheduled, latency 1.40 ms of the 10.0 ms allowed"
    );
    // With the bound nearly used up something is the limit.
    let mut near = healthy();
    if let Some(l) = &mut near.evidence.loadgen {
        l.bound_us = Some(1_500.0);
    }
    assert!(
        judge(&near).line.starts_with("nothing stands out"),
        "{}",
        judge(&near).line
    );
}

#[test]
fn what_cannot_be_judged_is_not() {
    let accuracy = RunRecord {
        mode: Mode::Accuracy,
        ..healthy()
    };
    let peak = RunRecord {
        mode: Mode::FindPeak,
        ..healthy()
    };
    let short = RunRecord {
        duration_s: 0.1,
        ..healthy()
    };
    for run in [accuracy, peak, short, RunRecord::default()] {
        let (cause, line) = said(&run);
        assert_eq!(cause, None);
        assert!(line.starts_with("nothing is said: "), "{line}");
    }
}

#[test]
fn an_engine_at_work_all_the_time_is_told_apart_by_its_batches_and_threads() {
    // Full slots are its consequence: 2,000 in flight are all 256 slots, and more.
    let offline = || of("Offline", 64_000, [50_000.0, 30.0, 20_000.0, 10_000.0, 5.0]);
    for (max_batch, workers, mean, cause) in [
        (64, 2, 60, Cause::Engine),
        (64, 1, 60, Cause::EngineThreads),
        (1, 2, 1, Cause::MaxBatch),
        (4, 1, 4, Cause::MaxBatch),
        (16, 4, 16, Cause::Engine),
        (64, 1, 5, Cause::EngineThreads),
    ] {
        let mut run = offline();
        engine(&mut run, max_batch, workers, 0.97, mean);
        let (found, line) = said(&run);
        assert_eq!(found, Some(cause), "{max_batch} {workers} {mean}: {line}");
        assert!(line.contains("97 %") && line.contains("acc"), "{line}");
        // At half of that it is not the engine.
        engine(&mut run, max_batch, workers, 0.5, mean);
        assert_ne!(said(&run).0, Some(cause));
    }
    // A node whose cores are all at work has none for another thread.
    let mut full = offline();
    engine(&mut full, 64, 1, 0.97, 60);
    full.system.accelerators[0].used.threads[1].ran_us = us(3.5 * SECONDS);
    assert_eq!(said(&full).0, Some(Cause::Engine));
    // In Server it is a limit where the aim is missed, and only there.
    let mut server = healthy();
    engine(&mut server, 64, 1, 0.97, 3);
    assert_eq!(said(&server).0, None);
    let late = missed(server, [5.0, 50.0, 90_000.0, 500.0, 5.0]);
    assert_eq!(said(&late).0, Some(Cause::EngineThreads));
}

#[test]
fn slots_are_the_limit_where_batches_could_be_larger_or_nothing_else_is_busy() {
    // 1,000/s x 2 ms are the 2 slots.
    let mut run = of("Offline", 10_000, [9_000.0, 90.0, 10.0, 1_900.0, 5.0]);
    run.system.connections[0].slots = 2;
    engine(&mut run, 64, 2, 0.95, 1);
    let (cause, line) = said(&run);
    assert_eq!(cause, Some(Cause::Slots));
    assert!(
        line.contains("2.0 of 2") && line.contains("batches of 1.00 where 64 fit"),
        "{line}"
    );
    // Without an engine behind a batcher: they wait for the way there and back.
    engine(&mut run, 0, 0, 0.0, 1);
    assert_eq!(said(&run).0, Some(Cause::Slots));
    // As few in use by choice, of many that there are: more would bring nothing.
    let mut chosen = run.clone();
    (
        chosen.system.connections[0].slots,
        chosen.system.connections[0].allowed,
    ) = (400, 2);
    assert_ne!(said(&chosen).0, Some(Cause::Slots));
    chosen.system.connections[0].slots = 2;
    assert_eq!(said(&chosen).0, Some(Cause::Slots), "all there are");
    engine(&mut chosen, 64, 2, 0.95, 1);
    assert_eq!(said(&chosen).0, Some(Cause::Slots));
    chosen.system.connections[0].slots = 400;
    assert_ne!(said(&chosen).0, Some(Cause::Slots));
    // Full slots are a consequence of a NIC thread that is always at work.
    nics_at_work(&mut run, 0.95);
    assert_eq!(said(&run).0, Some(Cause::NicThread));
}

#[test]
fn a_line_is_full_where_packets_queue_up_and_the_nic_threads_do_not() {
    let mut run = of("Offline", 6_000, [900_000.0, 100_000.0, 100.0, 300.0, 5.0]);
    let path = PathUse {
        looks: 100,
        looked_us: us(SECONDS),
        busy_us: us(0.98 * SECONDS),
        rtt_us: 100 * 20_000,
        min_rtt_us: 30,
        ..PathUse::default()
    };
    run.system.connections[0].path = path;
    run.system.connections[0].slots = 600;
    assert_eq!(said(&run).0, Some(Cause::Link));
    let mut quick = run.clone();
    quick.system.connections[0].path.rtt_us = 100 * 40;
    assert_ne!(said(&quick).0, Some(Cause::Link), "no queue");
    let mut held = run.clone();
    held.system.connections[0].path.rwnd_limited_us = us(0.9 * SECONDS);
    assert_ne!(said(&held).0, Some(Cause::Link), "the peer does not read");
    nics_at_work(&mut run, 0.95);
    assert_eq!(
        said(&run).0,
        Some(Cause::NicThread),
        "it has no time to send more"
    );
    // A send buffer that is too small shows likewise, without a queue in the line.
    held.system.connections[0].path = PathUse {
        rtt_us: 100 * 40,
        sndbuf_limited_us: us(0.8 * SECONDS),
        ..path
    };
    assert_eq!(said(&held).0, Some(Cause::SendBuffer));
}

#[test]
fn loadgens_thread_is_late_or_cannot_do_what_is_asked() {
    let mut late = healthy();
    if let Some(l) = &mut late.evidence.loadgen {
        (l.p99_us, l.bounded_us) = (60_000.0, 60_000.0);
    }
    late.evidence.node.threads[0].waited_us = us(6.0);
    let (cause, line) = said(&late);
    assert_eq!(cause, Some(Cause::IssueThread));
    assert!(
        line.contains("p99 is 60.0 ms") && line.contains("waited for one 60 %"),
        "{line}"
    );
    // 20,000/s and 8.5 s on a core of 10, where 1,000,000 were scheduled.
    let mut asked = late.clone();
    asked.per_s = 20_000.0;
    asked.samples = 200_000;
    asked.evidence.node.threads[0].ran_us = us(8.5);
    if let Some(l) = &mut asked.evidence.loadgen {
        l.scheduled_per_s = Some(1_000_000.0);
    }
    assert_eq!(said(&asked).0, Some(Cause::Rate));
    // The same on a crowded machine: it had a core for a tenth of the time.
    asked.evidence.node.threads[0].ran_us = us(1.0);
    asked.evidence.node.threads[0].waited_us = us(8.9);
    assert_eq!(said(&asked).0, Some(Cause::Rate));
}

#[test]
fn a_sample_at_a_time_is_limited_by_what_most_of_its_time_goes_to() {
    let mut run = of("SingleStream", 10_000, [5.0, 80.0, 1.0, 20.0, 5.0]);
    engine(&mut run, 64, 1, 0.9, 1);
    run.evidence.node.nics.sleeps = 9_000;
    let (cause, line) = said(&run);
    assert_eq!(cause, Some(Cause::WakeUps));
    assert!(line.contains("slept 0.9 times a sample here"), "{line}");
    run.evidence.node.nics.sleeps = 0;
    run.system.accelerators[0].used.nics.sleeps = 9_000;
    assert_eq!(said(&run).0, Some(Cause::WakeUps), "at the other end");
    run.system.accelerators[0].used.nics.sleeps = 100;
    assert_eq!(said(&run).0, Some(Cause::Network));
    for (means, cause) in [
        ([5.0, 80.0, 1.0, 2_000.0, 5.0], Cause::Engine),
        ([5.0, 50.0, 1.0, 10.0, 500.0], Cause::Completion),
        ([500.0, 50.0, 1.0, 10.0, 5.0], Cause::Posting),
    ] {
        run.stages = stages(means, run.samples);
        assert_eq!(said(&run).0, Some(cause), "{means:?}");
    }
    // A query of several samples that wait for each other.
    let mut several = of("MultiStream", 10_000, [5.0, 50.0, 3_000.0, 1_000.0, 5.0]);
    engine(&mut several, 1, 2, 0.9, 1);
    assert_eq!(said(&several).0, Some(Cause::MaxBatch));
}

#[test]
fn an_accelerator_that_was_away_is_named_before_all_else() {
    let mut silent = healthy();
    silent.system.connections[0].silent_ms = 1_200;
    let (cause, line) = said(&silent);
    assert_eq!(cause, Some(Cause::Accelerator));
    assert!(
        line.contains("acc gave no sign of life for 1.20 s of 10.0 s"),
        "{line}"
    );
    silent.system.connections[0].silent_ms = 300;
    assert_eq!(said(&silent).0, None, "a hiccup");
    silent.system.connections[0].silent_ms = 1_200;
    silent.duration_s = 600.0;
    silent.samples = 600_000;
    assert_eq!(
        said(&silent).0,
        None,
        "nothing to a run of ten minutes that is well"
    );
    let mut lost = missed(healthy(), [5.0, 50.0, 90_000.0, 500.0, 5.0]);
    engine(&mut lost, 64, 1, 0.97, 3);
    lost.system.accelerators[0].lost = Some("closed the connection".to_owned());
    let limits = judge(&lost);
    let causes: Vec<_> = limits.findings.iter().map(|f| f.cause).collect();
    assert_eq!(
        causes,
        [Cause::Accelerator, Cause::EngineThreads],
        "all of them on record"
    );
    lost.system.accelerators[0].lost = None;
    lost.system.connections[0].lost = vec!["reset".to_owned()];
    assert_eq!(said(&lost).0, Some(Cause::Accelerator));
}

#[test]
fn cores_that_everybody_wants_are_named_where_nothing_else_is() {
    let mut run = missed(healthy(), [300.0, 400.0, 300.0, 400.0, 300.0]);
    run.evidence.node.machine_busy_ticks = 3_950;
    run.evidence.node.threads[1].waited_us = us(2.0);
    assert_eq!(said(&run).0, Some(Cause::Cores));
    // An accelerator on that machine is silent because it waits for a core as well.
    run.system.connections[0].silent_ms = 1_200;
    assert_eq!(said(&run).0, Some(Cause::Cores));
    run.evidence.node.machine_busy_ticks = 2_000;
    assert_eq!(said(&run).0, Some(Cause::Accelerator));
    run.system.connections[0].silent_ms = 0;
    assert_eq!(said(&run).0, None);
}

proptest! {
    /// Whatever a peer says: one line, each cause at most once, and nothing overflows.
    #[test]
    fn any_record_is_judged_in_one_line(
        scenario in prop::sample::select(vec!["Server", "Offline", "SingleStream", "MultiStream", ""]),
        numbers in prop::array::uniform16(prop_oneof![Just(0u64), 1u64..10_000_000, any::<u64>()]),
        means in prop::array::uniform5(prop_oneof![Just(0.0), 0.0f64..1e9]),
        seconds in prop_oneof![Just(0.0), 0.0f64..1e5],
        lost: bool,
    ) {
        let mut run = of(scenario, numbers[0], means);
        run.duration_s = seconds;
        let a = &mut run.system.accelerators[0];
        a.used.engine = EngineUse {
            max_batch: numbers[1],
            workers: numbers[2] as u32,
            busy_us: numbers[3],
            batches: numbers[4],
            samples: numbers[5],
            ..EngineUse::default()
        };
        a.used.nics.sleeps = numbers[6];
        a.used.threads[0].ran_us = numbers[7];
        a.used.threads[1].ran_us = numbers[7];
        a.lost = lost.then(|| "it went".to_owned());
        let second = a.clone();
        run.system.accelerators.push(second);
        let c = &mut run.system.connections[0];
        (c.slots, c.silent_ms) = (numbers[8], numbers[9]);
        c.allowed = numbers[14];
        c.path = PathUse {
            looks: numbers[10],
            looked_us: numbers[11],
            busy_us: numbers[12],
            rtt_us: numbers[13],
            sndbuf_limited_us: numbers[14],
            ..PathUse::default()
        };
        let again = c.clone();
        run.system.connections.push(again);
        run.evidence.node.threads[0].ran_us = numbers[15];
        if scenario == "Server" && let Some(l) = &mut run.evidence.loadgen {
            l.scheduled_per_s = Some(numbers[15] as f64);
            l.bound_us = Some(means[0]);
        }
        let limits = judge(&run);
        prop_assert!(!limits.line.is_empty() && !limits.line.contains('\n'));
        prop_assert!(!limits.line.contains("NaN"), "{}", limits.line);
        let mut causes: Vec<_> = limits.findings.iter().map(|f| f.cause).collect();
        causes.sort_unstable();
        causes.dedup();
        prop_assert_eq!(causes.len(), limits.findings.len());
        let json = serde_json::to_string(&limits).expect("JSON");
        let back: Limits = serde_json::from_str(&json).expect("reads back");
        prop_assert_eq!(back, limits);
    }
}
