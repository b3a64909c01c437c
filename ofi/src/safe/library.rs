//! Finding libfabric, and what its providers offer.

use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, UdpSocket};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libloading::Library;

use super::info::{Info, Place};
use crate::error::{Error, Version};
use crate::raw;

/// The name under which every distribution installs the library.
const LIBRARY: &str = "libfabric.so.1";

/// The newest interface that is asked for. From 1.18 on, EFA's writes are the device's own.
const NEWEST: u32 = raw::version(1, 18);

/// The oldest that will do: where the layout of the structures was settled.
const OLDEST: u32 = raw::version(1, 14);

/// libfabric, opened.
pub struct Ofi {
    api: raw::Api,
    version: Version,
    /// Never unloaded: it has threads and handlers of its own, which are not made to be unloaded.
    _library: ManuallyDrop<Library>,
}

impl Ofi {
    /// Opens libfabric.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`] when this machine has none, [`Error::MissingSymbol`] when what is there
    /// is something else, [`Error::TooOld`].
    pub fn load() -> Result<Arc<Self>, Error> {
        Self::load_from(LIBRARY)
    }

    /// Opens libfabric under another file name.
    ///
    /// # Errors
    ///
    /// As [`Ofi::load`].
    pub fn load_from(file: &str) -> Result<Arc<Self>, Error> {
        // SAFETY: loading runs the library's initialisers; libfabric's only set up its own tables.
        let library = unsafe { Library::new(file) }.map_err(|error| Error::NoLibrary {
            detail: error.to_string(),
        })?;
        let library = ManuallyDrop::new(library);
        // SAFETY: the file goes by libfabric's versioned name, and is never unloaded.
        let api = unsafe { raw::Api::from_library(&library, file) }?;
        // SAFETY: the function takes nothing and returns a number.
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

    /// libfabric's text for an error number (above 0).
    #[must_use]
    pub fn strerror(&self, errno: i32) -> String {
        // SAFETY: the text is static, or null where there is none.
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

    /// How the NIC at `place` can be used with reliable writes that carry data. The first way that
    /// the provider offers.
    ///
    /// # Errors
    ///
    /// [`Error::NoProvider`] and [`Error::NoNic`] name what there is; [`Error::TooOld`];
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
        // Some providers take a hint for a wish.
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

    /// Everything that fits `place`; of no provider in particular where it names none.
    fn query(self: &Arc<Self>, place: &Place) -> Result<Vec<Arc<Info>>, Error> {
        let failed = |code: i32, what: &str| {
            self.failed("fi_getinfo", code.into(), &place.provider, what.to_owned())
        };
        // SAFETY: of null, the function makes an empty structure with all its parts.
        let hints = unsafe { (self.api.dupinfo)(ptr::null()) };
        let hints = NonNull::new(hints).ok_or_else(|| failed(libc::ENOMEM, "allocating hints"))?;
        // SAFETY: just made, and given to nobody else; freed when `hints` goes.
        let hints = unsafe { Info::adopt(Arc::clone(self), hints) };
        let c_text = |s: &str| CString::new(s).map_err(|_| failed(libc::EINVAL, "reading names"));
        let node = place.address.as_deref().map(c_text).transpose()?;
        // SAFETY: every part of the hints was made by the library and is ours alone. Its strings
        // are freed by the library with `free`, so they are made with `strdup`.
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
        // SAFETY: the hints and the name live through the call, and `list` is written by it.
        let code = unsafe {
            let hints = hints.raw().as_ptr();
            (self.api.getinfo)(version, node, ptr::null(), flags, hints, &raw mut list)
        };
        // Nothing to be had, or an address that is not this machine's.
        if code == -libc::ENODATA || code == -libc::ENODEV || code == -libc::EADDRNOTAVAIL {
            return Ok(Vec::new());
        }
        if code != 0 {
            return Err(failed(code, &format!("looking for {}", place.nic())));
        }
        let mut found = Vec::new();
        let mut at = list;
        while let Some(each) = NonNull::new(at) {
            // SAFETY: a member of the list that was just returned; the copy is ours.
            unsafe {
                at = (*each.as_ptr()).next;
                if let Some(copy) = NonNull::new((self.api.dupinfo)(each.as_ptr())) {
                    found.push(Arc::new(Info::adopt(Arc::clone(self), copy)));
                }
            }
        }
        // SAFETY: the list is ours, and nothing refers to it any more.
        unsafe { (self.api.freeinfo)(list) };
        Ok(found)
    }
}

impl std::fmt::Debug for Ofi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "libfabric {}", self.version)
    }
}

/// Whether the address is one of this machine's. Providers do not look before they use it.
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

/// The text behind a pointer of the library's, if there is one.
///
/// # Safety
///
/// Null, or a C string that lives through the call.
pub(super) unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: this function's contract.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}
