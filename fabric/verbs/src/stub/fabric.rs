//! State of all stub devices, and the effects of work requests on it.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::{Index, IndexMut};
use std::os::fd::FromRawFd;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::raw::*;

/// Objects by number, from 1. A number is never reused.
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Table<T> {
    pub(crate) fn add(&mut self, object: T) -> u32 {
        self.0.push(Some(object));
        self.0.len() as u32
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.0.get((number as usize).wrapping_sub(1))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.0.get_mut((number as usize).wrapping_sub(1))?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.0.get_mut((number as usize).wrapping_sub(1))?.take()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        self.get(number).expect("an object that lives")
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("an object that lives")
    }
}

/// A queue of events, with a descriptor that is readable while the queue is not empty.
pub(crate) struct Events<T> {
    pub fd: File,
    pub waiting: VecDeque<T>,
}

impl<T> Events<T> {
    /// `None` if the process has no free descriptor.
    pub(crate) fn new() -> Option<Self> {
        let flags = libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: `eventfd` takes no pointers.
        let fd = unsafe { libc::eventfd(0, flags) };
        (fd >= 0).then(|| Self {
            // SAFETY: the call above returned `fd`, and nothing else owns it.
            fd: unsafe { File::from_raw_fd(fd) },
            waiting: VecDeque::with_capacity(64),
        })
    }

    pub(crate) fn raise(&mut self, event: T) {
        self.waiting.push_back(event);
        let _ = self.fd.write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        // An error means that the counter is 0: the queue is empty.
        let _ = self.fd.read(&mut [0; 8]);
        self.waiting.pop_front()
    }
}

pub(crate) struct Device {
    /// Index of the device, from 0.
    pub index: u8,
    pub up: bool,
    pub events: Events<ibv_async_event>,
}

/// A registered region. The key is the region's number followed by a constant byte, so that a key
/// with one wrong bit is invalid.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub pd: *mut ibv_pd,
    pub addr: u64,
    pub len: u64,
    pub access: u32,
    /// Address of the region's bytes in this process; differs from `addr` for a dma-buf.
    pub mapped: u64,
}

const KEY: u32 = 0x5a;

/// A completion, and the number of send queue entries that polling it frees.
#[derive(Clone, Copy)]
pub(crate) struct CqEntry {
    wc: ibv_wc,
    frees: u32,
}

/// The kind of entry that raises an event on the queue's channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

pub(crate) struct Cq {
    pub raw: *mut ibv_cq,
    pub context: u32,
    pub channel: Option<u32>,
    pub depth: usize,
    pub entries: VecDeque<CqEntry>,
    pub armed: Armed,
}

pub(crate) struct Qp {
    pub raw: *mut ibv_qp,
    pub context: u32,
    pub pd: *mut ibv_pd,
    /// Numbers of the send and the receive completion queue.
    pub cqs: [u32; 2],
    pub caps: ibv_qp_cap,
    pub state: u32,
    pub peer: u32,
    pub remote_write: bool,
    /// Whether a send is retried without end while the peer has no receive.
    pub waits_for_receives: bool,
    /// Posted work requests are taken and never complete.
    pub swallow: bool,
    pub outstanding: u32,
    /// Send queue entries in use after the last entry that will complete.
    pub unsignaled: u32,
    pub receives: VecDeque<u64>,
}

/// Numbers of live objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Live {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Registrations.
    pub regions: usize,
}

pub(crate) struct Fabric {
    pub contexts: Table<Device>,
    pub channels: Table<Events<*mut ibv_cq>>,
    pub cqs: Table<Cq>,
    pub qps: Table<Qp>,
    pub regions: Table<Region>,
}

// SAFETY: the fabric compares and returns its pointers, and never dereferences them.
unsafe impl Send for Fabric {}

static FABRIC: Mutex<Fabric> = Mutex::new(Fabric {
    contexts: Table(Vec::new()),
    channels: Table(Vec::new()),
    cqs: Table(Vec::new()),
    qps: Table(Vec::new()),
    regions: Table(Vec::new()),
});

