//! What came of a session, for people: one page, as Markdown and as HTML.

use std::fmt::Write;

use crate::{
    fit,
    search::State,
    session::{self, Session},
    system::{Record, Trial},
};

/// What a page says beside the session itself.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The configuration's name.
    pub config: String,
    /// What is searched for, in words.
    pub what: String,
    /// The change to the configuration, line by line, with `-` and `+` before.
    pub diff: Vec<String>,
    /// What may be turned elsewhere.
    pub advice: Vec<String>,
}

enum Block {
    Title(u8, String),
    Text(String),
    Lines(Vec<String>),
    Table(Vec<String>, Vec<Vec<String>>),
    Curve(String),
}

/// The page as Markdown.
pub fn markdown(session: &Session, around: &Around) -> String {
    let mut out = String::new();
    for block in blocks(session, around) {
        match block {
            Block::Title(level, text) => {
                let _ = writeln!(out, "{} {text}\n", "#".repeat(level.into()));
            }
            Block::Text(text) => {
                let _ = writeln!(out, "{text}\n");
            }
            Block::Lines(lines) => {
                let _ = writeln!(out, "```diff\n{}\n```\n", lines.join("\n"));
            }
            Block::Table(head, rows) => {
                let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
                let _ = writeln!(out, "{}\n|{}", line(&head), " --- |".repeat(head.len()));
                rows.iter().for_each(|row| {
                    let _ = writeln!(out, "{}", line(row));
                });
                out.push('\n');
            }
            Block::Curve(_) => {}
        }
    }
    out
}

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1b1b1b;background:#fff}table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}\
td,th{padding:.15rem .6rem;border-bottom:1px solid #ccc;text-align:left;white-space:nowrap}pre{overflow-x:auto}\
svg{width:100%;height:auto}svg text{font-size:11px;fill:currentColor}\
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}td,th{border-color:#444}}";

/// The page as HTML: one file, without a script.
pub fn html(session: &Session, around: &Around) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>tune: {}</title><style>{STYLE}</style>\n",
        safe(&around.config)
    );
    for block in blocks(session, around) {
        let _ = match block {
            Block::Title(level, text) => writeln!(out, "<h{level}>{}</h{level}>", safe(&text)),
            Block::Text(text) => writeln!(out, "<p>{}</p>", safe(&text)),
            Block::Lines(lines) => writeln!(out, "<pre>{}</pre>", safe(&lines.join("\n"))),
            Block::Table(head, rows) => {
                let line = |tag: &str, cells: &[String]| {
                    let cells = cells.iter().map(|c| format!("<{tag}>{}</{tag}>", safe(c)));
                    format!("<tr>{}</tr>", cells.collect::<String>())
                };
                let body: String = rows.iter().map(|row| line("td", row)).collect();
                writeln!(out, "<table>{}{body}</table>", line("th", &head))
            }
            Block::Curve(svg) => writeln!(out, "{svg}"),
        };
    }
    out + "</html>\n"
}

fn safe(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}

