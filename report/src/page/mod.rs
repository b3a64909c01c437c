//! The report of one run, as a page and on a terminal.
//!
//! The page is one file with style sheet, tables, data and script; its policy forbids loading
//! anything else. Without scripts only the charts are missing.

pub mod head;

use record::{Cause, RunFolder};

use crate::{
    causes,
    embedded::record,
    html::{self, escape},
    model::{Cell, Part, Section, boxed, paragraph, table},
    pictures::{
        connections, course, engines, facts, ledger, loadgen, percentiles, phases, settings,
        slowest, stages, threads,
    },
    text,
};

const SCRIPT: &str = include_str!("charts.js");
/// uPlot as published; `vendor/README.md` names the version.
const UPLOT: &str = include_str!("../../vendor/uPlot.iife.min.js");
const UPLOT_LICENCE: &str = include_str!("../../vendor/uPlot.LICENSE");

/// The content security policy: a page loads nothing from outside.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// The style sheet of every page.
pub const STYLE: &str = concat!(
    include_str!("../../vendor/uPlot.min.css"),
    include_str!("style.css")
);

/// The script of every page, as elements. It draws the charts of the document, and defines
/// `drawCharts()`, which draws charts added since.
pub fn script() -> String {
    format!("<script>/*\n{UPLOT_LICENCE}\n*/\n{UPLOT}</script><script>{SCRIPT}</script>")
}

pub fn document(title: &str, header: &str, main: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{}</title><style>{STYLE}</style></head>\n<body>\
         <header class=\"top\">{header}</header>\n\
         <noscript><p class=\"absent\">Scripts are off: tables are here, charts are not.</p>\
         </noscript>\n\
         <main>{main}</main>\n\
         <footer><p>Made by <code>qdl</code>. Times are the frontend's; two nodes' clocks \
         are never compared.</p></footer>{}</body></html>\n",
        escape(title),
        script()
    )
}

/// Why LoadGen does not call the run valid, and whether the run would count in a submission.
fn counts(run: &RunFolder) -> Part {
    let r = &run.summary.run;
    let mut parts = Vec::new();
    let mut put = |title: &str, part: Part| {
        parts.extend([Part::Title(title.to_owned()), part]);
    };
    if !r.reasons.is_empty() {
        put("Why it is not valid", Part::List(r.reasons.clone()));
    }
    // Omit notes on the fabric that a rule repeats.
    let told = |note: &&String| !r.would_not_count.iter().any(|w| w.contains(note.as_str()));
    let notes = r.fabric_notes.iter().filter(told);
    let against: Vec<String> = r.would_not_count.iter().chain(notes).cloned().collect();
    let counts = match against.is_empty() {
        true => paragraph("Nothing that the run itself knows speaks against it."),
        false => Part::List(against),
    };
    put("What speaks against a submission", counts);
    let failed = r.system.refusals.iter().map(text::refusal);
    let failed: Vec<_> = failed
        .chain(text::with_busy(&r.system.accelerators))
        .chain(text::with_nans(&r.system.accelerators))
        .chain(text::with_unfetched(&r.system.accelerators))
        .collect();
    if !failed.is_empty() {
        put("Failed requests", Part::List(failed));
    }
    if !r.system.losses.is_empty() {
        let lines = r.system.losses.iter().map(ToString::to_string);
        put("Lost in mid-run", Part::List(lines.collect()));
    }
    Part::Group("box", parts)
}

/// What limited the run, and the setting to change: the judge's findings, the strongest first, with
/// the texts of the summary's last line and of `docs/tuning.md`.
fn limited(run: &RunFolder) -> Vec<Part> {
    let limits = &run.summary.run.limits;
    // This version has no texts for causes of other versions, only the finding's own line.
    let known = limits.findings.iter().filter(|f| f.cause != Cause::Other);
    let card = |f: &record::Finding| {
        let means = causes::means(f.cause).to_owned();
        let terms = vec![
            ("Seen", f.figure.clone()),
            ("Means", means),
            ("Change", f.turn.clone()),
        ];
        Part::Card(causes::name(f.cause), terms)
    };
    let cards: Vec<Part> = known.map(card).collect();
    let is_other = limits
        .findings
        .first()
        .is_some_and(|f| f.cause == Cause::Other);
    let mut parts = Vec::new();
    if cards.is_empty() || is_other {
        parts.push(paragraph(match limits.line.as_str() {
            "" => "No judgement of what limited this run is on record.".to_owned(),
            line => format!("What limited this run: {line}."),
        }));
    }
    parts.push(Part::Group("cards", cards));
    parts
}

fn programs(run: &RunFolder) -> Option<Part> {
    let row = |(node, f): (String, &record::NodeFacts)| {
        let short = |s: &Option<String>| match s {
            Some(text) => text.chars().take(12).collect::<String>(),
            None => "not recorded".to_owned(),
        };
        let links = f
            .links
            .iter()
            .map(|l| format!("nics[{}] {}", l.nic, l.name));
        let links = links.collect::<Vec<_>>().join("; ");
        let program = format!("`{}`", short(&f.program));
        let cells = [
            node,
            f.host.clone(),
            links,
            f.version.clone(),
            short(&f.commit),
            program,
        ];
        cells.map(Cell::Words).to_vec()
    };
    let rows: Vec<_> = run.nodes().into_iter().map(row).collect();
    let heading = "node|host|NICs|release|commit|program (SHA-256)";
    let mut parts = Vec::new();
    if !rows.is_empty() {
        parts.push(table(heading, rows));
    }
    let manifest = run.manifest.iter();
    for m in manifest.filter(|m| !m.command.is_empty()) {
        let version = Some(&m.built).filter(|built| !built.is_empty());
        parts.extend(version.map(|built| paragraph(format!("`--version`: {built}"))));
        parts.push(Part::Words("command", format!("`{}`", m.command.join(" "))));
    }
    (!parts.is_empty()).then(|| boxed("Programs and command", parts))
}

/// The sections of a run's report.
pub fn sections(run: &RunFolder) -> Vec<Section> {
    let mut verdict = vec![loadgen::picture(run), counts(run), facts::picture(run)];
    if !run.missing.is_empty() {
        verdict.push(boxed(
            "What is not there",
            [Part::List(run.missing.clone())],
        ));
    }
    // Of a language model, the times of tokens come first.
    let latency = percentiles::tokens(run)
        .into_iter()
        .chain([percentiles::picture(run)]);
    let time = vec![
        Part::Two(latency.collect(), vec![stages::picture(run)]),
        slowest::picture(run),
    ];
    let mut sections = vec![
        ("The verdict", verdict),
        ("What limited it, and what to change", limited(run)),
        ("Where the time goes", time),
        ("Over time", vec![course::picture(run)]),
        ("The network", vec![connections::picture(run)]),
        ("The accelerators", vec![engines::picture(run)]),
        ("The processors", vec![threads::picture(run)]),
        ("The reconciliation", vec![ledger::picture(run)]),
        (
            "What it was made with",
            vec![Part::Two(
                vec![settings::picture(run)],
                programs(run).into_iter().collect(),
            )],
        ),
    ];
    if run.summary.run.phases.len() > 1 {
        sections.insert(2, ("The phases", vec![phases::picture(run)]));
    }
    sections
}

pub fn of(run: &RunFolder) -> String {
    let main = html::sections(&sections(run)) + &record(run);
    document(&head::result(run), &head::html(run), &main)
}
