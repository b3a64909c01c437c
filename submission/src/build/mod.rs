//! Copies runs into a tree: each run's logs and user.conf, measurements.json, README.md, the
//! system's JSON and the pages of `documentation/`.

mod described;
mod documents;
mod runs;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use machine::Node;
use record::{COPIES, MANIFEST, SUMMARY};
use serde_json::{Map, Value};

pub(crate) use described::{described, rates, runs_of};
pub use runs::{FoundRun, find, nodes};

use crate::{
    describe::{escape::markdown, form::Form},
    error::{self, Error},
    layout::{self, Division, Name, ResultId, RunKind, Tree},
    manifest::{self, AUDIT_CONFIG, FRONTEND_YAML, USER_CONF},
    round::Round,
};

pub struct Material<'a> {
    pub round: &'a Round,
    pub division: Division,
    pub form: &'a Form,
    pub nodes: &'a [Node],
    pub configurations: &'a BTreeMap<String, PathBuf>,
    pub source: Option<PathBuf>,
    pub runs: &'a [FoundRun],
}

/// A built tree and the source of each run in it.
pub struct BuiltTree {
    pub tree: Tree,
    pub from: BTreeMap<ResultId, BTreeMap<RunKind, PathBuf>>,
}

impl Material<'_> {
    pub fn result_id(&self, run: &FoundRun) -> ResultId {
        ResultId {
            system: self.form.system_of(&run.accelerators()).clone(),
            model: run.model.clone(),
            scenario: run.scenario.clone(),
        }
    }

    fn runs_of_system(&self, system: &Name) -> impl Iterator<Item = &FoundRun> {
        let runs = self.runs.iter();
        runs.filter(move |r| self.result_id(r).system == *system)
    }

    pub fn runs_of(&self, id: &ResultId) -> impl Iterator<Item = &FoundRun> {
        self.runs.iter().filter(move |r| self.result_id(r) == *id)
    }

    /// Checks that all runs of a system have the same accelerators.
    fn one_set_each(&self) -> Result<(), Error> {
        let mut sets: BTreeMap<Name, (String, &Path)> = BTreeMap::new();
        for run in self.runs {
            let system = self.result_id(run).system;
            let set: Vec<_> = run.accelerators().iter().map(|n| &***n).collect();
            let (set, folder) = (set.join(", "), run.folder.display());
            let first = sets.entry(system.clone());
            let (first, of) = first.or_insert_with(|| (set.clone(), &run.folder));
            if *first != set {
                let of = of.display();
                return Err(Error(format!(
                    "system {system} has two sets of nodes: {first} in {of}, {set} in {folder}. Each set is a                      system of its own: name it in the form as `systems: {{NAME: {{accelerators: [{set}]}}}}`,                      or run again"
                )));
            }
        }
        Ok(())
    }
}

pub fn build(material: &Material<'_>, root: &Path) -> Result<BuiltTree, Error> {
    let tree = Tree::new(root, material.division, &material.form.submitter);
    if tree.own().exists() {
        return Err(Error(format!(
            "{} is there already: name another --output, or remove it",
            tree.own().display()
        )));
    }
    material.one_set_each()?;
    let mut from: BTreeMap<ResultId, BTreeMap<RunKind, PathBuf>> = BTreeMap::new();
    for run in material.runs {
        let place = material.result_id(run);
        let kinds = from.entry(place.clone()).or_default();
        for kind in &run.kinds {
            if let Some(first) = kinds.insert(kind.clone(), run.folder.clone()) {
                return Err(Error(format!(
                    "two {kind} runs of {} {}: {} and {}; hand in one",
                    run.model,
                    run.scenario,
                    first.display(),
                    run.folder.display()
                )));
            }
        }
        for kind in &run.kinds {
            put(material, &tree, &place, run, kind)?;
        }
    }
    for place in from.keys() {
        measurements(material, &tree, place)?;
        readme(material, &tree, place)?;
    }
    if let Some(source) = &material.source {
        let runs = material.runs.iter().map(|run| run.folder.as_path());
        let not = std::iter::once(root).chain(runs);
        let not: Vec<_> = not.filter_map(|p| p.canonicalize().ok()).collect();
        let models: BTreeSet<&Name> = from.keys().map(|place| &place.model).collect();
        for model in models {
            let own = tree.source().join(model).join(IMPLEMENTATION);
            copy_source(source, &own, &not)?;
        }
    }
    documents::write(material, &tree, &from)?;
    Ok(BuiltTree { tree, from })
}

