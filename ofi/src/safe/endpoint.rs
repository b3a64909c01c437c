//! An endpoint: one peer, windows that it writes, memory that it is sent.

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
        let info = domain.info().raw().as_ptr();
        // SAFETY: the domain is open and its table the provider's; each call writes the object that
        // the next one is given.
        unsafe {
            let ops = (*raw_domain).ops;
            let mut code = -libc::ENOSYS;
            // Some have maps alone.
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
                // `ofi_rxm` makes a queue for that many peers, which a device may not have.
                let what = match domain.info().provider().contains("ofi_rxm") {
                    true => "an endpoint (FI_UNIVERSE_SIZE=16 in the environment asks for less)",
                    false => "an endpoint",
                };
                return Err(failed("fi_enable", code, what));
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
            let (attr, queue) = (&raw mut attr, &raw mut self.objects.queue);
            // SAFETY: the domain is open and its table the provider's; the queue is written.
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
            // SAFETY: the queue is open; the descriptor is written.
            let code = unsafe { raw::call!((*queue).ops, control(queue, raw::FI_GETWAIT, at)) };
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

    /// An address in the provider's own words.
    #[must_use]
    pub fn words(&self, address: &[u8]) -> String {
        let address = padded(address);
        let mut words = [0 as c_char; 128];
        let mut len = words.len();
        let addresses = self.objects.addresses;
        // SAFETY: the vector is open, the address is followed by zeroes up to any provider's
        // length, and the text is cut to the room it has.
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
        let bytes = padded(address);
        let mut peer = raw::FI_ADDR_UNSPEC;
        let addresses = self.objects.addresses;
        // SAFETY: the vector is open, the address is followed by zeroes up to any provider's
        // length, and `peer` is written.
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
        let endpoint = self.objects.endpoint;
        // SAFETY: the endpoint is open and enabled. The payload was found to lie inside a source
        // that lives until the endpoint is closed, and so does the context.
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

/// An address, and zeroes behind it up to any provider's length.
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
