//! Shows what limited the run, and the setting to change: the judge's findings, with the texts of
//! the summary's last line and of `docs/tuning.md`.

use record::{Cause, Finding, RunFolder};

use crate::{
    causes,
    html::{escape, paragraph, prose},
};

/// A finding as a card: name of the cause, its figures, its meaning, and the setting to change.
fn card(finding: &Finding, first: bool) -> String {
    let class = if first { "card first" } else { "card" };
    let name = escape(causes::name(finding.cause));
    let (seen, means) = (prose(&finding.figure), prose(causes::means(finding.cause)));
    let turn = prose(&finding.turn);
    format!(
        "<li class=\"{class}\"><h3>{name}</h3><dl><dt>Seen</dt><dd>{seen}</dd>\
         <dt>Means</dt><dd>{means}</dd><dt>Turn</dt><dd>{turn}</dd></dl></li>"
    )
}

/// The findings, strongest first.
pub fn html(run: &RunFolder) -> String {
    let limits = &run.summary.run.limits;
    // This version has no texts for causes of other versions, only the finding's own line.
    let findings = limits.findings.iter().enumerate();
    let cards = findings.filter(|(_, f)| f.cause != Cause::Other);
    let cards = cards.map(|(i, finding)| card(finding, i == 0));
    let cards: String = cards.collect();
    let is_other = limits.findings.first();
    let is_other = is_other.is_some_and(|f| f.cause == Cause::Other);
    let mut out = String::new();
    if cards.is_empty() || is_other {
        let line = match limits.line.as_str() {
            "" => "No judgement of what limited this run is on record.".to_owned(),
            line => format!("What limited this run: {line}."),
        };
        out.push_str(&paragraph(&line));
    }
    if !cards.is_empty() {
        out.push_str(&format!("<ol class=\"cards\">{cards}</ol>"));
    }
    out
}
