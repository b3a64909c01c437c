//! The result of a session as Markdown.

use crate::session::{SearchResult, Session};

/// The page: result, change of the configuration, limit, and every rate.
pub fn markdown(session: &Session, config: &str, diff: &[String]) -> String {
    let (line, trials, spent_s) = (session.line(), session.trials, session.spent_s);
    let mut page = format!("# tune: {config}\n\n{line}\n\n{trials} trials, {spent_s:.0} s.\n\n");
    if let Some(full) = &session.full {
        page += &format!("Full run: {}, {:.1}/s.\n\n", full.text(), full.achieved);
    }
    if !diff.is_empty() {
        page += &format!("## Change\n\n```diff\n{}\n```\n\n", diff.join("\n"));
    }
    if let Some((rate, record)) = &session.invalid {
        let (text, by) = (record.text(), &record.limited_by);
        page += &format!(
            "## Limit\n\nThe last trial that failed, at {rate}: {text}. Its run: {by}\n\n"
        );
    }
    page += "## Rates\n\n| changed | rate | decision | VALID |\n| --- | --- | --- | --- |\n";
    page + &session.searches.iter().map(rows).collect::<String>()
}

fn rows(searched: &SearchResult) -> String {
    let key = |(key, value)| format!("`{key}: {value}`");
    let keys = searched.knobs.iter().map(key).collect::<Vec<_>>();
    let keys = keys.join(", ");
    let mut text = String::new();
    for tally in &searched.tallies {
        let (word, held, all) = (tally.word.as_str(), tally.held(), tally.trials.len());
        text += &format!("| {keys} | {} | {word} | {held} of {all} |\n", tally.rate);
    }
    text
}
