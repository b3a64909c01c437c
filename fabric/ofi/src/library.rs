//! The loaded libfabric, and what its providers offer: each [`Info`] is one way to use a NIC, with
//! its limits.

use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, UdpSocket};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libloading::Library;

use crate::abi::load;
use crate::error::{Error, Version};
use crate::raw;

/// File name of libfabric in every distribution.
const LIBRARY: &str = "libfabric.so.1";

/// The newest requested API version. From 1.18 on, EFA's writes are done by the device.
const NEWEST: u32 = raw::version(1, 18);

/// The oldest accepted version, from which the structures' layout is stable.
const OLDEST: u32 = raw::version(1, 14);

/// The loaded library.
pub struct Ofi {
    pub(crate) api: raw::Api,
    version: Version,
    /// Never unloaded: its threads and handlers do not support that.
    _library: ManuallyDrop<Library>,
}

impl Ofi {
    /// Loads libfabric from `file`, or else under its standard name.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] if libfabric is missing, [`Error::Refused`] if the file is not
    /// libfabric or before version 1.14.
    pub fn load(file: Option<&str>) -> Result<Arc<Self>, Error> {
        let file = file.unwrap_or(LIBRARY);
        let library = load(file)?;
        // SAFETY: a library with all these symbols has libfabric's ABI; it is never unloaded.
        let api = unsafe { raw::Api::from_library(&library, file) }?;
        // SAFETY: the function takes no argument and returns a number.
        let version = Version(unsafe { (api.version)() });
        if version.0 < OLDEST {
            return Err(Error::Refused(format!(
                "libfabric {version} is too old for provider of any kind: 1.14 is the oldest that \
                 this program knows"
            )));
        }
        Ok(Arc::new(Self {
            api,
            version,
            _library: library,
        }))
    }

    /// The library's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// libfabric's text for an error number above 0.
    pub(crate) fn strerror(&self, errno: i32) -> String {
        // SAFETY: the text is static, or null for an unknown number.
        unsafe { text((self.api.strerror)(errno)) }.unwrap_or_else(|| "unknown".to_owned())
    }

    pub(crate) fn failed(
        &self,
        call: &'static str,
        code: i64,
        provider: &str,
        doing: String,
    ) -> Error {
        let errno = i32::try_from(code.abs()).unwrap_or(libc::EIO);
        Error::Call {
            call,
            provider: provider.to_owned(),
            errno,
            text: self.strerror(errno),
            doing,
        }
    }

    /// Returns the provider's first offer for the NIC at `at` with reliable writes that carry
    /// immediate data.
    ///
    /// # Errors
    /// [`Error::NoProvider`] and [`Error::Refused`] name the available choices.
    pub fn find(self: &Arc<Self>, at: &NicAddress) -> Result<Arc<Info>, Error> {
        let provider = &at.provider;
        if provider == "efa" && self.version.0 < raw::version(1, 18) {
            return Err(Error::Refused(format!(
                "libfabric {} is too old for provider efa: the device writes by itself from 1.18 on",
                self.version
            )));
        }
        // Some providers ignore hints.
        let fits = |i: &Arc<Info>| {
            i.provider() == provider && at.domain.as_ref().is_none_or(|d| d == i.domain())
        };
        if let Some(info) = self.query(at)?.into_iter().find(fits)
            && is_here(at.address.as_deref())
        {
            return info.usable();
        }
        let all = self.query(&NicAddress {
            provider: provider.clone(),
            ..NicAddress::default()
        })?;
        let mut domains: Vec<_> = all
            .iter()
            .filter(|i| i.provider() == provider)
            .map(|i| i.domain().to_owned())
            .collect();
        if domains.is_empty() {
            let mut present: Vec<_> = self
                .query(&NicAddress::default())?
                .iter()
                .map(|i| i.provider().to_owned())
                .collect();
            return Err(Error::NoProvider {
                provider: provider.clone(),
                version: self.version,
                present: listed(&mut present, "none that can write with data"),
            });
        }
        let (asked, present) = (at.nic(), listed(&mut domains, "none"));
        Err(Error::Refused(format!(
            "provider {provider} has no {asked}; it has {present}"
        )))
    }

