//! Queue pairs of reliable connections (RC), with their state in their type.

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::chain::{RecvChain, SendChain};
use super::cq::{Cq, unsupported};
use super::mr::Pd;
use super::qp_attr::{self, QpCaps, RtrAttr, RtsAttr};
use crate::error::{Error, PostError};
use crate::raw;

mod sealed {
    pub trait Sealed {}
}

/// A state of a queue pair.
pub trait State: sealed::Sealed {}

/// A state in which receives may be posted.
pub trait Receiving: State {}

/// Defines the state types.
macro_rules! states {
    ($($(#[$doc:meta])* $name:ident $(: $receiving:ident)?;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $name {}
            impl sealed::Sealed for $name {}
            impl State for $name {}
            $(impl $receiving for $name {})?
        )*
    };
}

states! {
    /// RESET: created, not bound to a port.
    Reset;
    /// INIT: bound to a port; takes receives.
    Init: Receiving;
    /// RTR (ready to receive): connected; receives.
    Rtr: Receiving;
    /// RTS (ready to send): connected; sends and receives.
    Rts: Receiving;
}

/// An RC queue pair that was moved to state `S`. The device may move it to ERR on its own; its
/// completions then carry an error status.
pub struct Qp<S: State> {
    inner: Inner,
    state: PhantomData<fn() -> S>,
}

struct Inner {
    raw: NonNull<raw::ibv_qp>,
    send: raw::post_send_fn,
    recv: raw::post_recv_fn,
    caps: QpCaps,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
}

// SAFETY: providers lock in every call on a queue pair; only `drop` destroys it.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

impl Qp<Reset> {
    /// Creates a queue pair. Only signaled sends complete.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`]; [`Error::Mismatch`] if a queue belongs to another device; [`Error::Verb`].
    pub fn create(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        caps: QpCaps,
    ) -> Result<Self, Error> {
        let context = pd.context();
        caps.check(context)?;
        context.check_same("the send completion queue", send_cq.context())?;
        context.check_same("the receive completion queue", recv_cq.context())?;
        let (send, recv) = {
            // SAFETY: `context` is open, and its operations table is constant.
            let ops = unsafe { &(*context.as_raw()).ops };
            ops.post_send
                .zip(ops.post_recv)
                .ok_or_else(|| unsupported("posting work requests", context))?
        };
        let mut init = raw::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            srq: ptr::null_mut(),
            cap: caps.to_raw(),
            qp_type: raw::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are live; `init` is writable through the call.
        let raw = unsafe { (context.api().create_qp)(pd.as_raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::verb_errno("ibv_create_qp", || {
                format!(
                    "creating a queue pair with {} sends, {} receives and {} inline bytes on {}",
                    caps.max_send_wr,
                    caps.max_recv_wr,
                    caps.max_inline_data,
                    context.name()
                )
            })
        })?;
        let inner = Inner {
            raw,
            send,
            recv,
            caps: QpCaps::from_raw(&init.cap),
            pd: Arc::clone(pd),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
        };
        Ok(Self {
            inner,
            state: PhantomData,
        })
    }

    /// RESET to INIT: binds to a port, counted from 1, and permits the peer's writes.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]; the queue pair is then destroyed.
    pub fn into_init(self, port: u8) -> Result<Qp<Init>, Error> {
        self.step(qp_attr::init(port), || {
            format!("binding to port {port} (RESET to INIT)")
        })
    }
}

impl Qp<Init> {
    /// INIT to RTR: connects the queue pair; it receives from then on.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] or [`Error::Verb`]; the queue pair is then destroyed.
    pub fn into_rtr(self, attr: &RtrAttr) -> Result<Qp<Rtr>, Error> {
        self.step(attr.to_raw()?, || {
            let gid = attr.path.gid();
            let peer = gid.map_or(String::new(), |gid| format!(" at GID {gid}"));
            format!(
                "connecting to queue pair {}{peer}, LID {} (INIT to RTR)",
                attr.dest_qp_num,
                attr.path.lid()
            )
        })
    }
}

impl Qp<Rtr> {
    /// RTR to RTS: the queue pair sends from then on.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] or [`Error::Verb`]; the queue pair is then destroyed.
    pub fn into_rts(self, attr: &RtsAttr) -> Result<Qp<Rts>, Error> {
        self.step(attr.to_raw()?, || {
            "starting to send (RTR to RTS)".to_owned()
        })
    }
}

impl Qp<Rts> {
    /// Posts all of `chain` with one doorbell. Returns the number of posted work requests.
    ///
    /// # Errors
    ///
    /// [`PostError`]; work requests that the device refused stay in the chain.
    pub fn post_send(&self, chain: &mut SendChain) -> Result<usize, PostError> {
        chain.post(|first, bad| {
            // SAFETY: the queue pair is live. The chain outlives the call and owns its linked work
            // requests and their inline bytes. Keys name all other memory, and the device checks
            // keys.
            unsafe { (self.inner.send)(self.inner.raw.as_ptr(), first, bad) }
        })
    }
}

impl<S: Receiving> Qp<S> {
    /// Posts `count` receives of `chain` with one call, at most as many as the chain holds. Returns
    /// the number of posted receives.
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of receives posted before the failure.
    pub fn post_recv(&self, chain: &mut RecvChain, count: usize) -> Result<usize, PostError> {
        chain.post(count, |first, bad| {
            // SAFETY: the queue pair is live. The chain outlives the call and owns its linked
            // receives, which have no memory.
            unsafe { (self.inner.recv)(self.inner.raw.as_ptr(), first, bad) }
        })
    }
}

impl<S: State> Qp<S> {
    /// Moves the queue pair to ERR: posted and later work requests complete with
    /// `IBV_WC_WR_FLUSH_ERR`. Takes `&self`, since other threads may be posting.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn set_error(&self) -> Result<(), Error> {
        self.modify(qp_attr::error(), || "moving it to ERR".to_owned())
    }

    /// The queue pair's number on its device.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the queue pair is live, and its number is constant.
        unsafe { (*self.inner.raw.as_ptr()).qp_num }
    }

    /// The sizes that the device has granted; they may exceed the requested ones.
    #[must_use]
    pub fn caps(&self) -> QpCaps {
        self.inner.caps
    }

    fn step<T: State>(
        self,
        attr: (raw::ibv_qp_attr, u32),
        doing: impl FnOnce() -> String,
    ) -> Result<Qp<T>, Error> {
        self.modify(attr, doing)?;
        Ok(Qp {
            inner: self.inner,
            state: PhantomData,
        })
    }

    fn modify(
        &self,
        (mut attr, mask): (raw::ibv_qp_attr, u32),
        doing: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let context = self.inner.pd.context();
        let raw = self.inner.raw.as_ptr();
        // SAFETY: the queue pair is live; `attr` holds every attribute that `mask` names.
        match unsafe { (context.api().modify_qp)(raw, &raw mut attr, mask as c_int) } {
            0 => Ok(()),
            result => Err(Error::verb("ibv_modify_qp", result, || {
                let (doing, number, device) = (doing(), self.qp_num(), context.name());
                format!("{doing}, queue pair {number} on {device}")
            })),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `create` made the queue pair, and only this `drop` destroys it.
        let result = unsafe { (self.pd.context().api().destroy_qp)(self.raw.as_ptr()) };
        if result != 0 {
            mem::forget((
                Arc::clone(&self.pd),
                Arc::clone(&self.send_cq),
                Arc::clone(&self.recv_cq),
            ));
        }
    }
}

impl<S: State> fmt::Debug for Qp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, device) = (self.qp_num(), self.inner.pd.context().name());
        write!(f, "Qp({number} of {device}: {:?})", self.inner.caps)
    }
}
