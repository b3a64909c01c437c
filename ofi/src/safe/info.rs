//! One way to use one NIC, and its limits.

use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Ofi, text};
use crate::error::Error;
use crate::raw;

/// Which NIC, by what its provider calls it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The provider, as `fi_info` lists it: `efa`, `tcp;ofi_rxm`.
    pub provider: String,
    /// Its domain: `rdmap0s6-rdm`, `lo`.
    pub domain: Option<String>,
    /// An address of this machine.
    pub address: Option<String>,
}

impl Place {
    /// Wherever this provider runs.
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

/// See the module.
pub struct Info {
    ofi: Arc<Ofi>,
    raw: NonNull<raw::fi_info>,
    provider: String,
    domain: String,
}

// SAFETY: the structure is read alone once it is made, and freed by whoever drops it last; the
// functions that are handed it copy what they keep.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

impl Info {
    /// # Safety
    ///
    /// `raw` was made by this library's `fi_dupinfo` and belongs to nobody else.
    pub(super) unsafe fn adopt(ofi: Arc<Ofi>, raw: NonNull<raw::fi_info>) -> Self {
        // SAFETY: the library makes all parts of it; the names are null or C strings.
        let (provider, domain) = unsafe {
            let raw = raw.as_ptr();
            (
                text((*(*raw).fabric_attr).prov_name).unwrap_or_default(),
                text((*(*raw).domain_attr).name).unwrap_or_default(),
            )
        };
        Info {
            ofi,
            raw,
            provider,
            domain,
        }
    }

    pub(super) fn raw(&self) -> NonNull<raw::fi_info> {
        self.raw
    }

    /// The library.
    #[must_use]
    pub fn ofi(&self) -> &Arc<Ofi> {
        &self.ofi
    }

    /// The provider, with its layers: `tcp;ofi_rxm`.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// What the provider calls the NIC.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    pub(super) fn domain_attr(&self) -> &raw::fi_domain_attr {
        // SAFETY: every info has one, which lives as long, and is not changed.
        unsafe { &*(*self.raw.as_ptr()).domain_attr }
    }

    fn tx_attr(&self) -> &raw::fi_tx_attr {
        // SAFETY: as `domain_attr`.
        unsafe { &*(*self.raw.as_ptr()).tx_attr }
    }

    fn rx_attr(&self) -> &raw::fi_rx_attr {
        // SAFETY: as `domain_attr`.
        unsafe { &*(*self.raw.as_ptr()).rx_attr }
    }

    fn mode(&self) -> u64 {
        // SAFETY: the info lives as long as this.
        let own = unsafe { (*self.raw.as_ptr()).mode };
        own | self.tx_attr().mode | self.rx_attr().mode
    }

    pub(super) fn has_mr_mode(&self, bit: i32) -> bool {
        self.domain_attr().mr_mode & bit != 0
    }

    /// Whether this project knows how to use it.
    pub(super) fn usable(self: Arc<Self>) -> Result<Arc<Self>, Error> {
        let lacks = |lacks: String| Error::Unsupported {
            provider: self.provider.clone(),
            lacks,
        };
        let data = self.data_bytes();
        if data < 4 {
            return Err(lacks(format!(
                "its writes carry {data} bytes of data for the completion, and 4 are needed"
            )));
        }
        if self.has_mr_mode(raw::FI_MR_RAW) || self.domain_attr().mr_key_size > 8 {
            return Err(lacks("its keys are longer than 8 bytes".to_owned()));
        }
        // `FI_MSG_PREFIX`. Other modes are the provider's own business; this one changes its calls.
        if self.mode() & 1 << 58 != 0 {
            return Err(lacks("it wants room before every message".to_owned()));
        }
        Ok(self)
    }

    /// Bytes that a write brings to the peer's completion, beside its payload: 4 or 8.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.domain_attr().cq_data_size
    }

    /// Whether writes of one endpoint to one peer arrive in the order in which they were posted.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.tx_attr().msg_order & self.rx_attr().msg_order & raw::FI_ORDER_WAW != 0
    }

    /// Whether each write that arrives with data uses up a receive.
    #[must_use]
    pub fn wants_receives(&self) -> bool {
        self.mode() & raw::FI_RX_CQ_DATA != 0
    }

    /// Whether memory that is sent from must be registered.
    #[must_use]
    pub fn registers_sources(&self) -> bool {
        self.has_mr_mode(raw::FI_MR_LOCAL)
    }

    /// Operations that an endpoint can have under way.
    #[must_use]
    pub fn send_depth(&self) -> usize {
        self.tx_attr().size
    }

    /// Receives that an endpoint can hold.
    #[must_use]
    pub fn receive_depth(&self) -> usize {
        self.rx_attr().size
    }

    /// Endpoints that the domain can hold; 0 where the provider does not say.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.domain_attr().ep_cnt
    }

    /// Completion queues that the domain can hold; 0 where the provider does not say.
    #[must_use]
    pub fn completion_queues(&self) -> usize {
        self.domain_attr().cq_cnt
    }

    /// Regions that the domain can hold; 0 where the provider does not say.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.domain_attr().mr_cnt
    }

    /// Longest write in bytes.
    #[must_use]
    pub fn longest(&self) -> usize {
        // SAFETY: as `domain_attr`.
        unsafe { (*(*self.raw.as_ptr()).ep_attr).max_msg_size }
    }

    /// Gbit/s of the link, where the provider says.
    #[must_use]
    pub fn gbps(&self) -> Option<u64> {
        // SAFETY: each is null or lives as long as the info.
        unsafe {
            let nic = (*self.raw.as_ptr()).nic;
            let link = nic.as_ref()?.link_attr.as_ref()?;
            (link.speed > 0).then_some(link.speed as u64 / 1_000_000_000)
        }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: made by this library, and ours alone.
        unsafe { (self.ofi.api().freeinfo)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of provider {}", self.domain, self.provider)
    }
}
