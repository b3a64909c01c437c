//! What limited the run, what to turn, and what that may bring.
//!
//! Causes, figures and knobs are `qdl::stats`' own findings, the same as in the summary's last line
//! and in `docs/tuning.md`. Beside them stands the most that turning the knob can bring, from this
//! run's own figures: a stage cannot become shorter than nothing.
//!
//! What only a timeline can show, [`uneven`] finds; its rows are a table of the same page.

mod uneven;

use qdl::stats::{
    Stage,
    limits::{Cause, Finding},
    text,
};

use crate::{
    html::{escape, paragraph, prose},
    pictures::{percent, slowest, stages::Means},
    run::Run,
};

/// The stages that a cause makes longer: turning its knob brings no more than they take. None where
/// it is about a rate.
fn stages(cause: Cause) -> &'static [Stage] {
    match cause {
        Cause::Accelerator | Cause::Rate | Cause::IssueThread | Cause::Cores => &[],
        Cause::Link | Cause::SendBuffer | Cause::WakeUps | Cause::Network => &[Stage::Network],
        Cause::Slots | Cause::Posting => &[Stage::IssueToPost],
        Cause::MaxBatch | Cause::Engine => &[Stage::Queue, Stage::Compute],
        Cause::EngineThreads => &[Stage::Queue],
        Cause::NicThread => &[Stage::Network, Stage::Completion],
        Cause::Completion => &[Stage::Completion],
    }
}

/// The most that turning a cause's knob can bring, by this run's figures.
pub fn at_most(cause: Cause, run: &Run) -> Option<String> {
    let r = &run.summary.run;
    let stages = stages(cause);
    if cause == Cause::IssueThread {
        let means = Means::of(run);
        let (late, whole) = (means.scheduled?, means.loadgen?);
        let share = percent(late / whole.max(1e-9));
        let late = text::time_us(late);
        return Some(format!(
            "At most `scheduled -> issue`: {late} of LoadGen's mean, {share} of it."
        ));
    }
    let mean = |s: Stage| r.stages.get(s).map_or(0.0, |row| row.mean_us);
    let total = mean(Stage::Total);
    if stages.is_empty() || total <= 0.0 {
        return None;
    }
    let names: Vec<String> = stages.iter().map(|s| format!("`{}`", s.label())).collect();
    let us: f64 = stages.iter().map(|s| mean(*s)).sum();
    let share = percent(us / total);
    Some(format!(
        "At most {}: {} of {} on average, {share}.",
        names.join(" and "),
        text::time_us(us),
        text::time_us(total)
    ))
}

/// A finding's card: name, and what is seen, what it means, what to turn, what that brings.
fn card(name: &str, rows: [&str; 4], first: bool) -> String {
    let class = if first { "card first" } else { "card" };
    let names = ["Seen", "Means", "Turn", "Brings"];
    let rows: String = names
        .iter()
        .zip(rows)
        .map(|(name, text)| format!("<dt>{name}</dt><dd>{}</dd>", prose(text)))
        .collect();
    format!(
        "<li class=\"{class}\"><h3>{}</h3><dl>{rows}</dl></li>",
        escape(name)
    )
}

fn of_finding(run: &Run, finding: &Finding, first: bool) -> String {
    let row = finding.cause.row();
    let at_most = at_most(finding.cause, run);
    let at_most = at_most.map_or_else(String::new, |text| format!(" {text}"));
    let brings = format!("{}.{at_most}", row.brings);
    let rows = [&finding.figure, row.means, &finding.turn, &brings];
    card(row.name, rows, first)
}

/// The findings, the strongest first, behind what is uneven, which explains what totals only show;
/// and what the slowest samples have in common.
pub fn html(run: &Run) -> String {
    let limits = &run.summary.run.limits;
    // A loss explains what is uneven, and not the other way round.
    let findings = &limits.findings[..];
    let lost = findings.first().filter(|f| f.cause == Cause::Accelerator);
    let (lost, findings) = findings.split_at(usize::from(lost.is_some()));
    let mut cards = String::new();
    for finding in lost {
        cards.push_str(&of_finding(run, finding, true));
    }
    for u in uneven::of(run) {
        let rows = [&u.seen, u.row.means, u.row.turn, u.row.brings];
        cards.push_str(&card(u.row.name, rows, cards.is_empty()));
    }
    for finding in findings {
        cards.push_str(&of_finding(run, finding, cards.is_empty()));
    }
    let mut out = String::new();
    if limits.findings.is_empty() {
        let line = match limits.line.as_str() {
            "" => "Nobody has judged what limited this run.".to_owned(),
            line => format!("What limited this run: {line}."),
        };
        out.push_str(&paragraph(&line));
    }
    if !cards.is_empty() {
        out.push_str(&format!("<ol class=\"cards\">{cards}</ol>"));
    }
    let slow = run.timeline.iter();
    let slow: Vec<String> = slow
        .flat_map(|t| slowest::common(run, &t.slowest))
        .collect();
    if !slow.is_empty() {
        out.push_str(&paragraph(&slow.join(" ")));
    }
    out
}
