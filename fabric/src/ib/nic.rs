//! An RDMA device as a NIC, for both ends.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    IbCfgs, IbConnection, IbDevice, IbEnd, IbKeys, IbResources, OWN_RECEIVES, Traffic,
    check_memory, keys::QUEUE_PAIRS,
};
use crate::{
    Endpoint, Link, OpenError, Region,
    entry::{
        DataPort, FabricLayers, FoundNic, KeyProblem, NicEntry, NicFacts, NicKeys, NicPlace,
        NicUse, POST_UP_TO,
    },
    keys::name_of,
    opening::{self, Accepted, Connecting, DeviceSlots, Half, Made, Nic, Which},
    os::lock,
    probe,
};

/// Bytes of GPU memory for the probe: one allocation unit of the driver, so that the slots lie in
/// other memory.
const PROBE_BYTES: usize = 2 << 20;
/// Time limit of the probe's writes.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

const NO_DEVICE: [&str; 2] = [
    "is no device name",
    "use a name that `ibv_devices` lists, such as mlx5_0",
];

/// An RDMA device that opens connections.
#[derive(Debug)]
pub struct IbNic {
    resources: Arc<IbResources>,
    keys: IbKeys,
    /// The NIC's name in log lines.
    label: String,
    /// GPUs tried so far, each with true if slots of this NIC may lie in the GPU's memory.
    direct: Mutex<Vec<(Option<u32>, bool)>>,
}

impl IbNic {
    /// A NIC with these keys. With `gpudirect`, slots lie in GPU memory where a probe shows that
    /// the device's writes reach it.
    pub fn new(resources: Arc<IbResources>, keys: IbKeys, label: String) -> Self {
        IbNic {
            resources,
            keys,
            label,
            direct: Mutex::default(),
        }
    }

    fn name(&self) -> &str {
        self.resources.device().name()
    }

    fn half(&self, mut endpoint: Endpoint) -> Result<IbConnection, OpenError> {
        let limits = self.resources.device().limits();
        let cfgs = IbCfgs::resolve(&self.keys, limits, Traffic::of(&endpoint))?;
        endpoint.send_depth = cfgs.writes as usize;
        IbConnection::prepare(&self.resources, endpoint, &cfgs)
    }

    /// Makes a connection of the device with itself.
    fn join(&self, a: Endpoint, b: Endpoint) -> Result<(Link, Link), OpenError> {
        let (a, b) = (self.half(a)?, self.half(b)?);
        let (at_a, at_b) = (a.end(), b.end());
        Ok((a.connect(&at_b)?, b.connect(&at_a)?))
    }

    fn direct(&self) -> MutexGuard<'_, Vec<(Option<u32>, bool)>> {
        lock(&self.direct)
    }
}

impl Nic for IbNic {
    fn fabric(&self) -> &'static str {
        "ib"
    }

    fn check_memory(&self, bytes: usize) -> Result<(), OpenError> {
        check_memory(self.name(), bytes)
    }

    fn keep(&self, sources: &[Arc<Region>]) -> Result<(), OpenError> {
        self.resources.keep(sources)
    }

    fn prepare(&self, _: Which, endpoint: Endpoint) -> Result<Box<dyn Half>, OpenError> {
        Ok(Box::new(self.half(endpoint)?))
    }

    fn accept(&self, endpoint: Endpoint, end: &str, _: IpAddr) -> Result<Accepted, OpenError> {
        let peer: IbEnd = opening::read("ib", end)?;
        let half = self.half(endpoint)?;
        let end = opening::write(&half.end());
        let made = Made::Link(half.connect(&peer)?);
        Ok(Accepted { end, made })
    }

    /// The first call per GPU probes a write through a connection of the NIC with itself. If the
    /// probe or the allocation fails, a warning says why, and later slots for the GPU are in host
    /// memory.
    fn device_slots(
        &self,
        gpu: Option<u32>,
        bytes: usize,
        make: &DeviceSlots<'_>,
    ) -> Option<Arc<Region>> {
        let known = self
            .direct()
            .iter()
            .find_map(|(g, is)| (*g == gpu).then_some(*is));
        if !self.keys.gpudirect || known == Some(false) {
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
                    let (label, name) = (&self.label, self.name());
                    tracing::info!(
                        "{label}: its slots are in the memory of {device}, where a write through \
                         {name} was seen"
                    );
                    self.direct().push((gpu, true));
                }
                Some(region)
            }
            Err(why) => {
                self.no_device_slots(gpu, &why);
                None
            }
        }
    }

    fn no_device_slots(&self, gpu: Option<u32>, why: &str) {
        let mut direct = self.direct();
        direct.retain(|(g, _)| *g != gpu);
        direct.push((gpu, false));
        let label = &self.label;
        tracing::warn!("{label}: gpudirect: its slots are in the host's memory: {why}");
    }
}

