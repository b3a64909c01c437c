//! The stub's objects. Each begins with the structure that libibverbs defines, so that a pointer to
//! the one is a pointer to the other; what follows is read and written under the fabric's lock
//! only.

use std::collections::VecDeque;
use std::ffi::c_char;
use std::ptr;
use std::sync::OnceLock;

use super::fabric::Counts;
use super::{DEVICES, table};
use crate::raw;

/// The devices, made once and never freed.
struct Devices([*mut raw::ibv_device; DEVICES]);

// SAFETY: the devices are never written after they are made.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

/// The devices' addresses.
pub fn devices() -> &'static [*mut raw::ibv_device; DEVICES] {
    static MADE: OnceLock<Devices> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        Devices(std::array::from_fn(|index| {
            let mut device = raw::ibv_device {
                _ops: [ptr::null(); 2],
                node_type: raw::IBV_NODE_CA as i32,
                transport_type: raw::IBV_TRANSPORT_IB as i32,
                name: [0; 64],
                dev_name: [0; 64],
                dev_path: [0; 256],
                ibdev_path: [0; 256],
            };
            for (to, from) in device.name.iter_mut().zip(format!("stub{index}").bytes()) {
                *to = from as c_char;
            }
            Box::into_raw(Box::new(device))
        }))
    });
    &made.0
}

/// Whether a device is one of the stub's.
pub fn is_ours(device: *mut raw::ibv_device) -> bool {
    devices().contains(&device)
}

/// A queue of events with a descriptor that is readable while there are any.
pub struct Events<T> {
    pub fd: i32,
    pub waiting: VecDeque<T>,
}

impl<T> Events<T> {
    /// `None` when the process has no descriptor left.
    pub fn new() -> Option<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        (fd >= 0).then(|| Self {
            fd,
            waiting: VecDeque::with_capacity(64),
        })
    }

    pub fn raise(&mut self, event: T) {
        self.waiting.push_back(event);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight readable bytes, to an event descriptor of this queue's own.
        unsafe { libc::write(self.fd, one.as_ptr().cast(), one.len()) };
    }
}

impl<T> Drop for Events<T> {
    fn drop(&mut self) {
        // SAFETY: this queue's own descriptor, closed once.
        unsafe { libc::close(self.fd) };
    }
}

#[repr(C)]
pub struct StubContext {
    pub raw: raw::ibv_context,
    pub port_up: bool,
    pub counts: Counts,
    pub events: Events<raw::ibv_async_event>,
}

impl StubContext {
    pub fn create(device: *mut raw::ibv_device) -> Option<Box<Self>> {
        let events = Events::new()?;
        let raw = raw::ibv_context {
            device,
            ops: table::operations(),
            cmd_fd: -1,
            async_fd: events.fd,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::null_mut(),
        };
        Some(Box::new(Self {
            raw,
            port_up: true,
            counts: Counts::default(),
            events,
        }))
    }
}

/// A registered region, in the fabric's table under its key.
#[derive(Clone, Copy)]
pub struct Region {
    pub key: u32,
    pub pd: *mut raw::ibv_pd,
    pub addr: u64,
    pub len: u64,
    pub access: u32,
    /// Where its bytes are mapped for the stub to write, if that is not `addr`: that of a dma-buf.
    pub mapped: Option<u64>,
}

#[repr(C)]
pub struct StubChannel {
    pub raw: raw::ibv_comp_channel,
    pub events: Events<*mut StubCq>,
}

/// A completion, and how many places of its queue pair's send queue it frees when it is polled.
#[derive(Clone, Copy)]
pub struct Entry {
    pub wc: raw::ibv_wc,
    pub frees: u32,
}

/// What the next entry of a queue does to its channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    No,
    Solicited,
    Any,
}

#[repr(C)]
pub struct StubCq {
    pub raw: raw::ibv_cq,
    pub entries: VecDeque<Entry>,
    pub armed: Armed,
}

#[repr(C)]
pub struct StubQp {
    pub raw: raw::ibv_qp,
    pub caps: raw::ibv_qp_cap,
    pub dest_qp_num: u32,
    /// Whether peers may write through it.
    pub remote_write: bool,
    /// Whether it waits without end for a peer that has no receive.
    pub waits_for_receives: bool,
    pub discard: bool,
    /// What is posted is taken and never completes.
    pub swallow: bool,
    /// Places of the send queue in use.
    pub outstanding: u32,
    /// Of those, the ones since the last that will complete.
    pub unsignaled: u32,
    /// Numbers of the receives that are posted.
    pub receives: VecDeque<u64>,
}
