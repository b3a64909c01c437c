//! An info: one way to use a NIC, with its limits.

use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Ofi, text};
use crate::error::Error;
use crate::raw;

/// Selects a NIC by the provider's names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The provider, as `fi_info` lists it: `efa`, `tcp;ofi_rxm`.
    pub provider: String,
    /// Name of the domain: `rdmap0s6-rdm`, `lo`.
    pub domain: Option<String>,
    /// IP address on this machine.
    pub address: Option<String>,
}

impl Place {
    /// Selects any NIC of a provider.
    #[must_use]
    pub fn of(provider: &str) -> Self {
        Place {
            provider: provider.to_owned(),
            ..Place::default()
        }
    }

    pub(super) fn nic(&self) -> String {
        match (&self.domain, &self.address) {
            (Some(d), Some(a)) => format!("domain {d} with address {a}"),
            (Some(d), None) => format!("domain {d}"),
            (None, Some(a)) => format!("address {a} on this machine"),
            (None, None) => "NIC at all".to_owned(),
        }
    }
}

/// Capabilities of a provider on a NIC. A limit of 0 means unknown.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of immediate data of a write: 4 or 8.
    pub data_bytes: usize,
    /// True if writes of one endpoint to one peer arrive in posting order.
    pub keeps_order: bool,
    /// True if each arriving write with data consumes a receive.
    pub wants_receives: bool,
    /// True if sources must be registered.
    pub registers_sources: bool,
    /// Maximum number of outstanding operations of an endpoint.
    pub send_depth: usize,
    /// Maximum number of posted receives of an endpoint.
    pub receive_depth: usize,
    /// Maximum number of endpoints of a domain.
    pub endpoints: usize,
    /// Maximum number of completion queues of a domain.
    pub completion_queues: usize,
    /// Maximum number of regions of a domain.
    pub regions: usize,
    /// Maximum length of a write, in bytes.
    pub longest: usize,
    /// Link speed in Gbit/s, if reported.
    pub gbps: Option<u64>,
    mode: u64,
    mr_mode: i32,
    pub(super) key_bytes: usize,
}

/// One way to use a NIC, as a provider offers it.
pub struct Info {
    ofi: Arc<Ofi>,
    raw: NonNull<raw::fi_info>,
    provider: String,
    domain: String,
    limits: Limits,
}

// SAFETY: the structure is read-only after creation, and the last owner frees it. Functions that
// take it copy what they keep.
unsafe impl Send for Info {}
// SAFETY: as for Send.
unsafe impl Sync for Info {}

impl Info {
    /// # Safety
    ///
    /// `raw` comes from this library's `fi_dupinfo` and has no other owner.
    pub(super) unsafe fn adopt(ofi: Arc<Ofi>, raw: NonNull<raw::fi_info>) -> Self {
        // SAFETY: the library allocates all parts but the NIC's, which may be null. Names are null
        // or C strings.
        unsafe {
            let info = raw.as_ref();
            let (tx, rx, domain) = (&*info.tx_attr, &*info.rx_attr, &*info.domain_attr);
            let link = info.nic.as_ref().and_then(|nic| nic.link_attr.as_ref());
            let mode = info.mode | tx.mode | rx.mode;
            Info {
                provider: text((*info.fabric_attr).prov_name).unwrap_or_default(),
                domain: text(domain.name).unwrap_or_default(),
                limits: Limits {
                    data_bytes: domain.cq_data_size,
                    keeps_order: tx.msg_order & rx.msg_order & raw::FI_ORDER_WAW != 0,
                    wants_receives: mode & raw::FI_RX_CQ_DATA != 0,
                    registers_sources: domain.mr_mode & raw::FI_MR_LOCAL != 0,
                    send_depth: tx.size,
                    receive_depth: rx.size,
                    endpoints: domain.ep_cnt,
                    completion_queues: domain.cq_cnt,
                    regions: domain.mr_cnt,
                    longest: (*info.ep_attr).max_msg_size,
                    gbps: link
                        .filter(|link| link.speed > 0)
                        .map(|link| link.speed as u64 / 1_000_000_000),
                    mode,
                    mr_mode: domain.mr_mode,
                    key_bytes: domain.mr_key_size,
                },
                ofi,
                raw,
            }
        }
    }

    pub(super) fn raw(&self) -> NonNull<raw::fi_info> {
        self.raw
    }

    /// Returns the library.
    #[must_use]
    pub fn ofi(&self) -> &Arc<Ofi> {
        &self.ofi
    }

    /// Returns the provider with its layers: `tcp;ofi_rxm`.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Returns the provider's name of the NIC.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the provider's capabilities on the NIC.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn has_mr_mode(&self, bit: i32) -> bool {
        self.limits.mr_mode & bit != 0
    }

    /// Checks that the info has the features that this project needs.
    pub(super) fn usable(self: Arc<Self>) -> Result<Arc<Self>, Error> {
        let lacks = |lacks: String| Error::Unsupported {
            provider: self.provider.clone(),
            lacks,
        };
        let Limits {
            data_bytes,
            key_bytes,
            mode,
            ..
        } = self.limits;
        if data_bytes < 4 {
            return Err(lacks(format!(
                "its writes carry {data_bytes} bytes of data for the completion, and 4 are needed"
            )));
        }
        if self.has_mr_mode(raw::FI_MR_RAW) || key_bytes > 8 {
            return Err(lacks("its keys are longer than 8 bytes".to_owned()));
        }
        // `FI_MSG_PREFIX` changes the calls. Other modes need nothing from this project.
        if mode & 1 << 58 != 0 {
            return Err(lacks("it wants room before every message".to_owned()));
        }
        Ok(self)
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the library allocated it, and this is its only owner.
        unsafe { (self.ofi.api().freeinfo)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of provider {}", self.domain, self.provider)
    }
}
