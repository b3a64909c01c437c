//! Checks the nodes of a run and its command, as the run's record has them.

use std::collections::BTreeSet;

use ::record::{CacheState, MANIFEST, NodeRecord};

use super::{run::RunCheck, *};
use machine::Role;

/// Fewest digits of a commit.
const COMMIT: usize = 7;

/// Whether a text is hexadecimal digits, as of a hash or a commit, and not one digit again and
/// again.
pub(super) fn is_hash(text: &str, digits: std::ops::RangeInclusive<usize>) -> bool {
    let hex = text.bytes().all(|b| b.is_ascii_hexdigit());
    let first = text.get(..1).unwrap_or_default();
    hex && digits.contains(&text.len()) && !text.trim_start_matches(first).is_empty()
}

/// The flags of a command, each with its value or the word behind it.
fn flags(command: &[String]) -> impl Iterator<Item = (&str, &str)> {
    let words = command.iter().enumerate().skip(1);
    words.map(|(i, word)| match word.split_once('=') {
        Some(pair) if word.starts_with("--") => pair,
        _ => (word.as_str(), command.get(i + 1).map_or("", String::as_str)),
    })
}

impl RunCheck<'_> {
    fn say_record(&mut self, rule: &'static SubmissionRule, what: impl Into<String>) {
        (self.say)(rule, MANIFEST, what.into());
    }

    /// Checks the run's record, without the files beside it.
    pub(crate) fn record(&mut self) {
        let Some(manifest) = self.manifest else {
            return;
        };
        self.network(manifest);
        self.command(manifest);
        let round = self.round;
        for setting in manifest.overrides.iter().filter(|s| round.overrides(s)) {
            self.say_record(
                RECORD_OVERRIDE,
                format!("`{setting}` goes before user.conf"),
            );
        }
        for (node, cache) in &manifest.prefix_caches {
            let what = match cache.state {
                CacheState::Off => continue,
                CacheState::On => "prefix cache is on",
                CacheState::Unknown => "engine cannot tell whether its prefix cache is off",
            };
            self.say_record(RECORD_CACHE, format!("{node}'s {what}: {}", cache.how));
        }
        for (node, server) in manifest.servers.iter().filter(|(_, s)| !s.has_run) {
            let what = format!("{node}'s engine has not run with {}", server.version);
            self.say_record(RECORD_SERVER, what);
        }
        self.machines(manifest);
        self.builds(manifest);
    }

    /// Checks that samples go to accelerators over connections of a network fabric.
    fn network(&mut self, manifest: &Manifest) {
        if manifest.local {
            return self.say_record(RECORD_NETWORK, "--local is one process: no network");
        }
        for note in &manifest.fabric_notes {
            self.say_record(RECORD_NETWORK, note.clone());
        }
        let Some(detail) = self.detail.filter(|_| self.is_over()) else {
            return;
        };
        if words(&manifest.fabric).is_empty() {
            self.say_record(RECORD_NETWORK, "samples went over no fabric");
        }
        if manifest.connections == 0 {
            self.say_record(RECORD_NETWORK, "samples went over no connection");
        }
        let recorded = manifest.accelerators.iter().map(|n| n.node.clone());
        let recorded: BTreeSet<String> = recorded.collect();
        let named: BTreeSet<String> = detail.nodes().into_iter().collect();
        if recorded.is_empty() {
            self.say_record(RECORD_NETWORK, "the record has no accelerator");
        } else if named.iter().any(|n| Name::new(n).is_ok()) && recorded != named {
            let (ours, theirs) = (list(&recorded), list(&named));
            let what = format!("its accelerators are {ours}, those of the SUT's name {theirs}");
            self.say_record(RECORD_NETWORK, what);
        }
    }

    /// Checks the command against the record: what the command says, the record says too.
    fn command(&mut self, manifest: &Manifest) {
        let (is_test, is_over) = (matches!(self.kind, RunKind::Test(_)), self.is_over());
        let mode = match self.kind {
            RunKind::Accuracy => "accuracy",
            _ => "performance",
        };
        let scenario = self.round.scenarios.get(self.scenario);
        for (flag, value) in flags(&manifest.command) {
            let setting = format!("{flag} {value}");
            let bare = |setting: &str| setting.replace("--set ", "").replace(' ', "");
            let is_known = |s: &String| bare(s) == bare(&setting);
            let rule = match flag {
                "--local" if !manifest.local => RECORD_NETWORK,
                "--set" | "--duration-s" | "--samples"
                    if self.round.overrides(&setting)
                        && !manifest.overrides.iter().any(is_known) =>
                {
                    RECORD_OVERRIDE
                }
                "--check" => RECORD_LOG,
                "--audit-config" | "--compliance" if !is_test && is_over => RUN_SAMPLED,
                "--mode" if is_over && ![mode, "submission"].contains(&value) => RECORD_LOG,
                "--scenario" if is_over && scenario.is_some_and(|row| row.flag != value) => {
                    RECORD_LOG
                }
                "--verify" if value != "none" => CONFIG_ENGINE,
                _ => continue,
            };
            let what = format!(
                "the command has `{}`, which the record has not",
                setting.trim()
            );
            self.say_record(rule, what);
        }
    }

    /// Checks that each accelerator is known to be another machine than the frontend.
    fn machines(&mut self, manifest: &Manifest) {
        let frontend = &manifest.frontend;
        for accelerator in &manifest.accelerators {
            let (node, host) = (&accelerator.node, &frontend.facts.host);
            let what = match frontend.facts.same_machine(&accelerator.facts) {
                Some(false) => continue,
                Some(true) => format!("{node} runs on the frontend's machine, {host}"),
                None => format!("nothing shows whether {node} is another machine"),
            };
            self.say_record(RECORD_MACHINES, what);
        }
    }

    /// Checks that all nodes are of one commit and nothing else, and all accelerators one program.
    fn builds(&mut self, manifest: &Manifest) {
        // Before the run, the nodes are not known at first.
        let nodes = manifest::nodes(manifest).filter(|(_, n)| !n.node.is_empty() || self.is_over());
        let nodes: Vec<_> = nodes.map(|(role, node)| (role, node.clone())).collect();
        for (role, node) in &nodes {
            let name = match role {
                Role::Frontend => "the frontend",
                Role::Accelerator => &node.node,
            };
            let (rule, what) = match (&node.facts.commit, node.facts.dirty) {
                (Some(commit), _) if !is_hash(commit, COMMIT..=64) => (
                    RECORD_BUILD,
                    format!("names {commit:?}, which is no commit"),
                ),
                (Some(_), Some(false)) => continue,
                (Some(_), Some(true)) => (RECORD_CLEAN, "was built from changed sources".into()),
                (Some(_), None) => (RECORD_CLEAN, "does not say that it is clean".into()),
                (None, _) => (RECORD_BUILD, "does not say its commit".into()),
            };
            self.say_record(rule, format!("{name} {what}"));
        }
        let mut compare = |what: &str, of: fn(&NodeRecord) -> &Option<String>, from: usize| {
            let with = nodes.iter().skip(from);
            let mut with = with.filter_map(|(_, n)| Some((&n.node, of(n).as_ref()?)));
            if let Some((other, first)) = with.next()
                && let Some((node, value)) = with.find(|(_, value)| *value != first)
            {
                let what = format!("{what} differ: {other} {first}, {node} {value}");
                self.say_record(RECORD_BUILD, what);
            }
        };
        compare("commits", |n| &n.facts.commit, 0);
        // The frontend is a different program, so only the accelerators' programs are compared.
        compare("programs", |n| &n.facts.program, 1);
    }
}

/// The names in a list such as `tcp, ib` or `tcp+ib`.
pub(super) fn words(list: &str) -> Vec<&str> {
    let words = list.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).collect()
}
