//! Checks the runs' manifests: whether the tree is made of these runs, and whether they count.

use std::collections::BTreeMap;

use machine::Role;

use super::{nodes::is_hash, *};
use crate::{
    describe::file_of,
    manifest::{AUDIT_CONFIG, FRONTEND_YAML, LOGS, USER_CONF, node_of_yaml, sha256_of_file},
};

/// Digits of a SHA-256.
const SHA256: std::ops::RangeInclusive<usize> = 64..=64;

pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    for run in runs {
        if let Some(manifest) = &run.manifest {
            let mut one = ManifestCheck {
                check,
                result,
                run,
                manifest,
            };
            one.logs();
            one.files();
            one.exit();
            one.descriptions();
        }
    }
    compare(check, result, runs);
}

/// Checks that all runs are of the same nodes: each of one machine, commit and program, and each
/// accelerator of one configuration.
fn compare(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    let mut first: BTreeMap<String, (&RunKind, String)> = BTreeMap::new();
    for run in runs {
        let mut facts = Vec::new();
        if let Some(detail) = &run.detail {
            let nodes = list(&BTreeSet::from_iter(detail.nodes()));
            let at = run.logs.join(loadgen_log::DETAIL);
            facts.push((RUN_SAME, at, "the set of nodes".to_owned(), nodes));
        }
        for (role, node) in run.manifest.iter().flat_map(manifest::nodes) {
            let (name, kept) = (format!("{role} {}", node.node), || run.kept.clone());
            let Some(program) = node.facts.program.clone().filter(|p| is_hash(p, SHA256)) else {
                let what = format!("the program of {name} has no SHA-256");
                check.say(RECORD_BUILD, &run.kept, what);
                continue;
            };
            let commit = node.facts.commit.clone().unwrap_or_default();
            // A machine that started again has another boot, and the same id.
            let machine = node
                .facts
                .machine
                .clone()
                .unwrap_or_else(|| node.facts.host.clone());
            facts.push((
                RECORD_BUILD,
                kept(),
                format!("the program of {name}"),
                program,
            ));
            facts.push((
                RECORD_BUILD,
                kept(),
                format!("the commit of {name}"),
                commit,
            ));
            facts.push((RUN_SAME, kept(), format!("the machine of {name}"), machine));
        }
        // Where an accuracy run's answers may be longer, its configurations are others.
        let is_longer =
            run.kind == RunKind::Accuracy && !result.model.max_tokens_accuracy.is_empty();
        let files = run
            .manifest
            .iter()
            .filter(|_| !is_longer)
            .flat_map(|m| &m.files);
        for (name, file) in files {
            if node_of_yaml(name).is_some() {
                let at = run.kept.join(name);
                facts.push((
                    RECORD_YAML,
                    at,
                    format!("the hash of {name}"),
                    file.sha256.clone(),
                ));
            }
        }
        for (rule, at, what, value) in facts {
            let (of, other) = first
                .entry(what.clone())
                .or_insert((&run.kind, value.clone()));
            if *other != value {
                let what = format!("{what} is {value}, in the {of} run {other}");
                check.say(rule, &at, what);
            }
        }
    }
}

struct ManifestCheck<'a, 'b> {
    check: &'a mut TreeCheck<'b>,
    result: &'a CheckedResult<'a>,
    run: &'a CheckedRun,
    manifest: &'a Manifest,
}

impl ManifestCheck<'_, '_> {
    fn say(&mut self, rule: &'static SubmissionRule, what: impl Into<String>) {
        self.check.say(rule, &self.run.kept, what);
    }

    /// Adds a finding if the file is there with another hash.
    fn same(&mut self, rule: &'static SubmissionRule, path: &Path, sha256: &str, what: &str) {
        if sha256_of_file(path).is_ok_and(|found| found != sha256) {
            self.check.say(rule, path, altered(path, sha256, what));
        }
    }

