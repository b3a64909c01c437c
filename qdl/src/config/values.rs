//! A value with several forms in YAML: a port or address.

use std::net::{Ipv4Addr, SocketAddr};

use fabric::keys::parse;
use serde::{Deserialize, Deserializer};

/// Decodes an address with a port; a bare port is one of 127.0.0.1.
pub(super) fn port_or_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let port = text.parse().map(|port| (Ipv4Addr::LOCALHOST, port).into());
    let example = "metrics: 127.0.0.1:9464";
    let address = port.or_else(|_| parse(&text, "a port, or an IP address with a port", example));
    address.map(Some)
}
