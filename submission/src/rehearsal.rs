//! Rules that a rehearsal cannot keep, each with the reason (`configs/rounds/rehearsal.yaml`).

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use crate::{
    error::{self, Error},
    rules::{self, RuleFinding},
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rehearsal {
    /// Duration of each performance run, in seconds.
    pub duration_s: f64,
    /// Target rate of each scenario in samples per second, by scenario as `--scenario` names it.
    pub target_qps: BTreeMap<String, f64>,
    /// Rules that a rehearsal breaks, with the reason.
    pub cannot_have: BTreeMap<String, String>,
    /// Further rules that a rehearsal breaks if `--checker` is not given.
    pub without_checker: BTreeMap<String, String>,
}

impl Rehearsal {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let rehearsal: Rehearsal = error::read_yaml(path)?;
        let is_rule = |id: &String| rules::ALL.iter().any(|rule| rule.id == id);
        let own = rehearsal.cannot_have.keys();
        let mut all = own.chain(rehearsal.without_checker.keys());
        match all.find(|id| !is_rule(id)) {
            None => Ok(rehearsal),
            Some(odd) => Err(Error::content(path)(format!("there is no rule {odd}"))),
        }
    }

    /// Adds the rules of `without_checker` to those of `cannot_have`.
    pub fn without_checker(mut self) -> Self {
        self.cannot_have.append(&mut self.without_checker);
        self
    }

    /// Splits findings into expected ones (`cannot_have`) and all others.
    pub fn apart(&self, findings: Vec<RuleFinding>) -> (Vec<RuleFinding>, Vec<RuleFinding>) {
        let known = |f: &RuleFinding| self.cannot_have.contains_key(f.rule.id);
        findings.into_iter().partition(known)
    }

    /// Prints each broken rule of `cannot_have`: its id, number of findings, and reason.
    pub fn table(&self, known: &[RuleFinding]) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for finding in known {
            *counts.entry(finding.rule.id).or_default() += 1;
        }
        let wide = counts.keys().map(|id| id.len()).max().unwrap_or(0);
        let mut out = "what a rehearsal cannot have\n".to_owned();
        for (id, n) in counts {
            let why = self.cannot_have.get(id).map_or("", String::as_str);
            out += &format!("  {id:<wide$}  {n:>2} x  {why}\n");
        }
        out + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rehearsal_cannot_have_stands_apart_with_its_reason() {
        let path = "../configs/rounds/rehearsal.yaml";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let rehearsal = Rehearsal::read(&path).expect("sound");
        let rules = [rules::RUN_DURATION, rules::RUN_SEEDS, rules::RUN_DURATION];
        let all = rules.map(|rule| RuleFinding::of(rule, "results/sys/m/Offline", "so it is"));
        let (known, others) = rehearsal.apart(all.to_vec());
        assert_eq!((known.len(), others.len()), (2, 1));
        assert_eq!(others[0].rule, rules::RUN_SEEDS);
        let table = rehearsal.table(&known);
        assert!(table.contains("run.duration   2 x  "), "{table}");
    }
}
