//! Settings of each part of a run, from the configuration: one mapping per concept for both ends.

use crate::{
    config::{self, Completion, CompletionMode, Deadlines, FrontendConfig, NicConfig},
    connection::{EchoCfgs, NicThreadCfgs, Spin},
    control::{Auth, ControlError, HeartbeatCfgs, LocalNode, RolePart, Timing, Token},
    dispatch::DispatchCfgs,
    run::facts::node_facts,
};
use fabric::os::Near;

#[cfg(test)]
mod tests;

const TICK_NS: u64 = 25_000_000;
const HEALTH_TICK_NS: u64 = 5_000_000;
/// Most writes queued on a connection before its doorbell must be rung.
pub(super) const SEND_DEPTH: usize = 256;

/// Converts milliseconds of the configuration to nanoseconds.
fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// Authentication policy; reads the token.
pub(super) fn auth(auth: config::Auth<'_>) -> Result<Auth, ControlError> {
    Ok(match auth {
        config::Auth::LoopbackOnly => Auth::Unset,
        config::Auth::None => Auth::None,
        config::Auth::Token(path) => Auth::Token(Token::from_file("token_file", path)?),
    })
}

/// Time limits of the control plane.
pub(super) fn timing(d: &Deadlines) -> Timing {
    Timing {
        step: d.step(),
        heartbeat: HeartbeatCfgs {
            every: d.heartbeat_interval(),
            gone_after: d.heartbeat_timeout(),
        },
    }
}

/// A frontend's identity and settings for its sessions; reads the token file.
pub(super) fn frontend_node(config: &FrontendConfig) -> Result<LocalNode, ControlError> {
    Ok(LocalNode {
        node: config.node.clone(),
        auth: auth(config.auth())?,
        model: config.model.clone(),
        own: RolePart::Stream(config.stream.unwrap_or_default()),
        facts: node_facts(&config.nics),
        timing: timing(&config.deadlines),
    })
}

/// How a thread polls before it sleeps: not at all for `event`, for ever for `poll`.
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

pub(super) fn nic_thread(index: usize, nic: &NicConfig, near: &Near) -> NicThreadCfgs {
    NicThreadCfgs {
        near: near.clone(),
        ..NicThreadCfgs::new(format!("nic-{index}"), spin(&nic.completion), TICK_NS)
    }
}

/// Settings of a frontend's NIC thread, which may need a shorter tick for health.
pub(super) fn frontend_nic_thread(
    index: usize,
    config: &FrontendConfig,
    near: &Near,
) -> NicThreadCfgs {
    let mut cfgs = nic_thread(index, &config.nics[index], near);
    if config.arbiter.is_by_health() {
        cfgs.tick_ns = cfgs.tick_ns.min(HEALTH_TICK_NS);
    }
    cfgs
}

/// Settings of the dispatcher, without connections and memory.
pub(super) fn dispatch(config: &FrontendConfig) -> DispatchCfgs {
    let d = &config.deadlines;
    let up_to = |n: &NicConfig| n.facts().post_up_to as u64;
    let spin_us = config.nics.iter().map(|n| n.completion.spin_us);
    let is_long = config.model.answers_tokens();
    DispatchCfgs {
        policy: config.arbiter,
        echo: EchoCfgs {
            interval_ns: ns(d.echo_interval_ms),
            timeout_ns: ns(d.echo_timeout_ms),
        },
        post_up_to: config.nics.iter().map(up_to).min().unwrap_or(0),
        // Requests of a language model are long: each goes to the accelerator with the fewest.
        by_peer: is_long,
        affinity_ns: match is_long {
            true => 0,
            false => spin_us.min().unwrap_or(0).saturating_mul(1000),
        },
        one_by_one: config.one_by_one,
        send_depth: SEND_DEPTH,
        stream: config.stream.unwrap_or_default(),
        token_bytes: config.model.output.dtype.bytes() as u32,
        ..DispatchCfgs::default()
    }
}
