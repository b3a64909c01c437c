//! The steps of opening a connection that differ between fabrics, for both sides.
//!
//! | | `tcp` | `ib` | `ofi` |
//! | --- | --- | --- | --- |
//! | frontend, before `open` | nothing | queue pair, describes it | endpoint, describes it |
//! | accelerator, for `opened` | states its address | connects queue pair | connects its endpoint |
//! | frontend, after `opened` | connects, shows the key | connects queue pair | exchanges hellos |

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    api::{ClusterError, NicError},
    lock,
    ofi_nic::{OfiNic, dial},
    settings,
};
use crate::{
    config::{Deadlines, IbKeys, NicConfig, NicFabric},
    control::{ConnectionGrant, GrantTransport, RequestTransport},
    topology::{Nearness, Topology},
};
use fabric::{
    Endpoint, Link, OpenError, Region,
    ib::{IbCfgs, IbConnection, IbDevice, IbEnd, IbResources, IbWishes, Traffic, check_memory},
    ofi::OfiConnection,
    probe,
    tcp::{self, Preamble, TcpCfgs, TcpDevice},
};

/// Bytes of GPU memory for the probe: a driver's allocation unit, so that the slots come from
/// different memory.
const PROBE_BYTES: usize = 2 << 20;
/// Time limit of the probe's writes.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// An RDMA device that opens connections.
#[derive(Debug)]
pub(super) struct IbNic {
    resources: Arc<IbResources>,
    wishes: IbWishes,
    gpudirect: bool,
    /// GPUs for which it is known whether what it writes to their memory is seen there.
    direct: Mutex<Vec<(Option<u32>, bool)>>,
}

impl IbNic {
    /// Opens the device.
    pub fn open(config: &NicConfig, keys: &IbKeys) -> Result<Self, OpenError> {
        let topology = Topology::of_this_machine().unwrap_or_default();
        let device = IbDevice::open(&settings::ib_device(&topology, config, keys))?;
        let gpus = topology.nearest_gpus(device.name());
        let name =
            |(gpu, nearness): &(usize, Nearness)| format!("GPU{gpu} ({})", nearness.letters());
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
                "{}: its entry says `gpu: {gpu}`, but it is nearer to {names}: every sample takes the longer way",
                device.name()
            );
        }
        Ok(IbNic {
            resources: IbResources::new(device)?,
            wishes: settings::ib(config, keys),
            gpudirect: keys.gpudirect,
            direct: Mutex::default(),
        })
    }

    /// Allocates `bytes` of a GPU's memory for slots that this NIC writes, if `gpudirect` is on.
    /// The first call per GPU probes a write through a connection of the NIC with itself. If the
    /// probe or the allocation fails, a warning says why, and later slots of this NIC for the GPU
    /// are in host memory.
    pub fn gpu_slots(
        &self,
        index: usize,
        gpu: Option<u32>,
        bytes: usize,
        make: impl Fn(usize) -> Result<Arc<Region>, String>,
    ) -> Option<Arc<Region>> {
        let known = lock(&self.direct)
            .iter()
            .find_map(|(g, direct)| (*g == gpu).then_some(*direct));
        if !self.gpudirect || known == Some(false) {
            return None;
        }
        let attempt = || {
            if known.is_none() {
                let join = |a, b| self.join(a, b).map_err(|e| e.to_string());
                probe(&make(PROBE_BYTES)?, PROBE_PATIENCE, join).map_err(|e| e.to_string())?;
            }
            make(bytes)
        };
        match attempt() {
            Ok(region) => {
                if known.is_none() {
                    let device = region.device().map(|d| d.device()).unwrap_or_default();
                    tracing::info!(
                        "nics[{index}]: its slots are in the memory of {device}, where a write through {} was seen",
                        self.name()
                    );
                    lock(&self.direct).push((gpu, true));
                }
                Some(region)
            }
            Err(why) => {
                self.no_gpu_slots(index, gpu, &why);
                None
            }
        }
    }

    /// Puts later slots of this NIC for the GPU into host memory.
    pub fn no_gpu_slots(&self, index: usize, gpu: Option<u32>, why: &str) {
        let mut direct = lock(&self.direct);
        direct.retain(|(g, _)| *g != gpu);
        direct.push((gpu, false));
        tracing::warn!("nics[{index}]: gpudirect: its slots are in the host's memory: {why}");
    }

    /// Makes a connection of the device with itself.
    fn join(&self, a: Endpoint, b: Endpoint) -> Result<(Link, Link), OpenError> {
        let (a, b) = (self.prepare(a)?, self.prepare(b)?);
        let (at_a, at_b) = (a.end(), b.end());
        Ok((a.connect(&at_b)?, b.connect(&at_a)?))
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        self.resources.device().name()
    }

    /// Prepares the local half of a connection.
    pub fn prepare(&self, mut endpoint: Endpoint) -> Result<IbConnection, OpenError> {
        let limits = self.resources.device().limits();
        let cfgs = IbCfgs::resolve(&self.wishes, limits, Traffic::of(&endpoint))?;
        endpoint.send_depth = cfgs.writes as usize;
        IbConnection::prepare(&self.resources, endpoint, &cfgs)
    }

    /// Accepts a connection: returns this end's description, and the link.
    pub fn accept(&self, endpoint: Endpoint, peer: &IbEnd) -> Result<(IbEnd, Link), OpenError> {
        let half = self.prepare(endpoint)?;
        let end = half.end();
        Ok((end, half.connect(peer)?))
    }
}

