//! Checks the runs' own records: whether the tree is made of these runs, and whether they count.

use std::collections::{BTreeMap, BTreeSet};

use ::record::CacheState;

use super::*;
use crate::{
    describe::Role,
    left::{self, AUDIT_CONFIG, FRONTEND_YAML, Left, NodeNote, USER_CONF, sha256_of_file},
    round::loadgen_scenario,
};

/// Settings that the submitter may set: the scenario's target.
const TARGETS: [&str; 6] = [
    "target_qps",
    "target_latency",
    "server_target_qps",
    "offline_expected_qps",
    "single_stream_expected_latency_ns",
    "--target-qps",
];

/// Fabrics that carry samples over a network.
const FABRICS: [&str; 3] = ["tcp", "ib", "ofi"];

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
        for (role, node) in left.nodes() {
            let name = match role {
                Role::Frontend => "the frontend",
                Role::Accelerator => &node.node,
            };
            match (&node.commit, node.dirty) {
                (None, _) => look.say(
                    RECORD_BUILD,
                    &kept,
                    format!("{name} does not say its commit"),
                ),
                (Some(_), Some(false)) => {}
                (Some(_), Some(true)) => {
                    look.say(
                        RECORD_CLEAN,
                        &kept,
                        format!("{name} was built from changed sources"),
                    );
                }
                (Some(_), None) => {
                    let what = format!("{name} does not say that its sources were unchanged");
                    look.say(RECORD_CLEAN, &kept, what);
                }
            }
            if let Some(commit) = &node.commit {
                builds
                    .entry(commit.clone())
                    .or_insert(format!("{name} of the {} run", ran.run));
            }
        }
    }
    let at = look.tree.kept(result.place, &Kind::Performance);
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
    together(look, result, runs);
}

/// Checks that each node has one program in all runs, and each accelerator one configuration.
fn together(look: &mut Look<'_>, result: &Result<'_>, runs: &[Ran]) {
    let mut first: BTreeMap<(Role, &str), (&Kind, &str)> = BTreeMap::new();
    let mut yamls: BTreeMap<&str, (&Kind, &str)> = BTreeMap::new();
    for (ran, left) in runs.iter().filter_map(|r| Some((r, r.left.as_ref()?))) {
        let kept = look.tree.kept(result.place, &ran.run);
        for (role, node) in left.nodes() {
            let Some(program) = node.program.as_deref() else {
                let what = format!("{}'s program has no SHA-256", node.node);
                look.say(RECORD_BUILD, &kept, what);
                continue;
            };
            let (of, other) = *first
                .entry((role, node.node.as_str()))
                .or_insert((&ran.run, program));
            if other != program {
                let what = format!("{}'s program is not that of the {of} run", node.node);
                look.say(RECORD_BUILD, &kept, what);
            }
        }
        for (name, note) in &left.files {
            let Ok(copy) = Name::new(name) else { continue };
            if !left::is_accelerator_yaml(name) {
                continue;
            }
            let (of, other) = *yamls
                .entry(name.as_str())
                .or_insert((&ran.run, &note.sha256));
            if other != note.sha256 {
                let what = format!("it is not that of the {of} run");
                look.say(RECORD_YAML, &kept.join(copy), what);
            }
        }
    }
}

