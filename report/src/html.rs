//! Renders a report as HTML.

use std::fmt::Write;

use crate::model::{BarPart, Cell, Part, Section};

/// Escapes text for HTML and XML, in content and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML forbids control characters; format characters reorder and hide text.
            c if record::is_unprintable(c) && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text, and sets parts between backticks, such as settings, as code.
fn prose(text: &str) -> String {
    let parts = text.split('`').map(escape).enumerate();
    let code = |(i, part)| match i % 2 {
        0 => part,
        _ => format!("<code>{part}</code>"),
    };
    parts.map(code).collect()
}

/// The sections of a page.
pub fn sections(all: &[Section]) -> String {
    let section = |(title, parts): &Section| {
        let title = escape(title);
        format!("<section><h2>{title}</h2>{}</section>\n", html(parts))
    };
    all.iter().map(section).collect()
}

pub fn html(parts: &[Part]) -> String {
    parts.iter().map(part).collect()
}

fn part(part: &Part) -> String {
    match part {
        Part::Words("", text) => format!("<p>{}</p>", prose(text)),
        Part::Words(class, text) => format!("<p class=\"{class}\">{}</p>", prose(text)),
        Part::Title(title) => format!("<h4>{}</h4>", escape(title)),
        Part::List(lines) => {
            let line = |line: &String| format!("<li>{}</li>", prose(line));
            format!("<ul>{}</ul>", lines.iter().map(line).collect::<String>())
        }
        Part::Table(heading, rows) => table(heading, rows),
        Part::Facts(page) => {
            let row = |(label, text): (&str, &str)| [label, text].map(Cell::words).to_vec();
            table(&[], &page.facts().map(row).collect::<Vec<_>>())
        }
        Part::Bar(parts) => bar(parts),
        Part::Chart(chart) if chart.is_drawn() => {
            let [title, json] = [chart.title.as_str(), &chart.json()].map(escape);
            let title = match title.as_str() {
                "" => String::new(),
                title => format!("<h4>{title}</h4>"),
            };
            let plot = format!("<div class=\"plot\" data-chart=\"{json}\"></div>");
            format!("<div class=\"chart\">{title}{plot}</div>")
        }
        Part::Chart(_) => String::new(),
        Part::Group(class, parts) => format!("<div class=\"{class}\">{}</div>", html(parts)),
        Part::Two(left, right) => {
            let [left, right] = [left, right].map(|parts| html(parts));
            format!("<div class=\"two\"><div>{left}</div><div>{right}</div></div>")
        }
        Part::Folded(title, parts) => {
            let (title, parts) = (escape(title), html(parts));
            format!("<details class=\"noprint\"><summary>{title}</summary>{parts}</details>")
        }
        Part::Figure(id, title, parts, note) => {
            let (title, parts, note) = (escape(title), html(parts), prose(note));
            let note = format!("<figcaption>{note}</figcaption>");
            format!("<figure id=\"{id}\"><h3>{title}</h3>{parts}{note}</figure>")
        }
        Part::Card(name, terms) => {
            let term =
                |(term, text): &(&str, String)| format!("<dt>{term}</dt><dd>{}</dd>", prose(text));
            let terms: String = terms.iter().map(term).collect();
            format!("<div class=\"card\"><h3>{name}</h3><dl>{terms}</dl></div>")
        }
    }
}

/// A table that scrolls if it is too wide.
fn table(heading: &[String], rows: &[Vec<Cell>]) -> String {
    let mut out = "<div class=\"scroll\"><table>".to_owned();
    if !heading.is_empty() {
        out.push_str("<thead><tr>");
        for (i, name) in heading.iter().enumerate() {
            let class = match rows.first().and_then(|row| row.get(i)) {
                Some(Cell::Figure(_)) => " class=\"f\"",
                _ => "",
            };
            let _ = write!(out, "<th{class}>{}</th>", escape(name));
        }
        out.push_str("</tr></thead>");
    }
    out.push_str("<tbody>");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Words(text) => write!(out, "<td>{}</td>", prose(text)),
                Cell::Figure(text) => write!(out, "<td class=\"f\">{}</td>", escape(text)),
                Cell::Key(colour, name) => {
                    let name = escape(name);
                    write!(
                        out,
                        "<td><i style=\"background:var(--{colour})\"></i>{name}</td>"
                    )
                }
                Cell::Bar(parts) => write!(out, "<td>{}</td>", bar(parts)),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// A bar; the text of a part shows under the pointer.
fn bar(parts: &[BarPart]) -> String {
    let parts = parts.iter().map(|(colour, share, title)| {
        let (percent, title) = (100.0 * share.clamp(0.0, 1.0), escape(title));
        format!(
            "<i style=\"background:var(--{colour});width:{percent:.2}%\" title=\"{title}\"></i>"
        )
    });
    format!("<div class=\"bar\">{}</div>", parts.collect::<String>())
}
