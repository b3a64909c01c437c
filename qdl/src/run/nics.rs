//! Opens the NICs of a node's configuration.

use fabric::{
    Nic,
    kinds::{DataPort, NicPlace, NicUse},
};

use super::error::RunError;
use crate::{
    config::{Deadlines, NicConfig},
    topology::{Nearness, Topology},
};

/// Opens a NIC for `connections` connections that this node makes or accepts.
///
/// # Errors
/// [`RunError`] names the entry of `nics`, the key and the cause.
pub(crate) fn open(
    index: usize,
    config: &NicConfig,
    deadlines: &Deadlines,
    connections: usize,
) -> Result<Box<dyn Nic>, RunError> {
    open_for(index, config, deadlines, connections, false).map(|(nic, _)| nic)
}

/// Opens a NIC to which frontends connect, and its data port if it listens on a socket.
///
/// # Errors
/// As [`open`].
pub(crate) fn listen(
    index: usize,
    config: &NicConfig,
    deadlines: &Deadlines,
) -> Result<(Box<dyn Nic>, Option<DataPort>), RunError> {
    open_for(index, config, deadlines, 1, true)
}

fn open_for(
    index: usize,
    config: &NicConfig,
    deadlines: &Deadlines,
    connections: usize,
    listens: bool,
) -> Result<(Box<dyn Nic>, Option<DataPort>), RunError> {
    let topology = Topology::of_this_machine().unwrap_or_default();
    let label = format!("nics[{index}]");
    let opened = config.fabric.open(NicUse {
        label: &label,
        near: topology.near(topology.node_of_nic(config).as_slice()),
        connections,
        timeout_ms: deadlines.echo_timeout_ms,
        listens,
    });
    let opened = opened.map_err(RunError::of_nic(index))?;
    if let NicPlace::Device(device, _) = config.facts().place {
        say_gpus(&topology, device, config.gpu);
    }
    Ok(opened)
}

/// Logs the GPUs nearest to a device, and warns if `gpu`, which the device feeds, is none of them.
fn say_gpus(topology: &Topology, device: &str, gpu: Option<u32>) {
    let gpus = topology.nearest_gpus(device);
    if gpus.is_empty() {
        return;
    }
    let name = |(gpu, nearness): &(usize, Nearness)| format!("GPU{gpu} ({})", nearness.letters());
    let names = gpus.iter().map(name).collect::<Vec<_>>().join(", ");
    tracing::info!("{device} is nearest to {names}");
    if let Some(gpu) = gpu
        && gpus.iter().all(|(g, _)| *g != gpu as usize)
    {
        tracing::warn!(
            "{device}: its entry says `gpu: {gpu}`, but it is nearer to {names}: every sample \
             takes the longer way"
        );
    }
}
