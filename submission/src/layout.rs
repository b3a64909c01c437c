//! Paths in a submission tree: the layout of MLCommons' submission_rules, and this project's
//! folders below `documentation/`, whose content the rules leave to the submitter.

use std::{
    borrow::Borrow,
    fmt,
    ops::Deref,
    path::{Path, PathBuf},
};

pub use disk::{files, folders};
use serde::{Deserialize, Serialize};

pub const DIAGRAM: &str = "network.svg";
/// File name of the page that explains the diagram, with OSI layers 1 to 4.
pub const NETWORK_PAGE: &str = "network.md";
/// File name of the page on required and available bandwidth.
pub const BANDWIDTH_PAGE: &str = "bandwidth.md";
/// File name of the page on the data path from the NICs to the accelerators.
pub const PATH_PAGE: &str = "data-path.md";
/// File name of the page on quantization, as the rules require it.
pub const QUANTIZATION_PAGE: &str = "calibration.md";
/// File name of the page on how the accelerators batch queries.
pub const BATCHING_PAGE: &str = "batching.md";
pub const SESSION_PAGE: &str = "session-api.md";
/// File name extensions of pages, and of pictures, by hand.
const PAGES: [&str; 6] = ["md", "adoc", "txt", "rst", "html", "pdf"];
const PICTURES: [&str; 6] = ["svg", "png", "jpg", "jpeg", "pdf", "webp"];
/// Maximum length of a [`Name`], in bytes.
const MAX_NAME: usize = 100;

/// A name of a file or folder: letters, digits and `- _ .`, at most 100 bytes, without a dot at the
/// start. [`Name::new`] is the only constructor, so no document can name a path outside its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Checks `text` and makes it a name. The error says what a name may contain.
    pub fn new(text: &str) -> Result<Self, String> {
        let accent = |c: char| ('\u{300}'..='\u{36f}').contains(&c);
        let plain = |c: char| c.is_alphanumeric() || accent(c) || "-_.".contains(c);
        let good = !text.is_empty() && text.len() <= MAX_NAME && !text.starts_with('.');
        match good && text.chars().all(plain) {
            true => Ok(Name(text.to_owned())),
            false => Err(format!(
                "{text:?} is no name for a file: letters, digits and - _ . with no dot in front, at most {MAX_NAME} bytes"
            )),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Name::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<Path> for Name {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Relative path of a file: [`Name`]s separated by `/`, so it cannot leave its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Below(String);

impl TryFrom<String> for Below {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.split('/')
            .try_for_each(|part| Name::new(part).map(drop))?;
        Ok(Below(text))
    }
}

impl AsRef<Path> for Below {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

/// The purpose of a run. The run's folders have the purpose's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    Performance,
    /// An accuracy run: each sample once.
    Accuracy,
    /// A run of the named compliance test.
    Test(Name),
}

impl RunKind {
    pub fn name(&self) -> &str {
        match self {
            RunKind::Performance => "performance",
            RunKind::Accuracy => "accuracy",
            RunKind::Test(name) => name,
        }
    }
}

impl fmt::Display for RunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Division {
    /// LoadGen and the SUT are one system, of one or several machines.
    Closed,
    /// As closed, with the submitter's own models, accuracy targets and tests.
    Open,
    /// LoadGen runs on its own machine, and the SUT is behind a network.
    #[default]
    Network,
}

impl Division {
    pub fn name(self) -> &'static str {
        match self {
            Division::Closed => "closed",
            Division::Open => "open",
            Division::Network => "network",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Tree {
    pub root: PathBuf,
    pub division: Division,
    pub submitter: Name,
}

/// One result: a scenario of a model on a system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResultId {
    pub system: Name,
    pub model: Name,
    pub scenario: Name,
}

impl Tree {
    /// Creates the tree's paths below `root`, but no folder.
    pub fn new(root: &Path, division: Division, submitter: &Name) -> Self {
        Tree {
            root: root.to_owned(),
            division,
            submitter: submitter.clone(),
        }
    }

    /// `DIVISION/ORG`.
    pub fn own(&self) -> PathBuf {
        self.root.join(self.division.name()).join(&self.submitter)
    }

    pub fn systems_folder(&self) -> PathBuf {
        self.own().join("systems")
    }

    pub fn system_json(&self, system: &Name) -> PathBuf {
        self.systems_folder().join(format!("{system}.json"))
    }

    /// The folder of sources: `code/` if only that exists, else `src/`. The rules allow both names.
    pub fn source(&self) -> PathBuf {
        let code = self.own().join("code");
        if code.is_dir() && !self.own().join("src").is_dir() {
            return code;
        }
        self.own().join("src")
    }

    pub fn documentation(&self) -> PathBuf {
        self.own().join("documentation")
    }

    /// `documentation/SYSTEM/PAGE`: a page about one system.
    pub fn page(&self, system: &Name, page: &str) -> PathBuf {
        self.documentation().join(system).join(page)
    }

    /// `documentation/nodes/SYSTEM`: the descriptions of a system's nodes.
    pub fn nodes(&self, system: &Name) -> PathBuf {
        self.documentation().join("nodes").join(system)
    }

    /// `results/SYSTEM/MODEL/SCENARIO`.
    pub fn scenario(&self, id: &ResultId) -> PathBuf {
        let results = self.own().join("results");
        results.join(&id.system).join(&id.model).join(&id.scenario)
    }

    /// The folder with the program's record of a run,
    /// `documentation/runs/SYSTEM/MODEL/SCENARIO/KIND`.
    pub fn kept(&self, id: &ResultId, run: &RunKind) -> PathBuf {
        let runs = self.documentation().join("runs").join(&id.system);
        runs.join(&id.model).join(&id.scenario).join(run.name())
    }

    /// Systems that have results. Skips folders whose name is no [`Name`].
    pub fn systems(&self) -> Vec<Name> {
        named(&self.own().join("results"))
    }

    pub fn results(&self, system: &Name) -> Vec<ResultId> {
        let of_system = self.own().join("results").join(system);
        let results = named(&of_system).into_iter().flat_map(|model| {
            let scenarios = named(&of_system.join(&model));
            scenarios.into_iter().map(move |scenario| ResultId {
                system: system.clone(),
                model: model.clone(),
                scenario,
            })
        });
        results.collect()
    }

    /// Shortens a path: relative to the submitter's folder, else to the root, else unchanged.
    pub fn short(&self, path: &Path) -> String {
        let short = path.strip_prefix(self.own());
        let short = short.or_else(|_| path.strip_prefix(&self.root));
        match short.unwrap_or(path).display().to_string() {
            place if place.is_empty() => "the submitter's folder".to_owned(),
            place => place,
        }
    }
}

/// `SYSTEM MODEL SCENARIO`.
impl fmt::Display for ResultId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.system, self.model, self.scenario)
    }
}

