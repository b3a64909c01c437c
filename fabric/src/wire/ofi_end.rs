//! What one end of a libfabric connection tells the other, over the authenticated control session.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A registered region that the peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfiRegion {
    /// What the provider counts offsets from.
    pub address: u64,
    /// Bytes in it.
    pub length: u64,
    /// The key that a write to it carries.
    pub key: u64,
}

/// How a write says where it goes and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfiForm {
    /// One write with 4 bytes of data; the peer's completion has its length.
    Completion,
    /// One write with 8 bytes of data, which hold its length too.
    Data,
    /// The payload, then an empty write with those 8 bytes.
    After,
    /// The payload, then 16 bytes into the cell beside the slot, with 4 bytes of data.
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

/// One end of a connection over libfabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfiEnd {
    /// The provider, with its layers, such as `efa`.
    pub provider: String,
    /// The endpoint's address in the provider's own format, hexadecimal.
    pub address: String,
    /// How this end wants to be written to.
    pub form: OfiForm,
    /// Its slots.
    pub slots: OfiRegion,
    /// Cells beside them, 16 bytes each, where the form uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<OfiRegion>,
}
