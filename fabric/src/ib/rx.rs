//! The receiving half: turns completions into events, and posts receives again in bulk before their
//! events are reported.

use std::{
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use verbs::{Notify, RecvChain, Wc};

use super::{CLOSE, shared::Shared};
use crate::{
    Armed, Broken, Event, FabricCounts, Imm, Region, Rx, Window,
    nic::{CELL_BYTES, Descriptor, IN_CELL},
    parts::Parts,
};

const TAKE: usize = 32;

pub(super) struct IbRx {
    shared: Arc<Shared>,
    parts: Parts,
    cells: Arc<Region>,
    receives: RecvChain,
    /// Consumed receives that are not yet posted again.
    consumed: u32,
    batch: u32,
    /// Completions that wake the sleeping thread: solicited ones, or any.
    notify: Notify,
    armed: bool,
    wcs: Box<[Wc; TAKE]>,
    /// Polled completions that are not yet reported: `next..taken`.
    next: usize,
    taken: usize,
    done: bool,
    counts: FabricCounts,
}

impl IbRx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        window: Window,
        cells: Arc<Region>,
        posted: u32,
        batch: u32,
        notify: Notify,
    ) -> Self {
        IbRx {
            shared,
            parts: Parts::new(window),
            cells,
            receives: RecvChain::new(batch as usize + TAKE),
            consumed: 0,
            batch: batch.max(1),
            notify,
            armed: false,
            wcs: Box::new([Wc::default(); TAKE]),
            next: 0,
            taken: 0,
            done: false,
            counts: FabricCounts {
                receives: u64::from(posted),
                ..FabricCounts::default()
            },
        }
    }

    /// Polls the receive queue and reposts full batches. Returns the number of completions.
    fn take(&mut self) -> Result<usize, Broken> {
        let taken = self.shared.recv_cq.poll(&mut self.wcs[..])?;
        (self.next, self.taken) = (0, taken);
        self.counts.cqes += taken as u64;
        let good = self.wcs[..taken].iter().filter(|w| w.is_success()).count();
        self.consumed += good as u32;
        if self.consumed >= self.batch && good == taken {
            self.put_back()?;
        }
        Ok(taken)
    }

    fn put_back(&mut self) -> Result<(), Broken> {
        let count = self.consumed as usize;
        let posted = self.shared.qp.post_recv(&mut self.receives, count)?;
        self.consumed -= posted as u32;
        self.counts.receives += posted as u64;
        Ok(())
    }

    fn event(&mut self, wc: &Wc) -> Result<Event, Broken> {
        if !wc.is_success() {
            return Err(self.shared.failed(wc));
        }
        let bits = wc.imm().ok_or(Broken::BadFrame {
            what: "completion",
            value: u64::from(wc.opcode()),
        })?;
        if bits == CLOSE {
            return Err(Broken::Closed);
        }
        let imm = Imm::from_bits(bits);
        if imm.is_control() {
            self.counts.control += 1;
            return imm.control_event();
        }
        let (imm, at, len) = if bits & IN_CELL == 0 {
            (imm, None, wc.byte_len())
        } else {
            self.split(Imm::from_bits(bits & !IN_CELL), wc.byte_len())?
        };
        let at = self.parts.landing(imm, at, len)?.at;
        self.parts.land(imm, at, len, &mut self.counts)
    }

    /// Decodes a split write's offset and length; its payload has already landed.
    fn split(&self, imm: Imm, described: u32) -> Result<(Imm, Option<u32>, u32), Broken> {
        let window = self.parts.window();
        window.landing(imm, 0, 0)?;
        if imm.more() {
            return Err(Broken::BadFrame {
                what: "split part",
                value: u64::from(imm.bits()),
            });
        }
        match described as usize {
            0 => Ok((imm, Some(0), window.stride() as u32)),
            CELL_BYTES => {
                let d = Descriptor::read(Some(&self.cells), imm)?;
                Ok((imm, Some(d.at), d.len))
            }
            other => Err(Broken::BadFrame {
                what: "length of a descriptor",
                value: other as u64,
            }),
        }
    }

    fn next_event(&mut self) -> Result<Option<Event>, Broken> {
        if self.next == self.taken {
            // Load the cause before polling: earlier completions are reported first.
            let broken = self.shared.broken().cloned();
            if self.take()? == 0 {
                return broken.map_or(Ok(None), Err);
            }
        }
        let wc = self.wcs[self.next];
        self.next += 1;
        self.event(&wc).map(Some)
    }

    /// Takes the channel's events. Returns true if the send queue had an event.
    fn take_events(&mut self) -> Result<bool, Broken> {
        let (shared, token) = (&self.shared, self.shared.token);
        let (mut received, mut sent) = (false, false);
        let n = shared.channel.take_events(|t| {
            if t == token {
                received = true;
            } else {
                sent = true;
                shared.send_event();
            }
        })?;
        self.armed &= !received;
        self.counts.cq_events += n as u64;
        Ok(sent)
    }

    fn try_arm(&mut self) -> Result<Armed, Broken> {
        if self.next < self.taken || self.shared.broken().is_some() {
            return Ok(Armed::Ready);
        }
        if self.take_events()? {
            // A write has completed: the caller flushes, since the send queue may have room, and
            // arms again.
            return Ok(Armed::Ready);
        }
        if !self.armed {
            self.shared.recv_cq.arm(self.notify)?;
            self.armed = true;
        }
        // Completions from before the arming raise no event: poll once more.
        Ok(if self.take()? == 0 {
            Armed::Sleep
        } else {
            Armed::Ready
        })
    }
}

impl Rx for IbRx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize {
        let mut events = 0;
        while events < budget && !self.done {
            let event = match self.next_event() {
                Ok(Some(e)) => e,
                Ok(None) => break,
                Err(b) => {
                    // Both halves report the first cause.
                    self.shared.fail(b.clone());
                    self.done = true;
                    Event::Broken(self.shared.broken().cloned().unwrap_or(b))
                }
            };
            sink(event);
            events += 1;
        }
        events
    }

    fn arm(&mut self) -> Armed {
        if self.done {
            return Armed::Sleep;
        }
        self.try_arm().unwrap_or_else(|b| {
            self.shared.fail(b);
            Armed::Ready
        })
    }

    fn fd(&self) -> RawFd {
        self.shared.channel.as_raw_fd()
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for IbRx {
    fn drop(&mut self) {
        self.shared.half_gone();
    }
}
