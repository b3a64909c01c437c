//! `docs/configuration.md` is held to what the parser knows: its two files are good, their defaults
//! are the defaults, and no key is missing from them.

use std::collections::BTreeSet;

use super::*;

const TEXT: &str = include_str!("../../../../docs/configuration.md");

/// The files in the document.
fn blocks() -> Vec<String> {
    let parts: Vec<&str> = TEXT.split("```yaml\n").skip(1).collect();
    let ended = parts.iter().filter_map(|p| p.split("```").next());
    ended.map(str::to_owned).collect()
}

/// The same file with the values left out that the document calls defaults.
fn without(text: &str, sections: &[&str], keep: &[&str]) -> String {
    let mut dropped = false;
    let mut out = String::new();
    for line in text.lines() {
        let word = line
            .split(':')
            .next()
            .unwrap_or_default()
            .trim_start_matches([' ', '-']);
        let top = !line.starts_with([' ', '#']) && !line.is_empty();
        if top {
            dropped = sections.contains(&word);
        }
        let in_nics = line.starts_with("    ") && !keep.contains(&word) && out.contains("\nnics:");
        if !dropped && !in_nics {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[test]
fn its_files_are_good_and_their_defaults_are_the_defaults() {
    let blocks = blocks();
    let [front, acc] = &blocks[..] else {
        panic!("{} files", blocks.len())
    };
    let mut full = frontend(front).expect("the frontend's");
    for nic in &mut full.nics {
        // Its default depends on the fabric.
        let written = nic.inline_bytes.take();
        assert!(nic.matching.is_some() || written == Some(nic.inline_bytes()));
    }
    // Its default is one for waiting and another for a step.
    let waits = full.deadlines.connect();
    full.deadlines.connect_ms = None;
    assert_eq!(waits, full.deadlines.connect());
    let bare = without(
        front,
        &[
            "qsl",
            "arbiter",
            "health",
            "warm_up",
            "one_by_one",
            "nic_threads",
            "verify",
            "deadlines",
        ],
        // Where a NIC is has no default.
        &["domain", "match", "group_by"],
    );
    assert_eq!(full, frontend(&bare).expect("with less in it"));
    let mut full = accelerator(acc).expect("the accelerator's");
    let step = full.deadlines.step();
    full.deadlines.connect_ms = None;
    assert_eq!(step, full.deadlines.step());
    let mut bare = without(
        acc,
        &["deadlines", "memory_mib", "nic_threads", "engine"],
        &[],
    );
    bare.push_str("engine: {kind: \"null\"}\n");
    assert_eq!(full, accelerator(&bare).expect("with less in it"));
}

/// The keys that the parser names when it meets one it does not know.
fn keys_where<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> BTreeSet<String> {
    let Err(ConfigError::Invalid { problems }) = result else {
        panic!("an unknown key was taken")
    };
    let help = problems
        .iter()
        .find_map(|p| p.help.as_deref()?.strip_prefix("keys here are: "));
    let names = help.expect("it names the keys").split(", ");
    names.map(str::to_owned).collect()
}

/// Every file with an unknown key at the beginning of one of its mappings.
fn spoilt(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = vec![format!("unheard_of: 1\n{text}")];
    for (i, line) in lines.iter().enumerate() {
        let opens = line
            .split(" #")
            .next()
            .unwrap_or_default()
            .trim_end()
            .ends_with(':');
        let next = lines[i + 1..]
            .iter()
            .find(|l| !l.trim_start().starts_with('#'));
        let Some(next) = next.filter(|_| opens) else {
            continue;
        };
        let at = next.len() - next.trim_start_matches([' ', '-']).len();
        // LoadGen's own settings are LoadGen's to know.
        if line.trim_start().starts_with("settings:") {
            continue;
        }
        let begins_item = next.trim_start().starts_with('-');
        let mut spoilt: Vec<String> = lines[..=i].iter().map(|l| (*l).to_owned()).collect();
        if begins_item {
            let item = next.replacen("- ", "  ", 1);
            let blank = " ".repeat(at - 2);
            spoilt.push(format!("{blank}- unheard_of: 1"));
            let rest = &lines[i + 1..];
            let n = rest.iter().position(|l| l == next).unwrap_or(0);
            spoilt.push(item);
            spoilt.extend(rest[n + 1..].iter().map(|l| (*l).to_owned()));
        } else {
            spoilt.push(format!("{}unheard_of: 1", " ".repeat(at)));
            spoilt.extend(lines[i + 1..].iter().map(|l| (*l).to_owned()));
        }
        all.push(spoilt.join("\n"));
    }
    all
}

#[test]
fn no_key_is_missing_from_it() {
    let blocks = blocks();
    let (mut front, mut acc) = (BTreeSet::new(), BTreeSet::new());
    spoilt(&blocks[0])
        .iter()
        .for_each(|t| front.extend(keys_where(frontend(t))));
    spoilt(&blocks[1])
        .iter()
        .for_each(|t| acc.extend(keys_where(accelerator(t))));
    let told = |keys: BTreeSet<String>, text: &str| {
        let has = |k: &String| {
            text.lines().any(|l| {
                l.trim_start_matches([' ', '#', '-'])
                    .starts_with(&format!("{k}:"))
            }) || text.contains(&format!("{{{k}:"))
                || text.contains(&format!(", {k}:"))
        };
        keys.into_iter().filter(|k| !has(k)).collect::<Vec<_>>()
    };
    assert!(
        front.len() > 80 && acc.len() > 40,
        "{} and {} keys",
        front.len(),
        acc.len()
    );
    assert_eq!(
        told(front, TEXT),
        [""; 0],
        "keys of a frontend that the document lacks"
    );
    assert_eq!(
        told(acc, TEXT),
        [""; 0],
        "keys of an accelerator that the document lacks"
    );
}
