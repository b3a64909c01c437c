use proptest::prelude::*;
use record::{StageRow, StageTable};
use serde_json::{Value, json};

use super::*;

/// Mean times of five consecutive stages in us: network 50, queue 100, compute 500.
const CALM: [f64; 5] = [5.0, 50.0, 100.0, 500.0, 5.0];

fn stages(m: [f64; 5]) -> Value {
    let usual = Stage::PARTS.into_iter().filter(|stage| !stage.is_rare());
    let parts = usual.zip(m);
    let round_trip = (Stage::RoundTrip, m[1] + m[2] + m[3]);
    let rows = parts.chain([round_trip, (Stage::Total, m.iter().sum())]);
    let row = |mean_us| StageRow {
        mean_us,
        ..StageRow::default()
    };
    json!({"stages": StageTable::new(rows.map(|(stage, us)| (stage, row(us))))})
}

fn scenario(name: &str, samples: u64, means: [f64; 5]) -> Value {
    let mut run = stages(means);
    run["scenario"] = json!(name);
    run["samples"] = json!(samples);
    run["per_s"] = json!(samples as f64 / 10.0);
    run["loadgen"] = json!({"limits": []});
    run
}

fn engine(max_batch: u64, workers: u32, busy: f64, mean: u64) -> Value {
    let busy_us = (busy * 1e7 * f64::from(workers)) as u64;
    json!({"accelerators": [{"used": {"engine": {
        "max_batch": max_batch, "workers": workers, "busy_us": busy_us,
        "batches": 1_000, "samples": 1_000 * mean,
    }}}]})
}

/// A run that misses its latency bound by a factor of 2.
fn missed() -> Value {
    json!({"loadgen": {"limits": [{"was": 2_800.0, "limit": 1_400.0, "met": false}]}})
}

/// A machine with `busy` of 4,000 busy ticks, whose NIC thread waits 9.1 s for a core.
fn crowded(busy: u64) -> Value {
    json!({"machine_busy_ticks": busy, "threads": [{}, {"waited_us": 9_100_000}]})
}

