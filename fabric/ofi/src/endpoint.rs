//! An endpoint for one peer: the windows that the peer writes, the sources of writes, and the queue
//! of completions.

use std::ffi::{c_char, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::iovec;

use crate::domain::{Domain, close};
use crate::error::{Error, OpError};
use crate::library::text;
use crate::mr::{Memory, Mr, Registered, RemoteRegion, register};
use crate::raw;

/// Maximum length of an address, above that of every known provider.
const ADDRESS_BYTES: usize = 256;

const READ: usize = 32;

const FULL: &str = "the completion queue is full, and completions are lost";

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

/// A one-sided write.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// Number of the send, returned in its completion. Unique among outstanding sends.
    pub send: usize,
    /// Index of the source.
    pub source: usize,
    /// Offset in the source, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
    /// Destination.
    pub target: RemoteRegion,
    /// Immediate data for the peer's completion; without it, the peer gets no completion.
    pub data: Option<u64>,
}

/// Result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A write is complete, and its source is free.
    Sent {
        /// Number of the send.
        send: usize,
    },
    /// A write of the peer has arrived.
    Arrived {
        /// Immediate data of the write.
        data: u64,
        /// Length in bytes, if the provider reports one; libfabric does not guarantee it.
        len: usize,
    },
}

/// An [`Outcome`], with the consumed receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The result.
    pub outcome: Outcome,
    /// The consumed receive, to be posted again.
    pub receive: Option<usize>,
}

/// Error of an operation, or of the whole endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {text} ({errno}){detail}")]
pub struct Failed {
    /// The failed operation or call.
    pub what: &'static str,
    /// libfabric's error number.
    pub errno: i32,
    /// libfabric's text for `errno`.
    pub text: String,
    /// The provider's text in brackets, or empty.
    pub detail: String,
}

/// Objects, closed in this order.
struct Objects {
    pub endpoint: *mut raw::fid_ep,
    pub queue: *mut raw::fid_cq,
    addresses: *mut raw::fid_av,
}

/// An endpoint for one peer.
pub struct Endpoint {
    objects: Objects,
    wait_fd: Option<RawFd>,
    peer: AtomicU64,
    /// Contexts for the provider: one for each send, then one for each receive.
    contexts: Box<[raw::fi_context2]>,
    sends: usize,
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
    /// Opens an endpoint that sends from `sources`. The completion queue has a wait descriptor if
    /// the provider supports one.
    ///
    /// # Errors
    /// [`Error::Call`] if the provider refuses an object; it names the object.
    pub fn open(
        domain: &Arc<Domain>,
        sources: Vec<Arc<Mr>>,
        depths: Depths,
    ) -> Result<Self, Error> {
        let doing = |what: &str| format!("opening {what} on {}", domain.info().domain());
        let failed = |call, code: i32, what: &str| domain.failed(call, code.into(), doing(what));
        let check = |call, code: i32, what: &str| match code {
            0 => Ok(()),
            code => Err(failed(call, code, what)),
        };
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
        let raw_domain = domain.raw();
        let none = ptr::null_mut();
        let info = domain.info().raw().as_ptr();
        // SAFETY: the domain is open, with the provider's table; each call writes the object for
        // the next call.
        unsafe {
            let ops = (*raw_domain).ops;
            // All zeroes are a valid `fi_av_attr`.
            let mut attr: raw::fi_av_attr = std::mem::zeroed();
            attr.count = 1;
            let mut code = -libc::ENOSYS;
            // Some providers support only `FI_AV_MAP`.
            for type_ in [raw::FI_AV_TABLE, raw::FI_AV_MAP] {
                attr.type_ = type_;
                if code != 0 {
                    let addresses = &raw mut this.objects.addresses;
                    code = raw::call!(ops, av_open(raw_domain, &raw mut attr, addresses, none));
                }
            }
            check("fi_av_open", code, "an address vector")?;
            let endpoint = &raw mut this.objects.endpoint;
            let code = raw::call!(ops, endpoint(raw_domain, info, endpoint, none));
            check("fi_endpoint", code, "an endpoint")?;
            let fid: *mut raw::fid = this.objects.endpoint.cast();
            let ops = (*fid).ops;
            let both = raw::FI_TRANSMIT | raw::FI_RECV;
            let code = raw::call!(ops, bind(fid, this.objects.queue.cast(), both));
            check("fi_ep_bind", code, "an endpoint")?;
            let code = raw::call!(ops, bind(fid, this.objects.addresses.cast(), 0));
            check("fi_ep_bind", code, "an endpoint")?;
            let code = raw::call!(ops, control(fid, raw::FI_ENABLE, none));
            // `ofi_rxm` sizes a queue for FI_UNIVERSE_SIZE peers, perhaps above the device's limit.
            let what = match domain.info().provider().contains("ofi_rxm") {
                true => "an endpoint (FI_UNIVERSE_SIZE=16 in the environment asks for less)",
                false => "an endpoint",
            };
            check("fi_enable", code, what)?;
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
            // The provider accepts `FI_WAIT_FD`, but has no descriptor.
            // SAFETY: the queue was just opened and is unused.
            unsafe { close(queue) };
            self.objects.queue = ptr::null_mut();
        }
        Err(libc::ENOSYS)
    }

    /// Returns the endpoint's address, for the peer's [`Endpoint::introduce`].
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