/// Calls `work` under the stub's single lock.
pub(crate) fn with<R>(work: impl FnOnce(&mut Fabric) -> R) -> R {
    work(&mut FABRIC.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A failed write: the sender's status, and whether the peer's queue pair fails too.
type Failure = (u32, bool);

impl Fabric {
    pub(crate) fn add_region(&mut self, region: Region) -> u32 {
        self.regions.add(region) << 8 | KEY
    }

    pub(crate) fn remove_region(&mut self, key: u32) -> Option<Region> {
        self.regions.remove(key >> 8)
    }

    /// Address in this process of `len` bytes at `addr`. `None` unless the region of `key` contains
    /// these bytes, belongs to `pd` and grants `access`.
    fn mapped(&self, key: u32, pd: *mut ibv_pd, addr: u64, len: u64, access: u32) -> Option<u64> {
        let region = self.regions.get(key >> 8).filter(|_| key & 0xff == KEY)?;
        let offset = addr.checked_sub(region.addr)?;
        let within = offset <= region.len && len <= region.len - offset;
        let allowed = within && region.pd == pd && region.access & access == access;
        allowed.then(|| region.mapped + offset)
    }

    pub(crate) fn raise(&mut self, context: u32, event_type: u32, element: ibv_async_element) {
        self.contexts[context].events.raise(ibv_async_event {
            element,
            event_type,
        });
    }

    /// Executes one work request. Returns 0, or an errno if the stub refuses the request.
    ///
    /// # Safety
    /// The bytes of an inline `sge` are readable; registered regions are mapped.
    pub(crate) unsafe fn send(
        &mut self,
        number: u32,
        wr: &ibv_send_wr,
        sge: Option<&ibv_sge>,
    ) -> c_int {
        let waits = self.waits(number, wr);
        let qp = &mut self.qps[number];
        let inline = wr.send_flags & IBV_SEND_INLINE != 0;
        let length = sge.map_or(0, |sge| sge.length);
        let ready = [IBV_QPS_RTS, IBV_QPS_ERR].contains(&qp.state);
        if !ready || wr.num_sge > 1 || (inline && length > qp.caps.max_inline_data) {
            return libc::EINVAL;
        }
        if qp.outstanding == qp.caps.max_send_wr || waits {
            return libc::ENOMEM;
        }
        qp.outstanding += 1;
        qp.unsignaled += 1;
        if qp.swallow && qp.state == IBV_QPS_RTS {
            return 0;
        }
        // SAFETY: `send`'s contract covers `sge` and the regions.
        match unsafe { self.carry(number, wr, sge) } {
            Ok(()) if wr.send_flags & IBV_SEND_SIGNALED == 0 => {}
            Ok(()) => self.complete_send(number, wr.wr_id, IBV_WC_SUCCESS),
            Err((status, breaks_peer)) => {
                self.complete_send(number, wr.wr_id, status);
                self.enter_error(number);
                let peer = self.qps[number].peer;
                if let (true, Some(qp)) = (breaks_peer, self.qps.get(peer)) {
                    let (context, element) = (qp.context, ibv_async_element { qp: qp.raw });
                    self.raise(context, IBV_EVENT_QP_ACCESS_ERR, element);
                    self.enter_error(peer);
                }
            }
        }
        0
    }

    /// Whether the peer has no receive for this request and the sender retries without end. A
    /// device would take the request and wait; the stub refuses it.
    fn waits(&self, number: u32, wr: &ibv_send_wr) -> bool {
        let qp = &self.qps[number];
        let sends = qp.state == IBV_QPS_RTS && !qp.swallow && qp.waits_for_receives;
        let peer = self.qps.get(qp.peer);
        sends
            && wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
            && peer.is_some_and(|peer| peer.state == IBV_QPS_RTS && peer.receives.is_empty())
    }

    /// Executes a write: checks both sides, copies, and delivers the immediate.
    ///
    /// # Safety
    /// The contract of [`Fabric::send`].
    unsafe fn carry(
        &mut self,
        number: u32,
        wr: &ibv_send_wr,
        sge: Option<&ibv_sge>,
    ) -> Result<(), Failure> {
        let qp = &self.qps[number];
        if qp.state == IBV_QPS_ERR {
            return Err((IBV_WC_WR_FLUSH_ERR, false));
        }
        let from = match sge {
            None => 0,
            Some(sge) if wr.send_flags & IBV_SEND_INLINE != 0 => sge.addr,
            Some(sge) => self
                .mapped(sge.lkey, qp.pd, sge.addr, sge.length.into(), 0)
                .ok_or((IBV_WC_LOC_PROT_ERR, false))?,
        };
        let up = |qp: &Qp| self.contexts[qp.context].up;
        let reached = self.qps.get(qp.peer).filter(|peer| {
            let receives = [IBV_QPS_RTR, IBV_QPS_RTS].contains(&peer.state);
            peer.peer == number && receives && up(peer) && up(qp)
        });
        let (peer_number, peer) = (qp.peer, reached.ok_or((IBV_WC_RETRY_EXC_ERR, false))?);
        let with_imm = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        if !with_imm && wr.opcode != IBV_WR_RDMA_WRITE {
            return Err((IBV_WC_LOC_QP_OP_ERR, false));
        }
        let length = sge.map_or(0, |sge| sge.length);
        // SAFETY: every opcode in use has the `rdma` member.
        let to = unsafe { wr.wr.rdma };
        // An empty write accesses no memory and is not checked.
        let at = if length == 0 {
            0
        } else {
            let (pd, access) = (peer.pd, IBV_ACCESS_REMOTE_WRITE);
            self.mapped(to.rkey, pd, to.remote_addr, length.into(), access)
                .filter(|_| peer.remote_write)
                .ok_or((IBV_WC_REM_ACCESS_ERR, true))?
        };
        let (recv_cq, receives) = (peer.cqs[1], &mut self.qps[peer_number].receives);
        let receive = match with_imm {
            true => Some(
                receives
                    .pop_front()
                    .ok_or((IBV_WC_RNR_RETRY_EXC_ERR, false))?,
            ),
            false => None,
        };
        // SAFETY: local bytes are inline, readable by the caller's contract, or lie in a registered
        // region, as the remote bytes do. Regions may overlap, so this is `copy`.
        unsafe {
            let from = ptr::with_exposed_provenance::<u8>(from as usize);
            let at = ptr::with_exposed_provenance_mut::<u8>(at as usize);
            ptr::copy(from, at, length as usize);
        }
        if let Some(wr_id) = receive {
            let wc = ibv_wc {
                wr_id,
                opcode: IBV_WC_RECV_RDMA_WITH_IMM,
                byte_len: length,
                imm_data: wr.imm_data,
                wc_flags: IBV_WC_WITH_IMM,
                qp_num: peer_number,
                ..ibv_wc::default()
            };
            let solicited = wr.send_flags & IBV_SEND_SOLICITED != 0;
            self.complete(recv_cq, CqEntry { wc, frees: 0 }, solicited);
        }
        Ok(())
    }

    /// Completes a send and, with it, the unsignaled sends before it.
    fn complete_send(&mut self, number: u32, wr_id: u64, status: u32) {
        let qp = &mut self.qps[number];
        let frees = std::mem::take(&mut qp.unsignaled);
        let wc = ibv_wc {
            wr_id,
            status,
            opcode: IBV_WC_RDMA_WRITE,
            qp_num: number,
            ..ibv_wc::default()
        };
        let cq = qp.cqs[0];
        self.complete(cq, CqEntry { wc, frees }, false);
    }

    /// Executes one posted receive. Returns 0, or an errno if the stub refuses the receive.
    pub(crate) fn receive(&mut self, number: u32, wr_id: u64) -> c_int {
        let qp = &mut self.qps[number];
        match qp.state {
            IBV_QPS_RESET => return libc::EINVAL,
            _ if qp.receives.len() == qp.caps.max_recv_wr as usize => return libc::ENOMEM,
            IBV_QPS_ERR => self.flush_receive(number, wr_id),
            _ => qp.receives.push_back(wr_id),
        }
        0
    }

    /// Moves a queue pair to ERR and flushes its receives.
    pub(crate) fn enter_error(&mut self, number: u32) {
        self.qps[number].state = IBV_QPS_ERR;
        for wr_id in std::mem::take(&mut self.qps[number].receives) {
            self.flush_receive(number, wr_id);
        }
    }

    fn flush_receive(&mut self, number: u32, wr_id: u64) {
        let wc = ibv_wc {
            wr_id,
            status: IBV_WC_WR_FLUSH_ERR,
            opcode: IBV_WC_RECV,
            qp_num: number,
            ..ibv_wc::default()
        };
        let cq = self.qps[number].cqs[1];
        self.complete(cq, CqEntry { wc, frees: 0 }, false);
    }

    /// Appends an entry to a queue, and raises its event if the queue is armed for it.
    fn complete(&mut self, cq: u32, entry: CqEntry, solicited: bool) {
        let cq = &mut self.cqs[cq];
        if cq.entries.len() == cq.depth {
            let (context, element) = (cq.context, ibv_async_element { cq: cq.raw });
            self.raise(context, IBV_EVENT_CQ_ERR, element);
            return;
        }
        cq.entries.push_back(entry);
        let wakes = match cq.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited || entry.wc.status != IBV_WC_SUCCESS,
        };
        if let (true, Some(channel)) = (wakes, cq.channel) {
            cq.armed = Armed::No;
            self.channels[channel].raise(cq.raw);
        }
    }

    /// Removes the oldest entry of a queue, and frees the send queue entries that it covers.
    pub(crate) fn poll(&mut self, cq: u32) -> Option<ibv_wc> {
        let entry = self.cqs[cq].entries.pop_front()?;
        if let Some(qp) = self.qps.get_mut(entry.wc.qp_num) {
            qp.outstanding = qp.outstanding.saturating_sub(entry.frees);
        }
        Some(entry.wc)
    }
}
