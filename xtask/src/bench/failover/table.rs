//! The tables.

use serde_json::Value;

fn number(v: &Value) -> String {
    v.as_f64()
        .map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"))
}

fn list(v: &Value) -> String {
    let all = v.as_array().into_iter().flatten();
    all.map(|n| format!("{:.0}", n.as_f64().unwrap_or(0.0)))
        .collect::<Vec<_>>()
        .join("/")
}

pub fn congestion(rows: &[Value]) {
    println!(
        "{:<16} {:>8} {:>8} {:>13} {:>6} {:>12} {:>10}  {:<19} {:<19} {:<19}",
        "policy",
        "p50 ms",
        "p99 ms",
        "without rail",
        "ratio",
        "r_robin/it",
        "back s",
        "MB/rail before",
        "during",
        "after"
    );
    for r in rows {
        println!(
            "{:<16} {:>8} {:>8} {:>13} {:>6} {:>12} {:>10}  {:<19} {:<19} {:<19}",
            r["policy"].as_str().unwrap_or_default(),
            number(&r["p50_ms"]),
            number(&r["p99_ms"]),
            number(&r["p99_ms_without_the_rail"]),
            number(&r["ratio"]),
            number(&r["round_robins_over_it"]),
            number(&r["share_again_after_s"]),
            list(&r["mbytes_per_rail_before"]),
            list(&r["mbytes_per_rail_during"]),
            list(&r["mbytes_per_rail_after"]),
        );
    }
}

pub fn cut(rows: &[Value]) {
    println!(
        "{:<16} {:>8} {:>9} {:>6} {:>6} {:>9} {:>11} {:>8}",
        "policy", "issued", "answered", "again", "valid", "stall ms", "longest ms", "back s"
    );
    for r in rows {
        println!(
            "{:<16} {:>8} {:>9} {:>6} {:>6} {:>9} {:>11} {:>8}",
            r["policy"].as_str().unwrap_or_default(),
            r["issued"].to_string(),
            r["answered"].to_string(),
            r["redispatched"].to_string(),
            r["valid"].to_string(),
            number(&r["longest_stall_ms"]),
            number(&r["longest_latency_ms"]),
            number(&r["share_again_after_s"]),
        );
    }
}
