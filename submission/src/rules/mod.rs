//! Checks a tree against the rules. Findings and `docs/rules.md` refer to a rule by its id; a test
//! compares the ids.

mod accuracy;
mod answers;
mod compliance;
mod facts;
mod files;
mod record;
mod run;
mod system;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub use answers::check_runs;
pub(crate) use compliance::failures;
pub(crate) use record::{build_fault, cache_fault, machine_fault};

use ::record::Manifest;
use loadgen_log::Detail;

use crate::{
    describe::escape::visible,
    error,
    layout::{self, Division, Name, ResultId, RunKind, Tree},
    manifest,
    round::{Model, Round, loadgen_scenario},
};

#[derive(Debug, PartialEq, Eq)]
pub struct SubmissionRule {
    pub id: &'static str,
    pub not_in: &'static [Division],
}

/// Declares rules: a constant each, and `ALL`. Divisions after `not` lack the rule: `not Closed
/// Open` leaves it to the Network division alone.
macro_rules! rules {
    ($($name:ident $id:literal $says:literal $(not $($division:ident)+)?;)*) => {
        use $crate::rules::SubmissionRule as Rule;
        $(#[doc = $says] pub const $name: &Rule = &Rule {
            id: $id,
            not_in: &[$($($crate::layout::Division::$division),+)?],
        };)*
        /// All rules of this list.
        pub const ALL: &[&Rule] = &[$($name),*];
    };
}
pub(crate) use rules;