fn one(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, left: &Left, kept: &Path) {
    let folder = layout::run_folder(&result.folder, &ran.run);
    for name in [
        loadgen_log::SUMMARY,
        loadgen_log::DETAIL,
        loadgen_log::ACCURACY,
    ] {
        // A performance run's accuracy log is empty and not part of a tree.
        let no_answers = ran.run == Kind::Performance && name == loadgen_log::ACCURACY;
        let Some(hash) = left.logs.get(name).filter(|_| !no_answers) else {
            if !no_answers {
                look.say(
                    RECORD_LOG,
                    kept,
                    format!("the record has no hash of {name}"),
                );
            }
            continue;
        };
        let path = folder.join(name);
        // The tree has the accuracy log cut; `answers::kept` checks it.
        let is_whole = name != loadgen_log::ACCURACY;
        if is_whole && path.is_file() && sha256_of_file(&path).ok().as_ref() != Some(hash) {
            look.say(RECORD_LOG, &path, "it is not the log that the run wrote");
        }
    }
    let own = &result.model.interactive;
    let is_model = match (&*result.place.scenario, own) {
        ("Interactive", Some(own)) => left.model == *own,
        (_, own) => left.model == result.model.conf || own.as_ref() == Some(&left.model),
    };
    if !is_model || left.scenario != loadgen_scenario(&result.place.scenario) {
        let what = format!("the record is of {} in {}", left.model, left.scenario);
        look.say(RECORD_LOG, kept, what);
    }
    files(look, left, kept);
    let conf = result.folder.join(USER_CONF);
    match left.files.get(USER_CONF) {
        None => {
            let make = command(look, result, &ran.run);
            look.say_make(RECORD_CONF, kept, "the run had no user.conf", make);
        }
        Some(note)
            if conf.is_file() && sha256_of_file(&conf).ok().as_ref() != Some(&note.sha256) =>
        {
            let what = format!("it is not the one that the {} run read", ran.run);
            look.say(RECORD_CONF, &conf, what);
        }
        Some(_) => {}
    }
    if ran.run == Kind::Performance && left.files.contains_key(AUDIT_CONFIG) {
        look.say(
            RUN_SAMPLED,
            kept,
            "the performance run read an audit.config",
        );
    }
    let is_test = matches!(ran.run, Kind::Test(_));
    match left.exit {
        Some(0) => {}
        // `run::performance` judges LoadGen's verdict on a test, if the test is measured.
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
    network(look, ran, left, kept);
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
    yaml(look, ran, left, kept);
    described(look, result, ran, left);
}

/// Checks that the copies equal the files that the run read.
fn files(look: &mut Look<'_>, left: &Left, kept: &Path) {
    for (name, note) in &left.files {
        let Ok(name) = Name::new(name) else {
            look.say(RECORD_FILES, kept, format!("{name:?} is no copy's name"));
            continue;
        };
        let path = kept.join(&name);
        // Other rules report these files if they are missing.
        let own_rule =
            [FRONTEND_YAML, AUDIT_CONFIG].contains(&&*name) || left::is_accelerator_yaml(&name);
        match sha256_of_file(&path) {
            Ok(found) if found == note.sha256 => {}
            Ok(_) => look.say(RECORD_FILES, &path, "it is not the file that the run read"),
            Err(_) if own_rule => {}
            Err(_) => look.say(RECORD_FILES, &path, "it is not there"),
        }
    }
}

/// Checks that samples went to accelerators over connections of a network fabric.
fn network(look: &mut Look<'_>, ran: &Ran, left: &Left, kept: &Path) {
    if left.local {
        return;
    }
    if !FABRICS.contains(&left.fabric.as_str()) {
        let what = format!(
            "the fabric is {:?}, none of {}",
            left.fabric,
            FABRICS.join(", ")
        );
        look.say(RECORD_NETWORK, kept, what);
    }
    if left.connections == 0 {
        look.say(RECORD_NETWORK, kept, "samples went over no connection");
    }
    let told: BTreeSet<&str> = left.accelerators.iter().map(|n| n.node.as_str()).collect();
    let named = ran.nodes();
    let named: BTreeSet<&str> = named.iter().map(|n| &**n).collect();
    if told.is_empty() {
        look.say(RECORD_NETWORK, kept, "the record has no accelerator");
    } else if ran.detail.is_some() && !named.is_empty() && told != named {
        let list = |set: &BTreeSet<&str>| Vec::from_iter(set.iter().copied()).join(", ");
        let what = format!(
            "its accelerators are {}, those of the SUT's name {}",
            list(&told),
            list(&named)
        );
        look.say(RECORD_NETWORK, kept, what);
    }
}

/// Checks that each node has a description, from the run or from `--node`.
fn described(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, left: &Left) {
    let frontend = Name::new(&left.frontend.node).ok();
    let nodes = ran.nodes().into_iter().map(|n| (Role::Accelerator, n));
    for (role, node) in frontend
        .map(|n| (Role::Frontend, n))
        .into_iter()
        .chain(nodes)
    {
        let path = look.tree.nodes(&result.place.system).join(role.file(&node));
        if filled(&path) || look.found.iter().any(|f| f.place == look.tree.short(&path)) {
            continue;
        }
        let why = left.undescribed.get(&*node);
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        let program = match role {
            Role::Frontend => "qdl",
            Role::Accelerator => "accelerator",
        };
        let make = format!("{program} describe --name {node}; qdl submit ... --node FILE");
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

/// Checks that the configurations of the frontend and of each accelerator are kept.
fn yaml(look: &mut Look<'_>, ran: &Ran, left: &Left, kept: &Path) {
    let own = kept.join(FRONTEND_YAML);
    if !filled(&own) {
        look.say(RECORD_YAML, &own, "it is not there, or empty");
    } else if !left.files.contains_key(FRONTEND_YAML) {
        look.say(RECORD_YAML, &own, "the record has no hash of it");
    }
    for node in ran.nodes() {
        let name = left::accelerator_yaml(&node);
        let path = kept.join(&name);
        let make = format!("qdl submit ... --accelerator {node}=ITS.yaml");
        if !filled(&path) {
            let what = format!("{node}'s configuration is not kept");
            look.say_make(RECORD_YAML, &path, what, make);
        } else if !left.files.contains_key(&name) && !left.undescribed.contains_key(&*node) {
            look.say(RECORD_YAML, &path, "the record has no hash of it");
        }
    }
}
