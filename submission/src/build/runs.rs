//! Finds and reads runs in the folders that a user names.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use loadgen_log::Detail;
use machine::{Node, Role};
use record::{COPIES, Manifest};

use crate::{
    error::{self, Error},
    layout::{Name, RunKind, folders},
    manifest::{self, AUDIT_CONFIG},
    round::Round,
};

/// Maximum depth of a run's folder below the folder that the user names.
const DEPTH: usize = 4;

#[derive(Clone, Debug)]
pub struct FoundRun {
    pub folder: PathBuf,
    pub manifest: Manifest,
    /// LoadGen's detail log of the run.
    pub detail: Detail,
    pub model: Name,
    pub scenario: Name,
    /// Names of the run's nodes, the frontend first.
    pub nodes: Vec<Name>,
    /// Purposes of the run; a submission run has both accuracy and performance.
    pub kinds: Vec<RunKind>,
}

impl FoundRun {
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(COPIES).join(name)
    }

    pub fn accelerators(&self) -> BTreeSet<&Name> {
        self.nodes.iter().skip(1).collect()
    }
}

/// Finds all runs below the folders `named`. If models share a name in user.conf, as 3d-unet's do,
/// a run is one of each model in `wanted`, the form's models; without any, of the last one. The
/// returned texts say why a run is unusable.
pub fn find(
    named: &[PathBuf],
    round: &Round,
    wanted: &[&str],
    checker: Option<&Path>,
) -> Result<(Vec<FoundRun>, Vec<String>), Error> {
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for folder in named {
        let mut found = Vec::new();
        logs_below(folder, DEPTH, &mut found);
        if found.is_empty() {
            return Err(Error(format!(
                "--runs {}: there is no {} in it, nor {DEPTH} folders below",
                folder.display(),
                loadgen_log::DETAIL
            )));
        }
        for folder in found {
            match one(&folder, round, wanted, checker) {
                Ok(found) => runs.extend(found),
                Err(why) => notes.push(format!("{}: left out: {why}", folder.display())),
            }
        }
    }
    Ok((runs, notes))
}

/// The descriptions of all nodes in the runs. A node's first counts; performance runs come first.
pub fn nodes(runs: &[FoundRun]) -> Result<Vec<Node>, Error> {
    let (measured, others): (Vec<&FoundRun>, Vec<&FoundRun>) = runs
        .iter()
        .partition(|run| run.kinds.contains(&RunKind::Performance));
    let mut nodes: Vec<Node> = Vec::new();
    for run in measured.into_iter().chain(others) {
        for name in &run.nodes {
            let path = run.file(&manifest::node_json(name));
            if path.is_file() && nodes.iter().all(|n| n.node != **name) {
                // The session says which node this is, and its role.
                let role = match run.nodes.first() == Some(name) {
                    true => Role::Frontend,
                    false => Role::Accelerator,
                };
                nodes.push(Node {
                    node: name.to_string(),
                    role,
                    ..error::read_json(&path)?
                });
            }
        }
    }
    Ok(nodes)
}

fn logs_below(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if folder.join(loadgen_log::DETAIL).exists() {
        found.push(folder.to_owned());
    } else if depth > 0 {
        for name in folders(folder) {
            logs_below(&folder.join(name), depth - 1, found);
        }
    }
}

fn one(
    folder: &Path,
    round: &Round,
    wanted: &[&str],
    checker: Option<&Path>,
) -> Result<Vec<FoundRun>, String> {
    let manifest = manifest::read(folder).map_err(|e| e.to_string())?;
    let manifest = manifest.ok_or("it has no run.json: run it again with this frontend")?;
    let detail = Detail::open(&folder.join(loadgen_log::DETAIL))
        .map_err(|e| format!("{}: {e}", loadgen_log::DETAIL))?;
    let models = round.models_of(&manifest.model);
    let in_form = models.iter().filter(|name| wanted.contains(&&****name));
    let mut models_of_run: Vec<_> = in_form.copied().collect();
    if models_of_run.is_empty() {
        models_of_run.extend(models.last());
    }
    let Some(model) = models_of_run.first() else {
        return Err(format!(
            "user.conf's model is {:?}, which is no datacenter model of round {}",
            manifest.model, round.round
        ));
    };
    let ran = detail.text("effective_scenario");
    let of_round = &round.models[*model];
    let judged = detail.whole("effective_target_latency_ns");
    let scenario = round.scenario_of(of_round, &manifest.model, &ran, judged);
    let kinds = match detail.text("effective_test_mode").as_str() {
        "AccuracyOnly" => vec![RunKind::Accuracy],
        "SubmissionRun" => vec![RunKind::Accuracy, RunKind::Performance],
        "PerformanceOnly" if folder.join(COPIES).join(AUDIT_CONFIG).is_file() => {
            let tests = &of_round.tests;
            vec![RunKind::Test(test_of(folder, &manifest, tests, checker)?)]
        }
        "PerformanceOnly" => vec![RunKind::Performance],
        other => return Err(format!("LoadGen's mode {other:?} makes no result")),
    };
    let nodes = manifest::nodes(&manifest).map(|(_, n)| Name::new(&n.node));
    let nodes = nodes.collect::<Result<_, _>>();
    let run = FoundRun {
        folder: folder.to_owned(),
        model: (*model).clone(),
        scenario: Name::new(scenario)?,
        nodes: nodes.map_err(|why| format!("a node of run.json: {why}"))?,
        kinds,
        manifest,
        detail,
    };
    let of_model = |model: &Name| FoundRun {
        model: model.clone(),
        ..run.clone()
    };
    Ok(models_of_run.into_iter().map(of_model).collect())
}

