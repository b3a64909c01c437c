//! A local TCP address as a NIC: the frontend connects from it, the accelerator listens on it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use super::{ConnectionSecret, Preamble, TcpDevice, TcpKeys, device::unreachable, link};
use crate::{
    Endpoint, OpenError,
    entry::{
        CONNECTIONS, DataPort, FabricLayers, KeyProblem, LinkSocket, NicEntry, NicFacts, NicKeys,
        NicPlace, NicUse, POST_UP_TO,
    },
    keys::Auto,
    opening::{Accepted, Connecting, Half, Made, Nic, Which},
    os::Congestion,
};

/// A local address and the settings of its connections.
#[derive(Clone, Debug)]
pub struct TcpNic {
    /// The address that the frontend binds, or that of the accelerator's data port.
    pub at: SocketAddr,
    /// Congestion control; `None` for the system's default.
    pub congestion: Option<String>,
    /// Keys of the NIC, with the sizes of its connections.
    pub keys: TcpKeys,
}

/// A connection whose key is drawn.
struct TcpHalf {
    nic: TcpNic,
    which: Which,
    key: [u8; 32],
    endpoint: Endpoint,
}

impl std::fmt::Debug for TcpHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpHalf({:?} from {})", self.which, self.nic.at)
    }
}

impl Nic for TcpNic {
    fn fabric(&self) -> &'static str {
        "tcp"
    }

    fn check(&self, _: Endpoint) -> Result<(), OpenError> {
        let ip = self.at.ip();
        // Binds a port of the system's choice for a moment: only the address matters.
        let bound = UdpSocket::bind((ip, 0));
        bound
            .map(drop)
            .map_err(|e| OpenError::Refused(format!("{ip} is no address of this machine: {e}")))
    }

    fn prepare(&self, which: Which, endpoint: Endpoint) -> Result<Box<dyn Half>, OpenError> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(OpenError::system("random key"))?;
        Ok(Box::new(TcpHalf {
            nic: self.clone(),
            which,
            key,
            endpoint,
        }))
    }

    fn accept(&self, _: Endpoint, end: &str, reached: IpAddr) -> Result<Accepted, OpenError> {
        let mut key = [0; 32];
        hex::decode_to_slice(end, &mut key)
            .map_err(|_| OpenError::Refused("its key is not 64 hexadecimal digits".to_owned()))?;
        let address = reachable(self.at, reached).ok_or_else(|| {
            OpenError::Refused(format!(
                "came over IPv6, and `nics[].listen` is {}: listen on [::], which takes both, or \
                 name an IPv4 address in accelerators[].control",
                self.at
            ))
        })?;
        Ok(Accepted {
            end: address.to_string(),
            made: Made::Awaited(ConnectionSecret { key, address }),
        })
    }
}

impl TcpKeys {
    /// The local or listening address. The port is 0 on a frontend.
    fn at(&self) -> SocketAddr {
        // The keys' check has refused an entry without `address` or `listen`.
        let ip = self.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        self.listen.unwrap_or(SocketAddr::new(ip, 0))
    }
}

impl NicKeys for TcpKeys {
    fn facts(&self) -> NicFacts<'_> {
        let at = self.at();
        NicFacts {
            fabric: "tcp",
            provider: None,
            label: match at.port() {
                0 => at.ip().to_string(),
                _ => at.to_string(),
            },
            place: NicPlace::Address(at.ip()),
            place_keys: &["address", "listen"],
            library: "kernel TCP",
            hardware: "interface",
            listen: self.listen,
            locks_memory: false,
            shares_threads: true,
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
        FabricLayers::new("TCP", ip, link)
    }

    fn connections_mut(&mut self) -> Option<&mut Auto<usize>> {
        Some(&mut self.connections)
    }

    fn settle(&mut self) {
        let NicFacts {
            connections,
            post_up_to,
            ..
        } = self.facts();
        self.connections = Auto::Fixed(connections);
        self.post_from_issue_thread_up_to = Auto::Fixed(post_up_to);
        if let Ok(chosen) = self.congestion.choose() {
            self.congestion = chosen.map_or(Congestion::System, Congestion::Named);
        }
    }