impl NicKeys for IbKeys {
    fn facts(&self) -> NicFacts<'_> {
        NicFacts {
            fabric: "ib",
            provider: None,
            label: format!("{}:{}", self.device, self.port),
            place: NicPlace::Device(&self.device, self.port),
            place_keys: &["device", "port"],
            library: "libibverbs",
            hardware: "RDMA device",
            listen: None,
            locks_memory: true,
            shares_threads: false,
            connections: self.queue_pairs,
            connections_key: "queue_pairs",
            connections_usual: QUEUE_PAIRS,
            post_up_to: POST_UP_TO,
        }
    }

    fn layers(&self, link: &str, ip: &str) -> FabricLayers {
        FabricLayers::reliable_connection(link, ip)
    }

    fn choose(&mut self, nic: FoundNic<'_>) -> Option<String> {
        self.port = nic.port?;
        nic.name.clone_into(&mut self.device);
        Some(self.device.clone())
    }

    /// The depths follow from the connection's slots, MTU and GID from the peer.
    fn settle(&mut self) {}

    fn check(&self, entry: NicEntry) -> Vec<KeyProblem> {
        let mut all = Vec::new();
        if !entry.is_group && name_of(|c| "_-.".contains(c), NO_DEVICE)(&self.device, &()).is_err()
        {
            let [wrong, right] = NO_DEVICE;
            all.push(KeyProblem::new("device", format!("device {wrong}"), right));
        }
        if self.gpudirect && !entry.on_accelerator {
            all.push(KeyProblem::new(
                "gpudirect",
                "a frontend has no slots for a GPU to read",
                "remove `gpudirect`; it belongs into the accelerator's file",
            ));
        } else if self.gpudirect && entry.gpu.is_none() {
            all.push(KeyProblem::new(
                "gpudirect",
                "`gpudirect` places slots in the memory of a GPU, and none is named",
                "add `gpu: N`, the one that reads them",
            ));
        }
        if let Some(depth) = self.send_depth.fixed()
            && self.signal_every > depth / 2
        {
            let (every, half) = (self.signal_every, depth / 2);
            all.push(KeyProblem::new(
                "signal_every",
                format!("one write in {every} is signaled, in a send queue of {depth}"),
                format!("set signal_every to at most half of send_depth, {half}"),
            ));
        }
        if let (Some(depth), Some(slots)) = (self.receive_depth.fixed(), entry.slots)
            && let least = slots + OWN_RECEIVES as usize
            && (depth as usize) < least
        {
            all.push(KeyProblem::new(
                "receive_depth",
                format!(
                    "{depth} receives do not cover {slots} slots and {OWN_RECEIVES} of their own"
                ),
                format!("set receive_depth to at least {least}, or to `auto`"),
            ));
        }
        all
    }

    fn open(&self, purpose: NicUse<'_>) -> Result<(Box<dyn Nic>, Option<DataPort>), OpenError> {
        let device = IbDevice::open(self, &purpose.near)?;
        tracing::info!(
            "{} is up: {} Gbit/s, NUMA node {}",
            self.facts().label,
            device.gbps().map_or("?".to_owned(), |g| g.to_string()),
            purpose
                .near
                .nodes
                .first()
                .map_or("?".to_owned(), u32::to_string),
        );
        let resources = IbResources::new(device)?;
        let nic = IbNic::new(resources, self.clone(), purpose.label.to_owned());
        Ok((Box::new(nic), None))
    }
}

impl Half for IbConnection {
    fn end(&self) -> String {
        opening::write(&IbConnection::end(self))
    }

    fn connect(self: Box<Self>, end: String, _: Duration) -> Connecting {
        // Connects at once: the accelerator's end is there already.
        Box::pin(async move { IbConnection::connect(*self, &opening::read("ib", &end)?) })
    }
}
