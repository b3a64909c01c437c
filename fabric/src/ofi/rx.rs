//! The receiving half: turns arrivals into events.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use super::{
    OfiForm, OwnMessage, VALUE_MASK,
    nap::Nap,
    shared::{Arrival, Queue, Shared},
};
use crate::{
    Armed, Broken, Event, FabricCounts, Imm, OpenError, Region, Rx, Window,
    nic::{Descriptor, IN_CELL},
    parts::Parts,
};

/// Most arrivals taken per lock of the queue.
const TAKE: usize = 32;

pub(super) struct OfiRx {
    shared: Arc<Shared>,
    parts: Parts,
    cells: Option<Arc<Region>>,
    taken: VecDeque<Arrival>,
    /// Timer to sleep on; present if the provider has no wait descriptor.
    nap: Option<Nap>,
    fd: RawFd,
    keeps_order: bool,
    /// Number of writes that must arrive before the goodbye takes effect.
    closes_at: Option<u32>,
    arrived: u64,
    done: bool,
    counts: FabricCounts,
}

impl OfiRx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        window: Window,
        cells: Option<Arc<Region>>,
    ) -> Result<Self, OpenError> {
        let nap = match shared.endpoint.wait_fd() {
            Some(_) => None,
            None => Some(Nap::new().map_err(OpenError::system("timerfd"))?),
        };
        let fd = match (&nap, shared.endpoint.wait_fd()) {
            (Some(nap), _) => nap.as_raw_fd(),
            (None, fd) => fd.unwrap_or(-1),
        };
        let keeps_order = shared.resources.device().keeps_order();
        Ok(OfiRx {
            shared,
            parts: Parts::new(window),
            cells,
            taken: VecDeque::with_capacity(TAKE),
            nap,
            fd,
            keeps_order,
            closes_at: None,
            arrived: 0,
            done: false,
            counts: FabricCounts::default(),
        })
    }

    /// Takes arrivals from the inbox; polls the provider once if the inbox is empty.
    fn take(&mut self) {
        let mut queue = self.shared.queue();
        if queue.inbox.is_empty() {
            self.shared.progress(&mut queue);
        }
        while self.taken.len() < TAKE
            && let Some(arrival) = queue.inbox.pop_front()
        {
            self.taken.push_back(arrival);
        }
    }

    /// Decodes one arrival. Returns `None` for messages internal to the fabric.
    fn event(&mut self, arrival: Arrival) -> Result<Option<Event>, Broken> {
        let bits = arrival.data as u32;
        match OwnMessage::of(bits) {
            Some(OwnMessage::Close(writes)) => {
                self.closes_at = Some(writes);
                return self.closing();
            }
            Some(OwnMessage::Count(writes)) => return self.all_came(writes),
            // `Shared::note` has handled these messages on arrival.
            Some(OwnMessage::Hello(_) | OwnMessage::Answer(_)) => return Ok(None),
            None => {}
        }
        let imm = Imm::from_bits(bits);
        if imm.is_control() {
            self.counts.control += 1;
            return imm.control_event().map(Some);
        }
        self.arrived += 1;
        let (imm, len) = self.length(bits, arrival)?;
        let at = self.parts.landing(imm, None, len)?.at;
        let event = self.parts.land(imm, at, len, &mut self.counts)?;
        Ok(Some(event))
    }

    fn length(&self, bits: u32, arrival: Arrival) -> Result<(Imm, u32), Broken> {
        let imm = Imm::from_bits(bits & !IN_CELL);
        let long = |len: usize| Broken::BadFrame {
            what: "length of a write",
            value: len as u64,
        };
        let len = match self.shared.form {
            OfiForm::Completion => u32::try_from(arrival.len).map_err(|_| long(arrival.len))?,
            OfiForm::Data | OfiForm::After => (arrival.data >> 32) as u32,
            OfiForm::Cell if bits & IN_CELL == 0 => self.parts.window().stride() as u32,
            OfiForm::Cell => {
                self.parts.window().landing(imm, 0, 0)?;
                Descriptor::read(self.cells.as_deref(), imm)?.len
            }
        };
        Ok((imm, len))
    }

    /// Ends the connection once the goodbye and every write before it have arrived.
    fn closing(&self) -> Result<Option<Event>, Broken> {
        match self.closes_at {
            Some(writes) if self.keeps_order || self.arrived as u32 & VALUE_MASK == writes => {
                Err(Broken::Closed)
            }
            _ => Ok(None),
        }
    }

    /// Compares the peer's count of posted writes with the arrived ones; a difference is a loss.
    fn all_came(&self, writes: u32) -> Result<Option<Event>, Broken> {
        let came = self.arrived as u32 & VALUE_MASK;
        if !self.keeps_order || came == writes {
            return Ok(None);
        }
        let name = self.shared.resources.device().name();
        Err(Broken::Device(format!(
            "{name} has lost writes on their way: the peer posted {writes}, and {came} arrived"
        )))
    }

    fn next_event(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            if self.taken.is_empty() {
                // Load the cause before polling: earlier arrivals are reported first.
                let broken = self.shared.broken().cloned();
                self.take();
                if self.taken.is_empty() {
                    return broken.map_or(Ok(None), Err);
                }
            }
            let Some(arrival) = self.taken.pop_front() else {
                return Ok(None);
            };
            if let Some(nap) = &mut self.nap {
                nap.reset();
            }
            let event = self.event(arrival)?;
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn try_arm(&mut self) -> Armed {
        if !self.taken.is_empty() || self.shared.broken().is_some() {
            return Armed::Ready;
        }
        let mut queue = self.shared.queue();
        if queue.waits() {
            return Armed::Ready;
        }
        let Some(nap) = &mut self.nap else {
            // A layer with an event on the peer's socket refuses to sleep until its next 10 ms
            // tick. Spinning that long per step and connection would starve a busy machine, so the
            // thread sleeps during the warm-up and the next tick polls.
            let waits_for_a_tick = |queue: &mut Queue| {
                !self.shared.is_warm() && self.shared.progress(queue) == 0 && !queue.waits()
            };
            let sleep = self.shared.endpoint.may_sleep() || waits_for_a_tick(&mut queue);
            return if sleep { Armed::Sleep } else { Armed::Ready };
        };
        if self.shared.progress(&mut queue) > 0 || queue.waits() {
            return Armed::Ready;
        }
        nap.begin();
        Armed::Sleep
    }
}

impl Rx for OfiRx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize {
        let mut events = 0;
        while events < budget && !self.done {
            let event = match self.next_event() {
                Ok(Some(e)) => {
                    let closing = self.closing();
                    if let Err(b) = closing {
                        self.shared.fail(b);
                    }
                    e
                }
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
        self.try_arm()
    }

    fn fd(&self) -> RawFd {
        self.fd
    }

    fn counts(&self) -> FabricCounts {
        let queue = self.shared.queue();
        FabricCounts {
            progress: queue.progress,
            cqes: queue.cqes,
            receives: queue.receives,
            ..self.counts
        }
    }
}
