//! Prints findings by result and file, with the command that mends each.

use std::collections::BTreeMap;

use crate::{
    describe::escape::visible,
    explain::{self, Match},
    official::ScriptResult,
    round::Round,
    rules::RuleFinding,
};

/// Prints the scripts' results. Each complaint of the checker names the matching findings.
pub fn scripts(round: &Round, findings: &[RuleFinding], scripts: &[ScriptResult]) -> String {
    let mut out = String::new();
    for ran in scripts {
        let word = if ran.good { "passed" } else { "FAILED" };
        out += &format!("{}: {word}\n", ran.what);
        if ran.good {
            continue;
        }
        for (line, word) in explain::lines(round, findings, &ran.lines) {
            out += &format!("    {}\n", visible(line));
            match word {
                _ if !ran.is_checker => {}
                Match::Found(rules) => out += &format!("        found as {}\n", rules.join(", ")),
                Match::Follows => {}
                Match::Unexpected => out += "        UNEXPECTED: nothing found here says so\n",
            }
        }
    }
    if !scripts.is_empty() {
        out.push('\n');
    }
    out
}

/// Number of the checker's complaints without a matching finding.
pub fn unexpected(round: &Round, findings: &[RuleFinding], scripts: &[ScriptResult]) -> usize {
    let bad = scripts.iter().filter(|ran| ran.is_checker && !ran.good);
    let words = bad.flat_map(|ran| explain::lines(round, findings, &ran.lines));
    words.filter(|(_, word)| *word == Match::Unexpected).count()
}

/// The title above findings that concern several results.
const SEVERAL: &str = "several results";

/// The line where no rule finds anything. `expected`: failures of scripts are a rehearsal's.
pub fn no_finding(scripts: &[ScriptResult], expected: bool) -> &'static str {
    match scripts.iter().any(|ran| !ran.good) {
        true if expected => "nothing else is missing: a rehearsal cannot have the rest",
        true => "the rules here find nothing, but a script above failed: mend that first",
        false => "nothing is missing: the tree keeps to every rule that a program can see",
    }
}

/// Prints the findings; without any, the line `none`.
pub fn page(findings: &[RuleFinding], none: &str) -> String {
    let mut out = String::new();
    if findings.is_empty() {
        return format!("{none}\n");
    }
    // Print a finding that concerns several files once.
    let mut groups: Vec<Vec<&RuleFinding>> = Vec::new();
    let mut known: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for finding in findings {
        let group = known.entry((finding.rule.id, &finding.what));
        let group = group.or_insert(groups.len());
        match groups.get_mut(*group) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    let mut by_result: BTreeMap<&str, Vec<Vec<&RuleFinding>>> = BTreeMap::new();
    for group in groups {
        let result = group[0].result.as_str();
        let one = group.iter().all(|f| f.result == result);
        by_result
            .entry(if one { result } else { SEVERAL })
            .or_default()
            .push(group);
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
        let finding = |place: &str, what: &str| RuleFinding {
            rule: rules::RUN_LOG,
            result: "sys m Offline".to_owned(),
            place: place.to_owned(),
            what: what.to_owned(),
            make: "frontend --mode accuracy".to_owned(),
        };
        let all = [
            finding("results/sys/m/Offline/accuracy/a", "it is not there"),
            finding("results/sys/m/Offline/accuracy/b", "it is empty"),
        ];
        let text = page(&all, "");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "sys m Offline");
        assert_eq!(lines[1], "  run.log  accuracy/a: it is not there");
        let expected = "  makes 2 of these right:  frontend --mode accuracy";
        assert_eq!(lines[3], expected);
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
        let mut several = vec![finding("results/sys/m/Offline/accuracy/a", "no commit"); 9];
        several[8].result = "sys m Server".to_owned();
        several[8].place = "results/sys/m/Server/accuracy/a".to_owned();
        let text = page(&several, "");
        assert_eq!(text.matches("no commit").count(), 1);
        assert!(text.starts_with("several results\n"), "{text}");
    }
}
