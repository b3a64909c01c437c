//! Checks a tree against the rules. Findings and `docs/rules.md` refer to a rule by its id.

mod accuracy;
mod answers;
mod compliance;
mod config;
mod facts;
mod figures;
mod files;
mod nodes;
mod record;
mod run;
mod system;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    rc::Rc,
};

pub use answers::check_runs;
pub(crate) use compliance::failures;
pub(crate) use run::RunCheck;

use ::record::Manifest;
use loadgen_log::Detail;

use crate::{
    build,
    configs::RunConfigs,
    describe::{escape::visible, system::DescribedSystem},
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
/// kept, and after `=>` advice. Divisions after `not` lack the rule.
macro_rules! rules {
    ($($name:ident $id:literal $says:literal $(not [$($division:ident)+])? => $advice:expr;)*) => {
        $(#[doc = $says] pub const $name: &SubmissionRule = &SubmissionRule {
            id: $id,
            advice: $advice,
            not_in: &[$($(Division::$division),+)?],
        };)*
        /// All rules.
        pub const ALL: &[&SubmissionRule] = &[$($name),*];
    };
}

/// Commands of advice. [`submit`](crate::command::submit) overwrites no tree.
const NODE: &str = "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --node NODE.json";
const FORM: &str =
    "fill in the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
/// Advice for what MLCommons' scripts write, which run on a new tree.
pub(crate) const SCRIPTS: &str =
    "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --checker CHECKOUT";

