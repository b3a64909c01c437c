//! The journal of a session: a line of JSON for each trial. A session that starts again reads
//! the records of its past trials from the journal, and runs only the further trials.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tune::{FinishedTrial, Halt, TrialRecord, TrialRunner, TrialSetting};

/// A journal, and the system that runs the trials missing in the journal.
pub struct Journal<'a> {
    file: File,
    past: VecDeque<FinishedTrial>,
    /// Past full runs. With a larger budget, further trials come before the full run.
    full: VecDeque<FinishedTrial>,
    system: &'a mut dyn TrialRunner,
    trials: usize,
    spent_s: f64,
    budget_s: f64,
}

impl<'a> Journal<'a> {
    /// Opens the journal of the session that `head` describes. Errors if the file is another's.
    pub fn open(
        path: &Path,
        head: &Value,
        system: &'a mut dyn TrialRunner,
        budget_s: f64,
    ) -> Result<Self> {
        let at = || path.display().to_string();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(at)?;
        let text = fs::read_to_string(path).with_context(at)?;
        // Drop a line without an end: the session was interrupted while it wrote that line.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        file.set_len(whole.len() as u64).with_context(at)?;
        let mut trials = VecDeque::new();
        for (i, line) in whole.lines().enumerate().skip(1) {
            let trial = serde_json::from_str::<FinishedTrial>(line);
            trials.push_back(trial.with_context(|| format!("{}:{}", at(), i + 1))?);
        }
        let trials = trials.into_iter();
        let (full, past) = trials.partition(|t: &FinishedTrial| t.setting.full);
        let mut journal = Journal {
            file,
            past,
            full,
            system,
            trials: 0,
            spent_s: 0.0,
            budget_s,
        };
        match whole.lines().next() {
            None => journal.line(&head.to_string())?,
            Some(first) if serde_json::from_str::<Value>(first).ok().as_ref() == Some(head) => {
                eprintln!("going on behind {} trials of {}", journal.past.len(), at());
            }
            Some(_) => bail!(
                "{}: it is the journal of another session (another configuration, or other flags): \
                 give another --output folder, or remove this one",
                at()
            ),
        }
        Ok(journal)
    }

    fn line(&mut self, text: &str) -> Result<()> {
        self.file.write_all(format!("{text}\n").as_bytes())?;
        // A power failure must not lose an hour of trials.
        self.file.sync_data()?;
        Ok(())
    }

    fn replay(&mut self, setting: &TrialSetting) -> Result<Option<TrialRecord>> {
        if setting.full {
            let same = self.full.iter().find(|t| t.setting == *setting);
            return Ok(same.map(|t| t.record.clone()));
        }
        match self.past.pop_front() {
            Some(trial) if trial.setting != *setting => bail!(
                "the journal has a trial at {} where this session runs one at {}: give another \
                 --output folder",
                trial.setting.rate,
                setting.rate
            ),
            trial => Ok(trial.map(|t| t.record)),
        }
    }

    fn add(&mut self, setting: &TrialSetting, record: &TrialRecord) -> Result<()> {
        let (setting, record) = (setting.clone(), record.clone());
        self.line(&serde_json::to_string(&FinishedTrial { setting, record })?)
    }
}

impl TrialRunner for Journal<'_> {
    fn run(&mut self, setting: &TrialSetting, known: &str) -> Result<TrialRecord, Halt> {
        let failed = |e: anyhow::Error| Halt::Unmeasured(format!("{e:#}"));
        self.trials += 1;
        let past = self.replay(setting).map_err(failed)?;
        if let Some(record) = past {
            self.spent_s += record.cost_s;
            return Ok(record);
        }
        let record = self.system.run(setting, known)?;
        self.spent_s += record.cost_s;
        self.add(setting, &record).map_err(failed)?;
        let minutes = |s: f64| format!("{}:{:02}", (s / 60.0) as u64, (s % 60.0) as u64);
        let name = match setting.full {
            true => "full run".to_owned(),
            false => format!("trial {:3}", self.trials),
        };
        eprintln!(
            "{name:9}  {:>10}  {:50}  {known}  [{} of {}]",
            setting.rate,
            record.text(),
            minutes(self.spent_s),
            minutes(self.budget_s)
        );
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tune::{Session, SessionPlan};

    /// VALID up to 1,000 per second; interrupted after this many trials.
    struct Upto(usize);

    impl TrialRunner for Upto {
        fn run(&mut self, setting: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
            self.0 = self.0.checked_sub(1).ok_or(Halt::Interrupted)?;
            let mut record = TrialRecord::default();
            (record.valid, record.cost_s) = (setting.rate <= 1000.0, 1.5);
            Ok(record)
        }
    }

    #[test]
    fn an_interrupted_session_goes_on_with_a_larger_budget_as_if_it_had_not_been() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal.jsonl");
        let session = |head: Value, runs: usize, budget_s: f64| {
            let mut system = Upto(runs);
            let mut journal = Journal::open(&path, &head, &mut system, budget_s)?;
            let mut plan = SessionPlan::default();
            (plan.first, plan.least, plan.most, plan.near) = (90.0, 1.0, 1e6, 1.03);
            (plan.seconds, plan.full_seconds, plan.budget_s) = (1.0, Some(2.0), budget_s);
            let mut session = Session::new(plan);
            session.go(&mut journal);
            anyhow::Ok((session, runs - system.0))
        };
        let (first, ran) = session(json!(1), 7, 60.0).expect("a session");
        assert_eq!((first.halt, ran), (Some(Halt::Interrupted), 7));
        let torn = fs::read_to_string(&path).expect("there") + "{\"setting\": 2, ";
        fs::write(&path, torn).expect("written");
        // This session ends with its budget, and with a full run of the certified rate.
        let (second, _) = session(json!(1), 100, 30.0).expect("the same");
        assert!(
            second.full().is_some() && second.halt == Some(Halt::Budget),
            "{second:?}"
        );
        let (third, ran) = session(json!(1), 100, 300.0).expect("the same");
        assert!((970.0..=1000.0).contains(&third.found().expect("a rate")));
        assert_eq!(third.halt.as_ref(), None);
        assert_eq!(ran, third.finished.len() + 1 - second.finished.len());
        let (again, ran) = session(json!(1), 0, 300.0).expect("the same");
        assert_eq!((again, ran), (third, 0));
        let error = session(json!(2), 0, 1.0).expect_err("another");
        assert!(error.to_string().contains("another session"), "{error}");
    }
}