    /// Checks that the run wrote the logs, and that they are of the result's model and scenario.
    fn logs(&mut self) {
        let (result, manifest) = (self.result, self.manifest);
        // A performance run's accuracy log is empty and not part of a tree.
        let is_performance = self.run.kind == RunKind::Performance;
        let logs = LOGS.into_iter();
        for name in logs.filter(|log| !is_performance || *log != loadgen_log::ACCURACY) {
            let Some(hash) = manifest.logs.get(name) else {
                self.say(RECORD_LOG, format!("the record has no hash of {name}"));
                continue;
            };
            if !is_hash(hash, SHA256) {
                self.say(RECORD_LOG, format!("the hash of {name} is none: {hash}"));
            }
            // The tree's accuracy log is cut; `answers::kept` checks it.
            if name != loadgen_log::ACCURACY {
                let path = self.run.logs.join(name);
                self.same(
                    RECORD_LOG,
                    &path,
                    hash,
                    "it is not the log that the run wrote",
                );
            }
        }
        let Manifest {
            model, scenario, ..
        } = manifest;
        let is_model = match result.model.conf_in.get(&*result.id.scenario) {
            Some(own) => model == own,
            None => result.model.names().any(|name| name == model),
        };
        if !is_model || scenario != self.check.round.loadgen_scenario(&result.id.scenario) {
            let what = format!("the record is of {model} in {scenario}");
            self.say(RECORD_LOG, what);
        }
    }

    /// Checks that the files that the run read are kept, and are the ones that it read.
    fn files(&mut self) {
        let (run, files) = (self.run, &self.manifest.files);
        let accelerators = run.nodes().into_iter().map(Some);
        for node in std::iter::once(None).chain(accelerators) {
            let name = node
                .as_ref()
                .map_or(FRONTEND_YAML.to_owned(), manifest::accelerator_yaml);
            let path = run.kept.join(&name);
            // `submit --accelerator` gives the configuration of a node that sent none.
            let is_given = node.is_some_and(|n| self.manifest.undescribed.contains_key(&*n));
            if self.check.has(RECORD_YAML, &path) && !files.contains_key(&name) && !is_given {
                self.check
                    .say(RECORD_YAML, &path, "the record has no hash of it");
            }
        }
        for (name, file) in files {
            let Ok(name) = Name::new(name) else {
                self.say(RECORD_FILES, format!("{name:?} is no copy's name"));
                continue;
            };
            let path = run.kept.join(&name);
            // Other rules report these files if they are missing.
            let has_rule = [FRONTEND_YAML, AUDIT_CONFIG].contains(&&*name);
            if !has_rule
                && node_of_yaml(&name).is_none()
                && let Err(error) = sha256_of_file(&path)
            {
                self.check.say(RECORD_FILES, &path, error.to_string());
            }
            self.same(
                RECORD_FILES,
                &path,
                &file.sha256,
                "it is not the file that the run read",
            );
        }
        match files.get(USER_CONF) {
            None => self.say(RECORD_CONF, "the run had no user.conf"),
            Some(file) => {
                let conf = self.result.folder.join(USER_CONF);
                let what = format!("it is not the one that the {} run read", run.kind);
                self.same(RECORD_CONF, &conf, &file.sha256, &what);
            }
        }
        if run.kind == RunKind::Performance && files.contains_key(AUDIT_CONFIG) {
            self.say(RUN_SAMPLED, "the performance run read an audit.config");
        }
    }

    fn exit(&mut self) {
        let is_test = matches!(self.run.kind, RunKind::Test(_));
        let reason = &self.manifest.reason;
        match self.manifest.exit {
            Some(0) => {}
            // `run::verdict` judges LoadGen's verdict on a test, if the test is measured.
            Some(1) if is_test && reason.starts_with("LoadGen says INVALID") => {}
            Some(code) => self.say(RECORD_EXIT, format!("exit code {code}: {reason}")),
            None => self.say(RECORD_EXIT, "the run did not come to its end"),
        }
    }

    /// Checks that each node has a description, from the run or from `--node`.
    fn descriptions(&mut self) {
        let frontend = Name::new(&self.manifest.frontend.node).ok();
        let frontend = frontend.map(|n| (Role::Frontend, n));
        let accelerators = self.run.nodes().into_iter();
        let accelerators = accelerators.map(|n| (Role::Accelerator, n));
        for (role, node) in frontend.into_iter().chain(accelerators) {
            let tree = self.check.tree;
            let path = tree
                .nodes(&self.result.id.system)
                .join(file_of(role, &node));
            let place = tree.short(&path);
            if !filled(&path) && self.check.found.iter().all(|f| f.place != place) {
                let why = self.manifest.undescribed.get(&*node);
                let why = why.map_or(String::new(), |why| format!(" ({why})"));
                let what = format!("{node} is not described{why}");
                self.check.say(RECORD_DESCRIBED, &path, what);
            }
        }
    }
}