rules! {
    TREE_EMPTY "tree.empty" "there are results to hand in" => "name run folders with --runs";
    TREE_EXTRA "tree.extra" "a submitter's folder holds systems, src or code, documentation and results alone" => "move it to documentation/";
    TREE_SOURCE "tree.source" "the source of the QDL is there for each benchmark: src/BENCHMARK/IMPLEMENTATION/" => "qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml --src FOLDER";
    TREE_DIAGRAM "tree.diagram" "a diagram shows how the nodes are connected" not [Closed Open] => NODE;
    TREE_NETWORK "tree.network" "a page names all that data passes through, and OSI layers 1 to 4" not [Closed Open] => NODE;
    TREE_BANDWIDTH "tree.bandwidth" "minimum bandwidths are stated for each result" => NODE;
    TREE_PATH "tree.data-path" "a page describes the way from the NICs to the accelerators" => NODE;
    TREE_QUANTIZATION "tree.quantization" "a page tells how the models were quantized" => "fill in quantization of the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    TREE_BATCHING "tree.batching" "a page or the README tells how a server batches queries" not [Open] => "qdl submit writes batching.md from the runs' configurations";
    TREE_UPLOAD "tree.upload" "each file can be uploaded: no links, no hidden names, no blanks, at most 50 MB" => "rename it, or leave it out";
    TREE_SESSION "tree.session-api" "the session API is documented" not [Closed Open] => "qdl submit writes it";
    TREE_SYSTEM "tree.system" "each system has results, and each result a system's JSON" => NODE;
    SYSTEM_JSON "system.json" "the system's JSON is an object that can be read" => "let `qdl submit` write it";
    SYSTEM_FIELD "system.field" "every field of the round is there, a whole number where the round wants one, and of this tree" => FORM;
    SYSTEM_EMPTY "system.empty" "fields that must say something are not empty" => FORM;
    SYSTEM_FABRIC "system.fabric" "the fabric is one that the rules permit" not [Closed Open] => "set network_type of the form";
    SYSTEM_LAYERS "system.layers" "network_protocol tells layers three and four" not [Closed Open] => "set network_protocol of the form";
    SYSTEM_FACTS "system.facts" "the system's JSON says what its nodes report" => "mend the field in the form, or the description";
    SYSTEM_ECC "system.ecc" "memory has ECC, and it is on" => "turn ECC on; host_memory_ecc and accelerator_memory_ecc of the form say it where no machine does";
    MODEL_KNOWN "model.known" "the model is one of the round's datacenter models" => "set loadgen.model to the model's name in user.conf";
    SCENARIO_KNOWN "scenario.known" "the scenario is one of the model's" not [Open] => "choose another --scenario";
    SCENARIO_REQUIRED "scenario.required" "each model has the scenarios that it must have: Offline, and Server or Interactive" not [Open] => "run it: --mode performance, --mode accuracy, and the tests";
    CONFIG_ENGINE "config.engine" "answers come from the benchmark's model: no engine or server makes them up" => "run an engine with the model, without --verify";
    CONFIG_MODEL "config.model" "every node runs the same model" => "give all nodes one model, without model_files";
    CONFIG_DATASET "config.dataset" "samples are the benchmark's data set, not made up" => "set dataset to the benchmark's files";
    CONFIG_STAGED "config.staged" "samples leave from the memory that the QSL loaded them into" not [Closed Open] => "remove qsl: staged";
    CONFIG_SPECULATION "config.speculation" "decoding is speculative only where the round permits it for the model and scenario" not [Open] => "start the server without it";
    CONFIG_LENGTH "config.length" "answers may be as long as the round says, and end where the model ends them" not [Open] => "set max_tokens to the round's, without ignore_eos";
    CONFIG_SAMPLING "config.sampling" "tokens are chosen greedily, or with the round's temperature" not [Open] => "set temperature to the round's";
    RUN_LOG "run.log" "LoadGen's logs are there, of one run, and can be read" => "run it again";
    RUN_MODE "run.mode" "a performance log is of a performance run, an accuracy log of an accuracy run" => "--mode performance or accuracy";
    RUN_SCENARIO "run.scenario" "the scenario that ran is the folder's" => "run the folder's scenario";
    RUN_VALID "run.valid" "LoadGen calls the run VALID" => "run it again, at a rate that is met";
    RUN_ERRORS "run.errors" "LoadGen logged no error" => "mend the cause, and run it again";
    RUN_SEEDS "run.seeds" "LoadGen's seeds are the round's" => "leave seeds to mlperf.conf";
    RUN_DURATION "run.duration" "a run lasts as long as the round says" => "leave durations to mlperf.conf";
    RUN_LOADED "run.loaded" "the QSL keeps as many samples loaded as the round says" => "load the whole data set";
    RUN_QUERY "run.query" "an Offline query has as many samples as the round says" => "set min_query_count in user.conf";
    RUN_TRAVERSAL "run.traversal" "samples are drawn by LoadGen, with replacement and evenly where the model asks for it" not [Open] => "leave it to mlperf.conf";
    RUN_ORDER "run.order" "answers are of samples in the order of time where the model asks for it" not [Open] => "the SUT keeps the order, as the reference does: this frontend sends samples as LoadGen draws them";
    RUN_PERCENTILE "run.percentile" "LoadGen judges by the round's percentile" => "leave it to mlperf.conf";
    RUN_LIMITS "run.limits" "the limits that LoadGen judged by are the scenario's" => "leave limits to mlperf.conf; set those that it lacks in user.conf";
    RUN_LATENCY "run.latency" "the latencies measured are within the limits" => "run it again, at a lower rate";
    RUN_EARLY "run.early-stopping" "early stopping is met" => "run it again, longer";
    RUN_TOKENS "run.tokens" "LoadGen measures tokens where the model asks for it, and the engine counts them" => "leave use_token_latencies to mlperf.conf; use an engine of token ids";
    RUN_SAMPLED "run.sampled" "a performance run logs no answers: it has no audit.config" => "run it without audit.config";
    RUN_FIGURES "run.figures" "LoadGen's figures agree with each other" => "hand in the log as LoadGen wrote it";
    RUN_DATE "run.date" "the runs of a result are of the same days, and not of the future" => "run them again; check the clock";
    RUN_NAME "run.name" "the SUT's name says that it is one over a network" not [Closed Open] => "run it over a network";
    RUN_ANSWER "run.name-answer" "every node answered Name()" => "run it again with all nodes up";
    RUN_UNIQUE "run.name-unique" "nodes have names of their own" => "give each node its own name";
    RUN_SAME "run.name-same" "all runs of a result are of the same nodes and machines" => "run all of them on the same nodes";
    RUN_LOADGEN "run.loadgen" "LoadGen is the round's release, unchanged, in all runs of a result" => "build with the round's LoadGen";
    RECORD_MISSING "record.missing" "each run's own record is kept" => "keep run.json as the run wrote it";
    RECORD_LOG "record.log" "the logs in the tree are those that the run wrote" => "let `qdl submit` copy them";
    RECORD_FILES "record.files" "the files kept with a run are those that it read" => "let `qdl submit` copy them";
    RECORD_CONF "record.user-conf" "a user.conf is given, and the one in the tree is the one that ran in all runs" => "--user-conf, or loadgen.user_conf";
    RECORD_BUILD "record.build" "all runs and nodes are of one build, and say which" => "build all nodes from one commit, with QDL_COMMIT and QDL_DIRTY set";
    RECORD_CLEAN "record.clean" "that build is of a commit and nothing else" => "build from a clean checkout: QDL_DIRTY=0";
    RECORD_EXIT "record.exit" "the program called the run good" => "run it again";
    RECORD_NETWORK "record.network" "samples go over a permitted network, not within one process or machine" not [Closed Open] => "use two machines, and addresses that are no loopback";
    RECORD_MACHINES "record.machines" "LoadGen and SUT run on different machines" not [Closed Open] => "use two machines";
    RECORD_OVERRIDE "record.override" "nothing but the target is set beside user.conf" => "remove it from the command line and the YAML";
    RECORD_SUMMARY "record.summary" "summary.json agrees with the logs, and its run would count" => "keep summary.json as the run wrote it";
    RECORD_YAML "record.yaml" "every node's configuration is kept, is the node's, and an accelerator's is the same in all runs of a result" => "keep the copies that the run made";
    RECORD_SERVER "record.server" "each server's version has run with its engine" => "install a version of docs/llm-servers.md";
    RECORD_CACHE "record.prefix-cache" "no engine keeps prompts' beginnings for later prompts, and each says so" => "start the server without its prefix cache";
    RECORD_DESCRIBED "record.described" "every node of a run is described" => "`describe --name NODE` on the node, then qdl submit ... --node FILE";
    RECORD_NODE "record.node" "a node's description is its own, and has the NICs of its configuration" => "let the run bring each node's own description";
    RECORD_LINK "record.link" "the NICs that carry samples are hardware, and up" not [Closed Open] => "use the NICs that carry the samples";
    ACCURACY_TEXT "accuracy.text" "accuracy.txt is what the reference's script printed" => "run the accuracy script";
    ACCURACY_LOW "accuracy.low" "the accuracy reaches the target" not [Open] => "mend the model, and run accuracy again";
    ACCURACY_HIGH "accuracy.high" "answers are not longer than the reference's allow" not [Open] => "mend the model, and run accuracy again";
    ACCURACY_HASH "accuracy.hash" "accuracy.txt has the hash of the whole log, once" => SCRIPTS;
    ACCURACY_LOG "accuracy.log" "the accuracy log is there, and cut" => SCRIPTS;
    ACCURACY_SAMPLES "accuracy.samples" "an accuracy run covers the data set" => "load the whole data set";
    ACCURACY_FILES "accuracy.files" "answers that the round asks for are kept" => "keep them with the accuracy run";
    MEASURED_FIELD "measured.field" "measurements.json has its fields, and none is empty" => "fill in models of the form, then qdl submit --runs RUNS --output NEW_TREE --form FORM.yaml";
    MEASURED_README "measured.readme" "README.md has the commands that ran" => "let `qdl submit` write it";
    MEASURED_CONF "measured.user-conf" "user.conf sets no more than it may" => "remove the line, and run it again";
    TEST_MISSING "test.missing" "the compliance tests of the model have run" not [Open] => "run the test";
    TEST_FILES "test.files" "a test's folder holds what the round asks for" not [Open] => SCRIPTS;
    TEST_PASS "test.pass" "the official verifier passed" not [Open] => "mend the cause, and run the test again";
    TEST_ANSWERS "test.answers" "the answers that a test kept are what its verifier asks for" not [Open] => "run the test again";
    TEST_AUDIT "test.audit" "the test ran with the official audit.config" not [Open] => "run the test with --compliance";
}

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

