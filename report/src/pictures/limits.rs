//! The picture of the values at LoadGen's limits.

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

fn row(limit: &LimitRecord) -> Vec<Cell> {
    let bound = if limit.at_most { "at most" } else { "at least" };
    let was = limit
        .was
        .map_or_else(|| "-".to_owned(), |was| value(limit.unit, was));
    let (colour, word) = match limit.met {
        true => ("good", "met"),
        false => ("bad", "not met"),
    };
    let (share, said) = match limit.was {
        Some(was) if limit.limit > 0.0 => (was / limit.limit, percent(was / limit.limit)),
        _ => (f64::from(u8::from(limit.met)), word.to_owned()),
    };
    vec![
        Cell::words(&limit.name),
        Cell::figure(was),
        Cell::figure(format!("{bound} {}", value(limit.unit, limit.limit))),
        Cell::Raw(bar(&[(colour, share, percent(share))])),
        Cell::words(said),
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
    let heading = ["limit", "came to", "asked", "", "of it"];
    let title = "Distance to each of LoadGen's limits";
    let note = "A full bar is the limit.";
    figure("limits", title, &table(&heading, &rows), note)
}
