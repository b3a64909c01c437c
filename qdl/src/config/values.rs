//! Values with several forms in YAML: a number or the word `auto`, addresses, scalars of any type.

use std::{
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, de};

/// Separates the error from the remedy in the message of a rule or type; `Findings::garde` and
/// `describe` split the message. No key contains this character, and the parser does not escape it.
pub(super) const HELP: &str = "\u{2016}";

/// A number, or `auto`, which leaves the choice to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// `auto`: the program chooses at the start.
    #[default]
    Auto,
    /// The number.
    Fixed(T),
}

impl<T: Copy> Auto<T> {
    pub(crate) fn fixed(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Fixed(value) => Some(value),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Auto::Auto => f.write_str("auto"),
            Auto::Fixed(value) => value.fmt(f),
        }
    }
}

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        word_or_number(deserializer, "auto").map(|value| match value {
            None => Auto::Auto,
            Some(value) => Auto::Fixed(value),
        })
    }
}

pub(super) fn never_or_number<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    word_or_number(deserializer, "never")
}

pub(super) fn system_or_number<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    word_or_number(deserializer, "system")
}

pub(super) fn ip_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<IpAddr>, D::Error> {
    parse_text(deserializer, "an IP address", "address: 127.0.0.1").map(Some)
}

pub(super) fn socket_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SocketAddr, D::Error> {
    parse_text(
        deserializer,
        "an IP address with a port",
        "listen: 127.0.0.1:7400",
    )
}

pub(super) fn some_socket_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    socket_address(deserializer).map(Some)
}

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

fn parse_text<'de, T: FromStr, D: Deserializer<'de>>(
    deserializer: D,
    what: &str,
    example: &str,
) -> Result<T, D::Error> {
    parse(&String::deserialize(deserializer)?, what, example)
}

fn parse<T: FromStr, E: de::Error>(text: &str, what: &str, example: &str) -> Result<T, E> {
    text.parse().map_err(|_| {
        let help = format!("write {what}, as in `{example}`");
        E::custom(format!("`{text}` is not {what}{HELP}{help}"))
    })
}

/// Decodes a number, or `word` as `None`.
fn word_or_number<'de, T, D>(deserializer: D, word: &'static str) -> Result<Option<T>, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    struct Visitor<T> {
        word: &'static str,
        number: PhantomData<T>,
    }

    impl<T: TryFrom<u64>> de::Visitor<'_> for Visitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "`{}` or a number, not negative", self.word)
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
            T::try_from(value)
                .map(Some)
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
            match u64::try_from(value) {
                Ok(value) => self.visit_u64(value),
                Err(_) => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
            }
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
            if value == self.word {
                Ok(None)
            } else {
                Err(E::invalid_value(de::Unexpected::Str(value), &self))
            }
        }
    }

    deserializer.deserialize_any(Visitor {
        word,
        number: PhantomData,
    })
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