impl RuleFinding {
    /// A finding in a file, with the rule's advice.
    pub(crate) fn of(rule: &'static SubmissionRule, place: &str, what: &str) -> Self {
        let parts: Vec<_> = below_runs(place).take(3).collect();
        RuleFinding {
            rule,
            result: parts.join(" "),
            place: place.to_owned(),
            what: visible(what),
            make: rule.advice.to_owned(),
        }
    }
}

/// System, model, scenario and run of a place, as far as it has them:
/// `results/SYSTEM/MODEL/SCENARIO/…`, `documentation/runs/SYSTEM/MODEL/SCENARIO/…`.
fn below_runs(place: &str) -> impl Iterator<Item = &str> {
    let below = ["results/", "documentation/runs/"];
    let below = below.iter().find_map(|folder| place.strip_prefix(folder));
    below.into_iter().flat_map(|path| path.split('/'))
}

/// The check of a tree, with the findings so far.
struct TreeCheck<'a> {
    tree: &'a Tree,
    round: &'a Round,
    /// The checkout of mlcommons/inference.
    checker: Option<&'a Path>,
    /// Machines of the systems read so far.
    described: BTreeMap<Name, Option<Rc<DescribedSystem>>>,
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
    /// The folder of LoadGen's logs.
    logs: PathBuf,
    /// The folder of the run's record, and of the files beside it.
    kept: PathBuf,
    detail: Option<Detail>,
    manifest: Option<Manifest>,
}

