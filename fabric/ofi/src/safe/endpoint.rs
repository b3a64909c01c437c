//! An endpoint for one peer, with the windows that the peer writes and the sources of writes.

use std::ffi::{c_char, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::iovec;

use super::domain::{Domain, close};
use super::library::text;
use super::mr::{Memory, Mr, Registered, RemoteRegion, register};
use crate::error::{Error, OpError};
use crate::raw;

/// Maximum length of an address, above that of every known provider.
const ADDRESS_BYTES: usize = 256;

/// Queue depths of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Maximum number of outstanding writes.
    pub sends: usize,
    /// Number of posted receives for writes with data, if the provider needs them.
    pub receives: usize,
    /// Number of entries of the completion queue.
    pub completions: usize,
}

/// Destination of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Address in the peer's region, in the region's addressing.
    pub addr: u64,
    /// Key of the region.
    pub key: u64,
}

/// A one-sided write.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// Number of the send, returned in its completion. Must not be outstanding.
    pub send: usize,
    /// Index of the source.
    pub source: usize,
    /// Offset in the source.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
    /// Destination.
    pub target: Target,
    /// Immediate data for the peer's completion; without it, the peer gets no completion.
    pub data: Option<u64>,
}

/// Objects, closed in this order.
pub(super) struct Objects {
    pub endpoint: *mut raw::fid_ep,
    pub queue: *mut raw::fid_cq,
    addresses: *mut raw::fid_av,
}

/// An endpoint for one peer.
pub struct Endpoint {
    pub(super) objects: Objects,
    pub(super) wait_fd: Option<RawFd>,
    peer: AtomicU64,
    /// Contexts for the provider: one for each send, then one for each receive.
    pub(super) contexts: Box<[raw::fi_context2]>,
    pub(super) sends: usize,
    // Dropped after the endpoint is closed: the memory of its operations.
    windows: Vec<Registered>,
    sources: Vec<Arc<Mr>>,
    domain: Arc<Domain>,
}

