//! Which keys a NIC's entry may have, and which go together: those of another fabric are refused.

use super::{
    document::Document,
    nic::{GroupBy, NicConfig, pattern},
    rules::{Findings, Side, within_some},
};

/// Keys that a NIC with `device` does not have.
const TCP_KEYS: &[&str] = &[
    "address",
    "listen",
    "connections",
    "congestion",
    "send_buffer_bytes",
    "post_from_issue_thread_up_to",
];
/// Keys that an `ofi` NIC alone has.
const OFI_KEYS: &[&str] = &["ofi", "domain"];
/// TCP's keys that an `ofi` NIC has too.
const OFI_AND_TCP: &[&str] = &["address", "connections", "post_from_issue_thread_up_to"];
/// Keys that a NIC without `device` does not have.
const IB_KEYS: &[&str] = &[
    "port",
    "gid_index",
    "mtu",
    "queue_pairs",
    "signal_every",
    "send_depth",
    "receive_depth",
    "gpudirect",
    "solicited",
    "adaptive_routing",
    "service_level",
    "traffic_class",
    "timeout",
    "retry_count",
    "rnr_retry",
    "min_rnr_timer",
];

/// Keys that a frontend says for both ends.
const FRONTEND_KEYS: &[&str] = &[
    "slots",
    "connections",
    "post_from_issue_thread_up_to",
    "gpus",
];

impl NicConfig {
    /// Checks the entry found at `path`.
    pub(super) fn check(&self, side: Side, path: &str, document: &Document, out: &mut Findings) {
        self.check_group(path, document, out);
        if self.ofi.is_some() {
            return self.check_ofi(side, path, document, out);
        }
        let is_ib = self.device.is_some() || self.matching.is_some();
        for key in document.keys(path) {
            if let Some((what, help)) = refused(key, side, is_ib) {
                out.add(format!("{path}.{key}"), format!("`{key}` {what}"), help);
            }
        }
        let largest = if is_ib { 1024 } else { 65_536 };
        let inline = within_some(0..=largest);
        out.rule(&format!("{path}.inline_bytes"), &self.inline_bytes, inline);
        if is_ib {
            self.check_gpudirect(side, path, out);
            self.check_depths(path, out);
        } else {
            self.check_address(side, path, out);
        }
    }

    /// Keys that name one NIC, or are for one alone, do not go with those that name several.
    fn check_group(&self, path: &str, document: &Document, out: &mut Findings) {
        if self.matching.is_none() {
            if self.group_by.is_some() {
                out.add(
                    format!("{path}.group_by"),
                    "`group_by` orders the NICs that `match` finds, and there is no `match`",
                    "add it, as in `match: \"rdmap*\"`, or remove `group_by`",
                );
            }
            return;
        }
        out.rule(&format!("{path}.match"), &self.matching, pattern);
        let by_gpu = self.group_by == Some(GroupBy::Gpu);
        for key in document.keys(path) {
            let what = match key {
                "device" | "domain" | "address" | "listen" => "names one NIC",
                "port" => "is one NIC's",
                "cpus" => "pins one NIC's thread; each runs on its NIC's own node as it is",
                "gpu" if by_gpu => "is one GPU, and `group_by: gpu` gives each NIC its own",
                _ => continue,
            };
            out.add(
                format!("{path}.{key}"),
                format!("`{key}` {what}, and `match` stands for several"),
                format!("remove `{key}`, or `match`"),
            );
        }
    }

    fn check_ofi(&self, side: Side, path: &str, document: &Document, out: &mut Findings) {
        for key in document.keys(path) {
            let other = if key == "device" || IB_KEYS.contains(&key) {
                Some("belongs to the `ib` fabric, and `ofi` makes this another")
            } else if TCP_KEYS.contains(&key) && !OFI_AND_TCP.contains(&key) {
                Some("belongs to the TCP fabric, and `ofi` makes this another")
            } else {
                None
            };
            let found = match other {
                Some(what) => Some((what, format!("remove `{key}`, or `ofi`"))),
                None => refused_anywhere(key, side, false),
            };
            if let Some((what, help)) = found {
                out.add(format!("{path}.{key}"), format!("`{key}` {what}"), help);
            }
        }
        let inline = within_some(0..=1024);
        out.rule(&format!("{path}.inline_bytes"), &self.inline_bytes, inline);
        if self.domain.is_none() && self.address.is_none() && self.matching.is_none() {
            out.add(
                path,
                "an `ofi` NIC needs `domain`, or the `address` that it has",
                format!(
                    "add `domain: NAME`: `fi_info -p '{}'` lists them",
                    self.ofi()
                ),
            );
        }
    }

