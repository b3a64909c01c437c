//! The picture of the distance to each of LoadGen's limits.

use record::{LimitRecord, LimitUnit, RunFolder};

use super::percent;
use crate::{
    html::{Cell, absent, bar, figure, table},
    text,
};

fn value(unit: LimitUnit, v: f64) -> String {
    match unit {
        LimitUnit::Us => text::time_us(v),
        LimitUnit::Queries | LimitUnit::Samples => text::grouped(v.max(0.0).round() as u64),
    }
}

/// What remains of a limit, or what is missing, in words.
fn distance(limit: &LimitRecord) -> String {
    let Some(margin) = limit.margin() else {
        let word = if limit.met { "met" } else { "not met" };
        return format!("{word}; LoadGen does not say by how much");
    };
    match (limit.at_most, margin) {
        (true, m) if m >= 0.0 => format!("{} of the limit left", percent(m)),
        (true, m) if m > -1.0 => format!("{} over the limit", percent(-m)),
        (true, m) => format!("{} times the limit", text::three(1.0 - m)),
        (false, m) if m >= 1.0 => format!("{} times what is asked", text::three(1.0 + m)),
        (false, m) if m >= 0.0 => format!("{} more than is asked", percent(m)),
        (false, m) => format!("{} short", percent(-m)),
    }
}

fn row(limit: &LimitRecord) -> Vec<Cell> {
    let bound = if limit.at_most { "at most" } else { "at least" };
    let was = limit
        .was
        .map_or_else(|| "-".to_owned(), |was| value(limit.unit, was));
    let share = match limit.was {
        Some(was) if limit.limit > 0.0 => was / limit.limit,
        _ if limit.met => 1.0,
        _ => 0.0,
    };
    let colour = if limit.met { "good" } else { "bad" };
    vec![
        Cell::words(&limit.name),
        Cell::figure(was),
        Cell::figure(format!("{bound} {}", value(limit.unit, limit.limit))),
        Cell::Raw(bar(&[(colour, share, percent(share))])),
        Cell::words(distance(limit)),
    ]
}

pub fn picture(run: &RunFolder) -> String {
    let limits = run.summary.run.loadgen.iter().flat_map(|l| &l.limits);
    let rows: Vec<_> = limits.map(row).collect();
    if rows.is_empty() {
        return absent(
            "LoadGen came to no result, or judged nothing: there is no limit to compare with.",
        );
    }
    let heading = ["limit", "came to", "asked", "", "distance"];
    let title = "Distance to each of LoadGen's limits";
    let note = "A full bar is the limit.";
    figure("limits", title, &table(&heading, &rows), note)
}
