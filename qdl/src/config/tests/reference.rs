//! `docs/configuration.md` is held to what the parser knows: its two files are good, their defaults
//! are the defaults, and no key is missing from them.

use super::{super::document::keys_of, *};
use crate::model::{ModelSpec, TensorSpec};

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

#[test]
fn no_key_is_missing_from_it() {
    let keys = [
        keys_of::<FrontendConfig>(),
        keys_of::<AcceleratorConfig>(),
        keys_of::<ModelSpec>(),
        keys_of::<TensorSpec>(),
        keys_of::<AcceleratorModel>(),
        keys_of::<AcceleratorAddress>(),
        keys_of::<ControlConfig>(),
        keys_of::<DatasetConfig>(),
        keys_of::<NicConfig>(),
        keys_of::<TcpKeys>(),
        keys_of::<IbKeys>(),
        keys_of::<OfiKeys>(),
        keys_of::<Completion>(),
        keys_of::<AdaptiveRouting>(),
        keys_of::<HealthConfig>(),
        keys_of::<WarmUpConfig>(),
        keys_of::<Deadlines>(),
        keys_of::<LoadgenConfig>(),
        keys_of::<EngineConfig>(),
        keys_of::<TokensConfig>(),
        keys_of::<HttpConfig>(),
        keys_of::<LlmConfig>(),
    ]
    .concat();
    assert!(keys.len() > 150, "{} keys", keys.len());
    let is_told = |key: &&str| {
        let own_line = |line: &str| {
            let line = line.trim_start_matches([' ', '#', '-']);
            line.strip_prefix(*key)
                .is_some_and(|rest| rest.starts_with(':'))
        };
        let within = |before: &str| TEXT.contains(&format!("{before}{key}:"));
        TEXT.lines().any(own_line) || within("{") || within(", ")
    };
    let missing: Vec<_> = keys.into_iter().filter(|key| !is_told(key)).collect();
    assert_eq!(missing, [""; 0], "keys that the document lacks");
}
