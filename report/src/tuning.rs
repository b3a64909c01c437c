//! The page of a session of `qdl tune`.

use tune::{FinishedTrial, Halt, Session};

use crate::{
    chart::{Chart, Shape, Style, Unit, beside},
    html::{Cell, escape, figure, list, paragraph, table},
    page::{
        self,
        head::{Tile, banner},
        section,
    },
    text,
};

/// A chart of the trials in order of `x`: filled points for VALID, hollow ones for INVALID.
fn chart(
    title: &str,
    units: (Unit, Unit),
    trials: &[(f64, f64, bool)],
    bound: Option<f64>,
) -> String {
    let mut trials = trials.to_vec();
    trials.sort_by(|a, b| a.0.total_cmp(&b.0));
    let x = trials.iter().map(|(x, ..)| *x).collect();
    let mut chart = Chart::new(title, Style::Scatter, units, x);
    for (name, colour, shape, is_valid) in [
        ("VALID", "net", Shape::Filled, true),
        ("INVALID", "bad", Shape::Hollow, false),
    ] {
        let value = |(_, y, valid): &(f64, f64, bool)| match *valid == is_valid {
            true => *y,
            false => f64::NAN,
        };
        chart.shaped(name, Some(colour), shape, trials.iter().map(value));
    }
    chart.bound(bound, "bound");
    chart.html()
}

/// The trials of the search: their rates in order, and what binds at each rate.
fn charts(session: &Session) -> String {
    let whole = |t: &&FinishedTrial| !t.setting.full && t.record.needs.is_none();
    let trials = || session.finished.iter().filter(whole).enumerate();
    let rate = |(i, t): (usize, &FinishedTrial)| (i as f64 + 1.0, t.setting.rate, t.record.valid);
    let rates: Vec<_> = trials().map(rate).collect();
    let part = |(_, t): (usize, &FinishedTrial)| {
        let part = t.record.binds()?.part();
        Some((t.setting.rate, part, t.record.valid))
    };
    let parts: Vec<_> = trials().filter_map(part).collect();
    let unit = session.plan.kind.unit();
    let units = (Unit::Count, Unit::Count);
    beside(&[
        chart(&format!("{unit} of each trial"), units, &rates, None),
        chart(
            &format!("Latency as a share of its bound, against {unit}"),
            (Unit::Count, Unit::Share),
            &parts,
            Some(1.0),
        ),
    ])
}

fn rates(session: &Session) -> String {
    let mut rows = Vec::new();
    for search in &session.searches {
        let keys = search.knobs.iter();
        let keys: Vec<_> = keys
            .map(|(key, value)| format!("`{key}: {value}`"))
            .collect();
        for tally in &search.tallies {
            rows.push(vec![
                Cell::words(match keys.is_empty() {
                    true => "-".to_owned(),
                    false => keys.join(", "),
                }),
                Cell::figure(rate(tally.rate)),
                Cell::words(tally.word.as_str()),
                Cell::figure(format!("{} of {}", tally.held(), tally.trials.len())),
            ]);
        }
    }
    table(&["changed", "rate", "decision", "VALID"], &rows)
}

/// A rate as the configuration has it.
fn rate(rate: f64) -> String {
    match rate.fract() == 0.0 {
        true => text::grouped(rate as u64),
        false => rate.to_string(),
    }
}

fn tiles(session: &Session) -> Vec<Tile> {
    let minutes = |s: f64| format!("{:.1} min", s / 60.0);
    let found = session.found();
    let full = match &session.full {
        Some(full) if full.valid => "VALID",
        Some(_) => "INVALID",
        None => "not run",
    };
    let unit = session.plan.kind.unit();
    let tiles = [
        (unit, found.map_or_else(|| "none".to_owned(), rate)),
        ("the full run", full.to_owned()),
        ("trials", text::grouped(session.finished.len() as u64)),
        ("time spent", minutes(session.spent_s)),
        ("budget", minutes(session.plan.budget_s)),
    ];
    tiles.map(|(name, value)| (name.to_owned(), value)).into()
}

/// What limits the rate: the last trial that failed, and the full run.
fn limit(session: &Session) -> String {
    let mut html = String::new();
    if let Some((rate, record)) = &session.invalid {
        let (rate, text, by) = (self::rate(*rate), record.text(), &record.limited_by);
        html += &paragraph(&format!("The last trial that failed, at {rate}: {text}."));
        html += &paragraph(by);
    }
    if let Some(full) = &session.full {
        let said = format!(
            "The full run: {}, {}/s.",
            full.text(),
            text::rate(full.achieved)
        );
        html += &paragraph(&said);
    }
    match html.is_empty() {
        true => paragraph("No trial failed, and there was no full run."),
        false => html,
    }
}

/// The page of a session on the configuration `config`. `diff` is the change of the configuration,
/// line by line; `note` says which keys were not tried.
pub fn tuning(session: &Session, config: &str, diff: &[String], note: &str) -> String {
    let full = session.full.as_ref().is_none_or(|full| full.valid);
    let verdict = match (&session.halt, session.found()) {
        (Some(Halt::Interrupted), _) => ("", "INTERRUPTED"),
        (Some(Halt::Unmeasured(_)), _) => ("bad", "FAILED"),
        (_, Some(_)) if full => ("good", "CERTIFIED"),
        (_, Some(_)) => ("bad", "NOT CONFIRMED"),
        (_, None) => ("bad", "NOT CERTIFIED"),
    };
    let line = session.line();
    let header = banner(
        &format!("Tuning of {config}"),
        &escape(session.plan.kind.name()),
        (verdict.0, verdict.1, &line),
        &tiles(session),
    );
    let change = match diff {
        [] => paragraph("None."),
        lines => list(&lines.iter().map(|l| format!("`{l}`")).collect::<Vec<_>>()),
    };
    let part = |title: &str, html: &str| format!("<div class=\"box\"><h3>{title}</h3>{html}</div>");
    let picture = charts(session) + &rates(session);
    let main = [
        section(
            "The result",
            &page::two(
                &part("Change of the configuration", &(change + &paragraph(note))),
                &part("What limits it", &limit(session)),
            ),
        ),
        section(
            "The search",
            &figure(
                "rates",
                "Every rate",
                &picture,
                "Filled points are VALID trials, hollow ones INVALID. Trials that were too short \
                 are left out.",
            ),
        ),
    ];
    page::document(&format!("Tuning of {config}"), &header, &main.concat())
}
