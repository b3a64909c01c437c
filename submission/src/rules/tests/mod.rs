//! Plants one fault at a time into a correct tree, which the builder makes from written runs.

mod faults;
pub mod sound;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use qdl::testkit::assert_has;

use super::ALL;
use crate::{
    build::{self, FoundRun, Material},
    describe::form::Form,
    explain,
    layout::{Division, Tree},
    manifest::sha256_of_file,
    official::{Official, ScriptResult},
    round::{AccuracyFigure, AnswerRule, Round, newest},
};
use faults::Fault;
use sound::Sound;

#[test]
fn a_sound_tree_has_no_finding_in_any_division() {
    for division in [Division::Closed, Division::Open, Division::Network] {
        let found = Sound::new(division).findings();
        assert!(found.is_empty(), "{division:?}: {found:#?}");
    }
}

/// A second round beside the built-in one: its own values hold, and all others are the first's.
#[test]
fn a_tree_is_checked_by_the_round_that_it_is_for() {
    let sound = Sound::new(Division::Network);
    let next = |more: &str| {
        let text = format!("extends: {}\nround: next\n{more}", newest());
        let mut round = Round::parse(&text).expect("sound");
        round.loadgen.files.clone_from(&sound.round.loadgen.files);
        let found = super::check(&sound.tree, &round, Some(&sound.checker()));
        found.iter().map(|f| f.rule.id).collect::<BTreeSet<_>>()
    };
    let looser = "min_duration_ms: 300000\nmodels: {llama3.1-8b: {max_tokens: [64, 128]}}\n";
    assert_eq!(next(looser), BTreeSet::new());
    let other = "min_duration_ms: 900000\nseeds: {qsl_rng_seed: 7}\n\
                 models: {llama3.1-8b: {max_tokens: [64], one_of: [], required: [Offline, Server],\n\
                 limits: {Interactive: null}}}\n";
    let expected = "config.length run.duration run.seeds scenario.known scenario.required";
    assert_eq!(next(other), expected.split(' ').collect());
}

