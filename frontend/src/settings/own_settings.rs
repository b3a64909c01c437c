//! This node's own settings in force: its configuration as one document, with the origin of each
//! value.

use frontend_config::FrontendFile;
use qdl::{
    config::{Auto, Written},
    run::SlotNeeds,
};
use record::{DEFAULT, GivenValue, SettingOf, SettingRecord};

use crate::settings::cli::Args;

/// Keys of a node's identity and of its model; LoadGen's settings, which have their own table; and
/// commands, which may hold secrets.
const NO_SETTINGS: [&str; 9] = [
    "engine.http.command",
    "engine.vllm.args",
    "engine.vllm.command",
    "node",
    "token_file",
    "model.",
    "accelerators",
    "loadgen.",
    "dataset.kind",
];
/// Keys without effect with `--local`.
const OF_NETWORK: [&str; 9] = [
    "arbiter",
    "auth",
    "deadlines.",
    "health.",
    "nic_threads",
    "nics",
    "one_by_one",
    "qsl",
    "warm_up.",
];
/// Keys that have an effect only with `--local`.
const OF_LOCAL: [&str; 2] = ["engine.", "model_file"];
/// A key of [`OF_NETWORK`] that has an effect with `--local` too.
const WATCHDOG: &str = "deadlines.watchdog_s";

/// Returns every setting of a run. `config` holds the values in force, `file` the values of the
/// file, `written` the file's keys, `loaded` the number of samples that LoadGen may hold.
pub fn records(
    args: &Args,
    config: &FrontendFile,
    file: &FrontendFile,
    written: &Written,
    loaded: usize,
) -> Vec<SettingRecord> {
    let now = values(config, loaded);
    let before = values(file, loaded);
    // Whether `of` is `key`, or a mapping or list that contains `key`.
    let is_in = |key: &str, of: &str| match key.strip_prefix(of) {
        Some(rest) => of.ends_with('.') || rest.is_empty() || rest.starts_with(['.', '[']),
        None => false,
    };
    let is_of = |key: &str, keys: &[&str]| keys.iter().any(|of| is_in(key, of));
    let record = |(key, value): (String, String)| {
        if is_of(&key, &NO_SETTINGS) || Written::names_nic(&key) {
            return None;
        }
        let given = |value, from: &str| GivenValue {
            value,
            from: from.to_owned(),
        };
        let line = written.line(&key);
        let in_file = line.map(|line| format!("{}:{line}", written.name()));
        let (given, overrode) = match (flag(args, &key), in_file) {
            (Some(flag), in_file) => {
                let was = before.iter().find(|(of, _)| *of == key);
                let was = was.map_or("", |(_, was)| was);
                (
                    given(value, flag),
                    in_file
                        .map(|from| given(was.to_owned(), &from))
                        .into_iter()
                        .collect(),
                )
            }
            (None, Some(from)) => (given(value, &from), Vec::new()),
            (None, None) => (given(value, DEFAULT), Vec::new()),
        };
        Some(SettingRecord {
            of: SettingOf::Frontend,
            idle: match args.local {
                true => is_of(&key, &OF_NETWORK) && key != WATCHDOG,
                false => is_of(&key, &OF_LOCAL),
            },
            name: key,
            given,
            overrode,
        })
    };
    now.into_iter().filter_map(record).collect()
}

/// The flag of the command line that sets this key, if given.
fn flag(args: &Args, key: &str) -> Option<&'static str> {
    match key {
        "verify" => args.verify.map(|_| "--verify"),
        "warm_up.budget_ms" => args.warm_up_ms.map(|_| "--warm-up-ms"),
        "deadlines.connect_ms" => args.connect_ms.map(|_| "--connect-ms"),
        "dataset.seed" => args.seed.map(|_| "--seed"),
        _ => None,
    }
}