rules! {
    TREE_EMPTY "tree.empty" "there are results to hand in";
    TREE_EXTRA "tree.extra" "a submitter's folder holds systems, src or code, documentation and results alone";
    TREE_SOURCE "tree.source" "the source of the QDL is part of the submission";
    TREE_DIAGRAM "tree.diagram" "a diagram shows how the nodes are connected" not Closed Open;
    TREE_NETWORK "tree.network" "a page names all that data passes through, and OSI layers 1 to 4" not Closed Open;
    TREE_BANDWIDTH "tree.bandwidth" "minimum bandwidths are stated for each result" not Closed Open;
    TREE_PATH "tree.data-path" "a page describes the way from the NICs to the accelerators" not Open;
    TREE_QUANTIZATION "tree.quantization" "a page tells how the models were quantized";
    TREE_UPLOAD "tree.upload" "each file can be uploaded: no links, no hidden names, no blanks, at most 50 MB";
    TREE_SESSION "tree.session-api" "the session API is documented" not Closed Open;
    TREE_SYSTEM "tree.system" "each system has results, and each result a system's JSON";
    SYSTEM_JSON "system.json" "the system's JSON is an object that can be read";
    SYSTEM_FIELD "system.field" "every field of the round is there";
    SYSTEM_EMPTY "system.empty" "fields that must say something are not empty";
    SYSTEM_NUMBER "system.number" "counts are whole numbers";
    SYSTEM_NETWORK "system.is-network" "is_network is the string \"True\" in the Network division, and in no other";
    SYSTEM_DIVISION "system.division" "the division is the folder's";
    SYSTEM_SUBMITTER "system.submitter" "the submitter is the folder's";
    SYSTEM_TYPE "system.type" "the system is of the datacenter suite";
    SYSTEM_STATUS "system.status" "the status is one of the round's";
    SYSTEM_FABRIC "system.fabric" "the fabric is one that the rules permit" not Closed Open;
    SYSTEM_LAYERS "system.layers" "network_protocol tells layers three and four" not Closed Open;
    SYSTEM_FACTS "system.facts" "the system's JSON says what its nodes report";
    SYSTEM_ECC "system.ecc" "memory has ECC, and it is on";
    MODEL_KNOWN "model.known" "the model is one of the round's datacenter models";
    SCENARIO_KNOWN "scenario.known" "the scenario is one of the model's" not Open;
    SCENARIO_REQUIRED "scenario.required" "each model has the scenarios that it must have" not Open;
    RUN_LOG "run.log" "LoadGen's logs are there and can be read";
    RUN_MODE "run.mode" "a performance log is of a performance run, an accuracy log of an accuracy run";
    RUN_SCENARIO "run.scenario" "the scenario that ran is the folder's";
    RUN_VALID "run.valid" "LoadGen calls the run VALID";
    RUN_ERRORS "run.errors" "LoadGen logged no error";
    RUN_SEEDS "run.seeds" "LoadGen's seeds are the round's";
    RUN_DURATION "run.duration" "a run lasts as long as the round says";
    RUN_LOADED "run.loaded" "the QSL keeps as many samples loaded as the round says";
    RUN_QUERY "run.query" "an Offline query has as many samples as the round says";
    RUN_TRAVERSAL "run.traversal" "samples are drawn by LoadGen, with replacement and evenly where the model asks for it" not Open;
    RUN_PERCENTILE "run.percentile" "LoadGen judges by the round's percentile";
    RUN_LIMITS "run.limits" "the limits that LoadGen judged by are the scenario's";
    RUN_LATENCY "run.latency" "the latencies measured are within the limits";
    RUN_EARLY "run.early-stopping" "early stopping is met";
    RUN_TOKENS "run.tokens" "LoadGen measures tokens where the model asks for it";
    RUN_SAMPLED "run.sampled" "a performance run logs no answers: it has no audit.config";
    RUN_NAME "run.name" "the SUT's name says that it is one over a network" not Closed Open;
    RUN_ANSWER "run.name-answer" "every node answered Name()";
    RUN_UNIQUE "run.name-unique" "nodes have names of their own";
    RUN_SAME "run.name-same" "all runs of a result are of the same nodes";
    RUN_LOADGEN "run.loadgen" "LoadGen is the round's release, unchanged, in all runs of a result";
    RECORD_MISSING "record.missing" "each run's own record is kept";
    RECORD_LOG "record.log" "the logs in the tree are those that the run wrote";
    RECORD_FILES "record.files" "the files kept with a run are those that it read";
    RECORD_CONF "record.user-conf" "the user.conf in the tree is the one that ran, and the same in all runs";
    RECORD_BUILD "record.build" "all runs and nodes are of one build";
    RECORD_CLEAN "record.clean" "that build is of a commit and nothing else";
    RECORD_EXIT "record.exit" "the program called the run good";
    RECORD_NETWORK "record.network" "samples went over a network, not within one process or machine" not Closed Open;
    RECORD_MACHINES "record.machines" "LoadGen and SUT run on different machines" not Closed Open;
    RECORD_OVERRIDE "record.override" "nothing but the target is set beside user.conf";
    RECORD_YAML "record.yaml" "every node's configuration is kept, and an accelerator's is the same in all runs of a result";
    RECORD_CACHE "record.prefix-cache" "no engine kept prompts' beginnings for later prompts";
    RECORD_DESCRIBED "record.described" "every node of a run is described";
    RECORD_NODE "record.node" "a node's description is its own, and has the NICs of its configuration";
    RECORD_LINK "record.link" "the NICs that carry samples are hardware, and up" not Closed Open;
    ACCURACY_TEXT "accuracy.text" "accuracy.txt is what the reference's script printed";
    ACCURACY_LOW "accuracy.low" "the accuracy reaches the target" not Open;
    ACCURACY_HIGH "accuracy.high" "answers are not longer than the reference's allow" not Open;
    ACCURACY_HASH "accuracy.hash" "accuracy.txt has the hash of the whole log, once";
    ACCURACY_LOG "accuracy.log" "the accuracy log is there, and cut";
    ACCURACY_SAMPLES "accuracy.samples" "an accuracy run covers the data set";
    ACCURACY_FILES "accuracy.files" "answers that the round asks for are kept";
    MEASURED_FIELD "measured.field" "measurements.json has its fields, and none is empty";
    MEASURED_README "measured.readme" "README.md has the commands that ran";
    MEASURED_CONF "measured.user-conf" "user.conf sets no more than it may";
    TEST_MISSING "test.missing" "the compliance tests of the model have run" not Open;
    TEST_FILES "test.files" "a test's folder holds what the round asks for" not Open;
    TEST_PASS "test.pass" "the official verifier passed" not Open;
    TEST_ANSWERS "test.answers" "the answers that a test kept are what its verifier asks for" not Open;
    TEST_AUDIT "test.audit" "the test ran with the official audit.config" not Open;
}

