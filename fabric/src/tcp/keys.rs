//! Keys of a TCP NIC.

use std::net::{IpAddr, SocketAddr};

use garde::Validate;
use serde::{Deserialize, Serialize};

use crate::{
    entry::{MAX_CONNECTIONS, POST_UP_TO},
    keys::{
        Auto, auto_within, ip_address, some_socket_address, system_or_number, within, within_some,
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
