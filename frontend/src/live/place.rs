//! Where a run is shown: the value of `--live`.

use std::{net::SocketAddr, str::FromStr};

/// What `--live` alone stands for.
pub const DEFAULT: &str = "127.0.0.1:9417";

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the terminal that this program was started in.
    Terminal,
    /// As a page, at this address.
    Address(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "tui" {
            return Ok(Place::Terminal);
        }
        let address = text.parse().map(Place::Address);
        address.map_err(|_| {
            format!("expected ADDRESS:PORT, as in {DEFAULT}, or the word tui, not {text:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_the_word_tui() {
        assert_eq!("tui".parse(), Ok(Place::Terminal));
        assert!(matches!(
            DEFAULT.parse(),
            Ok(Place::Address(a)) if a.ip().is_loopback()
        ));
        assert!("[::1]:0".parse::<Place>().is_ok());
        let wrong = "9417".parse::<Place>().expect_err("no address");
        assert!(wrong.contains("ADDRESS:PORT"), "{wrong}");
    }
}
