//! Configurations from templates.

/// The mapping `loadgen` of a frontend's file, for an engine of unknown speed.
///
/// LoadGen plans a run in advance, from a rate. In Offline, too low a rate makes the one query too
/// small for the minimum duration, and the run INVALID. In Server, too high a rate breaks the
/// latency bound. SingleStream needs no rate: it runs until duration and count are reached,
/// whatever the latency. It can only run out of prepared queries, twice as many as fit into the
/// duration at the expected latency. So the expected latency is shorter than any latency over a
/// network.
pub const FIRST_RUN: &str = include_str!("templates/first_run.yaml");

/// Replaces each `<<key>>` of `template` with its value. Leaves out a line with an empty value.
/// Moves a comment after two blanks to column `comments`.
pub fn fill_template(template: &str, comments: usize, values: &[(&str, String)]) -> String {
    let mut text = String::new();
    'lines: for line in template.lines() {
        let (mut rest, comment) = match line.split_once("  # ") {
            Some((yaml, comment)) if !yaml.trim().is_empty() => (yaml, comment),
            _ => (line, ""),
        };
        let mut yaml = String::new();
        while let Some((before, behind)) = rest.split_once("<<") {
            let (key, behind) = behind.split_once(">>").unwrap_or((behind, ""));
            let value = values.iter().find(|(of, _)| *of == key);
            match value.map(|(_, value)| value.as_str()) {
                Some("") => continue 'lines,
                // Keep the key, so that the configuration's check finds it.
                None => yaml.extend([before, "<<", key, ">>"]),
                Some(value) => yaml.extend([before, value]),
            }
            rest = behind;
        }
        yaml += rest;
        if !comment.is_empty() {
            yaml = format!("{:<comments$} # {comment}", yaml.trim_end());
        }
        text += yaml.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_fits_a_page() {
        assert!(FIRST_RUN.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn a_line_without_its_value_is_left_out_and_comments_are_aligned() {
        let values = [("a", "<<b>>".to_owned()), ("b", String::new())];
        let text = fill_template(
            "# a\n\na: <<a>>, <<a>>  # one\nb: <<b>>  # two\nc: 1\n",
            12,
            &values,
        );
        assert_eq!(text, "# a\n\na: <<b>>, <<b>> # one\nc: 1\n");
        assert_eq!(fill_template("a: 1  # one", 8, &[]), "a: 1     # one\n");
    }
}
