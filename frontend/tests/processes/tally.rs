//! Counts over all schedules.

use std::{collections::BTreeMap, fmt};

use world::plan::{Kind, Plan};

use crate::schedule::{Phase, Run};

const PHASES: [(Phase, &str); 4] = [
    (Phase::Handshake, "handshake"),
    (Phase::WarmUp, "warm-up"),
    (Phase::Run, "run"),
    (Phase::Drain, "drain"),
];

#[derive(Default)]
pub struct Tally {
    hits: BTreeMap<(Kind, Phase), u64>,
    codes: BTreeMap<Option<i32>, u64>,
    lost_connections: u64,
    sent_again: u64,
    failed: Vec<String>,
}

impl Tally {
    pub fn add(&mut self, plan: &Plan, result: &Result<Run, String>) {
        match result {
            Err(_) => self.failed.push(plan.to_string()),
            Ok(run) => {
                *self.codes.entry(run.code).or_default() += 1;
                self.lost_connections += run.lost_connections;
                self.sent_again += run.sent_again;
                for hit in &run.hits {
                    *self.hits.entry(*hit).or_default() += 1;
                }
            }
        }
    }

    /// Plans that broke a rule.
    pub fn failed(&self) -> &[String] {
        &self.failed
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept: u64 = self.codes.values().sum();
        let failed = self.failed.len();
        let (lost, again) = (self.lost_connections, self.sent_again);
        writeln!(f, "{kept} kept all rules, {failed} did not")?;
        writeln!(f, "{lost} connections lost, {again} samples sent again")?;
        let codes = self.codes.iter().map(|(code, n)| match code {
            Some(code) => format!("{n} x {code}"),
            None => format!("{n} by a signal"),
        });
        writeln!(f, "exit codes: {}\n", codes.collect::<Vec<_>>().join(", "))?;
        write!(f, "{:>10}", "fault")?;
        for (_, name) in PHASES {
            write!(f, "{name:>11}")?;
        }
        let mut kinds: Vec<_> = self.hits.keys().map(|(kind, _)| *kind).collect();
        kinds.dedup();
        for kind in kinds {
            write!(f, "\n{:>10}", kind.word())?;
            for (phase, _) in PHASES {
                let n = self.hits.get(&(kind, phase)).copied().unwrap_or(0);
                write!(f, "{n:>11}")?;
            }
        }
        Ok(())
    }
}
