//! A page of labelled facts, as text and as JSON.

use std::{fmt, io::Write};

use crate::numbers::{INDENT, WIDTH, wrap};

/// ANSI escape of a fact that is wrong.
pub const RED: &str = "1;31";
/// ANSI escape of a fact that needs attention.
pub const YELLOW: &str = "33";

#[derive(Clone, Debug)]
struct Fact {
    label: String,
    text: String,
    style: &'static str,
}

/// Labelled facts in display order.
#[derive(Clone, Debug, Default)]
pub struct Page(Vec<Fact>);

impl Page {
    /// Adds a fact. The page's text wraps long facts, and leaves a repeated label blank.
    pub fn fact(&mut self, label: impl Into<String>, text: impl Into<String>) {
        self.styled(label, text, "");
    }

    /// Adds a fact whose text has ANSI escapes on a terminal with colours.
    pub fn styled(
        &mut self,
        label: impl Into<String>,
        text: impl Into<String>,
        style: &'static str,
    ) {
        let (label, text) = (label.into(), text.into());
        self.0.push(Fact { label, text, style });
    }

    /// Adds facts with one label.
    pub fn list<T: Into<String>>(
        &mut self,
        label: &str,
        texts: impl IntoIterator<Item = T>,
        style: &'static str,
    ) {
        for text in texts {
            self.styled(label, text, style);
        }
    }

    /// Labels, empty if repeated, and texts.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str)> {
        let before = self.0.iter().map(|fact| Some(&fact.label));
        self.0
            .iter()
            .zip([None].into_iter().chain(before))
            .map(|(fact, before)| {
                let label = if before == Some(&fact.label) {
                    ""
                } else {
                    &fact.label
                };
                (label, fact.text.as_str())
            })
    }

    /// The facts as a JSON object: each label with the list of its texts.
    pub fn json(&self) -> String {
        let mut all: serde_json::Map<String, serde_json::Value> = serde_json::Map::new();
        for fact in &self.0 {
            let list = all.entry(fact.label.as_str());
            let list = list.or_insert_with(|| Vec::<String>::new().into());
            if let Some(list) = list.as_array_mut() {
                list.push(fact.text.as_str().into());
            }
        }
        serde_json::Value::Object(all).to_string() + "\n"
    }

    /// Prints the page to standard output: as JSON, or as text unless `quiet`.
    pub fn print(&self, json: bool, quiet: bool) {
        let text = match (json, quiet) {
            (true, _) => self.json(),
            (false, true) => String::new(),
            (false, false) => self.to_string(),
        };
        // Ignore the error: standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    /// The page as text, with ANSI escapes if `color` is set.
    pub fn text(&self, color: bool) -> String {
        let mut out = String::new();
        for ((mut label, text), fact) in self.facts().zip(&self.0) {
            for part in wrap(text, WIDTH - INDENT) {
                let part = match fact.style {
                    style if color && !style.is_empty() => format!("\x1b[{style}m{part}\x1b[0m"),
                    _ => part,
                };
                out += format!("{label:<INDENT$}{part}").trim_end();
                out.push('\n');
                label = "";
            }
        }
        out
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false))
    }
}

/// Formats a size in bytes with a binary unit, as limits and configuration keys do.
pub fn memory(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    for unit in ["KiB", "MiB", "GiB"] {
        if value < 1023.95 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stands_once_and_long_facts_are_wrapped() {
        let mut page = Page::default();
        page.fact("model", "word ".repeat(30));
        page.fact("note", "one");
        page.styled("note", "two", YELLOW);
        let text = page.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|l| l.len() <= WIDTH), "{text}");
        assert!(lines[1].starts_with("             word"), "{text}");
        assert_eq!(lines[2..], ["note         one", "             two"]);
        let colored = page.text(true);
        assert!(
            colored.ends_with("             \x1b[33mtwo\x1b[0m\n"),
            "{colored:?}"
        );
    }

    #[test]
    fn amounts_have_the_unit_that_suits() {
        let all = [0, 1023, 1024, 64 << 20, (1 << 30) - 1, 3 << 40].map(memory);
        let expected = ["0 B", "1023 B", "1.0 KiB", "64.0 MiB", "1.0 GiB", "3.0 TiB"];
        assert_eq!(all, expected);
    }
}
