//! Prints findings by result and file, with the command that mends each.

use std::collections::BTreeMap;

use crate::{describe::escape::visible, official::ScriptResult, rules::RuleFinding};

/// Prints the scripts' results, with the lines of those that failed.
pub fn scripts(scripts: &[ScriptResult]) -> String {
    let mut out = String::new();
    for ran in scripts {
        let word = if ran.good { "passed" } else { "FAILED" };
        out += &format!("{}: {word}\n", ran.what);
        for line in ran.lines.iter().filter(|_| !ran.good) {
            out += &format!("    {}\n", visible(line));
        }
    }
    if !scripts.is_empty() {
        out.push('\n');
    }
    out
}

/// The title above findings that concern several results.
const SEVERAL: &str = "several results";

/// The line to print if no rule found anything. `expected`: this is a rehearsal, whose scripts may
/// fail.
pub fn no_finding(scripts: &[ScriptResult], expected: bool) -> &'static str {
    match scripts.iter().any(|ran| !ran.good) {
        true if expected => "nothing else is missing: a rehearsal cannot have the rest",
        true => "the rules here find nothing, but a script above failed: mend that first",
        false => "nothing is missing: the tree keeps to every rule that a program can see",
    }
}

/// Prints the rules that a rehearsal cannot keep: id, number of findings, reason.
pub fn excused<'a>(findings: impl Iterator<Item = (&'a str, &'a String)>) -> String {
    let mut counts: BTreeMap<(&str, &String), usize> = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding).or_default() += 1;
    }
    let wide = counts.keys().map(|(id, _)| id.len()).max().unwrap_or(0);
    let mut out = "what a rehearsal cannot have\n".to_owned();
    for ((id, why), n) in counts {
        out += &format!("  {id:<wide$}  {n:>2} x  {why}\n");
    }
    out + "\n"
}

/// Prints the findings; without any, the line `none`.
pub fn page(findings: &[RuleFinding], none: &str) -> String {
    let mut out = String::new();
    if findings.is_empty() {
        return format!("{none}\n");
    }
    // Print a finding that concerns several files once.
    let mut groups: BTreeMap<(&str, &str), Vec<&RuleFinding>> = BTreeMap::new();
    for finding in findings {
        let group = groups.entry((finding.rule.id, &finding.what));
        group.or_default().push(finding);
    }
    let mut by_result: BTreeMap<&str, Vec<Vec<&RuleFinding>>> = BTreeMap::new();
    for group in groups.into_values() {
        let result = group[0].result.as_str();
        let is_one = group.iter().all(|f| f.result == result);
        let groups = by_result.entry(if is_one { result } else { SEVERAL });
        groups.or_default().push(group);
    }
    let wide = findings.iter().map(|f| f.rule.id.len()).max().unwrap_or(0);
    for (result, groups) in by_result {
        let title = if result.is_empty() {
            "the tree"
        } else {
            result
        };
        out += &format!("{title}\n");
        let mut makes: BTreeMap<&str, usize> = BTreeMap::new();
        for group in &groups {
            let (rule, what) = (group[0].rule.id, &group[0].what);
            let places: Vec<_> = group.iter().map(|f| short(&f.place, result)).collect();
            out += &match &places[..] {
                [place] => format!("  {rule:<wide$}  {place}: {what}\n"),
                [first, .., last] => {
                    let n = places.len();
                    format!("  {rule:<wide$}  {what} ({n} places, {first} to {last})\n")
                }
                [] => String::new(),
            };
            for finding in group.iter().filter(|f| !f.make.is_empty()) {
                *makes.entry(&finding.make).or_default() += 1;
            }
        }
        for (make, n) in makes {
            out += &format!("  makes {n} of these right:  {make}\n");
        }
        out.push('\n');
    }
    let n = findings.len();
    let s = if n == 1 { "" } else { "s" };
    out += &format!("{n} finding{s}; docs/rules.md says what each rule asks for\n");
    out
}

/// Removes the folder of `result`, which the title above the finding names, from a path.
fn short<'a>(place: &'a str, result: &str) -> &'a str {
    if result.is_empty() || result == SEVERAL {
        return place;
    }
    let folder = result.replace(' ', "/");
    let rest = place.strip_prefix("results/");
    let rest = rest.and_then(|p| p.strip_prefix(&folder));
    match rest.map(|rest| rest.trim_start_matches('/')) {
        None => place,
        Some("") => "its folder",
        Some(rest) => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn findings_stand_under_their_result_with_their_command_once() {
        let finding = |place: &str, what: &str| RuleFinding::of(rules::RUN_LOG, place, what);
        let all = [
            finding("results/sys/m/Offline/accuracy/a", "it is not there"),
            finding("results/sys/m/Offline/accuracy/b", "it is empty"),
        ];
        let text = page(&all, "");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "sys m Offline");
        assert_eq!(lines[2], "  run.log  accuracy/a: it is not there");
        assert_eq!(lines[3], "  makes 2 of these right:  run it again");
        let failed = ScriptResult {
            what: "the submission checker".to_owned(),
            good: false,
            lines: Vec::new(),
            is_checker: true,
        };
        assert!(page(&[], no_finding(&[], true)).contains("nothing is missing"));
        for expected in [true, false] {
            let line = no_finding(std::slice::from_ref(&failed), expected);
            assert!(!line.contains("nothing is missing"), "{line}");
        }
        let places = ["Offline", "Server"].map(|of| format!("results/sys/m/{of}/accuracy/a"));
        let several = places.map(|place| finding(&place, "no commit"));
        let text = page(&several, "");
        assert_eq!(text.matches("no commit").count(), 1);
        assert!(text.starts_with("several results\n"), "{text}");
    }
}
