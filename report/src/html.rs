//! Builds HTML as text: escaping, tables, bars and figures.

use std::fmt::Write;

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
pub fn prose(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split('`').enumerate() {
        if i % 2 == 1 {
            let _ = write!(out, "<code>{}</code>", escape(part));
        } else {
            out.push_str(&escape(part));
        }
    }
    out
}

#[derive(Clone, Debug)]
pub enum Cell {
    /// Text, left-aligned.
    Words(String),
    Figure(String),
    /// HTML, not escaped.
    Raw(String),
}

impl Cell {
    pub fn words(text: impl Into<String>) -> Cell {
        Cell::Words(text.into())
    }

    pub fn figure(text: impl Into<String>) -> Cell {
        Cell::Figure(text.into())
    }
}

/// The cells of a row: a name, then figures.
pub fn row(name: Cell, figures: impl IntoIterator<Item = String>) -> Vec<Cell> {
    let figures = figures.into_iter().map(Cell::Figure);
    std::iter::once(name).chain(figures).collect()
}

/// The headings of a table, separated by `|`.
pub fn columns(headings: &str) -> Vec<&str> {
    headings.split('|').collect()
}

/// A table with a heading, which scrolls if it is too wide. Headings align as the first row.
pub fn table(heading: &[&str], rows: &[Vec<Cell>]) -> String {
    let mut out = "<div class=\"scroll\"><table><thead><tr>".to_owned();
    for (i, name) in heading.iter().enumerate() {
        let figure = rows.first().and_then(|r| r.get(i));
        let class = match figure {
            Some(Cell::Figure(_)) => " class=\"f\"",
            _ => "",
        };
        let _ = write!(out, "<th{class}>{}</th>", escape(name));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Words(text) => write!(out, "<td>{}</td>", prose(text)),
                Cell::Figure(text) => write!(out, "<td class=\"f\">{}</td>", escape(text)),
                Cell::Raw(html) => write!(out, "<td>{html}</td>"),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

pub fn boxed(title: &str, html: &str) -> String {
    format!("<div class=\"box\"><h3>{title}</h3>{html}</div>")
}

pub fn figure(id: &str, title: &str, picture: &str, note: &str) -> String {
    format!(
        "<figure id=\"{id}\"><h3>{}</h3>{picture}<figcaption>{}</figcaption></figure>",
        escape(title),
        prose(note)
    )
}

/// A cell with a name after a patch of its colour, a variable of the style sheet.
pub fn key(colour: &str, name: &str) -> Cell {
    let name = escape(name);
    Cell::Raw(format!(
        "<i style=\"background:var(--{colour})\"></i>{name}"
    ))
}

/// A bar of parts: colour, share of the whole bar, and text shown under the pointer.
pub fn bar(parts: &[(&str, f64, String)]) -> String {
    let parts = parts.iter().map(|(colour, share, title)| {
        let (percent, title) = (100.0 * share.clamp(0.0, 1.0), escape(title));
        format!(
            "<i style=\"background:var(--{colour});width:{percent:.2}%\" title=\"{title}\"></i>"
        )
    });
    format!("<div class=\"bar\">{}</div>", parts.collect::<String>())
}

pub fn list<T: AsRef<str>>(lines: &[T]) -> String {
    let mut out = "<ul>".to_owned();
    for line in lines {
        let _ = write!(out, "<li>{}</li>", prose(line.as_ref()));
    }
    out.push_str("</ul>");
    out
}

pub fn paragraph(text: &str) -> String {
    format!("<p>{}</p>", prose(text))
}

/// A paragraph that says what is missing.
pub fn absent(text: &str) -> String {
    format!("<p class=\"absent\">{}</p>", prose(text))
}
