//! A NIC as YAML writes it: the keys of both fabrics in one table, sorted out by whether `device` is there.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::{
    Auto, Completion, Gpus, IbNicConfig, NicConfig, TcpNicConfig, ib::AdaptiveRoutingFile,
    rules::Findings, values::SystemOr,
};

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Frontend,
    Accelerator,
}

/// Every key a NIC can have; all are optional until the fabric is known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NicFile {
    // Either fabric.
    slots: Option<Auto<usize>>,
    inline_bytes: Option<u32>,
    completion: Option<Completion>,
    numa: Option<Auto<u32>>,
    cpus: Option<Vec<usize>>,
    gpu: Option<u32>,
    gpus: Option<Gpus>,
    // TCP.
    address: Option<String>,
    listen: Option<String>,
    connections: Option<usize>,
    send_buffer_bytes: Option<SystemOr>,
    post_from_issue_thread_up_to: Option<usize>,
    // InfiniBand and RoCE.
    device: Option<String>,
    port: Option<u8>,
    gid_index: Option<Auto<u8>>,
    mtu: Option<Auto<u32>>,
    queue_pairs: Option<usize>,
    signal_every: Option<u32>,
    send_depth: Option<Auto<u32>>,
    receive_depth: Option<Auto<u32>>,
    gpudirect: Option<bool>,
    solicited: Option<bool>,
    adaptive_routing: Option<AdaptiveRoutingFile>,
    service_level: Option<u8>,
    traffic_class: Option<u8>,
    timeout: Option<u8>,
    retry_count: Option<u8>,
    rnr_retry: Option<u8>,
    min_rnr_timer: Option<u8>,
}

/// Names of the fields that are there.
macro_rules! present {
    ($file:expr, $($field:ident),+ $(,)?) => {{
        let mut names: Vec<&'static str> = Vec::new();
        $(if $file.$field.is_some() { names.push(stringify!($field)); })+
        names
    }};
}

/// Takes over the fields that are there.
macro_rules! take {
    ($file:expr => $to:expr, $($field:ident),+ $(,)?) => {
        $(if let Some(value) = $file.$field { $to.$field = value; })+
    };
}

impl NicFile {
    /// Sorts the keys out; `path` is where the NIC stands, as in `nics[0]`.
    pub(super) fn into_nic(self, side: Side, path: &str, out: &mut Findings) -> Option<NicConfig> {
        if self.device.is_some() {
            self.into_ib(side, path, out).map(NicConfig::Ib)
        } else {
            self.into_tcp(side, path, out).map(NicConfig::Tcp)
        }
    }

    fn into_ib(self, side: Side, path: &str, out: &mut Findings) -> Option<IbNicConfig> {
        for key in present!(
            self,
            address,
            listen,
            connections,
            send_buffer_bytes,
            post_from_issue_thread_up_to
        ) {
            let help = if key == "connections" {
                "an `ib` NIC has `queue_pairs` instead".to_owned()
            } else {
                format!("remove `{key}`, or `device`")
            };
            out.add(
                format!("{path}.{key}"),
                format!("`{key}` belongs to the TCP fabric, and `device` makes this an `ib` NIC"),
                help,
            );
        }
        let mut nic = IbNicConfig::new(self.device?);
        take!(self => nic, slots, inline_bytes, completion, numa, port, gid_index, mtu, queue_pairs,
            signal_every, send_depth, receive_depth, solicited, service_level, traffic_class, timeout,
            retry_count, rnr_retry, min_rnr_timer, gpudirect, gpus);
        nic.cpus = self.cpus;
        nic.gpu = self.gpu;
        if let Some(file) = self.adaptive_routing {
            nic.adaptive_routing.split_above = file.split_above;
        }
        if nic.gpudirect && (side == Side::Frontend || nic.gpu.is_none()) {
            let (what, help) = match side {
                Side::Frontend => (
                    "a frontend has no slots for a GPU to read",
                    "remove `gpudirect`; it belongs into the accelerator's file",
                ),
                Side::Accelerator => (
                    "`gpudirect` places slots in the memory of a GPU, and none is named",
                    "add `gpu: N`, the one that reads them",
                ),
            };
            out.add(format!("{path}.gpudirect"), what, help);
        }
        nic.relations(path, out);
        Some(nic)
    }

