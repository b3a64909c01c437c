//! The page of one run.
//!
//! The page is one file with style sheet, tables, data and script; its policy forbids loading
//! anything else. Without scripts only the charts are missing.

pub mod head;

use record::{DEFAULT, RunFolder};

use crate::{
    advice,
    embedded::record,
    html::{Cell, boxed, escape, list, paragraph, table},
    pictures::{
        connections, course, engines, ledger, limits, percentiles, slowest, stages, threads,
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

/// A part of a page under its heading.
pub fn section(title: &str, html: &str) -> String {
    format!("<section><h2>{}</h2>{html}</section>\n", escape(title))
}

/// Places two parts side by side, if there is room.
pub fn two(left: &str, right: &str) -> String {
    format!("<div class=\"two\"><div>{left}</div><div>{right}</div></div>")
}

/// Why LoadGen does not call the run valid, and whether the run would count in a submission.
fn counts(run: &RunFolder) -> String {
    let r = &run.summary.run;
    let mut html = String::new();
    if !r.reasons.is_empty() {
        html.push_str(&format!("<h3>Why it is not valid</h3>{}", list(&r.reasons)));
    }
    let early = r.loadgen.as_ref().and_then(|l| l.early_stopping.as_ref());
    if let Some(early) = early {
        let met = if early.met { "met" } else { "not met" };
        html.push_str(&format!("<h3>Early stopping: {met}</h3>"));
        let needs = early.needs.map_or_else(String::new, |n| {
            format!(" It needs {} queries.", text::grouped(n))
        });
        html.push_str(&paragraph(&format!("{}{needs}", early.text)));
    }
    html.push_str("<h3>Would it count in a submission?</h3>");
    if r.would_not_count.is_empty() && r.fabric_notes.is_empty() {
        html.push_str(&paragraph(
            "Nothing that the run itself knows speaks against it.",
        ));
    } else {
        html.push_str(&paragraph("No:"));
        let said = r.would_not_count.iter();
        // Omit notes on the fabric that a rule repeats.
        let told = |note: &&String| !r.would_not_count.iter().any(|w| w.contains(note.as_str()));
        let lines: Vec<&String> = said.chain(r.fabric_notes.iter().filter(told)).collect();
        html.push_str(&list(&lines));
    }
    let refusals = r.system.refusals.iter().map(text::refusal);
    let lines: Vec<_> = refusals
        .chain(text::with_busy(&r.system.accelerators))
        .collect();
    if !lines.is_empty() {
        html.push_str(&format!("<h3>Failed requests</h3>{}", list(&lines)));
    }
    if !r.system.losses.is_empty() {
        let lines: Vec<String> = r.system.losses.iter().map(ToString::to_string).collect();
        html.push_str(&format!("<h3>Lost in mid-run</h3>{}", list(&lines)));
    }
    format!("<div class=\"box\">{html}</div>")
}

/// The settings: changed ones first, then those left at their default.
fn settings(run: &RunFolder) -> String {
    let r = &run.summary.run;
    let row = |s: &record::SettingRecord| {
        vec![
            Cell::words(format!("`{}`", s.name)),
            Cell::words(&s.given.value),
            Cell::words(&s.given.from),
        ]
    };
    let heading = ["setting", "value", "from"];
    let (defaults, set): (Vec<_>, Vec<_>) =
        r.settings.iter().partition(|s| s.given.from == DEFAULT);
    let mut html = String::new();
    if !set.is_empty() {
        let rows: Vec<_> = set.into_iter().map(row).collect();
        html.push_str(&table(&heading, &rows));
    }
    if !defaults.is_empty() {
        let rows: Vec<_> = defaults.into_iter().map(row).collect();
        let n = rows.len();
        html.push_str(&format!(
            "<details class=\"noprint\"><summary>{n} settings left at their default</summary>\
             {}</details>",
            table(&heading, &rows)
        ));
    }
    html.push_str(&list(&r.setting_notes));
    boxed("Settings", &html)
}

fn programs(run: &RunFolder) -> String {
    let rows: Vec<_> = run
        .nodes()
        .into_iter()
        .map(|(node, f)| {
            let short = |s: &Option<String>| {
                let s = s.as_deref().unwrap_or("not said");
                s.chars().take(12).collect::<String>()
            };
            let links = f
                .links
                .iter()
                .map(|l| format!("nics[{}] {}", l.nic, l.name));
            vec![
                Cell::words(node),
                Cell::words(&f.host),
                Cell::words(links.collect::<Vec<_>>().join("; ")),
                Cell::words(&f.version),
                Cell::words(short(&f.commit)),
                Cell::words(format!("`{}`", short(&f.program))),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = [
        "node",
        "host",
        "NICs",
        "release",
        "commit",
        "program (SHA-256)",
    ];
    let mut html = format!("<h3>Programs</h3>{}", table(&heading, &rows));
    let places = text::places(&run.summary.run.system.places);
    if !places.is_empty() {
        html.push_str(&format!("<h3>NUMA nodes</h3>{}", list(&places)));
    }
    let command = run.manifest.as_ref().map(|manifest| &manifest.command);
    if let Some(words) = command.filter(|words| !words.is_empty()) {
        let command = escape(&words.join(" "));
        html.push_str(&format!("<h3>Command</h3><p><code>{command}</code></p>"));
    }
    format!("<div class=\"box\">{html}</div>")
}

fn where_time_goes(run: &RunFolder) -> String {
    // Of a language model, the times of tokens come first.
    let left = format!("{}{}", percentiles::tokens(run), percentiles::picture(run));
    let above = two(&left, &stages::picture(run));
    format!("{above}{}", slowest::picture(run))
}

fn missing(run: &RunFolder) -> String {
    if run.missing.is_empty() {
        return String::new();
    }
    boxed("What is not there", &list(&run.missing))
}

pub fn of(run: &RunFolder) -> String {
    let verdict = [limits::picture(run), counts(run), missing(run)].concat();
    let made = two(&settings(run), &programs(run));
    let main = [
        section("The verdict", &verdict),
        section("What limited it, and what to turn", &advice::html(run)),
        section("Where the time goes", &where_time_goes(run)),
        section("Over time", &course::picture(run)),
        section("The network", &connections::picture(run)),
        section("The accelerators", &engines::picture(run)),
        section("The processors", &threads::picture(run)),
        section("The reconciliation", &ledger::picture(run)),
        section("What it was made with", &made),
        record(run),
    ];
    let title = format!(
        "{}: {}",
        run.name,
        head::title(&run.summary.run.scenario, run.summary.run.mode)
    );
    document(&title, &head::html(run), &main.concat())
}
