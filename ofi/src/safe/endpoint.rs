//! An endpoint: one peer, windows that it writes, memory that it is sent.

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::iovec;

use super::domain::{Domain, close};
use super::mr::{Memory, Mr, Registered, RemoteRegion, register};
use crate::error::{Error, OpError};
use crate::raw;

/// Longest address of any provider that is known, with room to spare.
const ADDRESS_BYTES: usize = 256;

/// How much an endpoint can have under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Writes.
    pub sends: usize,
    /// Receives that are posted for writes with data, where the provider wants them.
    pub receives: usize,
    /// Entries of the completion queue.
    pub completions: usize,
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Address in the peer's region, as the region counts.
    pub addr: u64,
    /// The region's key.
    pub key: u64,
}

/// One write.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// Which of the sends it is: comes back with its completion. Not one that is under way.
    pub send: usize,
    /// Which of the sources it is sent from.
    pub source: usize,
    /// Where it begins there.
    pub offset: usize,
    /// Its length.
    pub len: usize,
    /// Where it goes.
    pub target: Target,
    /// What the peer's completion brings; without it, the peer hears nothing.
    pub data: Option<u64>,
    /// Complete only once the peer has it.
    pub delivered: bool,
}

/// Objects to be closed in this order.
pub(super) struct Objects {
    pub endpoint: *mut raw::fid_ep,
    pub queue: *mut raw::fid_cq,
    addresses: *mut raw::fid_av,
}

/// See the module.
pub struct Endpoint {
    pub(super) objects: Objects,
    pub(super) wait_fd: Option<RawFd>,
    peer: AtomicU64,
    /// One for each send, then one for each receive: what a provider uses meanwhile.
    pub(super) contexts: Box<[raw::fi_context2]>,
    pub(super) sends: usize,
    // After the endpoint: what its operations touch.
    windows: Vec<Registered>,
    sources: Vec<Arc<Mr>>,
    domain: Arc<Domain>,
}

