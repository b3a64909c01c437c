//! Small types that the two ends of a connection exchange. The control session is authenticated and
//! carries [`IbEnd`], [`OfiEnd`] and [`Stream`].

use std::{fmt, net::Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Most slots of a window, bounded by the immediate's layout.
pub const MAX_SLOTS: usize = 8192;

/// The first bytes of a data connection.
pub const DATA_MAGIC: &[u8; 8] = b"QDLDATA2";

/// Whether a peer's first bytes begin a frame of the control plane.
pub fn is_control_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0, _, _, _, b'{', ..])
}

/// Longest description of an end, in bytes.
pub const MAX_END: usize = 1024;

/// Description of one end of a connection, as the control session carries it. `Debug` does not
/// print the text, which may hold a key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Name of the fabric: `tcp`, `ib` or `ofi`.
    pub fabric: String,
    /// The fabric's own text, at most [`MAX_END`] bytes.
    pub end: String,
}

impl End {
    /// An end of the fabric `fabric`.
    pub fn new(fabric: &str, end: String) -> Self {
        End {
            fabric: fabric.to_owned(),
            end,
        }
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "End({}, {} bytes)", self.fabric, self.end.len())
    }
}

/// A region registered with libibverbs that the peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbRegion {
    /// Address of the first byte, in the owning node's address space.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Remote key of the registration.
    pub rkey: u32,
}

/// Description of one end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbEnd {
    /// Queue pair number on its device, 24 bits.
    pub qp_num: u32,
    /// Packet sequence number of the first packet that this end sends, 24 bits.
    pub psn: u32,
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier of the port.
    pub gid: Ipv6Addr,
    /// Largest path MTU of this end, in bytes. The connection uses the smaller MTU of the two ends.
    pub mtu: u32,
    /// Whether this end marks the last write of each burst solicited. Only then may the peer sleep
    /// until a solicited completion.
    pub solicited: bool,
    /// Region of the slots.
    pub slots: IbRegion,
    /// Region of the descriptor cells beside the slots, 16 bytes each.
    pub cells: IbRegion,
}

/// A region registered with libfabric that the peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfiRegion {
    /// Base address that the provider adds offsets to; 0 for providers that count from 0.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Remote key of the registration.
    pub key: u64,
}

/// How a write carries its slot and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfiForm {
    /// One write with 4 bytes of immediate data; the peer's completion reports the length.
    Completion,
    /// One write with 8 bytes of immediate data, which include the length.
    Data,
    /// The payload, then an empty write with 8 bytes of data as in [`OfiForm::Data`].
    After,
    /// The payload, then 16 bytes into the cell beside the slot with 4 bytes of data.
    Cell,
}

impl fmt::Display for OfiForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OfiForm::Completion => "completion",
            OfiForm::Data => "data",
            OfiForm::After => "after",
            OfiForm::Cell => "cell",
        })
    }
}

/// Description of one end of a libfabric connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfiEnd {
    /// Name of the provider with its layers, such as `efa`.
    pub provider: String,
    /// The endpoint's address in the provider's own format, hexadecimal.
    pub address: String,
    /// Form in which the peer must write to this end.
    pub form: OfiForm,
    /// Region of the slots.
    pub slots: OfiRegion,
    /// Region of the cells beside the slots, 16 bytes each, where the form uses cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<OfiRegion>,
}

/// Moments at which the tokens of an answer leave the accelerator.
///
/// An engine that produces answers whole sends each answer in one piece, whatever this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// The whole answer in one write, with the last token.
    #[default]
    None,
    /// The first token at once, the rest with the last token: LoadGen measures these two times.
    First,
    /// One part per step of the engine.
    All,
}

impl Stream {
    /// Name of the setting in YAML.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Stream::None => "none",
            Stream::First => "first",
            Stream::All => "all",
        }
    }

    /// Writes of one answer that the queues have room for. Under [`Stream::All`] there may be more;
    /// then the sender's NIC waits, or later parts leave together.
    pub(crate) fn writes(self) -> usize {
        match self {
            Stream::None => 1,
            Stream::First => 2,
            Stream::All => 4,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
