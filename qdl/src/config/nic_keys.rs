//! Checks which keys an entry of `nics` may have, and their relations.
//!
//! An entry may have the keys of [`NicConfig`] and the keys of its fabric's type. Every other key
//! is refused.

use fabric::{
    keys::name_of,
    kinds::{EachFabric, NAMING_KEYS, NicEntry, NicFabric},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    document::Document,
    nic::{GroupBy, NicConfig},
    rules::{ConfigSide, Findings},
    words::keys_here,
};

/// Keys whose value the frontend sets for both ends, beside the number of connections.
const FRONTEND_KEYS: &[&str] = &["slots", "post_from_issue_thread_up_to", "gpus"];

pub(super) fn fabric_of(i: usize, document: &Document) -> &'static str {
    let has = |key: &&str| document.has(&format!("nics[{i}].{key}"));
    let named = NAMING_KEYS.iter().find(|(_, keys)| keys.iter().any(has));
    named.map_or_else(|| NicFabric::default().facts().fabric, |(fabric, _)| fabric)
}

/// Keys of each fabric, and of every NIC.
struct KnownKeys {
    /// Name, keys, and the key that counts the connections.
    fabrics: Vec<(&'static str, Vec<String>, &'static str)>,
    common: Vec<String>,
}

impl KnownKeys {
    fn new() -> Self {
        let (fabrics, common) = (Vec::new(), keys_of::<NicConfig>());
        let mut known = KnownKeys { fabrics, common };
        NicFabric::each(&mut known);
        // A NIC without keys is one of TCP.
        let [(_, tcp, _), ..] = &known.fabrics[..] else {
            return known;
        };
        known.common.retain(|key| !tcp.contains(key));
        known
    }
}

impl EachFabric for KnownKeys {
    fn visit<K: Default + Serialize + DeserializeOwned>(
        &mut self,
        name: &'static str,
        make: fn(K) -> NicFabric,
    ) {
        let connections_key = make(K::default()).facts().connections_key;
        self.fabrics.push((name, keys_of::<K>(), connections_key));
    }
}

/// Names of a mapping's keys, in alphabetical order.
pub(super) fn keys_of<K: Default + Serialize>() -> Vec<String> {
    match serde_json::to_value(K::default()) {
        Ok(Value::Object(keys)) => keys.into_iter().map(|(key, _)| key).collect(),
        _ => Vec::new(),
    }
}

/// Refuses keys of the `count` entries that the fabric does not have or that have no effect on
/// this side.
pub(super) fn check_keys(count: usize, side: ConfigSide, out: &mut Findings<'_>) {
    let all = KnownKeys::new();
    (0..count).for_each(|i| check_entry_keys(i, side, &all, out));
}

fn check_entry_keys(i: usize, side: ConfigSide, all: &KnownKeys, out: &mut Findings<'_>) {
    let fabric = fabric_of(i, out.document);
    let own = all.fabrics.iter().find(|(name, ..)| *name == fabric);
    let (own, counting) = own.map_or((&[][..], ""), |(_, keys, counting)| (keys, counting));
    let known = own.iter().chain(&all.common);
    let known: Vec<&str> = known.map(String::as_str).collect();
    let path = format!("nics[{i}]");
    let document = out.document;
    for key in document.keys(&path) {
        let mut others = all.fabrics.iter();
        let other = others.find(|(_, keys, _)| keys.iter().any(|k| k == key));
        let (what, help) = match other {
            _ if known.contains(&key) => match useless(key, side, fabric, counting) {
                Some(what) => (format!("`{key}` {what}"), format!("remove `{key}`")),
                None => continue,
            },
            None => (format!("unknown key `{key}`"), keys_here(key, &known)),
            Some((other, _, count)) => (
                format!("`{key}` is a key of the fabric `{other}`, and this NIC is `{fabric}`"),
                match key == *count {
                    true => format!("`{fabric}` has `{counting}` instead"),
                    false => format!("remove `{key}`; {}", naming_keys()),
                },
            ),
        };
        out.add_key(format!("{path}.{key}"), what, help);
    }
}

/// Says which keys name the fabric of an entry.
fn naming_keys() -> String {
    let each = NAMING_KEYS.map(|(fabric, keys)| {
        let keys = keys.join("` or `");
        format!("an entry with `{keys}` is `{fabric}`, ")
    });
    let default = NicFabric::default().facts().fabric;
    format!("{}any other is `{default}`", each.concat())
}

/// Returns why a key has no effect on this side; `None` if the key has an effect.
fn useless(key: &str, side: ConfigSide, fabric: &str, counting: &str) -> Option<&'static str> {
    match side {
        ConfigSide::Accelerator if key == counting || FRONTEND_KEYS.contains(&key) => {
            Some("does nothing on an accelerator: the frontend's value counts")
        }
        ConfigSide::Frontend if key == "gpu" && fabric != "ib" => {
            Some("does nothing on a frontend: the accelerator's file says which GPU a NIC feeds")
        }
        _ => None,
    }
}

pub(super) fn check_nics(nics: &[NicConfig], side: ConfigSide, out: &mut Findings<'_>) {
    if nics.is_empty() {
        let example = match side {
            ConfigSide::Frontend => "- address: 127.0.0.1",
            ConfigSide::Accelerator => "- listen: 127.0.0.1:7410",
        };
        let help = format!("add at least one, as in `{example}`");
        out.add("nics", "the list of NICs is empty", help);
    }
    for (i, nic) in nics.iter().enumerate() {
        nic.check(side, &format!("nics[{i}]"), out);
    }
}

impl NicConfig {
    fn check(&self, side: ConfigSide, path: &str, out: &mut Findings<'_>) {
        self.check_group(path, out);
        out.ranges(&format!("{path}."), self.fabric.validate());
        let entry = NicEntry {
            on_accelerator: side == ConfigSide::Accelerator,
            is_group: self.matching.is_some(),
            slots: self.slots.fixed(),
            gpu: self.gpu,
        };
        for problem in self.fabric.check(entry) {
            out.add(
                format!("{path}.{}", problem.key),
                problem.what,
                problem.help,
            );
        }
    }

    /// Checks that an entry with `match` has no keys for a single NIC.
    fn check_group(&self, path: &str, out: &mut Findings<'_>) {
        let Some(pattern) = &self.matching else {
            if self.group_by.is_some() {
                out.add(
                    format!("{path}.group_by"),
                    "`group_by` orders the NICs that `match` finds, and there is no `match`",
                    "add it, as in `match: \"rdmap*\"`, or remove `group_by`",
                );
            }
            return;
        };
        let no_pattern = [
            "is no pattern",
            "write a name in which `*` is any part and `?` any letter, as in \"rdmap*\"",
        ];
        let rule = name_of(|c| "_-.*?".contains(c), no_pattern);
        out.rule(&format!("{path}.match"), pattern.as_str(), rule);
        let by_gpu = self.group_by == Some(GroupBy::Gpu);
        let document = out.document;
        let place_keys = self.fabric.facts().place_keys;
        for key in document.keys(path) {
            let what = match key {
                key if place_keys.contains(&key) => "names one NIC",
                "cpus" => "pins one NIC's thread; each runs on its NIC's own node as it is",
                "gpu" if by_gpu => "is one GPU, and `group_by: gpu` gives each NIC its own",
                _ => continue,
            };
            out.add_key(
                format!("{path}.{key}"),
                format!("`{key}` {what}, and `match` stands for several"),
                format!("remove `{key}`, or `match`"),
            );
        }
    }
}
