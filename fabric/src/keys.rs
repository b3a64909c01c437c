//! Building blocks of a configuration's keys: defaults, values with several forms, and rules. A key
//! is written as it is read.

use std::{
    fmt::{self, Display},
    marker::PhantomData,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Separates the error from the remedy in the message of a rule or type. No key contains this
/// character, and the YAML parser does not escape it.
pub const HELP: &str = "\u{2016}";

/// Defines a struct with its [`Default`]. `= value` behind a field's type is the field's default,
/// where it is not the type's own.
#[macro_export]
macro_rules! with_defaults {
    (@) => {
        Default::default()
    };
    (@ $default:expr) => {
        $default
    };
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty $(= $default:expr)?,)*
    }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $crate::with_defaults!(@ $($default)?),)* }
            }
        }
    };
}

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
    /// The number; `None` for `auto`.
    pub fn fixed(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Fixed(value) => Some(value),
        }
    }
}

impl<T: Display> Display for Auto<T> {
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

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Auto::Auto => serializer.serialize_str("auto"),
            Auto::Fixed(value) => value.serialize(serializer),
        }
    }
}

/// Defines a module for `#[serde(with = ..)]`: a number, or a word as `None`.
macro_rules! numbers_or {
    ($($module:ident $word:literal;)*) => {$(
        #[doc = concat!("A number, or `", $word, "` as `None`.")]
        pub mod $module {
            use serde::{Deserializer, Serialize, Serializer};

            /// Reads the key.
            pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<T>, D::Error> {
                super::word_or_number(deserializer, $word)
            }

            /// Writes the key.
            pub fn serialize<T: Serialize, S: Serializer>(
                value: &Option<T>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                match value {
                    Some(value) => value.serialize(serializer),
                    None => serializer.serialize_str($word),
                }
            }
        }
    )*};
}

numbers_or! {
    never_or_number "never";
    system_or_number "system";
}

/// Reads an IP address.
pub(crate) fn ip_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<IpAddr>, D::Error> {
    parse_text(deserializer, "an IP address", "address: 127.0.0.1").map(Some)
}

/// Reads an IP address with a port.
pub fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse_text(
        deserializer,
        "an IP address with a port",
        "listen: 127.0.0.1:7400",
    )
}

/// Reads an IP address with a port, as a value that is not required.
pub(crate) fn some_socket_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    socket_address(deserializer).map(Some)
}

fn parse_text<'de, T: FromStr, D: Deserializer<'de>>(
    deserializer: D,
    what: &str,
    example: &str,
) -> Result<T, D::Error> {
    parse(&String::deserialize(deserializer)?, what, example)
}

/// Parses `text`, which must be `what`, as in `example`.
pub fn parse<T: FromStr, E: de::Error>(text: &str, what: &str, example: &str) -> Result<T, E> {
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

/// Rule: the number is in `range`.
pub fn within<T>(range: RangeInclusive<T>) -> impl FnOnce(&T, &()) -> garde::Result
where
    T: PartialOrd + Display,
{
    move |value, ()| check(value, &range)
}

/// Rule: the number, if there is one, is in `range`.
pub fn within_some<T>(range: RangeInclusive<T>) -> impl FnOnce(&Option<T>, &()) -> garde::Result
where
    T: PartialOrd + Display,
{
    move |value, ()| value.as_ref().map_or(Ok(()), |value| check(value, &range))
}

/// Rule: `auto`, or a number in `range`.
pub fn auto_within<T>(range: RangeInclusive<T>) -> impl FnOnce(&Auto<T>, &()) -> garde::Result
where
    T: PartialOrd + Display + Copy,
{
    move |value, ()| value.fixed().map_or(Ok(()), |value| check(&value, &range))
}

fn check<T: PartialOrd + Display>(value: &T, range: &RangeInclusive<T>) -> garde::Result {
    if range.contains(value) {
        Ok(())
    } else {
        Err(garde::Error::new(format!(
            "is {value}{HELP}it must be {} to {}",
            range.start(),
            range.end()
        )))
    }
}

/// Rule: a name of 1 to 63 letters, digits and characters that `also` accepts. `wrong` is the
/// error, `right` the remedy.
pub fn name_of(
    also: fn(char) -> bool,
    [wrong, right]: [&'static str; 2],
) -> impl FnOnce(&str, &()) -> garde::Result {
    move |value, ()| {
        let ok = |c: char| c.is_ascii_alphanumeric() || also(c);
        if (1..64).contains(&value.len()) && value.chars().all(ok) {
            Ok(())
        } else {
            Err(garde::Error::new(format!("{wrong}{HELP}{right}")))
        }
    }
}
