//! Prints tables row by row during a measurement.

use std::fmt::Write;

/// Column widths of a table. The first column is left-aligned, the others right-aligned.
pub struct Table(Vec<usize>);

impl Table {
    /// Prints the heading. A column is at least as wide as its name.
    pub fn new(columns: &[(&str, usize)]) -> Self {
        let widths = columns.iter().map(|(name, width)| name.len().max(*width));
        let table = Table(widths.collect());
        table.row(columns.iter().map(|(name, _)| *name));
        table
    }

    /// Prints a row.
    pub fn row(&self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        let mut line = String::new();
        for (i, (cell, width)) in cells.into_iter().zip(&self.0).enumerate() {
            let cell = cell.as_ref();
            // Writing to a String cannot fail.
            let _ = match i {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        println!("{}", line.trim_end());
    }
}
