//! Errors of a configuration: what is wrong, where, and the remedy.

use std::{fmt, io, path::PathBuf};

use super::document::TextPosition;

const MAX_SHOWN: usize = 110;

/// Error of loading a configuration.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum ConfigError {
    #[error(
        "{}: cannot read the configuration: {source}\n   = {}",
        .path.display(),
        read_help(.source)
    )]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{}: {what}\n   = a configuration is a YAML file like those in configs/",
        .path.display()
    )]
    NotText { path: PathBuf, what: String },
    #[error("{}", join(.problems))]
    Invalid { problems: Vec<Problem> },
}

/// One problem, with its place in the file, or its field in a configuration made in code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, or another source of the text; without a text, the field.
    pub origin: String,
    /// Line, from 1; 0 without a text.
    pub line: usize,
    /// Column in characters, from 1; 0 without a text.
    pub column: usize,
    /// Description of the error.
    pub what: String,
    /// The remedy.
    pub help: Option<String>,
    /// The line's text.
    pub source_line: String,
    /// Number of characters to underline, at least 1.
    pub width: usize,
}

impl Problem {
    /// Creates a problem of a field in a configuration made in code.
    pub(super) fn of_field(field: &str, what: String, help: Option<String>) -> Self {
        Problem {
            origin: field.to_owned(),
            line: 0,
            column: 0,
            what,
            help,
            source_line: String::new(),
            width: 1,
        }
    }

    /// Creates a problem at `place` of `text`; the underline covers the word that begins there.
    pub(super) fn new(
        origin: &str,
        text: &str,
        place: Option<TextPosition>,
        what: String,
        help: Option<String>,
    ) -> Self {
        let mut place = place.unwrap_or(TextPosition { line: 1, column: 1 });
        // A place after the last line moves to that line's end.
        if let (Some(last), lines) = (text.lines().last(), text.lines().count())
            && place.line > lines
        {
            place = TextPosition {
                line: lines,
                column: last.chars().count() + 1,
            };
        }
        let TextPosition { line, column } = place;
        let source_line: String = text
            .lines()
            .nth(line - 1)
            .unwrap_or_default()
            .chars()
            .map(|c| if record::is_unprintable(c) { ' ' } else { c })
            .collect();
        let width = word_width(&source_line, column);
        Problem {
            origin: origin.to_owned(),
            line,
            column,
            what,
            help,
            source_line,
            width,
        }
    }
}

/// Returns the length of the key or scalar that begins at `column`, in characters.
fn word_width(line: &str, column: usize) -> usize {
    let mut rest = line.chars().skip(column - 1);
    let width = match rest.next() {
        None => 1,
        Some(quote @ ('"' | '\'')) => 2 + rest.take_while(|c| *c != quote).count(),
        Some(_) => {
            1 + rest
                .take_while(|c| !matches!(c, ' ' | ',' | '}' | ']' | '#'))
                .count()
        }
    };
    // Exclude the colon behind a key.
    let is_key = line.chars().nth(column + width - 2) == Some(':');
    if is_key { (width - 1).max(1) } else { width }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            origin,
            line,
            column,
            what,
            ..
        } = self;
        if *line == 0 {
            write!(f, "{origin}: {what}")?;
            return self
                .help
                .iter()
                .try_for_each(|help| write!(f, "\n   = {help}"));
        }
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        // Show only the part of a long line around the place.
        let skip = (column - 1).saturating_sub(MAX_SHOWN / 2);
        let shown: String = self
            .source_line
            .chars()
            .skip(skip)
            .take(MAX_SHOWN)
            .collect();
        let left = column - 1 - skip;
        let width = self.width.clamp(1, MAX_SHOWN.saturating_sub(left).max(1));
        writeln!(f, "{origin}:{line}:{column}: {what}")?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {}", shown.trim_end())?;
        write!(f, "{margin} | {}{}", " ".repeat(left), "^".repeat(width))?;
        if let Some(help) = &self.help {
            write!(f, "\n{margin} = {help}")?;
        }
        Ok(())
    }
}

fn join(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

fn read_help(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path; working examples are in configs/",
        io::ErrorKind::PermissionDenied => "give this user the right to read it",
        io::ErrorKind::IsADirectory => "name the YAML file in that folder",
        _ => "a configuration is a YAML file like those in configs/",
    }
}