impl CheckedRun {
    fn nodes(&self) -> Vec<Name> {
        let nodes = self.detail.iter().flat_map(Detail::nodes);
        nodes.filter_map(|n| Name::new(&n).ok()).collect()
    }

    /// The SHA-256 that a log had when the run ended.
    fn hash_of(&self, log: &str) -> Option<&String> {
        self.manifest.as_ref()?.logs.get(log)
    }
}

impl<'a> TreeCheck<'a> {
    fn new(tree: &'a Tree, round: &'a Round, checker: Option<&'a Path>) -> Self {
        TreeCheck {
            tree,
            round,
            checker,
            described: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// The machines of a system; `None` without a description of LoadGen's node.
    fn described(&mut self, system: &Name) -> Option<Rc<DescribedSystem>> {
        let read = || build::described(self.tree, system).map(Rc::new);
        let known = self.described.entry(system.clone());
        known.or_insert_with(read).clone()
    }

    /// Adds a finding, if the division has the rule.
    fn say(&mut self, rule: &'static SubmissionRule, at: &Path, what: impl Into<String>) {
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
        let mut finding = RuleFinding::of(rule, &place, &what);
        if let Some(command) = self.command(rule, &place) {
            finding.make = command;
        }
        self.found.push(finding);
    }

    /// Whether a file is there and has content; else adds a finding.
    fn has(&mut self, rule: &'static SubmissionRule, path: &Path) -> bool {
        let is_filled = filled(path);
        if !is_filled {
            self.say(rule, path, "it is not there, or empty");
        }
        is_filled
    }

    /// The command that makes the file of a finding again; `None` if the rule's advice says it.
    fn command(&self, rule: &SubmissionRule, place: &str) -> Option<String> {
        let parts: Vec<_> = below_runs(place).collect();
        let [_, model, scenario, run, ..] = parts[..] else {
            return None;
        };
        let model = self.round.models.get(model)?;
        let checker = self.checker.map(|path| path.display().to_string());
        let checker = checker.as_deref().unwrap_or("CHECKER");
        if rule == ACCURACY_TEXT {
            return Some(model.accuracy_command(checker, "RUN"));
        }
        if rule == TEST_FILES || !rule.id.starts_with("run.") && !rule.id.starts_with("test.") {
            return None;
        }
        let conf = model.conf_of(scenario);
        let mode = match run {
            "accuracy" => "--mode accuracy".to_owned(),
            "performance" => "--mode performance".to_owned(),
            test => format!("--mode performance --compliance {test} --checker {checker}"),
        };
        let row = self.round.scenarios.get(scenario);
        let scenario = row.map_or("SCENARIO", |row| &row.flag);
        Some(format!(
            "frontend --config FRONTEND.yaml --scenario {scenario} {mode} --output RUNS/{run}  \
             # loadgen.model: {conf}"
        ))
    }

    /// The result `id`; `None` if the round lacks its model.
    fn result<'b>(&self, id: &'b ResultId) -> Option<CheckedResult<'b>>
    where
        'a: 'b,
    {
        Some(CheckedResult {
            id,
            model: self.round.models.get(&id.model)?,
            folder: self.tree.scenario(id),
        })
    }

    /// Reads a run's log and manifest; adds a finding for each file that cannot be read.
    fn read(&mut self, result: &CheckedResult<'_>, kind: RunKind) -> CheckedRun {
        let logs = layout::run_folder(&result.folder, &kind);
        let kept = self.tree.kept(result.id, &kind);
        self.has(RUN_LOG, &logs.join(loadgen_log::SUMMARY));
        let path = logs.join(loadgen_log::DETAIL);
        let mut detail = None;
        if self.has(RUN_LOG, &path) {
            match Detail::open(&path) {
                Ok(read) => detail = Some(read),
                Err(error) => self.say(RUN_LOG, &path, error.to_string()),
            }
        }
        let mut manifest = None;
        match manifest::read(&kept) {
            Ok(Some(read)) => manifest = Some(read),
            Ok(None) => self.say(RECORD_MISSING, &kept, "the run has no run.json"),
            Err(error) => self.say(RECORD_MISSING, &kept, error.to_string()),
        }
        CheckedRun {
            kind,
            logs,
            kept,
            detail,
            manifest,
        }
    }

    /// Checks the rules that hold before a run too: settings, nodes, configurations.
    fn run(&mut self, result: &CheckedResult<'_>, run: &CheckedRun) {
        let (configs, refused) = RunConfigs::kept(&run.kept);
        for (file, what) in refused {
            self.say(RECORD_YAML, &run.kept.join(file), what);
        }
        let (round, division) = (self.round, self.tree.division);
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
                loadgen_log::DETAIL => self.say(rule, &run.logs.join(file), what),
                ::record::MANIFEST => self.say(rule, &run.kept, what),
                _ => self.say(rule, &run.kept.join(file), what),
            },
        };
        one.log();
        one.figures();
        one.record();
        one.configs(&configs);
    }
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
            let Some(result) = check.result(id) else {
                continue;
            };
            let kinds = [RunKind::Performance, RunKind::Accuracy];
            let mut runs = Vec::from(kinds.map(|kind| check.read(&result, kind)));
            runs.extend(compliance::check(&mut check, &result));
            files::measured(&mut check, &result, &runs);
            for run in &runs {
                check.run(&result, run);
                figures::summaries(&mut check, &id.scenario, run);
            }
            accuracy::check(&mut check, &result, &runs[1]);
            record::check(&mut check, &result, &runs);
            figures::dates(&mut check, &runs);
        }
    }
    check.found
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

fn list<T: AsRef<str>>(names: &BTreeSet<T>) -> String {
    let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
    names.join(", ")
}

/// Whether the file exists and is not empty.
fn filled(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0)
}
