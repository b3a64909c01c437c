//! Errors of opening a libfabric NIC and of making a connection.

use crate::Broken;

/// Why a NIC or connection cannot be used: names the NIC, and the key, limit or call.
#[derive(Debug, thiserror::Error)]
pub enum OfiError {
    /// A failed call, a missing library, provider or NIC.
    #[error(transparent)]
    Ofi(#[from] ofi::Error),
    /// A configured value that this NIC or this machine does not support.
    #[error("{nic}: {key}: {problem}")]
    Setting {
        /// The NIC.
        nic: String,
        /// Key in the configuration.
        key: &'static str,
        /// What is wrong, the limit, and the remedy.
        problem: String,
    },
    /// Memory for the peer's writes exceeds available memory or the limit on locked memory.
    #[error(transparent)]
    Memory(crate::ib::IbError),
    /// A field of the peer's end does not fit this connection.
    #[error("the peer's end of a connection makes no sense: {field} is {value}, {wanted}")]
    Peer {
        /// Field of the peer's message.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// The condition for a valid value.
        wanted: String,
    },
    /// Memory for small payloads and cells cannot be allocated.
    #[error(transparent)]
    Region(#[from] crate::RegionError),
    /// Opening a descriptor or drawing random bytes has failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The connection broke, or its deadline passed, before its first message was answered.
    #[error("{provider}: no message has crossed to {peer}: {cause}")]
    NotWarm {
        /// The provider.
        provider: String,
        /// The peer's address as the provider formats it.
        peer: String,
        /// Cause of the failure.
        cause: Broken,
    },
}
