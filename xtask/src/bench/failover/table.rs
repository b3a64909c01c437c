//! The tables.

use serde_json::Value;

use crate::bench::table::Table;

/// Text as it is, numbers of rails as `1/2/3`, what is counted in whole numbers, the rest with a
/// digit.
fn cell(v: &Value) -> String {
    match v {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let whole = all
                .iter()
                .map(|n| format!("{:.0}", n.as_f64().unwrap_or(0.0)));
            whole.collect::<Vec<_>>().join("/")
        }
        Value::Number(n) if n.is_f64() => format!("{:.1}", n.as_f64().unwrap_or(0.0)),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Prints rows: heading, width and key of each column.
fn print(columns: &[(&str, usize, &str)], rows: &[Value]) {
    let heads: Vec<_> = columns
        .iter()
        .map(|(name, width, _)| (*name, *width))
        .collect();
    let table = Table::new(&heads);
    for row in rows {
        table.row(columns.iter().map(|(.., key)| cell(&row[key])));
    }
}

pub fn congestion(rows: &[Value]) {
    let columns = [
        ("policy", 16, "policy"),
        ("p50 ms", 8, "p50_ms"),
        ("p99 ms", 8, "p99_ms"),
        ("without rail", 13, "p99_ms_without_the_rail"),
        ("ratio", 6, "ratio"),
        ("r_robin/it", 12, "round_robins_over_it"),
        ("back s", 10, "share_again_after_s"),
        ("MB/rail before", 19, "mbytes_per_rail_before"),
        ("during", 19, "mbytes_per_rail_during"),
        ("after", 19, "mbytes_per_rail_after"),
    ];
    print(&columns, rows);
}

pub fn cut(rows: &[Value]) {
    let columns = [
        ("policy", 16, "policy"),
        ("issued", 8, "issued"),
        ("answered", 9, "answered"),
        ("again", 6, "redispatched"),
        ("valid", 6, "valid"),
        ("stall ms", 9, "longest_stall_ms"),
        ("longest ms", 11, "longest_latency_ms"),
        ("back s", 8, "share_again_after_s"),
    ];
    print(&columns, rows);
}
