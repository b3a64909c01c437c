use std::collections::BTreeSet;

use super::*;

/// Reads a file of the repository.
fn read(file: &str) -> String {
    let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Figures of which none is empty.
fn all() -> Figures {
    let mut octaves = Octaves::default();
    // Below 1 us, from 2 to 4 us, from 4 to 8 us, from 9 to 17 s, and above.
    for (i, n) in [(0, 1), (2, 2), (3, 4), (24, 8), (32, 16)] {
        octaves.counts[i] = n;
    }
    octaves.sum_ns = 5_500_000_000;
    Figures {
        program: "accelerator",
        node: "a".to_owned(),
        engine: "x \"y\"".to_owned(),
        samples: (1 << 53) - 1,
        tokens: Some(7),
        in_flight: 3,
        batches: Some(BatchSizes::from_counts(&[0, 5, 0, 2, 1])),
        busy_s: Some(0.25),
        failures: [("refused", 1)].into(),
        connections: [("up", 2)].into(),
        bytes: [("in", 1), ("out", 2)].into(),
        stages: vec![("total", octaves)],
    }
}

#[test]
fn all_values_are_in_the_text_with_units_and_cumulative_buckets() {
    let text = all().text(true);
    let lines: BTreeSet<_> = text.lines().collect();
    for line in [
        "# TYPE qdl_samples counter",
        "qdl_samples_total 9007199254740991.0",
        "qdl_tokens_total 7.0",
        "qdl_in_flight_samples 3",
        "qdl_batch_samples_sum 15.0",
        "qdl_batch_samples_count 8",
        "qdl_batch_samples_bucket{le=\"1.0\"} 5",
        "qdl_batch_samples_bucket{le=\"2.0\"} 5",
        "qdl_batch_samples_bucket{le=\"4.0\"} 8",
        "# UNIT qdl_engine_busy_seconds seconds",
        "qdl_engine_busy_seconds_total 0.25",
        "qdl_stage_seconds_sum{stage=\"total\"} 5.5",
        "qdl_stage_seconds_count{stage=\"total\"} 31",
        "qdl_stage_seconds_bucket{le=\"0.000004096\",stage=\"total\"} 3",
        "qdl_stage_seconds_bucket{le=\"0.000008192\",stage=\"total\"} 7",
        "qdl_stage_seconds_bucket{le=\"8.589934592\",stage=\"total\"} 7",
        "qdl_stage_seconds_bucket{le=\"+Inf\",stage=\"total\"} 31",
        "qdl_payload_bytes_total{direction=\"in\"} 1.0",
        "qdl_failures_total{kind=\"refused\"} 1.0",
        "qdl_connections{state=\"up\"} 2",
    ] {
        assert!(lines.contains(line), "{line} is missing in {text}");
    }
    assert!(text.contains("engine=\"x \\\"y\\\"\""), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn the_older_format_has_the_same_samples() {
    // The formats write the bounds of buckets in different ways.
    let samples = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        let one = |line: &str| match line.split_once("_bucket{") {
            Some((name, rest)) => format!("{name} {}", rest.rsplit(' ').next().unwrap_or_default()),
            None => line.to_owned(),
        };
        let mut all: Vec<_> = lines.map(one).collect();
        all.sort();
        all
    };
    let (new, old) = (all().text(true), all().text(false));
    assert_eq!(samples(&new), samples(&old));
    assert!(
        !old.contains("# EOF") && old.contains("# TYPE qdl_samples_total counter"),
        "{old}"
    );
}

#[test]
fn a_figure_that_a_program_lacks_has_no_family() {
    let text = Figures::default().text(true);
    let families = text.lines().filter(|l| l.starts_with("# TYPE")).count();
    assert_eq!(families, 3, "node, samples, in flight: {text}");
}

/// The names of samples in a text, without labels.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| !c.is_ascii_lowercase() && c != '_';
    let words = text.split(word).filter(|w| w.starts_with("qdl_"));
    words.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_page_name_each_family_and_no_other() {
    let text = all().text(true);
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let exist = names(&lines.collect::<Vec<_>>().join("\n"));
    let families: BTreeSet<_> = text
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE "))
        .filter_map(|l| l.split(' ').next())
        .collect();
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("configs/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let queries: Vec<_> = targets
        .map(|t| t["expr"].as_str().expect("a query"))
        .collect();
    let page = read("docs/report.md");
    for (what, named) in [("a query", queries.join(" ")), ("the page", page)] {
        let named = names(&named);
        // The page names a histogram by its family; a query needs one of its samples.
        let is_known = |name: &&String| {
            exist.contains(*name) || what == "the page" && families.contains(name.as_str())
        };
        let unknown: Vec<_> = named.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{what} names {unknown:?}");
        let missing = |family: &&&str| !named.iter().any(|name| name.starts_with(**family));
        let missing: Vec<_> = families.iter().filter(missing).collect();
        assert!(missing.is_empty(), "{what} lacks {missing:?}");
    }
}
