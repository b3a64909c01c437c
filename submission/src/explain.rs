//! Matches the complaints of MLCommons' checker with this crate's findings.

use std::collections::BTreeSet;

use crate::{round::Round, rules::RuleFinding};

/// How a line of the checker's output relates to the findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Findings of these rules report the same defect.
    Found(Vec<String>),
    /// The line is a consequence of other lines.
    Follows,
    /// No finding reports this defect.
    Unexpected,
}

/// Matches the checker's lines with the findings, in order. Lines between "contains errors:" and
/// "has loadgen errors" are LoadGen's: [`Match::Follows`]. Lines after a traceback follow from the
/// traceback, or are unexpected if the traceback is unexpected.
pub fn lines<'a>(
    round: &Round,
    findings: &[RuleFinding],
    lines: &'a [String],
) -> Vec<(&'a str, Match)> {
    let (mut errors, mut crash): (bool, Option<Match>) = (false, None);
    let mut out = Vec::new();
    for line in lines {
        let own = errors && !line.contains("has loadgen errors") && !line.contains("/results/");
        errors = own || line.contains("contains errors:");
        let word = match (&crash, own) {
            (Some(Match::Unexpected), _) => Match::Unexpected,
            (Some(_), _) | (None, true) => Match::Follows,
            (None, false) => self::line(round, findings, line),
        };
        if line.contains("Traceback") {
            crash = Some(word.clone());
        }
        out.push((line.as_str(), word));
    }
    out
}

/// Matches one line of the checker with the findings. If the line names a result, only findings of
/// that result count.
fn line(round: &Round, findings: &[RuleFinding], line: &str) -> Match {
    let known = round.complaints.iter().filter(|c| line.contains(&c.says));
    let known: Vec<_> = known.collect();
    if known.iter().any(|c| c.rules.is_empty()) {
        return Match::Follows;
    }
    let rules = known.iter();
    let rules = rules.flat_map(|c| c.rules.iter().map(String::as_str));
    let rules: BTreeSet<&str> = rules.collect();
    let of_it = |finding: &&RuleFinding| {
        let mut parts: Vec<_> = finding.result.split(' ').collect();
        // The checker reports a missing scenario on the model's other scenarios.
        if finding.rule.id.starts_with("scenario.") {
            parts.truncate(2);
        }
        let place = format!("results/{}", parts.join("/"));
        let of_it = line.find(&place).map(|at| &line[at + place.len()..]);
        let of_it = of_it.is_some_and(|rest| rest.starts_with(['/', ' ', ',']));
        finding.result.is_empty() || !line.contains("results/") || of_it
    };
    let found = findings.iter().filter(of_it);
    let found = found.filter(|f| rules.contains(f.rule.id));
    let found: BTreeSet<String> = found.map(|f| f.rule.id.to_owned()).collect();
    match found.is_empty() {
        true => Match::Unexpected,
        false => Match::Found(found.into_iter().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn a_complaint_is_found_of_its_own_result_or_unexpected() {
        let round = Round::find(crate::round::newest()).expect("built in");
        let found = [RuleFinding {
            rule: rules::RUN_DURATION,
            result: "sys m Offline".to_owned(),
            place: "results/sys/m/Offline/performance/run_1/log".to_owned(),
            what: "too short".to_owned(),
            make: String::new(),
        }];
        let of = |scenario: &str, words: &str| {
            let text = format!("o/results/sys/m/{scenario}/log {words}");
            line(&round, &found, &text)
        };
        let short = "Test duration less than 600s in user config";
        let expected = Match::Found(vec!["run.duration".to_owned()]);
        assert_eq!(of("Offline", short), expected);
        assert_eq!(of("Interactive", short), Match::Unexpected);
        assert_eq!(of("Offline", "qsl_rng_seed is wrong"), Match::Unexpected);
        assert_eq!(of("Offline", "something of its own"), Match::Unexpected);
        let expected = Match::Follows;
        assert_eq!(of("Offline", "SUMMARY: submission has errors"), expected);
    }

    #[test]
    fn each_complaint_names_rules_that_there_are() {
        let round = Round::find(crate::round::newest()).expect("built in");
        let named = round.complaints.iter().flat_map(|c| &c.rules);
        let odd: Vec<_> = named
            .filter(|id| rules::ALL.iter().all(|rule| rule.id != **id))
            .collect();
        assert!(odd.is_empty(), "{odd:?}");
    }
}