/// Copies a run's logs and its record.
fn put(
    material: &Material<'_>,
    tree: &Tree,
    place: &ResultId,
    run: &FoundRun,
    kind: &RunKind,
) -> Result<(), Error> {
    let scenario = tree.scenario(place);
    let (logs, kept) = (layout::run_folder(&scenario, kind), tree.kept(place, kind));
    let mut copies: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut of_run = |name: &Path, to: PathBuf| copies.push((run.folder.join(name), to));
    for name in [loadgen_log::SUMMARY, loadgen_log::DETAIL] {
        of_run(name.as_ref(), logs.join(name));
    }
    match kind {
        RunKind::Performance => {
            let conf = Path::new(COPIES).join(USER_CONF);
            of_run(&conf, scenario.join(USER_CONF));
        }
        RunKind::Accuracy => {
            for name in [loadgen_log::ACCURACY, "accuracy.txt"] {
                of_run(name.as_ref(), logs.join(name));
            }
            for file in &material.round.models[&run.model].accuracy_files {
                of_run(file.as_ref(), logs.join(file));
            }
        }
        RunKind::Test(test) => {
            let baseline = material.round.tests[test].baseline.iter();
            for file in baseline.flat_map(|b| &b.files) {
                let name = file.as_ref().file_name().unwrap_or_default();
                of_run(name.as_ref(), scenario.join(test).join(file));
            }
        }
    }
    for name in [MANIFEST, SUMMARY] {
        of_run(name.as_ref(), kept.join(name));
    }
    let own = [FRONTEND_YAML, USER_CONF, AUDIT_CONFIG].map(str::to_owned);
    let nodes = run.nodes.iter();
    let nodes = nodes.flat_map(|n| [manifest::accelerator_yaml(n), manifest::node_json(n)]);
    for name in own.into_iter().chain(nodes) {
        of_run(&Path::new(COPIES).join(&name), kept.join(&name));
    }
    for (from, to) in copies.iter().filter(|(from, _)| from.is_file()) {
        error::copy(from, to)?;
    }
    for (node, given) in material.configurations {
        // The copy in the run's folder takes precedence over the file that the user names.
        if let Some(node) = run.nodes.iter().find(|n| ***n == **node) {
            let to = kept.join(manifest::accelerator_yaml(node));
            if !to.is_file() && given.is_file() {
                manifest::copy_masked(given, &to)?;
            }
        }
    }
    Ok(())
}

fn measurements(material: &Material<'_>, tree: &Tree, place: &ResultId) -> Result<(), Error> {
    let said = material.form.models.get(&*place.model);
    let field = |name: &String| {
        let value = said.and_then(|fields| fields.get(name)).cloned();
        (name.clone(), Value::String(value.unwrap_or_default()))
    };
    let fields: Map<String, Value> = material.round.measurements.iter().map(field).collect();
    error::write_json(&tree.scenario(place).join("measurements.json"), &fields)
}

