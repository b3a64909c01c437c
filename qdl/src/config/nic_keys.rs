//! Checks which keys an entry of `nics` may have, and their relations.
//!
//! An entry may have the keys of [`NicConfig`] and the keys of its fabric's type. Every other key
//! is refused.

use fabric::ib::OWN_RECEIVES;
use garde::Validate;

use super::{
    document::{Document, keys_of},
    nic::{GroupBy, IbKeys, NO_DEVICE, NicConfig, NicFabric, OfiKeys, TcpKeys, name_of},
    rules::{ConfigSide, Findings, within_some},
    words::keys_here,
};

/// Keys whose value the frontend sets for both ends.
const FRONTEND_KEYS: &[&str] = &[
    "slots",
    "connections",
    "post_from_issue_thread_up_to",
    "gpus",
];

pub(super) fn fabric_of(i: usize, document: &Document) -> &'static str {
    let has = |key: &str| document.has(&format!("nics[{i}].{key}"));
    match (has("ofi"), has("device") || has("match")) {
        (true, _) => "ofi",
        (false, true) => "ib",
        (false, false) => "tcp",
    }
}

/// Refuses keys of entry `i` that its fabric does not have or that have no effect on this side.
pub(super) fn check_keys(i: usize, side: ConfigSide, out: &mut Findings<'_>) {
    let fabrics = [
        ("tcp", keys_of::<TcpKeys>()),
        ("ib", keys_of::<IbKeys>()),
        ("ofi", keys_of::<OfiKeys>()),
    ];
    let fabric = fabric_of(i, out.document);
    let own = fabrics.iter().filter(|(name, _)| *name == fabric);
    let own: Vec<&str> = own.flat_map(|(_, keys)| *keys).copied().collect();
    let known = [keys_of::<NicConfig>(), &own].concat();
    let path = format!("nics[{i}]");
    let document = out.document;
    for key in document.keys(&path) {
        let other = fabrics.iter().find(|(_, keys)| keys.contains(&key));
        let (what, help) = match other {
            _ if known.contains(&key) => match useless(key, side, fabric) {
                Some(what) => (format!("`{key}` {what}"), format!("remove `{key}`")),
                None => continue,
            },
            None => (format!("unknown key `{key}`"), keys_here(key, &known)),
            Some((other, _)) => (
                format!("`{key}` is a key of the fabric `{other}`, and this NIC is `{fabric}`"),
                match (key, fabric) {
                    ("connections", "ib") => "an `ib` NIC has `queue_pairs` instead".to_owned(),
                    ("queue_pairs", _) => format!("`{fabric}` has `connections` instead"),
                    _ => format!(
                        "remove `{key}`; an entry with `ofi` is `ofi`, one with `device` or \
                         `match` is `ib`, any other is `tcp`"
                    ),
                },
            ),
        };
        out.add_key(format!("{path}.{key}"), what, help);
    }
}

/// Returns why a key has no effect on this side; `None` if the key has an effect.
fn useless(key: &str, side: ConfigSide, fabric: &str) -> Option<&'static str> {
    match side {
        ConfigSide::Accelerator if FRONTEND_KEYS.contains(&key) => {
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
        let (ranges, most_inline) = match &self.fabric {
            NicFabric::Tcp(tcp) => {
                tcp.check(side, path, out);
                (tcp.validate(), 65_536)
            }
            NicFabric::Ib(ib) => {
                ib.check(self, side, path, out);
                (ib.validate(), 1024)
            }
            NicFabric::Ofi(ofi) => {
                ofi.check(self, path, out);
                (ofi.validate(), 1024)
            }
        };
        out.ranges(&format!("{path}."), ranges);
        let inline = within_some(0..=most_inline);
        out.rule(&format!("{path}.inline_bytes"), &self.inline_bytes, inline);
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
        for key in document.keys(path) {
            let what = match key {
                "device" | "domain" | "address" | "listen" => "names one NIC",
                "port" => "is one NIC's",
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

impl TcpKeys {
    fn check(&self, side: ConfigSide, path: &str, out: &mut Findings<'_>) {
        let address = ("address", self.address.is_some(), "address: 127.0.0.1");
        let listen = ("listen", self.listen.is_some(), "listen: 127.0.0.1:7410");
        let ((wanted, has, example), (wrong, has_wrong, _)) = match side {
            ConfigSide::Frontend => (address, listen),
            ConfigSide::Accelerator => (listen, address),
        };
        if has_wrong {
            out.add(
                format!("{path}.{wrong}"),
                format!("a TCP NIC of {} has no `{wrong}`", side.node_name()),
                format!("write `{wanted}`, as in `{example}`"),
            );
        } else if !has {
            out.add(
                path,
                format!(
                    "a NIC needs `{wanted}` (TCP), `device` (InfiniBand, RoCE) or `ofi` (libfabric)"
                ),
                format!("add one of them, as in `{example}` or `device: mlx5_0`"),
            );
        }
    }
}

impl OfiKeys {
    fn check(&self, nic: &NicConfig, path: &str, out: &mut Findings<'_>) {
        if self.domain.is_none() && self.address.is_none() && nic.matching.is_none() {
            let provider = &self.provider;
            out.add(
                path,
                "an `ofi` NIC needs `domain`, or the `address` that it has",
                format!("add `domain: NAME`: `fi_info -p '{provider}'` lists them"),
            );
        }
    }
}

impl IbKeys {
    fn check(&self, nic: &NicConfig, side: ConfigSide, path: &str, out: &mut Findings<'_>) {
        if nic.matching.is_none() {
            let rule = name_of(|c| "_-.".contains(c), NO_DEVICE);
            out.rule(&format!("{path}.device"), self.device.as_str(), rule);
        }
        if self.gpudirect && side == ConfigSide::Frontend {
            out.add_key(
                format!("{path}.gpudirect"),
                "a frontend has no slots for a GPU to read",
                "remove `gpudirect`; it belongs into the accelerator's file",
            );
        } else if self.gpudirect && nic.gpu.is_none() {
            out.add(
                format!("{path}.gpudirect"),
                "`gpudirect` places slots in the memory of a GPU, and none is named",
                "add `gpu: N`, the one that reads them",
            );
        }
        if let Some(depth) = self.send_depth.fixed()
            && self.signal_every > depth / 2
        {
            let (every, half) = (self.signal_every, depth / 2);
            out.add(
                format!("{path}.signal_every"),
                format!("one write in {every} is signaled, in a send queue of {depth}"),
                format!("set signal_every to at most half of send_depth, {half}"),
            );
        }
        if let (Some(depth), Some(slots)) = (self.receive_depth.fixed(), nic.slots.fixed())
            && let least = slots + OWN_RECEIVES as usize
            && (depth as usize) < least
        {
            out.add(
                format!("{path}.receive_depth"),
                format!(
                    "{depth} receives do not cover {slots} slots and {OWN_RECEIVES} of their own"
                ),
                format!("set receive_depth to at least {least}, or to `auto`"),
            );
        }
    }
}
