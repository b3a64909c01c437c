//! A NIC of a libfabric provider, for both ends.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use super::{
    Dialling, OfiCfgs, OfiConnection, OfiDevice, OfiEnd, OfiKeys, OfiResources,
    device::locks_memory,
};
use crate::{
    Endpoint, Link, OpenError, Region,
    entry::{
        CONNECTIONS, DataPort, FabricLayers, FoundNic, KeyProblem, NicEntry, NicFacts, NicKeys,
        NicPlace, NicUse, POST_UP_TO,
    },
    ib::check_memory,
    keys::Auto,
    opening::{self, Accepted, Connecting, Half, Made, Nic, Which},
    os::lock,
};

/// Number of polls without a pause. Later pauses double from `SHORTEST` to `LONGEST`.
const EAGER: u32 = 64;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(8);
/// The deadline expires only after `FAIR` polls, or after `MOST` times its duration.
const FAIR: u32 = 200;
const MOST: u32 = 3;

/// Socket providers, whose domains are network interfaces.
const SOCKETS: [&str; 4] = ["tcp", "net", "sockets", "udp"];

/// A libfabric NIC that opens connections.
#[derive(Debug)]
pub struct OfiNic {
    /// The NIC's domain and registrations.
    pub resources: Arc<OfiResources>,
    /// Payloads of at most this many bytes are copied at `post`.
    pub inline_bytes: u32,
}

impl OfiNic {
    fn half(&self, endpoint: Endpoint) -> Result<OfiConnection, OpenError> {
        let cfgs = OfiCfgs::resolve(self.resources.device(), &endpoint, self.inline_bytes)?;
        OfiConnection::prepare(&self.resources, endpoint, &cfgs)
    }
}

impl Nic for OfiNic {
    fn fabric(&self) -> &'static str {
        "ofi"
    }

    /// Only a NIC that writes the slots itself needs them locked.
    fn check_memory(&self, bytes: usize) -> Result<(), OpenError> {
        let device = self.resources.device();
        match device.locks_memory() {
            true => check_memory(&device.name(), bytes),
            false => Ok(()),
        }
    }

    fn keep(&self, sources: &[Arc<Region>]) -> Result<(), OpenError> {
        self.resources.keep(sources)
    }

    fn prepare(&self, _: Which, endpoint: Endpoint) -> Result<Box<dyn Half>, OpenError> {
        Ok(Box::new(self.half(endpoint)?))
    }

    /// The peer sends first.
    fn accept(&self, endpoint: Endpoint, end: &str, _: IpAddr) -> Result<Accepted, OpenError> {
        let peer: OfiEnd = opening::read("ofi", end)?;
        let half = self.half(endpoint)?;
        let end = opening::write(half.end());
        let made = Made::Link(half.accept(&peer)?);
        Ok(Accepted { end, made })
    }
}

impl OfiKeys {
    fn uses_sockets(&self) -> bool {
        SOCKETS.iter().any(|s| self.provider.starts_with(s))
    }
}

