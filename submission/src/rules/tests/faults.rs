//! One fault each: its name, the rules that it breaks, and what plants it.

use serde::Deserialize;
use serde_json::{Value, json};

use super::sound::Sound;

/// What plants a fault. Paths are those of [`Sound::at`].
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Plant {
    Remove(String),
    Write(String, String),
    Replace(String, String, String),
    /// A field of a JSON file, by its path.
    Set(String, String, Value),
    Unset(String, String),
    /// A line at the end of a run's detailed log.
    Add(String, String),
    /// Values in a run's detailed log.
    Log(Vec<(String, String, Value)>),
    /// Another user.conf that did run.
    UserConf(String),
    #[serde(skip)]
    Code(fn(&mut Sound)),
}

#[derive(Deserialize)]
pub struct Fault {
    #[serde(rename = "fault")]
    pub name: String,
    pub breaks: Vec<String>,
    #[serde(flatten)]
    plant: Plant,
}

impl Fault {
    pub fn plant(&self, s: &mut Sound) {
        match &self.plant {
            Plant::Remove(path) => s.remove(path),
            Plant::Write(path, text) => s.write(path, text),
            Plant::Replace(path, from, to) => s.replace(path, from, to),
            Plant::Set(path, field, value) => s.json(path, field, Some(value.clone())),
            Plant::Unset(path, field) => s.json(path, field, None),
            Plant::Add(run, line) => s.add(run, line),
            Plant::Log(values) => values.iter().for_each(|(run, key, v)| s.log(run, key, v)),
            Plant::UserConf(text) => user_conf(s, text),
            Plant::Code(plant) => plant(s),
        }
    }
}

pub fn all() -> Vec<Fault> {
    let code = |name: &str, rule: &str, plant| Fault {
        name: name.to_owned(),
        breaks: vec![rule.to_owned()],
        plant: Plant::Code(plant),
    };
    let mut all: Vec<Fault> = crate::error::yaml(include_str!("faults.yaml")).expect("faults");
    all.extend([
        code("an unknown scenario", "scenario.known", |s| {
            let server = "| Interactive |";
            s.rename("RESULTS/Interactive", "RESULTS/MultiStream");
            s.rename("RUNS/Interactive", "RUNS/MultiStream");
            s.replace("documentation/bandwidth.md", server, "| MultiStream |");
            for run in ["performance/run_1", "accuracy", "TEST06/performance/run_1"] {
                let run = format!("MultiStream/{run}");
                s.log(&run, "effective_scenario", &json!("MultiStream"));
            }
            // Without one of Server and Interactive the model is not whole: another fault.
            let model = s.round.models.get_mut("llama3.1-8b").expect("it");
            model.one_of.clear();
        }),
        code(
            "a test of a measured run's length, too short",
            "run.duration",
            |s| {
                s.round.tests.get_mut("TEST06").expect("a test").measured = true;
            },
        ),
        code("an accuracy log that is not cut", "accuracy.log", |s| {
            let log = "RESULTS/Offline/accuracy/mlperf_log_accuracy.json";
            s.write(log, &"[]\n".repeat(5000));
        }),
        code("answers that the round asks for", "accuracy.files", |s| {
            let model = s.round.models.get_mut("llama3.1-8b").expect("it");
            model.accuracy_files = vec!["videos/130.mp4".to_owned()];
        }),
    ]);
    all
}

/// Another user.conf that did run: the records follow.
fn user_conf(s: &Sound, text: &str) {
    s.write("RESULTS/Offline/user.conf", text);
    let hash = crate::left::sha256_of(&s.at("RESULTS/Offline/user.conf")).expect("a hash");
    for run in ["performance", "accuracy", "TEST06"] {
        s.record(&format!("Offline/{run}"), |left| {
            left.files.get_mut("user.conf").expect("it").sha256 = hash.clone();
        });
    }
}
