//! A sound tree, made by the builder from runs that the test writes; then one fault each.

mod faults;
mod sound;

use std::{collections::BTreeSet, path::Path};

use super::ALL;
use crate::{
    explain, guard,
    layout::Division,
    official::{Official, Ran},
};
use faults::Fault;
use sound::Sound;

fn rules_of(sound: &Sound) -> BTreeSet<&'static str> {
    sound.findings().iter().map(|f| f.rule.id).collect()
}

#[test]
fn a_sound_tree_has_no_finding_in_any_division() {
    for division in [Division::Closed, Division::Open, Division::Network] {
        let found = Sound::new(division).findings();
        assert!(found.is_empty(), "{division:?}: {found:#?}");
    }
}

/// Each fault is found under the name of the rule that it breaks, and under no other; what breaks
/// none is found under none.
#[test]
fn every_fault_is_found_and_named_and_a_correct_tree_is_not() {
    let faults = faults::all();
    let correct = faults.iter().filter(|f| f.breaks.is_empty()).count();
    assert!(
        correct >= 30 && faults.len() - correct >= 295,
        "{correct} of {}",
        faults.len()
    );
    let wrong = in_parts(&faults, |fault| {
        let mut sound = Sound::new(fault.division());
        fault.plant(&mut sound);
        let found = rules_of(&sound);
        (found != fault.breaks.iter().map(String::as_str).collect())
            .then(|| format!("{}: {found:?}, not {:?}", fault.name, fault.breaks))
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the official checker, where there is a checkout, over a tree; none where there is not.
fn official(sound: &Sound) -> Option<Ran> {
    let checkout = std::env::var_os("QDL_MLPERF_CHECKOUT")?;
    let python = std::env::var_os("QDL_MLPERF_PYTHON").unwrap_or("python3".into());
    let official = Official::new(Path::new(&checkout), Path::new(&python), &sound.round);
    let ran = official
        .expect("a checkout")
        .check(&sound.round, &sound.tree);
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

/// Whatever the official checker says of a fault stands beside a finding.
#[test]
fn no_complaint_of_the_official_checker_is_unexpected_beside_a_finding() {
    if std::env::var_os("QDL_MLPERF_CHECKOUT").is_none() {
        return;
    }
    let odd: Vec<_> = in_parts(&faults::all(), |fault| {
        let mut sound = Sound::new(fault.division());
        fault.plant(&mut sound);
        let (found, ran) = (sound.findings(), official(&sound)?);
        let lines = ran.lines.iter().filter(|_| !ran.good);
        let odd = lines
            .filter(|line| explain::line(&sound.round, &found, line) == explain::Word::Unexpected);
        let odd: Vec<_> = odd.map(String::as_str).collect();
        (!odd.is_empty()).then(|| {
            format!(
                "{} ({:?}):\n  {}",
                fault.name,
                fault.breaks,
                odd.join("\n  ")
            )
        })
    });
    assert!(odd.is_empty(), "{}", odd.join("\n"));
}

/// What a check says of each fault, on all processors.
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

/// No rule stands there that nothing breaks.
#[test]
fn every_rule_is_broken_by_a_fault() {
    let faults = faults::all();
    let broken: BTreeSet<_> = faults.iter().flat_map(|f| &f.breaks).collect();
    let idle: Vec<_> = ALL
        .iter()
        .filter(|r| !broken.contains(&r.id.to_owned()))
        .map(|r| r.id)
        .collect();
    assert!(idle.is_empty(), "{idle:?}");
}

/// `docs/rules.md` and the code name the same rules.
#[test]
fn the_page_and_the_code_name_the_same_rules() {
    let page = include_str!("../../../../docs/rules.md");
    let all: BTreeSet<&str> = ALL.iter().chain(guard::ALL).map(|rule| rule.id).collect();
    let named: BTreeSet<&str> = page.split('`').filter(|word| all.contains(word)).collect();
    let missing: Vec<_> = all.difference(&named).collect();
    assert!(
        missing.is_empty(),
        "docs/rules.md does not name {missing:?}"
    );
    let groups: BTreeSet<&str> = all.iter().filter_map(|id| id.split('.').next()).collect();
    let odd = |word: &&str| {
        let mut parts = word.split('.');
        let (group, rest) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let plain = |c: char| c.is_ascii_lowercase() || c == '-';
        groups.contains(group)
            && !rest.is_empty()
            && rest.chars().all(plain)
            && !["json", "txt", "md", "conf", "yaml"].contains(&rest)
    };
    let odd: Vec<_> = page
        .split('`')
        .filter(odd)
        .filter(|w| !named.contains(w))
        .collect();
    assert!(
        odd.is_empty(),
        "docs/rules.md names {odd:?}, which the code does not have"
    );
}
