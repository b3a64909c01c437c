//! Rows of medians over the alternations, as text and as JSON.

use serde::Serialize;

use super::{
    Shape,
    duel::{Contender, Rounds},
    meter::Round,
};
use crate::table::Table;

/// Medians of one contender.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Medians {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

/// A row of `target/bench/fabric.json`. `plain_*` are figures of the faster kind of plain sockets.
/// Ratios are medians of the ratios within each alternation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    request: usize,
    response: usize,
    in_flight: usize,
    connections: usize,
    per_s: f64,
    plain_per_s: f64,
    ratio: f64,
    p50_us: f64,
    plain_p50_us: f64,
    p50_ratio: f64,
    p99_us: f64,
    plain_p99_us: f64,
    cpu_us: f64,
    plain_cpu_us: f64,
    plain_kind: &'static str,
    plain_spin: Medians,
    plain_sleep: Medians,
    /// The whole library.
    qdl: Medians,
    qdl_ratio: f64,
    qdl_p50_ratio: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

fn medians(rounds: &[Round]) -> Medians {
    let of = |f: fn(&Round) -> f64| median(rounds.iter().map(f));
    Medians {
        per_s: of(|r| r.per_s).round(),
        p50_us: to(of(|r| r.p50_us), 3),
        p99_us: to(of(|r| r.p99_us), 3),
        cpu_us: to(of(|r| r.cpu_us), 4),
    }
}

fn to(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

/// Computes the row of a shape.
pub fn row(shape: Shape, rounds: &Rounds) -> Row {
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
    let ratio = |a: &[Round], f: fn(&Round) -> f64| {
        to(median(a.iter().zip(plain).map(|(a, b)| f(a) / f(b))), 3)
    };
    let (fabric, qdl) = (of(Contender::Fabric), of(Contender::Qdl));
    let (f, p) = (medians(fabric), medians(plain));
    Row {
        request: shape.request,
        response: shape.response,
        in_flight: shape.in_flight,
        connections: shape.connections,
        per_s: f.per_s,
        plain_per_s: p.per_s,
        ratio: ratio(fabric, |r| r.per_s),
        p50_us: f.p50_us,
        plain_p50_us: p.p50_us,
        p50_ratio: ratio(fabric, |r| r.p50_us),
        p99_us: f.p99_us,
        plain_p99_us: p.p99_us,
        cpu_us: f.cpu_us,
        plain_cpu_us: p.cpu_us,
        plain_kind,
        plain_spin,
        plain_sleep,
        qdl: medians(qdl),
        qdl_ratio: ratio(qdl, |r| r.per_s),
        qdl_p50_ratio: ratio(qdl, |r| r.p50_us),
    }
}

/// Prints the table's heading.
pub fn head() -> Table {
    let columns = [
        ("req", 6),
        ("resp", 4),
        ("fly", 3),
        ("cx", 2),
        ("fabric/s", 9),
        ("spin/s", 9),
        ("sleep/s", 9),
        ("ratio", 5),
        ("p50 us", 7),
        ("plain", 7),
        ("ratio", 5),
        ("p99 us", 7),
        ("plain", 7),
        ("cpu us", 6),
        ("plain", 6),
        ("qdl/s", 9),
        ("ratio", 5),
        ("qdl p50", 7),
    ];
    Table::new(&columns)
}

impl Row {
    /// The row's cells, in the order of [`head`].
    pub fn cells(&self) -> Vec<String> {
        let shape = [
            self.request,
            self.response,
            self.in_flight,
            self.connections,
        ];
        let figures = [
            (0, self.per_s),
            (0, self.plain_spin.per_s),
            (0, self.plain_sleep.per_s),
            (2, self.ratio),
            (1, self.p50_us),
            (1, self.plain_p50_us),
            (2, self.p50_ratio),
            (1, self.p99_us),
            (1, self.plain_p99_us),
            (2, self.cpu_us),
            (2, self.plain_cpu_us),
            (0, self.qdl.per_s),
            (2, self.qdl_ratio),
            (1, self.qdl.p50_us),
        ];
        let figures = figures.map(|(digits, v)| format!("{v:.digits$}"));
        shape
            .map(|n| n.to_string())
            .into_iter()
            .chain(figures)
            .collect()
    }
}

/// Prints for each row with a target whether the row meets it.
pub fn targets(rows: &[Row]) {
    // The targets apply to the fabric; skip rows without it.
    for r in rows.iter().filter(|r| r.per_s > 0.0) {
        let (wanted, met) = match (r.request, r.in_flight) {
            (150_528, 16..) => ("at least 0.9 of plain sockets", r.ratio >= 0.9),
            (64, 1) => (
                "at least 0.9 of plain sockets, p50 at most 1.2 times theirs",
                r.ratio >= 0.9 && r.p50_ratio <= 1.2,
            ),
            (64, 256) => (
                "at least 8 million/s or 0.4 of plain sockets",
                r.per_s >= 8e6 || r.ratio >= 0.4,
            ),
            (4608, 64) => ("at least 0.75 of plain sockets", r.ratio >= 0.75),
            _ => continue,
        };
        println!(
            "{} {:>6} B, {:>3} in flight, {} connections: {:.0}/s, ratio {:.2}, p50 ratio {:.2} ({wanted})",
            if met { "met  " } else { "SHORT" },
            r.request,
            r.in_flight,
            r.connections,
            r.per_s,
            r.ratio,
            r.p50_ratio
        );
    }
}