impl NicKeys for OfiKeys {
    fn facts(&self) -> NicFacts<'_> {
        let address = self.address.map(|a| a.to_string());
        let nic = self.domain.clone().or(address).unwrap_or_default();
        let domain = self.domain.as_deref().unwrap_or_default();
        NicFacts {
            fabric: "ofi",
            provider: Some(&self.provider),
            label: format!("{}:{nic}", self.provider),
            place: match self.address {
                Some(address) => NicPlace::Address(address),
                // EFA names the domain of `rdmap0s6` `rdmap0s6-rdm`.
                None => NicPlace::Device(domain.strip_suffix("-rdm").unwrap_or(domain), 1),
            },
            place_keys: &["domain", "address"],
            library: "libfabric",
            hardware: match self.uses_sockets() {
                true => "interface",
                false => "RDMA device",
            },
            listen: None,
            locks_memory: locks_memory(&self.provider),
            shares_threads: false,
            connections: self.connections.fixed().unwrap_or(CONNECTIONS),
            connections_key: "connections",
            connections_usual: CONNECTIONS,
            post_up_to: self
                .post_from_issue_thread_up_to
                .fixed()
                .unwrap_or(POST_UP_TO),
        }
    }

    fn layers(&self, link: &str, ip: &str) -> FabricLayers {
        let (transport, network) = match self.provider.split(';').next().unwrap_or_default() {
            "verbs" => return FabricLayers::reliable_connection(link, ip),
            "tcp" | "net" | "sockets" => ("TCP", ip),
            "udp" => ("UDP", ip),
            "efa" => ("SRD", "EFA"),
            "cxi" => ("Portals", "Slingshot"),
            "psm2" => ("PSM2", "Omni-Path"),
            "opx" => ("OPX", "Omni-Path"),
            other => (other, ""),
        };
        FabricLayers::new(transport, network, link)
    }

    fn library_version(&self) -> Option<String> {
        super::device::library_version()
    }

    fn connections_mut(&mut self) -> Option<&mut Auto<usize>> {
        Some(&mut self.connections)
    }

    fn choose(&mut self, nic: FoundNic<'_>) -> Option<String> {
        let domain = if self.uses_sockets() {
            self.address = Some(nic.address?);
            nic.netdev?.to_owned()
        } else {
            nic.port?;
            let suffix = if self.provider == "efa" { "-rdm" } else { "" };
            format!("{}{suffix}", nic.name)
        };
        self.domain = Some(domain.clone());
        Some(domain)
    }

    fn settle(&mut self) {
        let NicFacts {
            connections,
            post_up_to,
            ..
        } = self.facts();
        self.connections = Auto::Fixed(connections);
        self.post_from_issue_thread_up_to = Auto::Fixed(post_up_to);
    }

    fn check(&self, entry: NicEntry) -> Vec<KeyProblem> {
        if self.domain.is_some() || self.address.is_some() || entry.is_group {
            return Vec::new();
        }
        let provider = &self.provider;
        vec![KeyProblem::new(
            "",
            "an `ofi` NIC needs `domain`, or the `address` that it has",
            format!("add `domain: NAME`: `fi_info -p '{provider}'` lists them"),
        )]
    }

    fn open(&self, purpose: NicUse<'_>) -> Result<(Box<dyn Nic>, Option<DataPort>), OpenError> {
        let device = OfiDevice::open(self, &purpose.near)?;
        device.check(purpose.connections)?;
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
        let nic = OfiNic {
            resources: OfiResources::new(device)?,
            inline_bytes: self.inline_bytes,
        };
        Ok((Box::new(nic), None))
    }
}

impl Half for OfiConnection {
    fn end(&self) -> String {
        opening::write(OfiConnection::end(self))
    }

    fn connect(self: Box<Self>, end: String, deadline: Duration) -> Connecting {
        Box::pin(async move { dial(*self, &opening::read("ofi", &end)?, deadline).await })
    }
}

/// A connection whose first message is in flight, shared with the polling thread. A caller that
/// gives up drops the connection while the thread still polls.
struct SharedDialling(Arc<Mutex<Option<Dialling>>>);

impl SharedDialling {
    fn take(&self) -> Option<Dialling> {
        lock(&self.0).take()
    }
}

impl Drop for SharedDialling {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Polls until the message has crossed both ways, or the deadline has passed. A process that was
/// not scheduled has not waited: the deadline also requires a minimum number of polls.
fn poll(dialling: &Mutex<Option<Dialling>>, deadline: Duration) -> Result<(), OpenError> {
    let started = Instant::now();
    let mut pause = SHORTEST;
    for looks in 0.. {
        // Only this thread polls; an empty slot means that the caller has given up.
        let mut slot = lock(dialling);
        let Some(crossed) = slot.as_mut().map(Dialling::step) else {
            break;
        };
        drop(slot);
        let waited = started.elapsed();
        let late = waited >= deadline && (looks >= FAIR || waited >= MOST * deadline);
        if crossed? || late {
            break;
        }
        if looks < EAGER {
            thread::yield_now();
        } else {
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }
    Ok(())
}

/// Connects to the peer and waits until a message has crossed both ways. The provider may block, so
/// a second thread drives it.
async fn dial(half: OfiConnection, peer: &OfiEnd, deadline: Duration) -> Result<Link, OpenError> {
    let system = OpenError::system("the thread that connects");
    let shared = SharedDialling(Arc::new(Mutex::new(Some(half.dial(peer)?))));
    let polled = shared.0.clone();
    spawn_blocking(move || poll(&polled, deadline))
        .await
        .map_err(|e| system(io::Error::other(e)))??;
    match shared.take() {
        Some(dialling) if dialling.is_up() => Ok(dialling.link()),
        Some(dialling) => Err(dialling.too_late(deadline)),
        None => Err(system(io::Error::other("it has gone"))),
    }
}
