//! Plants one fault at a time into a correct tree, which the builder makes from written runs.

mod faults;
pub mod sound;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use qdl::testkit::assert_has;

use super::{ALL, SubmissionRule};
use crate::{
    build::{self, FoundRun, Material},
    describe::form::Form,
    layout::{Division, Tree},
    official::Official,
    round::{AccuracyFigure, Round, newest},
};
use faults::Fault;
use sound::LLAMA;

/// Each fault breaks exactly its rules; a correct tree breaks none.
#[test]
fn every_fault_is_found_and_named_and_a_correct_tree_is_not() {
    let faults = faults::all();
    let correct = faults.iter().filter(|f| f.breaks.is_empty()).count();
    let spoiled = faults.len() - correct;
    println!("{spoiled} spoiled trees, {correct} correct ones");
    assert!(spoiled >= 150 && correct >= 40, "{spoiled}, {correct}");
    let wrong = in_parts(&faults, |fault| {
        let sound = fault.planted();
        let findings = sound.findings();
        let found: BTreeSet<&str> = findings.iter().map(|f| f.rule.id).collect();
        let is_said = findings.iter().any(|f| f.what.contains(&fault.says));
        let is_right = found == fault.breaks.iter().map(String::as_str).collect();
        let own = sound.tree.own().display().to_string();
        let is_twice = findings
            .iter()
            .any(|f| f.what.contains(&own) || f.place.is_empty());
        (!is_right || is_twice || !is_said && !fault.says.is_empty())
            .then(|| format!("{}: {findings:#?}, not {:?}", fault.name, fault.breaks))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let broken: BTreeSet<&str> = faults
        .iter()
        .flat_map(|f| &f.breaks)
        .map(|id| &**id)
        .collect();
    let idle = ALL.iter().filter(|rule| !broken.contains(rule.id));
    assert_eq!(idle.collect::<Vec<_>>(), [] as [&&SubmissionRule; 0]);
}

#[test]
fn a_rehearsal_is_a_round_that_excuses_known_rules() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../configs/rounds/rehearsal.yaml"
    );
    let round = Round::find(path).expect("sound");
    assert_eq!(round.round, newest());
    let all = round.cannot_have.keys().chain(round.without_checker.keys());
    let odd: Vec<_> = all
        .filter(|id| ALL.iter().all(|rule| rule.id != **id))
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
    let excused = |has_checker| round.excuse("accuracy.hash", has_checker).is_some();
    assert_eq!([excused(false), excused(true)], [true, false]);
}

/// Runs for the Network division, without descriptions of nodes.
fn material<'a>(round: &'a Round, form: &'a Form, runs: &'a [FoundRun]) -> Material<'a> {
    static NONE: BTreeMap<String, std::path::PathBuf> = BTreeMap::new();
    Material {
        round,
        division: Division::Network,
        form,
        nodes: &[],
        configurations: &NONE,
        source: None,
        runs,
    }
}

#[test]
fn an_answer_that_is_missing_twice_there_or_empty_is_found_before_the_log_is_cut() {
    let place = tempfile::tempdir().expect("a folder");
    let mut round = Round::find(newest()).expect("built in");
    let mut runs = sound::measured(place.path(), &round, &LLAMA);
    let form = sound::form(LLAMA.model);
    let root = place.path().join("tree");
    let tree = Tree::new(&root, Division::Network, &form.submitter);
    let log = place.path().join("runs/Offline/accuracy");
    let log = log.join(loadgen_log::ACCURACY);
    let text = std::fs::read_to_string(&log).expect("a log");
    let mut found = |round: &Round, text: &str| {
        std::fs::write(&log, text).expect("written");
        for run in &mut runs {
            let hash = sound::hash(&run.folder.join(loadgen_log::ACCURACY));
            let logs = &mut run.manifest.logs;
            logs.insert(loadgen_log::ACCURACY.to_owned(), hash);
        }
        let found = super::check_runs(&material(round, &form, &runs), &tree);
        let found = found.iter().map(|f| format!("{}: {}\n", f.rule.id, f.what));
        found.collect::<String>()
    };
    assert_eq!(found(&round, &text), "");
    let sample = |n: usize, data: &str| format!("\"qsl_idx\" : {n}, \"data\" : \"{data}");
    let whole = "0700000008000000";
    let seven = sample(7, whole);
    for (from, to, says) in [
        (
            &*seven,
            sample(7, ""),
            "samples: the answer to sample 7 is empty",
        ),
        (
            &seven,
            sample(8, whole),
            "samples: sample 8 has two answers",
        ),
        (
            &seven,
            sample(13_368, whole),
            "samples: sample 13368: the data set ends",
        ),
        (
            "\n]\n",
            String::new(),
            "log: line 13370: it ends before its ]",
        ),
    ] {
        let found = found(&round, &text.replacen(from, &to, 1));
        assert_has(&found, &[says]);
    }
    // Some models' scripts do not print the length of answers, which have two tokens here.
    let limit = round.models["gpt-oss-120b"].accuracy[1].clone();
    let expected = ("TOKENS_PER_SAMPLE", Some(9999.0 * 1.1));
    assert_eq!((limit.metric.as_str(), limit.most()), expected);
    for (reference, is_long) in [(1.9, false), (1.8, true)] {
        let model = round.models.get_mut(LLAMA.model).expect("it");
        model.accuracy = vec![AccuracyFigure {
            reference,
            ..limit.clone()
        }];
        let found = found(&round, &text);
        assert_eq!(found.contains("accuracy.high"), is_long, "{found}");
    }
}