fn merge(base: &mut Value, with: &Value) {
    match (base, with) {
        (Value::Object(base), Value::Object(with)) => {
            for (key, value) in with {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(base), Value::Array(with)) => {
            base.resize(base.len().max(with.len()), json!({}));
            base.iter_mut().zip(with).for_each(|(b, w)| merge(b, w));
        }
        (base, with) => *base = with.clone(),
    }
}

/// The record of a healthy 10 s Server run at 1,000/s, as in `summary.json`, with `changes` merged.
fn run(changes: &[Value]) -> RunRecord {
    let node = json!({
        "clock_us": 10_000_000, "cores": 4, "machine_ticks": 4_000, "machine_busy_ticks": 1_500,
        "threads": [
            {"name": ISSUE, "threads": 1, "ran_us": 500_000, "waited_us": 100_000},
            {"name": NIC, "threads": 1, "ran_us": 2_000_000, "waited_us": 200_000},
        ],
        "nics": {"threads": 1, "worked_us": 1_000_000, "sleeps": 200},
    });
    let mut run = json!({
        "scenario": "Server", "fabric": "tcp",
        "samples": 10_000, "per_s": 1_000.0, "duration_s": 10.0,
        "accelerators": [{"node": "acc", "used": node}],
        "connections": [{"name": "acc/0", "slots": 256}],
        "evidence": {"node": node},
        "loadgen": {"scheduled_per_s": 1_001.0, "limits": [
            {"name": "p99 latency", "was": 1_400.0, "limit": 10_000.0, "at_most": true,
             "met": true},
        ]},
    });
    let well = [stages(CALM), engine(64, 2, 0.25, 1)];
    well.iter().chain(changes).for_each(|c| merge(&mut run, c));
    serde_json::from_value(run).expect("a record")
}

fn said(changes: &[Value]) -> (Option<Cause>, String) {
    let limits = judge(&run(changes));
    if let Some(first) = limits.findings.first() {
        assert_eq!(limits.line, line(first), "the strongest finding's line");
    }
    (limits.findings.first().map(|f| f.cause), limits.line)
}

fn names(cause: impl Into<Option<Cause>>, words: &str, changes: &[Value]) {
    let (found, line) = said(changes);
    assert!(
        found == cause.into() && line.contains(words),
        "{line}: not {words:?}; {changes:?}"
    );
}

fn not(cause: Cause, changes: &[Value]) {
    assert_ne!(said(changes).0, Some(cause), "{changes:?}");
}

#[test]
fn a_run_that_keeps_its_aim_with_room_is_limited_by_nothing() {
    let how = "1,000/s came back of 1,001/s scheduled, p99 latency 1.40 ms of the 10.0 ms allowed";
    assert_eq!(said(&[]), (None, format!("nothing: {how}")));
    names(None, how, &[json!({"evidence": {"node": crowded(4_000)}})]);
    names(None, how, &[engine(64, 1, 0.97, 3)]);
    names(None, "nothing stands out", &[missed()]);
    // LoadGen's own percentiles are named, whatever our clock says; of those the nearest.
    let limit = |name: &str, was: Option<f64>| {
        let limit = 100.0;
        json!({"name": name, "was": was, "limit": limit, "at_most": true, "met": true})
    };
    let tokens = |tpot| {
        let limits = [limit("p99 TTFT", Some(20.0)), limit("p99 TPOT", tpot)];
        let own = json!({"stream": "first", "times": {"tpot": StageRow {
            p99_us: 99.0,
            ..StageRow::default()
        }}});
        [json!({"tokens": own, "loadgen": {"limits": limits}})]
    };
    names(None, "p99 TPOT 30.0 us of the 100 us", &tokens(Some(30.0)));
    names(None, "p99 TTFT 20.0 us of the 100 us", &tokens(None));
    names(None, "nothing stands out", &tokens(Some(99.0)));
}

#[test]
fn what_cannot_be_judged_is_not() {
    for change in [
        json!({"mode": "accuracy", "losses": [{}]}),
        json!({"mode": "find_peak"}),
        json!({"duration_s": 0.1}),
        json!({"samples": 0}),
    ] {
        names(None, "not judged: ", &[change]);
    }
}

#[test]
fn an_engine_at_work_all_the_time_is_told_apart_by_its_batches_and_threads() {
    // With 2,000 samples in flight, all 256 slots are full: a consequence of the busy engine.
    let offline = scenario("Offline", 64_000, [50_000.0, 30.0, 20_000.0, 10_000.0, 5.0]);
    for (max_batch, workers, mean, cause) in [
        (64, 2, 60, Cause::Engine),
        (64, 1, 60, Cause::EngineThreads),
        (1, 2, 1, Cause::MaxBatch),
        (4, 1, 4, Cause::MaxBatch),
        (64, 1, 5, Cause::EngineThreads),
    ] {
        let at_work = |busy| [offline.clone(), engine(max_batch, workers, busy, mean)];
        names(cause, "acc computed 97 %", &at_work(0.97));
        not(cause, &at_work(0.5));
    }
    // A node with all cores busy has none for another engine thread.
    let one = engine(64, 1, 0.97, 60);
    let full = json!({"accelerators": [{"used": {"threads": [{}, {"ran_us": 35_000_000}]}}]});
    names(Cause::Engine, "", &[offline, one.clone(), full]);
    names(Cause::EngineThreads, "", &[one, missed()]);
}

#[test]
fn a_server_whose_own_time_is_the_answers_is_named() {
    let of = |engine: &str| json!({"accelerators": [{"engine": engine}]});
    let slow = [5.0, 400.0, 0.0, 592_000.0, 5.0];
    let none = engine(0, 0, 0.0, 1);
    let own = "the server: 592 ms of 592 ms are its own";
    let server = [stages(slow), none.clone(), missed()];
    names(Cause::Engine, own, &[&server[..], &[of("http")]].concat());
    let compute = "compute is 100 % of a sample's 592 ms";
    names(
        Cause::Engine,
        compute,
        &[&server[..], &[of("llm")]].concat(),
    );
    let offline = scenario("Offline", 100, [9e6, 400.0, 0.0, 592_000.0, 5.0]);
    names(Cause::Engine, own, &[offline, none, of("http")]);
}

#[test]
fn slots_are_the_limit_where_batches_could_be_larger_or_nothing_else_is_busy() {
    // 1,000/s x 2 ms fill both slots.
    let offline = scenario("Offline", 10_000, [9_000.0, 90.0, 10.0, 1_900.0, 5.0]);
    let slots = |n: u64| json!({"connections": [{"slots": n}]});
    let words = "2.0 of 2 in use on average, batches of 1.00 where 64 fit; raise `slots`";
    let changes = [offline.clone(), slots(2), engine(64, 2, 0.95, 1)];
    names(Cause::Slots, words, &changes);
    // Without an engine behind a batcher, the slots wait for the round trip.
    let offline = scenario("Offline", 10_000, [9_000.0, 1_900.0, 10.0, 90.0, 5.0]);
    let none = engine(0, 0, 0.0, 1);
    let changes = [offline.clone(), slots(2), none.clone()];
    names(Cause::Slots, "2.0 of 2", &changes);
    // With few of many slots in use, more slots do not help.
    not(Cause::Slots, &[offline.clone(), slots(400), none.clone()]);
    // A NIC thread that is always busy fills the slots.
    let busy = json!({"evidence": {"node": {"nics": {"worked_us": 9_500_000}}}});
    not(Cause::Slots, &[offline, slots(2), none, busy]);
}

#[test]
fn a_link_is_full_where_packets_queue_up_and_the_nic_threads_do_not() {
    let path = |rtt: u64, rwnd: u64| {
        json!({"connections": [{"slots": 600, "path": {
            "looks": 100, "looked_us": 10_000_000, "busy_us": 9_800_000,
            "rtt_us": 100 * rtt, "min_rtt_us": 30, "rwnd_limited_us": rwnd,
        }}]})
    };
    let offline = scenario("Offline", 6_000, [900_000.0, 100_000.0, 100.0, 300.0, 5.0]);
    let changes = [offline.clone(), path(20_000, 0)];
    names(Cause::Link, "packets took 20.0 ms", &changes);
    not(Cause::Link, &[offline.clone(), path(40, 0)]);
    // The peer does not read, or a NIC thread has no time to send more.
    not(Cause::Link, &[offline.clone(), path(20_000, 9_000_000)]);
    let busy = json!({"evidence": {"node": {"nics": {"worked_us": 9_500_000}}}});
    not(Cause::Link, &[offline, path(20_000, 0), busy]);
}

#[test]
fn a_sample_at_a_time_is_limited_by_what_most_of_its_time_goes_to() {
    let single = scenario("SingleStream", 10_000, [5.0, 80.0, 1.0, 20.0, 5.0]);
    names(None, "nothing stands out", std::slice::from_ref(&single));
    let sleeps = json!({"nics": {"sleeps": 9_000}});
    let here = json!({"evidence": {"node": sleeps}});
    let changes = [single.clone(), here];
    names(Cause::WakeUps, "slept 0.9 times a sample here", &changes);
    let there = json!({"accelerators": [{"used": sleeps}]});
    names(Cause::WakeUps, "0.9 there", &[single, there]);
    let slow = scenario("SingleStream", 10_000, [5.0, 80.0, 1.0, 2_000.0, 5.0]);
    names(Cause::Engine, "compute is 96 %", &[slow]);
}

#[test]
fn kv_caches_that_come_slowly_are_named_and_a_wait_for_a_decode_node_is_not() {
    let run = |transfer_us: f64, post_us: f64| {
        let mut run = scenario("Server", 10_000, [post_us, 50.0, 100.0, 500.0, 5.0]);
        run["stages"][Stage::Transfer.key()] = json!(StageRow {
            mean_us: transfer_us,
            ..StageRow::default()
        });
        [run, missed()]
    };
    names(
        Cause::Transfer,
        "took 500 us of a decode node's 650 us",
        &run(505.0, 5.0),
    );
    not(Cause::Transfer, &run(905.0, 700.0));
    not(Cause::Transfer, &run(0.0, 5.0));
}

#[test]
fn threads_that_wait_for_cores_are_named_before_all_that_is_late_for_that() {
    let offline = scenario("Offline", 10_000, CALM);
    let mut single = scenario("SingleStream", 10_000, [5.0, 80.0, 1.0, 20.0, 5.0]);
    single["evidence"]["node"] = json!({"nics": {"sleeps": 9_000}});
    let silent = json!({"connections": [{"silent_ms": 1_200}]});
    for (changes, without) in [
        ([offline, engine(64, 1, 0.97, 60)], Cause::EngineThreads),
        ([single, json!({})], Cause::WakeUps),
        ([missed(), silent], Cause::Accelerator),
    ] {
        names(without, "", &changes);
        let with = |more: Value| [&changes[..], &[more]].concat();
        let full =
            "cores: 100 % of this machine's cores were busy, our threads waited 79 % of the time";
        names(
            Cause::Cores,
            full,
            &with(json!({"evidence": {"node": crowded(4_000)}})),
        );
        // NIC threads share one core while others are idle.
        let shared = "our NIC threads waited for a core 91 % of the run";
        names(
            Cause::Cores,
            shared,
            &with(json!({"evidence": {"node": crowded(1_000)}})),
        );
        // Threads of an accelerator on another machine.
        let theirs = json!({"accelerators": [{"used": crowded(4_000)}]});
        names(Cause::Cores, "the cores of acc's machine", &with(theirs));
    }
}

#[test]
fn a_standstill_of_the_frontend_is_named_where_it_matters() {
    let stood = |s: f64| json!({"evidence": {"stood_still_s": s}});
    let words = "this frontend stood still for 1.00 s of 10.0 s";
    names(Cause::Standstill, words, &[missed(), stood(1.0)]);
    names(Cause::Standstill, "10.0 s", &[stood(1.0)]);
    not(Cause::Standstill, &[missed(), stood(0.04)]);
    not(Cause::Standstill, &[stood(0.4)]);
    // Nothing bounds a latency in Offline.
    let offline = scenario("Offline", 10_000, CALM);
    not(Cause::Standstill, &[offline.clone(), stood(0.4)]);
    names(Cause::Standstill, words, &[offline, stood(1.0)]);
}

#[test]
fn an_accelerator_that_was_away_is_named_before_all_else() {
    let silent = |ms: u64| json!({"connections": [{"silent_ms": ms}]});
    names(
        Cause::Accelerator,
        "acc gave no sign of life for 1.20 s of 10.0 s",
        &[silent(1_200)],
    );
    names(None, "nothing: ", &[silent(300)]);
    let lost = [
        missed(),
        engine(64, 1, 0.97, 3),
        json!({"losses": [{"why": "reset"}]}),
    ];
    let findings = judge(&run(&lost)).findings;
    let causes: Vec<_> = findings.iter().map(|f| f.cause).collect();
    assert_eq!(causes, [Cause::Accelerator, Cause::EngineThreads]);
}

#[test]
fn a_loss_is_advised_on_by_how_it_was_found_out_and_whether_it_is_over() {
    let killed = "its program ended or was killed; see its log";
    let log = "look at its log and its machine";
    for (why, silent_on, advice, when_back) in [
        ("silent", json!("control"), "heartbeat_timeout_ms", log),
        ("silent", json!("data"), "echo_timeout_ms", log),
        (killed, json!(null), "start it again", log),
        ("reset", json!(null), log, log),
    ] {
        let mut loss = json!({"node": "acc", "whole": true, "why": why, "silent_on": silent_on});
        let words = format!("acc lost before the run's first query: {why}");
        names(Cause::Accelerator, &words, &[json!({"losses": [loss]})]);
        names(Cause::Accelerator, advice, &[json!({"losses": [loss]})]);
        let away = json!({"node": "acc-b", "whole": true});
        merge(&mut loss, &json!({"back": true, "back_s": 4.8}));
        names(Cause::Accelerator, when_back, &[json!({"losses": [loss]})]);
        let changes = [json!({"losses": [loss]})];
        names(Cause::Accelerator, "back 4.8 s into", &changes);
        // A loss that has not come back is named first.
        let words = "2 losses, one of them: acc-b";
        let changes = [json!({"losses": [loss, away]})];
        names(Cause::Accelerator, words, &changes);
    }
}

proptest! {
    /// Any peer values give one line, each cause at most once, and no overflow.
    #[test]
    fn any_record_is_judged_in_one_line(
        name in prop::sample::select(vec!["Server", "Offline", "SingleStream", ""]),
        n in prop::array::uniform16(prop_oneof![Just(0u64), 1u64..10_000_000, any::<u64>()]),
        means in prop::array::uniform5(prop_oneof![Just(0.0), 0.0f64..1e9]),
        seconds in prop_oneof![Just(0.0), 0.0f64..1e5],
    ) {
        let accelerator = json!({"used": {
            "engine": {"max_batch": n[1], "workers": n[2] as u32, "busy_us": n[3], "batches": n[4],
                "samples": n[5]},
            "nics": {"sleeps": n[6]}, "machine_busy_ticks": n[14],
            "threads": [{"ran_us": n[7]}, {"waited_us": n[7]}],
        }});
        let connection = json!({"name": "acc/0", "slots": n[8], "silent_ms": n[9], "path": {
            "looks": n[10], "looked_us": n[11], "busy_us": n[12], "rtt_us": n[13],
        }});
        let limits = judge(&run(&[scenario(name, n[0], means), json!({
            "duration_s": seconds,
            "accelerators": [accelerator, accelerator], "connections": [connection, connection],
            "evidence": {"node": {"threads": [{"waited_us": n[15]}]}},
            "loadgen": {"scheduled_per_s": n[15], "limits": [{"limit": means[0]}]},
        })]));
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
