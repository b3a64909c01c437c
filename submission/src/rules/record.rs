//! Checks the runs' manifests: whether the tree is made of these runs, and whether they count.

use std::collections::BTreeMap;

use ::record::NodeRecord;

use super::{nodes::is_hash, *};
use crate::{
    describe::Role,
    error,
    manifest::{AUDIT_CONFIG, FRONTEND_YAML, LOGS, USER_CONF, sha256_of_file},
};

/// Digits of a SHA-256.
const SHA256: std::ops::RangeInclusive<usize> = 64..=64;

/// Reads the configurations that a run kept; adds a finding for each that the parser refuses.
pub(super) fn configs(check: &mut TreeCheck<'_>, run: &CheckedRun, kept: &Path) -> RunConfigs {
    let mut configs = RunConfigs::default();
    let nodes = run.nodes();
    for node in std::iter::once(None).chain(nodes.iter().map(Some)) {
        let name = node.map_or(FRONTEND_YAML.to_owned(), manifest::accelerator_yaml);
        let path = kept.join(&name);
        // Another rule reports a file that the run did not read.
        let noted = run.manifest.as_ref().and_then(|m| m.files.get(&name));
        let is_own = noted.is_none_or(|n| sha256_of_file(&path).is_ok_and(|h| h == n.sha256));
        let Ok(text) = error::read(&path) else {
            continue;
        };
        if is_own && let Err(what) = configs.read(node, &text) {
            check.say(RECORD_YAML, &path, what);
        }
    }
    configs
}

pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    for run in runs {
        let kept = check.tree.kept(result.id, &run.kind);
        let Some(manifest) = &run.manifest else {
            let place = check.tree.short(&kept);
            let mut found = check.found.iter();
            if !found.any(|f| f.rule == RECORD_MISSING && f.place == place) {
                let make = command(check, result, &run.kind);
                check.say_make(RECORD_MISSING, &kept, "the run has no run.json", make);
            }
            continue;
        };
        let mut one = ManifestCheck {
            check,
            result,
            run,
            manifest,
            kept,
        };
        one.all();
    }
    compare(check, result, runs);
}

/// Checks that each node has one machine, commit and program in all runs, and each accelerator one
/// configuration.
fn compare(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    let mut first: BTreeMap<(Role, &str), (&RunKind, &NodeRecord)> = BTreeMap::new();
    let mut yamls: BTreeMap<&str, (&RunKind, &str)> = BTreeMap::new();
    for (run, manifest) in runs.iter().filter_map(|r| Some((r, r.manifest.as_ref()?))) {
        let kept = check.tree.kept(result.id, &run.kind);
        for (role, node) in manifest::nodes(manifest) {
            let name = node.node.as_str();
            if !node
                .program
                .as_ref()
                .is_some_and(|hash| is_hash(hash, SHA256))
            {
                let what = format!("{name}'s program has no SHA-256");
                check.say(RECORD_BUILD, &kept, what);
                continue;
            }
            let (of, other) = *first.entry((role, name)).or_insert((&run.kind, node));
            // A machine that started again has another boot, and the same id.
            let machine = |n: &NodeRecord| n.machine.clone().unwrap_or_else(|| n.host.clone());
            for (rule, differs, what) in [
                (RECORD_BUILD, other.program != node.program, "program"),
                (RECORD_BUILD, other.commit != node.commit, "commit"),
                (RUN_SAME, machine(other) != machine(node), "machine"),
            ] {
                if differs {
                    let what = format!("{name}'s {what} is not that of the {of} run");
                    check.say(rule, &kept, what);
                }
            }
        }
        // Where an accuracy run's answers may be longer, its configurations are others.
        if run.kind == RunKind::Accuracy && !result.model.max_tokens_accuracy.is_empty() {
            continue;
        }
        let files = manifest.files.iter();
        for (name, file) in files.filter(|(name, _)| manifest::is_accelerator_yaml(name)) {
            let Ok(copy) = Name::new(name) else { continue };
            let entry = yamls.entry(name);
            let (of, other) = *entry.or_insert((&run.kind, &file.sha256));
            if other != file.sha256 {
                let what = format!("it is not that of the {of} run");
                check.say(RECORD_YAML, &kept.join(copy), what);
            }
        }
    }
}

struct ManifestCheck<'a, 'b> {
    check: &'a mut TreeCheck<'b>,
    result: &'a CheckedResult<'a>,
    run: &'a CheckedRun,
    manifest: &'a Manifest,
    /// The folder of the manifest in the tree.
    kept: PathBuf,
}

impl ManifestCheck<'_, '_> {
    fn say(&mut self, rule: &'static SubmissionRule, what: impl Into<String>) {
        self.check.say(rule, &self.kept, what);
    }

    fn all(&mut self) {
        self.logs();
        self.copies();
        self.user_conf();
        self.exit();
        self.configurations();
        self.descriptions();
    }

