//! Keys of a TCP NIC.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{TcpDevice, TcpNic};
use crate::{
    Nic, OpenError,
    keys::{
        Auto, auto_within, ip_address, some_socket_address, system_or_number, within, within_some,
    },
    kinds::{
        CONNECTIONS, DataPort, KeyProblem, MAX_CONNECTIONS, NicEntry, NicFacts, NicKeys, NicPlace,
        NicUse, POST_UP_TO,
    },
    os::Congestion,
    with_defaults,
};

with_defaults! {
/// Keys of a TCP NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(default)]
#[garde(allow_unvalidated)]
pub struct TcpKeys {
    /// Frontend: local address of the data connections.
    #[serde(deserialize_with = "ip_address")]
    pub address: Option<IpAddr>,
    /// Accelerator: listening address and port of the data connections; with port 0 the system
    /// chooses the port.
    #[serde(deserialize_with = "some_socket_address")]
    pub listen: Option<SocketAddr>,
    /// Connections to each accelerator, 1 to 256; default `auto`, one for each thread of this NIC.
    /// The frontend's value applies to both ends.
    #[garde(custom(auto_within(1..=MAX_CONNECTIONS)))]
    pub connections: Auto<usize>,
    /// Payloads up to this many bytes are copied behind their header, 0 to 64 KiB; default 512.
    #[garde(custom(within(0..=65_536)))]
    pub inline_bytes: u32 = 512,
    /// Congestion control of the data connections on which this end sends. Default `auto`: the
    /// system's own, but CUBIC (or Reno) instead of BBR ([`Congestion`]). Other values: `system`,
    /// or a name that `net.ipv4.tcp_available_congestion_control` lists.
    pub congestion: Congestion = Congestion::Auto,
    /// `SO_SNDBUF` in bytes, 4 KiB to 1 GiB; default 1 MiB. `None` (`system`) leaves the size to
    /// the system, as does a size that the system does not grant (`net.core.wmem_max`). A send
    /// buffer smaller than the peer's receive buffer costs a third of the rate over loopback when
    /// the peer lags. Packets sent by the two ends' CPUs then overtake each other, and TCP takes
    /// the reordering for loss.
    #[serde(with = "system_or_number")]
    #[garde(custom(within_some(4096..=1 << 30)))]
    pub send_buffer_bytes: Option<usize> = Some(1 << 20),
    /// Frontend: maximum burst that the issuing thread posts, in payload bytes; default (`auto`)
    /// 16384. NIC threads post larger bursts; with 0, all. The minimum over all NICs applies.
    pub post_from_issue_thread_up_to: Auto<usize> = Auto::Fixed(POST_UP_TO),
    /// Not in a file: `SO_RCVBUF` in bytes, where the system allows the size
    /// (`net.core.rmem_max`). Otherwise, and with `None`, the kernel sizes the buffer, at first too
    /// small for one large payload.
    #[serde(skip)]
    pub receive_buffer_bytes: Option<usize> = Some(1 << 20),
    /// Not in a file: size of the receive staging buffer in bytes.
    #[serde(skip)]
    pub staging_bytes: usize = 256 << 10,
    /// Not in a file: `TCP_USER_TIMEOUT`, the time limit for unacknowledged data, in milliseconds.
    #[serde(skip)]
    pub user_timeout_ms: u32 = 2000,
}
}

impl TcpKeys {
    /// The local or listening address. The port is 0 on a frontend.
    fn at(&self) -> SocketAddr {
        // The check requires one of the two keys.
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

    fn check_ranges(&self) -> Result<(), garde::Report> {
        self.validate()
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
            OpenError::Socket(format!(
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
                Some((listener, keys.clone()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_that_cannot_be_had_is_refused_by_name() {
        let keys = TcpKeys {
            congestion: Congestion::Named("no_such_one".to_owned()),
            ..TcpKeys::default()
        };
        let refused = keys.open(NicUse::default()).expect_err("there is none");
        let text = refused.to_string();
        for part in ["`no_such_one`", "tcp_available_congestion_control"] {
            assert!(text.contains(part), "no {part}: {text}");
        }
    }
}
