//! Description of one end of a libfabric connection, sent over the authenticated control session.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A registered region that the peer may write.
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
    /// One write with 4 bytes of data; the peer's completion reports the length.
    Completion,
    /// One write with 8 bytes of data, which include the length.
    Data,
    /// The payload, then an empty write with the same 8 bytes of data.
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
