//! Loads libfabric, and finds the offers of its providers.

use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, UdpSocket};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libloading::Library;

use super::info::{Info, Place};
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
    api: raw::Api,
    version: Version,
    /// Never unloaded: its threads and handlers do not support that.
    _library: ManuallyDrop<Library>,
}

impl Ofi {
    /// Loads libfabric under its standard name.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`] if libfabric is missing, [`Error::MissingSymbol`] if the file is not
    /// libfabric, [`Error::TooOld`] before version 1.14.
    pub fn load() -> Result<Arc<Self>, Error> {
        Self::load_from(LIBRARY)
    }

    /// Loads libfabric from `file`.
    ///
    /// # Errors
    ///
    /// Same as [`Ofi::load`].
    pub fn load_from(file: &str) -> Result<Arc<Self>, Error> {
        // SAFETY: loading runs the library's initialisers; libfabric's only set up tables.
        let library = unsafe { Library::new(file) }.map_err(|error| Error::NoLibrary {
            detail: error.to_string(),
        })?;
        let library = ManuallyDrop::new(library);
        // SAFETY: a library with all these symbols has libfabric's ABI; it is never unloaded.
        let api = unsafe { raw::Api::from_library(&library, file) }?;
        // SAFETY: the function takes no argument and returns a number.
        let version = Version(unsafe { (api.version)() });
        if version.0 < OLDEST {
            return Err(Error::TooOld {
                provider: "of any kind".to_owned(),
                version,
                needs: "1.14 is the oldest that this program knows",
            });
        }
        Ok(Arc::new(Self {
            api,
            version,
            _library: library,
        }))
    }

    /// The library's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    pub(super) fn api(&self) -> &raw::Api {
        &self.api
    }

    /// Returns libfabric's text for an error number above 0.
    #[must_use]
    pub fn strerror(&self, errno: i32) -> String {
        // SAFETY: the text is static, or null for an unknown number.
        unsafe { text((self.api.strerror)(errno)) }.unwrap_or_else(|| "unknown".to_owned())
    }

    pub(super) fn failed(
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

    /// Returns the provider's first offer for the NIC at `place` with reliable writes that carry
    /// immediate data.
    ///
    /// # Errors
    ///
    /// [`Error::NoProvider`] and [`Error::NoNic`] name the available choices; [`Error::TooOld`];
    /// [`Error::Unsupported`].
    pub fn find(self: &Arc<Self>, place: &Place) -> Result<Arc<Info>, Error> {
        let provider = &place.provider;
        if provider == "efa" && self.version.0 < raw::version(1, 18) {
            return Err(Error::TooOld {
                provider: provider.clone(),
                version: self.version,
                needs: "the device writes by itself from 1.18 on",
            });
        }
        // Some providers ignore hints.
        let fits = |i: &Arc<Info>| {
            i.provider() == provider && place.domain.as_ref().is_none_or(|d| d == i.domain())
        };
        if let Some(info) = self.query(place)?.into_iter().find(fits)
            && is_here(place.address.as_deref())
        {
            return info.usable();
        }
        let all = self.query(&Place::of(provider))?;
        let mut domains: Vec<_> = all
            .iter()
            .filter(|i| i.provider() == provider)
            .map(|i| i.domain().to_owned())
            .collect();
        if domains.is_empty() {
            let mut present: Vec<_> = self
                .query(&Place::default())?
                .iter()
                .map(|i| i.provider().to_owned())
                .collect();
            return Err(Error::NoProvider {
                provider: provider.clone(),
                version: self.version,
                present: listed(&mut present, "none that can write with data"),
            });
        }
        Err(Error::NoNic {
            provider: provider.clone(),
            asked: place.nic(),
            present: listed(&mut domains, "none"),
        })
    }

    /// Returns all offers for `place`; of all providers if it names none.
    fn query(self: &Arc<Self>, place: &Place) -> Result<Vec<Arc<Info>>, Error> {
        let failed = |code: i32, what: &str| {
            self.failed("fi_getinfo", code.into(), &place.provider, what.to_owned())
        };
        // SAFETY: from null, the function allocates an empty structure with all its parts.
        let hints = unsafe { (self.api.dupinfo)(ptr::null()) };
        let hints = NonNull::new(hints).ok_or_else(|| failed(libc::ENOMEM, "allocating hints"))?;
        // SAFETY: the structure is new, and `hints` is its only owner, which frees it.
        let hints = unsafe { Info::adopt(Arc::clone(self), hints) };
        let c_text = |s: &str| CString::new(s).map_err(|_| failed(libc::EINVAL, "reading names"));
        let node = place.address.as_deref().map(c_text).transpose()?;
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
            if let Some(name) = &place.domain {
                (*domain).name = libc::strdup(c_text(name)?.as_ptr());
            }
            if !place.provider.is_empty() {
                (*(*raw).fabric_attr).prov_name = libc::strdup(c_text(&place.provider)?.as_ptr());
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
            return Err(failed(code, &format!("looking for {}", place.nic())));
        }
        let mut found = Vec::new();
        let mut at = list;
        while let Some(each) = NonNull::new(at) {
            // SAFETY: `each` is a member of the returned list; `Info` owns the copy.
            unsafe {
                at = (*each.as_ptr()).next;
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

/// Whether the address is on this machine. Providers do not check it before its use.
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
///
/// `at` must be null, or a C string that lives through the call.
pub(super) unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: the caller guarantees a valid C string.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}
