//! What the runs themselves have kept: whether the tree is of them, and whether they count.

use std::collections::BTreeMap;

use qdl::wire::CacheState;

use super::*;
use crate::left::{FRONTEND_YAML, Left, NodeNote, USER_CONF, sha256_of};

/// Settings that are the submitter's: what the scenario aims at, and where logs go.
const TARGETS: [&str; 6] = [
    "target_qps",
    "target_latency",
    "server_target_qps",
    "offline_expected_qps",
    "single_stream_expected_latency_ns",
    "--target-qps",
];

/// Checks the records of a result's runs.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>, runs: &[Ran]) {
    let mut builds: BTreeMap<String, String> = BTreeMap::new();
    for ran in runs {
        let kept = look.tree.kept(result.place, &ran.run);
        let Some(left) = &ran.left else {
            if !look
                .found
                .iter()
                .any(|f| f.rule == RECORD_MISSING && f.place == look.tree.short(&kept))
            {
                let make = command(look, result, &ran.run);
                look.say_make(RECORD_MISSING, &kept, "the run has no run.json", make);
            }
            continue;
        };
        one(look, result, ran, left, &kept);
        let nodes = std::iter::once(("the frontend", &left.frontend));
        let others = left.accelerators.iter().map(|n| (n.node.as_str(), n));
        for (name, node) in nodes.chain(others) {
            let who = format!("{name} of the {} run", ran.run);
            if node.dirty == Some(true) {
                look.say(
                    RECORD_CLEAN,
                    &kept,
                    format!("{who} was built from changed sources"),
                );
            }
            match &node.commit {
                Some(commit) => {
                    builds.entry(commit.clone()).or_insert(who);
                }
                None => look.say(
                    RECORD_BUILD,
                    &kept,
                    format!("{who} does not say its commit"),
                ),
            }
        }
    }
    let programs = runs
        .iter()
        .filter_map(|r| r.left.as_ref()?.frontend.program.as_ref());
    let programs: std::collections::BTreeSet<_> = programs.collect();
    let at = look.tree.kept(result.place, layout::PERFORMANCE);
    if programs.len() > 1 {
        look.say(
            RECORD_BUILD,
            &at,
            "the runs are of frontends with different SHA-256",
        );
    }
    if builds.len() > 1 {
        let all: Vec<_> = builds
            .iter()
            .map(|(c, who)| format!("{c} ({who})"))
            .collect();
        look.say(
            RECORD_BUILD,
            &at,
            format!("several builds: {}", all.join(", ")),
        );
    }
}

fn one(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, left: &Left, kept: &Path) {
    let folder = layout::run_folder(&result.folder, &ran.run);
    for (name, hash) in &left.logs {
        // The accuracy log is cut: accuracy.txt has its hash.
        if name == loadgen_log::ACCURACY {
            continue;
        }
        let path = folder.join(name);
        if path.is_file() && sha256_of(&path).ok().as_ref() != Some(hash) {
            look.say(RECORD_LOG, &path, "it is not the log that the run wrote");
        }
    }
    let conf = result.folder.join(USER_CONF);
    match left.files.get(USER_CONF) {
        None => {
            let make = command(look, result, &ran.run);
            look.say_make(RECORD_CONF, kept, "the run had no user.conf", make);
        }
        Some(note) if conf.is_file() && sha256_of(&conf).ok().as_ref() != Some(&note.sha256) => {
            let what = format!("it is not the one that the {} run read", ran.run);
            look.say(RECORD_CONF, &conf, what);
        }
        Some(_) => {}
    }
    if ran.run == layout::PERFORMANCE && left.files.contains_key(crate::left::AUDIT_CONFIG) {
        look.say(
            RUN_SAMPLED,
            kept,
            "the performance run read an audit.config",
        );
    }
    let is_test = ![layout::PERFORMANCE, layout::ACCURACY].contains(&ran.run.as_str());
    match left.exit {
        Some(0) => {}
        // What LoadGen calls a test's run is nothing, see `run`.
        Some(1) if is_test && left.reason.starts_with("LoadGen says INVALID") => {}
        Some(code) => {
            let what = format!("exit code {code}: {}", left.reason);
            look.say(RECORD_EXIT, kept, what);
        }
        None => look.say(RECORD_EXIT, kept, "the run did not come to its end"),
    }
    if left.local {
        look.say(RECORD_NETWORK, kept, "the run was --local: no network");
    }
    for note in &left.fabric_notes {
        look.say(RECORD_NETWORK, kept, note.clone());
    }
    for node in &left.accelerators {
        machines(look, &left.frontend, node, kept);
    }
    for setting in &left.overrides {
        let key = setting.trim_start_matches("loadgen.settings.");
        let key = key.strip_prefix("--set ").unwrap_or(key);
        let key = key.split([' ', '=']).next().unwrap_or_default();
        if !TARGETS.contains(&key) {
            look.say(
                RECORD_OVERRIDE,
                kept,
                format!("`{setting}` goes before user.conf"),
            );
        }
    }
    for (node, cache) in &left.prefix_caches {
        let what = match cache.state {
            CacheState::Off => continue,
            CacheState::On => format!("{node}'s prefix cache was on: {}", cache.how),
            CacheState::Unknown => format!(
                "nobody says that {node}'s prefix cache was off: {}",
                cache.how
            ),
        };
        look.say(RECORD_CACHE, kept, what);
    }
    yaml(look, ran, kept);
    described(look, result, ran, left);
}

/// Each node's description, which the run was told or `--node` names.
fn described(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, left: &Left) {
    let nodes = ran.detail.as_ref().map(Detail::nodes).unwrap_or_default();
    let frontend = left.frontend.node.clone();
    let documents = look.tree.documentation().join("nodes");
    for (role, node) in std::iter::once(("frontend", frontend))
        .chain(nodes.into_iter().map(|node| ("accelerator", node)))
    {
        let path = documents.join(&result.place.system);
        let path = path.join(format!("{role}-{node}.json"));
        if filled(&path) || look.found.iter().any(|f| f.place == look.tree.short(&path)) {
            continue;
        }
        let why = left.undescribed.get(&node);
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        let make = format!("{role} describe --name {node}; frontend submit ... --node FILE");
        let what = format!("{node} is not described{why}");
        look.say_make(RECORD_DESCRIBED, &path, what, make);
    }
}

fn machines(look: &mut Look<'_>, frontend: &NodeNote, node: &NodeNote, kept: &Path) {
    let what = match frontend.same_machine(node) {
        Some(false) => return,
        Some(true) => format!(
            "{} runs on the frontend's machine, {}",
            node.node, frontend.host
        ),
        None => format!("whether {} is another machine cannot be told", node.node),
    };
    look.say(RECORD_MACHINES, kept, what);
}

/// The frontend's and every accelerator's configuration.
fn yaml(look: &mut Look<'_>, ran: &Ran, kept: &Path) {
    let own = kept.join(FRONTEND_YAML);
    if !filled(&own) {
        look.say(RECORD_YAML, &own, "it is not there, or empty");
    }
    let nodes = ran.detail.as_ref().map(Detail::nodes).unwrap_or_default();
    for node in nodes {
        let path = kept.join(format!("accelerator-{node}.yaml"));
        if !filled(&path) {
            let make = format!("frontend submit ... --accelerator {node}=ITS.yaml");
            look.say_make(
                RECORD_YAML,
                &path,
                format!("{node}'s configuration is not kept"),
                make,
            );
        }
    }
}
