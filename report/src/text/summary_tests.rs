use proptest::prelude::*;
use qdl::{
    counters::{Histograms, SampleTimes, Throughput},
    testkit::assert_has,
};
use record::{
    Accuracy, BatchSizes, CarriedPayload, Content, GivenValue, LOOPBACK_NOTE, LossRecord,
    LostSession, RunExit, Stage, Verified, WarmUpRecord,
};
use serde_json::json;

use super::*;
use crate::causes::judge;

fn example() -> Summary {
    let mut histograms = Histograms::new();
    for i in 0..30_000u64 {
        let posted_ns = i * 100_000 + 1_200 + i % 50;
        let seen_ns = posted_ns + 600_000 + 150_000 + i % 97 * 1000;
        histograms.record(&SampleTimes {
            issued_ns: i * 100_000,
            posted_ns,
            seen_ns,
            completed_ns: seen_ns + 2_500,
            queue_us: 200,
            compute_us: 400,
            bytes_out: 4_608,
            bytes_in: 16,
            ..SampleTimes::default()
        });
    }
    let mut throughput = Throughput::new(0);
    for (s, completed) in [8_500, 18_500, 28_450, 30_000].into_iter().enumerate() {
        throughput.sample(
            ((s as u64 + 1) * 1_000_000_000).min(3_155_000_000),
            completed,
        );
    }
    let connection = |name: &str| {
        json!({
            "name": name, "samples": 15_000, "posted": 15_000, "slots": 256, "allowed": 96,
            "in_flight_max": 64, "wakeups": 5_000, "blocked": 2, "warmed": 20, "cold_us": 812,
            "warm_us": 41,
            "tx": {"writes": 15_020, "syscalls": 7_500, "partial": 3},
            "rx": {"writes": 15_020, "syscalls": 3_750, "copies": 15_000, "copied_bytes": 240_000},
        })
    };
    let run = json!({
        "scenario": "Server", "fabric": "tcp", "fabric_notes": [LOOPBACK_NOTE], "valid": true,
        "goodput": {"samples": 29_700, "share": 0.99, "per_s": 9_414.3},
        "samples": 30_000, "per_s": 9_509.4, "target_qps": 10_000.0, "duration_s": 3.155,
        "stages": histograms.table(), "throughput": throughput.report(),
        "carried": CarriedPayload::new(30_000 * 4_608, 30_000 * 16, 3.155),
        "loadgen": {"scheduled_per_s": 9_512.0, "completed_per_s": 9_509.4, "limits": [
            {"name": "p99 latency", "was": 862.0, "limit": 10_000.0, "at_most": true, "met": true},
        ]},
        "accelerators": [{
            "node": "acc-01", "engine": "digest", "connections": 2, "samples": 30_040,
            "arrived": 30_040,
            "batches": {"1": 1_040, "2": 1_500, "4": 2_000, "8": 1_000, "10": 1_000},
        }],
        "connections": [connection("acc-01/0"), connection("acc-01/1")],
        "warm_up": {"samples": 40, "took_ms": 3.4, "sizes": 3, "of_sizes": 3, "at_once": 4},
        "backlog_max": 12, "backlogged": 40, "handed_over": 7, "nic_threads": 2, "sleeps": 11_000,
        "woken": 7,
        "ledger": {"issued": 30_000, "answered": 30_000, "posted": 30_000, "responses": 30_000,
                   "warmed": 40},
        "exit": {"code": 0, "reason": "LoadGen says valid"},
    });
    let mut run: RunRecord = serde_json::from_value(run).expect("a record");
    assert!(run.close(), "{:?}", run.mismatches);
    run.limits = judge(&run);
    Summary {
        node: "frontend-01".to_owned(),
        name: "Network SUT: acc-01 (digest)".to_owned(),
        name_round_trip_us: Some(412.3),
        run,
    }
}

