//! The receiving half of a connection, as the thread of its NIC has it.

use std::os::fd::RawFd;

use super::SendHalf;
use crate::fabric::{Broken, Control, Event, FabricCounts, Imm, Rx};

/// Events taken from one connection before the next has its turn, and before the peer hears of
/// them: while we see to these, it sees to what else is in flight.
pub(crate) const BUDGET: usize = 128;

/// See the module.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// The link's.
    pub rx: Box<dyn Rx>,
    /// Why the connection is to be taken down.
    pub broken: Option<Broken>,
    /// Sleeps that it ended.
    pub wakeups: u64,
}

impl Receiving {
    /// Of a connection that has just come up.
    pub fn new(rx: Box<dyn Rx>) -> Self {
        Receiving {
            rx,
            broken: None,
            wakeups: 0,
        }
    }

    /// Hands what has arrived (immediate, where in its slot, length) to `arrived`, which says what
    /// is wrong with it, and notes what broke the connection first. Returns how many events there
    /// were, and whether one of them is to be answered at once: then [`SendHalf::drive`] is due.
    pub fn poll(
        &mut self,
        send: &SendHalf,
        mut arrived: impl FnMut(Imm, u32, u32) -> Result<(), Broken>,
    ) -> (usize, bool) {
        let (mut echo, mut broken) = (None, None);
        let events = self.rx.poll(BUDGET, &mut |event| match event {
            // What follows a write that cannot be has arrived all the same, and closed its grant.
            Event::Arrived { imm, at, len } => {
                if let Err(b) = arrived(imm, at, len) {
                    broken.get_or_insert(b);
                }
            }
            Event::Control(Control::Echo(v)) => echo = Some(v),
            Event::Control(Control::EchoReply(_)) => {}
            Event::Broken(b) => _ = broken.get_or_insert(b),
        });
        if events == 0 {
            // Where the sending half has failed, the receiving half may still have had something to
            // report.
            broken = send.take_failed();
        }
        if self.broken.is_none() {
            self.broken = broken;
        }
        if let Some(v) = echo {
            send.answer(v);
        }
        (events, echo.is_some())
    }

    /// What this half has done.
    pub fn counts(&self) -> FabricCounts {
        self.rx.counts()
    }

    /// A sleep was ended by this descriptor. True where it is this one's.
    pub fn woken_by(&mut self, fd: RawFd) -> bool {
        let mine = self.rx.fd() == fd;
        self.wakeups += u64::from(mine);
        mine
    }
}
