//! The state that both halves of a connection share: the queue pair, its completion queues,
//! counters of retired sends, and the cause of a failure. Also the state that all connections of a
//! device share: the device's asynchronous events.

use std::{
    any::Any,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use verbs::{AsyncEvent, CompChannel, Context, Cq, Mr, Notify, Qp, Rts, Wc};

use crate::{Broken, nic::Cause, os::lock};

/// Completions polled from the send queue at a time.
const TAKE: usize = 16;

pub(super) struct Shared {
    // Drop order: the queue pair first, then its queues, then the registrations and the domain.
    pub qp: Qp<Rts>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
    pub channel: Arc<CompChannel>,
    /// Token of the receive queue; the send queue has `token + 1`.
    pub token: u64,
    pub watched: Arc<Watched>,
    pub sends: Sends,
    pub cause: Cause,
    pub gone: AtomicU8,
    /// Registrations that the peer and this device may still access.
    pub _registered: Vec<Arc<Mr>>,
    /// The domain, and the device with the thread that watches it.
    pub _resources: Arc<dyn Any + Send + Sync>,
}

#[derive(Default)]
pub(super) struct Sends {
    /// Work requests and writes retired since the connection was made.
    retired_wrs: AtomicU64,
    retired_writes: AtomicU64,
    cqes: AtomicU64,
    /// The send queue is armed and its event has not been taken.
    is_armed: AtomicBool,
}

/// Encodes a send's `wr_id`: the numbers of work requests and writes up to and including it, each
/// modulo 2^32.
pub(super) fn wr_id(work_requests: u64, writes: u64) -> u64 {
    (work_requests & 0xffff_ffff) << 32 | (writes & 0xffff_ffff)
}

impl Shared {
    pub(crate) fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Breaks the connection; the first cause stays. Posted work requests complete with a flush
    /// error. When this function returns, and when [`Shared::broken`] returns a cause, the queue
    /// pair is in ERR and no write lands through it, whichever thread was first.
    pub(crate) fn fail(&self, cause: impl Into<Broken>) {
        self.cause.fail(cause.into(), || {
            if let Err(e) = self.qp.set_error() {
                tracing::debug!("{e}");
            }
        });
    }

    /// The cause of the failure; `None` while the connection is up.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.cause.get()
    }

    /// Breaks the connection for a completion with an error status and returns the first cause. For
    /// a flush error, it first looks for a better cause in the send queue and the device's events.
    pub(crate) fn failed(&self, wc: &Wc) -> Broken {
        if wc.is_flushed() {
            // A flush error is a consequence: the queue pair was already in ERR.
            self.retire();
            self.watched.pump();
        }
        self.fail(Broken::WorkCompletion(self.describe(wc)));
        self.cause.get().cloned().unwrap_or(Broken::Closed)
    }

    fn describe(&self, wc: &Wc) -> String {
        let device = self.watched.context.name();
        let (status, qp) = (wc.status(), wc.qp_num());
        match wc.vendor_err() {
            0 => format!("{status} (queue pair {qp} of {device})"),
            v => format!("{status} (queue pair {qp} of {device}, vendor error {v:#x})"),
        }
    }

    /// Polls the send queue and advances the counters, which only grow. Any thread may call it.
    pub(crate) fn retire(&self) -> usize {
        let mut wcs = [Wc::default(); TAKE];
        let mut total = 0;
        let mut flushed = None;
        loop {
            let taken = match self.send_cq.poll(&mut wcs) {
                Ok(n) => n,
                Err(e) => {
                    self.fail(e);
                    return total;
                }
            };
            for wc in &wcs[..taken] {
                if wc.is_success() {
                    advance(&self.sends.retired_writes, wc.wr_id() as u32);
                    advance(&self.sends.retired_wrs, (wc.wr_id() >> 32) as u32);
                } else if wc.is_flushed() {
                    flushed = Some(*wc);
                } else {
                    self.fail(Broken::WorkCompletion(self.describe(wc)));
                }
            }
            let cqes = &self.sends.cqes;
            cqes.fetch_add(taken as u64, Ordering::Relaxed);
            total += taken;
            if taken < TAKE {
                break;
            }
        }
        if let (Some(wc), None) = (flushed, self.broken()) {
            self.watched.pump();
            self.fail(Broken::WorkCompletion(self.describe(&wc)));
        }
        total
    }

    pub(crate) fn retired_wrs(&self) -> u64 {
        self.sends.retired_wrs.load(Ordering::Acquire)
    }

    pub(crate) fn retired_writes(&self) -> u64 {
        self.sends.retired_writes.load(Ordering::Acquire)
    }

    pub(crate) fn send_cqes(&self) -> u64 {
        self.sends.cqes.load(Ordering::Relaxed)
    }

    /// Arms the send queue for its next completion, then retires earlier completions.
    pub(crate) fn arm_send(&self) {
        if !self.sends.is_armed.swap(true, Ordering::SeqCst)
            && let Err(e) = self.send_cq.arm(Notify::Any)
        {
            self.fail(e);
        }
        self.retire();
    }

    /// Records that the send queue's event was taken, so that the queue is no longer armed.
    pub(crate) fn send_event(&self) {
        self.sends.is_armed.store(false, Ordering::SeqCst);
    }

    /// Counts a dropped half. The drop of the second half moves the queue pair to ERR.
    pub(crate) fn half_gone(&self) {
        if self.gone.fetch_add(1, Ordering::AcqRel) == 1 {
            self.fail(Broken::Closed);
        }
    }
}