    fn check_address(&self, side: Side, path: &str, out: &mut Findings) {
        let (address, listen) = (self.address.is_some(), self.listen.is_some());
        let (wanted, wrong, whose, example) = match side {
            Side::Frontend => ("address", "listen", "frontend", "address: 127.0.0.1"),
            Side::Accelerator => ("listen", "address", "accelerator", "listen: 127.0.0.1:7410"),
        };
        let (has_wanted, has_wrong) = match side {
            Side::Frontend => (address, listen),
            Side::Accelerator => (listen, address),
        };
        if has_wrong {
            out.add(
                format!("{path}.{wrong}"),
                format!("a NIC of this node, which is the {whose}, has no `{wrong}`"),
                format!("write `{wanted}`, as in `{example}`"),
            );
        } else if !has_wanted {
            out.add(
                path,
                format!(
                    "a NIC needs `{wanted}` (TCP), `device` (InfiniBand, RoCE) or `ofi` (libfabric)"
                ),
                format!("add one of them, as in `{example}` or `device: mlx5_0`"),
            );
        }
    }

    fn check_gpudirect(&self, side: Side, path: &str, out: &mut Findings) {
        if !self.gpudirect {
            return;
        }
        let (what, help) = match side {
            Side::Frontend => (
                "a frontend has no slots for a GPU to read",
                "remove `gpudirect`; it belongs into the accelerator's file",
            ),
            Side::Accelerator if self.gpu.is_none() => (
                "`gpudirect` places slots in the memory of a GPU, and none is named",
                "add `gpu: N`, the one that reads them",
            ),
            Side::Accelerator => return,
        };
        out.add(format!("{path}.gpudirect"), what, help);
    }

    fn check_depths(&self, path: &str, out: &mut Findings) {
        if let Some(depth) = self.send_depth.fixed()
            && self.signal_every > depth / 2
        {
            let every = self.signal_every;
            out.add(
                format!("{path}.signal_every"),
                format!("one write in {every} is signaled, in a send queue of {depth}"),
                format!(
                    "set signal_every to at most half of send_depth, {}",
                    depth / 2
                ),
            );
        }
        if let (Some(depth), Some(slots)) = (self.receive_depth.fixed(), self.slots.fixed())
            && (depth as usize) < slots
        {
            out.add(
                format!("{path}.receive_depth"),
                format!("{depth} receives are fewer than the {slots} slots that can arrive"),
                format!("set receive_depth to at least {slots}, or to `auto`"),
            );
        }
    }
}

/// What is wrong with a key on a NIC of this side and fabric, and what would be right.
fn refused(key: &str, side: Side, is_ib: bool) -> Option<(&'static str, String)> {
    let help = match key {
        "connections" if is_ib => "an `ib` NIC has `queue_pairs` instead".to_owned(),
        _ if is_ib => format!("remove `{key}`, or `device`"),
        "port" => "give the port in `listen: ADDRESS:PORT`".to_owned(),
        "queue_pairs" => "a TCP NIC has `connections` instead".to_owned(),
        _ => format!("remove `{key}`, or name an RDMA device: `device: mlx5_0`"),
    };
    Some(match (side, is_ib) {
        (_, true) if TCP_KEYS.contains(&key) => (
            "belongs to the TCP fabric, and `device` makes this an `ib` NIC",
            help,
        ),
        (_, false) if IB_KEYS.contains(&key) => (
            "belongs to the `ib` fabric, and this NIC has no `device`",
            help,
        ),
        _ if OFI_KEYS.contains(&key) => (
            "belongs to the `ofi` fabric, and this NIC has no `ofi`",
            "remove it, or name a provider: `ofi: efa`".to_owned(),
        ),
        _ => return refused_anywhere(key, side, is_ib),
    })
}

/// What is wrong with a key of several fabrics on a NIC of this side.
fn refused_anywhere(key: &str, side: Side, is_ib: bool) -> Option<(&'static str, String)> {
    let remove = format!("remove `{key}`");
    Some(match (side, is_ib) {
        (Side::Accelerator, _) if FRONTEND_KEYS.contains(&key) => (
            "does nothing on an accelerator: the frontend's value counts",
            remove,
        ),
        (Side::Frontend, false) if key == "gpu" => (
            "does nothing on a frontend: the accelerator's file says which GPU a NIC feeds",
            remove,
        ),
        _ => return None,
    })
}
