//! How far the run is from each of LoadGen's limits.

use record::{LimitRecord, LimitUnit, Run};

use crate::text;

use super::percent;
use crate::{
    draw::{At, Size, Svg, both},
    html::{absent, figure},
};

/// Where the limit itself stands on the bar, of its length.
const LIMIT: f64 = 0.62;

fn value(unit: LimitUnit, v: f64) -> String {
    match unit {
        LimitUnit::Us => text::time_us(v),
        LimitUnit::Queries | LimitUnit::Samples => text::grouped(v.max(0.0).round() as u64),
    }
}

/// What is left of a limit, or missing, in words.
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

/// A bar for each.
pub fn draw(limits: &[LimitRecord], size: Size) -> Svg {
    let each = if size.narrow { 58.0 } else { 46.0 };
    let mut svg = Svg::new(
        size.width,
        limits.len() as f64 * each + 2.0,
        "distance to each of LoadGen's limits",
    );
    for (i, limit) in limits.iter().enumerate() {
        let y = i as f64 * each;
        let bound = if limit.at_most { "at most" } else { "at least" };
        let asked = format!("{bound} {}", value(limit.unit, limit.limit));
        let was = limit.was.map(|was| value(limit.unit, was));
        svg.words((0.0, y + 14.0), At::Start, "T b", &limit.name);
        let said = match &was {
            Some(was) => format!("{was}, {asked}"),
            None => asked,
        };
        let right = (size.width, y + 14.0);
        svg.words(right, At::End, "T", &said);
        let (top, high) = (y + 21.0, 9.0);
        svg.rounded((0.0, top), (size.width, high), 3.0, "track");
        let share = match limit.was {
            Some(was) if limit.limit > 0.0 => was / limit.limit,
            _ if limit.met => 1.0,
            _ => 0.0,
        };
        let class = if limit.met { "fill good" } else { "fill bad" };
        let length = (share * LIMIT).clamp(0.006, 1.0) * size.width;
        svg.rounded((0.0, top), (length, high), 3.0, class);
        let mark = LIMIT * size.width;
        svg.line((mark, top - 3.0), (mark, top + high + 3.0), "mark");
        let how = distance(limit);
        let (place, anchor) = match size.narrow {
            true => ((0.0, top + 24.0), At::Start),
            false => ((mark + 8.0, top + 22.0), At::Start),
        };
        svg.words(place, anchor, "t m", &how);
    }
    svg
}

/// The picture.
pub fn picture(run: &Run) -> String {
    let limits = run.summary.run.loadgen.as_ref().map(|l| &l.limits[..]);
    match limits {
        Some(limits) if !limits.is_empty() => figure(
            "limits",
            "Distance to each of LoadGen's limits",
            &both(Size::HALF, |size| draw(limits, size)),
            "The upright line is the limit; a bar is as long as what the run came to.",
        ),
        _ => absent(
            "LoadGen came to no result, or judged nothing: there is no limit to compare with.",
        ),
    }
}
