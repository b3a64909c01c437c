//! Files of a run, beside logs and summary, from which a submission is made: `run.json` and copies
//! of the input files (`submission::manifest`).

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use frontend_config::FrontendFile;
use machine::{Node, Role};
use qdl::run::Described;
use record::{Manifest, NodeFacts, NodeRecord};
use submission::{
    Name,
    manifest::{self, AUDIT_CONFIG, FRONTEND_YAML, USER_CONF, accelerator_yaml, node_json},
};

use crate::{
    backend::Backend,
    compliance::{
        describe,
        guard::{Guard, prefix_caches, servers},
    },
    settings::{Settings, cli::Args},
};

/// The run's record, as far as its settings make it.
pub fn of_settings(args: &Args, config: &FrontendFile, settings: &Settings) -> Manifest {
    Manifest {
        command: std::env::args_os().map(|word| shell_word(&word)).collect(),
        built: program::cli::version().to_owned(),
        model: config.loadgen_model().to_owned(),
        scenario: settings.test.scenario.name().to_owned(),
        local: args.local,
        overrides: overrides(args, config),
        ..Manifest::default()
    }
}

/// Lets `guard` check the nodes, calls `empty_folder`, then writes the facts known before the
/// measurement. Copies the input files after the run has read them, so the copy of a file changed
/// in between has the change.
pub fn begin(
    args: &Args,
    config: &FrontendFile,
    settings: &Settings,
    backend: &dyn Backend,
    guard: &mut Guard,
    empty_folder: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Manifest> {
    let (fabric, _) = backend.fabric();
    let (own, peers) = backend.facts();
    let mut left = Manifest {
        fabric,
        fabric_notes: backend.link_notes(),
        prefix_caches: prefix_caches(&backend.engines()),
        servers: servers(&backend.engines()),
        connections: backend.connections().len() as u64,
        frontend: record_of(&config.cluster.node, own),
        accelerators: peers
            .iter()
            .map(|(node, facts)| record_of(node, facts.clone()))
            .collect(),
        ..of_settings(args, config, settings)
    };
    let mut files: Vec<(&str, &Path)> = vec![(FRONTEND_YAML, &args.config)];
    let given = [
        (USER_CONF, &settings.user_conf),
        (AUDIT_CONFIG, &settings.audit),
    ];
    files.extend(
        given
            .iter()
            .filter_map(|(name, path)| Some((*name, path.as_deref()?))),
    );
    let described = describe_all(config, backend, &mut left);
    let configs = described
        .iter()
        .filter_map(|(name, _, yaml)| Some((name, yaml.as_deref()?)));
    guard.check_nodes(&left, configs)?;
    empty_folder()?;
    let sent = described.into_iter().flat_map(|(name, machine, yaml)| {
        let yaml = yaml.map(|yaml| (accelerator_yaml(&name), yaml));
        yaml.into_iter().chain([(node_json(&name), machine)])
    });
    let sent: Vec<_> = sent.collect();
    Ok(manifest::begin(left, settings.folder(), &files, &sent)?)
}

fn record_of(node: &str, facts: NodeFacts) -> NodeRecord {
    let node = node.to_owned();
    NodeRecord { node, facts }
}

/// One word of the command line; a word that is not UTF-8 is quoted as for a shell, `$'caf\xe9'`.
fn shell_word(word: &OsStr) -> String {
    match word.to_str() {
        Some(text) => text.to_owned(),
        None => format!("$'{}'", word.as_bytes().escape_ascii()),
    }
}

/// Each node's description, and an accelerator's configuration; records why a node has none.
fn describe_all(
    config: &FrontendFile,
    backend: &dyn Backend,
    left: &mut Manifest,
) -> Vec<(Name, String, Option<String>)> {
    let own = describe::own(&config.cluster.node).map(|machine| (machine, None));
    let peers = backend.describe().into_iter();
    let peers = peers.map(|Described { node, description }| {
        let own = description.and_then(|own| {
            Node::of_session(&own.machine, Role::Accelerator, &node)?;
            Ok((own.machine, Some(own.config)))
        });
        (node, own)
    });
    let mut all = Vec::new();
    for (node, description) in std::iter::once((config.cluster.node.clone(), own)).chain(peers) {
        match Name::new(&node).and_then(|name| Ok((name, description?))) {
            Ok((name, (machine, yaml))) => all.push((name, machine, yaml)),
            Err(why) => drop(left.undescribed.insert(node, why)),
        }
    }
    all
}

/// Settings that override user.conf: those of the configuration and of the command line.
fn overrides(args: &Args, config: &FrontendFile) -> Vec<String> {
    let settings = config.run.loadgen.settings.iter();
    let settings = settings.map(|(key, value)| format!("loadgen.settings.{key} = {value}"));
    let flags = [
        args.target_qps.map(|n| format!("--target-qps {n}")),
        args.duration_s.map(|s| format!("--duration-s {s}")),
        args.samples.map(|n| format!("--samples {n}")),
        config
            .run
            .performance_sample_count
            .map(|n| format!("performance_sample_count: {n}")),
    ];
    let set = args
        .set
        .iter()
        .map(|(key, value)| format!("--set {key}={value}"));
    settings
        .chain(flags.into_iter().flatten())
        .chain(set)
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_word_that_is_not_utf_8_is_said_as_a_shell_takes_it() {
        assert_eq!(
            shell_word(OsStr::from_bytes(b"caf\xe9's")),
            r"$'caf\xe9\'s'"
        );
        assert_eq!(shell_word(OsStr::new("--config")), "--config");
    }

    #[test]
    fn whatever_goes_before_user_conf_is_written_down() {
        let words = "frontend -c f --target-qps 7 --duration-s 5 --samples 3 --set min_duration=0";
        let args = Args::try_parse_from(words.split(' ')).expect("sound");
        let yaml = "node: f\nmodel: {name: m, inputs: [{name: i, dtype: u8, shape: [8]}], output: {name: o, dtype: u8, \
                    shape: [8]}}\ndataset: {kind: random, count: 4}\naccelerators: [{control: 127.0.0.1:1}]\n\
                    nics: [{address: 127.0.0.1}]\nloadgen: {settings: {min_query_count: 9}}\n";
        let config = FrontendFile::parse(yaml, "f.yaml", Path::new(".")).expect("sound");
        assert_eq!(
            overrides(&args, &config),
            [
                "loadgen.settings.min_query_count = 9",
                "--target-qps 7",
                "--duration-s 5",
                "--samples 3",
                "--set min_duration=0"
            ]
        );
    }
}
