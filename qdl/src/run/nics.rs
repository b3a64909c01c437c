//! Opens the NICs of a node's configuration: the one place that knows which fabrics there are.

use fabric::{
    Nic, OpenError,
    ib::{IbDevice, IbNic, IbResources},
    ofi::{OfiDevice, OfiNic, OfiResources},
    tcp::{TcpCfgs, TcpDevice, TcpError, TcpNic},
};
use tokio::net::TcpListener;

use super::{error::NicError, settings};
use crate::{
    config::{Deadlines, IbKeys, NicConfig, NicFabric, OfiKeys, TcpKeys},
    topology::{Nearness, Topology},
};

/// Listener of a data port, and the settings of the connections that come to it.
pub(crate) type DataPort = (TcpListener, TcpCfgs);

/// Opens a NIC for `connections` connections that this node makes or accepts.
///
/// # Errors
/// [`NicError`] names the entry of `nics`, the key and the cause.
pub(crate) fn open(
    index: usize,
    config: &NicConfig,
    deadlines: &Deadlines,
    connections: usize,
) -> Result<Box<dyn Nic>, NicError> {
    let opened: Result<Box<dyn Nic>, OpenError> = match &config.fabric {
        NicFabric::Tcp(tcp) => tcp_nic(config, tcp, deadlines)
            .map(|nic| Box::new(nic) as _)
            .map_err(|e| OpenError::Socket(e.to_string())),
        NicFabric::Ib(ib) => open_ib(index, config, ib).map(|nic| Box::new(nic) as _),
        NicFabric::Ofi(ofi) => open_ofi(config, ofi, connections).map(|nic| Box::new(nic) as _),
    };
    opened.map_err(NicError::of(index))
}

/// Opens a NIC to which frontends connect; over TCP, also its data port.
///
/// # Errors
/// As [`open`].
pub(crate) fn listen(
    index: usize,
    config: &NicConfig,
    deadlines: &Deadlines,
) -> Result<(Box<dyn Nic>, Option<DataPort>), NicError> {
    let NicFabric::Tcp(tcp) = &config.fabric else {
        return Ok((open(index, config, deadlines, 1)?, None));
    };
    let of_this = NicError::of(index);
    let mut nic = tcp_nic(config, tcp, deadlines).map_err(&of_this)?;
    let listener = TcpDevice::listen(nic.at, nic.congestion.as_deref()).map_err(of_this)?;
    // With the port that the system chose.
    nic.at = listener.local_addr().unwrap_or(nic.at);
    let port = (listener, nic.cfgs);
    Ok((Box::new(nic), Some(port)))
}

fn tcp_nic(config: &NicConfig, keys: &TcpKeys, deadlines: &Deadlines) -> Result<TcpNic, TcpError> {
    Ok(TcpNic {
        at: keys.at(),
        congestion: settings::congestion(keys, &config.label())?,
        cfgs: settings::tcp(config, keys, deadlines),
    })
}

fn open_ib(index: usize, config: &NicConfig, keys: &IbKeys) -> Result<IbNic, OpenError> {
    let topology = Topology::of_this_machine().unwrap_or_default();
    let device = IbDevice::open(&settings::ib_device(&topology, config, keys))?;
    let gpus = topology.nearest_gpus(device.name());
    let name = |(gpu, nearness): &(usize, Nearness)| format!("GPU{gpu} ({})", nearness.letters());
    let names = gpus.iter().map(name).collect::<Vec<_>>();
    let names = names.join(", ");
    tracing::info!(
        "{}:{} is up: {} Gbit/s, NUMA node {}, nearest to {}",
        device.name(),
        device.port(),
        device.gbps().map_or("?".to_owned(), |g| g.to_string()),
        device
            .near()
            .nodes
            .first()
            .map_or("?".to_owned(), u32::to_string),
        if gpus.is_empty() { "no GPU" } else { &names },
    );
    if let Some(gpu) = config.gpu
        && !gpus.is_empty()
        && gpus.iter().all(|(g, _)| *g != gpu as usize)
    {
        tracing::warn!(
            "{}: its entry says `gpu: {gpu}`, but it is nearer to {names}: every sample takes the \
             longer way",
            device.name()
        );
    }
    Ok(IbNic::new(
        IbResources::new(device)?,
        settings::ib(config, keys),
        format!("nics[{index}]"),
        keys.gpudirect,
    ))
}

fn open_ofi(config: &NicConfig, keys: &OfiKeys, connections: usize) -> Result<OfiNic, OpenError> {
    let device = OfiDevice::open(&settings::ofi_device(config, keys)?)?;
    device.check(connections)?;
    let info = device.info();
    tracing::info!(
        "{} is up: {}libfabric {}, writes arrive {}",
        device.name(),
        info.limits()
            .gbps
            .map_or(String::new(), |g| format!("{g} Gbit/s, ")),
        info.ofi().version(),
        if device.keeps_order() {
            "in order"
        } else {
            "in any order"
        },
    );
    Ok(OfiNic {
        resources: OfiResources::new(device)?,
        inline_bytes: config.inline_bytes(),
    })
}
