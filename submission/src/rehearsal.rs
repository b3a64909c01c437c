//! What a rehearsal cannot have: findings that say nothing against whoever rehearses, each with its
//! reason. A file names them (`configs/rounds/rehearsal.yaml`).

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use crate::{
    error::{self, Error},
    rules::{self, Finding},
};

/// See the module.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rehearsal {
    /// Seconds of each performance run.
    pub duration_s: f64,
    /// Samples per second of its scenarios, by LoadGen's flag.
    pub target_qps: BTreeMap<String, f64>,
    /// Rules that a rehearsal breaks, and why it cannot keep them.
    pub cannot_have: BTreeMap<String, String>,
    /// The same where no checkout of mlcommons/inference is at hand.
    pub without_checker: BTreeMap<String, String>,
}

impl Rehearsal {
    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Content`]: a rule that there is not.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let rehearsal: Rehearsal = error::read_yaml(path)?;
        let is_rule = |id: &String| rules::ALL.iter().any(|rule| rule.id == id);
        let own = rehearsal.cannot_have.keys();
        let mut all = own.chain(rehearsal.without_checker.keys());
        match all.find(|id| !is_rule(id)) {
            None => Ok(rehearsal),
            Some(odd) => Err(Error::Content {
                path: path.to_owned(),
                what: format!("there is no rule {odd}"),
            }),
        }
    }

    /// Takes what it cannot have without a checkout for what no rehearsal can.
    pub fn without_checker(mut self) -> Self {
        self.cannot_have.append(&mut self.without_checker);
        self
    }

    /// Findings apart: those that no rehearsal can be without, and the others.
    pub fn apart(&self, findings: Vec<Finding>) -> (Vec<Finding>, Vec<Finding>) {
        let known = |f: &Finding| self.cannot_have.contains_key(f.rule.id);
        findings.into_iter().partition(known)
    }

    /// The table of what it cannot have: each rule that was broken, how often, and why.
    pub fn table(&self, known: &[Finding]) -> String {
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
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../configs/rounds/rehearsal.yaml"
        );
        let rehearsal = Rehearsal::read(Path::new(path)).expect("sound");
        let finding = |rule| Finding {
            rule,
            result: "sys m Offline".to_owned(),
            place: "results/sys/m/Offline".to_owned(),
            what: "so it is".to_owned(),
            make: String::new(),
        };
        let all = vec![
            finding(rules::RUN_DURATION),
            finding(rules::RUN_SEEDS),
            finding(rules::RUN_DURATION),
        ];
        let (known, others) = rehearsal.apart(all);
        assert_eq!((known.len(), others.len()), (2, 1));
        assert_eq!(others[0].rule, rules::RUN_SEEDS);
        let table = rehearsal.table(&known);
        assert!(table.contains("run.duration   2 x  "), "{table}");
    }
}