// SAFETY: the domain was opened with `FI_THREAD_SAFE`: the provider serialises what must be.
// Contexts are the provider's alone while an operation is under way, and nobody's otherwise.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    /// Opens one that sends from `sources`. It can sleep where the provider has descriptors to
    /// sleep on.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] names what the provider refused.
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
        // SAFETY: the domain is open and its table the provider's; each call writes the object that
        // the next one is given.
        unsafe {
            let ops = &*(*raw_domain).ops;
            let mut code = ops.av_open.map_or(-libc::ENOSYS, |open| {
                open(
                    raw_domain,
                    &raw mut attr,
                    &raw mut this.objects.addresses,
                    none,
                )
            });
            if code != 0 {
                // Some have maps alone.
                attr.type_ = raw::FI_AV_MAP;
                code = ops.av_open.map_or(-libc::ENOSYS, |open| {
                    open(
                        raw_domain,
                        &raw mut attr,
                        &raw mut this.objects.addresses,
                        none,
                    )
                });
            }
            if code != 0 {
                return Err(failed("fi_av_open", code, "an address vector"));
            }
            let info = domain.info().raw().as_ptr();
            let code = ops.endpoint.map_or(-libc::ENOSYS, |open| {
                open(raw_domain, info, &raw mut this.objects.endpoint, none)
            });
            if code != 0 {
                return Err(failed("fi_endpoint", code, "an endpoint"));
            }
            let endpoint = this.objects.endpoint;
            let fid: *mut raw::fid = endpoint.cast();
            let ops = &*(*fid).ops;
            let both = raw::FI_TRANSMIT | raw::FI_RECV;
            let queue: *mut raw::fid = this.objects.queue.cast();
            let bound = ops
                .bind
                .map_or(-libc::ENOSYS, |bind| match bind(fid, queue, both) {
                    0 => bind(fid, this.objects.addresses.cast(), 0),
                    code => code,
                });
            if bound != 0 {
                return Err(failed("fi_ep_bind", bound, "an endpoint"));
            }
            let enabled = ops
                .control
                .map_or(-libc::ENOSYS, |c| c(fid, raw::FI_ENABLE, none));
            if enabled != 0 {
                // `ofi_rxm` makes a queue for that many peers, which a device may not have.
                let what = match domain.info().provider().contains("ofi_rxm") {
                    true => "an endpoint (FI_UNIVERSE_SIZE=16 in the environment asks for less)",
                    false => "an endpoint",
                };
                return Err(failed("fi_enable", enabled, what));
            }
        }
        Ok(this)
    }

    /// A queue with a descriptor, or without where the provider has none.
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
            let none = ptr::null_mut();
            // SAFETY: the domain is open and its table the provider's; the queue is written.
            let code = unsafe {
                (*(*domain).ops).cq_open.map_or(-libc::ENOSYS, |open| {
                    open(domain, &raw mut attr, &raw mut self.objects.queue, none)
                })
            };
            if code != 0 && wait_obj == raw::FI_WAIT_NONE {
                return Err(code);
            }
            if code != 0 {
                continue;
            }
            let mut fd: RawFd = -1;
            let queue: *mut raw::fid = self.objects.queue.cast();
            // SAFETY: the queue is open; the descriptor is written.
            let code = unsafe {
                (*(*queue).ops).control.map_or(-libc::ENOSYS, |control| {
                    control(queue, raw::FI_GETWAIT, (&raw mut fd).cast())
                })
            };
            if wait_obj == raw::FI_WAIT_NONE || (code == 0 && fd >= 0) {
                self.wait_fd = (wait_obj == raw::FI_WAIT_FD).then_some(fd);
                return Ok(());
            }
            // It takes the wish and has no descriptor after all.
            // SAFETY: just opened, and used by nobody.
            unsafe { close(queue) };
            self.objects.queue = ptr::null_mut();
        }
        Err(libc::ENOSYS)
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Its address, for the peer's [`Endpoint::introduce`].
    ///
    /// # Errors
    ///
    /// [`Error::Call`].
    pub fn address(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0u8; ADDRESS_BYTES];
        let mut len = bytes.len();
        let endpoint = self.objects.endpoint;
        // SAFETY: the endpoint is open; as many bytes are written as there are, at most.
        let code = unsafe {
            let cm = (*endpoint).cm.as_ref();
            cm.and_then(|cm| cm.getname).map_or(-libc::ENOSYS, |name| {
                name(endpoint.cast(), bytes.as_mut_ptr().cast(), &raw mut len)
            })
        };
        if code != 0 || len > bytes.len() {
            let doing = "asking an endpoint for its address".to_owned();
            return Err(self.domain.failed("fi_getname", code.into(), doing));
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    /// An address in the provider's own words.
    #[must_use]
    pub fn words(&self, address: &[u8]) -> String {
        let mut padded = [0u8; ADDRESS_BYTES];
        let n = address.len().min(ADDRESS_BYTES);
        padded[..n].copy_from_slice(&address[..n]);
        let mut text = [0 as c_char; 128];
        let mut len = text.len();
        let addresses = self.objects.addresses;
        // SAFETY: the vector is open, the address is followed by zeroes up to any provider's
        // length, and the text is cut to the room it has.
        unsafe {
            let Some(words) = (*(*addresses).ops).straddr else {
                return "?".to_owned();
            };
            words(
                addresses,
                padded.as_ptr().cast(),
                text.as_mut_ptr(),
                &raw mut len,
            );
            text[text.len() - 1] = 0;
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        }
    }

    /// Lets the peer write into `memory`, until this endpoint is closed. `key` is the leave, where
    /// the provider does not choose one: a number that nobody can guess.
    ///
    /// # Errors
    ///
    /// [`Error::Call`]: among others where the key is in use (`FI_ENOKEY`).
    pub fn expose(&mut self, memory: Arc<dyn Memory>, key: u64) -> Result<RemoteRegion, Error> {
        let endpoint = self.objects.endpoint;
        let window = register(&self.domain, memory, raw::FI_REMOTE_WRITE, key, endpoint)?;
        let by_address = self.domain.info().has_mr_mode(raw::FI_MR_VIRT_ADDR);
        let remote = window.remote(by_address);
        self.windows.push(window);
        Ok(remote)
    }

    /// Makes the peer known. It has to be before the peer's first write, and before one to it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`]: the address is none of this provider's, or the vector is full.
    pub fn introduce(&self, address: &[u8]) -> Result<(), Error> {
        let mut padded = [0u8; ADDRESS_BYTES];
        let n = address.len().min(ADDRESS_BYTES);
        padded[..n].copy_from_slice(&address[..n]);
        let mut peer = raw::FI_ADDR_UNSPEC;
        let addresses = self.objects.addresses;
        // SAFETY: the vector is open, the address is followed by zeroes up to any provider's
        // length, and `peer` is written.
        let inserted = unsafe {
            (*(*addresses).ops).insert.map_or(-libc::ENOSYS, |insert| {
                let at = padded.as_ptr().cast::<c_void>();
                insert(addresses, at, 1, &raw mut peer, 0, ptr::null_mut())
            })
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

    /// Hands one write to the provider.
    ///
    /// # Errors
    ///
    /// [`OpError`]; nothing was posted then. [`OpError::is_again`]: poll, and try once more.
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
        if write.delivered {
            flags |= raw::FI_DELIVERY_COMPLETE;
        }
        let endpoint = self.objects.endpoint;
        // SAFETY: the endpoint is open and enabled. The payload was found to lie inside a source
        // that lives until the endpoint is closed, and so does the context.
        let code = unsafe {
            (*endpoint)
                .rma
                .as_ref()
                .and_then(|rma| rma.writemsg)
                .map_or(-(libc::ENOSYS as isize), |post| {
                    post(endpoint, &raw const message, flags)
                })
        };
        match code {
            0 => Ok(()),
            code => Err(refused(i32::try_from(-code).unwrap_or(libc::EIO))),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Objects {
            endpoint,
            queue,
            addresses,
        } = self.objects;
        // SAFETY: each is null or open, and this is their last use; the endpoint goes before what
        // it is bound to.
        let closed = unsafe {
            let closed = close(endpoint.cast());
            closed && close(queue.cast()) && close(addresses.cast())
        };
        if !closed {
            // The provider may still touch what it was given: that stays for good.
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
