//! A run that never was, of any length: everything that a page can draw is in it. And the parts of
//! a page.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use qdl::counters::{Histograms, SampleTimes};
use record::{
    RunFolder, Summary,
    timeline::{ConnectionTick, SlowSample, Tick, Timeline, latency_bucket},
};
use serde_json::{Value, json};

/// Mostly about `us`, now and then many times that.
fn time_ns(rng: &mut Rng, us: f64) -> u64 {
    let tail = 1.0 / (1.0 - 0.999 * rng.f64());
    (us * 1000.0 * (0.6 + 0.4 * rng.f64()) * tail.powf(0.45)) as u64
}

pub struct RunShape {
    pub name: &'static str,
    pub ticks: usize,
    pub connections: usize,
    pub samples: usize,
    /// The network's time, in microseconds.
    pub network_us: f64,
    pub seed: u64,
}

impl Default for RunShape {
    fn default() -> Self {
        RunShape {
            name: "a run that never was",
            ticks: 120,
            connections: 4,
            samples: 120,
            network_us: 90.0,
            seed: 7,
        }
    }
}

const TICK_MS: u64 = 100;

fn sample(rng: &mut Rng, made: &RunShape, slow: f64) -> SampleTimes {
    let post = time_ns(rng, 1.2);
    let network = time_ns(rng, made.network_us * slow);
    let [queue_us, compute_us] = [60.0, 35.0].map(|us| (time_ns(rng, us) / 1000) as u32);
    let seen = post + network + u64::from(queue_us + compute_us) * 1000;
    SampleTimes {
        posted_ns: post,
        seen_ns: seen,
        completed_ns: seen + time_ns(rng, 3.0),
        queue_us,
        compute_us,
        bytes_out: 1_000,
        bytes_in: 8,
        ..SampleTimes::default()
    }
}

fn slow_sample(t: &SampleTimes, at_s: f64, connection: u32) -> SlowSample {
    SlowSample {
        failed_attempts_ns: 0,
        prefill_ns: 0,
        at_s,
        total_ns: t.completed_ns,
        issue_to_post_ns: t.posted_ns,
        network_ns: t.seen_ns - t.posted_ns - u64::from(t.queue_us + t.compute_us) * 1000,
        queue_ns: u64::from(t.queue_us) * 1000,
        compute_ns: u64::from(t.compute_us) * 1000,
        completion_ns: t.completed_ns - t.seen_ns,
        connection,
    }
}

/// One tick; the third connection is congested in the middle of the run.
fn tick(
    rng: &mut Rng,
    made: &RunShape,
    at: usize,
    histograms: &mut Histograms,
    slowest: &mut Vec<SlowSample>,
) -> Tick {
    let middle = at * 3 > made.ticks && at * 3 < made.ticks * 2;
    let mut tick = Tick {
        issued: made.samples as u64,
        completed: made.samples as u64,
        in_flight: (rng.f64() * 40.0) as u64,
        connections: vec![ConnectionTick::default(); made.connections],
        ..Tick::default()
    };
    let mut buckets = std::collections::BTreeMap::new();
    for _ in 0..made.samples {
        let connection = (rng.f64() * made.connections as f64) as usize;
        let slow = if middle && connection == 2 { 9.0 } else { 1.0 };
        let times = sample(rng, made, slow);
        histograms.record(&times);
        let bucket = latency_bucket(times.completed_ns);
        *buckets.entry(bucket).or_insert(0) += 1;
        let c = &mut tick.connections[connection.min(made.connections - 1)];
        c.samples += 1;
        c.bytes_out += 1_000;
        c.bytes_in += 8;
        c.in_flight = 1 + (rng.f64() * 9.0) as u64;
        c.rtt_us = Some((40.0 * slow * (0.8 + 0.4 * rng.f64())) as u64);
        c.score = Some(if slow > 1.0 { 0.2 } else { 0.97 });
        c.retransmits += u64::from(slow > 1.0 && rng.f64() < 0.02);
        c.window_limited_us = if slow > 1.0 { 30_000 } else { 0 };
        let at_s = (at as f64 + rng.f64()) * TICK_MS as f64 / 1000.0;
        slowest.push(slow_sample(&times, at_s, connection as u32));
    }
    tick.latency = buckets.into_iter().collect();
    slowest.sort_by_key(|s| std::cmp::Reverse(s.total_ns));
    slowest.truncate(256.min(made.ticks * made.samples / 1000).max(8));
    tick
}