fn blocks(session: &Session, around: &Around) -> Vec<Block> {
    let (search, unit) = (&session.search, &session.plan.unit);
    let mut page = vec![
        Block::Title(1, format!("tune: {}", around.config)),
        Block::Text(around.what.clone()),
        Block::Text(session.line()),
        Block::Text(format!(
            "{} trials of {} s, {:.0} s in all of {:.0}. No trial is a result: only the full run is.",
            session.trials.len(),
            session.plan.seconds,
            session.spent_s,
            session.plan.budget_s
        )),
    ];
    if let Some(record) = &session.confirmed {
        page.push(Block::Title(2, "The full run".to_owned()));
        page.push(Block::Text(format!(
            "{}: {}, {:.1}/s completed.",
            word(record),
            margins(record),
            record.achieved
        )));
    }
    page.push(Block::Title(2, "What binds".to_owned()));
    page.push(Block::Text(binds(session)));
    page.push(Block::Title(2, "The configuration".to_owned()));
    if around.diff.is_empty() {
        page.push(Block::Text("Nothing is to be changed.".to_owned()));
    } else {
        page.push(Block::Lines(around.diff.clone()));
    }
    page.extend(around.advice.iter().cloned().map(Block::Text));
    knobs(session, &mut page);
    if !search.seen.is_empty() {
        page.push(Block::Title(2, "Rates".to_owned()));
        if let Some(e) = &search.estimate {
            let how = if e.wall {
                "margins jump over the limit there, so it goes by verdicts".to_owned()
            } else {
                format!(
                    "there the margin grows by {:.2} % with each percent of the rate, and scatters by {:.2} %",
                    e.slope,
                    e.scatter * 100.0
                )
            };
            page.push(Block::Text(format!(
                "{}: {how}.",
                session::limit(&session.plan.goal, e, unit)
            )));
        }
        page.push(Block::Curve(curve(session, search)));
        page.push(fitted(session, search));
        let head = ["rate", "word", "trials", "VALID"]
            .map(str::to_owned)
            .to_vec();
        let row = |(rate, word, n, valid): (f64, crate::sprt::Word, usize, usize)| {
            vec![
                rate.to_string(),
                word.as_str().to_owned(),
                n.to_string(),
                valid.to_string(),
            ]
        };
        page.push(Block::Table(
            head,
            search.words().into_iter().map(row).collect(),
        ));
    }
    page.push(Block::Title(2, "Drift".to_owned()));
    let drifts = session.rough.iter().chain([search]).flat_map(|s| &s.drifts);
    let drifts: Vec<_> = drifts
        .map(|d| format!("After trial {}: {}.", d.number, d.what))
        .collect();
    if drifts.is_empty() {
        page.push(Block::Text("None was seen.".to_owned()));
    }
    page.extend(drifts.into_iter().map(Block::Text));
    page.push(Block::Title(2, "Every trial".to_owned()));
    page.push(trials(session));
    page
}

fn word(record: &Record) -> &'static str {
    if record.valid { "VALID" } else { "INVALID" }
}

fn margins(record: &Record) -> String {
    let one = |l: &crate::system::Limit| {
        format!(
            "{} at {:.1} % of its bound",
            l.name,
            100.0 * l.log_margin().exp()
        )
    };
    let all: Vec<_> = record.limits.iter().map(one).collect();
    all.join(", ")
}

/// Which limit, and which stage by the summary of the trial nearest to the limit.
fn binds(session: &Session) -> String {
    let of_search = session.search.counted().map(|s| s.number);
    let numbers: Vec<usize> = of_search.collect();
    let near = |t: &&Trial| numbers.contains(&t.number);
    let margin = |t: &&Trial| t.record.log_margin().abs();
    let nearest = session.trials.iter().filter(near);
    let Some(trial) = nearest.min_by(|a, b| margin(a).total_cmp(&margin(b))) else {
        return "No trial came near a limit.".to_owned();
    };
    let limit = trial
        .record
        .binds()
        .map_or("no limit on latency", |l| l.name.as_str());
    let by = match trial.record.limited_by.as_str() {
        "" => String::new(),
        line => format!(" Its summary says what limited it: {line}."),
    };
    format!(
        "{limit}, at {} (trial {}).{by}",
        trial.setting.rate, trial.number
    )
}

fn knobs(session: &Session, page: &mut Vec<Block>) {
    if session.plan.knobs.is_empty() {
        return;
    }
    page.push(Block::Title(2, "Knobs".to_owned()));
    let head = [
        "round",
        "knob",
        "now",
        "tried",
        "better in",
        "by chance",
        "margin lower by",
        "",
    ];
    let head = head.map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for (round, found) in session.compared.iter().enumerate() {
        for c in found {
            let word = if c.better { "turned" } else { "left" };
            rows.push(vec![
                (round + 1).to_string(),
                c.key.clone(),
                c.with.clone(),
                c.value.clone(),
                format!("{} of {}", c.wins(), c.gains.len()),
                format!("{:.3}", c.chance()),
                format!("{:.1} %", 100.0 * (1.0 - (-c.gain()).exp())),
                word.to_owned(),
            ]);
        }
    }
    page.push(Block::Table(head, rows));
    let left = session
        .plan
        .knobs
        .iter()
        .filter(|k| !session.chosen.contains_key(&k.key));
    let left: Vec<_> = left.map(|k| format!("{} ({})", k.key, k.now)).collect();
    if !left.is_empty() {
        let text = "Left as they are, as nothing else was better by the sign test and by 1 % of the rate: ";
        page.push(Block::Text(format!("{text}{}.", left.join(", "))));
    }
}