/// Every value of a configuration by its key, with the values that a run chooses for `auto`.
fn values(config: &FrontendFile, loaded: usize) -> Vec<(String, String)> {
    let mut config = config.clone();
    config.run.performance_sample_count = Some(loaded);
    config.cluster.stream.get_or_insert_default();
    let connect_ms = config.cluster.deadlines.connect().as_millis() as u64;
    config.cluster.deadlines.connect_ms = Some(connect_ms);
    let slots = SlotNeeds::of(&config.cluster).map_or(Vec::new(), |needs| needs.nic_slots);
    for (nic, slots) in config.cluster.nics.iter_mut().zip(slots) {
        nic.slots = Auto::Fixed(slots);
        nic.fabric.settle();
    }
    let document = serde_json::to_value(&config);
    let document = document.inspect_err(|e| tracing::warn!("no table of settings: {e}"));
    record::flat(&document.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    fn of(yaml: &str, flags: &[&str]) -> Vec<SettingRecord> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.yaml");
        let base = "node: f\n\
            model: {name: m, inputs: [{name: i, dtype: u8, shape: [64]}], \
            output: {name: o, dtype: u8, shape: [8]}}\n\
            accelerators: [{control: \"127.0.0.1:1\"}]\n";
        fs::write(&path, format!("{base}{yaml}")).expect("written");
        let file = FrontendFile::load(&path, None).expect("sound");
        let written = Written::read(&path).expect("there");
        let all = ["frontend", "--config", "f.yaml"].iter().chain(flags);
        let args = Args::try_parse_from(all).expect("sound");
        let mut config = file.clone();
        if let Some(ms) = args.warm_up_ms {
            config.cluster.warm_up.budget_ms = ms;
        }
        records(&args, &config, &file, &written, 40)
    }

    fn find<'a>(all: &'a [SettingRecord], name: &str) -> &'a SettingRecord {
        all.iter().find(|s| s.name == name).expect(name)
    }

    #[test]
    fn each_has_its_line_or_its_flag_or_is_a_default() {
        let yaml = "dataset: {kind: random, count: 40}\n\
            nics:\n  - address: 127.0.0.1\n    connections: 3\n  - {device: mlx5_0, mtu: 1024}\n\
            warm_up:\n  budget_ms: 500\nnic_threads: 2\nhealth: {tick_ms: 3}\n";
        let all = of(yaml, &["--warm-up-ms", "20"]);
        for (name, value, from) in [
            ("nics[0].connections", "3", "f.yaml:7"),
            ("nics[0].slots", "2048", DEFAULT),
            ("nics[1].mtu", "1024", "f.yaml:8"),
            ("nics[1].adaptive_routing.split_above", "never", DEFAULT),
            ("nics[1].numa", "auto", DEFAULT),
            ("nic_threads", "2", "f.yaml:11"),
            ("health.tick_ms", "3", "f.yaml:12"),
            ("warm_up.budget_ms", "20", "--warm-up-ms"),
            ("deadlines.connect_ms", "60000", DEFAULT),
            ("arbiter", "least_outstanding", DEFAULT),
            ("dataset.count", "40", "f.yaml:4"),
        ] {
            let given = &find(&all, name).given;
            assert_eq!((&*given.value, &*given.from), (value, from), "{name}");
        }
        let was = &find(&all, "warm_up.budget_ms").overrode[0];
        assert_eq!(
            (was.value.as_str(), was.from.as_str()),
            ("500", "f.yaml:10")
        );
    }

    #[test]
    fn a_run_without_a_network_has_its_engine_in_its_place() {
        let yaml = "dataset: {kind: random, count: 40}\nnics: [{address: 127.0.0.1}]\n\
            engine: {kind: digest, max_batch: 7}\n";
        let all = of(yaml, &["--local"]);
        let batch = find(&all, "engine.max_batch");
        assert_eq!((&*batch.given.value, &*batch.given.from), ("7", "f.yaml:6"));
        assert!(!batch.idle && find(&all, "nics[0].slots").idle);
        assert!(find(&of(yaml, &[]), "engine.max_batch").idle);
    }
}
