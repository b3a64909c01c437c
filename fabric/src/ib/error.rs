//! What keeps a device or a connection of this fabric from being made.

/// Each names the device, and the key, limit or verb at fault.
#[derive(Debug, thiserror::Error)]
pub enum IbError {
    /// A verb, a limit, a missing library or device.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// A configured value that this device, or this machine, cannot give.
    #[error("{device}: {key}: {problem}")]
    Setting {
        /// The device.
        device: String,
        /// Key of the NIC's entry in the configuration.
        key: &'static str,
        /// What is wrong, which limit it exceeds, and what to do.
        problem: String,
    },
    /// The port carries no traffic.
    #[error(
        "{device} port {port} is not active ({state}): check the cable, the switch and `ip link`"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state, in libibverbs' words.
        state: String,
    },
    /// The peer announced an end that does not fit.
    #[error("the peer's end of a queue pair makes no sense: {field} is {value}, {wanted}")]
    Peer {
        /// Field of the message.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What would make sense.
        wanted: String,
    },
    /// Memory for descriptor cells.
    #[error(transparent)]
    Region(#[from] crate::RegionError),
    /// A thread, a descriptor or random bytes.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}