/// One NIC of the frontend.
#[derive(Debug)]
pub(super) enum ClientNic {
    Tcp {
        local: IpAddr,
        congestion: Option<String>,
        cfgs: TcpCfgs,
    },
    Ib(IbNic),
    Ofi(OfiNic),
}

/// Local half of a connection, made before the accelerator's answer.
#[derive(Debug)]
pub(super) enum Prepared {
    Tcp,
    Ib(Box<IbConnection>),
    Ofi(Box<OfiConnection>),
}

impl ClientNic {
    /// Opens the device, if any, and registers the samples' memory with it. `slots` is the size of
    /// all slots on this node, in bytes.
    pub fn open(
        index: usize,
        nic: &NicConfig,
        accelerators: usize,
        deadlines: &Deadlines,
        sources: &[Arc<Region>],
        slots: usize,
    ) -> Result<Self, ClusterError> {
        match &nic.fabric {
            NicFabric::Tcp(tcp) => Ok(ClientNic::Tcp {
                local: tcp.at().ip(),
                congestion: settings::congestion(tcp, &nic.label()).map_err(NicError::of(index))?,
                cfgs: settings::tcp(nic, tcp, deadlines),
            }),
            NicFabric::Ib(ib) => {
                let open = || -> Result<_, OpenError> {
                    check_memory(&ib.device, slots)?;
                    let nic = IbNic::open(nic, ib)?;
                    nic.resources.keep(sources)?;
                    Ok(nic)
                };
                Ok(ClientNic::Ib(open().map_err(NicError::of(index))?))
            }
            NicFabric::Ofi(ofi) => {
                let open = || -> Result<_, OpenError> {
                    let nic = OfiNic::open(nic, ofi, accelerators * nic.connections())?;
                    nic.check_memory(slots)?;
                    nic.keep(sources)?;
                    Ok(nic)
                };
                Ok(ClientNic::Ofi(open().map_err(NicError::of(index))?))
            }
        }
    }

    /// Prepares the local half, and the parameters of the request.
    pub fn prepare(
        &self,
        index: usize,
        endpoint: impl FnOnce() -> Endpoint,
    ) -> Result<(Prepared, RequestTransport), ClusterError> {
        match self {
            ClientNic::Tcp { .. } => Ok((Prepared::Tcp, RequestTransport::Tcp {})),
            ClientNic::Ib(nic) => {
                let half = nic.prepare(endpoint()).map_err(NicError::of(index))?;
                let end = half.end();
                Ok((Prepared::Ib(Box::new(half)), RequestTransport::Ib { end }))
            }
            ClientNic::Ofi(nic) => {
                let half = nic.prepare(endpoint()).map_err(NicError::of(index))?;
                let end = half.end().clone();
                Ok((Prepared::Ofi(Box::new(half)), RequestTransport::Ofi { end }))
            }
        }
    }

    /// Completes a connection that the accelerator has granted.
    pub async fn connect(
        &self,
        index: usize,
        prepared: Prepared,
        grant: &ConnectionGrant,
        endpoint: impl FnOnce() -> Endpoint,
        node: &str,
        deadline: Duration,
    ) -> Result<Link, ClusterError> {
        match (self, prepared, &grant.transport) {
            (
                ClientNic::Tcp {
                    local,
                    congestion,
                    cfgs,
                },
                _,
                GrantTransport::Tcp { address },
            ) => {
                let preamble = Preamble {
                    connection: grant.connection,
                    epoch: grant.epoch,
                    key: grant.key.0,
                };
                let congestion = congestion.as_deref();
                let stream =
                    TcpDevice::connect(*local, *address, &preamble, congestion, deadline).await;
                let stream = stream.map_err(|source| ClusterError::Data {
                    node: node.to_owned(),
                    source,
                })?;
                Ok(tcp::link(stream, endpoint(), cfgs)?)
            }
            (ClientNic::Ib(_), Prepared::Ib(half), GrantTransport::Ib { end }) => {
                Ok(half.connect(end).map_err(NicError::of(index))?)
            }
            (ClientNic::Ofi(_), Prepared::Ofi(half), GrantTransport::Ofi { end }) => {
                let link = dial(*half, end, deadline).await;
                Ok(link.map_err(NicError::of(index))?)
            }
            (_, _, granted) => {
                let problem = format!("{node} granted a {} connection", granted.fabric());
                Err(NicError::of(index)(problem).into())
            }
        }
    }
}

/// One NIC of an accelerator.
#[derive(Debug)]
pub(super) enum ServerNic {
    Tcp(SocketAddr),
    Ib(IbNic),
    Ofi(OfiNic),
}

impl ServerNic {
    /// Name of the fabric: `tcp`, `ib` or `ofi`.
    pub fn fabric(&self) -> &'static str {
        match self {
            ServerNic::Tcp(_) => "tcp",
            ServerNic::Ib(_) => "ib",
            ServerNic::Ofi(_) => "ofi",
        }
    }
}
