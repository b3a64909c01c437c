//! The timeline of real runs (`timeline.json`). In every scenario the stages add up to LoadGen's
//! latency.

mod common;

use common::{Running, TwoOfDigests, words};
use record::timeline::{NodeSide, Timeline};
use serde_json::Value;

fn ran(rig: &TwoOfDigests, out: &str, arguments: &[&str]) -> (Value, Timeline) {
    let ended = rig.place.run(&rig.config, out, arguments);
    // On a busy machine the run may be INVALID, which does not matter here.
    assert!(
        ended.code.is_some_and(|code| code <= 1),
        "{arguments:?}: {}{}",
        ended.stdout,
        ended.stderr
    );
    let summary = rig.place.summary(out);
    let text = std::fs::read_to_string(rig.place.path(out).join("timeline.json"));
    let timeline = serde_json::from_str(&text.expect("a timeline")).expect("a timeline's JSON");
    (summary, timeline)
}

const SCENARIOS: [(&str, &[&str]); 4] = [
    (
        "server",
        &["--target-qps", "1500", "--set", "target_latency=3000"],
    ),
    ("single-stream", &["--target-qps", "20000"]),
    (
        "multi-stream",
        &["--target-qps", "4000", "--set", "samples_per_query=5"],
    ),
    ("offline", &["--target-qps", "4000"]),
];

/// The number of LoadGen's detail log.
fn logged(rig: &TwoOfDigests, out: &str, key: &str) -> f64 {
    let path = rig.place.path(out).join("mlperf_log_detail.txt");
    let text = std::fs::read_to_string(path).expect("a log");
    let at = text.find(&format!("\"key\": \"{key}\"")).expect(key);
    let (_, rest) = text[at..].split_once("\"value\": ").expect("a value");
    rest.split([',', '}'])
        .next()
        .and_then(|n| n.trim().parse().ok())
        .expect("a number")
}

/// The stages, with the one before the issue, are LoadGen's mean latency of samples.
fn check_stages(rig: &TwoOfDigests, out: &str, s: &Value) {
    let mean = |stage: &str| s["stages"][stage]["mean_us"].as_f64().expect("a mean");
    let stages = ["issue_to_post", "network", "queue", "compute", "completion"];
    let parts: f64 = stages.iter().map(|stage| mean(stage)).sum();
    let own = mean("total");
    // If the accelerator's time exceeds the round trip, the sample's network time is 0.
    let uneven = s["uneven"].as_u64().unwrap_or(0);
    assert!(
        parts >= own - 0.01 && (uneven > 0 || parts <= own + 0.01),
        "{out}: parts {parts}, total {own} us; {uneven} samples that do not add up"
    );
    let before = &s["loadgen"]["scheduled_to_issue"];
    let of = |key: &str| {
        before[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key} of {before}"))
    };
    let theirs = logged(rig, out, "result_mean_latency_ns") / 1000.0;
    let sum = of("mean_us") + own - of("told_us");
    assert!(
        (sum - theirs).abs() <= theirs * 0.01,
        "{out}: {sum} of {theirs} us"
    );
    // Directly measured times stay within their bounds. The frontend times one call in a few, so on
    // a busy machine their mean may far exceed the mean of all; it never exceeds the longest call.
    let longest = s["stages"]["completion"]["max_us"].as_f64().expect("one");
    assert!(
        of("mean_us") >= 0.0 && of("told_us") <= longest + 1.0,
        "{before}"
    );
    assert!(
        of("p99_at_most_us") >= of("mean_us") * 0.2 || of("mean_us") < 1.0,
        "{before}"
    );
    assert_eq!(before["count"], s["samples"]);
}