/// The curve and its band, as a table.
fn fitted(session: &Session, search: &State) -> Block {
    let scatter = search.estimate.as_ref().map_or(0.0, |e| e.scatter);
    let head = [
        "rate",
        "trials",
        "margin by the fit",
        "nine trials in ten lie within",
    ];
    let head = head.map(str::to_owned).to_vec();
    let percent = |y: f64| format!("{:.1} %", 100.0 * y.exp());
    let row = |s: &fit::Step| {
        let band = 1.645 * scatter;
        vec![
            session.plan.goal.rate(s.x).to_string(),
            s.points.to_string(),
            percent(s.y),
            format!("{} to {}", percent(s.y - band), percent(s.y + band)),
        ]
    };
    let steps = fit::isotonic(&search.points());
    Block::Table(head, steps.iter().map(row).collect())
}

/// The same as a picture.
fn curve(session: &Session, search: &State) -> String {
    let (w, h) = (640.0, 260.0);
    let points = search.points();
    let steps = fit::isotonic(&points);
    let scatter = search.estimate.as_ref().map_or(0.0, |e| e.scatter) * 1.645;
    let xs = || points.iter().map(|p| p.x);
    let (x0, x1) = (xs().fold(f64::MAX, f64::min), xs().fold(f64::MIN, f64::max));
    let ys = || points.iter().map(|p| p.y).chain([0.0]);
    let (y0, y1) = (ys().fold(f64::MAX, f64::min), ys().fold(f64::MIN, f64::max));
    let px = |x: f64| 40.0 + (x - x0) / (x1 - x0).max(1e-9) * (w - 60.0);
    let py = |y: f64| h - 30.0 - (y - y0) / (y1 - y0).max(1e-9) * (h - 50.0);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"margin against rate\"><line x1=\"40\" x2=\"{}\" \
         y1=\"{z:.1}\" y2=\"{z:.1}\" stroke=\"#c33\" stroke-dasharray=\"4 3\"/><text x=\"{}\" y=\"{:.1}\" \
         text-anchor=\"end\">the limit</text>",
        w - 20.0,
        w - 20.0,
        py(0.0) - 4.0,
        z = py(0.0)
    );
    let path = |off: f64| {
        let at = steps
            .iter()
            .map(|s| format!("{:.1},{:.1}", px(s.x), py((s.y + off).clamp(y0, y1))));
        at.collect::<Vec<_>>()
    };
    let mut band = path(scatter);
    band.extend(path(-scatter).into_iter().rev());
    let _ = write!(
        svg,
        "<polygon points=\"{}\" fill=\"#48a\" opacity=\".18\"/><polyline points=\"{}\" fill=\"none\" stroke=\"#48a\" \
         stroke-width=\"1.5\"/>",
        band.join(" "),
        path(0.0).join(" ")
    );
    for seen in search.counted() {
        let fill = if seen.valid { "#2a7" } else { "#c33" };
        let _ = write!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{fill}\"><title>trial {}: {}</title></circle>",
            px(seen.point.x),
            py(seen.point.y),
            seen.number,
            seen.rate
        );
    }
    let goal = &session.plan.goal;
    let _ = write!(
        svg,
        "<text x=\"40\" y=\"{b}\">{}</text><text x=\"{}\" y=\"{b}\" text-anchor=\"end\">{} {}</text></svg>",
        goal.rate(x0),
        w - 20.0,
        goal.rate(x1),
        safe(&session.plan.unit),
        b = h - 8.0
    );
    svg
}

fn trials(session: &Session) -> Block {
    let head = [
        "trial",
        "for",
        "rate",
        "knobs",
        "",
        "margins",
        "completed/s",
        "took",
        "counts",
    ];
    let head = head.map(str::to_owned).to_vec();
    let counted: Vec<usize> = session.search.counted().map(|s| s.number).collect();
    let row = |t: &Trial| {
        let knobs: Vec<_> = t
            .setting
            .knobs
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect();
        let counts = counted.contains(&t.number);
        vec![
            t.number.to_string(),
            t.why.word().to_owned(),
            t.setting.rate.to_string(),
            knobs.join(", "),
            word(&t.record).to_owned(),
            margins(&t.record),
            format!("{:.1}", t.record.achieved),
            format!("{:.1} s", t.record.cost_s),
            if counts {
                "in the fit"
            } else {
                "not in the fit"
            }
            .to_owned(),
        ]
    };
    Block::Table(head, session.trials.iter().map(row).collect())
}