/// Advances `counter` to the next value with the lower 32 bits `low`; never moves it back.
fn advance(counter: &AtomicU64, low: u32) {
    let now = counter.load(Ordering::Relaxed);
    let step = low.wrapping_sub(now as u32) as i32;
    if step > 0 {
        counter.fetch_max(now + step as u64, Ordering::AcqRel);
    }
}

/// The part of the device that connections and the watching thread share.
pub(super) struct Watched {
    pub context: Arc<Context>,
    pub port: u8,
    connections: Mutex<Vec<Weak<Shared>>>,
}

impl Watched {
    pub(crate) fn new(context: Arc<Context>, port: u8) -> Self {
        Watched {
            context,
            port,
            connections: Mutex::default(),
        }
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Shared>> {
        let all = lock(&self.connections);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add(&self, connection: &Arc<Shared>) {
        let mut all = lock(&self.connections);
        all.retain(|c| c.strong_count() > 0);
        all.push(Arc::downgrade(connection));
    }

    /// Handles every pending event. Any thread may call it; it never blocks. Returns false after
    /// the device has failed to deliver events, as when it is unplugged.
    pub(crate) fn pump(&self) -> bool {
        loop {
            match self.context.next_async_event() {
                Ok(Some(event)) => self.event(event),
                Ok(None) => return true,
                Err(e) => {
                    tracing::warn!("{e}");
                    self.fail(&e.to_string(), |_| true);
                    return false;
                }
            }
        }
    }

    fn event(&self, event: AsyncEvent) {
        let name = self.context.name();
        match event {
            // The device leaves its queue pairs in RTS; without this call, their sends fail only
            // after the last retry.
            AsyncEvent::PortDown(port) if port == self.port => {
                self.fail(&format!("port {port} of {name} is down"), |_| true);
            }
            AsyncEvent::DeviceFatal => self.fail(&format!("{name} has failed"), |_| true),
            AsyncEvent::QpFatal(qp_num, cause) => {
                let cause = format!("{name}: queue pair {qp_num} failed: {cause}");
                self.fail(&cause, |connection| connection.qp_num() == qp_num);
            }
            AsyncEvent::CqError(token) => {
                let cause = format!("{name}: a completion queue overflowed");
                self.fail(&cause, |connection| token & !1 == connection.token);
            }
            other => tracing::debug!("{name}: {other:?}"),
        }
    }

    fn fail(&self, cause: &str, concerns: impl Fn(&Shared) -> bool) {
        for c in self.connections().iter().filter(|c| concerns(c)) {
            c.fail(Broken::Device(cause.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_past_32_bits_and_never_back() {
        let c = AtomicU64::new(0xffff_fff0);
        advance(&c, 5);
        assert_eq!(c.load(Ordering::Relaxed), 0x1_0000_0005);
        advance(&c, 0xffff_fff8);
        assert_eq!(
            c.load(Ordering::Relaxed),
            0x1_0000_0005,
            "an older completion"
        );
    }
}
