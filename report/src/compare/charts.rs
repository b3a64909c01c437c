//! Tables and charts of groups side by side.

use record::RunFolder;

use super::{
    differences::{Comparison, Difference, change},
    groups::SettingGroup,
};
use crate::{
    chart::{Chart, Style, Unit},
    model::{Cell, Part, absent, figure, row, table},
    pictures::{
        course::{Axis, TickColumn, columns, tick_s},
        percentiles::{self, Curve},
        stages::{Means, StageMean, bar, sum},
    },
    text,
};

/// The table of each group's figures beside the first group's.
pub fn differences(found: &[Comparison]) -> Option<Part> {
    let (first, _) = &found.first()?.names;
    let row = |f: &Comparison, d: &Difference| {
        let said = |ratio| change(ratio, d.figure);
        let between = d.interval.map_or_else(String::new, |(low, high)| {
            format!("{} to {}", said(low), said(high))
        });
        let noise = match d.is_real() {
            Some(true) => "no",
            Some(false) => "yes",
            None => "not known",
        };
        vec![
            Cell::key(f.colour, &f.names.1),
            Cell::words(d.figure.name),
            Cell::figure(d.figure.said(d.values.0)),
            Cell::figure(d.figure.said(d.values.1)),
            Cell::figure(said(d.ratio)),
            Cell::words(between),
            Cell::words(noise),
        ]
    };
    let rows = found.iter();
    let rows = rows.flat_map(|f| f.all.iter().map(move |d| row(f, d)));
    let heading = format!("|figure|{first}|this group|change|with 95 % between|within noise");
    let note = "95 % intervals by batch means: over the runs of a repeated setting, over ten parts \
                of a single run. An interval around \"the same\" is noise.";
    let parts = vec![table(&heading, rows.collect())];
    Some(figure("differences", "Differences", parts, note))
}

/// Mean stages of a group, with `scheduled -> issue` only if every run has it.
fn stages(group: &SettingGroup<'_>) -> Vec<StageMean> {
    let all: Vec<Means> = group.runs.iter().map(|r| Means::of(r)).collect();
    let shortest = all.iter().min_by_key(|m| m.stages.len());
    let names = shortest.iter().flat_map(|m| &m.stages);
    names
        .map(|(colour, name, _)| {
            let of = |m: &Means| m.stages.iter().find(|s| s.1 == *name).map_or(0.0, |s| s.2);
            let mean = all.iter().map(of).sum::<f64>() / all.len() as f64;
            (*colour, *name, mean.max(0.0))
        })
        .collect()
}

/// A bar for each group, then a table with a row for each stage and a column for each group.
fn stages_table(groups: &[SettingGroup<'_>]) -> Vec<Part> {
    let means: Vec<Vec<StageMean>> = groups.iter().map(stages).collect();
    let top = means.iter().map(|m| sum(m)).fold(0.0, f64::max);
    let bars = groups.iter().zip(&means);
    let rows: Vec<Vec<Cell>> = bars
        .map(|(group, means)| {
            let whole = Cell::figure(text::time_us(sum(means)));
            let name = Cell::key(group.colour, &group.name);
            vec![name, whole, Cell::Bar(bar(means, top))]
        })
        .collect();
    let bars = table("|in all|", rows);
    let most = means.iter().max_by_key(|m| m.len());
    let rows = most
        .into_iter()
        .flatten()
        .map(|(colour, name, _)| {
            let of = |m: &Vec<StageMean>| {
                let stage = m.iter().find(|s| s.1 == *name);
                stage.map_or_else(|| "-".to_owned(), |s| text::time_us(s.2))
            };
            row(Cell::key(colour, *name), means.iter().map(of))
        })
        .collect();
    let names = groups.iter().map(|g| g.name.as_str());
    let heading: Vec<&str> = ["stage"].into_iter().chain(names).collect();
    vec![bars, table(&heading.join("|"), rows)]
}

/// The pictures of percentiles and stages.
pub fn latency(groups: &[SettingGroup<'_>]) -> Part {
    let totals: Vec<_> = groups.iter().map(SettingGroup::total).collect();
    let curves = groups.iter().zip(&totals);
    let curves = curves.filter_map(|(g, t)| Some(Curve::of(g.colour, &g.name, t.as_ref()?)));
    let curves: Vec<Curve<'_>> = curves.collect();
    let left = match curves.is_empty() {
        true => absent("There are no histograms: `latency.hlog` is in none of the folders."),
        false => figure(
            "percentiles",
            "Each percentile",
            percentiles::with_table(&curves, groups[0].runs[0].bound_us()),
            "From issue to completion, repetitions together.",
        ),
    };
    let title = "Where the time goes, on average";
    let right = figure("stages", title, stages_table(groups), "One scale for all.");
    Part::Two(vec![left], vec![right])
}

/// Throughput and p99 over time, with a line for each run.
pub fn over_time(groups: &[SettingGroup<'_>]) -> Part {
    let runs = groups.iter();
    let runs = runs.flat_map(|g| g.runs.iter().map(move |r| (g, *r)));
    let kept = runs.filter_map(|(g, r)| Some((g, r, r.timeline.as_ref()?)));
    let kept: Vec<_> = kept.collect();
    let axes = kept.iter().map(|(.., t)| Axis::of(t));
    // Take the run with the longest columns: each column contains at least one tick of every run.
    let Some(axis) = axes.max_by(|a, b| a.each_s.total_cmp(&b.each_s)) else {
        return absent("None of these runs kept a timeline.");
    };
    let columns: Vec<Vec<TickColumn>> = kept.iter().map(|k| columns(k.2, axis.each_s)).collect();
    let most = columns.iter().map(Vec::len).max().unwrap_or(0);
    let (lines, log) = ((Style::Lines, Unit::Count), (Style::Log, Unit::Us));
    let chart = |id, title, (style, unit), of: &dyn Fn(&TickColumn, f64) -> f64| {
        let x = (0..most).map(|i| (i as f64 + 0.5) * axis.each_s).collect();
        let mut chart = Chart::new("", style, (Unit::Seconds, unit), x);
        for ((group, run, timeline), columns) in kept.iter().zip(&columns) {
            let values = columns.iter().map(|c| of(c, tick_s(timeline)));
            chart.line(run_name(group, run), Some(group.colour), values);
        }
        figure(id, title, vec![Part::Chart(chart)], "A line is a run.")
    };
    let rate = |c: &TickColumn, tick_s: f64| c.completed() / tick_s;
    let p99 = |c: &TickColumn, _: f64| c.quantile_us(0.99);
    Part::Two(
        vec![chart("rate", "Samples per second", lines, &rate)],
        vec![chart("p99", "p99 over time", log, &p99)],
    )
}

fn run_name(group: &SettingGroup<'_>, run: &RunFolder) -> String {
    let letter = group.name.split(' ').next().unwrap_or_default();
    format!("{letter} {}", run.name)
}
