//! The page of a session of `qdl tune`.

use tune::{FinishedTrial, Halt, Session};

use crate::{
    chart::{Chart, Shape, Style, Unit},
    html,
    model::{Cell, Part, boxed, figure, paragraph, table},
    page::{
        self,
        head::{Tile, banner},
    },
    text,
};

/// A trial's place in a chart, and whether it is VALID.
type Point = (f64, f64, bool);

fn chart(title: String, unit: Unit, mut trials: Vec<Point>, bound: Option<f64>) -> Part {
    trials.sort_by(|a, b| a.0.total_cmp(&b.0));
    let x = trials.iter().map(|(x, ..)| *x).collect();
    let mut chart = Chart::new(title, Style::Scatter, (Unit::Count, unit), x);
    for (name, colour, shape, is_valid) in [
        ("VALID", "net", Shape::Filled, true),
        ("INVALID", "bad", Shape::Hollow, false),
    ] {
        let value = |(_, y, valid): &Point| if *valid == is_valid { *y } else { f64::NAN };
        chart.shaped(name, Some(colour), shape, trials.iter().map(value));
    }
    chart.bound(bound, "bound");
    Part::Chart(chart)
}

/// Two charts of the search's trials: the rate of each, and what binds at that rate.
fn charts(session: &Session) -> Part {
    let measured = |t: &&FinishedTrial| !t.setting.full && t.record.needs.is_none();
    let trials = || session.finished.iter().filter(measured);
    let rates = trials().zip(1..);
    let rates = rates.map(|(t, n)| (f64::from(n), t.setting.rate, t.record.valid));
    let part = |t: &FinishedTrial| {
        let part = t.record.binds()?.part();
        Some((t.setting.rate, part, t.record.valid))
    };
    let parts = trials().filter_map(part).collect();
    let unit = session.plan.kind.unit();
    let title = format!("Latency as a share of its bound, against {unit}");
    let parts = chart(title, Unit::Share, parts, Some(1.0));
    let title = format!("{unit} of each trial");
    let rates = chart(title, Unit::Count, rates.collect(), None);
    Part::Group("charts", vec![rates, parts])
}

/// A rate as the configuration has it.
fn rate(rate: f64) -> String {
    match rate.fract() == 0.0 {
        true => text::grouped(rate as u64),
        false => rate.to_string(),
    }
}

fn rates(session: &Session) -> Part {
    let mut rows = Vec::new();
    for search in &session.searches {
        let keys = search.knobs.iter();
        let keys = keys.map(|(key, value)| format!("`{key}: {value}`"));
        let keys = keys.collect::<Vec<_>>().join(", ");
        for tally in &search.tallies {
            rows.push(vec![
                Cell::words(&keys),
                Cell::figure(rate(tally.rate)),
                Cell::words(tally.word.as_str()),
                Cell::figure(format!("{} of {}", tally.held(), tally.trials.len())),
            ]);
        }
    }
    table("changed|rate|decision|VALID", rows)
}

fn tiles(session: &Session) -> Vec<Tile> {
    let minutes = |s: f64| format!("{:.1} min", s / 60.0);
    let full = match session.full() {
        Some(full) if full.record.valid => "VALID",
        Some(_) => "INVALID",
        None => "not run",
    };
    let found = session.confirmed().map_or_else(|| "none".to_owned(), rate);
    let trials = text::grouped(session.finished.len() as u64);
    let spent = minutes(session.spent_s) + " of " + &minutes(session.plan.budget_s);
    let names = [session.plan.kind.unit(), "the full run", "trials", "time"];
    let values = [found, full.to_owned(), trials, spent];
    names.map(str::to_owned).into_iter().zip(values).collect()
}

/// What limits the rate: the last trial that failed, and the full run.
fn limit(session: &Session) -> Vec<Part> {
    let mut said = session.limit();
    for full in session.finished.iter().filter(|trial| trial.setting.full) {
        let (record, at) = (&full.record, rate(full.setting.rate));
        let (why, completed) = (record.text(), text::rate(record.achieved));
        said.push(format!("The full run at {at}: {why}, {completed}/s."));
    }
    said.into_iter().map(paragraph).collect()
}

/// The page of a session on the configuration `config`. `diff` is the change of the configuration,
/// line by line; `note` says which keys were not tried.
pub fn tuning(session: &Session, config: &str, diff: &[String], note: &str) -> String {
    let (class, word) = match (&session.halt, session.confirmed(), session.found()) {
        (Some(Halt::Interrupted), ..) => ("", "INTERRUPTED"),
        (Some(Halt::Unmeasured(_)), ..) => ("bad", "FAILED"),
        (_, Some(_), _) => ("good", "CERTIFIED"),
        (_, None, Some(_)) => ("bad", "NOT CONFIRMED"),
        (_, None, None) => ("bad", "NOT CERTIFIED"),
    };
    let title = format!("Tuning of {config}");
    let verdict = (class, word, &session.line()[..]);
    let header = banner(&title, session.plan.kind.name(), verdict, &tiles(session));
    let diff = diff.iter().map(|line| format!("`{line}`"));
    let change = [Part::List(diff.collect()), paragraph(note)];
    let change = boxed("Change of the configuration", change);
    let limits = boxed("What limits it", limit(session));
    let result = Part::Two(vec![change], vec![limits]);
    let note = "Filled points are VALID trials, hollow ones INVALID. Trials that were too short \
                are left out.";
    let parts = vec![charts(session), rates(session)];
    let search = figure("rates", "Every rate", parts, note);
    let main = [("The result", vec![result]), ("The search", vec![search])];
    page::document(&title, &header, &html::sections(&main))
}