#[test]
fn accuracy_is_shown_for_each_accelerator() {
    let mut summary = example();
    let accelerator = |node: &str, accuracy| AcceleratorRecord {
        node: node.to_owned(),
        accuracy,
        ..AcceleratorRecord::default()
    };
    let run = &mut summary.run;
    run.labelled = Some(Accuracy::new(1_500, 2_000, 0));
    run.system.accelerators = vec![
        accelerator("acc-01", Some(Accuracy::new(1_000, 1_000, 0))),
        accelerator("acc-02", Some(Accuracy::new(500, 1_000, 0))),
        accelerator("acc-03", None),
    ];
    run.accuracy_note = Some("acc-02 differs".to_owned());
    let text = super::summary(&summary, false);
    let expected = "
accuracy     75.000 %: 1,500 of 2,000
             acc-01 100.000 %: 1,000 of 1,000
             acc-02 50.000 %: 500 of 1,000
             acc-03 answered none of them
             acc-02 differs
";
    assert!(text.contains(expected), "{text}");
    let run = &mut summary.run;
    run.labelled = None;
    run.accuracy_note = Some("no figure: nobody knows".to_owned());
    let text = super::summary(&summary, false);
    let expected = "\naccuracy     no figure: nobody knows\ncarried ";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_valid_run_looks_like_this() {
    let expected = "\
VALID        Server, performance, from node frontend-01
SUT          Network SUT: acc-01 (digest)
name         asked of every node in 412 us
fabric       tcp, loopback (not a permitted fabric)
samples      30,000 in 3.15 s: 9,509/s (target 10,000/s)
carried      351 Mbit/s out (138 MB), 1.22 Mbit/s back (480 kB)

LoadGen      9,512/s scheduled, 9,509/s completed (100 %), no errors, no warnings

limit        asked for        was     of it        set by
p99 latency  at most 10.0 ms  862 us  8.62 %  met

goodput      29,700 samples (99.0 %) within LoadGen's limit: 9,414/s

stage                      p50      p90      p99    p99.9      max     mean  samples
issue -> post          1.22 us  1.24 us  1.25 us  1.25 us  1.25 us  1.23 us   30,000
network, out and back   198 us   237 us   246 us   246 us   246 us   198 us   30,000
batch wait              200 us   200 us   200 us   200 us   200 us   200 us   30,000
inference               400 us   400 us   400 us   400 us   400 us   400 us   30,000
completion             2.50 us  2.50 us  2.50 us  2.50 us  2.50 us  2.50 us   30,000
round trip              798 us   837 us   846 us   846 us   846 us   798 us   30,000
total                   802 us   841 us   850 us   850 us   850 us   802 us   30,000
Means add up: stages up to completion make the total. Percentiles do not. Network is the round trip
without the time spent on the accelerator: out and back together.

throughput   ▇██ (one bar per second)
             min 8,500/s, mean 9,509/s, steady 9,975/s, first second 0.85 of steady

accelerator  engine  connections  samples  batches  mean  max  sizes 1,2,4,8..
acc-01       digest            2   30,040    6,540  4.59   10             ▅▆██
The warm-up (40 samples) counts here, and in connections' sends to copied; not in their samples.

connection  samples  in flight   sends  reads   wakes  partial  blocked  copies  copied
acc-01/0     15,000         64   7,500  3,750   5,000        3        2  15,000  240 kB
acc-01/1     15,000         64   7,500  3,750   5,000        3        2  15,000  240 kB
all 2        30,000             15,000  7,500  10,000        6        4  30,000  480 kB

warm-up      40 samples in 3.40 ms before the clock
             network time, cold -> warm: acc-01/0 812 us -> 41.0 us, acc-01/1 812 us -> 41.0 us
copies       0 staged (0 B), 30,000 by the fabric (480 kB)
backlog      40 samples found no free slot, at most 12 at once; 7 had one and were left to a NIC
             thread
slots        512 on 2 connections, 192 of them in use; at most 64 in flight on one
threads      2 NIC threads slept 11,000 times; connections woke them 10,000 times, other threads 7
losses       none
reconciled   issued = completed = recorded; posted, arrived and answered agree
exit         0, LoadGen says valid
limited by   nothing: 9,509/s came back of 9,512/s scheduled, p99 latency 862 us of the 10.0 ms
             allowed
";
    assert_eq!(summary(&example(), false), expected);
}

#[test]
fn who_was_lost_and_what_was_verified_is_said_in_every_mode() {
    for mode in [Mode::Accuracy, Mode::Performance] {
        let mut s = example();
        s.run.mode = mode;
        s.run.verified = Some(Verified {
            compared: 30_000,
            ..Verified::default()
        });
        s.run.system.accelerators[0].lost = Some("it was killed".to_owned());
        s.run.system.sleeps = 1;
        let text = summary(&s, false);
        for line in [
            "             lost when the run ended: acc-01",
            "verified     30,000 responses compared, each its own sample's",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
        }
        assert_has(&text, &["NIC threads slept 1 time; connections"]);
    }
    assert!(!summary(&example(), false).contains("verified"));
}

#[test]
fn after_a_loss_samples_are_posted_again_and_the_line_says_so() {
    let mut s = example();
    s.run.system.ledger.lost_connections = 1;
    let line = |s: &Summary| {
        let text = summary(s, false);
        let line = text.lines().find(|l| l.starts_with("reconciled"));
        line.map(str::to_owned).unwrap_or_default()
    };
    s.run.mismatches.clear();
    assert!(line(&s).contains("recorded = posted;"), "{}", line(&s));
    s.run.system.ledger.redispatched = 7;
    let said = line(&s);
    assert!(said.contains("recorded, 7 samples posted again;"), "{said}");
}

#[test]
fn in_one_process_nothing_is_carried() {
    let mut s = example();
    s.run.fabric = "local".to_owned();
    let text = summary(&s, false);
    assert!(
        text.contains("\npayload ") && !text.contains("\ncarried "),
        "{text}"
    );
}

#[test]
fn a_default_rate_is_no_target() {
    let mut s = example();
    let setting = |from: &str| SettingRecord {
        name: "server_target_qps".to_owned(),
        given: GivenValue {
            value: "1".to_owned(),
            from: from.to_owned(),
        },
        ..SettingRecord::default()
    };
    for (from, shown) in [("--target-qps", true), (DEFAULT, false)] {
        s.run.settings = vec![setting(from)];
        assert_eq!(summary(&s, false).contains("(target "), shown, "{from}");
    }
}

#[test]
fn a_run_that_went_wrong_says_where() {
    let mut s = example();
    s.run.valid = Some(false);
    s.run.reasons = vec!["Min queries not satisfied; see the detail log".to_owned()];
    s.run.system.accelerators[0].samples = None;
    s.run.system.accelerators[0].batches = BatchSizes::default();
    s.run.system.accelerators[0].lost_sessions = vec![LostSession {
        as_of_s: Some(2.26),
        samples: 20_000,
        batches: 400,
        ..LostSession::default()
    }];
    s.run.system.connections[0].lost =
        vec!["readv: Connection reset by peer (errno 104)".to_owned()];
    s.run.system.losses = vec![LossRecord {
        node: "acc-01".to_owned(),
        whole: true,
        at_s: Some(2.5),
        why: "it was killed".to_owned(),
        again: 7,
        ..LossRecord::default()
    }];
    s.run.system.warm_up = s.run.system.warm_up.map(|w| WarmUpRecord { sizes: 1, ..w });
    s.run.system.connections[1].warm_us = None;
    s.run.system.ledger.lost_connections = 1;
    s.run.system.ledger.issued += 7;
    s.run.exit = RunExit {
        code: 3,
        reason: "acc-01 was lost".to_owned(),
    };
    s.run.close();
    s.run.limits = judge(&s.run);
    let text = summary(&s, false);
    for line in [
        "INVALID      Server, performance, from node frontend-01",
        "             with one accelerator lost at 2.5 s",
        "             Min queries not satisfied; see the detail log",
        "             acc-01 lost 2.5 s into the run: it was killed; 7 samples were in flight",
        "acc-01       digest            2   20,000      400  50.0    -      as of 2.3 s",
        "             1 of 3 sizes: warm_up.budget_ms was too short for the rest",
        "             network time, cold -> warm: acc-01/0 812 us -> 41.0 us, acc-01/1 812 us -> -",
        "MISMATCH     samples issued is 30007, but samples completed is 30000",
        "exit         3, acc-01 was lost",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "no line {line:?} in\n{text}"
        );
    }
    assert!(!text.contains("reconciled"), "{text}");
}

