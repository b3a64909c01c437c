//! Checks a tree against the rules. Findings and `docs/rules.md` refer to a rule by its id; a test
//! compares the ids.

mod accuracy;
mod answers;
mod compliance;
mod config;
mod facts;
mod figures;
mod files;
mod nodes;
mod page;
mod record;
mod run;
mod system;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub use answers::check_runs;
pub(crate) use compliance::failures;
pub(crate) use run::RunCheck;

use ::record::Manifest;
use loadgen_log::Detail;

use crate::{
    configs::RunConfigs,
    describe::escape::visible,
    error,
    layout::{self, Division, Name, ResultId, RunKind, Tree},
    manifest,
    round::{Model, Round},
};

/// A rule: it holds for a run before it begins, as far as its settings show, and for a tree.
#[derive(Debug, PartialEq, Eq)]
pub struct SubmissionRule {
    pub id: &'static str,
    /// What to do about a finding.
    pub advice: &'static str,
    pub not_in: &'static [Division],
}

/// Declares the rules: a constant each, and `ALL`. A row has the id, what holds where the rule is
/// kept, and advice. Divisions after `not` lack the rule.
macro_rules! rules {
    ($($name:ident $id:literal $says:literal $advice:literal $(not $($division:ident)+)?;)*) => {
        $(#[doc = $says] pub const $name: &SubmissionRule = &SubmissionRule {
            id: $id,
            advice: $advice,
            not_in: &[$($(Division::$division),+)?],
        };)*
        /// All rules.
        pub const ALL: &[&SubmissionRule] = &[$($name),*];
    };
}