    /// Checks that the run wrote the logs, and that they are of the result's model and scenario.
    fn logs(&mut self) {
        let (result, manifest) = (self.result, self.manifest);
        let folder = layout::run_folder(&result.folder, &self.run.kind);
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
            let path = folder.join(name);
            // The tree's accuracy log is cut; `answers::kept` checks it.
            let is_whole = name != loadgen_log::ACCURACY;
            if is_whole && path.is_file() && sha256_of_file(&path).ok().as_ref() != Some(hash) {
                let what = altered(&path, hash, "it is not the log that the run wrote");
                self.check.say(RECORD_LOG, &path, what);
            }
        }
        let Manifest {
            model, scenario, ..
        } = manifest;
        let is_model = match (&*result.id.scenario, &result.model.interactive) {
            ("Interactive", Some(own)) => model == own,
            (_, own) => *model == result.model.conf || own.as_ref() == Some(model),
        };
        if !is_model || scenario != self.check.round.loadgen_scenario(&result.id.scenario) {
            let what = format!("the record is of {model} in {scenario}");
            self.say(RECORD_LOG, what);
        }
    }

    /// Checks that the copies equal the files that the run read.
    fn copies(&mut self) {
        for (name, file) in &self.manifest.files {
            let Ok(name) = Name::new(name) else {
                self.say(RECORD_FILES, format!("{name:?} is no copy's name"));
                continue;
            };
            let path = self.kept.join(&name);
            // Other rules report these files if they are missing.
            let own_rule = [FRONTEND_YAML, AUDIT_CONFIG].contains(&&*name);
            let own_rule = own_rule || manifest::is_accelerator_yaml(&name);
            let what = match sha256_of_file(&path) {
                Ok(found) if found == file.sha256 => continue,
                Ok(_) => altered(&path, &file.sha256, "it is not the file that the run read"),
                Err(_) if own_rule => continue,
                Err(error) => error.to_string(),
            };
            self.check.say(RECORD_FILES, &path, what);
        }
    }

    fn user_conf(&mut self) {
        let (kind, files) = (&self.run.kind, &self.manifest.files);
        let conf = self.result.folder.join(USER_CONF);
        match files.get(USER_CONF) {
            None => {
                let make = command(self.check, self.result, kind);
                let what = "the run had no user.conf";
                self.check.say_make(RECORD_CONF, &self.kept, what, make);
            }
            Some(file) if conf.is_file() => {
                if sha256_of_file(&conf).ok().as_ref() != Some(&file.sha256) {
                    let what = format!("it is not the one that the {kind} run read");
                    let what = altered(&conf, &file.sha256, &what);
                    self.check.say(RECORD_CONF, &conf, what);
                }
            }
            Some(_) => {}
        }
        if *kind == RunKind::Performance && files.contains_key(AUDIT_CONFIG) {
            self.say(RUN_SAMPLED, "the performance run read an audit.config");
        }
    }

    fn exit(&mut self) {
        let is_test = matches!(self.run.kind, RunKind::Test(_));
        let reason = &self.manifest.reason;
        match self.manifest.exit {
            Some(0) => {}
            // `run::performance` judges LoadGen's verdict on a test, if the test is measured.
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
            let path = tree.nodes(&self.result.id.system).join(role.file(&node));
            let place = tree.short(&path);
            if filled(&path) || self.check.found.iter().any(|f| f.place == place) {
                continue;
            }
            let why = self.manifest.undescribed.get(&*node);
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            let program = match role {
                Role::Frontend => "qdl",
                Role::Accelerator => "accelerator",
            };
            let make = format!("{program} describe --name {node}; qdl submit ... --node FILE");
            let what = format!("{node} is not described{why}");
            self.check.say_make(RECORD_DESCRIBED, &path, what, make);
        }
    }

    /// Checks that the configurations of the frontend and of each accelerator are kept.
    fn configurations(&mut self) {
        let manifest = self.manifest;
        let own = self.kept.join(FRONTEND_YAML);
        if !filled(&own) {
            self.check
                .say(RECORD_YAML, &own, "it is not there, or empty");
        } else if !manifest.files.contains_key(FRONTEND_YAML) {
            self.check
                .say(RECORD_YAML, &own, "the record has no hash of it");
        }
        for node in self.run.nodes() {
            let name = manifest::accelerator_yaml(&node);
            let path = self.kept.join(&name);
            let is_known = manifest.files.contains_key(&name);
            if !filled(&path) {
                let make = format!("qdl submit ... --accelerator {node}=ITS.yaml");
                let what = format!("{node}'s configuration is not kept");
                self.check.say_make(RECORD_YAML, &path, what, make);
            } else if !is_known && !manifest.undescribed.contains_key(&*node) {
                self.check
                    .say(RECORD_YAML, &path, "the record has no hash of it");
            }
        }
    }
}
