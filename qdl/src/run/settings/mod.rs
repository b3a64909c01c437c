//! From the configuration to what each part of a run takes: one mapping for each concept, the same
//! for both ends.

use crate::{
    config::{
        self, Completion, CompletionMode, Deadlines, FrontendConfig, HealthConfig, NicConfig,
        NicFabric, TcpKeys,
    },
    connection::{EchoCfgs, NicThreadCfgs, Spin},
    control::{Auth, AuthError, HeartbeatCfgs, Timing, Token},
    dispatch::DispatchCfgs,
    rails::{FailbackCfgs, HealthCfgs},
    topology::{LinkWatch, Topology, device_of},
};
use fabric::{
    os::Near,
    tcp::{TcpCfgs, TcpError},
};

mod devices;
#[cfg(test)]
mod tests;

pub(super) use devices::{ib, ib_device, ofi_device};

/// NIC threads look after their connections so often.
const TICK_NS: u64 = 25_000_000;
/// And at health, under a policy by it, also while nothing arrives.
const HEALTH_TICK_NS: u64 = 5_000_000;
/// Most writes queued on a connection before its doorbell must be rung.
pub(super) const SEND_DEPTH: usize = 256;

/// Nanoseconds, of milliseconds that a file gives.
fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// How the nodes prove who they are; reads the token.
pub(super) fn auth(auth: config::Auth<'_>) -> Result<Auth, AuthError> {
    Ok(match auth {
        config::Auth::LoopbackOnly => Auth::Unset,
        config::Auth::None => Auth::None,
        config::Auth::Token(path) => Auth::Token(Token::from_file(path)?),
    })
}

/// The control plane's.
pub(super) fn timing(d: &Deadlines) -> Timing {
    Timing {
        connect: d.step(),
        handshake: d.step(),
        heartbeat: HeartbeatCfgs {
            every: d.heartbeat_interval(),
            gone_after: d.heartbeat_timeout(),
        },
    }
}

/// How a thread looks for work: not at all before it sleeps for `event`, without an end for `poll`.
fn spin(c: &Completion) -> Spin {
    Spin {
        yield_after_ns: c
            .yield_after_us
            .map_or(u64::MAX, |us| us.saturating_mul(1000)),
        sleep_after_ns: match c.mode {
            CompletionMode::Poll => u64::MAX,
            CompletionMode::Event => 0,
            CompletionMode::Adaptive => c.spin_us.saturating_mul(1000),
        },
    }
}

/// The NIC thread of `nics[index]`.
pub(super) fn nic_thread(index: usize, nic: &NicConfig, near: &Near) -> NicThreadCfgs {
    NicThreadCfgs {
        name: format!("nic-{index}"),
        spin: spin(&nic.completion),
        tick_ns: TICK_NS,
        near: near.clone(),
        begin: None,
    }
}

/// The same on a frontend, where it may look at health.
pub(super) fn frontend_nic_thread(
    index: usize,
    config: &FrontendConfig,
    near: &Near,
) -> NicThreadCfgs {
    let mut cfgs = nic_thread(index, &config.nics[index], near);
    if config.arbiter.by_health().is_some() {
        cfgs.tick_ns = cfgs.tick_ns.min(HEALTH_TICK_NS);
    }
    cfgs
}

/// Connections of a TCP NIC.
pub(super) fn tcp(nic: &NicConfig, keys: &TcpKeys, d: &Deadlines) -> TcpCfgs {
    TcpCfgs {
        send_buffer: keys.send_buffer_bytes,
        inline_bytes: nic.inline_bytes() as usize,
        user_timeout_ms: d.echo_timeout_ms.min(u64::from(u32::MAX)) as u32,
        ..TcpCfgs::default()
    }
}