    fn check(&self, entry: NicEntry) -> Vec<KeyProblem> {
        let address = ("address", self.address.is_some(), "address: 127.0.0.1");
        let listen = ("listen", self.listen.is_some(), "listen: 127.0.0.1:7410");
        let ((wanted, has, example), (wrong, has_wrong, _), node) = match entry.on_accelerator {
            false => (address, listen, "a frontend"),
            true => (listen, address, "an accelerator"),
        };
        let problem = match (has_wrong, has) {
            (true, _) => KeyProblem::new(
                wrong,
                format!("a TCP NIC of {node} has no `{wrong}`"),
                format!("write `{wanted}`, as in `{example}`"),
            ),
            (false, true) => return Vec::new(),
            (false, false) => KeyProblem::new(
                "",
                format!(
                    "a NIC needs `{wanted}` (TCP), `device` (InfiniBand, RoCE) or `ofi` (libfabric)"
                ),
                format!("add one of them, as in `{example}` or `device: mlx5_0`"),
            ),
        };
        vec![problem]
    }

    fn open(&self, purpose: NicUse<'_>) -> Result<(Box<dyn Nic>, Option<DataPort>), OpenError> {
        let congestion = self.congestion.choose().map_err(|e| {
            let name = &self.congestion;
            OpenError::Local(format!(
                "cannot have congestion control `{name}`: {e}; `sysctl \
                 net.ipv4.tcp_available_congestion_control` lists what there is, and \
                 `net.ipv4.tcp_allowed_congestion_control` what everybody may have \
                 (`nics[].congestion`)"
            ))
        })?;
        tracing::debug!(
            "data connections of {}: congestion control {}",
            self.facts().label,
            congestion.as_deref().unwrap_or("as the system has it")
        );
        let mut at = self.at();
        let keys = TcpKeys {
            user_timeout_ms: purpose.timeout_ms.min(u64::from(u32::MAX)) as u32,
            ..self.clone()
        };
        let port = match purpose.listens {
            true => {
                let listener = TcpDevice::listen(at, congestion.as_deref())?;
                // With the port that the system chose.
                at = listener.local_addr().unwrap_or(at);
                let keys = keys.clone();
                let link = move |stream, endpoint| link(stream, endpoint, &keys);
                Some((listener, Box::new(link) as LinkSocket))
            }
            false => None,
        };
        let nic = TcpNic {
            at,
            congestion,
            keys,
        };
        Ok((Box::new(nic), port))
    }
}

impl Half for TcpHalf {
    fn end(&self) -> String {
        hex::encode(self.key)
    }

    fn connect(self: Box<Self>, end: String, deadline: Duration) -> Connecting {
        Box::pin(async move {
            let TcpHalf {
                nic,
                which,
                key,
                endpoint,
            } = *self;
            let address: SocketAddr = end
                .parse()
                .map_err(|_| OpenError::Refused(format!("its data port `{end}` is no address")))?;
            let failed = |source| unreachable(address, &source);
            let preamble = Preamble::new(which.connection, which.epoch).map_err(failed)?;
            let secret = ConnectionSecret { key, address };
            let congestion = nic.congestion.as_deref();
            let local = nic.at.ip();
            let stream =
                TcpDevice::connect(local, address, &preamble, &secret, congestion, deadline).await;
            link(stream?, endpoint, &nic.keys).map_err(failed)
        })
    }
}

/// Address of the data port, IPv4-mapped addresses as IPv4. A port on any address gets the IP
/// address by which the control connection came; `None` where the port is on any IPv4 address and
/// the frontend came over IPv6.
fn reachable(mut configured: SocketAddr, reached: IpAddr) -> Option<SocketAddr> {
    if configured.ip().is_unspecified() {
        if configured.is_ipv4() && reached.is_ipv6() {
            return None;
        }
        configured.set_ip(reached);
    }
    configured.set_ip(configured.ip().to_canonical());
    Some(configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_that_cannot_be_had_is_refused_by_name() {
        let keys = TcpKeys {
            congestion: Congestion::Named("no_such_one".to_owned()),
            ..TcpKeys::default()
        };
        let refused = keys.open(NicUse::default()).err().expect("there is none");
        let text = refused.to_string();
        for part in ["`no_such_one`", "tcp_available_congestion_control"] {
            assert!(text.contains(part), "no {part}: {text}");
        }
    }
}