fn side(node: &str, made: &RunShape, threads: &[(&str, u16)], engines: &[Value]) -> Value {
    let thread = |(name, on_core): &(&str, u16)| {
        let (on_core, waited) = (vec![on_core; made.ticks], vec![50; made.ticks]);
        json!({"name": name, "on_core": on_core, "waited": waited})
    };
    let threads: Vec<_> = threads.iter().map(thread).collect();
    json!({"node": node, "tick_ms": TICK_MS, "begins_s": 0.02, "threads": threads,
           "engines": engines})
}

fn nodes_and_events(made: &RunShape) -> Timeline {
    let samples = made.samples;
    let engine = json!({"arrived": samples, "answered": samples, "computed_us": 60_000,
                        "copied_us": 8_000, "batches": [[1, 9], [4, 12], [16, 2]]});
    let own = [
        ("nic-0", 600),
        ("issue", 350),
        ("loadgen", 50),
        ("qdl-control", 10),
    ];
    let theirs = [("engine-0", 700), ("nic-0", 400), ("qdl-control", 10)];
    let end = made.ticks as f64 * TICK_MS as f64 / 1000.0;
    let event = |share: f64, kind: &str, text: &str| json!({"at_s": end * share, "kind": kind, "text": text});
    let rail = "acc-01 nics[0]-nics[2]";
    let timeline = json!({
        "tick_ms": TICK_MS,
        "events": [
            event(-0.03, "warm_up", "2,048 samples on 4 connections"),
            event(0.34, "rail", &format!("{rail}: in service -> congested")),
            event(0.345, "probe", rail),
            event(0.5, "lost", "acc-01/1 <lost> & gone: its program ended"),
            event(0.5, "sent_again", "37 samples of acc-01/1"),
            event(0.53, "back", "acc-01/1"),
            event(0.68, "rail", &format!("{rail}: congested -> in service")),
        ],
        "nodes": [
            side("front", made, &own, &[]),
            side("acc-01", made, &theirs, &vec![engine; made.ticks]),
        ],
    });
    serde_json::from_value(timeline).expect("a timeline")
}

pub fn parts(made: &RunShape) -> (Summary, Timeline, Histograms) {
    let mut rng = Rng::with_seed(made.seed);
    let mut histograms = Histograms::new();
    let mut slowest = Vec::new();
    let ticks: Vec<Tick> = (0..made.ticks)
        .map(|i| tick(&mut rng, made, i, &mut histograms, &mut slowest))
        .collect();
    let timeline = Timeline {
        ticks,
        slowest,
        ..nodes_and_events(made)
    };
    (summary(made, &timeline, &histograms), timeline, histograms)
}

