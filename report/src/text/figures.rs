//! Formats single records in a line or two.

use record::{
    Accuracy, BatchSizes, Goodput, GpuRecord, NicPlace, Places, ThroughputReport, TrafficRecord,
    Verified,
};

use super::numbers as text;

/// Maximum number of bars in a chart; in longer runs each bar stands for several seconds.
const BARS: usize = 60;

/// Formats an accuracy: `97.778 %: 528 of 540`.
pub fn accuracy(a: &Accuracy) -> String {
    let (share, right, all) = (
        a.share * 100.0,
        text::grouped(a.right),
        text::grouped(a.answers),
    );
    format!("{share:.3} %: {right} of {all}")
}

/// Formats the goodput: `95 samples (99.0 %) within LoadGen's limit: 47.5/s`.
pub(super) fn goodput(good: &Goodput) -> String {
    let samples = text::counted(good.samples, "sample");
    let (share, rate) = (text::three(100.0 * good.share), text::rate(good.per_s));
    let head = format!("{samples} ({share} %) within");
    let Some((n, of_tokens)) = good.tokens.zip(good.tokens_per_s) else {
        return format!("{head} LoadGen's limit: {rate}/s");
    };
    let (most, clock) = match good.at_most {
        true => ("at most ", "by LoadGen's percentiles"),
        false => ("", "from issue_query on"),
    };
    let (n, of_tokens) = (text::grouped(n), text::rate(of_tokens));
    format!("{most}{head} all limits {clock}: {rate}/s; {n} tokens: {of_tokens}/s")
}

/// Formats the comparison of responses in one line.
pub(super) fn verified(v: &Verified) -> String {
    let compared = text::counted(v.compared, "response");
    if v.sound() {
        return format!("{compared} compared, each its own sample's");
    }
    let n = text::grouped;
    format!(
        "{compared} compared: {} not their own sample's, {} came twice; {} never answered",
        n(v.mismatches),
        n(v.duplicates),
        text::counted(v.lost, "sample")
    )
}

/// Formats a GPU's batches in one line; `None` if the GPU ran none.
pub(super) fn gpu(gpu: &GpuRecord) -> Option<String> {
    let batches = gpu.batches.batches();
    let each = |us: u64| us as f64 / batches as f64 / 1000.0;
    let graphs = match gpu.graphs {
        0 => String::new(),
        n => format!("; {:.0} % as graphs", 100.0 * n as f64 / batches as f64),
    };
    (batches > 0).then(|| {
        format!(
            "GPU {} {:.16}: {} batches of {:.1}: {:.1} copies in {:.2} ms, compute {:.2} ms; {:.1} GB in{graphs}",
            gpu.index,
            gpu.name,
            batches,
            gpu.batches.mean(),
            gpu.copies_in as f64 / batches as f64,
            each(gpu.copy_in_us),
            each(gpu.compute_us),
            gpu.bytes_in as f64 / 1e9,
        )
    })
}

/// Formats NUMA placements; empty on a machine with one node.
pub fn places(places: &Places) -> Vec<String> {
    if places.nodes < 2 {
        return Vec::new();
    }
    let mut lines: Vec<String> = places.nics.iter().map(nic).collect();
    if !places.samples.is_empty() {
        lines.push(format!("samples on {}", on(&places.samples)));
    }
    lines
}

fn nic(place: &NicPlace) -> String {
    let wanted = match place.node {
        Some(node) => format!("node {node}"),
        None => "any node".to_owned(),
    };
    let slots = on(&place.slots);
    let NicPlace { nic, cpus, .. } = place;
    format!("{nic}: {wanted}; thread on cores {cpus}, slots on {slots}")
}

fn on(nodes: &[u32]) -> String {
    let names: Vec<_> = nodes.iter().map(u32::to_string).collect();
    match names.as_slice() {
        [] => "unknown nodes".to_owned(),
        [only] => format!("node {only}"),
        several => format!("nodes {}", several.join(", ")),
    }
}

/// Draws one bar per power of two: batches with a size from that power up to the next.
pub(super) fn bars(sizes: &BatchSizes) -> String {
    let mut octaves = vec![0u64; sizes.max().max(1).ilog2() as usize + 1];
    for (size, n) in sizes.iter() {
        let octave = &mut octaves[size.max(1).ilog2() as usize];
        *octave = octave.saturating_add(n);
    }
    text::bars(octaves.into_iter().map(|n| n as f64))
}

pub(super) const TRAFFIC: [&str; 7] = [
    "sends", "reads", "wakes", "partial", "blocked", "copies", "copied",
];

