//! Rows of medians over the alternations.

use serde_json::{Value, json};

use crate::{
    duel::{Contender, Rounds},
    meter::{Round, Shape},
    table::Column,
};

pub const COLUMNS: &[Column] = &[
    ("req", 6, "request", 0),
    ("resp", 4, "response", 0),
    ("fly", 3, "in_flight", 0),
    ("cx", 2, "connections", 0),
    ("fabric/s", 9, "per_s", 0),
    ("spin/s", 9, "plain_spin/per_s", 0),
    ("sleep/s", 9, "plain_sleep/per_s", 0),
    ("ratio", 5, "ratio", 2),
    ("p50 us", 7, "p50_us", 1),
    ("plain", 7, "plain_p50_us", 1),
    ("ratio", 5, "p50_ratio", 2),
    ("p99 us", 7, "p99_us", 1),
    ("plain", 7, "plain_p99_us", 1),
    ("cpu us", 6, "cpu_us", 2),
    ("plain", 6, "plain_cpu_us", 2),
    ("qdl/s", 9, "qdl/per_s", 0),
    ("ratio", 5, "qdl_ratio", 2),
    ("qdl p50", 7, "qdl/p50_us", 1),
];

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

fn medians(rounds: &[Round]) -> Round {
    let of = |f: fn(&Round) -> f64| median(rounds.iter().map(f));
    Round {
        per_s: of(|r| r.per_s).round(),
        p50_us: of(|r| r.p50_us),
        p99_us: of(|r| r.p99_us),
        cpu_us: of(|r| r.cpu_us),
    }
}

/// Computes the row of a shape. The keys `plain_*` are for the faster kind of plain sockets. Each
/// ratio is computed within an alternation; the row has the median over the alternations.
pub fn row(shape: Shape, rounds: &Rounds) -> Value {
    let of = |c: Contender| {
        let found = rounds.iter().find(|(name, _)| *name == c);
        found.map_or(&[][..], |(_, r)| r.as_slice())
    };
    let (spin, sleep) = (of(Contender::Spin), of(Contender::Sleep));
    let (plain_spin, plain_sleep) = (medians(spin), medians(sleep));
    let (plain, plain_kind) = if plain_sleep.per_s > plain_spin.per_s {
        (sleep, "sleep")
    } else {
        (spin, "spin")
    };
    let ratio =
        |a: &[Round], f: fn(&Round) -> f64| median(a.iter().zip(plain).map(|(a, b)| f(a) / f(b)));
    let (fabric, qdl) = (of(Contender::Fabric), of(Contender::Qdl));
    let (f, p) = (medians(fabric), medians(plain));
    json!({
        "request": shape.request, "response": shape.response,
        "in_flight": shape.in_flight, "connections": shape.connections,
        "per_s": f.per_s, "plain_per_s": p.per_s, "ratio": ratio(fabric, |r| r.per_s),
        "p50_us": f.p50_us, "plain_p50_us": p.p50_us, "p50_ratio": ratio(fabric, |r| r.p50_us),
        "p99_us": f.p99_us, "plain_p99_us": p.p99_us,
        "cpu_us": f.cpu_us, "plain_cpu_us": p.cpu_us, "plain_kind": plain_kind,
        "plain_spin": plain_spin, "plain_sleep": plain_sleep, "qdl": medians(qdl),
        "qdl_ratio": ratio(qdl, |r| r.per_s), "qdl_p50_ratio": ratio(qdl, |r| r.p50_us),
    })
}
