//! Finds and reads runs in the folders that a user names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use loadgen_log::Detail;

use crate::{
    describe::Node,
    error::{self, Error},
    layout::{Kind, Name, folders},
    left::{self, AUDIT_CONFIG, FOLDER, Left},
    round::Round,
};

/// How many levels of folders below the named one may hold runs.
const DEPTH: usize = 4;

/// A finished run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The run's folder.
    pub folder: PathBuf,
    /// The run's `run.json`.
    pub left: Left,
    /// LoadGen's detail log of the run.
    pub detail: Detail,
    /// Name of the model's folder in a tree.
    pub model: Name,
    /// Name of the scenario's folder in a tree.
    pub scenario: Name,
    /// Names of the run's nodes, the frontend first.
    pub nodes: Vec<Name>,
    /// Purposes of the run; a submission run has both accuracy and performance.
    pub kinds: Vec<Kind>,
}

impl Run {
    /// Path of the copy `name` of an input file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(FOLDER).join(name)
    }

    /// Names of the run's accelerators.
    pub fn accelerators(&self) -> BTreeSet<&Name> {
        self.nodes.iter().skip(1).collect()
    }
}

/// Finds all runs below the folders `named`. `wanted` are the form's models: it decides where two
/// models share a name in user.conf, as 3d-unet's do. The texts name unusable runs and why.
///
/// # Errors
/// A folder does not exist, or holds no run.
pub fn find(
    named: &[PathBuf],
    round: &Round,
    wanted: &[&str],
    checker: Option<&Path>,
) -> Result<(Vec<Run>, Vec<String>), Error> {
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for folder in named {
        let mut found = Vec::new();
        logs_below(folder, DEPTH, &mut found);
        if found.is_empty() {
            return Err(Error::Usage(format!(
                "--runs {}: there is no {} in it, nor {DEPTH} folders below",
                folder.display(),
                loadgen_log::DETAIL
            )));
        }
        for folder in found {
            match one(&folder, round, wanted, checker) {
                Ok(run) => runs.push(run),
                Err(why) => notes.push(format!("{}: left out: {why}", folder.display())),
            }
        }
    }
    Ok((runs, notes))
}

/// The descriptions of all nodes in the runs. A node's first description counts; performance runs
/// come first.
///
/// # Errors
/// [`Error::Read`]: a description cannot be read. [`Error::Content`]: a description is
/// invalid.
/// [`Error::Read`], [`Error::Content`].
pub fn nodes(runs: &[Run]) -> Result<Vec<Node>, Error> {
    let (measured, others): (Vec<&Run>, Vec<&Run>) = runs
        .iter()
        .partition(|run| run.kinds.contains(&Kind::Performance));
    let mut nodes: Vec<Node> = Vec::new();
    for run in measured.into_iter().chain(others) {
        for name in &run.nodes {
            let path = run.file(&left::node_json(name));
            if path.is_file() && nodes.iter().all(|n| n.node != **name) {
                nodes.push(error::read_json(&path)?);
            }
        }
    }
    Ok(nodes)
}

