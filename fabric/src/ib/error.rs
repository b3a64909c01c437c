//! Errors of opening an InfiniBand device and of making a connection.

/// Why a device or connection cannot be made: the device, and the key, limit or verb.
#[derive(Debug, thiserror::Error)]
pub enum IbError {
    /// A failed verb, an exceeded limit, a missing library or device.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// A configured value that this device or this machine does not support.
    #[error("{device}: {key}: {problem}")]
    Setting {
        /// The device.
        device: String,
        /// Key of the NIC's entry in the configuration.
        key: &'static str,
        /// What is wrong, the limit, and the remedy.
        problem: String,
    },
    /// The port is not active.
    #[error(
        "{device} port {port} is not active ({state}): check the cable, the switch and `ip link`"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Port state as libibverbs names it.
        state: String,
    },
    /// A field of the peer's end does not fit this connection.
    #[error("the peer's end of a queue pair makes no sense: {field} is {value}, {wanted}")]
    Peer {
        /// Field of the peer's message.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The condition for a valid value.
        wanted: String,
    },
    /// Memory for descriptor cells cannot be allocated.
    #[error(transparent)]
    Region(#[from] crate::RegionError),
    /// Starting a thread, opening a descriptor or drawing random bytes has failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
}