rules! {
    TREE_EMPTY "tree.empty" "there are results to hand in" "name run folders with --runs";
    TREE_EXTRA "tree.extra" "a submitter's folder holds systems, src or code, documentation and results alone" "move it to documentation/";
    TREE_SOURCE "tree.source" "the source of the QDL is there for each benchmark: src/BENCHMARK/IMPLEMENTATION/" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --src FOLDER";
    TREE_DIAGRAM "tree.diagram" "a diagram shows how the nodes are connected" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node NODE.json" not Closed Open;
    TREE_NETWORK "tree.network" "a page names all that data passes through, and OSI layers 1 to 4" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node NODE.json" not Closed Open;
    TREE_BANDWIDTH "tree.bandwidth" "minimum bandwidths are stated for each result" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node NODE.json";
    TREE_PATH "tree.data-path" "a page describes the way from the NICs to the accelerators" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node NODE.json";
    TREE_QUANTIZATION "tree.quantization" "a page tells how the models were quantized" "fill in quantization of the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    TREE_BATCHING "tree.batching" "a page or the README tells how a server batches queries" "qdl submit writes batching.md from the runs' configurations" not Open;
    TREE_UPLOAD "tree.upload" "each file can be uploaded: no links, no hidden names, no blanks, at most 50 MB" "rename it, or leave it out";
    TREE_SESSION "tree.session-api" "the session API is documented" "qdl submit writes it" not Closed Open;
    TREE_SYSTEM "tree.system" "each system has results, and each result a system's JSON" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node NODE.json";
    SYSTEM_JSON "system.json" "the system's JSON is an object that can be read" "let `qdl submit` write it";
    SYSTEM_FIELD "system.field" "every field of the round is there" "fill in the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    SYSTEM_EMPTY "system.empty" "fields that must say something are not empty" "fill in the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    SYSTEM_NUMBER "system.number" "counts are whole numbers" "fill in the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    SYSTEM_NETWORK "system.is-network" "is_network is the string \"True\" in the Network division, and in no other" "let `qdl submit --division` write the JSON";
    SYSTEM_DIVISION "system.division" "the division is the folder's" "let `qdl submit --division` write the JSON";
    SYSTEM_SUBMITTER "system.submitter" "the submitter is the folder's" "let `qdl submit` write the JSON";
    SYSTEM_TYPE "system.type" "the system is of the datacenter suite" "let `qdl submit` write the JSON";
    SYSTEM_STATUS "system.status" "the status is one of the round's" "set status of the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    SYSTEM_FABRIC "system.fabric" "the fabric is one that the rules permit" "set network_type of the form" not Closed Open;
    SYSTEM_LAYERS "system.layers" "network_protocol tells layers three and four" "set network_protocol of the form" not Closed Open;
    SYSTEM_FACTS "system.facts" "the system's JSON says what its nodes report" "mend the field in the form, or the description";
    SYSTEM_ECC "system.ecc" "memory has ECC, and it is on" "turn ECC on; host_memory_ecc and accelerator_memory_ecc of the form say it where no machine does";
    MODEL_KNOWN "model.known" "the model is one of the round's datacenter models" "set loadgen.model to the model's name in user.conf";
    SCENARIO_KNOWN "scenario.known" "the scenario is one of the model's" "choose another --scenario" not Open;
    SCENARIO_REQUIRED "scenario.required" "each model has the scenarios that it must have: Offline, and Server or Interactive" "run it" not Open;
    CONFIG_ENGINE "config.engine" "answers come from the benchmark's model: no engine or server makes them up" "run an engine with the model, without --verify";
    CONFIG_MODEL "config.model" "every node runs the same model" "give all nodes one model, without model_files";
    CONFIG_DATASET "config.dataset" "samples are the benchmark's data set, not made up" "set dataset to the benchmark's files";
    CONFIG_STAGED "config.staged" "samples leave from the memory that the QSL loaded them into" "remove qsl: staged" not Closed Open;
    CONFIG_SPECULATION "config.speculation" "decoding is speculative only where the round permits it for the model and scenario" "start the server without it" not Open;
    CONFIG_LENGTH "config.length" "answers may be as long as the round says, and end where the model ends them" "set max_tokens to the round's, without ignore_eos" not Open;
    CONFIG_SAMPLING "config.sampling" "tokens are chosen greedily, or with the round's temperature" "set temperature to the round's" not Open;
    RUN_LOG "run.log" "LoadGen's logs are there, of one run, and can be read" "run it again";
    RUN_MODE "run.mode" "a performance log is of a performance run, an accuracy log of an accuracy run" "--mode performance or accuracy";
    RUN_SCENARIO "run.scenario" "the scenario that ran is the folder's" "run the folder's scenario";
    RUN_VALID "run.valid" "LoadGen calls the run VALID" "run it again, at a rate that is met";
    RUN_ERRORS "run.errors" "LoadGen logged no error" "mend the cause, and run it again";
    RUN_SEEDS "run.seeds" "LoadGen's seeds are the round's" "leave seeds to mlperf.conf";
    RUN_DURATION "run.duration" "a run lasts as long as the round says" "leave durations to mlperf.conf";
    RUN_LOADED "run.loaded" "the QSL keeps as many samples loaded as the round says" "load the whole data set";
    RUN_QUERY "run.query" "an Offline query has as many samples as the round says" "set min_query_count in user.conf";
    RUN_TRAVERSAL "run.traversal" "samples are drawn by LoadGen, with replacement and evenly where the model asks for it" "leave it to mlperf.conf" not Open;
    RUN_ORDER "run.order" "queries go in the order of time where the model asks for it" "ask the working group: this frontend sends samples as LoadGen draws them" not Open;
    RUN_PERCENTILE "run.percentile" "LoadGen judges by the round's percentile" "leave it to mlperf.conf";
    RUN_LIMITS "run.limits" "the limits that LoadGen judged by are the scenario's" "leave limits to mlperf.conf; set those that it lacks in user.conf";
    RUN_LATENCY "run.latency" "the latencies measured are within the limits" "run it again, at a lower rate";
    RUN_EARLY "run.early-stopping" "early stopping is met" "run it again, longer";
    RUN_TOKENS "run.tokens" "LoadGen measures tokens where the model asks for it, and the engine counts them" "leave use_token_latencies to mlperf.conf; use an engine of token ids";
    RUN_SAMPLED "run.sampled" "a performance run logs no answers: it has no audit.config" "run it without audit.config";
    RUN_FIGURES "run.figures" "LoadGen's figures agree with each other" "hand in the log as LoadGen wrote it";
    RUN_DATE "run.date" "the runs of a result are of the same days, and not of the future" "run them again; check the clock";
    RUN_NAME "run.name" "the SUT's name says that it is one over a network" "run it over a network" not Closed Open;
    RUN_ANSWER "run.name-answer" "every node answered Name()" "run it again with all nodes up";
    RUN_UNIQUE "run.name-unique" "nodes have names of their own" "give each node its own name";
    RUN_SAME "run.name-same" "all runs of a result are of the same nodes and machines" "run all of them on the same nodes";
    RUN_LOADGEN "run.loadgen" "LoadGen is the round's release, unchanged, in all runs of a result" "build with the round's LoadGen";
    RECORD_MISSING "record.missing" "each run's own record is kept" "keep run.json as the run wrote it";
    RECORD_LOG "record.log" "the logs in the tree are those that the run wrote" "let `qdl submit` copy them";
    RECORD_FILES "record.files" "the files kept with a run are those that it read" "let `qdl submit` copy them";
    RECORD_CONF "record.user-conf" "a user.conf is given, and the one in the tree is the one that ran in all runs" "--user-conf, or loadgen.user_conf";
    RECORD_BUILD "record.build" "all runs and nodes are of one build, and say which" "build all nodes from one commit, with QDL_COMMIT and QDL_DIRTY set";
    RECORD_CLEAN "record.clean" "that build is of a commit and nothing else" "build from a clean checkout: QDL_DIRTY=0";
    RECORD_EXIT "record.exit" "the program called the run good" "run it again";
    RECORD_NETWORK "record.network" "samples go over a permitted network, not within one process or machine" "use two machines, and addresses that are no loopback" not Closed Open;
    RECORD_MACHINES "record.machines" "LoadGen and SUT run on different machines" "use two machines" not Closed Open;
    RECORD_OVERRIDE "record.override" "nothing but the target is set beside user.conf" "remove it from the command line and the YAML";
    RECORD_SUMMARY "record.summary" "summary.json agrees with the logs, and its run would count" "keep summary.json as the run wrote it";
    RECORD_YAML "record.yaml" "every node's configuration is kept, is the node's, and an accelerator's is the same in all runs of a result" "keep the copies that the run made";
    RECORD_CACHE "record.prefix-cache" "no engine keeps prompts' beginnings for later prompts, and each says so" "start the server without its prefix cache";
    RECORD_DESCRIBED "record.described" "every node of a run is described" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node FILE";
    RECORD_NODE "record.node" "a node's description is its own, and has the NICs of its configuration" "let the run bring each node's own description";
    RECORD_LINK "record.link" "the NICs that carry samples are hardware, and up" "use the NICs that carry the samples" not Closed Open;
    ACCURACY_TEXT "accuracy.text" "accuracy.txt is what the reference's script printed" "run the accuracy script";
    ACCURACY_LOW "accuracy.low" "the accuracy reaches the target" "mend the model, and run accuracy again" not Open;
    ACCURACY_HIGH "accuracy.high" "answers are not longer than the reference's allow" "mend the model, and run accuracy again" not Open;
    ACCURACY_HASH "accuracy.hash" "accuracy.txt has the hash of the whole log, once" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --checker CHECKOUT";
    ACCURACY_LOG "accuracy.log" "the accuracy log is there, and cut" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --checker CHECKOUT";
    ACCURACY_SAMPLES "accuracy.samples" "an accuracy run covers the data set" "load the whole data set";
    ACCURACY_FILES "accuracy.files" "answers that the round asks for are kept" "keep them with the accuracy run";
    MEASURED_FIELD "measured.field" "measurements.json has its fields, and none is empty" "fill in models of the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    MEASURED_README "measured.readme" "README.md has the commands that ran" "let `qdl submit` write it";
    MEASURED_CONF "measured.user-conf" "user.conf sets no more than it may" "remove the line, and run it again";
    TEST_MISSING "test.missing" "the compliance tests of the model have run" "run the test" not Open;
    TEST_FILES "test.files" "a test's folder holds what the round asks for" "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --checker CHECKOUT" not Open;
    TEST_PASS "test.pass" "the official verifier passed" "mend the cause, and run the test again" not Open;
    TEST_ANSWERS "test.answers" "the answers that a test kept are what its verifier asks for" "run the test again" not Open;
    TEST_AUDIT "test.audit" "the test ran with the official audit.config" "run the test with --compliance" not Open;
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
        self.say_make(rule, at, what, rule.advice);
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
        check_run(check, result, run);
        figures::summaries(check, result, run);
    }
    accuracy::check(check, result, &runs);
    run::compare(check, result, &runs);
    figures::dates(check, result, &runs);
    record::check(check, result, &runs);
}

/// Checks the rules that hold before a run too: settings, nodes, configurations.
fn check_run(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, run: &CheckedRun) {
    let logs = layout::run_folder(&result.folder, &run.kind);
    let kept = check.tree.kept(result.id, &run.kind);
    let configs = record::configs(check, run, &kept);
    let make = command(check, result, &run.kind);
    let (round, division) = (check.round, check.tree.division);
    let mut one = RunCheck {
        round,
        division,
        model: result.model,
        scenario: &result.id.scenario,
        kind: &run.kind,
        detail: run.detail.as_ref(),
        manifest: run.manifest.as_ref(),
        sources: None,
        say: &mut |rule, file, what| match file {
            loadgen_log::DETAIL => check.say_make(rule, &logs.join(file), what, make.clone()),
            ::record::MANIFEST => check.say(rule, &kept, what),
            _ => check.say(rule, &kept.join(file), what),
        },
    };
    one.log();
    one.figures();
    one.record();
    one.configs(&configs);
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
    let scenario = check.round.scenarios.get(&*result.id.scenario);
    let scenario = scenario.map_or("SCENARIO", |row| &row.flag);
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
