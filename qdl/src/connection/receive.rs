//! The receiving half of a connection, owned by the NIC thread.

use std::os::fd::RawFd;

use super::SendHalf;
use fabric::{Broken, Control, Event, FabricCounts, Imm, Rx};

const WRITES_MIN: usize = 128;
const WRITES_MAX: usize = 512;

/// Half of the writes in flight, but 128 to 512. It limits the events of one poll
/// before the next connection's turn, and the writes per doorbell. While this end handles half of
/// the writes, the peer handles the rest.
pub(crate) fn writes_at_once(in_flight: usize) -> usize {
    (in_flight / 2).clamp(WRITES_MIN, WRITES_MAX)
}

/// A write that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedWrite {
    pub imm: Imm,
    pub slot_offset: u32,
    /// Bytes.
    pub len: u32,
}

pub(crate) struct ReceiveHalf {
    pub rx: Box<dyn Rx>,
    /// Why the connection must be taken down.
    pub broken: Option<Broken>,
    /// The peer's echo is overdue. Becomes [`Self::broken`] unless the next poll finds bytes.
    pub silent: Option<Broken>,
    /// Sleeps of the thread that this connection's descriptor ended.
    pub wakeups: u64,
    /// The last poll found events, or bytes of an incomplete payload.
    pub is_busy: bool,
    /// The last poll found an echo: the caller must call [`SendHalf::post_from`], which replies.
    pub owes_reply: bool,
    /// Value of [`Rx::carried`] after the last poll.
    carried: u64,
}

impl ReceiveHalf {
    /// Makes the state of a connection that has just come up.
    pub(crate) fn new(rx: Box<dyn Rx>) -> Self {
        ReceiveHalf {
            rx,
            broken: None,
            silent: None,
            wakeups: 0,
            is_busy: false,
            owes_reply: false,
            carried: 0,
        }
    }

    /// Passes up to `events_max` writes to `arrived`, which returns an error for an invalid one.
    /// Stores the first error in `broken`. Returns the number of events.
    pub(crate) fn poll(
        &mut self,
        send: &SendHalf,
        events_max: usize,
        mut arrived: impl FnMut(ArrivedWrite) -> Result<(), Broken>,
    ) -> usize {
        let (mut echo, mut broken) = (None, None);
        let events = self.rx.poll(events_max, &mut |event| match event {
            // Handle arrivals after an invalid write too: their grants are closed.
            Event::Arrived { imm, at, len } => {
                if let Err(b) = arrived(ArrivedWrite {
                    imm,
                    slot_offset: at,
                    len,
                }) {
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
            // Take the sending half's failure only after the last event of the receiving half.
            broken = send.take_failed();
        }
        if let Some(v) = echo {
            send.answer(v);
        }
        // Bytes of an incomplete payload are a sign of life, too.
        self.is_busy = events > 0 || moved;
        let silent = self.silent.take().filter(|_| !self.is_busy);
        if self.broken.is_none() {
            self.broken = broken.or(silent);
        }
        self.owes_reply = echo.is_some();
        events
    }

    /// Whether the connection is broken, or will be unless the next poll finds bytes.
    pub(crate) fn is_lost(&self) -> bool {
        self.broken.is_some() || self.silent.is_some()
    }

    pub(crate) fn counts(&self) -> FabricCounts {
        self.rx.counts()
    }

    /// Counts a sleep that `fd` ended. Returns whether `fd` is this connection's descriptor.
    pub(crate) fn woken_by(&mut self, fd: RawFd) -> bool {
        let mine = self.rx.fd() == fd;
        self.wakeups += u64::from(mine);
        mine
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use fabric::Armed;

    /// Reports the number of events and the carried bytes of each poll, last entry first.
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
    fn the_peer_has_the_other_half_of_the_writes_in_flight() {
        assert_eq!(writes_at_once(256), 128, "not all of it");
        assert_eq!(writes_at_once(600), 300);
        assert_eq!(writes_at_once(1), WRITES_MIN, "a few may go as one");
        assert_eq!(writes_at_once(usize::MAX), WRITES_MAX);
    }

    #[test]
    fn a_poll_that_carries_part_of_a_payload_is_work() {
        let polls = vec![(0, 30), (0, 30), (2, 30), (1, 20), (0, 10), (0, 0)];
        let mut half = ReceiveHalf::new(Box::new(Polls(polls, 0)));
        let send = SendHalf::default();
        let mut poll = || {
            let events = half.poll(&send, WRITES_MIN, |_| Ok(()));
            (events, half.is_busy)
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
