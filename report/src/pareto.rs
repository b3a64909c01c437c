//! Runs as points: throughput against latency, with the Pareto front.

use record::{LoadgenRecord, RunFolder, RunRecord};

use crate::{
    chart::{Chart, Shape, Style, Unit},
    embedded::record,
    html::{self, escape},
    model::{Cell, Part, figure, table},
    page::{self, head},
    text,
};

/// A time of LoadGen's in microseconds, with its name.
type Measure = (&'static str, fn(&LoadgenRecord) -> Option<f64>);

const LATENCY: Measure = ("p99 latency", |l| Some(l.latency?.p99_us));
const OF_TOKENS: [Measure; 3] = [
    ("p99 TTFT", |l| Some(l.ttft?.p99_us)),
    ("p99 TPOT", |l| Some(l.tpot?.p99_us)),
    LATENCY,
];

/// A rate (more is better) and a time (less is better, NaN if not measured).
type Point = (f64, f64);

/// Whether each point is on the front: no other point has at least its rate in at most its time,
/// unless both are equal.
fn front(points: &[Point]) -> Vec<bool> {
    let beats = |a: &Point, b: &Point| a.0 >= b.0 && a.1 <= b.1 && a != b;
    let on = |point: &Point| !points.iter().any(|other| beats(other, point));
    points.iter().map(|p| p.1.is_finite() && on(p)).collect()
}

/// The points by rate, named by the numbers of their runs.
fn chart(title: &str, points: &[Point]) -> Part {
    let mut all: Vec<_> = points.iter().zip(front(points)).zip(1..).collect();
    all.sort_by(|((a, _), _), ((b, _), _)| a.0.total_cmp(&b.0));
    let x = all.iter().map(|((point, _), _)| point.0).collect();
    let mut chart = Chart::new(title, Style::Scatter, (Unit::Count, Unit::Us), x);
    for (name, colour, shape, is_front) in [
        ("on the front", "net", Shape::Joined, true),
        ("dominated", "sched", Shape::Hollow, false),
    ] {
        let of = |((point, on), _): &((&Point, bool), i32)| match *on == is_front {
            true => point.1,
            false => f64::NAN,
        };
        chart.shaped(name, Some(colour), shape, all.iter().map(of));
    }
    for ((point, _), number) in &all {
        chart.mark(point.0, number.to_string(), "fg");
    }
    Part::Chart(chart)
}

/// The page of several runs of one scenario.
///
/// # Errors
/// One line: these runs have no common front.
pub fn page(runs: &[RunFolder]) -> Result<String, String> {
    let kind = |run: &RunFolder| {
        let r = &run.summary.run;
        let of = r.tokens.as_ref().map_or("", |_| " of a language model");
        format!("{}{of}", head::title(&r.scenario, r.mode))
    };
    let Some(first) = runs.first().filter(|_| runs.len() > 1) else {
        return Err("--pareto compares runs: name two or more".to_owned());
    };
    let title = kind(first);
    if let Some(other) = runs.iter().find(|run| kind(run) != title) {
        let (name, other, first) = (&other.name, kind(other), &first.name);
        return Err(format!(
            "`{name}` is {other} and `{first}` is {title}: name runs of one scenario and mode"
        ));
    }
    let (unit, measures) = match first.summary.run.tokens {
        Some(_) => ("tokens/s", &OF_TOKENS[..]),
        None => ("samples/s", &[LATENCY][..]),
    };
    let rate = |r: &RunRecord| r.tokens.as_ref().map_or(r.per_s, |t| t.per_s);
    let named = |(run, number): (&RunFolder, i32)| {
        let name = Cell::words(format!("{number} {}", run.name));
        vec![name, Cell::figure(text::rate(rate(&run.summary.run)))]
    };
    let mut rows: Vec<Vec<Cell>> = runs.iter().zip(1..).map(named).collect();
    let mut fronts = vec![Vec::new(); runs.len()];
    let mut charts = Vec::new();
    for (name, of) in measures {
        let of = |run: &RunRecord| run.loadgen.as_ref().and_then(of);
        let point = |run: &RunFolder| (rate(&run.summary.run), of(&run.summary.run));
        let points = runs.iter().map(point);
        let points: Vec<Point> = points.map(|(x, y)| (x, y.unwrap_or(f64::NAN))).collect();
        charts.push(chart(&format!("{name} against {unit}"), &points));
        for (i, (point, on)) in points.iter().zip(front(&points)).enumerate() {
            rows[i].push(head::time(Some(point.1).filter(|us| us.is_finite())));
            fronts[i].extend(on.then(|| name.trim_start_matches("p99 ")));
        }
    }
    for ((row, run), on) in rows.iter_mut().zip(runs).zip(fronts) {
        let verdict = head::verdict(&run.summary.run).1;
        row.extend([verdict.to_owned(), on.join(", ")].map(Cell::Words));
    }
    let names = measures.iter().map(|(name, _)| *name);
    let heading: Vec<&str> = ["run", unit].into_iter().chain(names).collect();
    let heading = heading.join("|") + "|LoadGen|on the front of";
    let note = "On the front: no other run has at least its rate in at most its time. Hollow \
                points are dominated. Times are LoadGen's; a run without them has no point. A \
                front does not ask whether LoadGen calls a run valid.";
    let parts = vec![Part::Group("charts", charts), table(&heading, rows)];
    let sub = text::counted(runs.len() as u64, "run") + " - " + &title;
    let title = "Throughput against latency";
    let header = head::heading(title, &escape(&sub));
    let picture = figure("pareto", "The runs", parts, note);
    let records: String = runs.iter().map(record).collect();
    let main = html::sections(&[("The Pareto front", vec![picture])]) + &records;
    Ok(page::document(title, &header, &main))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_of_five_points_leaves_out_those_that_another_beats() {
        // Slower at the same rate, and slower at a lower rate.
        let (late, poor) = ((200.0, 25.0), (150.0, 30.0));
        let points = [(100.0, 10.0), (200.0, 20.0), late, poor, (300.0, 90.0)];
        assert_eq!(front(&points), [true, true, false, false, true]);
        assert_eq!(front(&[(1.0, 1.0), (1.0, 1.0)]), [true, true]);
        assert_eq!(front(&[(1.0, f64::NAN), (1.0, 1.0)]), [false, true]);
    }
}