/// The compliance test of a run's audit.config: the test with an identical official file, else the
/// test whose name is in the path of the original audit.config.
fn test_of(
    folder: &Path,
    manifest: &Manifest,
    tests: &[Name],
    checker: Option<&Path>,
) -> Result<Name, String> {
    let ran = error::bytes(&folder.join(COPIES).join(AUDIT_CONFIG)).map_err(|e| e.to_string())?;
    let is_run = |path: &PathBuf| error::bytes(path).is_ok_and(|text| text == ran);
    let official = |test: &Name| checker.map(|c| manifest::audit_configs(c, test));
    let is_of = |test: &&Name| official(test).is_some_and(|all| all.iter().any(is_run));
    let from = manifest.files.get(AUDIT_CONFIG).map(|file| &file.from);
    let parts = || from.into_iter().flat_map(|path| path.iter());
    let is_named = |test: &&Name| parts().any(|part| part == &***test);
    let test = tests.iter().find(is_of);
    let test = test.or_else(|| tests.iter().find(is_named));
    test.cloned().ok_or_else(|| {
        let all: Vec<_> = tests.iter().map(|t| &**t).collect();
        format!(
            "its audit.config is of none of the model's tests ({}): name the checkout with \
             --checker, or a path with the test's name in it",
            all.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a run of the model `conf` for a form with the models `wanted`.
    fn found(conf: &str, wanted: &[&str], log: [&str; 2], node: &str) -> (Vec<FoundRun>, String) {
        let place = tempfile::tempdir().expect("a folder");
        let line = |key: &str, value: &str| {
            format!(":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 0.1}}\n")
        };
        let [scenario, limit_ns] = log;
        let log = [
            line("effective_scenario", &format!("\"{scenario}\"")),
            line("effective_test_mode", "\"PerformanceOnly\""),
            line("effective_target_latency_ns", limit_ns),
        ];
        let node = serde_json::json!({"node": node});
        let manifest = serde_json::json!({"model": conf, "frontend": node, "accelerators": [node]});
        error::write(&place.path().join(loadgen_log::DETAIL), log.concat()).expect("written");
        error::write_json(&place.path().join(record::MANIFEST), &manifest).expect("written");
        let round = Round::find(crate::round::newest()).expect("built in");
        let (runs, notes) = find(&[place.path().to_owned()], &round, wanted, None).expect("read");
        (runs, notes.join("\n"))
    }

    #[test]
    fn a_run_is_one_of_each_model_in_the_form_that_shares_its_name() {
        for (wanted, models) in [
            (
                &["3d-unet-99.9", "3d-unet-99"][..],
                &["3d-unet-99", "3d-unet-99.9"][..],
            ),
            (&["3d-unet-99"], &["3d-unet-99"]),
            (&["rgat"], &["3d-unet-99.9"]),
        ] {
            let (runs, notes) = found("3d-unet", wanted, ["Offline", "0"], "lg");
            assert_eq!(notes, "");
            let found: Vec<_> = runs.iter().map(|run| &*run.model).collect();
            assert_eq!(found, models, "{wanted:?}");
        }
    }

    #[test]
    fn a_model_without_a_name_for_interactive_is_known_by_its_limit() {
        for (limit, scenario) in [("1500000000", "Interactive"), ("12000000000", "Server")] {
            let (runs, notes) = found("qwen3-vl-235b-a22b", &[], ["Server", limit], "lg");
            assert_eq!(notes, "");
            assert_eq!(&*runs[0].scenario, scenario);
        }
    }

    #[test]
    fn a_run_whose_log_or_record_names_a_path_is_left_out() {
        for (scenario, node) in [
            ("../../out", "lg"),
            ("Offline", "../lg"),
            ("Offline", "/lg"),
        ] {
            let (runs, notes) = found("rgat", &[], [scenario, "0"], node);
            assert!(runs.is_empty(), "{scenario} {node}");
            assert!(notes.contains("is no name for a file"), "{notes}");
        }
    }
}