#[test]
fn colour_changes_nothing_but_colour() {
    let s = example();
    let colored = summary(&s, true);
    assert!(colored.starts_with("\x1b[1;32mVALID"), "{colored}");
    let mut plain = String::new();
    for (i, part) in colored.split('\x1b').enumerate() {
        match part.split_once('m') {
            Some((_, rest)) if i > 0 => plain.push_str(rest),
            _ => plain.push_str(part),
        }
    }
    assert_eq!(plain, summary(&s, false));
}

#[test]
fn json_has_the_keys_of_a_run_and_reads_back() {
    let s = example();
    let json = serde_json::to_value(&s.run).expect("JSON");
    for (key, value) in [
        ("scenario", json!("Server")),
        ("mode", json!("performance")),
        ("fabric", json!("tcp")),
        ("valid", json!(true)),
        ("samples", json!(30_000)),
        ("per_s", json!(9_509.4)),
        ("target_qps", json!(10_000.0)),
    ] {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["stages"]["network"]["p50_us"], 198.015);
    for stage in &Stage::ALL[1..] {
        for key in [
            "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "mean_us", "count",
        ] {
            assert!(
                json["stages"][stage.key()][key].is_number(),
                "{stage:?} {key}"
            );
        }
    }
    let text = serde_json::to_string(&s).expect("JSON");
    let back: Summary = serde_json::from_str(&text).expect("reads back");
    assert_eq!(back, s);
    // The system record's keys appear among the run's keys.
    let keys = [
        "carried",
        "accelerators",
        "connections_total",
        "rails",
        "warm_up",
        "ledger",
        "mismatches",
    ];
    let at = keys.map(|key| text.find(&format!("\"{key}\":")).expect(key));
    assert!(at.is_sorted(), "{keys:?}: {at:?}");
    assert!(!text.contains("\"system\"") && !text.contains("\"notes\""));
    // The run also parses from a whole summary, which has further keys of the node.
    let run: RunRecord = serde_json::from_str(&text).expect("reads back");
    assert_eq!(run, s.run);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_line_is_too_long(
        name in ".{0,300}",
        node in "[a-zé0-9-]{1,80}",
        connections in 0usize..40,
        samples in 0u64..1 << 40,
        target in 0.0f64..1e9,
    ) {
        let mut s = example();
        s.name = name;
        s.node = node.clone();
        s.run.target_qps = Some(target);
        s.run.system.accelerators[0].node = node.clone();
        let mut one = s.run.system.connections[0].clone();
        one.name = format!("{node}/0");
        one.tx.copied_bytes = samples;
        s.run.system.connections = vec![one; connections];
        s.run.samples = samples;
        s.run.system.ledger.issued = samples;
        s.run.close();
        s.run.limits = judge(&s.run);
        for line in summary(&s, false).lines() {
            prop_assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}

#[test]
fn what_engines_run_is_one_line_or_one_for_each() {
    let mut s = example();
    let file = |digit: &str| {
        Some(Content::File {
            name: "digits.onnx".to_owned(),
            sha256: digit.repeat(64),
        })
    };
    let mut other = s.run.system.accelerators[0].clone();
    other.node = "acc-02".to_owned();
    s.run.system.accelerators.push(other);
    assert!(!summary(&s, false).contains("\nmodel"));
    for (second, lines) in [("a", 1), ("b", 2)] {
        s.run.system.accelerators[0].content = file("a");
        s.run.system.accelerators[1].content = file(second);
        let text = summary(&s, false);
        let found = text.lines().filter(|l| l.contains("digits.onnx, SHA-256"));
        assert_eq!(found.count(), lines, "{text}");
        assert_eq!(text.contains("acc-02: digits.onnx"), lines == 2);
    }
}
