//! Where everything lies in a tree: submission_rules' own layout, and a folder of ours below
//! `documentation/`, which may hold what its author likes.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The diagram of the network.
pub const DIAGRAM: &str = "network.svg";
/// What the diagram shows in words, with OSI layers 1 to 4.
pub const NETWORK_PAGE: &str = "network.md";
/// The minimum bandwidths, and what there is.
pub const BANDWIDTH_PAGE: &str = "bandwidth.md";
/// The session API.
pub const SESSION_PAGE: &str = "session-api.md";
/// The performance run's name below `documentation/runs/…`.
pub const PERFORMANCE: &str = "performance";
/// The accuracy run's.
pub const ACCURACY: &str = "accuracy";

/// A tree and its one submitter.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    division: String,
    submitter: String,
}

/// A scenario of a model on a system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The system's folder.
    pub system: String,
    /// The model's.
    pub model: String,
    /// The scenario's.
    pub scenario: String,
}

impl Tree {
    /// Of a submitter, in a division.
    pub fn new(root: &Path, division: &str, submitter: &str) -> Self {
        Tree {
            root: root.to_owned(),
            division: division.to_owned(),
            submitter: submitter.to_owned(),
        }
    }

    /// The whole.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Who hands it in.
    pub fn submitter(&self) -> &str {
        &self.submitter
    }

    /// `network/ORG`.
    pub fn own(&self) -> PathBuf {
        self.root.join(&self.division).join(&self.submitter)
    }

    /// `systems/`.
    pub fn systems_folder(&self) -> PathBuf {
        self.own().join("systems")
    }

    /// `systems/SYSTEM.json`.
    pub fn system_json(&self, system: &str) -> PathBuf {
        self.systems_folder().join(format!("{system}.json"))
    }

    /// `src/`, or `code/`, as the rules call it too, where that is what is there.
    pub fn source(&self) -> PathBuf {
        let code = self.own().join("code");
        if code.is_dir() && !self.own().join("src").is_dir() {
            return code;
        }
        self.own().join("src")
    }

    /// `documentation/`.
    pub fn documentation(&self) -> PathBuf {
        self.own().join("documentation")
    }

    /// `results/SYSTEM/MODEL/SCENARIO`.
    pub fn scenario(&self, place: &Place) -> PathBuf {
        let results = self.own().join("results");
        results
            .join(&place.system)
            .join(&place.model)
            .join(&place.scenario)
    }

    /// Where a run's own record is kept: `run` is [`PERFORMANCE`], [`ACCURACY`] or a test's name.
    pub fn kept(&self, place: &Place, run: &str) -> PathBuf {
        let runs = self.documentation().join("runs").join(&place.system);
        runs.join(&place.model).join(&place.scenario).join(run)
    }

    /// Systems that have results.
    pub fn systems(&self) -> Vec<String> {
        folders(&self.own().join("results"))
    }

    /// All scenarios of all models of a system.
    pub fn places(&self, system: &str) -> Vec<Place> {
        let of_system = self.own().join("results").join(system);
        let models = folders(&of_system);
        let places = models.into_iter().flat_map(|model| {
            let scenarios = folders(&of_system.join(&model));
            scenarios.into_iter().map(move |scenario| Place {
                system: system.to_owned(),
                model: model.clone(),
                scenario,
            })
        });
        places.collect()
    }

    /// A path as a reader of the tree would say it: without what leads to the tree.
    pub fn short(&self, path: &Path) -> String {
        let short = path.strip_prefix(self.own());
        let short = short.or_else(|_| path.strip_prefix(&self.root));
        short.unwrap_or(path).display().to_string()
    }
}

impl Place {
    /// `MODEL SCENARIO`, with the system in front.
    pub fn words(&self) -> String {
        format!("{} {} {}", self.system, self.model, self.scenario)
    }
}

/// Names of the folders in a folder, sorted; none where it is not there.
pub fn folders(of: &Path) -> Vec<String> {
    names(of, |path| path.is_dir())
}

/// Names of the files in a folder, sorted; none where it is not there.
pub fn files(of: &Path) -> Vec<String> {
    names(of, |path| path.is_file())
}

fn names(of: &Path, keep: impl Fn(&Path) -> bool) -> Vec<String> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let kept = entries.filter(|e| keep(&e.path()));
    let mut names: Vec<_> = kept
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What LoadGen logged lies here.
pub fn run_folder(scenario: &Path, run: &str) -> PathBuf {
    match run {
        PERFORMANCE => scenario.join(PERFORMANCE).join("run_1"),
        ACCURACY => scenario.join(ACCURACY),
        test => scenario.join(test).join(PERFORMANCE).join("run_1"),
    }
}
