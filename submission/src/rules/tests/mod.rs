//! A sound tree, made by the builder from runs that the test writes; then one fault each.

mod faults;
mod sound;

use std::collections::BTreeSet;

use super::{ALL, check};
use crate::guard;
use sound::Sound;

fn rules_of(sound: &Sound) -> BTreeSet<&'static str> {
    let found = check(&sound.tree, &sound.round, Some(&sound.checker()));
    found.iter().map(|f| f.rule.id).collect()
}

#[test]
fn a_sound_tree_has_no_finding() {
    let sound = Sound::new();
    let found = check(&sound.tree, &sound.round, Some(&sound.checker()));
    assert!(found.is_empty(), "{found:#?}");
}

/// Each fault is found under the name of the rule that it breaks, and under no other.
#[test]
fn every_fault_is_found_and_named() {
    let faults = faults::all();
    assert!(faults.len() >= 40);
    let mut wrong = Vec::new();
    for fault in faults {
        let mut sound = Sound::new();
        fault.plant(&mut sound);
        let found = rules_of(&sound);
        if found != fault.breaks.iter().map(String::as_str).collect() {
            wrong.push(format!("{}: {found:?}, not {:?}", fault.name, fault.breaks));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