fn named(of: &Path) -> Vec<Name> {
    let all = folders(of);
    all.iter().filter_map(|name| Name::new(name).ok()).collect()
}

/// The file of a page or a picture: `path`, else a file of this name with another extension of its
/// kind that is not empty.
pub fn document(path: &Path) -> PathBuf {
    let is_filled = |path: &PathBuf| path.metadata().is_ok_and(|of| of.is_file() && of.len() > 0);
    let kinds = match path.extension().is_some_and(|e| e == "svg") {
        true => &PICTURES[..],
        false => &PAGES[..],
    };
    let mut others = kinds.iter().map(|kind| path.with_extension(kind));
    let other = (!is_filled(&path.to_owned())).then(|| others.find(is_filled));
    other.flatten().unwrap_or(path.to_owned())
}

/// The folder of a run's LoadGen logs.
pub fn run_folder(scenario: &Path, run: &RunKind) -> PathBuf {
    match run {
        RunKind::Performance => scenario.join("performance").join("run_1"),
        RunKind::Accuracy => scenario.join("accuracy"),
        RunKind::Test(test) => scenario.join(test).join("performance").join("run_1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_but_into_its_folder() {
        let long = "a".repeat(MAX_NAME + 1);
        for odd in "|.|..|.a|/a|a\\b|a b|a\0|a\u{202e}b|a//b|a/../b"
            .split('|')
            .chain([&*long])
        {
            assert!(Name::new(odd).is_err(), "{odd:?}");
            assert!(Below::try_from(odd.to_owned()).is_err(), "{odd:?}");
        }
        assert!(Name::new("a/b").is_err() && Below::try_from("a/b".to_owned()).is_ok());
        for accented in ["Soci\u{e9}t\u{e9}", "Socie\u{301}te", "\u{682a}"] {
            assert!(Name::new(accented).is_ok(), "{accented}");
        }
        let read: Result<Name, _> = serde_json::from_str("\"../a\"");
        assert!(read.is_err(), "{read:?}");
    }
}