fn logs_below(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if folder.join(loadgen_log::DETAIL).is_file() {
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
) -> Result<Run, String> {
    let left = Left::read(folder).map_err(|e| e.to_string())?;
    let left = left.ok_or("it has no run.json: run it again with this frontend")?;
    let detail = Detail::open(&folder.join(loadgen_log::DETAIL))
        .map_err(|e| format!("{}: {e}", loadgen_log::DETAIL))?;
    let models = round.models_of(&left.model);
    let in_form = models.iter().find(|(name, _)| wanted.contains(&&***name));
    let Some((model, interactive)) = in_form.or(models.last()) else {
        return Err(format!(
            "user.conf's model is {:?}, which is no datacenter model of round {}",
            left.model, round.round
        ));
    };
    let ran = detail.text("effective_scenario");
    let of_round = &round.models[*model];
    // If a model has no name for Interactive, LoadGen's latency limit tells the scenario.
    let tight = of_round
        .limits
        .get("Interactive")
        .and_then(|l| l.latency_ms);
    let tight = tight
        .filter(|_| of_round.interactive.is_none())
        .is_some_and(|ms| {
            let judged = detail.whole("effective_target_latency_ns");
            judged.is_some_and(|ns| ns > 0 && ns <= ms.saturating_mul(1_000_000))
        });
    let scenario = match ran.as_str() {
        "Server" if *interactive || tight => "Interactive".to_owned(),
        _ => ran,
    };
    let kinds = match detail.text("effective_test_mode").as_str() {
        "AccuracyOnly" => vec![Kind::Accuracy],
        "SubmissionRun" => vec![Kind::Accuracy, Kind::Performance],
        "PerformanceOnly" if folder.join(FOLDER).join(AUDIT_CONFIG).is_file() => {
            let tests = &of_round.tests;
            vec![Kind::Test(test_of(folder, &left, tests, checker)?)]
        }
        "PerformanceOnly" => vec![Kind::Performance],
        other => return Err(format!("LoadGen's mode {other:?} makes no result")),
    };
    let nodes = left.nodes().map(|(_, n)| Name::new(&n.node));
    let nodes = nodes.collect::<Result<_, _>>();
    Ok(Run {
        folder: folder.to_owned(),
        model: (*model).clone(),
        scenario: Name::new(&scenario)?,
        nodes: nodes.map_err(|why| format!("a node of run.json: {why}"))?,
        kinds,
        left,
        detail,
    })
}

/// The compliance test of a run's audit.config: the test with an identical official file, else the
/// test whose name is in the original's path.
fn test_of(
    folder: &Path,
    left: &Left,
    tests: &[Name],
    checker: Option<&Path>,
) -> Result<Name, String> {
    let ran = fs::read(folder.join(FOLDER).join(AUDIT_CONFIG)).map_err(|e| e.to_string())?;
    let is_of = |test: &&Name| {
        let official = checker
            .map(|c| left::audit_configs(c, test))
            .unwrap_or_default();
        official
            .iter()
            .any(|path| fs::read(path).is_ok_and(|o| o == ran))
    };
    let from = left
        .files
        .get(AUDIT_CONFIG)
        .map(|note| note.from.to_string_lossy().into_owned());
    let from = from.unwrap_or_default();
    let named = |test: &&Name| from.split('/').any(|part| **test == *part);
    let test = tests
        .iter()
        .find(is_of)
        .or_else(|| tests.iter().find(named));
    test.cloned().ok_or(format!(
        "its audit.config is of none of the model's tests ({}): name the checkout with --checker, or a path with the \
         test's name in it",
        tests.iter().map(|t| &**t).collect::<Vec<_>>().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::left::NodeNote;

    /// Reads a run of qwen3-vl with this scenario, latency limit and node name.
    fn found(scenario: &str, limit_ms: u64, node: &str) -> (Vec<Run>, Vec<String>) {
        let place = tempfile::tempdir().expect("a folder");
        let line = |key: &str, value: String| {
            format!(":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 0.1}}\n")
        };
        let log = [
            line("effective_scenario", format!("\"{scenario}\"")),
            line("effective_test_mode", "\"PerformanceOnly\"".to_owned()),
            line("effective_target_latency_ns", format!("{limit_ms}000000")),
        ];
        let node = NodeNote {
            node: node.to_owned(),
            ..NodeNote::default()
        };
        let left = Left {
            model: "qwen3-vl-235b-a22b".to_owned(),
            frontend: node.clone(),
            accelerators: vec![node],
            ..Left::default()
        };
        error::write(&place.path().join(loadgen_log::DETAIL), log.concat()).expect("written");
        error::write_json(&place.path().join(left::FILE), &left).expect("written");
        let round = Round::find("v6.1").expect("built in");
        find(&[place.path().to_owned()], &round, &[], None).expect("read")
    }

    #[test]
    fn a_model_without_a_name_for_interactive_is_told_by_its_limit() {
        for (limit_ms, scenario) in [(1500, "Interactive"), (12_000, "Server")] {
            let (runs, notes) = found("Server", limit_ms, "lg");
            assert_eq!(notes, [""; 0]);
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
            let (runs, notes) = found(scenario, 0, node);
            assert!(runs.is_empty(), "{scenario} {node}");
            assert!(notes[0].contains("is no name for a file"), "{notes:?}");
        }
    }
}