/// Builds the tree again: `submit` overwrites none.
const REBUILD: &str = "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
/// Advice for what MLCommons' scripts write, which run on a new tree.
pub(crate) const SCRIPTS: &str =
    "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --checker CHECKOUT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFinding {
    pub rule: &'static SubmissionRule,
    /// System, model and scenario of the result; empty if the finding concerns the whole tree.
    pub result: String,
    /// The file or folder, relative to the submitter's folder.
    pub place: String,
    pub what: String,
    /// The command that mends the fault; empty if there is none.
    pub make: String,
}

/// The check of a tree, with the findings so far.
struct TreeCheck<'a> {
    tree: &'a Tree,
    round: &'a Round,
    /// The checkout of mlcommons/inference.
    checker: Option<&'a Path>,
    found: Vec<RuleFinding>,
}

/// A result: a scenario of a model in the round.
struct CheckedResult<'a> {
    id: &'a ResultId,
    model: &'a Model,
    folder: PathBuf,
}

/// A run of a result. Logs that cannot be read are `None`.
struct CheckedRun {
    kind: RunKind,
    detail: Option<Detail>,
    manifest: Option<Manifest>,
}

impl CheckedRun {
    fn nodes(&self) -> Vec<Name> {
        let nodes = self.detail.iter().flat_map(Detail::nodes);
        nodes.filter_map(|n| Name::new(&n).ok()).collect()
    }
}

impl<'a> TreeCheck<'a> {
    fn new(tree: &'a Tree, round: &'a Round, checker: Option<&'a Path>) -> Self {
        TreeCheck {
            tree,
            round,
            checker,
            found: Vec::new(),
        }
    }

    fn say(&mut self, rule: &'static SubmissionRule, at: &Path, what: impl Into<String>) {
        self.say_make(rule, at, what, "");
    }

    /// Adds a finding with the command that mends the fault, if the division has the rule.
    fn say_make(
        &mut self,
        rule: &'static SubmissionRule,
        at: &Path,
        what: impl Into<String>,
        make: impl Into<String>,
    ) {
        if rule.not_in.contains(&self.tree.division) {
            return;
        }
        let place = self.tree.short(at);
        // An error begins with the path, which is the finding's place already.
        let (what, path) = (what.into(), at.display().to_string());
        let what = what.strip_prefix(&format!("{path}: ")).unwrap_or(&what);
        let what = what
            .replace(&format!("cannot read {path}"), "it cannot be read")
            .replace(&format!("{}/", self.tree.own().display()), "");
        // Paths: `results/SYSTEM/MODEL/SCENARIO/…`, `documentation/runs/SYSTEM/MODEL/SCENARIO/…`
        let below = ["results/", "documentation/runs/"];
        let result = below.iter().find_map(|folder| place.strip_prefix(folder));
        let result = result.map(|path| path.split('/').take(3).collect::<Vec<_>>());
        self.found.push(RuleFinding {
            rule,
            result: result.unwrap_or_default().join(" "),
            place,
            what: visible(&what),
            make: make.into(),
        });
    }
}

/// The result `id`; `None` if the round lacks its model.
fn checked_result<'a>(
    tree: &Tree,
    round: &'a Round,
    id: &'a ResultId,
) -> Option<CheckedResult<'a>> {
    Some(CheckedResult {
        id,
        model: round.models.get(&id.model)?,
        folder: tree.scenario(id),
    })
}

/// Checks a whole tree. With `checker`, a checkout of mlcommons/inference, also compares each
/// test's audit.config with the official one.
pub fn check(tree: &Tree, round: &Round, checker: Option<&Path>) -> Vec<RuleFinding> {
    let mut check = TreeCheck::new(tree, round, checker);
    files::check(&mut check);
    for system in tree.systems() {
        system::check(&mut check, &system);
        let results = tree.results(&system);
        let mut by_model: BTreeMap<&Name, Vec<&str>> = BTreeMap::new();
        for id in &results {
            let scenarios = by_model.entry(&id.model).or_default();
            scenarios.push(&id.scenario);
        }
        for (model, scenarios) in by_model {
            files::scenarios(&mut check, &system, model, &scenarios);
        }
        for id in &results {
            if let Some(result) = checked_result(tree, round, id) {
                check_result(&mut check, &result);
            }
        }
    }
    check.found
}

