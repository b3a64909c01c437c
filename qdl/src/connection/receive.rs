//! The receiving half of a connection, as the thread of its NIC has it.

use std::os::fd::RawFd;

use super::SendHalf;
use fabric::{Broken, Control, Event, FabricCounts, Imm, Rx};

/// Fewest events taken from one connection before the next has its turn, where there are more,
const BUDGET: usize = 128;
/// and most.
const MOST: usize = 512;

/// Events taken from one connection before the next has its turn, and before the peer hears of
/// them, and writes that one doorbell carries, where so many are in flight or may be: half of
/// them. While we see to these, the peer sees to the others.
pub(crate) fn burst(in_flight: usize) -> usize {
    (in_flight / 2).clamp(BUDGET, MOST)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// The link's.
    pub rx: Box<dyn Rx>,
    /// Why the connection is to be taken down.
    pub broken: Option<Broken>,
    /// Sleeps that it ended.
    pub wakeups: u64,
    /// [`Rx::carried`] after the last poll.
    carried: u64,
}

/// What one poll came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Polled {
    /// Events.
    pub events: usize,
    /// There were some, or bytes came of one that is under way.
    pub busy: bool,
    /// One of them is to be answered at once: [`SendHalf::drive`] is due.
    pub answer: bool,
}

impl Receiving {
    /// Of a connection that has just come up.
    pub fn new(rx: Box<dyn Rx>) -> Self {
        Receiving {
            rx,
            broken: None,
            wakeups: 0,
            carried: 0,
        }
    }

    /// Hands what has arrived (immediate, where in its slot, length), `most` events at most, to
    /// `arrived`, which says what is wrong with it, and notes what broke the connection first.
    pub fn poll(
        &mut self,
        send: &SendHalf,
        most: usize,
        mut arrived: impl FnMut(Imm, u32, u32) -> Result<(), Broken>,
    ) -> Polled {
        let (mut echo, mut broken) = (None, None);
        let events = self.rx.poll(most, &mut |event| match event {
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
        let carried = self.rx.carried();
        let moved = std::mem::replace(&mut self.carried, carried) != carried;
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
        Polled {
            events,
            busy: events > 0 || moved,
            answer: echo.is_some(),
        }
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

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use super::*;
    use fabric::Armed;

    /// Reports so many events in each poll, and has carried so many bytes after it; the last first.
    #[derive(Debug)]
    struct Polls(Vec<(usize, u64)>, u64);

    impl Rx for Polls {
        fn poll(&mut self, _: usize, sink: &mut dyn FnMut(Event)) -> usize {
            let (events, carried) = self.0.pop().expect("as many polls as were planned");
            self.1 = carried;
            for _ in 0..events {
                sink(Event::Control(Control::EchoReply(0)));
            }
            events
        }
        fn carried(&self) -> u64 {
            self.1
        }
        fn arm(&mut self) -> Armed {
            Armed::Sleep
        }
        fn fd(&self) -> RawFd {
            -1
        }
        fn counts(&self) -> FabricCounts {
            FabricCounts::default()
        }
    }

    #[test]
    fn the_peer_has_the_other_half_of_what_is_in_flight() {
        assert_eq!(burst(256), 128, "not all of it");
        assert_eq!(burst(600), 300);
        assert_eq!(burst(1), BUDGET, "a few may go as one");
        assert_eq!(burst(usize::MAX), MOST);
    }

    #[test]
    fn a_poll_that_carried_part_of_something_had_something_to_do() {
        let polls = vec![(0, 30), (0, 30), (2, 30), (1, 20), (0, 10), (0, 0)];
        let mut half = Receiving::new(Box::new(Polls(polls, 0)));
        let send = SendHalf::default();
        let mut poll = || {
            let polled = half.poll(&send, BUDGET, |_, _, _| Ok(()));
            (polled.events, polled.busy)
        };
        assert_eq!(poll(), (0, false), "nothing came");
        assert_eq!(poll(), (0, true), "a part came");
        assert_eq!(poll(), (1, true));
        assert_eq!(poll(), (2, true));
        assert_eq!(
            poll(),
            (0, false),
            "what came before is no work of this poll"
        );
        assert_eq!(poll(), (0, false));
    }
}