/// The congestion control of the connections of a TCP NIC; `None` for the system's own.
///
/// # Errors
/// [`TcpError::Congestion`].
pub(super) fn congestion(keys: &TcpKeys, label: &str) -> Result<Option<String>, TcpError> {
    let chosen = keys.congestion.choose();
    let chosen = chosen.map_err(|source| TcpError::Congestion {
        name: keys.congestion.to_string(),
        source,
    })?;
    tracing::debug!(
        "data connections of {label}: congestion control {}",
        chosen.as_deref().unwrap_or("as the system has it")
    );
    Ok(chosen)
}

/// What watches a NIC's link.
pub(super) fn link(nic: &NicConfig) -> LinkWatch {
    match &nic.fabric {
        NicFabric::Tcp(tcp) => LinkWatch::of_address(tcp.at().ip()),
        NicFabric::Ib(ib) => LinkWatch::of_port(&ib.device, ib.port),
        NicFabric::Ofi(ofi) => match (ofi.address, &ofi.domain) {
            (Some(address), _) => LinkWatch::of_address(address),
            (None, domain) => LinkWatch::of_port(device_of(domain.as_deref().unwrap_or("")), 1),
        },
    }
}

/// The dispatcher's, but for its connections and its memory.
pub(super) fn dispatch(config: &FrontendConfig) -> DispatchCfgs {
    let d = &config.deadlines;
    let up_to = |n: &NicConfig| n.post_up_to() as u64;
    let spin_us = config.nics.iter().map(|n| n.completion.spin_us);
    DispatchCfgs {
        policy: config.arbiter,
        echo: EchoCfgs {
            interval_ns: ns(d.echo_interval_ms),
            timeout_ns: ns(d.echo_timeout_ms),
        },
        post_up_to: config.nics.iter().map(up_to).min().unwrap_or(0),
        stay_ns: spin_us.min().unwrap_or(0).saturating_mul(1000),
        one_by_one: config.one_by_one,
        send_depth: SEND_DEPTH,
        stream: config.stream.unwrap_or_default(),
        token_bytes: config.model.output.dtype.bytes() as u32,
        ..DispatchCfgs::default()
    }
}

/// How the health of rails is judged.
pub(super) fn health(c: &HealthConfig) -> HealthCfgs {
    let hold = |first: u64, most: u64| FailbackCfgs {
        first_ns: ns(first),
        most_ns: ns(most),
    };
    HealthCfgs {
        tick_ns: ns(c.tick_ms),
        ewma_ns: ns(c.ewma_ms),
        out_below: c.out_below,
        in_above: c.in_above,
        baseline_spread: c.baseline_spread,
        probe_one_in: c.probe_one_in,
        probe_every_ns: ns(c.probe_every_ms),
        congested: hold(c.congested_hold_ms, c.congested_hold_max_ms),
        failed: hold(c.failed_hold_ms, c.failed_hold_max_ms),
    }
}

/// A warning for each NIC whose NIC thread is pinned to cores of another NUMA node than its own, or
/// whose `numa` names a node that is not there.
pub fn pinning_warnings(nics: &[NicConfig]) -> Vec<String> {
    let Ok(topology) = Topology::of_this_machine() else {
        return Vec::new();
    };
    let warning = |nic: &NicConfig| {
        let interface = |ip| Some(LinkWatch::of_address(ip).interface()?.to_owned());
        let device = match &nic.fabric {
            NicFabric::Ib(ib) => ib.device.clone(),
            NicFabric::Tcp(tcp) => interface(tcp.at().ip())?,
            NicFabric::Ofi(ofi) => match ofi.address {
                Some(address) => interface(address)?,
                None => device_of(ofi.domain.as_deref()?).to_owned(),
            },
        };
        topology.pinning_warning(&device, nic.cpus.as_deref()?)
    };
    let nowhere = |nic: &NicConfig| {
        let node = topology.node_of_nic(nic)?;
        let is_there = topology.nodes.iter().any(|n| n.id == node);
        (topology.has_several_nodes() && !is_there).then(|| {
            let nic = nic.label();
            format!("{nic}: this machine has no NUMA node {node}: its `numa` changes nothing")
        })
    };
    let far = nics.iter().filter_map(warning);
    far.chain(nics.iter().filter_map(nowhere)).collect()
}