fn check_result(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>) {
    let performance = read(check, result, RunKind::Performance);
    let accuracy = read(check, result, RunKind::Accuracy);
    let mut runs = vec![performance, accuracy];
    runs.extend(compliance::check(check, result));
    files::measured(check, result, &runs);
    for run in &runs {
        run::check(check, result, run);
    }
    accuracy::check(check, result, &runs);
    run::compare(check, result, &runs);
    record::check(check, result, &runs);
}

/// Reads a run's log and manifest; adds a finding for each file that cannot be read.
fn read(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, kind: RunKind) -> CheckedRun {
    let folder = layout::run_folder(&result.folder, &kind);
    let path = folder.join(loadgen_log::DETAIL);
    let make = command(check, result, &kind);
    for name in [loadgen_log::SUMMARY, loadgen_log::DETAIL] {
        let path = folder.join(name);
        if !filled(&path) {
            let what = "it is not there, or empty";
            check.say_make(RUN_LOG, &path, what, make.clone());
        }
    }
    let detail = Detail::open(&path);
    if let Err(error) = &detail
        && filled(&path)
    {
        check.say_make(RUN_LOG, &path, error.to_string(), make);
    }
    let kept = check.tree.kept(result.id, &kind);
    let manifest = manifest::read(&kept);
    if let Err(error) = &manifest {
        check.say(RECORD_MISSING, &kept, error.to_string());
    }
    CheckedRun {
        kind,
        detail: detail.ok(),
        manifest: manifest.unwrap_or_default(),
    }
}

/// Path of a test's audit.config below `compliance`: some tests have one for each model.
fn audit_of(check: &TreeCheck<'_>, result: &CheckedResult<'_>, test: &Name) -> String {
    let own = check.checker.map(|c| manifest::audit_configs(c, test));
    let of_model = own.iter().flatten().find_map(|path| {
        let folder = path.parent()?.file_name()?.to_str()?;
        let model = &result.id.model;
        model.starts_with(folder).then(|| folder.to_owned())
    });
    match of_model {
        Some(folder) => format!("{test}/{folder}/audit.config"),
        None => format!("{test}/audit.config"),
    }
}

/// What is wrong with a file whose hash is not `sha256`: `what`, and whether only line ends or a
/// byte order mark differ.
fn altered(path: &Path, sha256: &str, what: &str) -> String {
    let bytes = error::bytes(path).unwrap_or_default();
    let bare = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let unix = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let is_it = |bytes: &[u8]| fabric::os::sha256_of(bytes) == sha256;
    let why = match (is_it(bare), is_it(unix(&bytes).as_bytes())) {
        (true, _) => ": it has a byte order mark now",
        (_, true) => ": its lines end in CRLF now",
        _ if is_it(unix(bare).as_bytes()) => ": it has a byte order mark and CRLF now",
        _ => "",
    };
    format!("{what}{why}")
}

/// Whether the file exists and is not empty.
fn filled(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0)
}

fn command(check: &TreeCheck<'_>, result: &CheckedResult<'_>, kind: &RunKind) -> String {
    let scenario = match loadgen_scenario(&result.id.scenario) {
        "SingleStream" => "single-stream".to_owned(),
        other => other.to_ascii_lowercase(),
    };
    let conf = match (&*result.id.scenario, &result.model.interactive) {
        ("Interactive", Some(conf)) => conf,
        _ => &result.model.conf,
    };
    let more = match kind {
        RunKind::Performance => "--mode performance".to_owned(),
        RunKind::Accuracy => "--mode accuracy".to_owned(),
        RunKind::Test(test) => {
            let checker = check.checker.map(|path| path.display().to_string());
            let checker = checker.as_deref().unwrap_or("CHECKER");
            let audit = audit_of(check, result, test);
            format!("--mode performance --audit-config {checker}/compliance/{audit}")
        }
    };
    format!(
        "frontend --config FRONTEND.yaml --scenario {scenario} {more} --output RUNS/{kind}  \
         # loadgen.model: {conf}"
    )
}
