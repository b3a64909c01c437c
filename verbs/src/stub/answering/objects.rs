//! Queues, queue pairs and far ends. Each begins with the structure that libibverbs defines, so
//! that a pointer to the one is a pointer to the other.

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::hint::spin_loop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::MAX_DEVICES;
use crate::raw;

/// What comes back for an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The immediate of the answer.
    pub imm: u32,
    /// Bytes that were written with it.
    pub len: u32,
}

/// See [`far_end`](super::far_end).
pub struct FarEnd {
    pub delay_ns: u64,
    pub answer: Box<dyn Fn(u32) -> Option<Answered> + Send + Sync>,
}

static FAR_ENDS: Mutex<Vec<Arc<FarEnd>>> = Mutex::new(Vec::new());

/// Keeps a far end under a number, for as long as the process lives.
pub fn register(far: FarEnd) -> u32 {
    let mut all = FAR_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Arc::new(far));
    all.len() as u32
}

/// The far end of that number.
pub fn far_end(number: u32) -> Option<Arc<FarEnd>> {
    let all = FAR_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get((number as usize).checked_sub(1)?).cloned()
}

/// The devices, made once and never freed.
struct Devices(Vec<*mut raw::ibv_device>);

// SAFETY: the devices are never written after they are made.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

/// The devices' addresses.
pub fn devices() -> &'static [*mut raw::ibv_device] {
    static MADE: OnceLock<Devices> = OnceLock::new();
    let made = MADE.get_or_init(|| Devices((0..MAX_DEVICES).map(device).collect()));
    &made.0
}

fn device(index: usize) -> *mut raw::ibv_device {
    let mut device = raw::ibv_device {
        _ops: [ptr::null(); 2],
        node_type: raw::IBV_NODE_CA as i32,
        transport_type: raw::IBV_TRANSPORT_IB as i32,
        name: [0; 64],
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    };
    for (to, from) in device.name.iter_mut().zip(format!("feed{index}").bytes()) {
        *to = from as c_char;
    }
    Box::into_raw(Box::new(device))
}

/// A lock that spins: held for some nanoseconds, and hardly ever wanted by two.
#[derive(Default)]
pub struct Lock(AtomicBool);

impl Lock {
    pub fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        let mut tries = 0_u32;
        while self.0.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                spin_loop();
            }
        }
        let result = work();
        self.0.store(false, Ordering::Release);
        result
    }
}

/// On cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
pub struct Apart<T>(pub T);

/// What a post leaves for a poll.
#[derive(Clone, Copy, Default)]
pub struct Entry {
    pub due_ns: u64,
    /// Of a send that completes.
    pub wr_id: u64,
    /// Of an immediate that is answered.
    pub imm: u32,
    pub status: u32,
    pub qp_num: u32,
    pub send: bool,
}

/// A completion queue: a ring that the posts of one queue pair fill, under its lock, and polls
/// empty, under the queue's own.
#[repr(C)]
pub struct AnsweringCq {
    pub raw: raw::ibv_cq,
    ring: Box<[UnsafeCell<Entry>]>,
    pub far: OnceLock<Arc<FarEnd>>,
    /// Entries put in, published at each doorbell.
    head: Apart<AtomicUsize>,
    /// Entries taken out.
    tail: Apart<AtomicUsize>,
    pub polls: Lock,
    /// Receives that are posted.
    pub receives: AtomicUsize,
    pub armed: Apart<AtomicBool>,
}

impl AnsweringCq {
    pub fn new(raw: raw::ibv_cq) -> Self {
        let entries = usize::try_from(raw.cqe).unwrap_or(1).next_power_of_two();
        AnsweringCq {
            raw,
            ring: (0..entries).map(|_| UnsafeCell::default()).collect(),
            far: OnceLock::new(),
            head: Apart::default(),
            tail: Apart::default(),
            polls: Lock::default(),
            receives: AtomicUsize::new(0),
            armed: Apart::default(),
        }
    }

    /// Entries put in so far.
    pub fn head(&self) -> usize {
        self.head.0.load(Ordering::Acquire)
    }

    /// True where nothing is in it, due or not.
    pub fn is_empty(&self) -> bool {
        self.head() == self.tail.0.load(Ordering::Relaxed)
    }

    /// Writes an entry at `at`; false where there is no room. It is not seen before
    /// [`AnsweringCq::publish`].
    ///
    /// # Safety
    /// The caller is the only one that puts entries in.
    pub unsafe fn put(&self, at: usize, entry: Entry) -> bool {
        if at.wrapping_sub(self.tail.0.load(Ordering::Acquire)) == self.ring.len() {
            return false;
        }
        // SAFETY: it is the caller's alone until it is published.
        unsafe { *self.ring[at & (self.ring.len() - 1)].get() = entry };
        true
    }

    /// Makes what was put in up to `head` known.
    pub fn publish(&self, head: usize) {
        self.head.0.store(head, Ordering::Release);
    }

    /// Entries taken out so far: for who holds `polls`.
    pub fn tail(&self) -> usize {
        self.tail.0.load(Ordering::Relaxed)
    }

    /// The entry at `at`.
    ///
    /// # Safety
    /// The caller holds `polls`, and `at` lies between tail and head.
    pub unsafe fn entry(&self, at: usize) -> Entry {
        // SAFETY: published, and not written again before it is taken out.
        unsafe { *self.ring[at & (self.ring.len() - 1)].get() }
    }

    /// Everything before `tail` is taken out.
    pub fn taken(&self, tail: usize) {
        self.tail.0.store(tail, Ordering::Release);
    }
}

/// What a provider writes for a work request: control, remote address and either where the payload
/// lies or the payload.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
pub struct QueueEntry {
    pub opcode: u32,
    pub imm: u32,
    pub flags: u32,
    pub rkey: u32,
    pub remote: u64,
    pub local: u64,
    pub lkey: u32,
    pub length: u32,
    pub inline: [u8; 64],
}

/// A queue pair.
#[repr(C)]
pub struct AnsweringQp {
    pub raw: raw::ibv_qp,
    pub lock: Lock,
    pub entries: Box<[QueueEntry]>,
    pub next: usize,
    pub delay_ns: u64,
}

impl AnsweringQp {
    pub fn new(mut raw: raw::ibv_qp, depth: u32) -> Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        raw.qp_num = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let empty = QueueEntry {
            opcode: 0,
            imm: 0,
            flags: 0,
            rkey: 0,
            remote: 0,
            local: 0,
            lkey: 0,
            length: 0,
            inline: [0; 64],
        };
        AnsweringQp {
            raw,
            lock: Lock::default(),
            entries: vec![empty; (depth.max(1) as usize).next_power_of_two()].into(),
            next: 0,
            delay_ns: 0,
        }
    }
}
