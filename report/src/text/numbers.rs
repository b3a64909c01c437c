//! Formats numbers with units, tables and wrapped lines.

/// Longest line in characters.
pub(super) const WIDTH: usize = 100;
/// Column where a fact's text begins, behind its label.
pub(super) const INDENT: usize = 13;

pub use record::grouped;

/// Formats a time in microseconds with three figures and a unit.
pub fn time_us(us: f64) -> String {
    if us <= 0.0 {
        return "0".to_owned();
    }
    // Times below 1 us are measured in whole nanoseconds.
    if us < 0.9995 {
        return format!("{:.0} ns", us * 1000.0);
    }
    scaled(us, &["us", "ms", "s"])
}

/// Formats a size in bytes with three figures and a decimal unit.
pub fn bytes(n: u64) -> String {
    match n {
        0..1000 => format!("{n} B"),
        _ => scaled(n as f64 / 1e3, &["kB", "MB", "GB", "TB", "PB"]),
    }
}

/// Formats a rate in Gbit/s with three figures and a unit.
pub fn bit_rate(gbit_per_s: f64) -> String {
    scaled(gbit_per_s * 1e6, &["kbit/s", "Mbit/s", "Gbit/s"])
}

/// Formats `value` with three figures, in the first unit that leaves less than 1000. Each unit is
/// 1000 times the unit before.
fn scaled(value: f64, units: &[&str]) -> String {
    let last = units.len().saturating_sub(1);
    let scale = |n: usize| (0..n).fold(value, |value, _| value / 1000.0);
    let n = (0..last).find(|n| scale(*n) < 999.5).unwrap_or(last);
    format!("{} {}", three(scale(n)), units[n])
}

/// Formats a number with two decimals below 10, one below 100, none above.
pub fn three(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a count with its noun: `1 sample`, `2,000 samples`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// Formats a count in at most seven characters: grouped below a million, three figures above.
pub fn short(n: u64) -> String {
    match n {
        0..1_000_000 => grouped(n),
        _ => scaled(n as f64 / 1e6, &["M", "G", "T", "P", "E"]),
    }
}

/// Formats a rate per second: three figures below 100, whole and grouped above.
pub fn rate(per_s: f64) -> String {
    if per_s < 99.95 {
        three(per_s.max(0.0))
    } else {
        grouped(per_s.round() as u64)
    }
}

/// Draws one bar per value, scaled to the highest. A value above 0 always shows.
pub(super) fn bars(values: impl IntoIterator<Item = f64>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values: Vec<f64> = values.into_iter().collect();
    let top = values.iter().copied().fold(0.0, f64::max);
    let bar = |v: f64| {
        if v <= 0.0 || top <= 0.0 {
            return '·';
        }
        let height = (v / top * BARS.len() as f64).ceil() as usize;
        BARS[height.clamp(1, BARS.len()) - 1]
    };
    values.into_iter().map(bar).collect()
}

/// A table with columns as wide as their cells: the first left-aligned, the others right-aligned.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Left-aligns all columns, for words.
    left: bool,
}

impl Table {
    pub(super) fn new(heading: &[&str]) -> Self {
        Table {
            rows: vec![heading.iter().map(|&s| s.to_owned()).collect()],
            left: false,
        }
    }

    /// The same table with all columns left-aligned.
    pub(super) fn left(self) -> Self {
        Table { left: true, ..self }
    }

    /// Adds a row; missing cells stay blank.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// All rows, one per line, with two blanks between columns.
    pub(super) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(c));
            cells.map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if c == 0 {
                    line.push_str(&format!("{cell:<width$}"));
                } else if self.left {
                    line.push_str(&format!("  {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Wraps at blanks into lines of at most `width` characters; splits a longer word.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (i, piece) in letters.chunks(width.max(1)).enumerate() {
            let gap = usize::from(used > 0 && i == 0);
            if used > 0 && used + gap + piece.len() > width {
                lines.push(String::new());
                used = 0;
            }
            if let Some(line) = lines.last_mut() {
                if used > 0 && gap == 1 {
                    line.push(' ');
                    used += 1;
                }
                line.extend(piece);
            }
            used += piece.len();
        }
    }
    lines
}

/// The first `most` characters; an ellipsis replaces the rest.
pub fn head(text: &str, most: usize) -> String {
    ends(text, most, 0)
}

/// The last `most` characters, which show a path's end and line; an ellipsis replaces the rest.
pub fn tail(text: &str, most: usize) -> String {
    ends(text, most, most - 1)
}

/// Shortens a name to `width` characters; keeps both ends, since connection names end in an index.
pub fn cut(name: &str, width: usize) -> String {
    ends(name, width, width / 3)
}

/// Shortens `text` to `most` characters; the last `tail` characters stay.
fn ends(text: &str, most: usize, tail: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let (head, end) = (
        &letters[..most - tail - 1],
        &letters[letters.len() - tail..],
    );
    head.iter().chain(&['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
    #[test]
    fn wrapping_loses_no_word(words in prop::collection::vec("[a-z]{1,30}", 0..40), width in 30usize..60) {
        let lines = wrap(&words.join(" "), width);
        prop_assert!(lines.iter().all(|l| l.chars().count() <= width));
        let back: Vec<String> = lines.join(" ").split_whitespace().map(str::to_owned).collect();
        prop_assert_eq!(back, words);
    }
    }

    #[test]
    fn times_have_three_figures_and_a_unit() {
        let times = [
            0.0, 0.001, 0.9994, 0.9996, 9.994, 9.996, 12.34, 999.4, 999.6, 3.6e9,
        ];
        assert_eq!(
            times.map(time_us).join(", "),
            "0, 1 ns, 999 ns, 1.00 us, 9.99 us, 10.0 us, 12.3 us, 999 us, 1.00 ms, 3600 s"
        );
    }

    #[test]
    fn texts_are_cut_where_they_say_least() {
        assert_eq!(cut("acc-a/0", 7), "acc-a/0");
        assert_eq!(cut("digest-accelerator-b/1", 17), "digest-acce…r-b/1");
        assert_eq!(tail("/a/long/folder/user.conf:117", 14), "…user.conf:117");
        assert_eq!(head("2085463073848966840", 8), "2085463…");
    }

    #[test]
    fn counts_rates_and_bytes() {
        let expected = "0 999 1,000 1,234,567";
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped).join(" "), expected);
        let expected = "0.50 99.0 100 12,346";
        assert_eq!([0.5, 99.0, 99.96, 12_345.6].map(rate).join(" "), expected);
        assert_eq!(
            [0, 999, 1000, 150_528, 15_050_000_000]
                .map(bytes)
                .join(", "),
            "0 B, 999 B, 1.00 kB, 151 kB, 15.1 GB"
        );
    }

    #[test]
    fn bars_reach_from_nothing_to_the_highest() {
        assert_eq!(bars([0.0, 1.0, 50.0, 100.0]), "·▁▄█");
        assert_eq!(bars([0.0, 0.0]), "··");
        assert_eq!(bars([]), "");
    }
}
