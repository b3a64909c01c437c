//! Values with several forms in YAML: a port or address, scalars of any type.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};

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

/// Value of a setting that is passed on to LoadGen as text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be true, false, a number or a text")]
enum Scalar {
    Bool(bool),
    Int(i64),
    /// LoadGen's seeds have 64 bits; as an `f64` they would be other seeds.
    Seed(u64),
    Float(f64),
    Text(String),
}

pub(super) fn scalars<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let text = |(key, value)| {
        let value = match value {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(value) => value.to_string(),
            Scalar::Seed(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Text(value) => value,
        };
        (key, value)
    };
    let all = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
    Ok(all.into_iter().map(text).collect())
}
