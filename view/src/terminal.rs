//! Renders a report as text for a terminal. Charts, bars and notes on pictures are left out.

use crate::{
    WIDTH, cut,
    model::{Cell, Part, Section},
    wrap,
};

/// Longest text of a cell, in characters.
const CELL: usize = 46;
const BOLD: &str = "1";

/// All sections with tables or facts, in lines of at most [`WIDTH`] characters.
pub fn sections(sections: &[Section], color: bool) -> String {
    let bold = |text: &str| match color {
        true => format!("\x1b[{BOLD}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let section = |(title, all): &Section| match parts(all) {
        text if text.is_empty() => text,
        text => format!("\n{}\n{text}", bold(&title.to_uppercase())),
    };
    sections.iter().map(section).collect()
}

/// All parts, in lines of at most [`WIDTH`] characters.
pub fn parts(all: &[Part]) -> String {
    all.iter().map(part).collect()
}

fn part(part: &Part) -> String {
    match part {
        Part::Words(_, text) => lines("", text),
        Part::List(all) => all.iter().map(|line| lines("- ", line)).collect(),
        Part::Table(heading, rows) => table(heading, rows),
        Part::Facts(page) => page.to_string(),
        Part::Group(_, all) => parts(all),
        Part::Two(left, right) => parts(left) + &parts(right),
        Part::Figure(_, title, all, _) => match parts(all) {
            text if text.is_empty() => text,
            text => format!("\n{title}\n{text}"),
        },
        Part::Card(name, terms) => {
            let terms = terms.iter().map(|(_, text)| text.as_str());
            lines(
                "- ",
                &format!("{name}: {}", terms.collect::<Vec<_>>().join("; ")),
            )
        }
        Part::Title(title) => format!("{title}\n"),
        Part::Bar(_) | Part::Chart(_) | Part::Folded(..) => String::new(),
    }
}

fn lines(begin: &str, text: &str) -> String {
    let all = wrap(&text.replace('`', ""), WIDTH - begin.len()).into_iter();
    let indent = " ".repeat(begin.len());
    let line = |(i, line)| format!("{}{line}\n", if i == 0 { begin } else { &indent });
    all.enumerate().map(line).collect()
}

/// A table without its bars; columns that do not fit follow below, behind the first column.
fn table(heading: &[String], rows: &[Vec<Cell>]) -> String {
    let text = |cell: &Cell| match cell {
        Cell::Words(text) | Cell::Key(_, text) => (cut(&text.replace('`', ""), CELL), false),
        Cell::Figure(text) => (cut(text, CELL), true),
        Cell::Bar(_) => (String::new(), false),
    };
    let column = |at: usize| -> Vec<(String, bool)> {
        let cells = rows
            .iter()
            .map(|row| row.get(at).map_or((String::new(), false), text));
        let is_figure = rows
            .first()
            .and_then(|row| row.get(at))
            .is_some_and(|cell| text(cell).1);
        let title = heading.get(at).map(|title| (title.clone(), is_figure));
        title.into_iter().chain(cells).collect()
    };
    let count = rows
        .iter()
        .map(Vec::len)
        .chain([heading.len()])
        .max()
        .unwrap_or(0);
    let columns = (0..count).map(column).map(|cells| {
        let width = cells
            .iter()
            .map(|(cell, _)| cell.chars().count())
            .max()
            .unwrap_or(0);
        (width, cells)
    });
    let columns: Vec<_> = columns.filter(|(width, _)| *width > 0).collect();
    let Some((first, rest)) = columns.split_first() else {
        return String::new();
    };
    let mut out = String::new();
    let mut rest = rest.iter().peekable();
    loop {
        let (mut block, mut used) = (vec![first], first.0);
        while let Some(next) = rest.next_if(|(width, _)| used + 2 + width <= WIDTH) {
            used += 2 + next.0;
            block.push(next);
        }
        for line in 0..first.1.len() {
            let cell = |(width, cells): &&(usize, Vec<(String, bool)>)| match &cells[line] {
                (text, true) => format!("{text:>width$}"),
                (text, false) => format!("{text:<width$}"),
            };
            let cells: Vec<String> = block.iter().map(cell).collect();
            out += cells.join("  ").trim_end();
            out.push('\n');
        }
        if rest.peek().is_none() {
            return out;
        }
    }
}
