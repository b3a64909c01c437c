//! Prints JSON objects as rows of a table, one at a time while a measurement runs.

use std::fmt::Write as _;

use serde_json::Value;

/// Heading, least width, JSON path of the value in a row, and decimal places of a fraction.
pub type Column = (&'static str, usize, &'static str, usize);

/// A table. The first column is left-aligned, the others right-aligned.
pub struct Table<'a>(&'a [Column]);

impl<'a> Table<'a> {
    /// Prints the heading. A column is at least as wide as its heading.
    pub fn new(columns: &'a [Column]) -> Self {
        let table = Table(columns);
        table.line(|column| column.0.to_owned());
        table
    }

    pub fn row(&self, row: &Value) {
        let value = |key: &str| row.pointer(&format!("/{key}")).unwrap_or(&Value::Null);
        self.line(|(.., key, digits)| cell(value(key), *digits));
    }

    fn line(&self, cell: impl Fn(&Column) -> String) {
        let mut line = String::new();
        for (i, column) in self.0.iter().enumerate() {
            let (cell, width) = (cell(column), column.1.max(column.0.len()));
            // Writing to a String cannot fail.
            let _ = match i {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        println!("{}", line.trim_end());
    }
}

/// Formats text unchanged, arrays as `1/2/3`, and fractions with `digits`.
fn cell(value: &Value, digits: usize) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let all: Vec<_> = all.iter().map(|value| cell(value, digits)).collect();
            all.join("/")
        }
        Value::Number(n) if n.is_f64() => format!("{:.digits$}", n.as_f64().unwrap_or(0.0)),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}
