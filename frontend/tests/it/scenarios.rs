//! Every scenario and mode of LoadGen over the network. LoadGen judges each run, and the frontend
//! compares each response with its sample. The stages add up to LoadGen's latency, and the timeline
//! (`timeline.json`) to the run.

use crate::common::{TestFolder, two_of_digests, words};
use record::timeline::{NodeSide, Timeline};
use serde_json::Value;

/// The bound is far from what these machines need: no test is about time.
const SERVER: &str =
    "--scenario server --target-qps 3000 --duration-s 0.8 --set target_latency=3000";

fn logged(place: &TestFolder, out: &str, key: &str) -> f64 {
    let text = place.log(out, "detail");
    let at = text.find(&format!("\"key\": \"{key}\"")).expect(key);
    let (_, rest) = text[at..].split_once("\"value\": ").expect("a value");
    let number = rest
        .split([',', '}'])
        .next()
        .and_then(|n| n.trim().parse().ok());
    number.expect("a number")
}

/// The stages, with the one before the issue, are LoadGen's mean latency of samples.
fn check_stages(place: &TestFolder, out: &str, s: &Value) {
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
    let theirs = logged(place, out, "result_mean_latency_ns") / 1000.0;
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
    let latencies = t.ticks.iter().flat_map(|t| &t.latency);
    assert_eq!(latencies.map(|(_, n)| n).sum::<u64>(), samples);
    assert_eq!(t.tick_ms, 100);
    let seconds = s["duration_s"].as_f64().expect("a duration");
    let ticks = (seconds * 10.0).ceil();
    assert!(
        (t.ticks.len() as f64 - ticks).abs() <= 1.0,
        "{} of {ticks}",
        t.ticks.len()
    );
    assert_eq!(t.ticks.last().map(|t| t.in_flight), Some(0));
    let connections = s["connections"].as_array().expect("connections");
    for (i, c) in connections.iter().enumerate() {
        let carried = |f: fn(&record::timeline::ConnectionTick) -> u64| {
            t.ticks.iter().map(|t| f(&t.connections[i])).sum::<u64>()
        };
        assert_eq!(Some(carried(|c| c.samples)), c["samples"].as_u64(), "{c:#}");
        let bytes = (carried(|c| c.bytes_out), carried(|c| c.bytes_in));
        assert!(c["samples"] == 0 || (bytes.0 > 0 && bytes.1 > 0), "{c:#}");
        // NIC threads read the path ten times a second, so the samples of the last ticks may come
        // after the last reading.
        let has_rtt = t.ticks.iter().any(|t| t.connections[i].rtt_us.is_some());
        let mut early = t.ticks.iter().rev().skip(3);
        let is_used_early = early.any(|t| t.connections[i].samples > 0);
        assert!(has_rtt || !is_used_early || seconds < 0.5, "{c:#}");
    }
    let connections = t.ticks.iter().flat_map(|t| &t.connections);
    let out: u64 = connections.map(|c| c.bytes_out).sum();
    assert_eq!(Some(out), s["carried"]["bytes_out"].as_u64());
}

/// The slowest samples, whose stages add up.
fn check_slowest(s: &Value, t: &Timeline) {
    let samples = s["samples"].as_u64().expect("samples");
    assert_eq!(t.slowest.len() as u64, samples.div_ceil(1000).min(256));
    let max_us = s["stages"]["total"]["max_us"].as_f64().expect("a maximum");
    let slowest_us = t.slowest[0].total_ns as f64 / 1000.0;
    assert!((slowest_us - max_us).abs() < 0.01, "{slowest_us}, {max_us}");
    for s in &t.slowest {
        let sent = s.failed_attempts_ns + s.issue_to_post_ns + s.network_ns;
        let parts = sent + s.queue_ns + s.compute_ns + s.completion_ns;
        // An accelerator's time that is longer than the round trip leaves no network time.
        let is_cut = s.network_ns == 0 && parts >= s.total_ns;
        assert!(is_cut || parts.abs_diff(s.total_ns) <= 2_000, "{s:?}");
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

/// Each performance run is VALID, with the given number of samples per query. Accuracy runs send
/// each sample once.
#[test]
fn every_scenario_is_valid_and_every_answer_its_own_samples() {
    let place = TestFolder::new();
    let (config, _running) = two_of_digests(&place, "", "");
    let several = format!("{SERVER} --set server_num_issue_query_threads=3");
    let coalesced =
        format!("{SERVER} --set server_num_issue_query_threads=2 --set coalesce_queries=1");
    for (arguments, query) in [
        (
            "--scenario single-stream --target-qps 100000 --duration-s 0.8",
            1,
        ),
        // Enough queries for early stopping, whatever the duration.
        (
            "--scenario multi-stream --target-qps 30000 --duration-s 0.8 \
             --set samples_per_query=13 --set min_query_count=700",
            13,
        ),
        (SERVER, 1),
        (&several, 1),
        (&coalesced, 1),
        (
            "--scenario offline --set min_duration=0 --samples 20000",
            20_000,
        ),
    ] {
        let ended = place.run(&config, "out", &words(arguments)).with_code(0);
        let s = place.summary("out");
        assert_eq!(s["valid"], true, "{arguments}: {}", ended.stdout);
        assert_eq!(s["mismatches"].as_array().map(Vec::len), Some(0));
        let samples = s["samples"].as_u64().expect("samples");
        assert!(samples.is_multiple_of(query), "{arguments}: {samples}");
        check_stages(&place, "out", &s);
        let t = place.timeline("out");
        check_ticks(&s, &t);
        check_slowest(&s, &t);
        check_nodes(&s, &t);
        let kinds: Vec<_> = t.events.iter().map(|e| e.kind.as_str()).collect();
        assert_eq!(kinds, ["warm_up", "phase"], "{:?}", t.events);
        assert!(t.events[0].at_s < 0.0 && t.events[1].at_s < 0.5);
    }
    let mut first = None;
    for scenario in ["single-stream", "multi-stream", "server", "offline"] {
        let mut arguments = vec!["--scenario", scenario, "--mode", "accuracy"];
        if scenario == "server" {
            arguments.extend(["--target-qps", "5000"]);
        }
        place.run(&config, scenario, &arguments).with_code(0);
        let mut answers = place.answers(scenario);
        // MultiStream fills its last query with repeated samples.
        answers.dedup();
        assert_eq!(answers.len(), 500, "{scenario}");
        assert_eq!(first.get_or_insert(answers.clone()), &answers, "{scenario}");
    }
}