    /// Lets the peer write into `memory` until this endpoint is closed. `key` permits the writes,
    /// unless the provider chooses keys: pass an unguessable number.
    ///
    /// # Errors
    /// [`Error::Call`], for example if the key is in use (`FI_ENOKEY`).
    pub fn expose(&mut self, memory: Memory, key: u64) -> Result<RemoteRegion, Error> {
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

    fn context(&self, index: usize) -> *mut c_void {
        (&raw const self.contexts[index]).cast_mut().cast()
    }

    /// Posts one write.
    ///
    /// # Errors
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

    fn index(&self, context: *mut c_void) -> Option<usize> {
        let base = self.contexts.as_ptr() as usize;
        let at = (context as usize).checked_sub(base)? / size_of::<raw::fi_context2>();
        (at < self.contexts.len()).then_some(at)
    }

    /// Posts receive number `receive`, from 0, for a write with data.
    pub fn receive(&self, receive: usize) -> Result<(), OpError> {
        let endpoint = self.objects.endpoint;
        let refused = |errno| OpError {
            call: "fi_recv",
            errno,
        };
        if self.sends + receive >= self.contexts.len() {
            return Err(refused(libc::EINVAL));
        }
        let context = self.context(self.sends + receive);
        let (none, any_peer) = (ptr::null_mut(), raw::FI_ADDR_UNSPEC);
        // SAFETY: the endpoint is open. A receive of zero bytes uses only its context, which lives
        // until the endpoint is closed.
        let code: isize = unsafe {
            raw::call!(
                (*endpoint).msg,
                recv(endpoint, none, 0, none, any_peer, context)
            )
        };
        match code {
            0 => Ok(()),
            code => Err(refused(i32::try_from(-code).unwrap_or(libc::EIO))),
        }
    }

    /// Drives the provider's progress, and passes completions to `sink`. Returns their number.
    ///
    /// # Errors
    /// [`Failed`]: an operation or the queue failed. Earlier completions were passed to `sink`.
    pub fn poll(&self, sink: &mut dyn FnMut(Completion)) -> Result<usize, Failed> {
        let mut entries = [raw::fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        }; READ];
        let queue = self.objects.queue;
        // SAFETY: the queue is open; the call writes at most `READ` entries of the queue's format.
        let code: isize =
            unsafe { raw::call!((*queue).ops, read(queue, entries.as_mut_ptr().cast(), READ)) };
        if code == -(libc::EAGAIN as isize) {
            return Ok(0);
        }
        if code < 0 {
            return Err(self.failure(i32::try_from(-code).unwrap_or(libc::EIO)));
        }
        let n = (code as usize).min(READ);
        for entry in &entries[..n] {
            let index = self.index(entry.op_context);
            if entry.flags & raw::FI_REMOTE_WRITE != 0 {
                sink(Completion {
                    outcome: Outcome::Arrived {
                        data: entry.data,
                        len: entry.len,
                    },
                    receive: index.and_then(|i| i.checked_sub(self.sends)),
                });
            } else if let Some(send) = index.filter(|i| *i < self.sends) {
                sink(Completion {
                    outcome: Outcome::Sent { send },
                    receive: None,
                });
            }
        }
        Ok(n)
    }

    fn failure(&self, errno: i32) -> Failed {
        let ofi = self.domain.info().ofi();
        let plain = |what, errno| Failed {
            what,
            errno,
            text: ofi.strerror(errno),
            detail: String::new(),
        };
        match errno {
            raw::FI_EAVAIL => {}
            raw::FI_EOVERRUN => return plain(FULL, errno),
            _ => return plain("fi_cq_read", errno),
        }
        let queue = self.objects.queue;
        // Twice the size: newer libraries write longer entries.
        let mut entry = std::mem::MaybeUninit::<[raw::fi_cq_err_entry; 2]>::zeroed();
        let first = entry.as_mut_ptr().cast::<raw::fi_cq_err_entry>();
        // SAFETY: the queue is open; all zeroes are a valid entry without a buffer for the
        // provider's data.
        let entry = unsafe {
            match raw::call!((*queue).ops, readerr(queue, first, 0)) {
                1 => first.read(),
                code => return plain("fi_cq_readerr", i32::try_from(-code).unwrap_or(libc::EIO)),
            }
        };
        let what = match self.index(entry.op_context) {
            _ if entry.err == raw::FI_EOVERRUN => FULL,
            Some(i) if i < self.sends => "a write failed",
            Some(_) => "a receive failed",
            None => "a write of the peer failed",
        };
        let mut words = [0 as c_char; 128];
        // SAFETY: the queue is open, and the call truncates the text to its buffer.
        let detail = unsafe {
            let (code, data, at) = (entry.prov_errno, entry.err_data, words.as_mut_ptr());
            let say = (*(*queue).ops).strerror;
            let said = say.map_or(ptr::null(), |say| say(queue, code, data, at, 127));
            text(said).unwrap_or_default()
        };
        let mut failed = plain(what, entry.err);
        if !detail.is_empty() && detail != failed.text {
            failed.detail = format!(" [{detail}]");
        }
        failed
    }

    /// Returns a descriptor that is readable when [`Endpoint::poll`] has work; `None` if the
    /// provider has none. The descriptor stays open as long as the endpoint.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait_fd
    }

    /// Whether a wait on the descriptor is safe; false if completions are pending.
    pub fn may_sleep(&self) -> bool {
        let mut queue: *mut raw::fid = self.objects.queue.cast();
        let fabric = self.domain.fabric();
        // SAFETY: queue and fabric are open.
        unsafe {
            (*(*fabric).ops)
                .trywait
                .is_some_and(|ask| ask(fabric, &raw mut queue, 1) == 0)
        }
    }
}

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
