//! The tables of faults: each row has a name, the rules that it breaks, and a plant.

use std::{fs, os::unix::fs::symlink, process::Command};

use serde::Deserialize;
use serde_json::Value;

use super::sound::{Sound, hash};
use crate::{
    layout::Division,
    round::{Round, newest},
};

/// How to plant a fault. Paths are those of [`Sound::at`].
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Plant {
    Remove(String),
    Write(String, String),
    Bytes(String, Vec<u8>),
    /// A file of so many zeros.
    Zeros(String, u64),
    Replace(String, String, String),
    /// Sets a field of a JSON file, by its path.
    Set(String, String, Value),
    Unset(String, String),
    /// Adds a line to a run's detailed log.
    Add(String, String),
    /// Sets values in a run's detailed log.
    Log(Vec<(String, String, Value)>),
    UserConf(String),
    /// Replaces a text of a configuration in a run, or in all runs of a scenario.
    Config(String, String, String, String),
    /// Replaces TEST06's log of answers in a scenario, and its record.
    Answers(String, Vec<String>),
    /// Removes a key from a run's detailed log.
    Drop(String, String),
    None(()),
    Rename(String, String),
    /// Puts a pipe in a file's place.
    Pipe(String),
    Link(String, String),
    /// Sets keys of the round.
    Round(String),
    /// Several plants, in order.
    All(Vec<Plant>),
}

#[derive(Deserialize)]
pub struct Fault {
    #[serde(rename = "fault")]
    pub name: String,
    pub breaks: Vec<String>,
    /// One of the names of [`Sound::new`].
    #[serde(default = "llama")]
    pub model: String,
    #[serde(default)]
    pub division: Division,
    /// Text of a finding.
    #[serde(default)]
    pub says: String,
    #[serde(flatten)]
    plant: Plant,
}

fn llama() -> String {
    "llama3.1-8b".to_owned()
}

impl Fault {
    /// The tree with this fault.
    pub fn planted(&self) -> Sound {
        let mut sound = Sound::new(&self.model, self.division);
        self.plant.plant(&mut sound);
        sound
    }
}

impl Plant {
    fn plant(&self, s: &mut Sound) {
        match self {
            Plant::Remove(path) => s.remove(path),
            Plant::Write(path, text) => s.write(path, text),
            Plant::Bytes(path, bytes) => s.write(path, bytes),
            Plant::Zeros(path, bytes) => {
                s.write(path, "");
                let file = fs::OpenOptions::new().write(true).open(s.at(path));
                file.and_then(|f| f.set_len(*bytes)).expect("sparse");
            }
            Plant::Replace(path, from, to) => s.replace(path, from, to),
            Plant::Set(path, field, value) => s.json(path, field, Some(value.clone())),
            Plant::Unset(path, field) => s.json(path, field, None),
            Plant::Add(run, line) => s.add(run, line),
            Plant::Log(values) => values
                .iter()
                .for_each(|(run, key, v)| s.log(run, key, Some(v))),
            Plant::UserConf(text) => {
                s.write("RESULTS/Offline/user.conf", text);
                let own = fs::read_to_string(s.at("RUNS/Offline/TEST06/user.conf"));
                s.config("Offline", "user.conf", &own.expect("text"), text);
            }
            Plant::Config(of, file, from, to) => s.config(of, file, from, to),
            Plant::Answers(scenario, lines) => {
                let log = loadgen_log::ACCURACY;
                let path = format!("RESULTS/{scenario}/TEST06/accuracy/{log}");
                let text = format!("[\n{}\n]\n", lines.join(",\n"));
                s.write(&path, text.replace("[\n\n]", "[\n]"));
                let hash = hash(&s.at(&path));
                s.record(
                    &format!("{scenario}/TEST06"),
                    &format!("logs/{log}"),
                    hash.into(),
                );
            }
            Plant::Drop(run, key) => s.log(run, key, None),
            Plant::None(()) => {}
            Plant::Rename(from, to) => s.rename(from, to),
            Plant::Pipe(path) => {
                s.remove(path);
                let made = Command::new("mkfifo").arg(s.at(path)).status();
                assert!(made.is_ok_and(|status| status.success()), "{path}");
            }
            Plant::Link(path, to) => symlink(to, s.at(path)).expect("a link"),
            Plant::Round(keys) => {
                let text = format!("{{extends: {}, {keys}}}", newest());
                let own = s.round.loadgen.clone();
                s.round = Round::parse(&text).expect(keys);
                s.round.loadgen = own;
            }
            Plant::All(plants) => plants.iter().for_each(|plant| plant.plant(s)),
        }
    }
}

pub fn all() -> Vec<Fault> {
    let tables = [
        include_str!("faults.yaml"),
        include_str!("faults_config.yaml"),
        include_str!("faults_log.yaml"),
        include_str!("faults_page.yaml"),
        include_str!("machines.yaml"),
    ];
    let tables = tables.into_iter();
    tables
        .flat_map(|text| crate::error::yaml::<Vec<Fault>>(text).expect("faults"))
        .collect()
}