#[test]
fn two_sets_of_nodes_are_two_systems_or_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let round = Round::find(newest()).expect("built in");
    let mut runs = sound::measured(place.path(), &round, &LLAMA);
    // The Interactive runs have one node more.
    for run in runs.iter_mut().filter(|r| &*r.scenario == "Interactive") {
        run.nodes.push(sound::name("acc-b"));
    }
    let mut form = sound::form(LLAMA.model);
    let build = |form: &Form, out: &str| {
        let nodes = build::nodes(&runs).expect("descriptions");
        let material = Material {
            nodes: &nodes,
            ..material(&round, form, &runs)
        };
        build::build(&material, &place.path().join(out)).map(|built| built.tree)
    };
    let refused = build(&form, "one").expect_err("two sets").to_string();
    let wanted = "systems: {NAME: {accelerators: [acc-a, acc-b]}}";
    assert_has(&refused, &[wanted]);
    let other = "accelerators: [acc-a, acc-b]\nfields: {system_name: Three nodes}\n";
    let other = crate::error::yaml(other).expect("a system");
    form.systems.insert(sound::name("three"), other);
    let tree = build(&form, "two").expect("a tree");
    let systems = tree.systems();
    let expected = ["sys", "three"];
    assert_eq!(systems.iter().map(|s| &**s).collect::<Vec<_>>(), expected);
    for system in &systems {
        assert!(tree.system_json(system).is_file() && tree.page(system, "network.svg").is_file());
        assert_eq!(tree.results(system).len(), 1);
    }
    let json = std::fs::read_to_string(tree.system_json(&systems[1])).expect("its JSON");
    assert!(json.contains("Three nodes"), "{json}");
}

/// The official checker accepts each tree without a finding; needs a checkout. It knows the round's
/// own counts and tests alone, and no `code/`, which the rules allow.
#[test]
fn the_official_checker_accepts_correct_trees() {
    let Some(checkout) = std::env::var_os("QDL_MLPERF_CHECKOUT") else {
        return;
    };
    let python = std::env::var_os("QDL_MLPERF_PYTHON").unwrap_or("python3".into());
    let mut faults = faults::all();
    faults.retain(|fault| fault.breaks.is_empty() && fault.model == LLAMA.model);
    let refused = in_parts(&faults, |fault| {
        let sound = fault.planted();
        let official = Official::new(Path::new(&checkout), Path::new(&python), &sound.round);
        let ran = official.and_then(|o| o.check(&sound.round, &sound.tree));
        let ran = ran.expect("the checker ran");
        let is_unknown =
            sound.round.tests["TEST06"].baseline.is_some() || sound.tree.source().ends_with("code");
        (!ran.good && !is_unknown).then(|| format!("{}:\n  {}", fault.name, ran.lines.join("\n  ")))
    });
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Runs `check` on each fault, on all processors, and collects its texts.
fn in_parts(faults: &[Fault], check: impl Fn(&Fault) -> Option<String> + Sync) -> Vec<String> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let parts = faults.chunks(faults.len().div_ceil(threads));
        let check = |part: &[Fault]| part.iter().filter_map(&check).collect::<Vec<_>>();
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || check(part))).collect();
        parts
            .into_iter()
            .flat_map(|p| p.join().expect("no panic"))
            .collect()
    })
}
