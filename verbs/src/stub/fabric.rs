//! The state of all the stub's devices, and what a work request does to it.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::objects::{Armed, Entry, Region, StubChannel, StubContext, StubCq, StubQp};
use crate::raw;

/// What a device was asked to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Posts to send queues.
    pub doorbells: u64,
    /// Sends taken.
    pub work_requests: u64,
    /// Of those, signaled ones.
    pub signaled: u64,
    /// Of those, inline ones.
    pub inline: u64,
    /// Receives taken.
    pub receives: u64,
    /// Completions polled.
    pub cqes: u64,
    /// Events raised on channels.
    pub cq_events: u64,
}

/// What exists now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Live {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Registrations.
    pub regions: usize,
}

/// Everything that queue pairs share. Keys and numbers are places in these tables.
#[derive(Default)]
pub struct Fabric {
    qps: Vec<*mut StubQp>,
    regions: Vec<Option<Region>>,
}

// SAFETY: the pointers are followed under the lock only, and objects leave the tables before they
// are freed.
unsafe impl Send for Fabric {}

static FABRIC: Mutex<Fabric> = Mutex::new(Fabric {
    qps: Vec::new(),
    regions: Vec::new(),
});

/// Runs `work` under the one lock.
pub fn with<R>(work: impl FnOnce(&mut Fabric) -> R) -> R {
    work(&mut FABRIC.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How a write ended, when it did not succeed: the sender's status, and whether the peer breaks
/// too.
type Failure = (u32, bool);

impl Fabric {
    /// Takes in a queue pair and returns its number. Numbers are never used twice.
    pub fn add_qp(&mut self, qp: *mut StubQp) -> u32 {
        self.qps.push(qp);
        self.qps.len() as u32
    }

    pub fn remove_qp(&mut self, number: u32) {
        if let Some(place) = self.qps.get_mut((number as usize).wrapping_sub(1)) {
            *place = ptr::null_mut();
        }
    }

    pub fn live(&self) -> Live {
        Live {
            queue_pairs: self.qps.iter().filter(|qp| !qp.is_null()).count(),
            regions: self.regions.iter().flatten().count(),
        }
    }

    fn qp(&self, number: u32) -> Option<*mut StubQp> {
        let qp = *self.qps.get((number as usize).wrapping_sub(1))?;
        (!qp.is_null()).then_some(qp)
    }

    /// Takes in a region and returns its key.
    pub fn add_region(&mut self, mut region: Region) -> u32 {
        // The low byte keeps a wrong key from being a right one by one bit.
        region.key = ((self.regions.len() as u32 + 1) << 8) | 0x5a;
        self.regions.push(Some(region));
        region.key
    }

    pub fn remove_region(&mut self, key: u32) -> Option<Region> {
        let place = self
            .regions
            .get_mut(((key >> 8) as usize).wrapping_sub(1))?;
        place.take()
    }

    /// Where bytes that a key allows really are.
    fn mapped(&self, key: u32, addr: u64) -> u64 {
        let place = self.regions.get(((key >> 8) as usize).wrapping_sub(1));
        match place.copied().flatten() {
            Some(Region {
                addr: base,
                mapped: Some(mapped),
                ..
            }) => mapped + (addr - base),
            _ => addr,
        }
    }

    /// Whether `len` bytes at `addr` are within the region of that key, in that domain, with those
    /// rights.
    fn allows(&self, key: u32, pd: *mut raw::ibv_pd, addr: u64, len: u64, access: u32) -> bool {
        let place = self.regions.get(((key >> 8) as usize).wrapping_sub(1));
        place.copied().flatten().is_some_and(|region| {
            let offset = addr.wrapping_sub(region.addr);
            let within = addr >= region.addr && offset <= region.len && len <= region.len - offset;
            region.key == key && region.pd == pd && within && region.access & access == access
        })
    }

    /// Raises an asynchronous event.
    ///
    /// # Safety
    ///
    /// `context` must be open.
    pub unsafe fn raise(&mut self, context: *mut StubContext, event: raw::ibv_async_event) {
        // SAFETY: open, and the lock is held.
        unsafe { (*context).events.raise(event) };
    }

    /// Takes one work request. Returns an errno when it cannot be taken.
    ///
    /// # Safety
    ///
    /// `qp` must be live, and `wr` a work request with what it points to.
    pub unsafe fn send(&mut self, qp: *mut StubQp, wr: *const raw::ibv_send_wr) -> c_int {
        // SAFETY: as the caller promises; the lock is held.
        let (wr, context) = unsafe { (&*wr, (*qp).raw.context.cast::<StubContext>()) };
        // SAFETY: a work request's list has as many entries as it says.
        let sges = unsafe { list(wr.sg_list, wr.num_sge) };
        let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        let signaled = wr.send_flags & raw::IBV_SEND_SIGNALED != 0;
        let inline = wr.send_flags & raw::IBV_SEND_INLINE != 0;
        // SAFETY: live, and the lock is held.
        unsafe {
            let state = (*qp).raw.state;
            if state != raw::IBV_QPS_RTS && state != raw::IBV_QPS_ERR {
                return libc::EINVAL;
            }
            let caps = (*qp).caps;
            if sges.len() > caps.max_send_sge as usize
                || (inline && length > u64::from(caps.max_inline_data))
            {
                return libc::EINVAL;
            }
            if (*qp).outstanding == caps.max_send_wr || self.waits(qp, wr) {
                return libc::ENOMEM;
            }
            (*qp).outstanding += 1;
            (*qp).unsignaled += 1;
            let counts = &mut (*context).counts;
            counts.work_requests += 1;
            counts.signaled += u64::from(signaled);
            counts.inline += u64::from(inline);

            if (*qp).swallow && state == raw::IBV_QPS_RTS {
                return 0;
            }
            let result = match state {
                raw::IBV_QPS_ERR => Err((raw::IBV_WC_WR_FLUSH_ERR, false)),
                _ if (*qp).discard => Ok(()),
                _ => self.carry(qp, wr, sges, length, inline),
            };
            match result {
                Ok(()) if signaled => self.complete_send(qp, wr.wr_id, raw::IBV_WC_SUCCESS),
                Ok(()) => {}
                Err((status, breaks_peer)) => {
                    self.complete_send(qp, wr.wr_id, status);
                    self.enter_error(qp);
                    if let (true, Some(peer)) = (breaks_peer, self.qp((*qp).dest_qp_num)) {
                        let element = raw::ibv_async_element { qp: peer.cast() };
                        let event = raw::ibv_async_event {
                            element,
                            event_type: raw::IBV_EVENT_QP_ACCESS_ERR,
                        };
                        self.raise((*peer).raw.context.cast(), event);
                        self.enter_error(peer);
                    }
                }
            }
        }
        0
    }

    /// Whether this is for a peer that has no receive for it, and is to wait for one. A device would
    /// take it and wait; here, where everything happens at once, it is not taken.
    ///
    /// # Safety
    ///
    /// As [`Fabric::send`].
    unsafe fn waits(&self, qp: *mut StubQp, wr: &raw::ibv_send_wr) -> bool {
        // SAFETY: live, and the lock is held.
        unsafe {
            let sends = (*qp).raw.state == raw::IBV_QPS_RTS && !(*qp).swallow && !(*qp).discard;
            let with_imm = wr.opcode == raw::IBV_WR_RDMA_WRITE_WITH_IMM;
            sends
                && with_imm
                && (*qp).waits_for_receives
                && self.qp((*qp).dest_qp_num).is_some_and(|peer| {
                    (*peer).raw.state == raw::IBV_QPS_RTS && (*peer).receives.is_empty()
                })
        }
    }

    /// Carries a write out: checks both sides, copies, and delivers the immediate.
    ///
    /// # Safety
    ///
    /// As [`Fabric::send`].
    unsafe fn carry(
        &mut self,
        qp: *mut StubQp,
        wr: &raw::ibv_send_wr,
        sges: &[raw::ibv_sge],
        length: u64,
        inline: bool,
    ) -> Result<(), Failure> {
        // SAFETY: live queue pairs of live contexts, and the lock is held. Local bytes are inline
        // ones, which the caller promises, or in a registered region; remote bytes are in a
        // registered region. Registered regions are mapped.
        unsafe {
            let pd = (*qp).raw.pd;
            if !inline
                && !sges
                    .iter()
                    .all(|sge| self.allows(sge.lkey, pd, sge.addr, u64::from(sge.length), 0))
            {
                return Err((raw::IBV_WC_LOC_PROT_ERR, false));
            }
            let up = |qp: *mut StubQp| (*(*qp).raw.context.cast::<StubContext>()).port_up;
            let receiving =
                |qp: *mut StubQp| [raw::IBV_QPS_RTR, raw::IBV_QPS_RTS].contains(&(*qp).raw.state);
            let peer = self.qp((*qp).dest_qp_num).filter(|&peer| {
                (*peer).dest_qp_num == (*qp).raw.qp_num && receiving(peer) && up(peer) && up(qp)
            });
            let Some(peer) = peer else {
                return Err((raw::IBV_WC_RETRY_EXC_ERR, false));
            };
            let to = wr.wr.rdma;
            let with_imm = wr.opcode == raw::IBV_WR_RDMA_WRITE_WITH_IMM;
            if !with_imm && wr.opcode != raw::IBV_WR_RDMA_WRITE {
                return Err((raw::IBV_WC_LOC_QP_OP_ERR, false));
            }
            let write = raw::IBV_ACCESS_REMOTE_WRITE;
            let allowed = (*peer).remote_write
                && self.allows(to.rkey, (*peer).raw.pd, to.remote_addr, length, write);
            // A write of nothing touches nothing, and is not checked.
            if length > 0 && !allowed {
                return Err((raw::IBV_WC_REM_ACCESS_ERR, true));
            }
            let receive = if with_imm {
                let taken = (*peer).receives.pop_front();
                Some(taken.ok_or((raw::IBV_WC_RNR_RETRY_EXC_ERR, false))?)
            } else {
                None
            };
            let mut at = match length {
                0 => 0,
                _ => self.mapped(to.rkey, to.remote_addr) as usize,
            };
            for sge in sges {
                let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
                // Regions may overlap when a queue pair writes to its own process.
                ptr::copy(
                    from,
                    ptr::with_exposed_provenance_mut::<u8>(at),
                    sge.length as usize,
                );
                at += sge.length as usize;
            }
            if let Some(wr_id) = receive {
                let wc = raw::ibv_wc {
                    wr_id,
                    opcode: raw::IBV_WC_RECV_RDMA_WITH_IMM,
                    byte_len: length as u32,
                    imm_data: wr.imm_data,
                    wc_flags: raw::IBV_WC_WITH_IMM,
                    qp_num: (*peer).raw.qp_num,
                    ..raw::ibv_wc::default()
                };
                let solicited = wr.send_flags & raw::IBV_SEND_SOLICITED != 0;
                self.complete(
                    (*peer).raw.recv_cq.cast(),
                    Entry { wc, frees: 0 },
                    solicited,
                );
            }
        }
        Ok(())
    }

    /// Completes a send, and with it the unsignaled ones before it.
    unsafe fn complete_send(&mut self, qp: *mut StubQp, wr_id: u64, status: u32) {
        // SAFETY: live, and the lock is held.
        unsafe {
            let frees = std::mem::take(&mut (*qp).unsignaled);
            let opcode = raw::IBV_WC_RDMA_WRITE;
            let wc = raw::ibv_wc {
                wr_id,
                status,
                opcode,
                qp_num: (*qp).raw.qp_num,
                ..raw::ibv_wc::default()
            };
            self.complete((*qp).raw.send_cq.cast(), Entry { wc, frees }, false);
        }
    }

    /// Moves a queue pair to ERR and gives its receives back, unless they are shared.
    pub unsafe fn enter_error(&mut self, qp: *mut StubQp) {
        // SAFETY: live, and the lock is held.
        unsafe {
            (*qp).raw.state = raw::IBV_QPS_ERR;
            while let Some(wr_id) = (*qp).receives.pop_front() {
                self.flush_receive(qp, wr_id);
            }
        }
    }

    /// Gives a receive back undone.
    pub unsafe fn flush_receive(&mut self, qp: *mut StubQp, wr_id: u64) {
        // SAFETY: live, and the lock is held.
        unsafe {
            let (status, opcode) = (raw::IBV_WC_WR_FLUSH_ERR, raw::IBV_WC_RECV);
            let wc = raw::ibv_wc {
                wr_id,
                status,
                opcode,
                qp_num: (*qp).raw.qp_num,
                ..raw::ibv_wc::default()
            };
            self.complete((*qp).raw.recv_cq.cast(), Entry { wc, frees: 0 }, false);
        }
    }

    /// Appends an entry to a queue and raises its event when it is armed for it.
    unsafe fn complete(&mut self, cq: *mut StubCq, entry: Entry, solicited: bool) {
        // SAFETY: live, and the lock is held.
        unsafe {
            let context = (*cq).raw.context.cast::<StubContext>();
            if (*cq).entries.len() == (*cq).raw.cqe as usize {
                let element = raw::ibv_async_element { cq: cq.cast() };
                self.raise(
                    context,
                    raw::ibv_async_event {
                        element,
                        event_type: raw::IBV_EVENT_CQ_ERR,
                    },
                );
                return;
            }
            (*cq).entries.push_back(entry);
            let wakes = match (*cq).armed {
                Armed::No => false,
                Armed::Any => true,
                Armed::Solicited => solicited || entry.wc.status != raw::IBV_WC_SUCCESS,
            };
            let channel = (*cq).raw.channel.cast::<StubChannel>();
            if wakes && !channel.is_null() {
                (*cq).armed = Armed::No;
                (*channel).events.raise(cq);
                (*context).counts.cq_events += 1;
            }
        }
    }

    /// Takes the oldest entry of a queue, and frees the send queue places that it stands for.
    ///
    /// # Safety
    ///
    /// `cq` must be live.
    pub unsafe fn poll(&mut self, cq: *mut StubCq) -> Option<raw::ibv_wc> {
        // SAFETY: live, and the lock is held.
        unsafe {
            let entry = (*cq).entries.pop_front()?;
            (*(*cq).raw.context.cast::<StubContext>()).counts.cqes += 1;
            if let (true, Some(qp)) = (entry.frees > 0, self.qp(entry.wc.qp_num)) {
                (*qp).outstanding = (*qp).outstanding.saturating_sub(entry.frees);
            }
            Some(entry.wc)
        }
    }
}

/// A work request's list as a slice.
unsafe fn list<'a>(sges: *const raw::ibv_sge, count: c_int) -> &'a [raw::ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: the caller's work request says so.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(sges, count) },
        _ => &[],
    }
}