/// Each fault breaks exactly its rules; a correct tree breaks none.
#[test]
fn every_fault_is_found_and_named_and_a_correct_tree_is_not() {
    let faults = faults::all();
    let correct = faults.iter().filter(|f| f.breaks.is_empty()).count();
    println!("{correct} correct trees of {}", faults.len());
    assert!(
        correct >= 50 && faults.len() - correct >= 355,
        "{correct} of {}",
        faults.len()
    );
    let wrong = in_parts(&faults, |fault| {
        let mut sound = Sound::new(fault.division);
        fault.plant(&mut sound);
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
    let idle = ALL
        .iter()
        .map(|rule| rule.id)
        .filter(|id| !broken.contains(id));
    // No tree here is one of dlrm-v3, the model whose queries have an order.
    assert_eq!(idle.collect::<Vec<_>>(), ["run.order"]);
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
    let runs = sound::measured(place.path(), &round);
    for test in round.tests.values_mut() {
        test.answers = Some(AnswerRule::Same);
    }
    let form = sound::form();
    let root = place.path().join("tree");
    let tree = Tree::new(&root, Division::Network, &form.submitter);
    let check = |from: &str, to: &str, kind: &str| {
        let run = place.path().join(format!("runs/Offline/{kind}"));
        let log = run.join(loadgen_log::ACCURACY);
        let text = std::fs::read_to_string(&log).expect("a log");
        assert!(text.contains(from), "{kind}: {from}");
        std::fs::write(&log, text.replacen(from, to, 1)).expect("written");
        let mut runs = runs.clone();
        for run in &mut runs {
            let hash = sha256_of_file(&run.folder.join(loadgen_log::ACCURACY)).expect("a hash");
            run.manifest
                .logs
                .insert(loadgen_log::ACCURACY.to_owned(), hash);
        }
        let material = material(&round, &form, &runs);
        let found = super::check_runs(&material, &tree);
        std::fs::write(&log, text).expect("written");
        let found = found.into_iter().map(|f| (f.rule.id, f.what));
        found.collect::<Vec<_>>()
    };
    let sample = |n: usize, data: &str| format!("\"qsl_idx\" : {n}, \"data\" : \"{data}");
    let whole = "0700000008000000";
    assert_eq!(check("a", "a", "accuracy"), []);
    let (seven, end) = (sample(7, whole), "\n]\n".to_owned());
    let (none, twice) = (sample(7, ""), sample(8, whole));
    let (beyond, other) = (sample(13_368, whole), sample(7, "08"));
    let (samples, answers) = ("accuracy: accuracy.samples", "TEST06: test.answers");
    for (from, to, rule, what) in [
        (&seven, &none, samples, "sample 7 is empty"),
        (&seven, &twice, samples, "sample 8 has two answers"),
        (&seven, &beyond, samples, "the data set ends before it"),
        (
            &end,
            &String::new(),
            "accuracy: accuracy.log",
            "it ends before its ]",
        ),
        (&seven, &other, answers, "sample 7 has another answer"),
        (&end, &String::new(), answers, "it ends before its ]"),
    ] {
        let (kind, rule) = rule.split_once(": ").expect("a run and its rule");
        let found = check(from, to, kind);
        let is_found = found.iter().any(|(r, w)| *r == rule && w.contains(what));
        assert!(is_found, "{what}: {found:?}");
    }
}

/// Some models' scripts do not print the length of answers.
#[test]
fn answers_that_are_too_long_are_found_where_no_script_tells_their_length() {
    let place = tempfile::tempdir().expect("a folder");
    let mut round = Round::find(newest()).expect("built in");
    let runs = sound::measured(place.path(), &round);
    let limit = round.models["gpt-oss-120b"].accuracy[1].clone();
    let expected = ("TOKENS_PER_SAMPLE", Some(9999.0 * 1.1));
    assert_eq!((limit.metric.as_str(), limit.most()), expected);
    let form = sound::form();
    let root = place.path().join("tree");
    let tree = Tree::new(&root, Division::Network, &form.submitter);
    for (reference, long) in [(1.9, false), (1.8, true)] {
        let model = round.models.get_mut("llama3.1-8b").expect("it");
        // Answers have two tokens: the limit 1.1 x 1.8 is below.
        model.accuracy = vec![AccuracyFigure {
            reference,
            ..limit.clone()
        }];
        let material = material(&round, &form, &runs);
        let found = super::check_runs(&material, &tree);
        assert_eq!(
            found.iter().any(|f| f.rule == super::ACCURACY_HIGH),
            long,
            "{found:?}"
        );
    }
}

#[test]
fn two_sets_of_nodes_are_two_systems_or_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let round = Round::find(newest()).expect("built in");
    let mut runs = sound::measured(place.path(), &round);
    // The Interactive runs have one node more.
    for run in runs.iter_mut().filter(|r| &*r.scenario == "Interactive") {
        run.nodes.push(sound::name("acc-b"));
    }
    let mut form = sound::form();
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

/// Runs the official checker on a tree; `None` without a checkout.
fn official(sound: &Sound) -> Option<ScriptResult> {
    let checkout = std::env::var_os("QDL_MLPERF_CHECKOUT")?;
    let python = std::env::var_os("QDL_MLPERF_PYTHON").unwrap_or("python3".into());
    let official = Official::new(Path::new(&checkout), Path::new(&python), &sound.round);
    let ran = official.expect("a checkout");
    let ran = ran.check(&sound.round, &sound.tree);
    Some(ran.expect("the checker ran"))
}

#[test]
fn the_official_checker_accepts_a_sound_tree_of_each_division() {
    for division in [Division::Closed, Division::Open, Division::Network] {
        let ran = official(&Sound::new(division));
        assert!(
            ran.as_ref().is_none_or(|ran| ran.good),
            "{division:?}: {ran:#?}"
        );
        ran.iter()
            .for_each(|ran| println!("{division:?}: {}", ran.lines.join("\n")));
    }
}

#[test]
fn no_complaint_of_the_official_checker_is_unexpected_beside_a_finding() {
    if std::env::var_os("QDL_MLPERF_CHECKOUT").is_none() {
        return;
    }
    let odd: Vec<_> = in_parts(&faults::all(), |fault| {
        let mut sound = Sound::new(fault.division);
        fault.plant(&mut sound);
        let (found, ran) = (sound.findings(), official(&sound)?);
        let lines = explain::lines(&sound.round, &found, &ran.lines).into_iter();
        let odd = lines.filter(|(_, word)| !ran.good && *word == explain::Match::Unexpected);
        let odd: Vec<_> = odd.map(|(line, _)| line).collect();
        let (name, breaks) = (&fault.name, &fault.breaks);
        (!odd.is_empty()).then(|| format!("{name} ({breaks:?}):\n  {}", odd.join("\n  ")))
    });
    assert!(odd.is_empty(), "{}", odd.join("\n"));
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

#[test]
fn the_page_and_the_code_name_the_same_rules() {
    let page = include_str!("../../../../docs/rules.md");
    let all: BTreeSet<&str> = ALL.iter().map(|rule| rule.id).collect();
    let named: BTreeSet<&str> = page.split('`').filter(|word| all.contains(word)).collect();
    let missing: Vec<_> = all.difference(&named).collect();
    assert!(
        missing.is_empty(),
        "docs/rules.md does not name {missing:?}"
    );
    let groups: BTreeSet<&str> = all.iter().filter_map(|id| id.split('.').next()).collect();
    let odd = |word: &&str| {
        let (group, rest) = word.split_once('.').unwrap_or_default();
        let plain = |c: char| c.is_ascii_lowercase() || "-.".contains(c);
        groups.contains(group)
            && !rest.is_empty()
            && rest.chars().all(plain)
            && !["json", "txt", "md", "conf", "yaml"].contains(&rest)
    };
    let odd = page.split('`').filter(odd).filter(|w| !named.contains(w));
    let odd: Vec<_> = odd.collect();
    assert!(
        odd.is_empty(),
        "docs/rules.md names {odd:?}, which the code does not have"
    );
}
