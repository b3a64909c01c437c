//! The model of a report: sections of tables, facts, words and charts. `html` renders it as a page,
//! `terminal` as text without the charts.

use crate::{Page, chart::Chart};

/// A part of a report.
#[derive(Clone, Debug)]
pub enum Part {
    /// A paragraph. Text between backticks is code. The class is one of the style sheet's, or none.
    Words(&'static str, String),
    /// A heading within a figure or a box.
    Title(String),
    /// A list of paragraphs.
    List(Vec<String>),
    /// Headings and rows. Headings align as the first row.
    Table(Vec<String>, Vec<Vec<Cell>>),
    /// Labelled facts.
    Facts(Page),
    /// A bar of coloured parts.
    Bar(Vec<BarPart>),
    /// A chart, on pages alone.
    Chart(Chart),
    /// Parts with a class of the style sheet: `box`, `charts` (side by side), `wrong`.
    Group(&'static str, Vec<Part>),
    /// Two columns, if there is room.
    Two(Vec<Part>, Vec<Part>),
    /// Parts that a page shows on demand, under a heading.
    Folded(String, Vec<Part>),
    /// A picture: its id on the page, title, parts, and how to read it.
    Figure(&'static str, String, Vec<Part>, String),
    /// A numbered finding: name, and pairs of a term and its text.
    Card(&'static str, Vec<(&'static str, String)>),
}

/// A part of a report under its heading.
pub type Section = (&'static str, Vec<Part>);

/// A part of a bar: colour, a variable of the style sheet; share of the whole bar; its text.
pub type BarPart = (&'static str, f64, String);

/// A cell of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Text, left-aligned.
    Words(String),
    /// A number, right-aligned.
    Figure(String),
    /// A name after a patch of its colour, a variable of the style sheet.
    Key(&'static str, String),
    /// A bar. A terminal leaves it out.
    Bar(Vec<BarPart>),
}

impl Cell {
    /// Text.
    pub fn words(text: impl Into<String>) -> Cell {
        Cell::Words(text.into())
    }

    /// A number with its unit.
    pub fn figure(text: impl Into<String>) -> Cell {
        Cell::Figure(text.into())
    }

    /// A name with a colour.
    pub fn key(colour: &'static str, name: impl Into<String>) -> Cell {
        Cell::Key(colour, name.into())
    }
}

/// The cells of a row: a name, then figures.
pub fn row(name: Cell, figures: impl IntoIterator<Item = String>) -> Vec<Cell> {
    let figures = figures.into_iter().map(Cell::Figure);
    std::iter::once(name).chain(figures).collect()
}

/// A table; its headings are separated by `|`.
pub fn table(headings: &str, rows: Vec<Vec<Cell>>) -> Part {
    Part::Table(headings.split('|').map(str::to_owned).collect(), rows)
}

/// A paragraph of plain words.
pub fn paragraph(text: impl Into<String>) -> Part {
    Part::Words("", text.into())
}

/// A paragraph that says what is missing.
pub fn absent(text: impl Into<String>) -> Part {
    Part::Words("absent", text.into())
}

/// Parts in a box, under a heading.
pub fn boxed(title: &str, parts: impl IntoIterator<Item = Part>) -> Part {
    let title = Part::Title(title.to_owned());
    Part::Group("box", [title].into_iter().chain(parts).collect())
}

/// A picture ([`Part::Figure`]).
pub fn figure(
    id: &'static str,
    title: impl Into<String>,
    parts: Vec<Part>,
    note: impl Into<String>,
) -> Part {
    Part::Figure(id, title.into(), parts, note.into())
}
