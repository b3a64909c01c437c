//! Causes that limit a run: their table, which the summary's last line and `docs/tuning.md` share,
//! and the judge that finds them.

mod judge;

use record::{Cause, Finding};

pub use judge::judge;

/// The page whose first table has a row for each cause: name, symptom, meaning and remedy.
const PAGE: &str = include_str!("../../../docs/tuning.md");
/// Lines of the page before and after the table.
const BEGINS: &str = "<!-- The program reads this table: report/src/causes/mod.rs -->";
const ENDS: &str = "<!-- up to here -->";

/// The rows of the table, in the order of [`Cause`] and of the judge's rules: an earlier cause
/// entails later ones.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let lines = PAGE.lines().skip_while(|line| *line != BEGINS);
    let lines = lines.take_while(|line| *line != ENDS);
    let rows = lines.filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    // The first two lines are the table's heading and its rule.
    rows.skip(2).map(|row| row.split(" | ").collect())
}

fn cell(cause: Cause, at: usize) -> &'static str {
    let cell = rows()
        .nth(cause as usize)
        .and_then(|row| row.get(at).copied());
    cell.unwrap_or(if at == 0 { "another" } else { "" })
}

/// The cause's name in the summary's last line.
pub fn name(cause: Cause) -> &'static str {
    cell(cause, 0)
}

/// The meaning of the cause.
pub fn means(cause: Cause) -> &'static str {
    cell(cause, 2)
}

/// The remedy for the cause.
pub fn turn(cause: Cause) -> &'static str {
    cell(cause, 3)
}

/// Formats a finding in one line.
pub fn line(f: &Finding) -> String {
    format!("{}: {}; {}", name(f.cause), f.figure, f.turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_tuning_has_a_row_for_each_cause() {
        let causes = (Cause::Accelerator as usize..Cause::Other as usize).count();
        let rows: Vec<_> = rows().collect();
        assert_eq!(rows.len(), causes);
        for row in &rows {
            let filled = row.iter().filter(|cell| !cell.is_empty()).count();
            assert_eq!((row.len(), filled), (4, 4), "{row:?}");
        }
        let known = [Cause::MaxBatch, Cause::EngineThreads, Cause::WakeUps].map(name);
        assert_eq!(known, ["max_batch", "engine threads", "wake-ups"]);
    }

    #[test]
    fn a_cause_of_an_older_summary_is_read() {
        let read: Cause = serde_json::from_str("\"send_buffer\"").expect("a cause");
        assert_eq!(
            (read, name(read), turn(read)),
            (Cause::Other, "another", "")
        );
    }
}