fn check_ticks(s: &Value, t: &Timeline) {
    let samples = s["samples"].as_u64().expect("samples");
    assert_eq!(t.ticks.iter().map(|t| t.completed).sum::<u64>(), samples);
    assert_eq!(t.ticks.iter().map(|t| t.issued).sum::<u64>(), samples);
    let counted = t
        .ticks
        .iter()
        .flat_map(|t| &t.latency)
        .map(|(_, n)| n)
        .sum::<u64>();
    assert_eq!(counted, samples);
    assert_eq!(t.tick_ms, 100);
    let seconds = s["duration_s"].as_f64().expect("a duration");
    let ticks = (seconds * 10.0).ceil();
    assert!(
        (t.ticks.len() as f64 - ticks).abs() <= 1.0,
        "{} of {ticks}",
        t.ticks.len()
    );
    assert_eq!(t.ticks.last().map(|t| t.in_flight), Some(0));
    for (i, c) in s["connections"]
        .as_array()
        .expect("connections")
        .iter()
        .enumerate()
    {
        let carried = |f: fn(&record::timeline::ConnectionTick) -> u64| {
            t.ticks.iter().map(|t| f(&t.connections[i])).sum::<u64>()
        };
        assert_eq!(Some(carried(|c| c.samples)), c["samples"].as_u64(), "{c:#}");
        let bytes = (carried(|c| c.bytes_out), carried(|c| c.bytes_in));
        assert!(c["samples"] == 0 || (bytes.0 > 0 && bytes.1 > 0), "{c:#}");
        // Holds even if few samples are in flight at a tick.
        let told = t.ticks.iter().any(|t| t.connections[i].rtt_us.is_some());
        assert!(c["samples"] == 0 || told || seconds < 0.5, "{c:#}");
    }
    let out: u64 = t
        .ticks
        .iter()
        .flat_map(|t| &t.connections)
        .map(|c| c.bytes_out)
        .sum();
    assert_eq!(Some(out), s["carried"]["bytes_out"].as_u64());
}

fn check_slowest(s: &Value, t: &Timeline) {
    let samples = s["samples"].as_u64().expect("samples");
    assert_eq!(t.slowest.len() as u64, samples.div_ceil(1000).min(256));
    let max_us = s["stages"]["total"]["max_us"].as_f64().expect("a maximum");
    let slowest = t.slowest.first().expect("one");
    assert!(
        (slowest.total_ns as f64 / 1000.0 - max_us).abs() < 0.01,
        "{slowest:?}, {max_us}"
    );
    let connections = s["connections"].as_array().map_or(0, Vec::len);
    for s in &t.slowest {
        let parts =
            s.failed_ns + s.post_ns + s.network_ns + s.wait_ns + s.inference_ns + s.completion_ns;
        // An accelerator's time that is longer than the round trip leaves no network time.
        let is_cut = s.network_ns == 0 && parts >= s.total_ns;
        assert!(is_cut || parts.abs_diff(s.total_ns) <= 2_000, "{s:?}");
        assert!(
            (s.connection as usize) < connections && s.at_s > 0.0,
            "{s:?}"
        );
    }
}

fn check_nodes(s: &Value, t: &Timeline) {
    let named = |n: &NodeSide| n.node.clone();
    let accelerators = s["accelerators"].as_array().expect("accelerators");
    assert_eq!(
        t.nodes.len(),
        1 + accelerators.len(),
        "{:?}",
        t.nodes.iter().map(named)
    );
    assert_eq!(t.nodes[0].node, s["node"].as_str().expect("a name"));
    assert!(t.nodes[0].engines.is_empty());
    for (node, a) in t.nodes[1..].iter().zip(accelerators) {
        assert_eq!(a["node"], node.node);
        // The ticks also count the warm-up samples.
        let arrived: u64 = node.engines.iter().map(|e| e.arrived).sum();
        assert!(Some(arrived) >= a["samples"].as_u64(), "{arrived}: {a:#}");
        let answered: u64 = node.engines.iter().map(|e| e.answered).sum();
        assert!(
            answered.abs_diff(arrived) <= arrived / 2,
            "{answered} of {arrived}"
        );
        // The accelerator's first sample precedes the run by at most 30 s.
        assert!((-30.0..1.0).contains(&node.begins_s), "{}", node.begins_s);
        assert!(
            node.threads
                .iter()
                .any(|t| t.on_core.iter().any(|p| *p > 0))
        );
    }
}