/// One row of traffic: counts of both halves, its wake-ups, and doorbells that left data unsent.
pub(super) fn traffic(
    tx: &TrafficRecord,
    rx: &TrafficRecord,
    wakeups: u64,
    blocked: u64,
) -> [String; TRAFFIC.len()] {
    let n = text::short;
    [
        n(tx.syscalls),
        n(rx.syscalls),
        n(wakeups),
        n(tx.partial.saturating_add(rx.partial)),
        n(blocked),
        n(tx.copies.saturating_add(rx.copies)),
        text::bytes(tx.copied_bytes.saturating_add(rx.copied_bytes)),
    ]
}

/// Draws a bar per second and formats the figures, in one or two lines.
pub(super) fn throughput(t: &ThroughputReport) -> String {
    let mean = format!("mean {}/s", text::rate(t.mean_per_s));
    let Some(min) = t.min_per_s else {
        return format!("{mean}\n");
    };
    let mut figures = vec![format!("min {}/s", text::grouped(min)), mean];
    // Explain a mean below the minimum: the last second is incomplete.
    if t.mean_per_s < min as f64 {
        let part = t.duration_s - t.per_second.len() as f64;
        figures[1].push_str(&format!(
            " (its last {} had {})",
            text::time_us(part * 1e6),
            text::counted(t.rest, "sample")
        ));
    }
    if let Some(steady) = t.steady_per_s {
        figures.push(format!("steady {}/s", text::rate(steady)));
    }
    if let Some(ratio) = t.first_over_steady {
        figures.push(format!("first second {ratio:.2} of steady"));
    }
    let group = t.per_second.len().div_ceil(BARS).max(1);
    let means = t.per_second.chunks(group);
    let means = means.map(|c| c.iter().sum::<u64>() as f64 / c.len() as f64);
    let bars = text::bars(means);
    let unit = match group {
        1 => "one bar per second".to_owned(),
        n => format!("one bar per {n} seconds"),
    };
    format!("{bars} ({unit})\n{}\n", figures.join(", "))
}

#[cfg(test)]
mod tests {
    use qdl::{counters::Throughput, testkit::assert_has};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_was_compared_is_said_whether_right_or_wrong() {
        let mut found = Verified {
            compared: 48_209,
            ..Verified::default()
        };
        let all = "48,209 responses compared, each its own sample's";
        assert_eq!(verified(&found), all);
        (found.compared, found.lost) = (1, 2);
        let wrong = "1 response compared: 0 not their own sample's, 0 came twice; 2 samples never \
                     answered";
        assert_eq!(verified(&found), wrong);
        assert!(!found.sound());
    }

    #[test]
    fn one_node_is_not_worth_a_line_and_two_are() {
        let nic = |nic: &str, node, slots: &[u32]| NicPlace {
            nic: nic.to_owned(),
            node,
            cpus: "2-3".to_owned(),
            slots: slots.to_vec(),
        };
        let mut at = Places {
            nodes: 1,
            nics: vec![
                nic("nics[0] rxa:1", Some(1), &[1]),
                nic("nics[1] lo", None, &[]),
            ],
            samples: vec![0, 1],
        };
        assert!(places(&at).is_empty());
        at.nodes = 2;
        assert_eq!(
            places(&at),
            [
                "nics[0] rxa:1: node 1; thread on cores 2-3, slots on node 1",
                "nics[1] lo: any node; thread on cores 2-3, slots on unknown nodes",
                "samples on nodes 0, 1",
            ]
        );
    }

    #[test]
    fn a_mean_below_the_slowest_second_says_why() {
        let mut t = Throughput::new(0);
        assert_eq!(throughput(&ThroughputReport::default()), "mean 0.00/s\n");
        t.sample(SECOND, 1_708);
        t.sample(SECOND + SECOND / 2, 1_709);
        let text = throughput(&t.report());
        let mean = "min 1,708/s, mean 1,139/s (its last 500 ms had 1 sample)";
        assert!(text.contains(mean), "{text}");
    }

    #[test]
    fn long_runs_share_bars() {
        let mut t = Throughput::new(0);
        for s in 1..=600u64 {
            t.sample(s * SECOND, s * 100);
        }
        let text = throughput(&t.report());
        assert!(text.starts_with(&"█".repeat(60)), "{text}");
        assert!(text.contains("one bar per 10 seconds"), "{text}");
    }

    #[test]
    fn a_gpu_is_one_line() {
        let mut record = GpuRecord {
            name: "H200".to_owned(),
            batches: BatchSizes::new(8),
            copies_in: 2,
            compute_us: 3_000,
            graphs: 2,
            ..GpuRecord::default()
        };
        record.batches.record(8);
        record.batches.record(4);
        let line = gpu(&record).expect("two batches");
        assert!(line.contains("2 batches of 6.0"), "{line}");
        assert!(line.len() < 120, "{line}");
        assert_has(&line, &["compute 1.50 ms", "1.0 copies"]);
        assert!(line.ends_with("; 100 % as graphs"), "{line}");
        assert_eq!(gpu(&GpuRecord::default()), None);
    }
}