/// The summary as its file has it; what is not in it has its default.
fn summary(made: &RunShape, timeline: &Timeline, histograms: &Histograms) -> Summary {
    let total = (made.ticks * made.samples) as u64;
    let duration_s = made.ticks as f64 * TICK_MS as f64 / 1000.0;
    let stages = histograms.table();
    let row = *stages.get(record::Stage::Total).expect("a row");
    let p99_us = row.p99_us + 300.0;
    let connection = |i: usize| {
        let of = |f: fn(&ConnectionTick) -> u64| -> u64 {
            timeline.ticks.iter().map(|t| f(&t.connections[i])).sum()
        };
        json!({
            "name": format!("acc-01/{i}"), "samples": of(|c| c.samples), "slots": 64,
            "in_flight_max": 10,
            "tx": {"bytes": of(|c| c.bytes_out)}, "rx": {"bytes": of(|c| c.bytes_in)},
        })
    };
    let n = 1 + total / 400;
    let batches = json!({"1": 3 * n, "2": 2 * n, "3": n, "7": n, "16": n, "30": n, "64": n});
    let summary = json!({
        "node": "front", "name": "QDL", "scenario": "Server", "fabric": "tcp", "valid": true,
        "samples": total, "duration_s": duration_s, "per_s": total as f64 / duration_s,
        "target_qps": total as f64 / duration_s,
        "loadgen": {
            "version": "6.0.17", "scenario": "Server", "valid": true, "late_mean_us": 40.0,
            "latency": {"mean_us": row.mean_us + 40.0, "p99_us": p99_us},
            "limits": [
                {"name": "p99 latency", "setting": "server_target_latency_ns", "unit": "us", "limit": 2_000.0,
                 "was": p99_us, "at_most": true, "met": p99_us <= 2_000.0},
                {"name": "duration", "setting": "duration", "unit": "us",
                 "limit": duration_s * 0.9e6, "was": duration_s * 1e6, "met": true},
                {"name": "queries", "setting": "queries", "unit": "queries", "limit": 30_000.0,
                 "was": total as f64, "met": total >= 30_000},
            ],
            "early_stopping": {"met": true, "text": "Run successful."},
        },
        "stages": stages,
        "would_not_count": ["guard.fabric: <loopback> (not a permitted fabric)"],
        "settings": [{"name": "nics[0].slots", "value": "64", "from": "front.yaml:12"}],
        "limits": {"findings": [{
            "cause": "wake_ups", "figure": "the network is 60 % of a sample's time",
            "turn": "raise `completion.spin_us`",
        }]},
        "exit": {"code": 0, "reason": "valid"},
        "accelerators": [{
            "node": "acc-01", "engine": "aoti", "connections": made.connections,
            "samples": total + 64, "arrived": total + 64, "batches": batches,
            "gpus": [{
                "name": "a GPU that never was", "batches": batches, "copies_in": 9,
                "bytes_in": 1 << 30, "copy_in_us": 4_000, "compute_us": 90_000,
                "copy_out_us": 1_000,
            }],
        }],
        "ledger": {"issued": total, "answered": total, "posted": total + 37, "redispatched": 37,
                   "warmed": 64},
        "rails": [{
            "name": "acc-01 nics[0]-nics[2]", "state": "in service", "score": 0.97,
            "changes": [{"at_s": 4.0, "from": "in service", "to": "congested", "latency": 0.2}],
        }],
        "connections": (0..made.connections).map(connection).collect::<Vec<_>>(),
    });
    serde_json::from_value(summary).expect("a summary")
}

pub fn folder(made: &RunShape) -> tempfile::TempDir {
    let place = tempfile::Builder::new().prefix("run").tempdir();
    let place = place.expect("a folder");
    let (summary, timeline, histograms) = parts(made);
    record::write_summary(place.path(), &summary).expect("written");
    record::write_timeline(place.path(), &timeline).expect("written");
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let took = Duration::from_secs(1);
    record::save(&histograms.all(), place.path(), started, took).expect("saved");
    place
}

pub fn run(made: &RunShape) -> RunFolder {
    let mut run = RunFolder::read(folder(made).path()).expect("a run");
    run.name = made.name.to_owned();
    run
}

/// A page without its scripts; the records are scripts too.
pub fn without_scripts(page: &str) -> String {
    let mut rest = page;
    let mut out = String::new();
    while let Some((before, script)) = rest.split_once("<script") {
        out.push_str(before);
        rest = script.split_once("</script>").expect("a script ends").1;
    }
    out + rest
}

/// Elements close in order, attributes are quoted, nothing is left unescaped.
pub fn well_formed(page: &str) -> Result<usize, String> {
    const VOID: [&str; 2] = ["meta", "br"];
    let mut open: Vec<&str> = Vec::new();
    let mut elements = 0;
    let mut rest = page;
    while let Some((text, tag)) = rest.split_once('<') {
        if text.contains('>') && !open.contains(&"style") {
            return Err(format!("a bare > in {text:?}"));
        }
        for entity in text.split('&').skip(1) {
            if !open.contains(&"style") && !entity.split(' ').next().unwrap_or("").contains(';') {
                return Err(format!("a bare & in {text:?}"));
            }
        }
        let (tag, after) = tag.split_once('>').ok_or("an element without an end")?;
        rest = after;
        if tag.starts_with('!') {
            continue;
        }
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("quotes in <{tag}>"));
        }
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            if last != Some(name) {
                return Err(format!("</{name}> closes {last:?}"));
            }
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap_or("");
        elements += 1;
        if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    match open.is_empty() {
        true => Ok(elements),
        false => Err(format!("never closed: {open:?}")),
    }
}

pub fn charts(page: &str) -> Vec<Value> {
    let charts = page.split("data-chart=\"").skip(1);
    let charts = charts.map(|rest| rest.split('"').next().unwrap_or("").replace("&quot;", "\""));
    charts
        .map(|json| serde_json::from_str(&json.replace("&lt;", "<").replace("&amp;", "&")))
        .collect::<Result<_, _>>()
        .expect("charts are JSON")
}