/// Writes the result's README.md: the commands of its runs, and where their files are.
fn readme(material: &Material<'_>, tree: &Tree, place: &ResultId) -> Result<(), Error> {
    let mut text = format!(
        "# {} {} on {}\n\nRun on LoadGen's node, with each accelerator started as \
         `accelerator --config accelerator-NODE.yaml`. The files named lie in \
         `documentation/runs/{}/{}/{}/`.\n\n",
        place.model, place.scenario, place.system, place.system, place.model, place.scenario
    );
    for run in material.runs_of(place) {
        for kind in &run.kinds {
            let words: Vec<_> = run.manifest.command.iter().map(|w| quoted(w)).collect();
            let program = &run.manifest.frontend.facts;
            let commit = program.commit.as_deref().unwrap_or_default();
            let version = format!("{} {commit}", program.version);
            let (version, command) = (markdown(version.trim()), words.join(" "));
            let loadgen = markdown(&run.detail.text("loadgen_version"));
            let fence = if command.contains("```") {
                "~~~~~~"
            } else {
                "```"
            };
            text += &format!(
                "{kind}, with LoadGen {loadgen}, program {version}:\n\n{fence}\n{command}\n{fence}\n\n"
            );
        }
    }
    if let Some(model) = material.round.models.get(&place.model) {
        let script = model.accuracy_command("CHECKER", "RUN");
        text += &format!("Accuracy: `{script}`\n\nSamples: {}.\n", model.input);
    }
    error::write(&tree.scenario(place).join("README.md"), text)
}

pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+%@".contains(c);
    // The frontend has quoted words that are not UTF-8.
    let quoted = word.len() > 2 && word.starts_with("$'") && word.ends_with('\'');
    if quoted || (!word.is_empty() && word.chars().all(plain)) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Name of this implementation below a benchmark's sources.
const IMPLEMENTATION: &str = "qdl";

/// Folders that contain no source code, but the output of builds, or runs.
const NO_SOURCE: [&str; 3] = ["target", "results", "__pycache__"];

/// Copies a folder without links, hidden files, Python environments and the folders in `not`. List
/// the tree in `not` if `from` contains the tree.
fn copy_source(from: &Path, to: &Path, not: &[PathBuf]) -> Result<(), Error> {
    if !from.is_dir() {
        return Err(Error(format!(
            "--src {}: there is no such folder",
            from.display()
        )));
    }
    let is_own = |name: &String| {
        let link = fs::symlink_metadata(from.join(name)).is_ok_and(|m| m.is_symlink());
        !link && !name.starts_with('.')
    };
    for name in layout::files(from).iter().filter(|n| is_own(n)) {
        error::copy(&from.join(name), &to.join(name))?;
    }
    for name in layout::folders(from).iter().filter(|n| is_own(n)) {
        let path = from.join(name);
        let other = path.canonicalize().is_ok_and(|p| not.contains(&p));
        let python = path.join("pyvenv.cfg").is_file();
        if !other && !python && !NO_SOURCE.contains(&name.as_str()) {
            copy_source(&path, &to.join(name), not)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_takes_them() {
        assert_eq!(quoted("--set"), "--set");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted(r"$'caf\xe9'"), r"$'caf\xe9'");
    }

    #[test]
    fn a_source_is_copied_without_links_hidden_files_builds_the_tree_and_the_runs() {
        let place = tempfile::tempdir().expect("a folder");
        let from = place.path();
        let files = "lib.rs a/b.rs .git/config .hidden target/debug/x venv/pyvenv.cfg venv/lib/x.py                      runs/one/run.json out/tree/network/org/src/lib.rs";
        for file in files.split_whitespace() {
            error::write(&from.join(file), "text").expect("written");
        }
        for (link, to) in [("python", "/proc/self/exe"), ("a/up", ".."), ("all", "/")] {
            std::os::unix::fs::symlink(to, from.join(link)).expect("a link");
        }
        let to = from.join("out/tree/copy");
        let not = ["out/tree", "runs/one"].map(|p| from.join(p).canonicalize().expect("there"));
        copy_source(from, &to, &not).expect("copied");
        assert_eq!(
            (layout::files(&to), layout::folders(&to)),
            (vec!["lib.rs".into()], vec!["a".into()])
        );
        let to = to.join("a");
        assert_eq!(
            (layout::files(&to), layout::folders(&to)),
            (vec!["b.rs".into()], vec![])
        );
    }
}
