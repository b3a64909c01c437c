//! What keeps a device or a connection of this fabric from being made.

use crate::Broken;

/// Each names the NIC, and the key, limit or call at fault.
#[derive(Debug, thiserror::Error)]
pub enum OfiError {
    /// A call, a missing library, provider or NIC.
    #[error(transparent)]
    Ofi(#[from] ofi::Error),
    /// A configured value that this NIC, or this machine, cannot give.
    #[error("{nic}: {key}: {problem}")]
    Setting {
        /// The NIC.
        nic: String,
        /// Key in the configuration.
        key: &'static str,
        /// What is wrong, which limit it exceeds, and what to do.
        problem: String,
    },
    /// Memory that a NIC is to write is more than there is, or than may be locked.
    #[error(transparent)]
    Memory(crate::ib::IbError),
    /// The peer announced an end that does not fit.
    #[error("the peer's end of a connection makes no sense: {field} is {value}, {wanted}")]
    Peer {
        /// Field of the message.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would make sense.
        wanted: String,
    },
    /// Memory for small payloads and cells.
    #[error(transparent)]
    Region(#[from] crate::RegionError),
    /// A descriptor or random bytes.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The first message did not come through.
    #[error("{provider}: no message has crossed to {peer}: {cause}")]
    NotWarm {
        /// The provider.
        provider: String,
        /// The peer's address in the provider's words.
        peer: String,
        /// Why.
        cause: Broken,
    },
}
