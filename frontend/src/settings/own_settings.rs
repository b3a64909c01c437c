//! This node's own settings in force, with the origin of each.

use engines::EngineConfig;
use fabric::os::Congestion;
use qdl::{
    config::{Completion, FrontendConfig, NicConfig, NicFabric, QslMode, Verify, Written},
    run::{request_stride, response_stride},
};
use record::{DEFAULT, GivenValue, SettingOf, SettingRecord};
use serde_json::Value;

use crate::settings::cli::Args;

/// Returns every setting of a run. `config` holds the values in force, `file` the values of the
/// file, `engine` the engine of `--local`, `written` the file's keys, `loaded` the number of
/// samples that LoadGen may hold.
pub fn records(
    args: &Args,
    config: &FrontendConfig,
    file: &FrontendConfig,
    engine: Option<&EngineConfig>,
    written: &Written,
    loaded: usize,
) -> Vec<SettingRecord> {
    let local = engine.filter(|_| args.local);
    let now = values(config, local, loaded, args.seed);
    let before = values(file, local, loaded, None);
    let record = |((key, value), (_, was)): (Own, Own)| {
        let given = |value, from: &str| GivenValue {
            value,
            from: from.to_owned(),
        };
        let line = written.line(&key);
        let in_file = line.map(|line| format!("{}:{line}", written.name()));
        let (given, overrode) = match (flag(args, &key), in_file) {
            (Some(flag), in_file) => (
                given(value, flag),
                in_file.map(|from| given(was, &from)).into_iter().collect(),
            ),
            (None, Some(from)) => (given(value, &from), Vec::new()),
            (None, None) => (given(value, DEFAULT), Vec::new()),
        };
        SettingRecord {
            name: key,
            of: SettingOf::Frontend,
            idle: false,
            given,
            overrode,
        }
    };
    now.into_iter().zip(before).map(record).collect()
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

type Own = (String, String);

fn values(
    c: &FrontendConfig,
    local: Option<&EngineConfig>,
    loaded: usize,
    seed: Option<u64>,
) -> Vec<Own> {
    let mut all: Vec<Own> = Vec::new();
    let mut put = |key: &str, value: String| all.push((key.to_owned(), value));
    put("performance_sample_count", loaded.to_string());
    if c.dataset.samples.is_none() {
        put("dataset.seed", seed.unwrap_or(c.dataset.seed).to_string());
    }
    put("stream", text_or(c.stream, "none"));
    let verify = match c.verify {
        Verify::None => "none",
        Verify::Digest => "digest",
        Verify::Tokens => "tokens",
    };
    put("verify", verify.to_owned());
    put("deadlines.watchdog_s", c.deadlines.watchdog_s.to_string());
    match local {
        Some(e) => {
            put("engine.max_batch", e.max_batch.to_string());
            put("engine.max_delay_us", e.max_delay_us.to_string());
            put("engine.threads", e.threads.to_string());
            put("engine.intra_threads", e.intra_threads.to_string());
            put("engine.delay_us", e.delay_us.to_string());
            put("engine.spin_us", e.spin_us.to_string());
        }
        None => network(c, &mut put),
    }
    all
}

/// Settings that apply only with a network.
fn network(c: &FrontendConfig, put: &mut impl FnMut(&str, String)) {
    let arbiter = match serde_json::to_value(c.arbiter) {
        Ok(Value::String(name)) => name,
        Ok(with_parameters) => with_parameters.to_string(),
        Err(_) => String::new(),
    };
    put("arbiter", arbiter);
    let qsl = match c.qsl {
        QslMode::Registered => "registered",
        QslMode::Staged => "staged",
    };
    put("qsl", qsl.to_owned());
    put("one_by_one", c.one_by_one.to_string());
    put("warm_up.budget_ms", c.warm_up.budget_ms.to_string());
    put("warm_up.deadline_ms", c.warm_up.deadline_ms.to_string());
    let d = &c.deadlines;
    for (key, value) in [
        ("connect_ms", d.connect().as_millis() as u64),
        ("lost_ms", d.lost_ms),
        ("echo_interval_ms", d.echo_interval_ms),
        ("echo_timeout_ms", d.echo_timeout_ms),
        ("heartbeat_interval_ms", d.heartbeat_interval_ms),
        ("heartbeat_timeout_ms", d.heartbeat_timeout_ms),
        ("name_ms", d.name_ms),
        ("drain_ms", d.drain_ms),
    ] {
        put(&format!("deadlines.{key}"), value.to_string());
    }
    let request = request_stride(&c.model).unwrap_or(0);
    let stride = request.max(response_stride(&c.model).unwrap_or(0));
    for (i, nic) in c.nics.iter().enumerate() {
        nic_values(nic, stride, &mut |key, value| {
            put(&format!("nics[{i}].{key}"), value)
        });
    }
}

fn nic_values(nic: &NicConfig, stride: usize, put: &mut impl FnMut(&str, String)) {
    put("slots", nic.resolve_slots(stride).to_string());
    let connections = if nic.is_ib() {
        "queue_pairs"
    } else {
        "connections"
    };
    put(connections, nic.connections().to_string());
    put("inline_bytes", nic.inline_bytes().to_string());
    let Completion {
        mode,
        spin_us,
        yield_after_us,
    } = nic.completion;
    put("completion.mode", format!("{mode:?}").to_lowercase());
    put("completion.spin_us", spin_us.to_string());
    put(
        "completion.yield_after_us",
        text_or(yield_after_us, "never"),
    );
    if let NicFabric::Tcp(tcp) = &nic.fabric {
        put("congestion", congestion(&tcp.congestion));
        put(
            "send_buffer_bytes",
            text_or(tcp.send_buffer_bytes, "system"),
        );
        put("post_from_issue_thread_up_to", nic.post_up_to().to_string());
    }
    let cores = nic.cpus.as_ref().map(|cpus| {
        let each: Vec<String> = cpus.iter().map(usize::to_string).collect();
        each.join(",")
    });
    put("cpus", text_or(cores, "any"));
}

fn text_or(value: Option<impl ToString>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// The configured congestion control; for `auto` also the chosen algorithm.
fn congestion(asked: &Congestion) -> String {
    match asked.choose() {
        Ok(Some(name)) if *asked == Congestion::Auto => format!("auto: {name}"),
        _ => asked.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use engines::config::load_frontend;

    use super::*;

    fn of(yaml: &str, flags: &[&str]) -> Vec<SettingRecord> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.yaml");
        let base = "node: f\n\
            model: {name: m, inputs: [{name: i, dtype: u8, shape: [64]}], \
            output: {name: o, dtype: u8, shape: [8]}}\n\
            accelerators: [{control: \"127.0.0.1:1\"}]\n";
        fs::write(&path, format!("{base}{yaml}")).expect("written");
        let (file, engine) = load_frontend(&path, None).expect("sound");
        let written = Written::read(&path).expect("there");
        let all = ["frontend", "--config", "f.yaml"].iter().chain(flags);
        let args = Args::try_parse_from(all).expect("sound");
        let mut config = file.clone();
        if let Some(ms) = args.warm_up_ms {
            config.warm_up.budget_ms = ms;
        }
        records(&args, &config, &file, engine.as_ref(), &written, 40)
    }

    fn find<'a>(all: &'a [SettingRecord], name: &str) -> &'a SettingRecord {
        all.iter().find(|s| s.name == name).expect(name)
    }

    #[test]
    fn each_has_its_line_or_its_flag_or_is_a_default() {
        let yaml = "dataset: {kind: random, count: 40}\n\
            nics:\n  - address: 127.0.0.1\n    connections: 3\n\
            warm_up:\n  budget_ms: 500\n";
        let all = of(yaml, &["--warm-up-ms", "20", "--seed", "9"]);
        let given = |name: &str| {
            let s = find(&all, name);
            (s.given.value.as_str(), s.given.from.as_str())
        };
        assert_eq!(given("nics[0].connections"), ("3", "f.yaml:7"));
        assert_eq!(given("nics[0].slots"), ("2048", DEFAULT));
        assert_eq!(given("warm_up.budget_ms"), ("20", "--warm-up-ms"));
        let was = &find(&all, "warm_up.budget_ms").overrode[0];
        assert_eq!((was.value.as_str(), was.from.as_str()), ("500", "f.yaml:9"));
        assert_eq!(given("dataset.seed"), ("9", "--seed"));
        assert_eq!(given("arbiter"), ("least_outstanding", DEFAULT));
    }

    #[test]
    fn a_run_without_a_network_has_its_engine_in_its_place() {
        let yaml = "dataset: {kind: random, count: 40}\nnics: [{address: 127.0.0.1}]\n\
            engine: {kind: digest, max_batch: 7}\n";
        let all = of(yaml, &["--local"]);
        assert_eq!(find(&all, "engine.max_batch").given.value, "7");
        assert_eq!(find(&all, "engine.max_batch").given.from, "f.yaml:6");
        assert!(all.iter().all(|s| !s.name.starts_with("nics")));
    }
}
