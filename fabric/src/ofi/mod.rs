//! The libfabric fabric: EFA, Slingshot, Omni-Path, and sockets for trials. The `ofi` crate loads
//! libfabric at run time.
//!
//! | role | here |
//! | --- | --- |
//! | device | [`OfiDevice`]: one NIC of a libfabric provider |
//! | configuration | [`OfiKeys`]: keys of a NIC; [`OfiCfgs`]: sizes of a connection |
//! | resources | [`OfiResources`]: the domain, and registrations of send sources |
//! | connection | [`OfiConnection`]: one endpoint, first without a peer, then two halves |
//!
//! ```text
//!   Tx: post .. post, flush                               Rx: poll
//!   form       what crosses                              what the receiver sees
//!   completion [payload | imm]                       ==>  slot <- payload; imm, length
//!   data       [payload | imm, length]               ==>  slot <- payload; imm, length
//!   after      [payload] [nothing | imm, length]     ==>  slot <- payload, then imm, length
//!   cell       [payload] [16 bytes | imm]            ==>  slot <- payload, cell <- length, imm
//! ```
//!
//! How this module fulfils the contract:
//!
//! * **Windows and quarantine.** Each connection has its own endpoint. Closing a region does not
//!   stop a write in progress, and a write with a closed key breaks the socket of every connection
//!   on the endpoint. Closing the endpoint stops both. The endpoint closes when both halves are
//!   dropped, before its memory is freed.
//! * **Lengths.** libfabric guarantees no length for an arriving write. With 8 bytes of completion
//!   data, the data carries the length. With 4 bytes, the provider's completion reports the length,
//!   which a connection's first message verifies, or a cell beside the slot carries the length.
//! * **Two writes** for providers layered by `ofi_rxm`: `ofi_rxm` crashes the process if a peer
//!   fails during a payload write with data. The second write is empty.
//! * **Order.** On a provider without write ordering, a connection takes no parts, and its goodbye
//!   carries the number of writes before it.
//! * **Losses.** Some providers reconnect a lost socket silently and lose its writes. The sender
//!   detects the loss at its next write (no room, yet nothing in flight), the receiver by the write
//!   count that precedes each echo.
//! * **Warm-up.** A connection is up once a message has crossed it in both directions.

mod cfgs;
mod connection;
mod device;
mod keys;
mod nap;
mod nic;
mod resources;
mod rx;
mod shared;
mod shuffle;
mod tx;

pub use crate::wire::{OfiEnd, OfiForm, OfiRegion};
pub use cfgs::OfiCfgs;
pub use connection::{Dialling, OfiConnection};
pub use device::OfiDevice;
pub use keys::OfiKeys;
pub use resources::OfiResources;

/// Messages internal to this fabric: control kinds with a 28-bit value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnMessage {
    /// The goodbye, a connection's last message, with the number of writes before it.
    Close(u32),
    /// The number of writes before this message.
    Count(u32),
    /// The first message, with its length in bytes. The peer answers it.
    Hello(u32),
    /// The answer to the first message, with its length in bytes.
    Answer(u32),
}

/// Mask of a message's 28-bit value.
const VALUE_MASK: u32 = 0x0fff_ffff;

impl OwnMessage {
    fn bits(self) -> u32 {
        let (kind, value) = match self {
            OwnMessage::Close(v) => (2, v),
            OwnMessage::Count(v) => (3, v),
            OwnMessage::Hello(v) => (4, v),
            OwnMessage::Answer(v) => (5, v),
        };
        1 << 31 | kind << 28 | (value & VALUE_MASK)
    }

    fn of(bits: u32) -> Option<OwnMessage> {
        let value = bits & VALUE_MASK;
        match bits >> 28 {
            0b1010 => Some(OwnMessage::Close(value)),
            0b1011 => Some(OwnMessage::Count(value)),
            0b1100 => Some(OwnMessage::Hello(value)),
            0b1101 => Some(OwnMessage::Answer(value)),
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
            OwnMessage::Close(7),
            OwnMessage::Count(0),
            OwnMessage::Hello(VALUE_MASK),
            OwnMessage::Answer(1),
        ] {
            assert_eq!(OwnMessage::of(own.bits()), Some(own));
            let imm = crate::Imm::from_bits(own.bits());
            assert!(imm.is_control() && imm.message().is_none(), "{own:?}");
        }
        let echo = crate::Imm::control(crate::Control::EchoReply(5));
        assert_eq!(OwnMessage::of(echo.bits()), None);
    }
}