// SAFETY: the domain is opened with `FI_THREAD_SAFE`, so the provider serialises calls. Only the
// provider uses a context during an operation, and no thread uses it otherwise.
unsafe impl Send for Endpoint {}
// SAFETY: as for Send.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    /// Opens an endpoint that sends from `sources`. Its queue has a wait descriptor if the provider
    /// supports one.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the provider refuses an object; it names the object.
    pub fn open(
        domain: &Arc<Domain>,
        sources: Vec<Arc<Mr>>,
        depths: Depths,
    ) -> Result<Self, Error> {
        let doing = |what: &str| format!("opening {what} on {}", domain.info().domain());
        let failed = |call, code: i32, what: &str| domain.failed(call, code.into(), doing(what));
        if let Some(stranger) = sources.iter().find(|s| !s.is_of(domain)) {
            let what = format!("an endpoint beside {stranger:?}");
            return Err(failed("fi_endpoint", libc::EINVAL, &what));
        }
        let contexts = depths.sends + depths.receives;
        let contexts = (0..contexts).map(|_| raw::fi_context2 {
            internal: [ptr::null_mut(); 8],
        });
        let mut this = Endpoint {
            objects: Objects {
                endpoint: ptr::null_mut(),
                queue: ptr::null_mut(),
                addresses: ptr::null_mut(),
            },
            wait_fd: None,
            peer: AtomicU64::new(raw::FI_ADDR_UNSPEC),
            contexts: contexts.collect(),
            sends: depths.sends,
            windows: Vec::new(),
            sources,
            domain: Arc::clone(domain),
        };
        this.open_queue(depths.completions).map_err(|code| {
            let what = format!("a completion queue of {} entries", depths.completions);
            failed("fi_cq_open", code, &what)
        })?;
        let mut attr = raw::fi_av_attr {
            type_: raw::FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: 1,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        let raw_domain = domain.raw();
        let none = ptr::null_mut();
        let info = domain.info().raw().as_ptr();
        // SAFETY: the domain is open, with the provider's table; each call writes the object for
        // the next call.
        unsafe {
            let ops = (*raw_domain).ops;
            let mut code = -libc::ENOSYS;
            // Some providers support only maps.
            for type_ in [raw::FI_AV_TABLE, raw::FI_AV_MAP] {
                attr.type_ = type_;
                if code != 0 {
                    let addresses = &raw mut this.objects.addresses;
                    code = raw::call!(ops, av_open(raw_domain, &raw mut attr, addresses, none));
                }
            }
            if code != 0 {
                return Err(failed("fi_av_open", code, "an address vector"));
            }
            let endpoint = &raw mut this.objects.endpoint;
            let code = raw::call!(ops, endpoint(raw_domain, info, endpoint, none));
            if code != 0 {
                return Err(failed("fi_endpoint", code, "an endpoint"));
            }
            let fid: *mut raw::fid = this.objects.endpoint.cast();
            let ops = (*fid).ops;
            let both = raw::FI_TRANSMIT | raw::FI_RECV;
            let mut code = raw::call!(ops, bind(fid, this.objects.queue.cast(), both));
            if code == 0 {
                code = raw::call!(ops, bind(fid, this.objects.addresses.cast(), 0));
            }
            if code != 0 {
                return Err(failed("fi_ep_bind", code, "an endpoint"));
            }
            let code = raw::call!(ops, control(fid, raw::FI_ENABLE, none));
            if code != 0 {
                // `ofi_rxm` makes a queue for that many peers, which may exceed the device's limit.
                let what = match domain.info().provider().contains("ofi_rxm") {
                    true => "an endpoint (FI_UNIVERSE_SIZE=16 in the environment asks for less)",
                    false => "an endpoint",
                };
                return Err(failed("fi_enable", code, what));
            }
        }
        Ok(this)
    }

    /// Opens a queue with a wait descriptor, or without one if the provider has none.
    fn open_queue(&mut self, size: usize) -> Result<(), i32> {
        let domain = self.domain.raw();
        for wait_obj in [raw::FI_WAIT_FD, raw::FI_WAIT_NONE] {
            let mut attr = raw::fi_cq_attr {
                size,
                flags: 0,
                format: raw::FI_CQ_FORMAT_DATA,
                wait_obj,
                signaling_vector: 0,
                wait_cond: 0,
                wait_set: ptr::null_mut(),
            };
            let (attr, queue) = (&raw mut attr, &raw mut self.objects.queue);
            // SAFETY: the domain is open, with the provider's table; the call writes the queue.
            let code =
                unsafe { raw::call!((*domain).ops, cq_open(domain, attr, queue, ptr::null_mut())) };
            if code != 0 && wait_obj == raw::FI_WAIT_NONE {
                return Err(code);
            }
            if code != 0 {
                continue;
            }
            let mut fd: RawFd = -1;
            let queue: *mut raw::fid = self.objects.queue.cast();
            let at = (&raw mut fd).cast();
            // SAFETY: the queue is open; the call writes the descriptor.
            let code = unsafe { raw::call!((*queue).ops, control(queue, raw::FI_GETWAIT, at)) };
            if wait_obj == raw::FI_WAIT_NONE || (code == 0 && fd >= 0) {
                self.wait_fd = (wait_obj == raw::FI_WAIT_FD).then_some(fd);
                return Ok(());
            }
            // The provider accepts the option, but has no descriptor.
            // SAFETY: the queue was just opened and is unused.
            unsafe { close(queue) };
            self.objects.queue = ptr::null_mut();
        }
        Err(libc::ENOSYS)
    }

    /// Returns the domain.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Returns the endpoint's address, for the peer's [`Endpoint::introduce`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0u8; ADDRESS_BYTES];
        let mut len = bytes.len();
        let endpoint = self.objects.endpoint;
        // SAFETY: the endpoint is open; the call writes at most `len` bytes.
        let code: i32 = unsafe {
            let at = bytes.as_mut_ptr().cast();
            raw::call!((*endpoint).cm, getname(endpoint.cast(), at, &raw mut len))
        };
        if code != 0 || len > bytes.len() {
            let doing = "asking an endpoint for its address".to_owned();
            return Err(self.domain.failed("fi_getname", code.into(), doing));
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Returns an address in the provider's text form.
    #[must_use]
    pub fn words(&self, address: &[u8]) -> String {
        let address = padded(address);
        let mut words = [0 as c_char; 128];
        let mut len = words.len();
        let addresses = self.objects.addresses;
        // SAFETY: the vector is open, zeroes follow the address up to the maximum length, and the
        // call truncates the text to its buffer.
        unsafe {
            let Some(say) = (*(*addresses).ops).straddr else {
                return "?".to_owned();
            };
            let at = words.as_mut_ptr();
            say(addresses, address.as_ptr().cast(), at, &raw mut len);
            words[words.len() - 1] = 0;
            text(words.as_ptr()).unwrap_or_default()
        }
    }

    /// Lets the peer write into `memory` until this endpoint is closed. `key` is the permission, if
    /// the provider does not choose one: use an unguessable number.
    ///
    /// # Errors
    ///
    /// [`Error::Call`], for example if the key is in use (`FI_ENOKEY`).
    pub fn expose(&mut self, memory: Arc<dyn Memory>, key: u64) -> Result<RemoteRegion, Error> {
        let endpoint = self.objects.endpoint;
        let window = register(&self.domain, memory, raw::FI_REMOTE_WRITE, key, endpoint)?;
        let by_address = self.domain.info().has_mr_mode(raw::FI_MR_VIRT_ADDR);
        let remote = window.remote(by_address);
        self.windows.push(window);
        Ok(remote)
    }

    /// Adds the peer's address. Call it before the first write from or to the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Call`]: the address is not of this provider, or the vector is full.
    pub fn introduce(&self, address: &[u8]) -> Result<(), Error> {
        let bytes = padded(address);
        let mut peer = raw::FI_ADDR_UNSPEC;
        let addresses = self.objects.addresses;
        // SAFETY: the vector is open, zeroes follow the address up to the maximum length, and the
        // call writes `peer`.
        let inserted: i32 = unsafe {
            let (at, peer) = (bytes.as_ptr().cast(), &raw mut peer);
            raw::call!(
                (*addresses).ops,
                insert(addresses, at, 1, peer, 0, ptr::null_mut())
            )
        };
        if inserted != 1 || peer == raw::FI_ADDR_UNSPEC {
            let doing = format!(
                "making {} known: the address vector has no room, or cannot read it",
                self.words(address)
            );
            let code = if inserted < 0 { inserted } else { libc::ENOMEM };
            return Err(self.domain.failed("fi_av_insert", code.into(), doing));
        }
        self.peer.store(peer, Ordering::Release);
        Ok(())
    }

    pub(super) fn context(&self, index: usize) -> *mut c_void {
        (&raw const self.contexts[index]).cast_mut().cast()
    }

    /// Posts one write.
    ///
    /// # Errors
    ///
    /// [`OpError`] if the write is not posted. With [`OpError::is_again`]: poll, then retry.
    pub fn write(&self, write: &Write) -> Result<(), OpError> {
        let refused = |errno| OpError {
            call: "fi_writemsg",
            errno,
        };
        let source = self.sources.get(write.source);
        let slice = source.and_then(|s| s.slice(write.offset, write.len));
        let (Some((at, mut desc)), true) = (slice, write.send < self.sends) else {
            return Err(refused(libc::EINVAL));
        };
        let local = iovec {
            iov_base: at.cast(),
            iov_len: write.len,
        };
        let remote = raw::fi_rma_iov {
            addr: write.target.addr,
            len: write.len,
            key: write.target.key,
        };
        let message = raw::fi_msg_rma {
            msg_iov: &raw const local,
            desc: &raw mut desc,
            iov_count: 1,
            addr: self.peer.load(Ordering::Acquire),
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: self.context(write.send),
            data: write.data.unwrap_or(0),
        };
        let mut flags = raw::FI_COMPLETION;
        if write.data.is_some() {
            flags |= raw::FI_REMOTE_CQ_DATA;
        }
        let endpoint = self.objects.endpoint;
        // SAFETY: the endpoint is open and enabled. The payload is inside a source; source and
        // context live until the endpoint is closed.
        let code: isize = unsafe {
            raw::call!(
                (*endpoint).rma,
                writemsg(endpoint, &raw const message, flags)
            )
        };
        match code {
            0 => Ok(()),
            code => Err(refused(i32::try_from(-code).unwrap_or(libc::EIO))),
        }
    }
}

/// Pads an address with zeroes to the maximum length.
fn padded(address: &[u8]) -> [u8; ADDRESS_BYTES] {
    let mut padded = [0; ADDRESS_BYTES];
    let n = address.len().min(ADDRESS_BYTES);
    padded[..n].copy_from_slice(&address[..n]);
    padded
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Objects {
            endpoint,
            queue,
            addresses,
        } = self.objects;
        // SAFETY: each object is null or open, and this is its last use. The endpoint is closed
        // before the objects bound to it.
        let closed = unsafe {
            let closed = close(endpoint.cast());
            closed && close(queue.cast()) && close(addresses.cast())
        };
        if !closed {
            // The provider may still use this memory, so leak it.
            std::mem::forget(std::mem::take(&mut self.contexts));
            std::mem::forget(std::mem::take(&mut self.windows));
            std::mem::forget(std::mem::take(&mut self.sources));
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an endpoint on {:?}", self.domain)
    }
}
