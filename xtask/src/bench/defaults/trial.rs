//! A trial of one group of settings: a pair of programs whose accelerator runs during the trial.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Kind, Work};
use crate::bench::pair::{Pair, Ran};

/// Samples in the data set: as images, they exceed any cache.
pub const SAMPLES: usize = 1024;

/// Folders of programs and files, and the duration of a run in seconds.
pub struct Bench<'a> {
    pub root: &'a Path,
    pub programs: PathBuf,
    pub folder: PathBuf,
    pub seconds: f64,
}

/// A key and a value to try.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    value: &'static str,
    place: Place,
}

/// The place of a key in the configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Each of the frontend's `nics`.
    Nic,
    /// Each of both programs' `nics`.
    BothNics,
    /// Top level of the frontend's file.
    Top,
    /// Top level of both files.
    BothTops,
}

const fn key(name: &'static str, value: &'static str, place: Place) -> Key {
    Key { name, value, place }
}

/// The keys and values that the sweep tries.
pub const KEYS: &[Key] = &[
    key("post_from_issue_thread_up_to", "0", Place::Nic),
    key("post_from_issue_thread_up_to", "1048576", Place::Nic),
    key("one_by_one", "true", Place::Top),
    key("slots", "4", Place::Nic),
    key("slots", "16", Place::Nic),
    key("slots", "64", Place::Nic),
    key("slots", "256", Place::Nic),
    key("slots", "1024", Place::Nic),
    key("connections", "1", Place::Nic),
    key("connections", "2", Place::Nic),
    key("connections", "4", Place::Nic),
    key("connections", "8", Place::Nic),
    key("nic_threads", "1", Place::BothTops),
    key("nic_threads", "2", Place::BothTops),
    key("nic_threads", "4", Place::BothTops),
    key("completion", "{mode: poll}", Place::BothNics),
    key("completion", "{mode: event}", Place::BothNics),
    key("completion", "{spin_us: 5}", Place::BothNics),
    key("completion", "{spin_us: 500}", Place::BothNics),
];

/// Settings in one line of YAML.
pub fn line(settings: &[&Key]) -> String {
    match settings {
        [] => "nothing".to_owned(),
        some => yaml(some, |_| true).join(", "),
    }
}

fn yaml(settings: &[&Key], is_here: impl Fn(Place) -> bool) -> Vec<String> {
    let here = settings.iter().filter(|k| is_here(k.place));
    here.map(|k| format!("{}: {}", k.name, k.value)).collect()
}

/// A running accelerator and a frontend with these settings.
pub struct Trial<'a> {
    pair: Pair,
    kind: Kind,
    bench: &'a Bench<'a>,
}

impl<'a> Trial<'a> {
    /// Starts the accelerator.
    ///
    /// # Errors
    /// The accelerator does not become ready.
    pub fn start(bench: &'a Bench<'_>, work: &Work, settings: &[&Key]) -> Result<Self> {
        let folder = bench.folder.join(work.name());
        let configs = |control: &str| configs(work, settings, control);
        Ok(Trial {
            pair: Pair::start(bench.root, &bench.programs, &folder, configs)?,
            kind: work.kind,
            bench,
        })
    }

    /// Runs once at this rate; in Offline, with as many samples as the rate completes in the
    /// duration.
    ///
    /// # Errors
    /// The run has no result.
    pub fn run(&self, rate: f64) -> Result<Ran> {
        let seconds = self.bench.seconds;
        let (qps, duration) = (format!("{rate:.0}"), seconds.to_string());
        let samples = format!("{:.0}", (rate * seconds).max(1000.0));
        self.pair.run(&match self.kind {
            Kind::Server => [
                ["--scenario", "server"],
                ["--set", "target_latency=10"],
                ["--target-qps", &qps],
                ["--duration-s", &duration],
            ]
            .concat(),
            Kind::Offline => [
                ["--scenario", "offline"],
                ["--set", "min_duration=0"],
                ["--samples", &samples],
            ]
            .concat(),
        })
    }
}

/// Configurations of accelerator and frontend.
pub fn configs(work: &Work, settings: &[&Key], control: &str) -> [String; 2] {
    let (bytes, entries) = (work.bytes, work.nics);
    let is_set = settings.iter().any(|k| k.name == "connections");
    let own = work.connections.filter(|_| !is_set);
    let near = [
        vec!["address: 127.0.0.1".to_owned()],
        own.map(|n| format!("connections: {n}"))
            .into_iter()
            .collect(),
        yaml(settings, |p| matches!(p, Place::Nic | Place::BothNics)),
    ];
    let far = [
        vec!["listen: \"127.0.0.1:0\"".to_owned()],
        yaml(settings, |p| p == Place::BothNics),
    ];
    let nics = |keys: &[Vec<String>]| {
        let nic = format!("{{{}}}", keys.concat().join(", "));
        vec![nic; entries].join(", ")
    };
    [
        format!(
            "node: tried\ncontrol: {{listen: \"{control}\"}}\nmemory_mib: 16384\n\
             model: {{name: tried, max_input_bytes: {bytes}}}\nengine: {{kind: \"null\"}}\n\
             nics: [{}]\n{}\n",
            nics(&far),
            yaml(settings, |p| p == Place::BothTops).join("\n")
        ),
        format!(
            "node: trying\naccelerators: [{{control: \"{control}\"}}]\n\
             model: {{name: tried, inputs: [{{name: input, dtype: u8, shape: [{bytes}], \
             ragged: true}}], output: {{name: output, dtype: u8, shape: [8]}}}}\n\
             dataset: {{kind: random, distribution: fixed, count: {SAMPLES}}}\n\
             engine: {{kind: \"null\"}}\nnics: [{}]\n{}\n",
            nics(&near),
            yaml(settings, |p| matches!(p, Place::Top | Place::BothTops)).join("\n")
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stand_where_a_user_would_write_them() {
        let work = super::super::work(Kind::Offline, 64, 2, Some(3));
        let key = |name: &str| KEYS.iter().find(|k| k.name == name).expect("a key");
        let settings = ["slots", "completion", "one_by_one", "nic_threads"].map(key);
        let [far, near] = configs(&work, &settings, "127.0.0.1:7");
        let nic = "{address: 127.0.0.1, connections: 3, slots: 4, completion: {mode: poll}}";
        assert!(near.contains(&format!("nics: [{nic}, {nic}]\n")), "{near}");
        assert!(
            near.ends_with("\none_by_one: true\nnic_threads: 1\n"),
            "{near}"
        );
        let nic = "{listen: \"127.0.0.1:0\", completion: {mode: poll}}";
        assert!(far.contains(&format!("nics: [{nic}, {nic}]\n")), "{far}");
        assert!(far.ends_with("\nnic_threads: 1\n"), "{far}");
    }
}
