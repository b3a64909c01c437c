//! The fabric of everything that libfabric has a provider for: EFA, Slingshot, Omni-Path, and
//! sockets for trying it. libfabric is found at run time (the `ofi` crate).
//!
//! | role | here |
//! | --- | --- |
//! | device | [`OfiDevice`]: one NIC, as its provider offers it |
//! | configuration | [`OfiCfgs`]: what a connection is made with, within the provider's limits |
//! | resources | [`OfiResources`]: the domain, and memory that is sent from |
//! | connection | [`OfiConnection`]: one endpoint, first without a peer, then two halves |
//!
//! ```text
//!   Tx: post .. post, flush                               Rx: poll
//!   form      what crosses                                what the receiver sees
//!   completion [payload | imm]                       ==>  slot <- payload; imm, length
//!   data       [payload | imm, length]               ==>  slot <- payload; imm, length
//!   after      [payload] [nothing | imm, length]     ==>  slot <- payload, then imm, length
//!   cell       [payload] [16 bytes | imm]            ==>  slot <- payload, cell <- length, imm
//! ```
//!
//! How the contract is kept here:
//!
//! * **Windows and quarantine.** Each connection has an endpoint of its own. Closing a region does
//!   not end a write that has begun, and a write by a closed key costs every other connection of
//!   the same endpoint its socket; what ends both is closing the endpoint, and that has to be one
//!   connection's affair. An endpoint is closed when both halves are gone, before its memory is.
//! * **Lengths.** libfabric promises no length for a write that arrives. Where the data has 8 bytes
//!   they hold it; where it has 4, the provider's completion has to have it, which the first
//!   message of a connection finds out, or a cell beside the slot has it.
//! * **Two writes** where the provider is layered over sockets by `ofi_rxm`: that takes its process
//!   down when a peer is lost in the middle of a write that brings data. An empty one has none.
//! * **Order.** A provider that keeps none takes no parts, and says goodbye with the number of
//!   writes that must have come before.
//! * **Losses.** Some providers make a socket again without a word when it was lost, with what was
//!   on its way. The sender notices at its next write (no room, though nothing is under way), the
//!   receiver by the number of writes that goes with each echo.
//! * **Warm.** A connection is not up before a message has crossed it in both directions.

mod cfgs;
mod connection;
mod device;
mod error;
mod nap;
mod resources;
mod rx;
mod shared;
mod shuffle;
mod tx;

pub use crate::wire::{OfiEnd, OfiForm, OfiRegion};
pub use cfgs::OfiCfgs;
pub use connection::{Dialling, OfiConnection};
pub use device::{OfiDevice, OfiDeviceCfgs};
pub use error::OfiError;
pub use resources::OfiResources;

/// Messages of the fabric itself: control kinds that nobody above knows, with 28 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// The last message. So many writes came before it.
    Close(u32),
    /// So many writes came before this.
    Count(u32),
    /// The first message, of so many bytes: answer it.
    Hello(u32),
    /// The answer, likewise.
    Answer(u32),
}

/// The bits of a message's value.
const VALUE_MASK: u32 = 0x0fff_ffff;

impl Own {
    fn bits(self) -> u32 {
        let (kind, value) = match self {
            Own::Close(v) => (2, v),
            Own::Count(v) => (3, v),
            Own::Hello(v) => (4, v),
            Own::Answer(v) => (5, v),
        };
        1 << 31 | kind << 28 | (value & VALUE_MASK)
    }

    fn of(bits: u32) -> Option<Own> {
        let value = bits & VALUE_MASK;
        match bits >> 28 {
            0b1010 => Some(Own::Close(value)),
            0b1011 => Some(Own::Count(value)),
            0b1100 => Some(Own::Hello(value)),
            0b1101 => Some(Own::Answer(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_messages_are_no_writes_and_no_echoes() {
        for own in [
            Own::Close(7),
            Own::Count(0),
            Own::Hello(VALUE_MASK),
            Own::Answer(1),
        ] {
            assert_eq!(Own::of(own.bits()), Some(own));
            let imm = crate::Imm::from_bits(own.bits());
            assert!(imm.is_control() && imm.message().is_none(), "{own:?}");
        }
        let echo = crate::Imm::control(crate::Control::EchoReply(5));
        assert_eq!(Own::of(echo.bits()), None);
    }
}
