//! A local TCP address as a NIC: the frontend connects from it, the accelerator listens on it.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use super::{ConnectionSecret, Preamble, TcpDevice, TcpKeys, device::unreachable, link};
use crate::{
    Endpoint, OpenError,
    opening::{Accepted, Connecting, Half, Made, Nic, Which},
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
        getrandom::fill(&mut key).map_err(|e| OpenError::System {
            what: "random key",
            source: std::io::Error::other(e),
        })?;
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