    fn into_tcp(self, side: Side, path: &str, out: &mut Findings) -> Option<TcpNicConfig> {
        for key in present!(
            self,
            port,
            gid_index,
            mtu,
            queue_pairs,
            signal_every,
            send_depth,
            receive_depth,
            gpudirect,
            solicited,
            adaptive_routing,
            service_level,
            traffic_class,
            timeout,
            retry_count,
            rnr_retry,
            min_rnr_timer
        ) {
            let help = match key {
                "port" => "give the port in `listen: ADDRESS:PORT`".to_owned(),
                "queue_pairs" => "a TCP NIC has `connections` instead".to_owned(),
                _ => format!("remove `{key}`, or name an RDMA device: `device: mlx5_0`"),
            };
            out.add(
                format!("{path}.{key}"),
                format!("`{key}` belongs to the `ib` fabric, and this NIC has no `device`"),
                help,
            );
        }
        let mut nic = TcpNicConfig::new(self.bind(side, path, out)?);
        take!(self => nic, gpus, slots, completion, numa, connections, post_from_issue_thread_up_to);
        if let Some(bytes) = self.inline_bytes {
            nic.inline_bytes = bytes as usize;
        }
        if let Some(SystemOr(bytes)) = self.send_buffer_bytes {
            nic.send_buffer_bytes = bytes;
        }
        nic.cpus = self.cpus;
        nic.gpu = self.gpu;
        Some(nic)
    }

    fn bind(&self, side: Side, path: &str, out: &mut Findings) -> Option<SocketAddr> {
        let (wanted, wrong, whose, example) = match side {
            Side::Frontend => ("address", "listen", "frontend", "address: 127.0.0.1"),
            Side::Accelerator => ("listen", "address", "accelerator", "listen: 127.0.0.1:7410"),
        };
        let (value, other) = match side {
            Side::Frontend => (&self.address, &self.listen),
            Side::Accelerator => (&self.listen, &self.address),
        };
        if other.is_some() {
            out.add(
                format!("{path}.{wrong}"),
                format!("a NIC of this node, which is the {whose}, has no `{wrong}`"),
                format!("write `{wanted}`, as in `{example}`"),
            );
            return None;
        }
        let Some(value) = value else {
            out.add(
                path,
                format!("a NIC needs `{wanted}` (TCP) or `device` (InfiniBand, RoCE)"),
                format!("add one of them, as in `{example}` or `device: mlx5_0`"),
            );
            return None;
        };
        match side {
            Side::Frontend => value
                .parse::<IpAddr>()
                .ok()
                .map(|ip| SocketAddr::new(ip, 0)),
            Side::Accelerator => value.parse().ok(),
        }
        .or_else(|| {
            let what = match side {
                Side::Frontend => "an IP address",
                Side::Accelerator => "an IP address with a port",
            };
            out.add(
                format!("{path}.{wanted}"),
                format!("`{value}` is not {what}"),
                format!("write {what}, as in `{example}`"),
            );
            None
        })
    }
}

/// Sorts out the keys of all NICs of a node.
pub(super) fn into_nics(
    files: Vec<NicFile>,
    side: Side,
    out: &mut Findings,
) -> Option<Vec<NicConfig>> {
    // Every NIC is looked at, so that all problems come out at once.
    let nics: Vec<_> = files
        .into_iter()
        .enumerate()
        .map(|(i, file)| file.into_nic(side, &format!("nics[{i}]"), out))
        .collect();
    nics.into_iter().collect()
}
