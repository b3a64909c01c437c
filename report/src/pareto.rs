//! Runs as points: throughput against latency, with the Pareto front.

use record::{RunFolder, RunRecord, TokenTime};

use crate::{
    chart::{Chart, Shape, Style, Unit, beside},
    embedded::record,
    html::{Cell, escape, figure, table},
    page::{self, head, section},
    text,
};

/// A time of a run, in microseconds, with its name.
struct Measure {
    name: &'static str,
    of: fn(&RunRecord) -> Option<f64>,
}

const TTFT: Measure = Measure {
    name: "p99 TTFT",
    of: |r| head::token_p99_us(r, TokenTime::Ttft),
};
const TPOT: Measure = Measure {
    name: "p99 TPOT",
    of: |r| head::token_p99_us(r, TokenTime::Tpot),
};
const LATENCY: Measure = Measure {
    name: "p99 latency",
    of: head::p99_us,
};

/// A rate (more is better) and a time (less is better).
type Point = (f64, f64);

/// Whether each point is on the front: no other point has at least its rate in at most its time,
/// unless both are equal.
fn front(points: &[Point]) -> Vec<bool> {
    let beats = |a: &Point, b: &Point| a.0 >= b.0 && a.1 <= b.1 && a != b;
    let on = |point: &Point| !points.iter().any(|other| beats(other, point));
    points.iter().map(on).collect()
}

/// The letters by which charts and table name the runs: A to Z, then A1.
fn letter(at: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or(0));
    match at / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{round}"),
    }
}

/// A measured run: its letter, rate and time.
struct Run {
    letter: String,
    point: Point,
    on_front: bool,
}

fn measured(runs: &[RunFolder], rate: fn(&RunRecord) -> f64, of: &Measure) -> Vec<Run> {
    let points = runs.iter().enumerate().filter_map(|(i, run)| {
        let r = &run.summary.run;
        let point = (rate(r), (of.of)(r)?);
        (point.0 > 0.0 && point.1 > 0.0).then(|| (letter(i), point))
    });
    let points: Vec<(String, Point)> = points.collect();
    let on_front = front(&points.iter().map(|(_, point)| *point).collect::<Vec<_>>());
    let all = points.into_iter().zip(on_front);
    let all = all.map(|((letter, point), on_front)| Run {
        letter,
        point,
        on_front,
    });
    let mut all: Vec<Run> = all.collect();
    all.sort_by(|a, b| a.point.0.total_cmp(&b.point.0));
    all
}

fn chart(title: &str, runs: &[Run]) -> String {
    let x = runs.iter().map(|run| run.point.0).collect();
    let mut chart = Chart::new(title, Style::Scatter, (Unit::Count, Unit::Us), x);
    for (name, colour, shape, on_front) in [
        ("on the front", "net", Shape::Joined, true),
        ("dominated", "sched", Shape::Hollow, false),
    ] {
        let value = |run: &Run| match run.on_front == on_front {
            true => run.point.1,
            false => f64::NAN,
        };
        if runs.iter().any(|run| run.on_front == on_front) {
            chart.shaped(name, Some(colour), shape, runs.iter().map(value));
        }
    }
    for run in runs {
        chart.mark(run.point.0, &run.letter, "fg");
    }
    chart.html()
}

/// The page of several runs of one scenario.
///
/// # Errors
/// One line: these runs have no common front.
pub fn page(runs: &[RunFolder]) -> Result<String, String> {
    let kind = |run: &RunFolder| {
        let r = &run.summary.run;
        let of = if r.tokens.is_some() {
            " of a language model"
        } else {
            ""
        };
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
    let (unit, rate, measures): (_, fn(&RunRecord) -> f64, &[Measure]) =
        match first.summary.run.tokens {
            Some(_) => {
                let rate = |r: &RunRecord| r.tokens.as_ref().map_or(0.0, |t| t.per_s);
                ("tokens/s", rate, &[TTFT, TPOT, LATENCY])
            }
            None => ("samples/s", |r| r.per_s, &[LATENCY]),
        };
    let all = measures.iter().map(|m| (m, measured(runs, rate, m)));
    let all: Vec<(&Measure, Vec<Run>)> = all.filter(|(_, runs)| !runs.is_empty()).collect();
    let charts = all.iter();
    let charts = charts.map(|(m, runs)| chart(&format!("{} against {unit}", m.name), runs));
    let charts: Vec<String> = charts.collect();
    let row = |(i, run): (usize, &RunFolder)| {
        let (r, letter) = (&run.summary.run, letter(i));
        let on_front = |runs: &[Run]| runs.iter().any(|run| run.letter == letter && run.on_front);
        let mut row = vec![
            Cell::words(format!("{letter} {}", run.name)),
            Cell::figure(text::rate(rate(r))),
        ];
        row.extend(all.iter().map(|(m, _)| {
            let us = (m.of)(r);
            Cell::figure(us.map_or_else(|| "-".to_owned(), text::time_us))
        }));
        row.push(Cell::words(head::verdict(r).1));
        let on = all.iter().filter(|(_, runs)| on_front(runs));
        let on: Vec<&str> = on.map(|(m, _)| m.name.trim_start_matches("p99 ")).collect();
        row.push(Cell::words(match on.is_empty() {
            true => "-".to_owned(),
            false => on.join(", "),
        }));
        row
    };
    let rows: Vec<Vec<Cell>> = runs.iter().enumerate().map(row).collect();
    let names = all.iter().map(|(m, _)| m.name);
    let heading: Vec<&str> = ["run", unit].into_iter().chain(names).collect();
    let heading = [&heading[..], &["LoadGen", "on the front of"]].concat();
    let note = "On the front: no other run has at least its rate in at most its time. Hollow \
                points are dominated. Times are LoadGen's; without them, from issue to completion. \
                A front does not ask whether LoadGen calls a run valid.";
    let picture = beside(&charts) + &table(&heading, &rows);
    let header = format!(
        "<h1>Throughput against latency</h1><p class=\"sub\">{} - {}</p>",
        text::counted(runs.len() as u64, "run"),
        escape(&title)
    );
    let main = section(
        "The Pareto front",
        &figure("pareto", "The runs", &picture, note),
    );
    let records: String = runs.iter().map(record).collect();
    Ok(page::document(
        "Throughput against latency",
        &header,
        &(main + &records),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_of_five_points_leaves_out_those_that_another_beats() {
        let points = [
            (100.0, 10.0),
            (200.0, 20.0),
            // Slower at the same rate, and slower at a lower rate.
            (200.0, 25.0),
            (150.0, 30.0),
            (300.0, 90.0),
        ];
        assert_eq!(front(&points), [true, true, false, false, true]);
        assert_eq!(front(&[(1.0, 1.0), (1.0, 1.0)]), [true, true]);
        assert_eq!([letter(0), letter(25), letter(26)], ["A", "Z", "A1"]);
    }
}
