//! Runs into a tree: each run's logs to their place, the user.conf that ran, measurements.json,
//! README.md, the system's JSON and the pages of `documentation/`.

mod documents;
mod runs;

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde_json::{Map, Value};

pub use runs::{Kind, Run, find, nodes};

use crate::{
    describe::{Node, form::Form},
    error::{self, Error},
    layout::{self, Place, Tree},
    left::{self, AUDIT_CONFIG, FRONTEND_YAML, USER_CONF},
    round::Round,
};

/// All that a tree is made of.
pub struct Material<'a> {
    /// The round.
    pub round: &'a Round,
    /// The filled-in form.
    pub form: &'a Form,
    /// The nodes' descriptions.
    pub nodes: &'a [Node],
    /// Accelerators' configurations, by node.
    pub configurations: &'a BTreeMap<String, PathBuf>,
    /// The folder with the source, where one is given.
    pub source: Option<PathBuf>,
    /// The runs.
    pub runs: &'a [Run],
}

/// What was put where.
pub struct Built {
    /// The tree.
    pub tree: Tree,
    /// For each result, each kind of run and the folder that it came from.
    pub from: BTreeMap<Place, BTreeMap<String, PathBuf>>,
}

/// Makes the tree.
///
/// # Errors
/// A tree that is there already, two runs for one place, a file that cannot be copied.
pub fn build(material: &Material<'_>, root: &std::path::Path) -> Result<Built, Error> {
    let tree = Tree::new(root, &material.round.division, &material.form.submitter);
    if tree.own().exists() {
        return Err(Error::Usage(format!(
            "{} is there already: name another --out, or remove it",
            tree.own().display()
        )));
    }
    let mut from: BTreeMap<Place, BTreeMap<String, PathBuf>> = BTreeMap::new();
    for run in material.runs {
        let place = Place {
            system: material.form.system.clone(),
            model: run.model.clone(),
            scenario: run.scenario.clone(),
        };
        let kinds = from.entry(place.clone()).or_default();
        for kind in &run.kinds {
            if let Some(first) = kinds.insert(kind.name().to_owned(), run.folder.clone()) {
                return Err(Error::Usage(format!(
                    "two {} runs of {} {}: {} and {}; hand in one",
                    kind.name(),
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
        copy_source(source, &tree.source())?;
    }
    documents::write(material, &tree, &from)?;
    Ok(Built { tree, from })
}

/// One run's logs, and its record.
fn put(
    material: &Material<'_>,
    tree: &Tree,
    place: &Place,
    run: &Run,
    kind: &Kind,
) -> Result<(), Error> {
    let scenario = tree.scenario(place);
    let logs = layout::run_folder(&scenario, kind.name());
    let mut names = vec![loadgen_log::SUMMARY, loadgen_log::DETAIL];
    if *kind == Kind::Accuracy {
        names.extend([loadgen_log::ACCURACY, "accuracy.txt"]);
        let model = material.round.models.get(&run.model);
        names.extend(
            model
                .iter()
                .flat_map(|m| m.accuracy_files.iter().map(String::as_str)),
        );
    }
    for name in names {
        copy_if_there(&run.folder.join(name), &logs.join(name))?;
    }
    if *kind == Kind::Performance {
        copy_if_there(&run.file(USER_CONF), &scenario.join(USER_CONF))?;
    }
    let kept = tree.kept(place, kind.name());
    for name in [left::FILE, left::SUMMARY] {
        copy_if_there(&run.folder.join(name), &kept.join(name))?;
    }
    for name in [FRONTEND_YAML, USER_CONF, AUDIT_CONFIG] {
        copy_if_there(&run.file(name), &kept.join(name))?;
    }
    for node in run.detail.nodes() {
        let name = left::accelerator_yaml(&node);
        // The run itself may have been told; else the user names the file.
        let own = run.file(&name);
        let given = material.configurations.get(&node);
        let from = given.filter(|_| !own.is_file()).cloned().unwrap_or(own);
        copy_if_there(&from, &kept.join(&name))?;
    }
    for node in run.nodes() {
        let name = left::node_json(&node);
        copy_if_there(&run.file(&name), &kept.join(&name))?;
    }
    Ok(())
}

fn copy_if_there(from: &std::path::Path, to: &std::path::Path) -> Result<(), Error> {
    if from.is_file() {
        error::copy(from, to)?;
    }
    Ok(())
}

fn measurements(material: &Material<'_>, tree: &Tree, place: &Place) -> Result<(), Error> {
    let said = material.form.models.get(&place.model);
    let field = |name: &String| {
        let value = said.and_then(|fields| fields.get(name)).cloned();
        (name.clone(), Value::String(value.unwrap_or_default()))
    };
    let fields: Map<String, Value> = material.round.measurements.iter().map(field).collect();
    error::write_json(&tree.scenario(place).join("measurements.json"), &fields)
}

/// The commands that ran, as they ran, and where their files lie.
fn readme(material: &Material<'_>, tree: &Tree, place: &Place) -> Result<(), Error> {
    let of_place = |run: &&Run| run.model == place.model && run.scenario == place.scenario;
    let mut text = format!(
        "# {} {} on {}\n\nRun on LoadGen's node, with each accelerator started as \
         `accelerator --config accelerator-NODE.yaml`. The files named lie in \
         `documentation/runs/{}/{}/{}/`.\n\n",
        place.model, place.scenario, place.system, place.system, place.model, place.scenario
    );
    for run in material.runs.iter().filter(of_place) {
        for kind in &run.kinds {
            let words: Vec<_> = run.left.command.iter().map(|w| quoted(w)).collect();
            let program = &run.left.frontend;
            let version = [Some(program.version.as_str()), program.commit.as_deref()];
            let version: Vec<_> = version
                .into_iter()
                .flatten()
                .filter(|v| !v.is_empty())
                .collect();
            text += &format!(
                "{}, with LoadGen {}, program {}:\n\n```\n{}\n```\n\n",
                kind.name(),
                run.detail.text("loadgen_version"),
                version.join(" "),
                words.join(" ")
            );
        }
    }
    if let Some(model) = material.round.models.get(&place.model) {
        let script = model.accuracy_command("CHECKER", "RUN");
        text += &format!("Accuracy: `{script}`\n\nSamples: {}.\n", model.input);
    }
    error::write(&tree.scenario(place).join("README.md"), text)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+%@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// What is no source: what a build makes, and what version control keeps.
const NO_SOURCE: [&str; 4] = [".git", "target", ".deps", "results"];

fn copy_source(from: &std::path::Path, to: &std::path::Path) -> Result<(), Error> {
    if !from.is_dir() {
        return Err(Error::Usage(format!(
            "--src {}: there is no such folder",
            from.display()
        )));
    }
    for name in layout::files(from) {
        error::copy(&from.join(&name), &to.join(&name))?;
    }
    for name in layout::folders(from) {
        let path = from.join(&name);
        let link = fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink());
        if !link && !NO_SOURCE.contains(&name.as_str()) {
            copy_source(&path, &to.join(&name))?;
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
    }
}