#[test]
fn each_scenario_adds_up_and_is_told_tick_by_tick() {
    let rig = TwoOfDigests::start();
    for (scenario, more) in SCENARIOS {
        let mut arguments = vec!["--scenario", scenario, "--duration-s", "0.8"];
        arguments.extend(more);
        let (s, t) = ran(&rig, scenario, &arguments);
        check_stages(&rig, scenario, &s);
        check_ticks(&s, &t);
        check_slowest(&s, &t);
        check_nodes(&s, &t);
        let kinds: Vec<_> = t.events.iter().map(|e| e.kind.as_str()).collect();
        assert_eq!(kinds, ["warm_up", "phase"], "{:?}", t.events);
        assert!(t.events[0].at_s < 0.0 && t.events[1].at_s < 0.5);
    }
    drop(rig.accelerators);
}

/// The time before the issue, computed from means, agrees with LoadGen's trace of each sample.
#[test]
fn what_lies_before_the_issue_is_what_loadgens_trace_says() {
    let rig = TwoOfDigests::start();
    let arguments = words(
        "--scenario server --target-qps 800 --duration-s 0.8 --set target_latency=3000 \
         --set enable_trace=1",
    );
    let (s, _) = ran(&rig, "out", &arguments);
    let path = rig.place.path("out").join("mlperf_log_trace.json");
    let text = std::fs::read_to_string(path).expect("a trace");
    let delays: Vec<f64> = text
        .split("\"issue_delay\"")
        .skip(1)
        .filter_map(|rest| {
            let number = rest.trim_start_matches([':', ' ']);
            number.split([',', '}']).next()?.trim().parse().ok()
        })
        .collect();
    assert!(!delays.is_empty(), "{}", &text[..text.len().min(3_000)]);
    let theirs = delays.iter().sum::<f64>() / delays.len() as f64 / 1000.0;
    let ours = s["loadgen"]["scheduled_to_issue"]["mean_us"]
        .as_f64()
        .expect("a mean");
    // LoadGen reads its clock before the call, the frontend at the start of the call; the time
    // between the two counts as the frontend's. The frontend times only some of LoadGen's calls.
    let mean = |stage: &str| s["stages"][stage]["mean_us"].as_f64().expect("a mean");
    let (total, call) = (mean("total"), mean("completion"));
    assert!(
        ours + call + 5.0 >= theirs && ours <= theirs + 0.1 * total + 200.0,
        "{ours} us worked out, {theirs} us in the trace, {total} us in all, {call} us completing"
    );
}

#[test]
fn a_killed_accelerator_tells_nothing_and_the_loss_is_told_with_its_time() {
    let mut rig = TwoOfDigests::start();
    let arguments =
        words("--scenario server --target-qps 400 --duration-s 5 --set target_latency=10000");
    let mut command = rig.place.frontend(&rig.config, "out", &arguments);
    command.arg("-v");
    let mut frontend = Running::start(&rig.place, "frontend", command);
    frontend.wait_until_it_says("warmed");
    std::thread::sleep(std::time::Duration::from_millis(2_200));
    let gone = rig.accelerators.pop().expect("two");
    gone.signal(libc::SIGKILL);
    let ended = frontend.end();
    assert!(
        ended.code.is_some_and(|c| c <= 1),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let text = std::fs::read_to_string(rig.place.path("out").join("timeline.json"));
    let t: Timeline = serde_json::from_str(&text.expect("a timeline")).expect("JSON");
    let names: Vec<_> = t.nodes.iter().map(|n| n.node.as_str()).collect();
    assert_eq!((names.len(), names[1]), (2, "acc-a"));
    let lost = t.events.iter().find(|e| e.kind == "lost").expect("a loss");
    assert!(
        lost.text.starts_with("acc-b") && lost.at_s > 0.0,
        "{lost:?}"
    );
    assert!(t.events.iter().all(|e| e.kind != "back"));
    check_slowest(&rig.place.summary("out"), &t);
    drop(gone);
}
