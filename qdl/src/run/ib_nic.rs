//! An RDMA device, for both sides.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{lock, settings};
use crate::{
    config::{IbKeys, NicConfig},
    topology::{Nearness, Topology},
};
use fabric::{
    Endpoint, Link, OpenError, Region,
    ib::{IbCfgs, IbConnection, IbDevice, IbEnd, IbResources, IbWishes, Traffic},
    probe,
};

/// Bytes of GPU memory for the probe: one allocation unit of the driver, so that the slots lie in
/// other memory.
const PROBE_BYTES: usize = 2 << 20;
/// Time limit of the probe's writes.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// An RDMA device that opens connections.
#[derive(Debug)]
pub(super) struct IbNic {
    pub resources: Arc<IbResources>,
    wishes: IbWishes,
    gpudirect: bool,
    /// GPUs tried so far, each with true if slots of this NIC may lie in the GPU's memory.
    direct: Mutex<Vec<(Option<u32>, bool)>>,
}

impl IbNic {
    pub(crate) fn open(config: &NicConfig, keys: &IbKeys) -> Result<Self, OpenError> {
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
    pub(crate) fn gpu_slots(
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
    pub(crate) fn no_gpu_slots(&self, index: usize, gpu: Option<u32>, why: &str) {
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

    pub(crate) fn name(&self) -> &str {
        self.resources.device().name()
    }

    pub(crate) fn prepare(&self, mut endpoint: Endpoint) -> Result<IbConnection, OpenError> {
        let limits = self.resources.device().limits();
        let cfgs = IbCfgs::resolve(&self.wishes, limits, Traffic::of(&endpoint))?;
        endpoint.send_depth = cfgs.writes as usize;
        IbConnection::prepare(&self.resources, endpoint, &cfgs)
    }

    /// Accepts a connection: returns this end's description, and the link.
    pub(crate) fn accept(
        &self,
        endpoint: Endpoint,
        peer: &IbEnd,
    ) -> Result<(IbEnd, Link), OpenError> {
        let half = self.prepare(endpoint)?;
        let end = half.end();
        Ok((end, half.connect(peer)?))
    }
}