    /// Returns all offers for `at`; those of all providers if `at` names no provider.
    fn query(self: &Arc<Self>, at: &NicAddress) -> Result<Vec<Arc<Info>>, Error> {
        let failed = |code: i32, what: &str| {
            self.failed("fi_getinfo", code.into(), &at.provider, what.to_owned())
        };
        // SAFETY: from null, the function allocates an empty structure with all its parts.
        let hints = unsafe { (self.api.dupinfo)(ptr::null()) };
        let hints = NonNull::new(hints).ok_or_else(|| failed(libc::ENOMEM, "allocating hints"))?;
        // SAFETY: the structure is new, and `hints` is its only owner, which frees it.
        let hints = unsafe { Info::adopt(Arc::clone(self), hints) };
        let c_text = |s: &str| CString::new(s).map_err(|_| failed(libc::EINVAL, "reading names"));
        let node = at.address.as_deref().map(c_text).transpose()?;
        // SAFETY: the library allocated every part of the hints, and this is the only owner. The
        // library frees strings with `free`, so `strdup` allocates them.
        unsafe {
            let raw = hints.raw().as_ptr();
            (*raw).caps = raw::FI_MSG | raw::FI_RMA | raw::FI_WRITE | raw::FI_REMOTE_WRITE;
            (*raw).mode = raw::FI_CONTEXT | raw::FI_CONTEXT2 | raw::FI_RX_CQ_DATA;
            (*(*raw).ep_attr).type_ = raw::FI_EP_RDM;
            let domain = (*raw).domain_attr;
            (*domain).threading = raw::FI_THREAD_SAFE;
            (*domain).mr_mode = raw::FI_MR_LOCAL
                | raw::FI_MR_VIRT_ADDR
                | raw::FI_MR_ALLOCATED
                | raw::FI_MR_PROV_KEY
                | raw::FI_MR_ENDPOINT;
            if let Some(name) = &at.domain {
                (*domain).name = libc::strdup(c_text(name)?.as_ptr());
            }
            if !at.provider.is_empty() {
                (*(*raw).fabric_attr).prov_name = libc::strdup(c_text(&at.provider)?.as_ptr());
            }
        }
        let mut list = ptr::null_mut();
        let version = self.version.0.min(NEWEST);
        let (node, flags) = match &node {
            Some(n) => (n.as_ptr(), raw::FI_SOURCE),
            None => (ptr::null::<c_char>(), 0),
        };
        // SAFETY: hints and node name live through the call, which writes `list`.
        let code = unsafe {
            let hints = hints.raw().as_ptr();
            (self.api.getinfo)(version, node, ptr::null(), flags, hints, &raw mut list)
        };
        // No offer, or an address of another machine.
        if code == -libc::ENODATA || code == -libc::ENODEV || code == -libc::EADDRNOTAVAIL {
            return Ok(Vec::new());
        }
        if code != 0 {
            return Err(failed(code, &format!("looking for {}", at.nic())));
        }
        let mut found = Vec::new();
        let mut next = list;
        while let Some(each) = NonNull::new(next) {
            // SAFETY: `each` is a member of the returned list; `Info` owns the copy.
            unsafe {
                next = (*each.as_ptr()).next;
                if let Some(copy) = NonNull::new((self.api.dupinfo)(each.as_ptr())) {
                    found.push(Arc::new(Info::adopt(Arc::clone(self), copy)));
                }
            }
        }
        // SAFETY: this function owns the list, and no reference to it remains.
        unsafe { (self.api.freeinfo)(list) };
        Ok(found)
    }
}

impl std::fmt::Debug for Ofi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "libfabric {}", self.version)
    }
}

/// Selects a NIC by the provider's names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicAddress {
    /// The provider, as `fi_info` lists it: `efa`, `tcp;ofi_rxm`.
    pub provider: String,
    /// Name of the domain: `rdmap0s6-rdm`, `lo`.
    pub domain: Option<String>,
    /// IP address on this machine.
    pub address: Option<String>,
}

impl NicAddress {
    fn nic(&self) -> String {
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
    pub(crate) key_bytes: usize,
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
    /// `raw` comes from this library's `fi_dupinfo` and has no other owner.
    unsafe fn adopt(ofi: Arc<Ofi>, raw: NonNull<raw::fi_info>) -> Self {
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

    pub(crate) fn raw(&self) -> NonNull<raw::fi_info> {
        self.raw
    }

    /// The library.
    pub fn ofi(&self) -> &Arc<Ofi> {
        &self.ofi
    }

    /// Returns the provider with its layers: `tcp;ofi_rxm`.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Returns the provider's name of the NIC.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the provider's capabilities on the NIC.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn has_mr_mode(&self, bit: i32) -> bool {
        self.limits.mr_mode & bit != 0
    }

    /// Checks that the info has the features that this project needs.
    fn usable(self: Arc<Self>) -> Result<Arc<Self>, Error> {
        let provider = &self.provider;
        let lacks =
            |lacks: String| Error::Refused(format!("provider {provider} cannot be used: {lacks}"));
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
        unsafe { (self.ofi.api.freeinfo)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of provider {}", self.domain, self.provider)
    }
}

/// Whether the address is on this machine. Providers check an address only when they use it.
fn is_here(address: Option<&str>) -> bool {
    let ip = address.and_then(|a| a.parse::<IpAddr>().ok());
    ip.is_none_or(|ip| UdpSocket::bind((ip, 0)).is_ok())
}

fn listed(names: &mut Vec<String>, none: &str) -> String {
    names.sort();
    names.dedup();
    if names.is_empty() {
        none.to_owned()
    } else {
        names.join(", ")
    }
}

/// Copies a C string of the library; `None` for null.
///
/// # Safety
/// `at` must be null, or a C string that lives through the call.
pub(crate) unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: the caller guarantees a valid C string.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}
