//! The trials of a session on disk, one line of JSON each, so that it can go on.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tune::Trial;

/// A journal that is written.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Opens the journal of this session, and what it holds already. `head` says what the session
    /// is: a journal of another one is refused.
    pub fn open(path: &Path, head: &Value) -> Result<(Self, Vec<Trial>)> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        // A line without an end was being written when the session was broken off.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines();
        let mut trials = Vec::new();
        if let Some(first) = lines.next() {
            let theirs: Value = serde_json::from_str(first).unwrap_or_default();
            if theirs != *head {
                bail!(
                    "{}: it is the journal of another session (another configuration, or other flags): give another \
                     --session folder, or remove this one",
                    path.display()
                );
            }
            for (i, line) in lines.enumerate() {
                let trial = serde_json::from_str(line);
                trials.push(trial.with_context(|| format!("{}:{}", path.display(), i + 2))?);
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        file.set_len(whole.len() as u64)?;
        let mut journal = Journal(file);
        if whole.is_empty() {
            journal.line(&head.to_string())?;
        }
        Ok((journal, trials))
    }

    /// Adds a trial.
    pub fn add(&mut self, trial: &Trial) -> Result<()> {
        self.line(&serde_json::to_string(trial)?)
    }

    fn line(&mut self, text: &str) -> Result<()> {
        self.0.write_all(format!("{text}\n").as_bytes())?;
        // A machine that goes down shall not take an hour's trials with it.
        self.0.sync_data()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tune::{Record, Setting, Why};

    #[test]
    fn what_was_written_comes_back_but_for_a_torn_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal.jsonl");
        let trial = Trial {
            number: 1,
            why: Why::Near,
            setting: Setting {
                rate: 15_870.25,
                seconds: 1.5,
                seed: (1 << 52) - 1,
                ..Setting::default()
            },
            record: Record::default(),
        };
        let (mut journal, none) = Journal::open(&path, &json!({"a": 1})).expect("new");
        assert_eq!(none, []);
        journal.add(&trial).expect("written");
        let torn = fs::read_to_string(&path).expect("there") + "{\"number\": 2, ";
        fs::write(&path, torn).expect("written");
        let (mut journal, kept) = Journal::open(&path, &json!({"a": 1})).expect("the same");
        assert_eq!(kept, std::slice::from_ref(&trial));
        journal.add(&trial).expect("written");
        let (_, kept) = Journal::open(&path, &json!({"a": 1})).expect("the same");
        assert_eq!(kept.len(), 2);
        let error = Journal::open(&path, &json!({"a": 2})).expect_err("another");
        assert!(error.to_string().contains("another session"), "{error}");
    }
}
